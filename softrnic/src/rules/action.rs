//! What a fault rule does: one table of all actions, with name, value and number.

use std::fmt;

use crate::limits::MAX_MESSAGE;
use crate::rules::gid_return::GidReturn;
use crate::rules::time;

/// What goes wrong. The numbers are those in the shared file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum ActionKind {
    /// The request is lost on its way.
    Drop = 1,
    /// The request is executed, its acknowledgement is lost.
    DropAck = 2,
    /// The request is held up for so many nanoseconds, and all behind it on its connection.
    Delay = 3,
    /// The request is taken for lost; it arrives after so many nanoseconds, if the responder still waits for it.
    Late = 4,
    /// The responder says "receiver not ready".
    Rnr = 5,
    /// One bit of the data is turned.
    Corrupt = 6,
    /// The sender's queue pair fails: `LOC_QP_OP_ERR`, event `QP_FATAL`.
    QpError = 7,
    /// The responder denies access: `REM_ACCESS_ERR`.
    AccessError = 8,
    /// The responder cannot carry the request out: `REM_OP_ERR`.
    OperationError = 9,
    /// The sender's send completion queue overruns.
    CqOverrun = 10,
    /// The sender's port goes down; up again after so many nanoseconds, 0: never. See [`Action::gids`].
    PortDown = 11,
    /// The sender's port comes up.
    PortUp = 12,
    /// The sender's port carries so many bytes per millisecond from now on; 0: no limit.
    Slow = 13,
    /// The sender's device fails; another one is in its place after so many nanoseconds, 0: never. See [`Action::refuses`].
    DeviceFatal = 14,
    /// The sending process is killed.
    Kill = 15,
    /// `ibv_modify_qp` to RTR fails with this errno.
    ModifyQp = 16,
    /// Registration of memory fails with this errno.
    RegMr = 17,
    /// So many bytes of the request are placed, the rest is lost on its way.
    Cut = 18,
    /// The request is acknowledged, but neither its data nor a completion appears at the responder.
    Forget = 19,
    /// Polling a completion queue fails with this errno.
    PollCq = 20,
    /// Posting a work request to a send queue fails with this errno.
    PostSend = 21,
}

/// What the value of an action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    None,
    /// Nanoseconds.
    Time,
    /// As above; 0 if none is given.
    OptionalTime,
    /// Bytes per millisecond, written in GB/s.
    Pace,
    Errno,
    /// As many as a message may have at most.
    Bytes,
}

/// All actions, with their names and what their values are.
const ACTIONS: [(ActionKind, &str, Value); 21] = [
    (ActionKind::Drop, "drop", Value::None),
    (ActionKind::DropAck, "drop-ack", Value::None),
    (ActionKind::Cut, "cut", Value::Bytes),
    (ActionKind::Forget, "forget", Value::None),
    (ActionKind::Delay, "delay", Value::Time),
    (ActionKind::Late, "late", Value::Time),
    (ActionKind::Rnr, "rnr", Value::None),
    (ActionKind::Corrupt, "corrupt", Value::None),
    (ActionKind::QpError, "qp-error", Value::None),
    (ActionKind::AccessError, "access-error", Value::None),
    (ActionKind::OperationError, "operation-error", Value::None),
    (ActionKind::CqOverrun, "cq-overrun", Value::None),
    (ActionKind::PortDown, "port-down", Value::OptionalTime),
    (ActionKind::PortUp, "port-up", Value::None),
    (ActionKind::Slow, "slow", Value::Pace),
    (ActionKind::DeviceFatal, "device-fatal", Value::OptionalTime),
    (ActionKind::Kill, "kill", Value::None),
    (ActionKind::ModifyQp, "modify-qp", Value::Errno),
    (ActionKind::RegMr, "reg-mr", Value::Errno),
    (ActionKind::PollCq, "poll-cq", Value::Errno),
    (ActionKind::PostSend, "post-send", Value::Errno),
];

const ERRNOS: [(&str, i32); 8] = [
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EINVAL", libc::EINVAL),
    ("ENOMEM", libc::ENOMEM),
    ("EIO", libc::EIO),
    ("EAGAIN", libc::EAGAIN),
    ("EFAULT", libc::EFAULT),
    ("EPERM", libc::EPERM),
    ("ENETUNREACH", libc::ENETUNREACH),
];

/// What goes wrong, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action {
    pub(crate) kind: ActionKind,
    /// Time, bytes, pace or errno, see [`ActionKind`]; 0 where there is none.
    pub(crate) value: u64,
    /// Of [`ActionKind::PortDown`].
    pub(crate) gids: GidReturn,
    /// Of [`ActionKind::DeviceFatal`]: for so many nanoseconds before, the device refuses commands.
    pub(crate) refuses: u64,
}

impl Action {
    /// Concerns calls, not messages.
    pub(crate) fn is_for_calls(self) -> bool {
        matches!(self.kind, ActionKind::ModifyQp | ActionKind::RegMr | ActionKind::PollCq | ActionKind::PostSend)
    }

    /// Reads `NAME` or `NAME=VALUE`. The error is a sentence.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        let (name, given) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let unknown = || format!("there is no action {name:?}; actions are {}", list());
        let (kind, _, value) = ACTIONS.into_iter().find(|(_, known, _)| *known == name).ok_or_else(unknown)?;
        let needs = || given.ok_or_else(|| format!("{name} needs a value: {name}={}", value.placeholder()));
        let value = match value {
            Value::None => match given {
                Some(value) => return Err(format!("{name} takes no value, but {value:?} is given")),
                None => 0,
            },
            Value::Time => time::parse(needs()?)?,
            Value::OptionalTime => given.map_or(Ok(0), time::parse)?,
            Value::Pace => pace(needs()?)?,
            Value::Errno => errno(needs()?)? as u64,
            Value::Bytes => bytes(needs()?)?,
        };
        Ok(Self { kind, value, gids: GidReturn::default(), refuses: 0 })
    }
}

impl ActionKind {
    /// The one with this number, if there is one.
    pub(crate) fn decode(number: u32) -> Option<Self> {
        ACTIONS.into_iter().map(|(kind, ..)| kind).find(|kind| *kind as u32 == number)
    }
}

impl Value {
    fn placeholder(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Time | Self::OptionalTime => "TIME",
            Self::Pace => "GB/s",
            Self::Errno => "ERRNO",
            Self::Bytes => "BYTES",
        }
    }
}

/// All actions as they are written.
fn list() -> String {
    let written = ACTIONS.map(|(_, name, value)| match value {
        Value::None => name.to_owned(),
        Value::OptionalTime => format!("{name}[={}]", value.placeholder()),
        _ => format!("{name}={}", value.placeholder()),
    });
    written.join(", ")
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = ACTIONS.into_iter().find(|(kind, ..)| *kind == self.kind);
        let (_, name, value) = known.unwrap_or((self.kind, "?", Value::None));
        match value {
            Value::None => f.write_str(name),
            Value::OptionalTime if self.value == 0 => f.write_str(name),
            Value::Time | Value::OptionalTime => write!(f, "{name}={}ns", self.value),
            Value::Bytes => write!(f, "{name}={}", self.value),
            Value::Pace => write!(f, "{name}={}", self.value as f64 / 1e6),
            Value::Errno => {
                let errno = ERRNOS.iter().find(|(_, code)| *code as u64 == self.value);
                write!(f, "{name}={}", errno.map_or("?", |(errno, _)| errno))
            }
        }
    }
}

/// GB/s in bytes per millisecond.
fn pace(value: &str) -> Result<u64, String> {
    let pace = value.parse::<f64>().ok().filter(|p| *p == 0.0 || (1e-6..=1e6).contains(p));
    pace.map(|p| (p * 1e6) as u64).ok_or_else(|| format!("slow={value}: must be GB/s from 0.000001; 0 is no limit"))
}

fn bytes(value: &str) -> Result<u64, String> {
    let bytes = value.parse().ok().filter(|n| *n <= u64::from(MAX_MESSAGE));
    bytes.ok_or_else(|| format!("cut={value}: must be a number of bytes from 0 to {MAX_MESSAGE}"))
}

fn errno(value: &str) -> Result<i32, String> {
    let known = ERRNOS.iter().find(|(name, _)| *name == value).map(|(_, code)| *code);
    known.ok_or_else(|| {
        let all: Vec<_> = ERRNOS.iter().map(|(name, _)| *name).collect();
        format!("{value:?} is not among {}", all.join(", "))
    })
}
