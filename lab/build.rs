//! Compiles the one variadic function, the log callback, which stable Rust cannot define.

const LOGGER: &str = "src/nccl/logger.c";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={LOGGER}");
    cc::Build::new().file(LOGGER).warnings(true).try_compile("ferrite_logger")?;
    Ok(())
}
