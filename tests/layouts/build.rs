//! What bindgen makes of NCCL's header, for the test that compares it. Here rather than in the
//! test: rdma-sys has bindgen for its build script, which shares no build with what a test links.

use std::path::Path;

include!("../../include/nccl/bindings.rs");

fn main() {
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    nccl_bindings("../../include/nccl/net_v8.h")
        .write_to_file(Path::new(&folder).join("nccl.rs"))
        .expect("written");
}
