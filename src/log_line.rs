//! What is left of a long line in NCCL's log, for tests.

use crate::net::peer::name::PeerName;
use crate::proto::identity::Identity;
use std::net::SocketAddr;

/// A host's name of 60 characters.
pub const HOST: &str = "gpu-node-0123.rack-0042.cluster-east-7.research.example.netw";
/// A device's name of 60 characters.
pub const DEVICE: &str = "rocep0123s00f0-port-of-the-second-adapter-on-numa-node-1-new";
/// NCCL before 2.30 formats a line, with what it puts before the text, in so many bytes, the last
/// of which is a NUL.
const BUFFER: usize = 1024;

/// The part of `text`, a warning, that each NCCL release shows.
pub fn shown(text: &str) -> String {
    let before = format!(
        "\n[2026-11-27 21:20:00] {HOST}:4194303:4194304 [15] src/net/explain/output.rs:1234 NCCL WARN NET/Ferrite : "
    );
    let line = before.clone() + text;
    let end = (0..=line.len().min(BUFFER - 1)).rev().find(|end| line.is_char_boundary(*end));
    line[before.len()..end.expect("0 is one")].to_owned()
}

/// A peer whose names are as long as they can be.
pub fn peer() -> PeerName {
    let address = SocketAddr::from(([192, 168, 100, 100], 65535));
    PeerName::new(
        &identity(131_071),
        &format!("{DEVICE} port 1 of process 4194303 on {HOST}"),
        address,
    )
}

/// The process of this rank, whose rank in NCCL's communicator is another one.
pub fn identity(rank: u32) -> Identity {
    Identity { host: HOST.into(), pid: 4_194_303, rank: Some(rank), label: Some(rank - 1) }
}

#[test]
fn the_names_are_as_long_as_they_say() {
    assert_eq!((HOST.len(), DEVICE.len()), (60, 60));
    assert_eq!(shown("a short line"), "a short line");
    assert!((800..900).contains(&shown(&"x".repeat(2000)).len()));
}
