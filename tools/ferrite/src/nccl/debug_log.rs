//! The transport's log: what it says through the callback that `init` receives.
//!
//! Filtered as NCCL filters it (`NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`), before formatting, so that a
//! plugin pays for a log line what the built-in transport pays. Lines go to stderr and the last
//! ones are kept.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::{Mutex, OnceLock};

use crate::nccl::abi;
use crate::system::output;

/// How many lines are kept.
const KEPT: usize = 256;

static LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
static FILTER: OnceLock<Filter> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Filter {
    level: u32,
    subsystems: u64,
}

unsafe extern "C" {
    /// The variadic callback (`src/logger.c`); its address is all that Rust uses.
    fn ferrite_logger();
}

/// The callback in the type that `init` takes.
pub fn callback() -> abi::ncclDebugLogger_t {
    type Variadic = unsafe extern "C" fn(abi::ncclDebugLogLevel, c_ulong, *const c_char, c_int, *const c_char, ...);
    // SAFETY: src/logger.c defines the function with exactly this signature; enums are unsigned
    // ints of the same size and class in the C ABI.
    Some(unsafe { std::mem::transmute::<unsafe extern "C" fn(), Variadic>(ferrite_logger) })
}

/// The lines kept so far, oldest first.
pub fn lines() -> Vec<String> {
    LINES.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default()
}

/// Whether one of the lines kept so far meets the condition, which must not log: it runs under their lock.
pub fn any(is_so: impl FnMut(&String) -> bool) -> bool {
    LINES.lock().is_ok_and(|lines| lines.iter().any(is_so))
}

fn filter() -> Filter {
    *FILTER.get_or_init(|| {
        parse_filter(std::env::var("NCCL_DEBUG").ok().as_deref(), std::env::var("NCCL_DEBUG_SUBSYS").ok().as_deref())
    })
}

/// NCCL's own reading of the two variables, for the subsystems that a transport can use.
fn parse_filter(debug: Option<&str>, subsystems: Option<&str>) -> Filter {
    let level = match debug.unwrap_or("").to_ascii_uppercase().as_str() {
        "VERSION" => abi::NCCL_LOG_VERSION,
        "WARN" => abi::NCCL_LOG_WARN,
        "INFO" => abi::NCCL_LOG_INFO,
        "ABORT" => abi::NCCL_LOG_ABORT,
        "TRACE" => abi::NCCL_LOG_TRACE,
        _ => abi::NCCL_LOG_NONE,
    };
    let subsystems = match subsystems {
        None => (abi::NCCL_SUBSYS_INIT | abi::NCCL_SUBSYS_ENV) as u64,
        Some(list) => list.split(',').fold(0, |bits, name| {
            bits | match name.to_ascii_uppercase().as_str() {
                "INIT" => abi::NCCL_SUBSYS_INIT as u64,
                "NET" => abi::NCCL_SUBSYS_NET as u64,
                "ENV" => abi::NCCL_SUBSYS_ENV as u64,
                "ALL" => u64::MAX,
                _ => 0,
            }
        }),
    };
    Filter { level, subsystems }
}

fn wanted(filter: Filter, level: u32, subsystems: u64) -> bool {
    level == abi::NCCL_LOG_WARN && filter.level >= abi::NCCL_LOG_WARN
        || level <= filter.level && subsystems & filter.subsystems != 0
}

/// Called by `src/logger.c` before it formats.
#[unsafe(no_mangle)]
extern "C" fn ferrite_log_wanted(level: c_int, subsystems: c_ulong) -> c_int {
    c_int::from(wanted(filter(), level.unsigned_abs(), subsystems))
}

/// Called by `src/logger.c` with the formatted line.
#[unsafe(no_mangle)]
extern "C" fn ferrite_log_line(level: c_int, file: *const c_char, line: c_int, text: *const c_char) {
    let text = if text.is_null() {
        String::new()
    } else {
        // SAFETY: src/logger.c passes its own NUL-terminated buffer, alive for this call.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let place = if file.is_null() || level.unsigned_abs() != abi::NCCL_LOG_WARN {
        String::new()
    } else {
        // SAFETY: the transport passes a NUL-terminated file name by the logger's contract.
        let file = unsafe { CStr::from_ptr(file) }.to_string_lossy();
        format!("{file}:{line} ")
    };
    let level = match level.unsigned_abs() {
        abi::NCCL_LOG_WARN => "WARN",
        abi::NCCL_LOG_INFO => "INFO",
        abi::NCCL_LOG_TRACE => "TRACE",
        _ => "NOTE",
    };
    let entry = format!("{level} {place}{text}");
    output::write_stderr(format_args!("{entry}"));
    if let Ok(mut lines) = LINES.lock() {
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_as_nccl_does() {
        let init = abi::NCCL_SUBSYS_INIT as u64;
        let net = abi::NCCL_SUBSYS_NET as u64;
        let silent = parse_filter(None, None);
        assert!(!wanted(silent, abi::NCCL_LOG_WARN, init));
        let info = parse_filter(Some("info"), None);
        assert!(wanted(info, abi::NCCL_LOG_INFO, init | net));
        assert!(!wanted(info, abi::NCCL_LOG_INFO, net));
        assert!(wanted(info, abi::NCCL_LOG_WARN, 0));
        let net_only = parse_filter(Some("INFO"), Some("NET"));
        assert!(wanted(net_only, abi::NCCL_LOG_INFO, net));
        assert!(!wanted(net_only, abi::NCCL_LOG_INFO, init));
        assert!(wanted(parse_filter(Some("INFO"), Some("ALL")), abi::NCCL_LOG_INFO, 1 << 40));
    }
}
