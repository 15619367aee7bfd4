//! The recovery of one end, which notes in which state each event comes.

use crate::Violation;
use crate::control::Time;
use crate::endpoint::Endpoint;
use crate::recovery::machine::Recovery;
use crate::recovery::machine::{Action, Role};
use crate::recovery::message::Message;
use crate::recovery::missing_list::MissingList;
use crate::recovery::rail_mask::RailMask;
use crate::sim::visits::Visits;
use std::cell::RefCell;
use std::ops::Deref;
use std::time::Duration;

thread_local! {
    static VISITS: RefCell<Visits> = const { RefCell::new(Visits::new()) };
}

/// Those that this thread has seen since the last call.
#[cfg(test)]
pub(super) fn take() -> Visits {
    VISITS.take()
}

/// The recovery. What changes nothing is its own.
#[derive(Debug)]
pub(super) struct Observed {
    machine: Recovery,
    end: &'static str,
}

impl Deref for Observed {
    type Target = Recovery;

    fn deref(&self) -> &Recovery {
        &self.machine
    }
}

impl Observed {
    pub(super) fn new(role: Role, rails: RailMask, give_up: Duration) -> Self {
        let end = match role {
            Role::Sender => "sender",
            Role::Receiver => "receiver",
        };
        Self { machine: Recovery::new(role, rails, give_up), end }
    }

    fn note(&mut self, event: &'static str) -> &mut Recovery {
        let visit = (self.end, self.machine.state_name(), event);
        VISITS.with_borrow_mut(|visits| *visits.entry(visit).or_default() += 1);
        &mut self.machine
    }

    pub(super) fn handle_fault(&mut self, now: Time, cause: &str) {
        self.note("fault").handle_fault(now, cause);
    }

    pub(super) fn handle_message(&mut self, now: Time, message: Message) -> Result<(), Violation> {
        let event = match &message {
            Message::Halt { .. } => "Halt",
            Message::Ports { .. } => "Ports",
            Message::Offer { .. } => "Offer",
            Message::Answer { .. } => "Answer",
            Message::Ready { .. } => "Ready",
            Message::Ask { .. } => "Ask",
            Message::Heard { .. } => "Heard",
            Message::MissingList { .. } => "MissingList",
        };
        self.note(event).handle_message(now, message)
    }

    pub(super) fn handle_back(&mut self, now: Time) {
        self.note("back").handle_back(now);
    }

    pub(super) fn handle_lost(&mut self, now: Time) {
        self.note("lost").handle_lost(now);
    }

    pub(super) fn handle_unreported(&mut self, now: Time) {
        self.note("unreported").handle_unreported(now);
    }

    pub(super) fn handle_usable(&mut self, now: Time, usable: RailMask) {
        self.note("usable").handle_usable(now, usable);
    }

    pub(super) fn handle_fenced(&mut self, now: Time) {
        self.note("fenced").handle_fenced(now);
    }

    pub(super) fn handle_created(
        &mut self,
        now: Time,
        attempt: u32,
        end: Result<Endpoint, String>,
    ) {
        self.note("created").handle_created(now, attempt, end);
    }

    pub(super) fn handle_connected(
        &mut self,
        now: Time,
        attempt: u32,
        end: Result<Endpoint, String>,
    ) {
        self.note("connected").handle_connected(now, attempt, end);
    }

    pub(super) fn handle_unreachable(&mut self, now: Time, attempt: u32, dead: RailMask) {
        self.note("unreachable").handle_unreachable(now, attempt, dead);
    }

    pub(super) fn handle_resumed(
        &mut self,
        now: Time,
        attempt: u32,
        missing_list: Option<MissingList>,
    ) {
        self.note("resumed").handle_resumed(now, attempt, missing_list);
    }

    pub(super) fn handle_drained(&mut self, now: Time) {
        self.note("drained").handle_drained(now);
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        self.note("timeout").handle_timeout(now);
    }

    pub(super) fn handle_change_request(&mut self, now: Time) -> bool {
        self.note("request").handle_change_request(now, "a request".into())
    }

    pub(super) fn handle_acknowledged(&mut self) {
        self.note("acknowledged").handle_acknowledged();
    }

    pub(super) fn poll_action(&mut self) -> Option<Action> {
        self.machine.poll_action()
    }
}
