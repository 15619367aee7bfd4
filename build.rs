//! Says how the plugin is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A stable name for the loader; every symbol resolved at load time; never unmapped, since the library has threads.
    for argument in ["-Wl,-soname,libnccl-net.so", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,--as-needed"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
