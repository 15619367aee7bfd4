/// What bindgen makes of `include/nccl/net_v8.h`. Build scripts include this.
///
/// # Panics
/// bindgen cannot read the header, or finds no libclang.
fn nccl_bindings(header: &str) -> bindgen::Bindings {
    println!("cargo::rerun-if-changed={header}");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    let builder = bindgen::Builder::default().header(header).allowlist_type("nccl.*").allowlist_var("NCCL_.*");
    let builder = builder.derive_debug(true).prepend_enum_name(false).size_t_is_usize(true).layout_tests(false);
    builder.disable_header_comment().rustfmt_bindings(false).generate().expect("bindgen reads the header")
}
