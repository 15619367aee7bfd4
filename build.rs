//! Says how the plugin is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A stable name for the loader; every symbol resolved at load time; never unmapped, since the library has threads.
    // libFuzzer's symbols are in the program.
    let symbols = if std::env::var_os("CARGO_CFG_FUZZING").is_some() { "undefs" } else { "defs" };
    let symbols = format!("-Wl,-z,{symbols}");
    for argument in ["-Wl,-soname,libnccl-net.so", "-Wl,-z,now", "-Wl,-z,nodelete", &symbols, "-Wl,--as-needed"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
