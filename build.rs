//! Generates the ncclNet types from our header, and says how the plugin is linked.

use std::env;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=include/nccl/net_v8.h");
    let out = PathBuf::from(env::var("OUT_DIR")?).join("net_v8.rs");
    bindgen::Builder::default()
        .header("include/nccl/net_v8.h")
        .allowlist_type("nccl.*")
        .allowlist_var("NCCL_.*")
        .derive_debug(true)
        .prepend_enum_name(false)
        .size_t_is_usize(true)
        .layout_tests(false)
        .generate()
        .map_err(|()| "bindgen cannot read include/nccl/net_v8.h")?
        .write_to_file(out)?;
    // A stable name for the loader; every symbol resolved at load time; never unmapped, since the library has threads.
    for argument in ["-Wl,-soname,libnccl-net.so", "-Wl,-z,now", "-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,--as-needed"] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    Ok(())
}
