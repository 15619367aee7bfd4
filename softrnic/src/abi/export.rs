//! Versioned exports.
//!
//! A Rust cdylib has one anonymous version; callers that use `dlvsym` find nothing in it. A
//! one-jump thunk per symbol, with its `.symver` in the same assembly block, joins the (empty)
//! nodes of `nodes.map`.

/// The instruction that jumps and leaves no trace.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b"
    };
}
pub(crate) use jump;

/// `export!("ibv_open_device", "IBVERBS_1.1", open_device);`
macro_rules! export {
    ($name:literal, $version:literal, $function:path) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.", $name, ",\"ax\",@progbits"),
            concat!(".globl softrnic_", $name),
            concat!(".type softrnic_", $name, ",@function"),
            concat!("softrnic_", $name, ":"),
            concat!($crate::abi::export::jump!(), " {f}"),
            concat!(".size softrnic_", $name, ", .-softrnic_", $name),
            concat!(".symver softrnic_", $name, ",", $name, "@@", $version),
            ".popsection",
            f = sym $function,
        );
    };
}
pub(crate) use export;
