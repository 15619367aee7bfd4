//! What the two hosts of a comparison say to each other: rank 0's host is the server, rank 1's does what it asks.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::nccl::library::Source;
use crate::results::file_hash;
use crate::results::machine::Machine;

/// What a host tells of itself, in its first message. A field that an older or newer version of this program does not send is empty here, so
/// that the versions can be compared and the other host be refused in words.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HostFacts {
    pub(super) host: String,
    /// Version of this program, with its commit.
    pub(super) version: String,
    /// What the kernel calls its own start: the same for all namespaces of a machine.
    pub(super) boot: String,
    /// `softrnic` or `system`.
    pub(super) verbs: String,
    /// The libraries of A and B.
    pub(super) files: Vec<FileFacts>,
    pub(super) machine: Machine,
    /// Why it cannot take part.
    pub(super) problem: Option<String>,
}

/// The library of a side.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) path: String,
    pub(super) sha256: String,
}

impl FileFacts {
    /// Of each side, as its file is now.
    pub(super) fn of(sources: &[Source]) -> Result<Vec<Self>> {
        let of = |source: &Source| {
            Ok(Self { path: source.file().display().to_string(), sha256: file_hash::sha256(source.file())? })
        };
        sources.iter().map(of).collect()
    }
}

/// What the server asks of the other host. Each gets one [`Reply`], but for the ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Request {
    /// It takes no part, for this reason.
    Refused(String),
    /// Start the process of rank 1.
    Start(Start),
    /// What are the files of A and B now?
    Files,
    /// The comparison is over.
    End,
}

/// A process of rank 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Start {
    /// Which one: its connections say it as well.
    pub(super) number: u64,
    /// The place of its side among the files.
    pub(super) side: usize,
    pub(super) silence_ms: u64,
    /// Its buffers lie in the same pages as those of the others.
    pub(super) has_pages: bool,
    /// The fabric of the software device.
    pub(super) fabric: String,
    /// Variables of its side.
    pub(super) variables: Vec<(String, String)>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Reply {
    Started,
    Files(Vec<FileFacts>),
    Failed(String),
}

/// What a further connection of the other host is for; the server's answer is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Purpose {
    /// Of which process.
    pub(super) number: u64,
    pub(super) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// From the program that has started the process.
    Control,
    /// From the process itself.
    Peer,
}
