//! The transport's log: what it says through the callback that `init` receives.
//!
//! Filtered as NCCL filters it (`NCCL_DEBUG`, `NCCL_DEBUG_SUBSYS`), before formatting, so that a
//! plugin pays for a log line what the built-in transport pays. Lines go to stderr and the last
//! ones are kept.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use crate::error::{Error, Result};
use crate::nccl::shared_object::SharedObject;
use crate::nccl::{abi, shared_object};
use crate::system::output;

/// How many lines are kept.
const KEPT: usize = 256;

static LINES: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());
static FILTER: OnceLock<Filter> = OnceLock::new();
static STOCK: OnceLock<Variadic> = OnceLock::new();

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Filter {
    level: u32,
    subsystems: u64,
    /// [`ALL_INFO`] is set.
    all_info: bool,
}

/// The variable with which lines of level INFO are shown and kept whatever their subsystem is. For
/// who follows what a transport does; a warning still has to pass as in NCCL.
pub const ALL_INFO: (&str, &str) = ("FERRITE_LOG_ALL_INFO", "1");

unsafe extern "C" {
    /// The variadic callback (`logger.c`); its address is all that Rust uses.
    fn ferrite_logger();
}

type Variadic =
    unsafe extern "C" fn(abi::ncclDebugLogLevel, c_ulong, *const c_char, c_int, *const c_char, ...);

/// NCCL's own callback: a local function of all releases.
const STOCK_SYMBOL: &str = "_Z12ncclDebugLog17ncclDebugLogLevelmPKciS1_z";

/// What [`callback`] returns from now on in this process: the logger of the stock NCCL at `nccl`.
///
/// # Errors
/// [`Error::Load`] or [`Error::Symbol`] if
/// that is no library of NCCL.
pub fn use_stock(nccl: &Path) -> Result<()> {
    let symbol = shared_object::local_symbol(nccl, STOCK_SYMBOL)?;
    let address = SharedObject::open(nccl)?.at(symbol);
    // SAFETY: that symbol's name, mangled by a C++ compiler, tells its arguments; the library is
    // never closed.
    let function = unsafe { std::mem::transmute::<usize, Variadic>(address) };
    let _ = STOCK.set(function);
    Ok(())
}

/// The callback in the type that `init` takes.
pub fn callback() -> abi::ncclDebugLogger_t {
    if let Some(stock) = STOCK.get() {
        return Some(*stock);
    }
    // SAFETY: logger.c defines the function with exactly this signature; enums are unsigned
    // ints of the same size and class in the C ABI.
    Some(unsafe { std::mem::transmute::<unsafe extern "C" fn(), Variadic>(ferrite_logger) })
}

/// The lines kept so far, oldest first.
pub fn lines() -> Vec<String> {
    LINES.lock().map(|lines| lines.iter().cloned().collect()).unwrap_or_default()
}

/// The error, and the last two warnings of the transport: an event of the device and the error that
/// follows from it come in either order.
pub fn with_warnings(problem: &Error) -> String {
    let lines = lines();
    let warnings: Vec<_> =
        lines.iter().filter(|line| line.starts_with("WARN")).map(|line| words(line)).collect();
    match &warnings[warnings.len().saturating_sub(2)..] {
        [] => problem.to_string(),
        last => format!("{problem}; the plugin: {}", last.join("; ")),
    }
}

/// A warning without its level and its place in the sources.
fn words(line: &str) -> &str {
    line.split_once("Ferrite : ")
        .or_else(|| line.split_once("Ferrite: "))
        .map_or(line, |(_, words)| words)
}

/// Whether one of the lines kept so far meets the condition, which must not log: it runs under
/// their lock.
pub fn any(is_so: impl FnMut(&String) -> bool) -> bool {
    LINES.lock().is_ok_and(|lines| lines.iter().any(is_so))
}

fn filter() -> Filter {
    *FILTER.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).ok();
        let filter = parse_filter(
            variable("NCCL_DEBUG").as_deref(),
            variable("NCCL_DEBUG_SUBSYS").as_deref(),
        );
        Filter { all_info: variable(ALL_INFO.0).as_deref() == Some(ALL_INFO.1), ..filter }
    })
}

/// The bits of `NCCL_DEBUG_SUBSYS`, in their order: those of NCCL 2.21.5.
pub const SUBSYSTEMS: [&str; 14] = [
    "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY",
    "NVLS", "BOOTSTRAP", "REG",
];

/// The two variables as NCCL 2.21.5 reads them. What it shows, later releases show too; they also
/// take blanks around a word, and ignore a list of words that they do not know.
fn parse_filter(debug: Option<&str>, subsystems: Option<&str>) -> Filter {
    let level = match debug.unwrap_or("").to_ascii_uppercase().as_str() {
        "VERSION" => abi::NCCL_LOG_VERSION,
        "WARN" => abi::NCCL_LOG_WARN,
        "INFO" => abi::NCCL_LOG_INFO,
        "ABORT" => abi::NCCL_LOG_ABORT,
        "TRACE" => abi::NCCL_LOG_TRACE,
        _ => abi::NCCL_LOG_NONE,
    };
    let bits = |list: &str| {
        list.split(',').fold(0, |bits, word| match word.to_ascii_uppercase().as_str() {
            "ALL" => u64::MAX,
            word => {
                bits | SUBSYSTEMS.iter().position(|name| *name == word).map_or(0, |bit| 1 << bit)
            }
        })
    };
    let subsystems = match subsystems {
        None => bits("INIT,ENV"),
        Some(list) => list.strip_prefix('^').map_or_else(|| bits(list), |but| !bits(but)),
    };
    Filter { level, subsystems, all_info: false }
}

/// Whether NCCL shows a line, its own or a plugin's: warnings are filtered by subsystem as all
/// other lines are.
fn wanted(filter: Filter, level: u32, subsystems: u64) -> bool {
    let all = filter.all_info && level == abi::NCCL_LOG_INFO;
    level <= filter.level && (all || subsystems & filter.subsystems != 0)
}

/// Whether this module shows a line of `level` and `subsystems` where `NCCL_DEBUG` and
/// `NCCL_DEBUG_SUBSYS` have these values.
pub fn shows(debug: Option<&str>, debug_subsys: Option<&str>, level: u32, subsystems: u64) -> bool {
    wanted(parse_filter(debug, debug_subsys), level, subsystems)
}

/// Called by `logger.c` before it formats.
#[unsafe(no_mangle)]
extern "C" fn ferrite_log_wanted(level: c_int, subsystems: c_ulong) -> c_int {
    c_int::from(wanted(filter(), level.unsigned_abs(), subsystems))
}

/// Called by `logger.c` with the formatted line.
#[unsafe(no_mangle)]
extern "C" fn ferrite_log_line(
    level: c_int,
    file: *const c_char,
    line: c_int,
    text: *const c_char,
) {
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
