//! A fault rule: one action, and the messages it applies to.

use std::fmt;

use crate::rules::action::Action;
use std::ops::RangeInclusive;

/// One end of a connection: a device, or one port of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RuleEnd {
    /// Device number, from 0.
    pub(crate) device: usize,
    /// Port number, from 1; `None`: any.
    pub(crate) port: Option<u32>,
}

/// When what goes wrong. `None` and full ranges match everything.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FaultRule {
    /// What happens.
    pub(crate) action: Action,
    /// The sender.
    pub(crate) device: Option<RuleEnd>,
    /// The receiver.
    pub(crate) peer: Option<RuleEnd>,
    /// Number of the connection among those from the sender's port to the receiver's, from 0.
    pub(crate) flow: Option<u32>,
    /// Which of the sender's paths it takes, from 0.
    pub(crate) path: Option<u32>,
    /// Bit n: applies to `ibv_wr_opcode` n.
    pub(crate) opcodes: u32,
    /// Applies to messages that have a packet of more than so many bytes.
    pub(crate) larger: Option<u16>,
    /// Numbers of the messages on the connection, from 1. For calls: the number of the call that the rule is asked for.
    pub(crate) messages: RangeInclusive<u64>,
    /// Of these every n-th.
    pub(crate) every: u64,
    /// Of these a random part, of 2^32; `None`: all.
    pub(crate) chance: Option<u32>,
    /// Transmissions of each message that are affected, counted from the first.
    pub(crate) attempts: u32,
    /// Most times that the rule applies, in the whole fabric; 0: any number. A rule with this is only as reproducible
    /// as the order of the messages.
    pub(crate) times: u32,
    /// The rule ends so many nanoseconds after it has first applied; 0: it does not.
    pub(crate) lasts: u64,
}

/// All opcodes.
pub(crate) const ANY_OPCODE: u32 = u32::MAX;

impl FaultRule {
    /// A rule that matches everything.
    pub(crate) fn new(action: Action) -> Self {
        Self {
            action,
            device: None,
            peer: None,
            flow: None,
            path: None,
            opcodes: ANY_OPCODE,
            larger: None,
            messages: 1..=u64::MAX,
            every: 1,
            chance: None,
            attempts: 1,
            times: 0,
            lasts: 0,
        }
    }
}

impl fmt::Display for RuleEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}", self.device)?;
        self.port.map_or(Ok(()), |port| write!(f, "/{port}"))
    }
}
