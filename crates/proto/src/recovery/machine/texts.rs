//! What a machine says of itself, for people.

use super::Recovery;
use super::state::State;
use crate::control::Time;
use crate::recovery::action::Role;

impl Recovery {
    /// For messages: since when the connection has not run, why, and what it waits for.
    pub fn describe(&self, now: Time) -> String {
        let seconds = now.saturating_sub(self.since).as_secs();
        let (own, peer) = (self.own, self.peer);
        format!(
            "{seconds} s and {} attempt(s) so far. {}. Cause of the latest: {}. Rails that this end can use: {own}, the peer: {peer}",
            self.attempts,
            self.waited_for(),
            self.cause,
        )
    }

    /// For messages: what this end waits for.
    pub fn waited_for(&self) -> String {
        let limit = self.answer_time().as_secs();
        match self.state {
            State::Halted if self.job.is_some() => "The old queue pairs are not destroyed".into(),
            State::Halted if self.role == Role::Sender && !self.has_peer_halted => {
                let is_answered = self.trouble.as_ref().is_some_and(|trouble| trouble.is_answered);
                let what = if is_answered {
                    "The peer has answered, but not the latest attempt"
                } else {
                    "The peer has not answered"
                };
                what.into()
            }
            State::Halted if self.role == Role::Receiver => "The sender has not offered new queue pairs".into(),
            State::Halted => "There is no rail that both ends can use".into(),
            State::Offered { .. } | State::Answered { .. } | State::AwaitingAccount { .. } => {
                format!("The peer did not answer within {limit} s")
            }
            State::Creating | State::Connecting | State::Resuming => "New queue pairs are not ready".into(),
            State::Running | State::Draining { .. } | State::Failed => "It failed again and again".into(),
        }
    }
}
