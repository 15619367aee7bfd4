//! Tests of [`Inquiry`], one process at a time.

use crate::control::Time;
use crate::explain::inquiry::{EndId, HEAD_START, Inquiry, Message, SEARCH_LIMIT};
use crate::explain::local_end::{FRESH, millis};
use crate::explain::message::{Answer, Cause, LeastLead, MAX_DEPTH, Question, Standing};
use crate::explain::numbers::{End, Numbers};
use crate::explain::operation::{Begun, BegunOperations, Call, Function, Operation, PeerRank};
use crate::explain::snapshot::{CheckedEnd, Contact, EndCheck, EndSnapshot};
use crate::explain::verdict::Verdict;
use crate::identity::Identity;
use std::time::Duration;

fn who(rank: Option<u32>) -> Identity {
    Identity { host: "n".into(), pid: 1, rank, label: None }
}

fn snapshot(numbers: Numbers) -> EndSnapshot {
    let (has_requests, recovers, sender_rank) = (false, false, Some(3));
    EndSnapshot {
        numbers,
        refusals: 0,
        calls: 0,
        has_requests,
        recovers,
        contact: Contact::Up,
        sender_rank,
    }
}

fn checked_end(id: EndId, numbers: Numbers) -> CheckedEnd {
    CheckedEnd {
        id,
        found: EndCheck::Snapshot(snapshot(numbers)),
        peer: who(None),
        operation: None,
        recovery: String::new(),
    }
}

const SENT: Numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false };
const POSTED: Numbers = Numbers::Receiver { posted: 1, announced: 1, arrived: 0, flushes: false };
const IDLE: Numbers = Numbers::Receiver { posted: 0, announced: 0, arrived: 0, flushes: false };

#[test]
fn an_end_that_waited_and_is_closed_is_reported_once() {
    let mut inquiry = Inquiry::new(who(None));
    inquiry.handle_checked_ends(
        Time::ZERO,
        vec![checked_end(0, IDLE), checked_end(1, SENT)],
        Vec::new(),
    );
    inquiry.handle_checked_ends(Time::ZERO, vec![checked_end(1, SENT)], Vec::new());
    assert!(!inquiry.take_lost_wait(), "that one waited for nothing");
    inquiry.handle_checked_ends(Time::ZERO, Vec::new(), Vec::new());
    assert_eq!([inquiry.take_lost_wait(), inquiry.take_lost_wait()], [true, false]);
}

#[test]
fn a_process_has_the_rank_that_it_sends_with() {
    let mut inquiry = Inquiry::new(who(None));
    assert_eq!(inquiry.me(None).rank, None);
    inquiry.handle_checked_ends(Time::ZERO, vec![checked_end(0, POSTED)], Vec::new());
    assert_eq!(inquiry.me(None).rank, None, "3 is the rank of the peer");
    inquiry.handle_checked_ends(
        Time::ZERO,
        vec![checked_end(0, POSTED), checked_end(1, SENT)],
        Vec::new(),
    );
    assert_eq!([None, Some(0), Some(1)].map(|id| inquiry.me(id).rank), [Some(3); 3]);
    assert_eq!(Inquiry::new(who(Some(9))).me(None).rank, Some(9));
}

#[test]
fn the_operation_of_an_end_is_known_while_it_waits() {
    let call = Call { function: Function::AllReduce, number: Some(1) };
    let operation = Operation { call, communicator: 1, name: String::new(), peer: PeerRank::Own };
    let mut inquiry = Inquiry::new(who(None));
    for (numbers, expected) in [(SENT, Some(&operation)), (IDLE, None)] {
        let seen = CheckedEnd { operation: Some(operation.clone()), ..checked_end(0, numbers) };
        inquiry.handle_checked_ends(Time::ZERO, vec![seen], Vec::new());
        assert_eq!(inquiry.operation(0), expected);
    }
}

/// What a peer that has waited for so long is owed, asked `asked` ago, when this process has waited
/// for nothing for as long as `still`.
fn owed(waited: Duration, asked: Duration, limit: Duration, still: Duration) -> Option<Verdict> {
    let mut inquiry = Inquiry::new(who(None));
    inquiry.handle_checked_ends(Time::ZERO, vec![checked_end(0, UNSENT)], Vec::new());
    let end =
        End { numbers: POSTED, recovers: false, is_untested: false, still_ms: millis(waited) };
    inquiry.handle_question(still, 0, &Question { end, me: who(None), operation: None });
    inquiry.owed(still + asked, limit).map(|owed| owed.verdict)
}

#[test]
fn a_peer_that_has_waited_long_enough_is_owed_as_long_as_its_question_is_fresh() {
    let second = Duration::from_secs(1);
    let nano = Duration::from_nanos(1);
    let owed = |waited, asked, limit| owed(waited, asked, limit, FRESH);
    assert_eq!(owed(5 * second, Duration::ZERO, 5 * second), Some(Verdict::OwnHasNotSent));
    assert_eq!(owed(4 * second, Duration::ZERO, 5 * second), None);
    assert_eq!(owed(6 * second, FRESH - nano, 5 * second), Some(Verdict::OwnHasNotSent));
    assert_eq!(owed(6 * second, FRESH, 5 * second), None);
}

/// It finds what it was asked meanwhile, which NCCL may be about to do.
#[test]
fn a_process_that_was_stopped_owes_nothing_at_first() {
    let second = Duration::from_secs(1);
    let verdict = |still| owed(60 * second, Duration::ZERO, 5 * second, still);
    assert_eq!([verdict(Duration::ZERO), verdict(2 * second)], [None; 2]);
    assert_eq!(verdict(FRESH), Some(Verdict::OwnHasNotSent));
}

/// A peer's numbers when it has not sent what [`POSTED`] waits for.
const UNSENT: Numbers = Numbers::Sender { seen: 1, sent: 0, acknowledged: 0, wants: false };
const START: Time = Duration::from_secs(2);

/// How the peer stands that has not sent, because it waits for rank 9, with `cause`.
fn standing(cause: Option<Cause>) -> Standing {
    Standing {
        end: End { numbers: UNSENT, recovers: false, is_untested: false, still_ms: 5000 },
        me: who(Some(8)),
        is_busy: false,
        waits_for: Some(who(Some(9))),
        cause,
        least_lead: None,
        begun: Begun::Unknown,
        crossing: None,
    }
}

fn cause(depth: u16, age_ms: u32) -> Cause {
    let verdict = Verdict::PeerHasNotSent;
    let (near, far) = (who(Some(8)), who(Some(9)));
    Cause {
        verdict,
        near,
        far,
        depth,
        age_ms,
        waited_ms: 1,
        operation: None,
        begun: Begun::Unknown,
        recovery: String::new(),
    }
}

/// A process whose only end has waited for two seconds, and has asked its peer.
fn asking() -> Inquiry {
    let mut inquiry = Inquiry::new(who(None));
    inquiry.handle_checked_ends(Time::ZERO, vec![checked_end(0, POSTED)], Vec::new());
    inquiry.handle_checked_ends(START, vec![checked_end(0, POSTED)], Vec::new());
    inquiry.ask(START);
    assert_eq!(inquiry.advance(START), Some(START + Duration::from_millis(500)));
    assert!(matches!(inquiry.poll_message(), Some((0, Message::Question(_)))));
    inquiry
}

/// What the end waits for `later` after its peer has answered so.
fn found(answer: Standing, later: Duration) -> Option<Cause> {
    let mut inquiry = asking();
    inquiry.handle_answer(START, 0, Answer::Stands(Box::new(answer)));
    inquiry.findings(START + later).remove(0).cause
}

#[test]
fn an_inquiry_is_settled_by_a_cause_or_after_a_time() {
    let mut inquiry = asking();
    let just_before = START + SEARCH_LIMIT - Duration::from_nanos(1);
    assert!(!inquiry.is_settled(START, START) && !inquiry.is_settled(just_before, START));
    assert!(inquiry.is_settled(START + SEARCH_LIMIT, START));
    inquiry.handle_answer(START, 0, Answer::Stands(Box::new(standing(Some(cause(1, 1))))));
    assert!(inquiry.is_settled(START, START));
}

#[test]
fn an_inquiry_that_is_wanted_after_questions_takes_the_less_time() {
    let (inquiry, wanted) = (asking(), START + Duration::from_secs(3));
    let settled = START + HEAD_START + SEARCH_LIMIT;
    let just_before = settled - Duration::from_nanos(1);
    assert!(!inquiry.is_settled(just_before, wanted) && inquiry.is_settled(settled, wanted));
    let mut inquiry = asking();
    inquiry.ask(wanted + FRESH);
    assert!(!inquiry.is_settled(settled, wanted), "there was a pause");
}

#[test]
fn a_cause_grows_by_a_step_and_older_and_is_dropped_at_the_limits() {
    let milli = Duration::from_millis(1);
    assert_eq!(found(standing(Some(cause(3, 40))), 7 * milli), Some(cause(4, 47)));
    assert_eq!(found(standing(Some(cause(MAX_DEPTH - 1, 0))), milli), Some(cause(MAX_DEPTH, 1)));
    assert_eq!(found(standing(Some(cause(MAX_DEPTH, 0))), milli), None);
    assert_eq!(found(standing(Some(cause(1, 9998))), milli), Some(cause(2, 9999)));
    assert_eq!(found(standing(Some(cause(1, 9999))), milli), None);
    assert_eq!(found(standing(None), milli), None);
}

#[test]
fn an_answer_is_taken_as_long_as_its_question_is_fresh() {
    for (later, is_taken) in [(FRESH, true), (FRESH + Duration::from_nanos(1), false)] {
        let mut inquiry = asking();
        inquiry.handle_answer(START + later, 0, Answer::Stands(Box::new(standing(None))));
        let findings = inquiry.findings(START + later);
        assert_eq!(findings[0].theirs.is_some(), is_taken);
        assert_eq!(
            findings[0].peer.rank,
            if is_taken { Some(8) } else { Some(3) },
            "3 is the rank that messages tell"
        );
    }
}

/// Whether a peer that has had an answer gets another one, after `change`, when nothing
/// else has happened.
fn is_reported_again(change: impl Fn(&mut Inquiry)) -> bool {
    let mut inquiry = Inquiry::new(who(None));
    let checked_ends = || vec![checked_end(0, UNSENT), checked_end(1, POSTED)];
    let end = End { numbers: POSTED, recovers: false, is_untested: false, still_ms: 5000 };
    inquiry.handle_checked_ends(Time::ZERO, checked_ends(), Vec::new());
    inquiry.handle_checked_ends(START, checked_ends(), Vec::new());
    inquiry.handle_question(START, 0, &Question { end, me: who(None), operation: None });
    assert_eq!(inquiry.advance(START), Some(START + Duration::from_millis(500)));
    let told = |inquiry: &mut Inquiry| {
        let messages: Vec<_> = std::iter::from_fn(|| inquiry.poll_message()).collect();
        messages
            .iter()
            .filter(|(id, message)| *id == 0 && matches!(message, Message::Answer(_)))
            .count()
    };
    assert_eq!(told(&mut inquiry), 1);
    change(&mut inquiry);
    inquiry.advance(START);
    told(&mut inquiry) == 1
}

#[test]
fn a_peer_is_reported_what_is_new_and_no_more() {
    let answer = |answer: Standing| {
        move |inquiry: &mut Inquiry| {
            inquiry.handle_answer(START, 1, Answer::Stands(Box::new(answer.clone())))
        }
    };
    assert!(!is_reported_again(|_| ()));
    assert!(is_reported_again(|inquiry| {
        let sent = Numbers::Sender { seen: 2, sent: 0, acknowledged: 0, wants: false };
        inquiry.handle_checked_ends(
            START,
            vec![checked_end(0, sent), checked_end(1, POSTED)],
            Vec::new(),
        );
    }));
    assert!(is_reported_again(answer(standing(Some(cause(1, 0))))), "a cause");
    let lead = Standing {
        least_lead: Some(LeastLead { lead: -7, who: who(Some(5)) }),
        me: who(Some(3)),
        ..standing(None)
    };
    assert!(is_reported_again(answer(lead)), "a lesser lead");
    assert!(is_reported_again(answer(standing(None))), "the rank of who is waited for");
}

/// What three processes in a circle name as the cause. Each receives from the next one, and waits
/// for it in the first operation of a communicator; `begun` says in which communicators each has
/// begun that.
fn causes_of_a_circle(waits_in: [u64; 3], begun: [&[u64]; 3]) -> Vec<Option<Cause>> {
    let process = |pid: usize| Identity { pid: pid as u32, ..who(None) };
    let mut all = [0, 1, 2].map(|pid| Inquiry::new(process(pid)));
    let checked_ends = |pid: usize| {
        let operation = Operation {
            call: Call { function: Function::AllReduce, number: Some(0) },
            communicator: waits_in[pid],
            name: String::new(),
            peer: PeerRank::Known(((pid + 1) % 3) as u32),
        };
        let to = CheckedEnd { peer: process((pid + 2) % 3), ..checked_end(0, UNSENT) };
        let from = checked_end(1, POSTED);
        vec![to, CheckedEnd { peer: process((pid + 1) % 3), operation: Some(operation), ..from }]
    };
    let progress = |pid: usize| -> Vec<BegunOperations> {
        let of = |communicator| {
            let mut counts = [0; Function::COUNT];
            counts[Function::AllReduce as usize] = begun[pid].contains(&communicator).into();
            BegunOperations { communicator, rank: pid as u32, begun: counts }
        };
        [1, 2].map(of).into()
    };
    let mut now = Time::ZERO;
    for _ in 0..20 {
        now += Duration::from_millis(250);
        for (pid, inquiry) in all.iter_mut().enumerate() {
            inquiry.handle_checked_ends(now, checked_ends(pid), progress(pid));
            inquiry.ask(now);
        }
        for pid in [0, 1, 2].repeat(4) {
            all[pid].advance(now);
            while let Some((end, message)) = all[pid].poll_message() {
                let (to, other) = if end == 0 { ((pid + 2) % 3, 1) } else { ((pid + 1) % 3, 0) };
                match message {
                    Message::Question(question) => all[to].handle_question(now, other, &question),
                    Message::Answer(answer) => all[to].handle_answer(now, other, answer),
                }
            }
        }
    }
    all.iter().map(|inquiry| inquiry.findings(now).remove(0).cause).collect()
}

#[test]
fn all_name_the_process_that_has_begun_operations_of_two_communicators_in_another_order() {
    let causes = causes_of_a_circle([2, 1, 1], [&[2], &[1], &[1]]);
    for (pid, cause) in causes.into_iter().enumerate() {
        let cause = cause.expect("it is known");
        let named = (cause.verdict, cause.near.pid, cause.far.pid);
        assert_eq!(named, (Verdict::OrderDiffers, 0, 1), "process {pid}");
    }
}

/// Process 0 waits for 1 in communicator 1, and 1 for 0, as in a ring that goes both ways. 0 also
/// waits for 2, which has not begun that operation, since it waits for 3 in communicator 3. 4 waits
/// for 0 in communicator 2, which 0 has not begun. Nobody has another order: 3 is late.
#[test]
fn a_neighbour_that_repeats_what_it_has_heard_is_no_proof_of_another_order() {
    // A rank, the rank that it receives from, and the communicator of its first operation.
    const EDGES: [(usize, usize, u64); 5] = [(0, 1, 1), (1, 0, 1), (0, 2, 1), (2, 3, 3), (4, 0, 2)];
    let begun: [&[u64]; 5] = [&[1], &[1], &[3], &[], &[2]];
    let process = |pid: usize| Identity { pid: pid as u32, ..who(None) };
    let mut all = [0, 1, 2, 3, 4].map(|pid| Inquiry::new(process(pid)));
    let checked_ends = |pid: usize| {
        let checked_end = |(id, &(to, from, communicator)): (usize, &(usize, usize, u64))| {
            let call = Call { function: Function::AllReduce, number: Some(0) };
            let peer = PeerRank::Known(from as u32);
            let operation = Operation { call, communicator, name: String::new(), peer };
            let id = id as u64;
            if to == pid {
                let peer = process(from);
                Some(CheckedEnd { peer, operation: Some(operation), ..checked_end(id, POSTED) })
            } else {
                (from == pid).then(|| CheckedEnd { peer: process(to), ..checked_end(id, UNSENT) })
            }
        };
        EDGES.iter().enumerate().filter_map(checked_end).collect()
    };
    let progress = |pid: usize| {
        let of = |communicator| {
            let mut counts = [0; Function::COUNT];
            counts[Function::AllReduce as usize] = begun[pid].contains(&communicator).into();
            BegunOperations { communicator, rank: pid as u32, begun: counts }
        };
        EDGES
            .iter()
            .filter(|(to, from, _)| pid == *to || pid == *from)
            .map(|(.., communicator)| of(*communicator))
            .collect()
    };
    let mut now = Time::ZERO;
    for _ in 0..40 {
        now += Duration::from_millis(250);
        for (pid, inquiry) in all.iter_mut().enumerate() {
            inquiry.handle_checked_ends(now, checked_ends(pid), progress(pid));
            inquiry.ask(now);
        }
        for pid in [0, 1, 2, 3, 4].repeat(4) {
            all[pid].advance(now);
            while let Some((end, message)) = all[pid].poll_message() {
                let (to, from, _) = EDGES[end as usize];
                let other = &mut all[if pid == to { from } else { to }];
                match message {
                    Message::Question(question) => other.handle_question(now, end, &question),
                    Message::Answer(answer) => other.handle_answer(now, end, answer),
                }
            }
        }
    }
    for inquiry in &all {
        for finding in inquiry.findings(now) {
            let Some(cause) = finding.cause else { continue };
            assert_eq!((cause.near.pid, cause.far.pid), (2, 3), "{:?}", cause.verdict);
        }
    }
    assert!(all[0].findings(now).iter().any(|finding| finding.cause.is_some()));
}

/// A GPU may stand still: the operations themselves are begun in one order.
#[test]
fn where_all_have_begun_what_is_waited_for_no_order_is_named() {
    for begun in [[&[1, 2][..]; 3], [&[2, 1], &[1], &[1]], [&[2], &[1, 2], &[1]]] {
        assert_eq!(causes_of_a_circle([2, 1, 1], begun), [None, None, None], "{begun:?}");
    }
    let one = causes_of_a_circle([1, 1, 1], [&[1], &[1], &[1]]);
    assert_eq!(one, [None, None, None]);
}

/// A process whose other connection recovers is not at fault: its peer hears of the recovery.
#[test]
fn a_process_that_owes_while_another_connection_recovers_names_the_recovery() {
    let recovering = EndSnapshot { recovers: true, ..snapshot(IDLE) };
    let other = || CheckedEnd {
        found: EndCheck::Snapshot(recovering.clone()),
        recovery: "recovering: rail 0".into(),
        ..checked_end(1, IDLE)
    };
    let mut inquiry = Inquiry::new(who(None));
    for now in [Time::ZERO, START + FRESH] {
        inquiry.handle_checked_ends(now, vec![checked_end(0, UNSENT), other()], Vec::new());
    }
    let now = START + FRESH;
    let end = End { numbers: POSTED, recovers: false, is_untested: false, still_ms: 9000 };
    inquiry.handle_question(now, 0, &Question { end, me: who(None), operation: None });
    assert_eq!(inquiry.owed(now, START), None);
    inquiry.advance(now);
    let answers = std::iter::from_fn(|| inquiry.poll_message()).find_map(|(_, one)| match one {
        Message::Answer(Answer::Stands(standing)) => standing.cause,
        _ => None,
    });
    let cause = answers.expect("it is known");
    assert_eq!(
        (cause.verdict, cause.recovery.as_str()),
        (Verdict::Recovering, "recovering: rail 0")
    );
}
