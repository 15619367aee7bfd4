//! Where a report goes: the log, stderr, a file.

use super::json::json;
use super::text::Report;
use crate::host::sysfs;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

/// Files of a process at most; the oldest is replaced.
const MAX_FILES: u32 = 8;

/// Writes `report`. One that other processes write as well goes into the log only, and only where that has more than warnings.
pub fn write(report: &Report, folder: &str) {
    if !report.is_for_operators() {
        log::info!("{}", report.text());
        return;
    }
    let text = match write_file(report, folder) {
        Ok(path) => format!("{} {path}", report.text()),
        Err(e) => format!("{} (no file in {folder}: {e})", report.text()),
    };
    log::warn!("{text}");
    if !nccl_shows_warnings() {
        // A failure here cannot be reported anywhere.
        let _ = io::stderr().write_all(format!("NET/Ferrite : {text}\n").as_bytes());
    }
}

/// Whether NCCL shows warnings. The environment is read when this is first called, which the plugin does when NCCL initializes it: later a
/// thread of the program may be changing the environment.
pub(super) fn nccl_shows_warnings() -> bool {
    static SHOWN: OnceLock<bool> = OnceLock::new();
    *SHOWN.get_or_init(|| is_shown(std::env::var("NCCL_DEBUG").ok().as_deref()))
}

/// Whether NCCL shows warnings when `NCCL_DEBUG` is `level`.
fn is_shown(level: Option<&str>) -> bool {
    let shown = ["WARN", "INFO", "ABORT", "TRACE"];
    level.is_some_and(|level| shown.iter().any(|name| level.eq_ignore_ascii_case(name)))
}

/// Writes the report into a file that is complete whenever it is there; its path.
fn write_file(report: &Report, folder: &str) -> io::Result<String> {
    let number = (report.number - 1) % MAX_FILES + 1;
    let path = format!("{folder}/ferrite-hang.{}.{}.{number}.json", sysfs::host_name(), std::process::id());
    let temporary = format!("{path}.new");
    // Whatever is there is not ours, or is of a process that has ended.
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(json(report, sysfs::host_name()).as_bytes());
    let renamed = written.and_then(|()| fs::rename(&temporary, &path));
    renamed.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_shows_warnings_only_where_it_is_told_so() {
        let levels = [Some("WARN"), Some("info"), Some("TRACE"), Some("VERSION"), Some(""), None];
        assert_eq!(levels.map(is_shown), [true, true, true, false, false, false]);
    }
}
