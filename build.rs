//! Says how the plugin is linked. With the feature `bindgen`, makes the declarations of NCCL.

#[cfg(feature = "bindgen")]
include!("include/nccl/bindings.rs");

#[cfg(feature = "bindgen")]
fn declare_nccl() {
    cc::Build::new().file("include/nccl/layout.c").cargo_metadata(false).compile("layout");
    println!("cargo::rerun-if-changed=include/nccl/layout.c");
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    let made = nccl_bindings("include/nccl/net_v8.h");
    made.write_to_file(std::path::Path::new(&folder).join("nccl.rs")).expect("written");
}

fn main() {
    #[cfg(feature = "bindgen")]
    declare_nccl();
    println!("cargo::rerun-if-changed=build.rs");
    // Every symbol resolved at load time. Never unmapped, since the library has threads. With the
    // name that NCCL falls back to: 2.28 and 2.29 unload a plugin with the last communicator, and
    // find one that stays mapped by this name alone. libFuzzer's symbols are in the program, and so
    // are those of a sanitizer.
    let are_elsewhere = ["CARGO_CFG_FUZZING", "CARGO_CFG_SANITIZE"]
        .iter()
        .any(|set| std::env::var_os(set).is_some());
    let symbols = if are_elsewhere { "undefs" } else { "defs" };
    let symbols = format!("-Wl,-z,{symbols}");
    for argument in
        ["-Wl,-soname,libnccl-net.so", "-Wl,-z,now", "-Wl,-z,nodelete", &symbols, "-Wl,--as-needed"]
    {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
