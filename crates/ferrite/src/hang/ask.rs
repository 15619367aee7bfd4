//! Asking a process what it waits for.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// The longest answer that is read, in bytes.
const MAX_ANSWER: u64 = 4 << 20;
/// Where a process's socket is unless its environment says otherwise.
const DEFAULT_FOLDER: &str = "/tmp";
const VARIABLE: &str = "FERRITE_REPORT_DIR";

/// Why a process has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// Nobody listens where it would be asked.
    NoSocket,
    /// No answer has come within the limit.
    NoAnswer,
}

/// The report of process `pid`, which takes up to five seconds, if it comes within `limit`.
///
/// # Errors
/// Why there is none.
pub fn ask(pid: u32, limit: Duration) -> Result<Value, Silence> {
    let path = socket_of(pid);
    let owner = |metadata: std::io::Result<Metadata>| metadata.map(|metadata| metadata.uid()).ok();
    // Whoever has made a file of that name: the answer is to be the process's own.
    let of_process = owner(std::fs::metadata(format!("/proc/{pid}"))).ok_or(Silence::NoSocket)?;
    if owner(std::fs::symlink_metadata(&path)) != Some(of_process) {
        return Err(Silence::NoSocket);
    }
    serde_json::from_str(&answer_at(path, limit)?).map_err(|_| Silence::NoAnswer)
}

/// What is said at the socket `path` until its end, if that comes within `limit`. A process that is stopped accepts nobody, and then a connect waits
/// too: so another thread waits, which is left to itself after the limit.
fn answer_at(path: PathBuf, limit: Duration) -> Result<String, Silence> {
    let (sender, answer) = mpsc::channel();
    let asked = move || {
        let mut text = String::new();
        let stream = UnixStream::connect(path).map_err(|_| Silence::NoSocket)?;
        stream.take(MAX_ANSWER).read_to_string(&mut text).map_err(|_| Silence::NoAnswer)?;
        Ok(text)
    };
    thread::spawn(move || drop(sender.send(asked())));
    answer.recv_timeout(limit).unwrap_or(Err(Silence::NoAnswer))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use testkit::Scratch;

    const LIMIT: Duration = Duration::from_millis(300);

    #[test]
    fn an_answer_is_read_to_its_end() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        thread::spawn(move || listener.accept().expect("a client").0.write_all(b"{}").expect("it reads"));
        assert_eq!(answer_at(path, Duration::from_secs(60)).as_deref(), Ok("{}"));
    }

    #[test]
    fn where_nobody_listens_there_is_no_socket() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).expect("a socket"));
        assert_eq!(answer_at(path, LIMIT), Err(Silence::NoSocket), "it is left over from a process that has died");
    }

    #[test]
    fn who_says_a_byte_now_and_then_is_not_listened_to_for_longer_than_the_limit() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            while client.write_all(b" ").is_ok() {
                thread::sleep(LIMIT / 10);
            }
        });
        assert_eq!(answer_at(path, LIMIT), Err(Silence::NoAnswer));
    }

    #[test]
    fn a_process_that_accepts_nobody_has_no_answer() {
        let folder = Scratch::new();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("a socket");
        // More than it has room for.
        for _ in 0..200 {
            let path = path.clone();
            thread::spawn(move || UnixStream::connect(path).map(|stream| stream.take(1).read_to_end(&mut Vec::new())));
        }
        assert_eq!(answer_at(path, LIMIT), Err(Silence::NoAnswer));
    }
}
