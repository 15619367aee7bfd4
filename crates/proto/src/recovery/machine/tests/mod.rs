//! Tests of one machine against another, and against a peer that says anything.

mod explorer;
mod hostile;
mod out_of_turn;
mod pair;
mod rails;
mod reachable;
mod texts;

use super::*;
use pair::{GIVE_UP, Pair};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn both_ends_see_the_fault_and_it_is_one_attempt() {
    let mut pair = Pair::new(2);
    pair.fault(0);
    pair.fault(1);
    pair.settle();
    assert_eq!(pair.expect_running(), 1);
    assert_eq!(
        pair.names(0),
        ["Fence", "Halt", "Create", "Offer", "Connect", "Ready", "Resume", "Recovered"]
    );
    assert_eq!(
        pair.names(1),
        ["Halt", "Fence", "Connect", "Answer", "Resume", "MissingList", "Recovered"]
    );
}

#[test]
fn a_fault_that_one_end_sees_is_reported_to_the_other() {
    for end in [0, 1] {
        let mut pair = Pair::new(1);
        pair.fault(end);
        pair.settle();
        assert_eq!(pair.expect_running(), 1);
        assert_eq!(pair.ends[1 - end].machine.cause(), "reported by the peer: a fault");
        assert_eq!([0, 1].map(|end| pair.recoveries(end)), [1, 1]);
    }
}

/// Runs a recovery and has `disturb` happen after each number of events. Returns how many there
/// were.
fn disturbed_after_each_event(
    are_jobs_slow: bool,
    first: usize,
    disturb: impl Fn(&mut Pair),
    check: impl Fn(&Pair),
) -> usize {
    for events in 0.. {
        let mut pair = Pair::new(2);
        pair.are_jobs_slow = are_jobs_slow;
        pair.fault(first);
        let count = (0..events).take_while(|_| pair.step()).count();
        disturb(&mut pair);
        pair.pass(Duration::from_millis(900));
        pair.expect_running();
        check(&pair);
        if count < events {
            return events;
        }
    }
    unreachable!("a recovery has a last event")
}

#[test]
fn after_a_second_fault_in_any_state_the_connection_runs_again() {
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for slow in [false, true] {
            let events = disturbed_after_each_event(
                slow,
                first,
                |pair| pair.fault(second),
                |pair| {
                    assert!(pair.expect_running() <= 2);
                },
            );
            assert!(events > 20, "{events}");
        }
    }
}

#[test]
fn after_frames_are_lost_in_any_state_the_connection_runs_again_without_waiting_for_a_timeout() {
    for first in [0, 1] {
        for slow in [false, true] {
            let lose = |pair: &mut Pair| {
                pair.lose();
                // Both continue as far as they can without the other.
                pair.settle();
                pair.back();
            };
            disturbed_after_each_event(slow, first, lose, |pair| {
                assert_eq!(pair.expect_running(), 1)
            });
            let lose_more = |pair: &mut Pair| {
                pair.lose();
                pair.fault(1 - first);
                pair.pass(Duration::from_millis(300));
                pair.back();
            };
            disturbed_after_each_event(slow, first, lose_more, |pair| {
                assert!(pair.expect_running() <= 2)
            });
        }
    }
}

#[test]
fn an_attempt_of_the_peer_supersedes_ones_own_in_any_state() {
    for peer in [0, 1] {
        for slow in [false, true] {
            let supersede = |pair: &mut Pair| {
                // The peer begins one attempt more, whatever it is in.
                let now = pair.now;
                let next = pair.ends[peer].machine.attempt() + 1;
                pair.ends[peer].machine.begin(now, next, "once more".into());
                pair.ends[peer].machine.advance(now);
            };
            disturbed_after_each_event(slow, 0, supersede, |pair| {
                assert!(pair.expect_running() >= 1)
            });
        }
    }
}

#[test]
fn what_cannot_be_created_or_connected_is_tried_again_after_a_pause() {
    for end in [0, 1] {
        let mut pair = Pair::new(1);
        pair.ends[end].refusals = 4;
        pair.fault(0);
        pair.settle();
        assert!(!pair.ends[0].machine.is_running());
        pair.pass(Duration::from_millis(10 + 20 + 40 + 79));
        assert_eq!(pair.ends[end].machine.cause(), "refused");
        assert!(!pair.ends[0].machine.is_running());
        pair.pass(Duration::from_millis(1));
        assert_eq!(pair.expect_running(), 5);
    }
}

#[test]
fn frames_that_come_twice_change_nothing() {
    let mut pair = Pair::new(2);
    pair.comes_twice = true;
    pair.fault(0);
    pair.settle();
    assert_eq!(pair.expect_running(), 1);
    assert_eq!([0, 1].map(|end| pair.recoveries(end)), [1, 1]);
}

#[test]
fn frames_of_earlier_attempts_change_nothing() {
    let mut pair = Pair::new(2);
    pair.fault(0);
    pair.settle();
    let old = pair.said.clone();
    pair.fault(1);
    pair.settle();
    assert_eq!(pair.expect_running(), 2);
    let before = pair.ends.each_ref().map(|end| end.machine.clone());
    for message in old {
        let end = usize::from(matches!(message, Message::Offer { .. } | Message::Ready { .. }));
        assert_eq!(pair.ends[end].machine.handle_message(pair.now, message), Ok(()));
    }
    assert_eq!(before, pair.ends.each_ref().map(|end| end.machine.clone()));
}

#[test]
fn the_missing_list_is_sent_again_when_asked_for_and_over_a_new_control_connection() {
    let mut pair = Pair::new(1);
    pair.fault(0);
    pair.settle();
    let missing_list = |pair: &mut Pair| match pair.ends[1].machine.poll_action() {
        Some(Action::Send(Message::MissingList { attempt, .. })) => attempt,
        other => panic!("{other:?}"),
    };
    pair.ends[1]
        .machine
        .handle_message(pair.now, Message::Ready { attempt: 1, reach: Reach::default() })
        .expect("allowed");
    assert_eq!(missing_list(&mut pair), 1);
    pair.ends[1].machine.handle_back(pair.now);
    assert_eq!(missing_list(&mut pair), 1);
    assert_eq!(pair.ends[1].machine.poll_action(), None);
}

/// A caller that gets no more events makes no more calls.
#[test]
fn a_connection_that_runs_again_is_reported_though_its_frame_is_no_longer_due() {
    let mut pair = Pair::new(1);
    pair.fault(0);
    while !pair.ends[0].inbox.iter().any(|message| matches!(message, Message::MissingList { .. })) {
        assert!(pair.step(), "the receiver is to send its missing list");
    }
    let missing_list = pair.ends[0].inbox.pop_front().expect("it is there");
    pair.ends[0].machine.handle_back(pair.now);
    pair.ends[0].machine.handle_message(pair.now, missing_list).expect("allowed");
    while let Some(action) = pair.ends[0].machine.poll_action() {
        pair.act(0, action);
        pair.finish(0);
    }
    assert!(pair.ends[0].machine.is_running());
    assert_eq!(pair.recoveries(0), 1);
}

#[test]
fn queue_pairs_of_an_attempt_that_the_peer_has_ended_are_not_to_come_into_use() {
    let mut pair = Pair::new(1);
    pair.are_jobs_slow = true;
    pair.fault(0);
    while !pair.ends[1].machine.is_resuming(1) {
        assert!(pair.step(), "the receiver is to go on");
    }
    assert!(!pair.ends[1].machine.is_resuming(2));
    let halt =
        Message::Halt { attempt: 2, usable: RailMask::first(1), cause: "another fault".into() };
    pair.ends[1].machine.handle_message(pair.now, halt).expect("allowed");
    assert!(![1, 2].into_iter().any(|attempt| pair.ends[1].machine.is_resuming(attempt)));
    pair.fault(0);
    pair.pass(SECOND);
    assert!(pair.expect_running() >= 2);
}

#[test]
fn a_peer_that_says_nothing_is_given_up_after_the_time_that_is_set() {
    for end in [0, 1] {
        let mut pair = Pair::new(2);
        pair.lose();
        pair.fault(end);
        pair.pass(GIVE_UP - SECOND);
        assert_eq!(pair.failure(end), None);
        pair.pass(SECOND);
        let text = pair.failure(end).expect("given up");
        for part in ["120 s", "a fault", "0, 1"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!pair.ends[end].machine.is_running());
        pair.fault(end);
        pair.back();
        pair.pass(SECOND);
        assert_eq!(pair.names(end).last().map(String::as_str), Some("Fail"), "nothing follows");
    }
}

const FRAMES: [&str; 4] = ["Offer", "Answer", "Ready", "MissingList"];

/// Both ends in a recovery whose frame of this kind is lost.
fn without_a_frame(kind: &str) -> Pair {
    let mut pair = Pair::new(1);
    pair.fault(0);
    let is_it = |pair: &Pair| {
        pair.said.last().is_some_and(|message| format!("{:?}", message.kind()) == kind)
    };
    while !is_it(&pair) {
        assert!(pair.step(), "{kind} is sent");
    }
    pair.ends.iter_mut().for_each(|end| end.inbox.clear());
    pair.settle();
    pair
}

#[test]
fn a_frame_that_never_comes_begins_another_attempt_after_5_s() {
    for kind in FRAMES {
        let mut pair = without_a_frame(kind);
        assert!(!pair.ends[0].machine.is_running(), "{kind}");
        pair.pass(ANSWER_TIME - Duration::from_millis(1));
        assert!(!pair.ends[0].machine.is_running(), "{kind}");
        pair.pass(Duration::from_millis(20));
        assert_eq!(pair.expect_running(), 2, "{kind}");
    }
}

/// How long the sender waits for the answer to its next offer, which is lost.
fn wait_for_answer(pair: &mut Pair) -> Duration {
    while !matches!(pair.ends[0].machine.state, State::Offered { .. }) {
        if !pair.step() {
            let pause = pair.ends[0].machine.poll_timeout().expect("a pause");
            pair.now = pair.now.max(pause);
            pair.ends[0].machine.handle_timeout(pair.now);
        }
    }
    while pair.ends[0].machine.poll_action().is_some() {}
    pair.ends[0].machine.poll_timeout().expect("it waits") - pair.now
}

/// As where a host has so many connections to recover that each takes longer than the first wait.
#[test]
fn each_answer_that_is_late_gives_the_next_one_twice_the_time_until_the_connection_runs() {
    let mut pair = Pair::new(1);
    for _ in 0..2 {
        pair.fault(0);
        let mut waits = Vec::new();
        for _ in 0..5 {
            let wait = wait_for_answer(&mut pair);
            waits.push(wait.as_secs());
            pair.now += wait;
            pair.ends[0].machine.handle_timeout(pair.now);
        }
        assert_eq!(waits, [5, 10, 20, 40, 40]);
        pair.pass(SECOND);
        pair.expect_running();
        pair.arrived += 1;
        pair.ends.iter_mut().for_each(|end| end.machine.handle_acknowledged());
    }
}

#[test]
fn an_answer_has_the_more_time_the_more_connections_recover() {
    let mut pair = Pair::new(1);
    let mut wait = |others| {
        pair.ends[0].machine.handle_others(others);
        pair.fault(0);
        let wait = wait_for_answer(&mut pair);
        pair.pass(2 * LONGEST_ANSWER_TIME);
        pair.arrived += 1;
        wait.as_secs()
    };
    assert_eq!([wait(0), wait(199), wait(4000), wait(u32::MAX)], [5, 5, 25, 40]);
}

/// What the sender's device has acknowledged before is in the receiver's queues then, where a fence
/// might throw it away.
#[test]
fn the_receiver_fences_after_the_sender_however_long_that_takes() {
    for first in [0, 1] {
        let mut pair = Pair::new(1);
        pair.lose();
        pair.fault(first);
        pair.pass(60 * SECOND);
        let fences = |pair: &Pair| [0, 1].map(|end| pair.names(end).contains(&"Fence".to_owned()));
        assert_eq!(fences(&pair), [first == 0, false]);
        pair.back();
        while fences(&pair) != [true, false] {
            assert!(pair.step(), "the sender is to fence");
        }
        pair.settle();
        pair.expect_running();
        assert_eq!(fences(&pair), [true; 2]);
    }
}

/// Its device may still acknowledge what it never gets to know.
#[test]
fn a_receiver_that_does_not_hear_what_arrives_fences_at_once() {
    let mut pair = Pair::new(1);
    let has_fenced = |pair: &Pair| pair.names(1).contains(&"Fence".to_owned());
    pair.lose();
    pair.fault(1);
    pair.settle();
    assert!(!has_fenced(&pair));
    let now = pair.now;
    pair.ends[1].machine.handle_unreported(now);
    pair.settle();
    assert!(has_fenced(&pair));
    pair.back();
    pair.settle();
    assert_eq!(pair.expect_running(), 1);
    pair.ends[1].machine.handle_unreported(now);
    assert_eq!(pair.expect_running(), 1, "the queues of a connection that runs are others");
}

#[test]
fn the_receiver_is_reported_what_the_senders_test_has_found() {
    let mut pair = Pair::new(1);
    let reach = Reach { limit: Duration::from_millis(70), round_trip: Duration::from_millis(8) };
    pair.ends[0].machine.handle_reach(reach);
    pair.fault(1);
    pair.settle();
    pair.expect_running();
    assert_eq!(pair.ends[1].machine.reach(), reach);
}

#[test]
fn recoveries_after_which_nothing_arrives_end_with_an_error() {
    let mut pair = Pair::new(1);
    for _ in 0..400 {
        pair.fault(0);
        pair.pass(SECOND);
    }
    assert!(pair.failure(0).is_some_and(|text| text.contains("a fault")), "{:?}", pair.failure(0));
    assert!((100..130).contains(&pair.recoveries(0)), "{}", pair.recoveries(0));
}

#[test]
fn a_connection_over_which_messages_arrive_recovers_as_often_as_it_has_to() {
    let mut pair = Pair::new(1);
    for _ in 0..400 {
        pair.fault(0);
        pair.pass(SECOND);
        pair.arrived += 1;
    }
    assert_eq!(pair.expect_running(), 400);
}

#[test]
fn faults_of_a_connection_on_which_nothing_waits_do_not_add_up() {
    for end in [0, 1] {
        let mut pair = Pair::new(1);
        for _ in 0..400 {
            pair.fault(end);
            pair.pass(SECOND);
            pair.ends.iter_mut().for_each(|end| end.machine.handle_acknowledged());
        }
        assert_eq!(pair.expect_running(), 400);
    }
}

#[test]
fn faults_that_are_rare_end_no_idle_connection() {
    let mut pair = Pair::new(1);
    for _ in 0..10 {
        pair.fault(1);
        pair.pass(61 * SECOND);
    }
    assert_eq!(pair.expect_running(), 10);
}

/// What is not on time says nothing of the paths, unlike what the peer has found.
#[test]
fn an_attempt_that_follows_a_late_frame_knows_that() {
    for kind in FRAMES {
        let mut pair = without_a_frame(kind);
        pair.now += ANSWER_TIME;
        pair.ends[0].machine.handle_timeout(pair.now);
        assert!(pair.ends[0].machine.was_late(), "{kind}");
        pair.pass(SECOND);
        assert_eq!(pair.expect_running(), 2);
        pair.fault(0);
        assert!(!pair.ends[0].machine.was_late(), "{kind}");
    }
}
