//! A fault rule.

use std::fmt;
use std::ops::RangeInclusive;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The request is lost on its way.
    Drop,
    /// The request is executed, its acknowledgement is lost.
    DropAck,
    /// The request is held up for so many nanoseconds, and all behind it on its connection.
    Delay(u64),
    /// The request is taken for lost; it arrives after so many nanoseconds, if the responder still waits for it.
    Late(u64),
    /// The responder says "receiver not ready".
    Rnr,
    /// One bit of the data is turned.
    Corrupt,
    /// The sender's queue pair fails: `LOC_QP_OP_ERR`, event `QP_FATAL`.
    QpError,
    /// The responder denies access: `REM_ACCESS_ERR`.
    AccessError,
    /// The responder cannot carry the request out: `REM_OP_ERR`.
    OperationError,
    /// The sender's send completion queue overruns.
    CqOverrun,
    /// The sender's port goes down; up again after so many nanoseconds, 0: never.
    PortDown(u64),
    /// The sender's port comes up.
    PortUp,
    /// The sender's port carries so many bytes per millisecond from now on; 0: no limit.
    Slow(u64),
    /// The sender's device fails for good.
    DeviceFatal,
    /// The sending process is killed.
    Kill,
    /// `ibv_modify_qp` to RTR fails with this errno.
    ModifyQp(i32),
    /// Registration of memory fails with this errno.
    RegMr(i32),
}

impl Action {
    /// Concerns calls, not messages.
    pub(super) fn is_for_calls(self) -> bool {
        matches!(self, Self::ModifyQp(_) | Self::RegMr(_))
    }
}

/// One end of a connection: a device, or one port of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Device number, from 0.
    pub(crate) device: usize,
    /// Port number, from 1; `None`: any.
    pub(crate) port: Option<u32>,
}

/// When what goes wrong. `None` and full ranges match everything.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    /// What happens.
    pub(crate) action: Action,
    /// The sender.
    pub(crate) device: Option<End>,
    /// The receiver.
    pub(crate) peer: Option<End>,
    /// Number of the connection among those from the sender's port to the receiver's, from 0.
    pub(crate) flow: Option<u32>,
    /// Bit n: applies to `ibv_wr_opcode` n.
    pub(crate) opcodes: u32,
    /// Numbers of the messages on the connection, from 1. For calls: the number of the call that the rule is asked for.
    pub(crate) messages: RangeInclusive<u64>,
    /// Of these every n-th.
    pub(crate) every: u64,
    /// Of these a random part, of 2^32; `None`: all.
    pub(crate) chance: Option<u32>,
    /// Transmissions of each message that are affected, counted from the first.
    pub(crate) attempts: u32,
    /// Most times that the rule strikes, in the whole fabric; 0: any number. A rule with this is only as reproducible
    /// as the order of the messages.
    pub(crate) times: u32,
}

/// All opcodes.
pub(super) const ANY_OPCODE: u32 = u32::MAX;

impl Rule {
    /// A rule that matches everything.
    pub(crate) fn new(action: Action) -> Self {
        Self {
            action,
            device: None,
            peer: None,
            flow: None,
            opcodes: ANY_OPCODE,
            messages: 1..=u64::MAX,
            every: 1,
            chance: None,
            attempts: 1,
            times: 0,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}", self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, "/{port}"))
    }
}
