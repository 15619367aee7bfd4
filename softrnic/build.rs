//! Gives the shared object the name, the symbol versions and the lifetime of `libibverbs.so.1`.

use std::path::PathBuf;

fn main() {
    // Version nodes; the symbols join them through `.symver` (see src/abi/export.rs), and all
    // others are local.
    let mut maps = vec!["nodes.map"];
    if std::env::var_os("CARGO_FEATURE_TOOLS").is_some() {
        maps.push("private.map");
    }
    let read = |map: &&str| std::fs::read_to_string(map).unwrap_or_else(|e| panic!("{map}: {e}"));
    // In one file: some linkers take only the last version script that they are given.
    let script = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
        .join("versions.map");
    std::fs::write(&script, maps.iter().map(read).collect::<String>())
        .expect("OUT_DIR can be written to");
    println!("cargo:rustc-link-arg=-Wl,--version-script={}", script.display());
    println!("cargo:rustc-link-arg=-Wl,-soname,libibverbs.so.1");
    // A function that the oldest glibc lacks is an error of the build, not of the day when it is
    // loaded. A sanitizer's are in the program.
    if std::env::var_os("CARGO_CFG_SANITIZE").is_none() {
        println!("cargo:rustc-link-arg=-Wl,-z,defs");
    }
    // A thread and an exit handler outlive any dlclose.
    println!("cargo:rustc-link-arg=-Wl,-z,nodelete");
    for read in maps.iter().chain(&["build.rs"]) {
        println!("cargo:rerun-if-changed={read}");
    }
}
