//! Asking a process what it waits for.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 4 << 20;
/// Where a process's socket is unless its environment says otherwise.
const DEFAULT_FOLDER: &str = "/tmp";
const VARIABLE: &str = "FERRITE_REPORT_DIR";

/// The report of process `pid`, which takes up to five seconds; `None` if none comes within `limit`.
pub fn ask(pid: u32, limit: Duration) -> Option<Value> {
    let path = socket_of(pid);
    // Whoever has made a file of that name: the answer is to be the process's own.
    let of_process = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    if std::fs::symlink_metadata(&path).ok()?.uid() != of_process {
        return None;
    }
    let stream = UnixStream::connect(&path).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    let mut text = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// The process ids of the sockets in the folder that this process's environment names.
pub fn known() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(own_folder()) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("ferrite.")?.strip_suffix(".sock")?.parse().ok()).collect()
}

fn socket_of(pid: u32) -> PathBuf {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variables = environment.split(|byte| *byte == 0).filter_map(|variable| std::str::from_utf8(variable).ok());
    let named = variables.filter_map(|variable| variable.strip_prefix(VARIABLE)?.strip_prefix('=')).next_back();
    let folder = named.filter(|folder| !folder.is_empty()).map_or_else(own_folder, PathBuf::from);
    Path::new(&folder).join(format!("ferrite.{pid}.sock"))
}

fn own_folder() -> PathBuf {
    let named = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty());
    named.map_or_else(|| DEFAULT_FOLDER.into(), PathBuf::from)
}
