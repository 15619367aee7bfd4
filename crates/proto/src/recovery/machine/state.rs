//! The states of one end, and what it remembers of its faults.

use crate::control::Time;

/// How far an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    Running,
    /// Sender: a rail is to be taken in, or a lane to get another path, and what is outstanding completes before.
    Draining {
        until: Time,
    },
    /// No queue pairs are used. The sender waits for the peer's halt and for a rail, the receiver for an offer.
    Halted,
    /// Sender: queue pairs are being created.
    Creating,
    /// Sender: waits for the answer.
    Offered {
        until: Time,
    },
    /// Queue pairs are being connected; at the receiver they are created, too.
    Connecting,
    /// Receiver: waits for the sender to be ready.
    Answered {
        until: Time,
    },
    /// Sender: is ready and waits for the account.
    AwaitingAccount {
        until: Time,
    },
    /// The account is being composed or applied, and the new queue pairs come into use.
    Resuming,
    Failed,
}

#[cfg(any(test, fuzzing))]
impl State {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Draining { .. } => "Draining",
            Self::Halted => "Halted",
            Self::Creating => "Creating",
            Self::Offered { .. } => "Offered",
            Self::Connecting => "Connecting",
            Self::Answered { .. } => "Answered",
            Self::AwaitingAccount { .. } => "AwaitingAccount",
            Self::Resuming => "Resuming",
            Self::Failed => "Failed",
        }
    }
}

/// What this end would do although nothing has failed, and has asked about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    /// No earlier question has the same.
    pub(super) number: u32,
    /// Why it would.
    pub(super) cause: String,
    /// When it gives that up.
    pub(super) until: Time,
}

/// Which queue pairs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum QueuePairs {
    InUse,
    None,
    /// For the present attempt, or an earlier one that was given up.
    New,
}

/// Faults without a success between them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Trouble {
    pub(super) since: Time,
    pub(super) attempts: u32,
    pub(super) cause: String,
    /// Whether the peer has said anything since.
    pub(super) is_answered: bool,
}

impl Trouble {
    /// It begins with `cause`.
    pub(super) fn new(since: Time, cause: &str) -> Self {
        Self { since, attempts: 0, cause: cause.to_owned(), is_answered: false }
    }
}
