//! Where a report goes: the log, stderr or a file.

use super::json::json;
use super::text::Report;
use crate::host::sysfs;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

/// The most files of a process; the oldest is replaced.
const MAX_FILES: u32 = 8;

/// Writes `report`. A report that other processes also write only goes into the log, at a level
/// above warnings.
///
/// NCCL before 2.30 truncates log lines at 1,024 bytes, so the path of the file comes first.
pub fn write(report: &Report, folder: &str) {
    if !report.is_for_operators() {
        log::info!("{}", report.text());
        return;
    }
    let text = match write_file(report, folder) {
        Ok(path) => format!("report {path}: {}", report.text()),
        Err(e) => format!("no report in {folder} ({e}): {}", report.text()),
    };
    log::warn!("{text}");
    if !nccl_shows_warnings() {
        // A failure here cannot be reported anywhere.
        let _ = io::stderr().write_all(format!("NET/Ferrite : {text}\n").as_bytes());
    }
}

/// Whether every NCCL release shows warnings in this process's environment. The first call reads
/// the environment. The plugin makes it when NCCL initializes it: later a thread of the program may
/// be changing the environment.
pub(super) fn nccl_shows_warnings() -> bool {
    static SHOWN: OnceLock<bool> = OnceLock::new();
    let variable = |name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    *SHOWN.get_or_init(|| {
        is_shown_by_all(variable("NCCL_DEBUG").as_deref(), variable("NCCL_DEBUG_SUBSYS").as_deref())
    })
}

/// The subsystems that all releases know.
const SUBSYSTEMS: [&str; 13] = [
    "INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "CALL", "PROXY",
    "NVLS", "ALL",
];

/// Whether all of NCCL 2.20 to 2.32 show a warning of every subsystem for these values of
/// `NCCL_DEBUG` and `NCCL_DEBUG_SUBSYS`.
///
/// Releases differ in whether they accept blanks, unknown words, the level ATTN or
/// `NCCL_DEBUG_LEVELS`. If only some show the warning, this is false: a report is better written
/// twice than never.
pub fn is_shown_by_all(level: Option<&str>, subsystems: Option<&str>) -> bool {
    let is_any =
        |word: &str, known: &[&str]| known.iter().any(|name| word.eq_ignore_ascii_case(name));
    let has_level = level.is_some_and(|level| is_any(level, &["WARN", "INFO", "ABORT", "TRACE"]));
    let has_subsystem = match subsystems {
        None => true,
        Some(list) => match list.strip_prefix('^') {
            Some(but) => !but.split(',').any(|word| is_any(word.trim(), &["ALL"])),
            None => list.split(',').any(|word| is_any(word, &SUBSYSTEMS)),
        },
    };
    has_level && has_subsystem
}

/// Writes the report into a file, which appears under its name only when complete. Returns its
/// path.
fn write_file(report: &Report, folder: &str) -> io::Result<String> {
    let number = (report.number - 1) % MAX_FILES + 1;
    let path = format!(
        "{folder}/ferrite-hang.{}.{}.{number}.json",
        sysfs::host_name(),
        std::process::id()
    );
    let temporary = format!("{path}.new");
    // A file of that name is not ours, or belongs to a process that has ended.
    let _ = fs::remove_file(&temporary);
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(json(report, sysfs::host_name()).as_bytes());
    let renamed = written.and_then(|()| fs::rename(&temporary, &path));
    renamed.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(path)
}
