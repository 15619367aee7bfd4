//! A process with many ends: how often it visits them.

use crate::control::Time;
use crate::explain::inquiry::{EndId, Finding, Inquiry, Message};
use crate::explain::message::{Answer, LeastLead, Question, Standing};
use crate::explain::numbers::{End, Numbers};
use crate::explain::operation::{Begun, BegunOperations, Call, Function, Operation, PeerRank};
use crate::explain::snapshot::{CheckedEnd, Contact, EndCheck, EndSnapshot};
use crate::explain::verdict::Verdict;
use crate::identity::Identity;
use std::time::Duration;

fn who(pid: u32) -> Identity {
    Identity { host: String::new(), pid, rank: None, label: None }
}

/// A sender whose messages are not acknowledged.
fn checked_end(id: u64) -> CheckedEnd {
    let snapshot = EndSnapshot {
        numbers: Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false },
        refusals: 0,
        calls: 0,
        has_requests: true,
        recovers: false,
        contact: Contact::Up,
        sender_rank: Some(3),
    };
    CheckedEnd {
        id,
        found: EndCheck::Snapshot(snapshot),
        peer: who(id as u32),
        operation: None,
        recovery: String::new(),
    }
}

/// The operation that the peer of an end waits in: the first AllReduce of one of four
/// communicators, which this process has begun.
fn operation(id: u64) -> Operation {
    let call = Call { function: Function::AllReduce, number: Some(0) };
    Operation { call, communicator: id % 4, name: String::new(), peer: PeerRank::Own }
}

/// In no order.
fn progress() -> Vec<BegunOperations> {
    [2, 0, 3, 1]
        .map(|communicator| BegunOperations { communicator, rank: 0, begun: [1; Function::COUNT] })
        .into()
}

/// The peers of all ends ask, and answer.
fn hear_all(inquiry: &mut Inquiry, now: Time, count: u64) {
    let numbers = Numbers::Receiver { posted: 1, announced: 1, arrived: 0, flushes: false };
    let end = End { numbers, recovers: false, is_untested: false, still_ms: 2000 };
    for id in 0..count {
        let (me, begun, least_lead) =
            (who(id as u32), Begun::Unknown, LeastLead { lead: 0, who: who(id as u32) });
        let question = Question { end, me: me.clone(), operation: Some(operation(id)) };
        let (waits_for, least_lead) = (Some(who(u32::MAX)), Some(least_lead));
        let standing = Standing {
            end,
            me,
            is_busy: false,
            waits_for,
            cause: None,
            least_lead,
            begun,
            crossing: None,
        };
        inquiry.handle_question(now, id, &question);
        inquiry.handle_answer(now, id, Answer::Stands(Box::new(standing)));
    }
}

/// The number of visits to ends in a process with this many, which all wait for lost messages.
/// Counted are two checks, questions to all peers, all of their questions and answers, and a
/// report.
fn reads(count: u64) -> usize {
    let mut inquiry = Inquiry::new(who(u32::MAX));
    let now = Duration::from_secs(2);
    for time in [Time::ZERO, now] {
        inquiry.handle_checked_ends(time, (0..count).map(checked_end).collect(), progress());
    }
    inquiry.ask(now);
    inquiry.advance(now);
    hear_all(&mut inquiry, now, count);
    inquiry.advance(now);
    let (answers, questions): (Vec<_>, Vec<_>) = std::iter::from_fn(|| inquiry.poll_message())
        .partition(|(_, message)| matches!(message, Message::Answer(_)));
    let is_right = |(_, message): &(EndId, Message)| match message {
        Message::Answer(Answer::Stands(standing)) => {
            standing.begun == Begun::Yes && standing.cause.is_some()
        }
        _ => false,
    };
    assert_eq!((answers.len(), questions.len()), (count as usize, count as usize));
    assert!(answers.iter().all(is_right), "{answers:?}");
    let is_lost =
        |finding: &Finding| finding.verdict == Verdict::DataLost && finding.cause.is_some();
    let findings = inquiry.findings(now);
    assert!(findings.len() as u64 == count && findings.iter().all(is_lost), "{findings:?}");
    assert!(
        inquiry.is_settled(now, now)
            && inquiry.least_lead(now).is_some()
            && inquiry.owed(now, now).is_none()
    );
    inquiry.take_reads()
}

#[test]
fn ends_are_gone_through_for_each_step_and_not_for_each_end() {
    let [few, many] = [10, 1000].map(|count| reads(count).div_ceil(count as usize));
    assert!(many <= few && few < 40, "of 10 ends each {few} times, of 1000 {many} times");
}
