//! What a process knows of the ends of its connections, whom it asks, and what it answers.
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
//! A process asks each peer at most twice a second however many ask it: the search costs a few frames for each connection, and
//! ends by itself at processes that wait for nobody. What is known of a cause grows old on its way and is dropped after
//! [`MAX_AGE`], so nothing is passed round in a circle.

use super::look::{Contact, Found, Sight};
use super::message::{Answer, Cause, LeastLead, MAX_DEPTH, Question, Standing};
use super::numbers::End;
use super::operation::{Begun, Operation, Progress, begun};
use super::verdict::{Peer, Verdict, judge};
use super::watched::{FRESH, SETTLED, Watched, millis};
use crate::proto::control::Time;
use crate::proto::identity::Identity;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Names an end within its process.
pub type EndId = u64;

/// From one question to a peer to the next.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// A cause that was found longer ago is not passed on.
const MAX_AGE: Duration = Duration::from_secs(10);
/// Ends are looked at every second. If it takes so long, this process was stopped meanwhile.
const STOPPED: Duration = Duration::from_secs(5);
/// How long a cause is looked for, once all peers have answered.
pub const SEARCH_LIMIT: Duration = Duration::from_secs(4);

/// What an end waits for, for a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The end.
    pub id: EndId,
    /// How long it has waited.
    pub age: Duration,
    /// How it stands.
    pub end: End,
    /// What it waits for.
    pub verdict: Verdict,
    /// The peer.
    pub peer: Identity,
    /// The peer's end, if it has answered.
    pub theirs: Option<Standing>,
    /// What all this waits for in the end, if it is known.
    pub cause: Option<Cause>,
    /// The operation that the end waits in, if it is known.
    pub operation: Option<Operation>,
    /// Whether the peer has begun it.
    pub begun: Begun,
}

/// A peer that waits for an end of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    /// The end.
    pub id: EndId,
    /// What the peer waits for.
    pub verdict: Verdict,
    /// How long it had waited when it asked.
    pub age: Duration,
    /// The operation that it waits in, if it is known, and whether this process has begun it.
    pub operation: Option<(Operation, Begun)>,
}

/// The state of one process.
#[derive(Debug)]
pub struct Inquiry {
    me: Identity,
    ends: BTreeMap<EndId, Watched>,
    /// The lead of each end when the process last waited for nothing.
    baseline: BTreeMap<EndId, u32>,
    /// When the ends were looked at last.
    looked: Time,
    /// What NCCL has begun in this process.
    progress: Vec<Progress>,
    /// Whether an end that waited has been closed since [`Self::take_lost_wait`] was called last.
    has_lost_wait: bool,
    /// Until when this process asks on its own account.
    asks_until: Time,
    outgoing: VecDeque<(EndId, Message)>,
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
    /// That of the process `me`.
    pub fn new(me: Identity) -> Self {
        Self {
            me,
            ends: BTreeMap::new(),
            baseline: BTreeMap::new(),
            looked: Time::ZERO,
            progress: Vec::new(),
            has_lost_wait: false,
            asks_until: Time::ZERO,
            outgoing: VecDeque::new(),
        }
    }

    /// All ends of the process as they are now, in the order of their numbers, and what NCCL has begun. Ends that cannot be seen stay as
    /// they were seen last.
    ///
    /// If that has not been done for long, this process was stopped: how long anything has stood still is not known.
    pub fn handle_looks(&mut self, now: Time, looks: Vec<Sight>, progress: Vec<Progress>) {
        self.progress = progress;
        if now > std::mem::replace(&mut self.looked, now) + STOPPED {
            self.ends.clear();
        }
        let is_there = |id: &EndId| looks.binary_search_by_key(id, |sight| sight.id).is_ok();
        self.has_lost_wait |= self.ends.iter().any(|(id, end)| !is_there(id) && end.look.numbers.is_waiting());
        self.ends.retain(|id, _| is_there(id));
        self.baseline.retain(|id, _| is_there(id));
        for Sight { id, found, peer, operation } in looks {
            match (self.ends.get_mut(&id), found) {
                (Some(end), Found::Look(look)) => {
                    end.update(now, look);
                    end.operation = operation;
                }
                (Some(end), Found::InCall) => end.called = now,
                (None, Found::Look(look)) => drop(self.ends.insert(id, Watched::new(now, look, peer, operation))),
                (None, Found::InCall) | (_, Found::Visited) => {}
            }
        }
        if !self.ends.values().any(|end| end.look.numbers.is_waiting()) {
            self.baseline = self.ends.iter().map(|(id, end)| (*id, end.look.numbers.lead())).collect();
        }
    }

    /// The operation that the end waits in, if it waits and that is known.
    pub fn operation(&self, id: EndId) -> Option<&Operation> {
        self.ends.get(&id).filter(|end| end.look.numbers.is_waiting())?.operation.as_ref()
    }

    /// How long the end has waited that has waited for longest.
    pub fn longest_wait(&self, now: Time) -> Option<Duration> {
        let waiting = self.ends.values().filter(|end| end.look.numbers.is_waiting());
        waiting.map(|end| now.saturating_sub(end.since)).max()
    }

    /// Whether an end that waited has been closed since this was called last.
    pub fn take_lost_wait(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_wait)
    }

    /// This process wants to know, for the next seconds.
    pub fn ask(&mut self, now: Time) {
        self.asks_until = now + FRESH;
    }

    /// A peer asks. The ends have just been looked at.
    pub fn handle_question(&mut self, now: Time, id: EndId, question: &Question) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        end.asked = Some(now);
        end.question = Some(question.clone());
        end.told = None;
        if let Some(rank) = question.me.rank {
            end.peer.rank = Some(rank);
        }
    }

    /// A peer answers.
    pub fn handle_answer(&mut self, now: Time, id: EndId, answer: Answer) {
        let Some(end) = self.ends.get_mut(&id) else { return };
        // Nobody has asked.
        if end.last_question.is_none_or(|asked| now > asked + FRESH) {
            return;
        }
        (end.answer, end.unanswered) = (Some((now, answer)), None);
    }

    /// Asks and answers what is due. Returns when it is to be called again, if nothing happens before.
    pub fn advance(&mut self, now: Time) -> Option<Time> {
        let is_recent = |asked: &Option<Time>| asked.is_some_and(|asked| now < asked + FRESH);
        let is_asked = self.ends.values().any(|end| is_recent(&end.asked));
        if !is_asked && now >= self.asks_until {
            return None;
        }
        let ids: Vec<_> = self.ends.keys().copied().collect();
        for id in &ids {
            self.ask_peer(now, *id);
        }
        for id in ids {
            if !self.ends.get(&id).is_some_and(|end| is_recent(&end.asked)) {
                continue;
            }
            let standing = self.standing(now, id);
            let Some((end, standing)) = self.ends.get_mut(&id).zip(standing) else { continue };
            if end.told.as_ref().is_none_or(|told| is_news(told, &standing)) {
                end.told = Some(standing.clone());
                self.outgoing.push_back((id, Message::Answer(Answer::Stands(Box::new(standing)))));
            }
        }
        Some(now + ASK_EVERY)
    }

    /// What is to be sent to the peer of an end.
    pub fn poll_message(&mut self) -> Option<(EndId, Message)> {
        self.outgoing.pop_front()
    }

    fn ask_peer(&mut self, now: Time, id: EndId) {
        let me = self.me(Some(id));
        let Some(end) = self.ends.get_mut(&id) else { return };
        let is_due = end.last_question.is_none_or(|last| now >= last + ASK_EVERY);
        if !is_due || !end.is_waiting(now) || end.look.contact != Contact::Up {
            return;
        }
        end.last_question = Some(now);
        end.unanswered = Some(end.unanswered.map_or((now, 1), |(since, count)| (since, count + 1)));
        let question = Question { end: end.end(now), me, operation: end.operation.clone() };
        self.outgoing.push_back((id, Message::Question(question)));
    }

    /// How the end and this process stand.
    fn standing(&self, now: Time, id: EndId) -> Option<Standing> {
        let end = self.ends.get(&id)?;
        let waiting = self.ends.values().find(|end| end.is_waiting(now));
        let is_busy = self.ends.values().any(|end| now < end.since + SETTLED);
        Some(Standing {
            end: end.end(now),
            me: self.me(Some(id)),
            is_busy,
            waits_for: waiting.map(Watched::peer),
            cause: self.cause(now),
            least_lead: waiting.and_then(|_| self.least_lead(now)),
            begun: self.begun(end.question.as_ref().and_then(|question| question.operation.as_ref())),
        })
    }

    /// Whether this process has begun `operation`.
    fn begun(&self, operation: Option<&Operation>) -> Begun {
        operation.map_or(Begun::Unknown, |operation| begun(&self.progress, operation))
    }

    /// This process, as the peer of an end is to know it.
    pub fn me(&self, id: Option<EndId>) -> Identity {
        let own = |end: &Watched| end.look.sender_rank.filter(|_| end.look.numbers.is_sender());
        let of_end = id.and_then(|id| own(self.ends.get(&id)?));
        let mut ranks = self.ends.values().filter_map(own);
        let first = ranks.next();
        let rank = of_end.or_else(|| first.filter(|first| ranks.all(|rank| rank == *first)));
        Identity { rank: rank.or(self.me.rank), ..self.me.clone() }
    }

    /// What an end waits for in the end, as far as it is known: the nearest cause.
    fn cause_of(&self, now: Time, id: EndId, end: &Watched) -> Option<Cause> {
        let verdict = end.verdict(now);
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

    /// Of this process and those that it has heard of, the one with the least lead.
    pub fn least_lead(&self, now: Time) -> Option<LeastLead> {
        let lead = |(id, end): (&EndId, &Watched)| {
            end.look.numbers.lead().wrapping_sub(self.baseline.get(id).copied().unwrap_or(0))
        };
        let own = self.ends.iter().map(lead).fold(0, u32::wrapping_add) as i32;
        let received = self.ends.values().filter_map(|end| end.standing(now)?.least_lead.clone());
        received.chain([LeastLead { lead: own, who: self.me(None) }]).min()
    }

    /// What each end that waits waits for; those that have waited for longest come first.
    pub fn findings(&self, now: Time) -> Vec<Finding> {
        let waiting = self.ends.iter().filter(|(_, end)| end.look.numbers.is_waiting());
        let finding = |(id, end): (&EndId, &Watched)| Finding {
            id: *id,
            age: now.saturating_sub(end.since),
            end: end.end(now),
            verdict: end.verdict(now),
            peer: end.peer(),
            theirs: end.standing(now).cloned(),
            cause: self.cause_of(now, *id, end),
            operation: end.operation.clone(),
            begun: end.begun(now),
        };
        let mut findings: Vec<_> = waiting.map(finding).collect();
        findings.sort_by_key(|finding| (std::cmp::Reverse(finding.age), finding.id));
        findings
    }

    /// A peer that has waited for this process for as long as `limit`, if this process waits for nobody.
    pub fn owed(&self, now: Time, limit: Duration) -> Option<Owed> {
        if self.ends.values().any(|end| end.look.numbers.is_waiting()) {
            return None;
        }
        let owed = |(id, end): (&EndId, &Watched)| {
            let theirs = end.question.as_ref().filter(|_| end.asked.is_some_and(|asked| now < asked + FRESH))?;
            let age = Duration::from_millis(theirs.end.still_ms.into());
            let verdict = judge(&end.end(now), Peer::Answered { end: &theirs.end, waits: false, is_busy: false });
            let is_owed = age >= limit && matches!(verdict, Verdict::OwnHasNotSent | Verdict::OwnHasNotAsked);
            let operation =
                || theirs.operation.clone().map(|operation| (operation.clone(), self.begun(Some(&operation))));
            is_owed.then(|| Owed { id: *id, verdict, age, operation: operation() })
        };
        self.ends.iter().find_map(owed)
    }

    /// Whether nothing more is to be expected of an inquiry that has begun at `since`: the cause is known, or it has been looked for
    /// long enough.
    pub fn is_settled(&self, now: Time, since: Time) -> bool {
        self.cause(now).is_some() || now >= since + SEARCH_LIMIT
    }
}

/// Whether a peer that has been told `told` has to be told `standing`: the time alone is no news.
fn is_news(told: &Standing, standing: &Standing) -> bool {
    let what = |cause: &Cause| Cause { age_ms: 0, waited_ms: 0, ..cause.clone() };
    told.begun != standing.begun
        || told.end.numbers != standing.end.numbers
        || told.waits_for != standing.waits_for
        || told.least_lead != standing.least_lead
        || told.cause.as_ref().map(what) != standing.cause.as_ref().map(what)
}

#[cfg(test)]
mod tests {
    use super::super::look::Look;
    use super::super::numbers::Numbers;
    use super::*;

    #[test]
    fn nccl_makes_no_call_only_if_its_thread_is_never_inside() {
        let look = Look {
            numbers: Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false },
            refusals: 0,
            calls: 0,
            has_requests: true,
            recovers: false,
            contact: Contact::Up,
            sender_rank: None,
        };
        let verdict_after = |found: Found| {
            let who = Identity { host: String::new(), pid: 1, rank: None, label: None };
            let mut inquiry = Inquiry::new(who.clone());
            let sight = |found: Found| vec![Sight { id: 0, found, peer: who.clone(), operation: None }];
            inquiry.handle_looks(Time::ZERO, sight(Found::Look(look.clone())), Vec::new());
            let times = (1..=4).map(Duration::from_secs);
            times.for_each(|now| inquiry.handle_looks(now, sight(found.clone()), Vec::new()));
            let findings = inquiry.findings(Duration::from_secs(4));
            findings.iter().map(|finding| (finding.age.as_secs(), finding.verdict)).collect::<Vec<_>>()
        };
        assert_eq!(verdict_after(Found::Look(look.clone())), [(4, Verdict::OwnNotTested)]);
        assert_eq!(verdict_after(Found::InCall), [(4, Verdict::Unknown)]);
        assert_eq!(verdict_after(Found::Visited), [(4, Verdict::OwnNotTested)]);
    }
}
