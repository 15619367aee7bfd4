//! What a process knows of its connections, whom it asks, and what it answers.
//!
//! ```text
//!   asked by a peer, or an end waits for long
//!        │
//!        ▼
//!   ask the peers of all ends that wait ──► their numbers, at once: what each end waits for
//!        │                              └─► what they wait for themselves, as soon as they know: the cause
//!        ▼
//!   the same to each peer that has asked, and again whenever it changes
//! ```
//!
//! A process asks each peer at most twice a second, however many ask it. The search costs a few
//! frames per connection, and ends at processes that wait for no peer. A known cause ages on its
//! way and is dropped after [`MAX_AGE`], so nothing circulates for ever.

use super::ends::Ends;
pub use super::ends::{EndId, STOPPED};
use super::local_end::{FRESH, LocalEnd, millis};
use super::message::{Answer, Cause, Crossing, LeastLead, MAX_DEPTH, Question, Standing};
use super::numbers::End;
use super::operation::{Begun, BegunOperations, Operation, begun};
use super::snapshot::{CheckedEnd, Contact};
use super::verdict::{Peer, Verdict, judge};
use crate::control::Time;
use crate::identity::Identity;
use std::collections::VecDeque;
use std::time::Duration;

/// Interval between questions to a peer.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Older causes are not passed on.
const MAX_AGE: Duration = Duration::from_secs(10);
/// How long to look for a cause, once all peers have answered.
pub const SEARCH_LIMIT: Duration = Duration::from_secs(4);
/// How much of it the search takes in any case, since questions are asked once a second at first.
pub(super) const HEAD_START: Duration = Duration::from_secs(1);

/// What an end waits for, for a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The end.
    pub id: EndId,
    /// How long it has waited.
    pub age: Duration,
    /// Its state.
    pub end: End,
    /// What it waits for.
    pub verdict: Verdict,
    /// The peer.
    pub peer: Identity,
    /// The state of the peer's end, if it has answered.
    pub theirs: Option<Standing>,
    /// The final cause of the wait, if known.
    pub cause: Option<Cause>,
    /// The operation that the end waits in, if known.
    pub operation: Option<Operation>,
    /// Whether the peer has begun it.
    pub begun: Begun,
}

/// A peer that waits for an end of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingPeer {
    /// The end.
    pub id: EndId,
    /// What the peer waits for.
    pub verdict: Verdict,
    /// How long it had waited when it asked.
    pub age: Duration,
    /// The operation that it waits in, if known, and whether this process has begun it.
    pub operation: Option<(Operation, Begun)>,
}

/// The state of one process.
#[derive(Debug)]
pub struct Inquiry {
    me: Identity,
    ends: Ends,
    /// What NCCL has begun in this process, by communicator.
    progress: Vec<BegunOperations>,
    /// Whether a waiting end was closed since the last call of [`Self::take_lost_wait`].
    has_lost_wait: bool,
    /// Since when this process asks for itself without a pause, and until when.
    asks_since: Time,
    asks_until: Time,
    outgoing: VecDeque<(EndId, Message)>,
}

/// The state of a process, equal for each peer that has asked. See [`Standing`].
#[derive(Debug, Clone)]
struct ProcessStanding {
    is_busy: bool,
    waits_for: Option<Identity>,
    cause: Option<Cause>,
    least_lead: Option<LeastLead>,
    crossing: Option<Crossing>,
}

/// A frame's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A question.
    Question(Question),
    /// An answer.
    Answer(Answer),
}

impl Inquiry {
    /// The state of process `me`.
    pub fn new(me: Identity) -> Self {
        Self {
            me,
            ends: Ends::default(),
            progress: Vec::new(),
            has_lost_wait: false,
            asks_since: Time::ZERO,
            asks_until: Time::ZERO,
            outgoing: VecDeque::new(),
        }
    }

    /// Handles the present state of all ends, in order of their numbers, and the operations that
    /// NCCL has begun. Ends that are busy keep their earlier state.
    pub fn handle_checked_ends(
        &mut self,
        now: Time,
        ends: Vec<CheckedEnd>,
        mut progress: Vec<BegunOperations>,
    ) {
        progress.sort_by_key(|progress| progress.communicator);
        self.progress = progress;
        self.has_lost_wait |= self.ends.handle_checked_ends(now, ends);
    }

    /// The operation that the end waits in, if it waits and the operation is known.
    pub fn operation(&self, id: EndId) -> Option<&Operation> {
        self.ends.get(id).filter(|end| end.snapshot.numbers.is_waiting())?.operation.as_ref()
    }

    /// The age of the longest wait.
    pub fn longest_wait(&self, now: Time) -> Option<Duration> {
        let waiting = self.ends.iter().filter(|(_, end)| end.snapshot.numbers.is_waiting());
        waiting.map(|(_, end)| now.saturating_sub(end.since)).max()
    }

    /// Whether a waiting end was closed since the last call.
    pub fn take_lost_wait(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_wait)
    }

    /// Starts asking for this process, for some seconds.
    pub fn ask(&mut self, now: Time) {
        if now >= self.asks_until {
            self.asks_since = now;
        }
        self.asks_until = now + FRESH;
    }

    /// Whether the peer of an end has asked recently, and gets updates.
    pub fn is_asked(&self, now: Time, id: EndId) -> bool {
        self.ends.get(id).and_then(|end| end.asked).is_some_and(|asked| now < asked + FRESH)
    }

    /// Handles a question of a peer. The ends have just been checked.
    pub fn handle_question(&mut self, now: Time, id: EndId, question: &Question) {
        let Some(end) = self.ends.get_mut(id) else { return };
        end.asked = Some(now);
        end.question = Some(question.clone());
        end.told = None;
        if let Some(rank) = question.me.rank {
            end.peer.rank = Some(rank);
        }
    }

    /// Handles an answer of a peer.
    pub fn handle_answer(&mut self, now: Time, id: EndId, answer: Answer) {
        let Some(end) = self.ends.get_mut(id) else { return };
        // This end has not asked.
        if end.last_question.is_none_or(|asked| now > asked + FRESH) {
            return;
        }
        (end.answer, end.unanswered) = (Some((now, answer)), None);
    }

    /// Asks and answers what is due. Returns when to call it again, if nothing happens before.
    pub fn advance(&mut self, now: Time) -> Option<Time> {
        let is_recent = |asked: &Option<Time>| asked.is_some_and(|asked| now < asked + FRESH);
        let is_asked = self.ends.iter().any(|(_, end)| is_recent(&end.asked));
        if !is_asked && now >= self.asks_until {
            return None;
        }
        let ids: Vec<_> = self.ends.iter().map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.ask_peer(now, id));
        let asked: Vec<_> =
            self.ends.iter().filter(|(_, end)| is_recent(&end.asked)).map(|(id, _)| *id).collect();
        // Computed once for all of them.
        let Some(whole) = (!asked.is_empty()).then(|| self.whole(now)) else {
            return Some(now + ASK_EVERY);
        };
        for id in asked {
            let standing = self.standing(now, id, &whole);
            let Some((end, standing)) = self.ends.get_mut(id).zip(standing) else { continue };
            if end.told.as_ref().is_none_or(|told| is_news(told, &standing)) {
                end.told = Some(standing.clone());
                self.outgoing.push_back((id, Message::Answer(Answer::Stands(Box::new(standing)))));
            }
        }
        Some(now + ASK_EVERY)
    }

    /// The next message for the peer of an end.
    pub fn poll_message(&mut self) -> Option<(EndId, Message)> {
        self.outgoing.pop_front()
    }

    fn ask_peer(&mut self, now: Time, id: EndId) {
        let is_due = |end: &&LocalEnd| end.last_question.is_none_or(|last| now >= last + ASK_EVERY);
        let is_to_be_asked = |end: &&LocalEnd| {
            is_due(end) && end.is_waiting(now) && end.snapshot.contact == Contact::Up
        };
        if self.ends.get(id).filter(is_to_be_asked).is_none() {
            return;
        }
        let me = self.me(Some(id));
        let Some(end) = self.ends.get_mut(id) else { return };
        end.last_question = Some(now);
        end.unanswered = Some(end.unanswered.map_or((now, 1), |(since, count)| (since, count + 1)));
        let question = Question { end: end.end(now), me, operation: end.operation.clone() };
        self.outgoing.push_back((id, Message::Question(question)));
    }

    /// The state of this process.
    fn whole(&self, now: Time) -> ProcessStanding {
        let waits_for =
            self.ends.iter().find(|(_, end)| end.is_waiting(now)).map(|(_, end)| end.peer());
        ProcessStanding {
            is_busy: self.ends.are_busy(now),
            cause: self.cause(now),
            least_lead: waits_for.as_ref().and_then(|_| self.least_lead(now)),
            crossing: self.crossing(now),
            waits_for,
        }
    }

    /// The state of the end and of this process, `whole`.
    fn standing(&self, now: Time, id: EndId, whole: &ProcessStanding) -> Option<Standing> {
        let end = self.ends.get(id)?;
        let ProcessStanding { is_busy, waits_for, cause, least_lead, crossing } = whole.clone();
        let begun =
            self.begun(end.question.as_ref().and_then(|question| question.operation.as_ref()));
        Some(Standing {
            end: end.end(now),
            me: self.me(Some(id)),
            is_busy,
            waits_for,
            cause,
            least_lead,
            begun,
            crossing,
        })
    }

    /// Whether this process has begun `operation`.
    fn begun(&self, operation: Option<&Operation>) -> Begun {
        operation.map_or(Begun::Unknown, |operation| begun(&self.progress, operation))
    }

    /// This process's identity, for the peer of an end.
    pub fn me(&self, id: Option<EndId>) -> Identity {
        Identity { rank: self.ends.rank(id).or(self.me.rank), ..self.me.clone() }
    }

    /// This process, if it seems to have begun operations in another order.
    fn own_crossing(&self, now: Time) -> Option<Crossing> {
        let mine = || self.ends.iter().filter_map(|(_, end)| end.peer_is_elsewhere(now));
        let asked = |end: &'_ LocalEnd| end.asked.is_some_and(|asked| now < asked + FRESH);
        let owed = self.ends.iter().filter(|(_, end)| asked(end)).filter_map(|(_, end)| {
            let operation = end.question.as_ref()?.operation.as_ref()?;
            matches!(self.begun(Some(operation)), Begun::No(_)).then_some(operation.communicator)
        });
        let first = mine().next()?.communicator;
        let owed: Vec<u64> = owed.collect();
        let is_one =
            mine().all(|one| one.communicator == first) && owed.iter().all(|one| *one == first);
        let ends = u16::try_from(mine().count() + owed.len()).unwrap_or(u16::MAX);
        (!owed.is_empty() && !is_one).then(|| Crossing { ends, who: self.me(None) })
    }

    /// The likeliest process that seems to have begun operations in another order, of this one and
    /// those that it waits for.
    fn crossing(&self, now: Time) -> Option<Crossing> {
        let told = self.ends.iter().filter_map(|(_, end)| end.standing(now)?.crossing.clone());
        told.chain(self.own_crossing(now)).reduce(Crossing::likelier)
    }

    /// Whether this process and the one at `end` have begun operations in different orders: the other
    /// one has begun something else, and says the same of this process, so it waits for it in the end.
    fn is_crossed(&self, now: Time, end: &LocalEnd) -> bool {
        let is_this = |who: &Identity| (&who.host, who.pid) == (&self.me.host, self.me.pid);
        let told = end.standing(now).and_then(|standing| standing.crossing.as_ref());
        end.peer_is_elsewhere(now).is_some()
            && told.is_some_and(|crossing| is_this(&crossing.who))
            && self.own_crossing(now).is_some()
    }

    /// The nearest known cause of an end's wait.
    fn cause_of(&self, now: Time, id: EndId, end: &LocalEnd) -> Option<Cause> {
        let mut verdict = end.verdict(now);
        if self.is_crossed(now, end) {
            verdict = Verdict::OrderDiffers;
        }
        if verdict.is_cause() {
            return Some(Cause {
                verdict,
                near: self.me(Some(id)),
                far: end.peer(),
                depth: 1,
                age_ms: 0,
                waited_ms: end.end(now).still_ms,
                operation: end.operation.clone(),
                begun: end.begun(now),
                recovery: end.recovery.clone(),
            });
        }
        let (came, _) = end.answer.as_ref()?;
        let cause = end.standing(now).filter(|_| verdict == Verdict::PeerWaits)?.cause.clone()?;
        let age = Duration::from_millis(cause.age_ms.into()) + now.saturating_sub(*came);
        let is_known = age < MAX_AGE && cause.depth < MAX_DEPTH;
        is_known.then(|| Cause { depth: cause.depth + 1, age_ms: millis(age), ..cause })
    }

    /// The nearest cause of all waits of this process.
    fn cause(&self, now: Time) -> Option<Cause> {
        let waiting = self.ends.iter().filter(|(_, end)| end.is_waiting(now));
        waiting
            .filter_map(|(id, end)| self.cause_of(now, *id, end))
            .min_by(|a, b| (a.depth, &a.far, &a.near).cmp(&(b.depth, &b.far, &b.near)))
    }

    /// The process with the least lead, of this one and those it knows.
    pub fn least_lead(&self, now: Time) -> Option<LeastLead> {
        let received =
            self.ends.iter().filter_map(|(_, end)| end.standing(now)?.least_lead.as_ref());
        let own = LeastLead { lead: self.ends.lead(), who: self.me(None) };
        received.chain([&own]).min().cloned()
    }

    /// What each waiting end waits for, the longest waits first.
    pub fn findings(&self, now: Time) -> Vec<Finding> {
        let waiting = self.ends.iter().filter(|(_, end)| end.snapshot.numbers.is_waiting());
        let finding = |(id, end): (&EndId, &LocalEnd)| {
            let cause = self.cause_of(now, *id, end);
            let own = cause.as_ref().filter(|cause| cause.depth == 1).map(|cause| cause.verdict);
            Finding {
                id: *id,
                age: now.saturating_sub(end.since),
                end: end.end(now),
                verdict: own.unwrap_or_else(|| end.verdict(now)),
                peer: end.peer(),
                theirs: end.standing(now).cloned(),
                cause,
                operation: end.operation.clone(),
                begun: end.begun(now),
            }
        };
        let mut findings: Vec<_> = waiting.map(finding).collect();
        findings.sort_by_key(|finding| (std::cmp::Reverse(finding.age), finding.id));
        findings
    }

    /// A peer that has waited for this process for at least `limit`, if this process waits for no
    /// peer.
    pub fn owed(&self, now: Time, limit: Duration) -> Option<WaitingPeer> {
        if self.ends.are_waiting() || self.ends.iter().any(|(_, end)| end.snapshot.recovers) {
            return None;
        }
        let owed = |(id, end): (&EndId, &LocalEnd)| {
            let theirs = end
                .question
                .as_ref()
                .filter(|_| end.asked.is_some_and(|asked| now < asked + FRESH))?;
            // A process that was stopped finds old questions.
            if now < end.since + FRESH {
                return None;
            }
            let age = Duration::from_millis(theirs.end.still_ms.into());
            let verdict = judge(
                &end.end(now),
                Peer::Answered { end: &theirs.end, waits: false, is_busy: false },
            );
            let is_owed =
                age >= limit && matches!(verdict, Verdict::OwnHasNotSent | Verdict::OwnHasNotAsked);
            let operation = || {
                theirs
                    .operation
                    .clone()
                    .map(|operation| (operation.clone(), self.begun(Some(&operation))))
            };
            is_owed.then(|| WaitingPeer { id: *id, verdict, age, operation: operation() })
        };
        self.ends.iter().find_map(owed)
    }

    /// How many ends were visited since the last call.
    #[cfg(test)]
    pub(super) fn take_reads(&self) -> usize {
        self.ends.take_reads()
    }

    /// Whether an inquiry that was wanted at `since` is finished: the cause is known, or the search
    /// has taken long enough. Before a report is due, this process has asked for some seconds.
    pub fn is_settled(&self, now: Time, since: Time) -> bool {
        let waits = now.saturating_sub(self.longest_wait(now).unwrap_or_default());
        let begun = since.min(self.asks_since.max(waits) + HEAD_START);
        now >= begun + SEARCH_LIMIT || self.cause(now).is_some()
    }
}

/// Whether a peer that has received `told` must receive `standing`: a change of times alone is no
/// news.
fn is_news(told: &Standing, standing: &Standing) -> bool {
    let is_same_cause = match (&told.cause, &standing.cause) {
        (Some(told), Some(cause)) => told.is_same(cause),
        (told, cause) => told.is_none() && cause.is_none(),
    };
    told.begun != standing.begun
        || told.end.numbers != standing.end.numbers
        || told.waits_for != standing.waits_for
        || told.least_lead != standing.least_lead
        || told.crossing != standing.crossing
        || !is_same_cause
}

#[cfg(test)]
mod tests {
    use super::super::numbers::Numbers;
    use super::super::snapshot::{EndCheck, EndSnapshot};
    use super::*;

    #[test]
    fn nccl_makes_no_call_only_if_its_thread_is_never_inside() {
        let snapshot = EndSnapshot {
            numbers: Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false },
            refusals: 0,
            calls: 0,
            has_requests: true,
            recovers: false,
            contact: Contact::Up,
            sender_rank: None,
        };
        let verdict_after = |found: EndCheck| {
            let who = Identity { host: String::new(), pid: 1, rank: None, label: None };
            let mut inquiry = Inquiry::new(who.clone());
            let checked_end = |found: EndCheck| {
                vec![CheckedEnd {
                    id: 0,
                    found,
                    peer: who.clone(),
                    operation: None,
                    recovery: String::new(),
                }]
            };
            inquiry.handle_checked_ends(
                Time::ZERO,
                checked_end(EndCheck::Snapshot(snapshot.clone())),
                Vec::new(),
            );
            let times = (1..=4).map(Duration::from_secs);
            times.for_each(|now| {
                inquiry.handle_checked_ends(now, checked_end(found.clone()), Vec::new())
            });
            let findings = inquiry.findings(Duration::from_secs(4));
            findings
                .iter()
                .map(|finding| (finding.age.as_secs(), finding.verdict))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            verdict_after(EndCheck::Snapshot(snapshot.clone())),
            [(4, Verdict::OwnNotTested)]
        );
        assert_eq!(verdict_after(EndCheck::InCall), [(4, Verdict::Unknown)]);
        assert_eq!(verdict_after(EndCheck::Visited), [(4, Verdict::OwnNotTested)]);
    }
}
