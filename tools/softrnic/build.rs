//! Gives the shared object the name, the symbol versions and the lifetime of `libibverbs.so.1`.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    // Empty version nodes; the symbols join them through `.symver` (see src/abi/export.rs).
    let mut maps = vec!["nodes.map"];
    if std::env::var_os("CARGO_FEATURE_TOOLS").is_some() {
        maps.push("private.map");
    }
    for map in maps {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={here}/{map}");
        println!("cargo:rerun-if-changed={map}");
    }
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    // A function that the oldest glibc lacks is an error of the build, not of the day when it is loaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    // A thread and an exit handler outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
