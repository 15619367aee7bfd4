//! Questions and answers between the processes at both ends of a connection.

use super::numbers::End;
use super::operation::{Begun, Operation};
use super::verdict::Verdict;
use crate::codec::{Reader, Writer};
use crate::identity::Identity;
use crate::{Violation, violation};

/// The search stops at processes that are further away than this.
pub const MAX_DEPTH: u16 = 4096;
/// Longer words of a recovery are truncated.
const MAX_RECOVERY_BYTES: usize = 250;

/// The cause that others wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// What it is, from the view of process `near`. [A cause](Verdict::is_cause).
    pub verdict: Verdict,
    /// The process that has found it, from its own counters and its peer's.
    pub near: Identity,
    /// Its peer.
    pub far: Identity,
    /// The number of connections between it and this process; 1 for a connection of this process.
    pub depth: u16,
    /// Milliseconds since it was found.
    pub age_ms: u32,
    /// How long the end at `near` had waited by then, in milliseconds.
    pub waited_ms: u32,
    /// The operation that `near` waits in, if known.
    pub operation: Option<Operation>,
    /// Whether `far` has begun it.
    pub begun: Begun,
    /// How far a recovery of the connection is, for people; empty: there is none.
    pub recovery: String,
}

impl Cause {
    /// Whether it equals `other` except for the times, and for how far a recovery is.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let what = |one: &Self| (one.verdict, one.depth, one.begun);
        what(self) == what(other)
            && (&self.near, &self.far, &self.operation)
                == (&other.near, &other.far, &other.operation)
    }

    fn emit(&self, to: &mut Writer) {
        to.u8(self.verdict.to_bits());
        self.near.emit(to);
        self.far.emit(to);
        to.u16(self.depth);
        to.u32(self.age_ms);
        to.u32(self.waited_ms);
        emit_operation(self.operation.as_ref(), to);
        self.begun.emit(to);
        let end = (0..=self.recovery.len().min(MAX_RECOVERY_BYTES))
            .rev()
            .find(|end| self.recovery.is_char_boundary(*end));
        to.name(&self.recovery[..end.unwrap_or(0)]);
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let verdict = Verdict::from_bits(from.u8()?)?;
        let (near, far) = (Identity::parse(from)?, Identity::parse(from)?);
        let (depth, age_ms, waited_ms) = (from.u16()?, from.u32()?, from.u32()?);
        let (operation, begun) = (parse_operation(from)?, Begun::parse(from)?);
        let recovery = from.name()?;
        if !verdict.is_cause() || !(1..=MAX_DEPTH).contains(&depth) {
            return Err(violation!("{verdict:?} at depth {depth} is no cause"));
        }
        Ok(Self { verdict, near, far, depth, age_ms, waited_ms, operation, begun, recovery })
    }
}

fn emit_operation(operation: Option<&Operation>, to: &mut Writer) {
    to.u8(operation.is_some().into());
    operation.iter().for_each(|operation| operation.emit(to));
}

fn parse_operation(from: &mut Reader<'_>) -> Result<Option<Operation>, Violation> {
    if from.flag()? { Operation::parse(from).map(Some) } else { Ok(None) }
}

/// A process that has begun operations of two communicators in another order than its peers, or so
/// it seems: it waits in an operation that a peer has not begun, and a peer waits for it in one of
/// another communicator, which it has not begun. It has, if its peers wait for it in the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crossing {
    /// The connections of both kinds.
    pub ends: u16,
    /// The process.
    pub who: Identity,
}

impl Crossing {
    /// The one that is the likelier of two: the one with more connections.
    pub(super) fn likelier(self, other: Self) -> Self {
        let key = |one: &Self| (std::cmp::Reverse(one.ends), one.who.host.clone(), one.who.pid);
        if key(&self) <= key(&other) { self } else { other }
    }
}

/// A process that has sent little compared with what it has received.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeastLead {
    /// Messages sent minus messages received, since the process was last idle.
    pub lead: i32,
    /// The process.
    pub who: Identity,
}

/// A waiting end asks for the other end's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The waiting end.
    pub end: End,
    /// Its process.
    pub me: Identity,
    /// The operation that it waits in, if known.
    pub operation: Option<Operation>,
}

impl Question {
    /// The body of its frame.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Writer::default();
        self.end.emit(&mut body);
        self.me.emit(&mut body);
        emit_operation(self.operation.as_ref(), &mut body);
        body.0
    }

    /// Parses a frame's body.
    ///
    /// # Errors
    /// The body is invalid.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let mut from = Reader(body);
        let (end, me) = (End::parse(&mut from)?, Identity::parse(&mut from)?);
        let question = Self { end, me, operation: parse_operation(&mut from)? };
        from.end().map(|()| question)
    }
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// NCCL has not accepted the connection yet.
    NotAccepted,
    /// The state of the other end and its process.
    Stands(Box<Standing>),
}

/// The state of an end and its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The end that was asked.
    pub end: End,
    /// Its process.
    pub me: Identity,
    /// Whether a connection of the process has moved messages, or begun to wait, within the last
    /// second.
    pub is_busy: bool,
    /// A peer that the process waits for, if any.
    pub waits_for: Option<Identity>,
    /// The final cause of that wait or another one, once known.
    pub cause: Option<Cause>,
    /// The process with the least lead, of all known ones that wait for each other.
    pub least_lead: Option<LeastLead>,
    /// Whether the process has begun the operation in the question.
    pub begun: Begun,
    /// The likeliest of all known processes that seem to have begun operations in another order.
    pub crossing: Option<Crossing>,
}

impl Answer {
    /// The body of its frame.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Writer::default();
        let Self::Stands(standing) = self else { return vec![0] };
        body.u8(1);
        standing.end.emit(&mut body);
        standing.me.emit(&mut body);
        body.u8(standing.is_busy.into());
        body.u8(standing.waits_for.is_some().into());
        standing.waits_for.iter().for_each(|who| who.emit(&mut body));
        body.u8(standing.cause.is_some().into());
        standing.cause.iter().for_each(|cause| cause.emit(&mut body));
        body.u8(standing.least_lead.is_some().into());
        if let Some(least_lead) = &standing.least_lead {
            body.u32(least_lead.lead as u32);
            least_lead.who.emit(&mut body);
        }
        standing.begun.emit(&mut body);
        body.u8(standing.crossing.is_some().into());
        if let Some(Crossing { ends, who }) = &standing.crossing {
            body.u16(*ends);
            who.emit(&mut body);
        }
        body.0
    }

    /// Parses a frame's body.
    ///
    /// # Errors
    /// The body is invalid.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let mut from = Reader(body);
        if !from.flag()? {
            return from.end().map(|()| Self::NotAccepted);
        }
        let standing = Standing {
            end: End::parse(&mut from)?,
            me: Identity::parse(&mut from)?,
            is_busy: from.flag()?,
            waits_for: if from.flag()? { Some(Identity::parse(&mut from)?) } else { None },
            cause: if from.flag()? { Some(Cause::parse(&mut from)?) } else { None },
            least_lead: match from.flag()? {
                true => {
                    Some(LeastLead { lead: from.u32()? as i32, who: Identity::parse(&mut from)? })
                }
                false => None,
            },
            begun: Begun::parse(&mut from)?,
            crossing: match from.flag()? {
                true => Some(Crossing { ends: from.u16()?, who: Identity::parse(&mut from)? }),
                false => None,
            },
        };
        from.end().map(|()| Self::Stands(Box::new(standing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::numbers::Numbers;
    use crate::explain::operation::{Call, Function, PeerRank};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn who(rank: Option<u32>) -> Identity {
        Identity { host: "n-0007".into(), pid: 7, rank, label: Some(3) }
    }

    fn operation(number: Option<u64>) -> Operation {
        let peer = number.map_or(PeerRank::Unknown, |_| PeerRank::Known(3));
        Operation {
            call: Call { function: Function::Recv, number },
            communicator: 7,
            name: "dp".into(),
            peer,
        }
    }

    fn cause() -> Cause {
        Cause {
            verdict: Verdict::DataLost,
            near: who(Some(1)),
            far: who(None),
            depth: 3,
            age_ms: 4,
            waited_ms: 5,
            operation: Some(operation(None)),
            begun: Begun::No(None),
            recovery: "rail 0: up at both ends".into(),
        }
    }

    #[test]
    fn a_cause_is_the_same_at_another_time_and_not_of_other_processes() {
        assert!(cause().is_same(&Cause { age_ms: 9, waited_ms: 9, ..cause() }));
        let others = [
            Cause { depth: 4, ..cause() },
            Cause { near: who(None), ..cause() },
            Cause { far: who(Some(1)), ..cause() },
            Cause { operation: None, ..cause() },
        ];
        assert!(others.iter().all(|other| !cause().is_same(other)));
    }

    fn standing(has_all: bool) -> Answer {
        let numbers = Numbers::Receiver { posted: 3, announced: 2, arrived: 1, flushes: true };
        let end = End { numbers, recovers: false, is_untested: true, still_ms: 99 };
        let cause = cause();
        Answer::Stands(Box::new(Standing {
            end,
            me: who(Some(0)),
            is_busy: false,
            waits_for: has_all.then(|| who(Some(9))),
            cause: has_all.then_some(cause),
            least_lead: has_all.then(|| LeastLead { lead: -3, who: who(None) }),
            begun: if has_all { Begun::No(Some(6)) } else { Begun::Yes },
            crossing: has_all.then(|| Crossing { ends: 4, who: who(Some(2)) }),
        }))
    }

    fn question() -> Question {
        let numbers = Numbers::Sender { seen: 3, sent: 2, acknowledged: 1, wants: true };
        let end = End { numbers, recovers: true, is_untested: false, still_ms: 1 << 20 };
        Question { end, me: who(Some(5)), operation: Some(operation(Some(8))) }
    }

    proptest! {
        #[test]
        fn changed_bytes_are_another_message_or_refused(has_all: bool, changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
                                                        cut in any::<prop::sample::Index>(), is_cut: bool) {
            for good in [question().body(), standing(has_all).body(), Answer::NotAccepted.body()] {
                let mut body = good;
                for (at, byte) in &changes {
                    *at.get_mut(&mut body) = *byte;
                }
                if is_cut {
                    body.truncate(cut.index(body.len()));
                }
                // Invalid bytes take more space once parsed, and may be truncated when encoded
                // again.
                let is_utf8 = body.is_ascii();
                if let Ok(answer) = Answer::parse(&body) {
                    if let Answer::Stands(standing) = &answer {
                        prop_assert!(standing.cause.as_ref().is_none_or(|c| c.verdict.is_cause() && c.depth <= MAX_DEPTH));
                    }
                    let again = Answer::parse(&answer.body());
                    prop_assert!(again == Ok(answer) || !is_utf8, "{again:?}");
                }
                if let Ok(question) = Question::parse(&body) {
                    let again = Question::parse(&question.body());
                    prop_assert!(again == Ok(question) || !is_utf8, "{again:?}");
                }
            }
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(body in vec(any::<u8>(), 0..600)) {
            let _ = (Question::parse(&body), Answer::parse(&body));
        }
    }

    #[test]
    fn what_is_said_of_a_recovery_is_cut_at_a_character() {
        let Answer::Stands(good) = standing(true) else { unreachable!("it stands") };
        let said = Some(Cause { recovery: format!("a{}", "é".repeat(200)), ..cause() });
        let long = Answer::Stands(Box::new(Standing { cause: said, ..*good }));
        let Ok(Answer::Stands(read)) = Answer::parse(&long.body()) else { panic!("it is valid") };
        let words = read.cause.expect("it is there").recovery;
        assert!(words == format!("a{}", "é".repeat(124)), "{words}");
    }

    #[test]
    fn what_is_no_cause_or_too_far_away_is_refused() {
        let Answer::Stands(good) = standing(true) else { unreachable!("it stands") };
        let with = |verdict, depth| {
            let cause = good.cause.clone().map(|cause| Cause { verdict, depth, ..cause });
            Answer::parse(&Answer::Stands(Box::new(Standing { cause, ..(*good).clone() })).body())
        };
        assert!(with(Verdict::Flush, 1).is_ok() && with(Verdict::Flush, MAX_DEPTH).is_ok());
        for (verdict, depth) in
            [(Verdict::PeerWaits, 1), (Verdict::Flush, 0), (Verdict::Flush, MAX_DEPTH + 1)]
        {
            assert!(with(verdict, depth).is_err(), "{verdict:?} {depth}");
        }
    }

    #[test]
    fn messages_are_read_as_written_and_refused_one_byte_short_or_long() {
        for answer in [standing(true), standing(false), Answer::NotAccepted] {
            let body = answer.body();
            assert_eq!(Answer::parse(&body), Ok(answer));
            assert!(
                Answer::parse(&body[..body.len() - 1]).is_err()
                    && Answer::parse(&[body, vec![0]].concat()).is_err()
            );
        }
        let body = question().body();
        assert_eq!(Question::parse(&body), Ok(question()));
        assert!(
            Question::parse(&body[..body.len() - 1]).is_err()
                && Question::parse(&[body, vec![0]].concat()).is_err()
        );
    }
}
