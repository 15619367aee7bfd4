//! Says how the plugin is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A stable name for the loader; every symbol resolved at load time; never unmapped, since the library has threads.
    // libFuzzer's symbols are in the program, and so are those of a sanitizer.
    let are_elsewhere = ["CARGO_CFG_FUZZING", "CARGO_CFG_SANITIZE"].iter().any(|set| std::env::var_os(set).is_some());
    let symbols = if are_elsewhere { "undefs" } else { "defs" };
    let symbols = format!("-Wl,-z,{symbols}");
    for argument in ["-Wl,-soname,libnccl-net.so", "-Wl,-z,now", "-Wl,-z,nodelete", &symbols, "-Wl,--as-needed"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
