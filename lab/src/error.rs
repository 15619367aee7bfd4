//! The errors of this crate, with messages that tell a user what to do.

use std::path::PathBuf;
use std::time::Duration;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run, or a step of it, is not valid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation on a file or a descriptor failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the file's name.
        what: String,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The dynamic loader refused a library.
    #[error("cannot load {}: {reason}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },
    /// A library lacks a symbol.
    #[error("{} has no symbol {symbol}: {hint}", path.display())]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The symbol that was looked for.
        symbol: String,
        /// What was found instead, or what to do.
        hint: String,
    },
    /// The thing that would run is not the thing that was named.
    #[error("refused: {0}")]
    Refused(String),
    /// A transport's function returned an error.
    #[error("{transport}: {call} returned {code} ({})", result_words(*code))]
    Call {
        /// The transport's name.
        transport: String,
        /// The function.
        call: &'static str,
        /// The `ncclResult_t`.
        code: u32,
    },
    /// The transport works but has no such device.
    #[error("{}", no_device(transport, *wanted, *count))]
    NoDevice {
        /// The transport's name.
        transport: String,
        /// The device index that was asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// Something that had to happen did not, in the time given.
    #[error("{what}: nothing for {:.1} s", after.as_secs_f64())]
    Stalled {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The data or the sizes are not what was sent.
    #[error("wrong data: {0}")]
    Data(String),
    /// What a file or another process says is not understood.
    #[error("{0}")]
    Unreadable(String),
    /// The transport does not keep NCCL's contract; the message says in what.
    #[error("{0}")]
    Contract(String),
    /// A worker process died, hung or reported an error.
    #[error("rank {rank}: {what}{}", last_lines(log))]
    Worker {
        /// Its rank, 0 or 1.
        rank: usize,
        /// What happened.
        what: String,
        /// The last lines it or its transport printed.
        log: Vec<String>,
        /// What it reported is that the transport is wrong, see [`Error::is_wrong`].
        wrong: bool,
    },
    /// The time that the user gave is over.
    #[error("the time was over {doing}")]
    Late {
        /// What was being done: `verifying`.
        doing: String,
    },
    /// What went wrong with one side of a comparison.
    #[error("{side}{}: {problem}", so_far.as_ref().map_or_else(String::new, |words| format!(" ({words})")))]
    Side {
        /// Its label, and what it is.
        side: String,
        /// What happened.
        problem: Box<Self>,
        /// What was measured until then.
        so_far: Option<String>,
    },
    /// The user has interrupted the program.
    #[error("interrupted")]
    Interrupted,
    /// The other process of the pair is gone, and reports the reason itself.
    #[error("the other process of the pair is gone")]
    PeerGone,
    /// A file could not be fetched.
    #[error("{0}")]
    Fetch(String),
    /// The caller of this crate broke a rule of its interface.
    #[error("misuse of the driver: {0}")]
    Misuse(&'static str),
    /// The transport makes no device of two here.
    #[error("{0}")]
    NotFused(String),
    /// What was to be done needs this, and it is not here.
    #[error("needs {0}")]
    Missing(&'static str),
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// An [`Error::Io`] from the last system error.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::io(what, std::io::Error::last_os_error())
    }

    /// Whether a transport was tried and did the wrong thing; otherwise it could not be tried.
    pub fn is_wrong(&self) -> bool {
        match self {
            Self::Side { problem, .. } => problem.is_wrong(),
            _ => {
                matches!(self, Self::Data(_) | Self::Contract(_) | Self::Worker { wrong: true, .. })
            }
        }
    }

    /// An [`Error::Io`].
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
    }
}

impl From<serde_json::Error> for Error {
    fn from(problem: serde_json::Error) -> Self {
        Self::Unreadable(format!("not the JSON that was expected: {problem}"))
    }
}

/// The name and meaning of an `ncclResult_t`.
pub fn result_words(code: u32) -> &'static str {
    match code {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError: a CUDA call failed",
        2 => "ncclSystemError: the operating system or the hardware failed",
        3 => "ncclInternalError: a bug in the transport or in its caller",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage: a setting is wrong",
        6 => "ncclRemoteError: the peer or the network is gone",
        7 => "ncclInProgress",
        _ => "not an ncclResult_t",
    }
}

fn no_device(transport: &str, wanted: usize, count: usize) -> String {
    match count {
        0 => format!("{transport} found no device"),
        _ => format!("{transport} has no device {wanted}: it found {count}, numbered from 0"),
    }
}

/// The last lines of a process, each indented.
fn last_lines(log: &[String]) -> String {
    let heading = if log.is_empty() { "" } else { "\n  its last lines:" };
    log.iter().fold(heading.to_owned(), |text, line| text + "\n    " + line)
}
