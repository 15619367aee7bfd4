//! What bindgen makes of NCCL's header, for the test that compares it. Here rather than in the test: rdma-sys has bindgen for its build
//! script, which shares no build with what a test links.

use std::path::Path;

const HEADER: &str = "../../include/nccl/net_v8.h";

fn main() {
    println!("cargo::rerun-if-changed={HEADER}");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    let builder = bindgen::Builder::default().header(HEADER).allowlist_type("nccl.*").allowlist_var("NCCL_.*");
    let builder = builder.derive_debug(true).prepend_enum_name(false).size_t_is_usize(true).layout_tests(false);
    let made = builder.disable_header_comment().rustfmt_bindings(false).generate().expect("bindgen reads the header");
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    made.write_to_file(Path::new(&folder).join("nccl.rs")).expect("written");
}
