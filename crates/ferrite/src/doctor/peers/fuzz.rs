//! What a fuzzer chooses: what comes over the connection between the server of a session and a
//! host.

use std::sync::Mutex;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::doctor::peers::judge;
use crate::doctor::peers::message::{HostFacts, Reply, Request, from_hex, to_hex};
use crate::doctor::peers::server::{Host, Speed, Tried};
use crate::doctor::report;
use lab::hosts::{Hello, Lines, MOST, parse};

/// Bytes that come at a time.
const PIECE: usize = 11;

/// Any bytes that come over the connection: a line is a message or is refused in words that may be
/// shown, and the rows about hosts that say such things may be shown too.
pub(crate) fn target(bytes: &[u8]) {
    let (mut lines, mut hosts, mut tried) = (Lines::default(), Vec::new(), Vec::new());
    for piece in bytes.chunks(PIECE) {
        lines.handle_bytes(piece);
        while let Ok(Some(line)) = lines.poll_line() {
            assert!(line.len() <= MOST + PIECE && line.ends_with(b"\n"));
            if let Some(Request::Connect(_, handle)) = read(&line) {
                check_handle(&handle);
            }
            if let Some(Hello::<HostFacts> { facts, .. }) = read(&line) {
                let round_trip = Ok(Duration::from_millis(4 * hosts.len() as u64));
                hosts.push(Host { facts, round_trip, conn: Mutex::new(None) });
            }
            let attempt = read(&line).and_then(|reply| attempt(reply, tried.len()));
            tried.extend(attempt);
        }
    }
    let rows = judge::all(&hosts, 2, &tried);
    for row in &rows {
        let text = row.text(Some(80), false);
        assert!(text.lines().all(|line| !line.contains(char::is_control)), "{text:?}");
    }
    let json = report::json("n-0007", &rows);
    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
}

/// The message in a line, if it is one of this kind. It is one as well once it is written again.
fn read<T: Serialize + DeserializeOwned>(line: &[u8]) -> Option<T> {
    match parse::<T>(line) {
        Ok(message) => {
            let again = serde_json::to_vec(&message).expect("it can be written");
            assert!(parse::<T>(&again).is_ok(), "{}", String::from_utf8_lossy(&again));
            Some(message)
        }
        Err(why) => {
            assert!(!why.contains(char::is_control), "{why:?}");
            None
        }
    }
}

/// A handle is read, and is the same once it is written again, or is refused.
fn check_handle(text: &str) {
    if let Some(bytes) = from_hex::<8>(text) {
        assert_eq!(to_hex(&bytes), text.to_ascii_lowercase());
    }
}

/// What the server takes a host's answer for, when it is the `count`th.
fn attempt(reply: Reply, count: usize) -> Option<Tried> {
    let outcome = match reply {
        Reply::Measured(took) => {
            Ok(Speed { gbps: took.seconds, p50_us: took.p50_us, p99_us: took.p99_us })
        }
        Reply::Failed(why) => Err(why),
        Reply::Done | Reply::Handle(_) => return None,
    };
    Some(Tried { from: (count % 3, count % 2), to: ((count + 1) % 3, count / 2 % 2), outcome })
}
