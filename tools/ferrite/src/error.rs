//! Everything that can go wrong, one variant per operation, in words a user can act on.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a run, or a step of it, is not valid.
#[derive(Debug)]
pub enum Error {
    /// An operation on a file or a descriptor failed.
    Io {
        /// What was being done, with the file's name.
        what: String,
        /// What the system answered.
        source: std::io::Error,
    },
    /// The dynamic loader refused a library.
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's own words.
        reason: String,
    },
    /// A library lacks a symbol.
    Symbol {
        /// The library.
        path: PathBuf,
        /// The symbol that was looked for.
        symbol: String,
        /// What was found instead, or what to do.
        hint: String,
    },
    /// The thing that would run is not the thing that was named.
    Refused(String),
    /// A transport's function returned an error.
    Call {
        /// The transport's name.
        transport: String,
        /// The function.
        call: &'static str,
        /// The `ncclResult_t`.
        code: u32,
    },
    /// The transport works but has no such device.
    NoDevice {
        /// The transport's name.
        transport: String,
        /// The device index that was asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// Something that had to happen did not, in the time given.
    Stalled {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The data or the sizes are not what was sent.
    Data(String),
    /// What a file or another process says is not understood.
    Unreadable(String),
    /// The transport does not keep NCCL's contract, in words.
    Contract(String),
    /// A worker process died, hung or reported an error.
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
    /// The user does not want to wait any longer.
    Interrupted,
    /// The other process of the pair is gone; it knows why.
    PeerGone,
    /// A file could not be fetched.
    Fetch(String),
    /// The caller of this crate broke a rule of its interface.
    Misuse(&'static str),
    /// What was to be done needs this, and it is not here.
    Missing(&'static str),
    /// The command line makes no sense.
    Usage(String),
}

impl Error {
    /// An [`Error::Io`] from the last system error.
    pub fn last_os(what: impl Into<String>) -> Self {
        Self::io(what, std::io::Error::last_os_error())
    }

    /// Whether a transport was tried and did the wrong thing; otherwise it could not be tried.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Data(_) | Self::Contract(_) | Self::Worker { wrong: true, .. })
    }

    /// An [`Error::Io`].
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { what: what.into(), source }
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

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Load { path, reason } => {
                write!(f, "cannot load {}: {reason}", path.display())
            }
            Self::Symbol { path, symbol, hint } => {
                write!(f, "{} has no symbol {symbol}: {hint}", path.display())
            }
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Call { transport, call, code } => {
                write!(f, "{transport}: {call} returned {code} ({})", result_words(*code))
            }
            Self::NoDevice { transport, count: 0, .. } => write!(f, "{transport} found no device"),
            Self::NoDevice { transport, wanted, count } => {
                write!(f, "{transport} has no device {wanted}: it found {count}, numbered from 0")
            }
            Self::Stalled { what, after } => {
                write!(f, "{what}: nothing for {:.1} s", after.as_secs_f64())
            }
            Self::Data(what) => write!(f, "wrong data: {what}"),
            Self::Worker { rank, what, log, .. } => {
                write!(f, "rank {rank}: {what}")?;
                if !log.is_empty() {
                    write!(f, "\n  its last lines:")?;
                }
                for line in log {
                    write!(f, "\n    {line}")?;
                }
                Ok(())
            }
            Self::PeerGone => f.write_str("the other process of the pair is gone"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Unreadable(what) | Self::Fetch(what) | Self::Usage(what) | Self::Contract(what) => f.write_str(what),
            Self::Misuse(rule) => write!(f, "misuse of the driver: {rule}"),
            Self::Missing(what) => write!(f, "needs {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
