//! Sends the messages of the `log` crate to NCCL's logger.

use super::nccl;
use crate::net::background::notices::INIT;
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::ffi::CString;
use std::sync::RwLock;

struct NcclLogger {
    function: RwLock<nccl::ncclDebugLogger_t>,
}

static LOGGER: NcclLogger = NcclLogger { function: RwLock::new(None) };

/// Sends log messages to `function` from now on. NCCL decides which of them to show.
pub fn install(function: nccl::ncclDebugLogger_t) {
    if let Ok(mut current) = LOGGER.function.write() {
        *current = function;
    }
    // Fails from the second call on, as the logger is already set.
    let _ = log::set_logger(&LOGGER);
    log::set_max_level(LevelFilter::Trace);
}

/// The level and subsystems of a line, from which NCCL decides whether to show it (`NCCL_DEBUG`,
/// `NCCL_DEBUG_SUBSYS`).
///
/// NCCL filters warnings by subsystem too, and NET is not among the defaults. A warning has all of
/// them, like NCCL's own: it is shown unless the user has disabled all subsystems.
fn level_and_subsystems(record: &Record<'_>) -> (nccl::ncclDebugLogLevel, u64) {
    let net = u64::from(nccl::NCCL_SUBSYS_NET);
    let init = if record.target() == INIT { u64::from(nccl::NCCL_SUBSYS_INIT) } else { 0 };
    match record.level() {
        Level::Error | Level::Warn => (nccl::NCCL_LOG_WARN, u64::MAX),
        Level::Info | Level::Debug => (nccl::NCCL_LOG_INFO, net | init),
        Level::Trace => (nccl::NCCL_LOG_TRACE, net | init),
    }
}

/// The text before a warning: the name of the failed call if that is the message's target, or else
/// source file and line. The default target is a module name.
fn origin<'a>(record: &Record<'a>) -> (&'a str, i32) {
    let target = record.target();
    if target != INIT && !target.contains("::") {
        return (target, 0);
    }
    (
        record.file().unwrap_or("ferrite"),
        record.line().map_or(0, |line| i32::try_from(line).unwrap_or(0)),
    )
}

impl Log for NcclLogger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let Some(function) = self.function.read().ok().and_then(|f| *f) else {
            return log_without_nccl(record);
        };
        let (level, flags) = level_and_subsystems(record);
        let text = record.args().to_string().replace('\0', " ");
        let text = if text.starts_with("Ferrite") { text } else { format!("NET/Ferrite : {text}") };
        let (file, line) = origin(record);
        let (Ok(text), Ok(file)) = (CString::new(text), CString::new(file)) else { return };
        // SAFETY: NCCL's printf-like function; the format takes one string, so percent signs in the
        // text have no meaning.
        unsafe { function(level, flags, file.as_ptr(), line, c"%s".as_ptr(), text.as_ptr()) };
    }

    fn flush(&self) {}
}

/// Without a logger there is no output, unless the feature `env_logger` is built and `RUST_LOG`
/// asks for it.
fn log_without_nccl(_record: &Record<'_>) {
    #[cfg(feature = "env_logger")]
    {
        static TO_STDERR: std::sync::LazyLock<env_logger::Logger> =
            std::sync::LazyLock::new(env_logger::Logger::from_default_env);
        TO_STDERR.log(_record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This test writes the line in a process of its own.
    #[cfg(feature = "env_logger")]
    #[test]
    fn without_nccl_lines_go_to_standard_error_as_rust_log_says() {
        const WRITES: &str = "FERRITE_TEST_WRITES_A_LINE";
        if std::env::var_os(WRITES).is_some() {
            install(None);
            return log::warn!("a queue pair has failed");
        }
        let said = |level| {
            let mut test =
                std::process::Command::new(std::env::current_exe().expect("this program"));
            test.args(["--nocapture", "without_nccl_lines_go_to"])
                .env(WRITES, "1")
                .env("RUST_LOG", level);
            let done = test.output().expect("it runs");
            assert!(done.status.success());
            String::from_utf8(done.stderr).expect("text").contains("a queue pair has failed")
        };
        assert_eq!((said("warn"), said("error")), (true, false));
    }

    #[test]
    fn a_warning_of_a_call_begins_with_its_name() {
        let at = |target| {
            origin(
                &Record::builder()
                    .target(target)
                    .file(Some("src/abi/guard.rs"))
                    .line(Some(34))
                    .build(),
            )
        };
        assert_eq!(at("connect"), ("connect", 0));
        assert_eq!(at("nccl_net::net::control::link"), ("src/abi/guard.rs", 34));
        assert_eq!(at(INIT), ("src/abi/guard.rs", 34));
    }
}
