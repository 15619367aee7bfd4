//! Generates the ncclNet v8 bindings from the project's own header and compiles the one variadic
//! function, the log callback, which stable Rust cannot define.

use std::path::PathBuf;

const HEADER: &str = "../../include/nccl/net_v8.h";
const LOGGER: &str = "src/nccl/logger.c";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={HEADER}");
    println!("cargo:rerun-if-changed={LOGGER}");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    bindgen::Builder::default()
        .header(HEADER)
        .allowlist_type("nccl.*")
        .allowlist_var("NCCL_.*")
        .prepend_enum_name(false)
        .size_t_is_usize(true)
        .layout_tests(false)
        .generate()
        .map_err(|()| format!("bindgen cannot read {HEADER}"))?
        .write_to_file(out.join("net_v8.rs"))?;
    cc::Build::new().file(LOGGER).warnings(true).try_compile("ferrite_logger")?;
    Ok(())
}
