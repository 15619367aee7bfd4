//! What [`super::machine::Recovery`] asks its caller to do.

use super::account::Account;
use super::message::Message;
use super::rail_mask::RailMask;
use crate::endpoint::Endpoint;
use std::fmt;
use std::time::Duration;

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that sends messages. It chooses the rails and makes the offer.
    Sender,
    /// The one that receives messages. It says what is missing.
    Receiver,
}

/// What the caller has to do next. Actions are carried out in their order, each before the next one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send this to the peer. If the control connection is lost, nothing is sent: what counts is said again when it is back.
    Send(Message),
    /// Put the queue pairs that are in use into the error state, take in all of their completions, and destroy them. Then
    /// `handle_fenced`.
    Fence,
    /// Sender: create queue pairs on these rails. Then `handle_created`.
    Create {
        /// The attempt that they are for.
        attempt: u32,
        /// The rails, at least one.
        rails: RailMask,
    },
    /// Sender: connect the queue pairs that were created. Receiver: create queue pairs on these rails, connect them and post
    /// receives. Then `handle_connected`.
    Connect {
        /// The attempt that they are for.
        attempt: u32,
        /// The rails, at least one.
        rails: RailMask,
        /// The peer's end, whose rails are those of `rails` in ascending order.
        remote: Endpoint,
    },
    /// Destroy what was created for an attempt that was given up. There may be nothing.
    Discard,
    /// Sender: apply the account, use the new queue pairs, send again what is missing. Receiver: compose the account, use the
    /// new queue pairs. Then `handle_resumed`.
    Resume {
        /// The attempt.
        attempt: u32,
        /// What the receiver has said, at the sender.
        account: Option<Account>,
    },
    /// Sender: begin no new send until none is outstanding. Then `handle_drained`. It ends with the next [`Self::Fence`] or
    /// [`Self::Continue`].
    Drain,
    /// Sender: go on as before [`Self::Drain`].
    Continue,
    /// For the log: the connection runs again.
    Recovered {
        /// How long it did not.
        duration: Duration,
        /// How many attempts it took.
        attempts: u32,
        /// The rails that it uses.
        rails: RailMask,
    },
    /// The connection has failed for good, for this reason.
    Fail(String),
}

/// For the log: what this end does.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(message) => write!(f, "sends {message}"),
            Self::Fence => write!(f, "destroys its queue pairs"),
            Self::Create { attempt, rails } => write!(f, "attempt {attempt}: creates queue pairs on rail(s) {rails}"),
            Self::Connect { attempt, rails, remote } => {
                write!(f, "attempt {attempt}: connects queue pairs on rail(s) {rails} to {}", remote.name)
            }
            Self::Discard => write!(f, "destroys what was created for an earlier attempt"),
            Self::Resume { attempt, account: None } => write!(f, "attempt {attempt}: uses the new queue pairs"),
            Self::Resume { attempt, account: Some(account) } => {
                write!(
                    f,
                    "attempt {attempt}: uses the new queue pairs, and sends again {} message(s)",
                    account.missing.len()
                )
            }
            Self::Drain => write!(f, "sends nothing until all is acknowledged"),
            Self::Continue => write!(f, "sends again, and keeps its queue pairs"),
            Self::Recovered { duration, attempts, rails } => {
                let ms = duration.as_millis();
                write!(f, "has recovered on rail(s) {rails}, after {ms} ms and {attempts} attempt(s)")
            }
            Self::Fail(reason) => write!(f, "fails: {reason}"),
        }
    }
}

/// Actions that the caller reports the end of. There is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Job {
    Fence,
    Create,
    /// With the peer's end.
    Connect(Endpoint),
    /// With what the receiver has said, at the sender.
    Resume(Option<Account>),
}

/// What is to be done next, besides jobs. There is room for each once, whatever the peer says how often.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Due {
    pub(super) halt: bool,
    pub(super) discard: bool,
    /// The frame of the present attempt.
    pub(super) frame: bool,
    pub(super) ports: bool,
    pub(super) ask: bool,
    /// The number of the question that is answered.
    pub(super) heard: Option<u32>,
    pub(super) drain: bool,
    pub(super) go_on: bool,
    /// How long the recovery has taken.
    pub(super) recovered: Option<Duration>,
    pub(super) failure: Option<String>,
}
