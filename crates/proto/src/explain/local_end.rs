//! One end of a connection: its latest state, and its peer's reports.

use super::message::{Answer, Question, Standing};
use super::numbers::{End, Numbers};
use super::operation::{Begun, Operation};
use super::snapshot::{Contact, EndSnapshot};
use super::verdict::{Peer, UNTESTED_MS, Verdict, judge};
use crate::control::Time;
use crate::identity::Identity;
use std::time::Duration;

/// How long a waiting end must stand still before it counts as waiting.
pub(super) const SETTLED: Duration = Duration::from_secs(1);
/// How long an answer is valid, and how long a peer that has asked gets updates.
pub(super) const FRESH: Duration = Duration::from_secs(3);
/// A peer counts as silent after this time without an answer to [`MIN_QUESTIONS`] questions.
const SILENT: Duration = Duration::from_secs(3);
const MIN_QUESTIONS: u32 = 4;
/// NCCL has stopped testing outstanding requests after this time without a call.
const UNTESTED: Duration = Duration::from_millis(UNTESTED_MS as u64);
/// NCCL wants to send if a call of `isend` was refused within this time.
const WANTED: Duration = Duration::from_millis(2500);

/// One end. [`super::inquiry::Inquiry`] sends questions and answers to its peer.
#[derive(Debug)]
pub(super) struct LocalEnd {
    pub(super) snapshot: EndSnapshot,
    /// The operation of its messages, if NCCL has reported it.
    pub(super) operation: Option<Operation>,
    /// How far a recovery of the connection is, for people.
    pub(super) recovery: String,
    /// The peer's identity at set-up.
    pub(super) peer: Identity,
    /// When it last moved, or began to wait.
    pub(super) since: Time,
    /// When `isend` was last refused.
    pub(super) refused: Option<Time>,
    /// When NCCL last called.
    pub(super) called: Time,
    /// The peer's unanswered questions: since when, and how many.
    pub(super) unanswered: Option<(Time, u32)>,
    pub(super) last_question: Option<Time>,
    pub(super) answer: Option<(Time, Answer)>,
    /// When the peer last asked.
    pub(super) asked: Option<Time>,
    /// Its question.
    pub(super) question: Option<Question>,
    /// The latest answer to it.
    pub(super) told: Option<Standing>,
}

impl LocalEnd {
    pub(super) fn new(
        now: Time,
        snapshot: EndSnapshot,
        peer: Identity,
        operation: Option<Operation>,
    ) -> Self {
        Self {
            snapshot,
            operation,
            recovery: String::new(),
            peer,
            since: now,
            refused: None,
            called: now,
            unanswered: None,
            last_question: None,
            answer: None,
            asked: None,
            question: None,
            told: None,
        }
    }

    pub(super) fn update(&mut self, now: Time, mut snapshot: EndSnapshot) {
        let counts = |numbers: Numbers| match numbers {
            Numbers::Sender { seen, sent, acknowledged, .. } => (seen, sent, acknowledged),
            Numbers::Receiver { posted, announced, arrived, .. } => (posted, announced, arrived),
        };
        if counts(snapshot.numbers) != counts(self.snapshot.numbers) {
            // Earlier refusals may precede this.
            self.refused = None;
        } else if snapshot.refusals != self.snapshot.refusals {
            self.refused = Some(now);
        }
        if let Numbers::Sender { wants, .. } = &mut snapshot.numbers {
            *wants = self.refused.is_some_and(|refused| now < refused + WANTED);
        }
        if snapshot.numbers != self.snapshot.numbers {
            (self.since, self.answer, self.unanswered) = (now, None, None);
        }
        if snapshot.calls != self.snapshot.calls
            || snapshot.numbers != self.snapshot.numbers
            || !snapshot.has_requests
        {
            self.called = now;
        }
        if snapshot.contact != self.snapshot.contact {
            (self.answer, self.unanswered, self.asked) = (None, None, None);
        }
        self.snapshot = snapshot;
    }

    pub(super) fn end(&self, now: Time) -> End {
        let is_heard = !self.snapshot.recovers && self.snapshot.contact == Contact::Up;
        End {
            numbers: self.snapshot.numbers,
            recovers: self.snapshot.recovers,
            is_untested: is_heard && self.snapshot.has_requests && now >= self.called + UNTESTED,
            still_ms: millis(now.saturating_sub(self.since)),
        }
    }

    /// Whether the peer has begun the operation, according to its reports.
    pub(super) fn begun(&self, now: Time) -> Begun {
        self.standing(now)
            .filter(|_| self.operation.is_some())
            .map_or(Begun::Unknown, |standing| standing.begun)
    }

    /// The operation that this end waits in, if the peer has not begun it, and waits itself.
    pub(super) fn peer_is_elsewhere(&self, now: Time) -> Option<&Operation> {
        let is_elsewhere = matches!(self.begun(now), Begun::No(_))
            && self.is_waiting(now)
            && self.verdict(now) == Verdict::PeerWaits;
        self.operation.as_ref().filter(|_| is_elsewhere)
    }

    /// Whether it has waited for so long that it counts. While the connection recovers, NCCL may
    /// want to send, and its calls do nothing.
    pub(super) fn is_waiting(&self, now: Time) -> bool {
        (self.snapshot.numbers.is_waiting() || self.snapshot.recovers)
            && now >= self.since + SETTLED
    }

    /// The peer's state, if it was reported recently.
    pub(super) fn standing(&self, now: Time) -> Option<&Standing> {
        match self.answer.as_ref().filter(|(came, _)| now < *came + FRESH) {
            Some((_, Answer::Stands(standing))) => Some(standing),
            _ => None,
        }
    }

    pub(super) fn verdict(&self, now: Time) -> Verdict {
        let fresh = self.answer.as_ref().filter(|(came, _)| now < *came + FRESH);
        let is_silent =
            |(since, count): (Time, u32)| now >= since + SILENT && count >= MIN_QUESTIONS;
        let peer = match (self.snapshot.contact, fresh) {
            (Contact::Gone, _) => Peer::Gone,
            (Contact::Lost, _) => Peer::Unreachable,
            (Contact::Up, Some((_, Answer::NotAccepted))) => Peer::NotAccepted,
            (Contact::Up, Some((_, Answer::Stands(standing)))) => {
                let (waits, is_busy) = (standing.waits_for.is_some(), standing.is_busy);
                Peer::Answered { end: &standing.end, waits, is_busy }
            }
            (Contact::Up, None) if self.unanswered.is_some_and(is_silent) => Peer::Silent,
            (Contact::Up, None) => Peer::Unknown,
        };
        judge(&self.end(now), peer)
    }

    /// The rank with which this process sends on the connection, if messages show it.
    pub(super) fn own_rank(&self) -> Option<u32> {
        self.snapshot.sender_rank.filter(|_| self.snapshot.numbers.is_sender())
    }

    /// The peer's identity, as far as known.
    pub(super) fn peer(&self) -> Identity {
        let mut peer = self.peer.clone();
        match &self.answer {
            Some((_, Answer::Stands(standing))) => peer.rank = standing.me.rank,
            _ if !self.snapshot.numbers.is_sender() => {
                peer.rank = self.snapshot.sender_rank.or(peer.rank)
            }
            _ => {}
        }
        peer
    }
}

/// Milliseconds, as in messages.
pub(super) fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: Numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false };

    fn watched(has_requests: bool, recovers: bool, contact: Contact) -> LocalEnd {
        let snapshot = EndSnapshot {
            numbers: SENT,
            refusals: 0,
            calls: 0,
            has_requests,
            recovers,
            contact,
            sender_rank: None,
        };
        let peer = Identity { host: "n".into(), pid: 1, rank: None, label: None };
        LocalEnd::new(Time::ZERO, snapshot, peer, None)
    }

    #[test]
    fn a_peer_is_silent_that_was_asked_four_times_and_for_three_seconds() {
        let mut watched = watched(false, false, Contact::Up);
        let mut verdict = |since: u64, count: u32| {
            watched.unanswered = Some((Time::from_secs(since), count));
            watched.verdict(Time::from_secs(10))
        };
        let [silent, few, soon] =
            [verdict(7, MIN_QUESTIONS), verdict(7, MIN_QUESTIONS - 1), verdict(8, MIN_QUESTIONS)];
        assert_ne!(silent, few);
        assert_ne!(silent, soon);
        assert_eq!(few, soon);
    }

    #[test]
    fn a_sender_whose_isend_was_without_success_lately_waits() {
        let mut watched = watched(false, false, Contact::Up);
        let idle = Numbers::Sender { seen: 1, sent: 1, acknowledged: 1, wants: false };
        let mut waits = |now: Time, refusals: u32| {
            watched
                .update(now, EndSnapshot { numbers: idle, refusals, ..watched.snapshot.clone() });
            watched.snapshot.numbers.is_waiting()
        };
        let refused = Time::from_secs(9);
        assert!(!waits(Time::from_secs(1), 0) && waits(refused, 1));
        assert!(
            waits(refused + WANTED - Duration::from_nanos(1), 1) && !waits(refused + WANTED, 1)
        );
    }

    /// A request posted just now has not waited for a call, however long NCCL made none before.
    #[test]
    fn an_end_without_requests_is_not_untested() {
        let mut watched = watched(false, false, Contact::Up);
        let numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 1, wants: false };
        let idle = EndSnapshot { numbers, ..watched.snapshot.clone() };
        let begun = Time::from_secs(60);
        [Time::from_secs(1), begun].into_iter().for_each(|now| watched.update(now, idle.clone()));
        watched.update(begun + UNTESTED / 2, EndSnapshot { has_requests: true, ..idle });
        assert!(
            !watched.end(begun + UNTESTED / 2).is_untested
                && watched.end(begun + UNTESTED).is_untested
        );
    }

    /// During a recovery, NCCL's calls do nothing.
    #[test]
    fn a_connection_is_untested_only_while_it_stands() {
        let is_untested = |recovers, contact| {
            watched(true, recovers, contact).end(Time::ZERO + UNTESTED).is_untested
        };
        assert!(is_untested(false, Contact::Up));
        assert!(!is_untested(true, Contact::Up) && !is_untested(false, Contact::Lost));
    }
}
