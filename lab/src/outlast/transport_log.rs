//! What a transport's log tells of failures that it went on after, and of the one that it did not.

use crate::outlast::worker::STREAM_ENDED;

/// Words, all in one line, for a port or connection that is used again after a failure: the built-in transport's, and Ferrite's.
const RECOVERED: [&[&str]; 2] =
    [&["has been recovered for resiliency context"], &["the connection to ", " goes on", "attempt(s)"]];
/// For a failure that does not end the connection: the built-in transport's.
const FAILED: [&[&str]; 1] = [&["marked as failed. Initiating"]];

/// What the log of one process tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PeerObserver {
    /// Times that something is used again after a failure.
    pub(super) recoveries: u64,
    /// Times that something has failed.
    pub(super) failures: u64,
    /// The last warning of the stream.
    pub(super) warning: String,
}

impl PeerObserver {
    /// Of the lines that the process printed, up to the end of its stream.
    pub(super) fn read(lines: &[String]) -> Self {
        let end = lines.iter().position(|line| line == STREAM_ENDED).unwrap_or(lines.len());
        let lines = &lines[..end];
        let has = |line: &String, words: &[&str]| words.iter().all(|word| line.contains(word));
        let count = |any: &[&[&str]]| lines.iter().filter(|line| any.iter().any(|words| has(line, words))).count();
        let warning = lines.iter().rev().find_map(|line| line.split_once("WARN ")).map_or("", |(_, text)| text);
        Self {
            recoveries: count(&RECOVERED) as u64,
            failures: count(&FAILED) as u64,
            warning: without_place(warning).trim().to_owned(),
        }
    }
}

/// Without the `FILE:LINE ` that a plugin's warnings have in front of them here.
fn without_place(text: &str) -> &str {
    match text.split_once(' ') {
        Some((place, rest)) if place.contains(".rs:") || place.contains(".cc:") => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_after_the_stream_does_not_count() {
        let lines = [
            "host:1:2 [0] NCCL INFO NET/IB: Device 1 marked as failed. Initiating recovery? Yes",
            "host:1:2 [0] NCCL INFO NET/IB: Device 1 was already marked as failed.",
            "host:1:2 [0] NCCL WARN NET/IB: Got completion from peer with status=12",
            "WARN src/net/send.rs:7 NET/Ferrite : the peer is gone",
            STREAM_ENDED,
            "WARN src/x.rs:1 closing",
            "Device 1 has been recovered for resiliency context",
        ];
        let lines = lines.map(String::from);
        let ferrite = "INFO softrnic0: the connection to 127.0.0.1:5 goes on, after 12 ms and 1 attempt(s)".to_owned();
        assert_eq!(PeerObserver::read(&[ferrite, "the connection to x goes on".into()]).recoveries, 1);
        let told = PeerObserver { recoveries: 0, failures: 1, warning: "NET/Ferrite : the peer is gone".into() };
        assert_eq!(PeerObserver::read(&lines), told);
        assert_eq!(PeerObserver::read(&lines[..3]).warning, "NET/IB: Got completion from peer with status=12");
        assert_eq!(PeerObserver::read(&[]), PeerObserver::default());
    }
}
