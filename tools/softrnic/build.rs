//! Gives the shared object the name, the symbol versions and the lifetime of `libibverbs.so.1`.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    for arg in [
        "-Wl,-soname,libibverbs.so.1".to_owned(),
        // Empty version nodes; the symbols join them through `.symver` (see src/abi/export.rs).
        format!("-Wl,--version-script={here}/nodes.map"),
        // A thread and an exit handler outlive any dlclose.
        "-Wl,-z,nodelete".to_owned(),
    ] {
        println!("cargo:rustc-cdylib-link-arg={arg}");
    }
    println!("cargo:rerun-if-changed=nodes.map");
    println!("cargo:rerun-if-changed=build.rs");
}
