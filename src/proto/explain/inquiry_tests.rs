//! Tests of [`Inquiry`], one process at a time.

use super::inquiry::{EndId, Inquiry};
use super::look::{Contact, Found, Look, Sight};
use super::message::Question;
use super::numbers::{End, Numbers};
use super::operation::{Call, Function, Operation, PeerRank};
use super::verdict::Verdict;
use super::watched::{FRESH, millis};
use crate::proto::control::Time;
use crate::proto::identity::Identity;
use std::time::Duration;

fn who(rank: Option<u32>) -> Identity {
    Identity { host: "n".into(), pid: 1, rank, label: None }
}

fn look(numbers: Numbers) -> Look {
    let (has_requests, recovers, sender_rank) = (false, false, Some(3));
    Look { numbers, refusals: 0, calls: 0, has_requests, recovers, contact: Contact::Up, sender_rank }
}

fn sight(id: EndId, numbers: Numbers) -> Sight {
    Sight { id, found: Found::Look(look(numbers)), peer: who(None), operation: None }
}

const SENT: Numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false };
const POSTED: Numbers = Numbers::Receiver { posted: 1, announced: 1, arrived: 0, flushes: false };
const IDLE: Numbers = Numbers::Receiver { posted: 0, announced: 0, arrived: 0, flushes: false };

#[test]
fn an_end_that_waited_and_is_closed_is_told_once() {
    let mut inquiry = Inquiry::new(who(None));
    inquiry.handle_looks(Time::ZERO, vec![sight(0, IDLE), sight(1, SENT)], Vec::new());
    inquiry.handle_looks(Time::ZERO, vec![sight(1, SENT)], Vec::new());
    assert!(!inquiry.take_lost_wait(), "that one waited for nothing");
    inquiry.handle_looks(Time::ZERO, Vec::new(), Vec::new());
    assert_eq!([inquiry.take_lost_wait(), inquiry.take_lost_wait()], [true, false]);
}

#[test]
fn a_process_has_the_rank_that_it_sends_with() {
    let mut inquiry = Inquiry::new(who(None));
    assert_eq!(inquiry.me(None).rank, None);
    inquiry.handle_looks(Time::ZERO, vec![sight(0, POSTED)], Vec::new());
    assert_eq!(inquiry.me(None).rank, None, "3 is the rank of the peer");
    inquiry.handle_looks(Time::ZERO, vec![sight(0, POSTED), sight(1, SENT)], Vec::new());
    assert_eq!([None, Some(0), Some(1)].map(|id| inquiry.me(id).rank), [Some(3); 3]);
    assert_eq!(Inquiry::new(who(Some(9))).me(None).rank, Some(9));
}

#[test]
fn the_operation_of_an_end_is_known_while_it_waits() {
    let call = Call { function: Function::AllReduce, number: Some(1) };
    let operation = Operation { call, communicator: 1, name: String::new(), peer: PeerRank::Own };
    let mut inquiry = Inquiry::new(who(None));
    for (numbers, expected) in [(SENT, Some(&operation)), (IDLE, None)] {
        let seen = Sight { operation: Some(operation.clone()), ..sight(0, numbers) };
        inquiry.handle_looks(Time::ZERO, vec![seen], Vec::new());
        assert_eq!(inquiry.operation(0), expected);
    }
}

/// What a peer that has waited for so long is owed, asked `asked` ago, when this process waits for nothing.
fn owed(waited: Duration, asked: Duration, limit: Duration) -> Option<Verdict> {
    let mut inquiry = Inquiry::new(who(None));
    inquiry.handle_looks(
        Time::ZERO,
        vec![sight(0, Numbers::Sender { seen: 1, sent: 0, acknowledged: 0, wants: false })],
        Vec::new(),
    );
    let end = End { numbers: POSTED, recovers: false, is_untested: false, still_ms: millis(waited) };
    inquiry.handle_question(Time::ZERO, 0, &Question { end, me: who(None), operation: None });
    inquiry.owed(asked, limit).map(|owed| owed.verdict)
}

#[test]
fn a_peer_that_has_waited_long_enough_is_owed_as_long_as_its_question_is_fresh() {
    let second = Duration::from_secs(1);
    let nano = Duration::from_nanos(1);
    assert_eq!(owed(5 * second, Duration::ZERO, 5 * second), Some(Verdict::OwnHasNotSent));
    assert_eq!(owed(4 * second, Duration::ZERO, 5 * second), None);
    assert_eq!(owed(6 * second, FRESH - nano, 5 * second), Some(Verdict::OwnHasNotSent));
    assert_eq!(owed(6 * second, FRESH, 5 * second), None);
}
