//! Rails that fall and come back.

use super::pair::{GIVE_UP, Pair};
use super::*;

fn rails(pair: &Pair) -> u8 {
    pair.expect_running();
    pair.ends[0].machine.rails().0
}

#[test]
fn only_rails_that_both_ends_can_use_are_used() {
    let mut pair = Pair::new(4);
    pair.usable(0, 0b0111);
    pair.usable(1, 0b1110);
    pair.settle();
    assert_eq!(rails(&pair), 0b0110);
    assert_eq!(pair.expect_running(), 1, "a rail in use that cannot be used any more is a fault");
    let offered = pair.said.iter().find_map(|message| match message {
        Message::Offer { rails, endpoint, .. } => Some((*rails, endpoint.rails.len())),
        _ => None,
    });
    assert_eq!(offered, Some((RailMask(0b0110), 2)));
}

#[test]
fn without_a_common_rail_the_connection_waits_for_one() {
    let mut pair = Pair::new(2);
    pair.usable(0, 0b01);
    pair.usable(1, 0b10);
    pair.pass(30 * SECOND);
    assert!(!pair.ends[0].machine.is_running());
    pair.usable(1, 0b11);
    pair.settle();
    assert_eq!(rails(&pair), 0b01);
}

#[test]
fn a_rail_that_never_comes_back_ends_with_an_error_that_names_what_each_end_can_use() {
    let mut pair = Pair::new(1);
    pair.usable(1, 0);
    pair.pass(GIVE_UP);
    for end in [0, 1] {
        let text = pair.failure(end).expect("given up");
        assert!(text.contains("Usable rails: ") && text.contains("none"), "{text}");
    }
}

#[test]
fn a_rail_that_comes_back_is_taken_in_when_nothing_is_outstanding() {
    for end in [0, 1] {
        let mut pair = Pair::new(2);
        pair.usable(end, 0b01);
        pair.settle();
        assert_eq!(rails(&pair), 0b01);
        pair.usable(end, 0b11);
        pair.settle();
        assert!(!pair.ends[0].drained);
        assert_eq!(pair.expect_running(), 1, "sends are outstanding");
        pair.ends[0].machine.handle_drained(pair.now);
        pair.settle();
        assert_eq!((rails(&pair), pair.expect_running()), (0b11, 2));
        assert_eq!(pair.ends[0].machine.cause(), "to use more rails: 1");
    }
}

#[test]
fn a_rail_is_taken_in_after_a_second_even_if_sends_are_outstanding() {
    let mut pair = Pair::new(2);
    pair.usable(1, 0b10);
    pair.settle();
    pair.usable(1, 0b11);
    pair.pass(DRAIN_TIME - Duration::from_millis(1));
    assert_eq!(rails(&pair), 0b10);
    pair.pass(Duration::from_millis(1));
    assert_eq!(rails(&pair), 0b11);
}

/// The connection runs, though nothing has been acknowledged since the faults before.
#[test]
fn draining_sends_is_not_ended_by_how_long_ago_the_first_fault_was() {
    let mut pair = Pair::new(2);
    pair.usable(0, 0b01);
    pair.settle();
    pair.fault(0);
    pair.settle();
    pair.pass(GIVE_UP);
    pair.usable(0, 0b11);
    pair.settle();
    let machine = &mut pair.ends[0].machine;
    assert!(matches!(machine.state, State::Draining { .. }) && machine.trouble.is_some());
    machine.handle_timeout(pair.now);
    assert!(matches!(machine.state, State::Draining { .. }), "{}", machine.cause());
    machine.handle_drained(pair.now);
    pair.settle();
    assert_eq!(rails(&pair), 0b11);
}

#[test]
fn a_fault_while_sends_are_drained_is_a_fault() {
    let mut pair = Pair::new(2);
    pair.usable(0, 0b01);
    pair.settle();
    pair.usable(0, 0b11);
    pair.settle();
    pair.fault(0);
    pair.settle();
    assert_eq!((rails(&pair), pair.expect_running()), (0b11, 2));
    pair.ends[0].machine.handle_drained(pair.now);
    pair.settle();
    assert_eq!(pair.expect_running(), 2, "it is not drained any more");
}

#[test]
fn a_rail_that_falls_often_waits_while_another_one_lives() {
    let mut pair = Pair::new(2);
    let fall = |pair: &mut Pair, wait: u64| {
        pair.usable(1, 0b01);
        pair.settle();
        pair.usable(1, 0b11);
        pair.pass(Duration::from_millis(wait).saturating_sub(Duration::from_nanos(1)));
        let is_draining =
            |pair: &Pair| matches!(pair.ends[0].machine.state, State::Draining { .. });
        assert_eq!((rails(pair), is_draining(pair)), (0b01, wait == 0));
        pair.pass(Duration::from_nanos(1));
        assert!(is_draining(pair), "after {wait} ms");
        pair.ends[0].machine.handle_drained(pair.now);
        pair.settle();
        assert_eq!(rails(pair), 0b11);
    };
    [0, 100, 400, 1600].into_iter().for_each(|wait| fall(&mut pair, wait));
}

#[test]
fn the_only_rail_never_waits() {
    let mut pair = Pair::new(1);
    for _ in 0..20 {
        pair.usable(0, 0);
        pair.settle();
        pair.usable(0, 1);
        pair.settle();
        assert_eq!(rails(&pair), 1);
    }
    let mut pair = Pair::new(2);
    for _ in 0..20 {
        pair.usable(0, 0);
        pair.settle();
        pair.usable(0, 0b10);
        pair.settle();
        assert_eq!(rails(&pair), 0b10);
    }
}

#[test]
fn a_change_of_usable_rails_in_any_state_is_reported_and_ends_well() {
    for end in [0, 1] {
        for slow in [false, true] {
            for (before, then) in [(0b11, 0b01), (0b01, 0b11), (0b01, 0b10)] {
                for events in 0..60 {
                    let mut pair = Pair::new(2);
                    pair.are_jobs_slow = slow;
                    pair.usable(end, before);
                    pair.fault(end);
                    (0..events).take_while(|_| pair.step()).for_each(drop);
                    pair.usable(end, then);
                    pair.pass(2 * SECOND);
                    assert_eq!(rails(&pair), then, "{end} {before:b} {events}");
                    assert_eq!(pair.ends[1 - end].machine.peer, RailMask(then));
                }
            }
        }
    }
}

#[test]
fn a_rail_that_came_back_while_the_control_connection_was_lost_is_taken_in() {
    for end in [0, 1] {
        let mut pair = Pair::new(2);
        pair.usable(end, 0b01);
        pair.settle();
        pair.lose();
        pair.usable(end, 0b11);
        pair.pass(SECOND / 2);
        pair.back();
        pair.pass(2 * SECOND);
        assert_eq!(rails(&pair), 0b11, "end {end}");
    }
}

#[test]
fn a_rail_that_comes_back_is_reported_again_if_its_frame_was_lost() {
    let mut pair = Pair::new(2);
    pair.are_jobs_slow = true;
    pair.usable(1, 0b01);
    while !pair.ends[1].machine.is_resuming(1) {
        assert!(pair.step(), "the receiver is to go on");
    }
    pair.lose();
    pair.usable(1, 0b11);
    while let Some(action) = pair.ends[1].machine.poll_action() {
        pair.act(1, action);
    }
    pair.back();
    assert!(pair.finish(1), "the queue pairs come into use before the frame is said again");
    pair.pass(2 * SECOND);
    assert_eq!(rails(&pair), 0b11);
}

#[test]
fn an_idle_connection_lives_on_although_nothing_comes_through_over_one_of_its_rails() {
    let mut pair = Pair::new(2);
    // Shorter than the longest time that a rail waits.
    pair.ends.iter_mut().for_each(|end| end.machine.give_up = 20 * SECOND);
    pair.ends[0].dead = RailMask::only(1);
    pair.fault(0);
    for _ in 0..600 {
        pair.pass(SECOND);
        pair.ends[0].machine.handle_drained(pair.now);
    }
    pair.settle();
    assert_eq!(rails(&pair), 0b01);
    let attempts = pair.expect_running();
    assert!((10..100).contains(&attempts), "the rail is tried now and then: {attempts}");
    pair.ends[0].dead = RailMask::NONE;
    for _ in 0..62 {
        pair.pass(SECOND);
        pair.ends[0].machine.handle_drained(pair.now);
    }
    pair.settle();
    assert_eq!(rails(&pair), 0b11);
}

/// How often a connection gives up its queue pairs in so many seconds for rail 1, which carries
/// nothing: it fails then, or it has never run.
fn recoveries_for_a_dead_rail(has_run: bool, seconds: u64) -> usize {
    let mut pair = Pair::new(2);
    pair.ends[0].dead = RailMask::only(1);
    if has_run {
        pair.fault(0);
    } else {
        for end in [0, 1] {
            pair.ends[end].machine = pair.ends[end].machine.clone().over(RailMask::only(0));
            pair.usable(end, 0b11);
        }
    }
    for _ in 0..10 * seconds {
        pair.pass(SECOND / 10);
        pair.ends[0].machine.handle_drained(pair.now);
    }
    pair.settle();
    assert_eq!(rails(&pair), 0b01);
    pair.recoveries(0)
}

#[test]
fn a_rail_that_carries_nothing_is_tried_again_more_and_more_rarely() {
    let recoveries =
        |has_run| [100, 3600].map(|seconds| recoveries_for_a_dead_rail(has_run, seconds));
    assert_eq!((recoveries(true), recoveries(false)), ([7, 65], [5, 7]));
}

/// The ends as they are, and what the sender has done since `from`.
fn since(pair: &Pair, from: usize) -> (u32, Vec<String>) {
    (pair.expect_running(), pair.names(0).split_off(from))
}

#[test]
fn the_peer_is_asked_before_what_works_is_given_up_for_something_else() {
    let mut pair = Pair::new(2);
    assert!(pair.ends[0].machine.handle_change_request(pair.now, "a request".into()));
    assert!(
        !pair.ends[0].machine.handle_change_request(pair.now, "another one".into()),
        "one at a time"
    );
    pair.settle();
    assert_eq!(since(&pair, 0), (0, vec!["Ask".to_owned(), "Drain".to_owned()]));
    pair.ends[0].machine.handle_drained(pair.now);
    pair.settle();
    assert_eq!((pair.expect_running(), pair.ends[0].machine.cause()), (1, "a request"));
    let asked = pair.said.iter().filter(|message| matches!(message, Message::Ask { .. })).count();
    assert_eq!(asked, 1);
}

/// As it does for a rail that works again.
#[test]
fn a_receiver_asks_too() {
    let mut pair = Pair::new(1);
    pair.ends[1].machine.handle_change_request(pair.now, "a request".into());
    pair.settle();
    assert_eq!((pair.expect_running(), pair.ends[1].machine.cause()), (1, "a request"));
    assert_eq!(pair.names(1)[..2], ["Ask", "Halt"]);
}

#[test]
fn a_peer_that_does_not_answer_is_asked_again_later_and_nothing_has_changed() {
    for end in [0, 1] {
        let mut pair = Pair::new(2);
        pair.usable(1, 0b01);
        pair.settle();
        let begun = pair.names(0).len();
        pair.lose();
        pair.usable(1, 0b11);
        pair.settle();
        // As if the frame had come through.
        pair.ends[0]
            .machine
            .handle_message(pair.now, Message::Ports { usable: RailMask(0b11) })
            .expect("allowed");
        pair.ends[end].machine.handle_change_request(pair.now, "a request".into());
        pair.pass(GIVE_UP);
        let (attempt, actions) = since(&pair, begun);
        assert!(
            attempt == 1 && actions.iter().all(|action| action == "Ask"),
            "{attempt}: {actions:?}"
        );
        assert_eq!(actions.len(), 13, "at once, and every 10 s");
        pair.back();
        pair.pass(ASK_TIME + DRAIN_TIME);
        assert_eq!(rails(&pair), 0b11);
    }
}

#[test]
fn a_question_that_was_lost_is_asked_again_when_the_control_connection_is_back() {
    let mut pair = Pair::new(1);
    pair.lose();
    pair.ends[0].machine.handle_change_request(pair.now, "a request".into());
    pair.settle();
    pair.back();
    pair.settle();
    assert_eq!(since(&pair, 0), (0, ["Ask", "Ask", "Drain"].map(str::to_owned).to_vec()));
}

#[test]
fn sends_resume_if_the_control_connection_is_lost_while_they_are_drained() {
    for is_reported in [false, true] {
        let mut pair = Pair::new(1);
        pair.ends[0].machine.handle_change_request(pair.now, "a request".into());
        while !matches!(pair.ends[0].machine.state, State::Draining { .. }) {
            assert!(pair.step(), "the sender is to drain");
        }
        if is_reported {
            pair.settle();
        }
        pair.lose();
        pair.ends[0].machine.handle_lost(pair.now);
        pair.settle();
        let expected: &[&str] = if is_reported { &["Ask", "Drain", "Continue"] } else { &["Ask"] };
        assert_eq!(since(&pair, 0), (0, expected.iter().map(ToString::to_string).collect()));
        pair.ends[0].machine.handle_drained(pair.now);
        pair.pass(2 * DRAIN_TIME);
        assert_eq!(pair.expect_running(), 0, "it drains no more");
        assert!(
            !pair.ends[0].machine.handle_change_request(pair.now, "a request".into()),
            "not at once"
        );
        pair.back();
        pair.pass(ASK_TIME);
        assert!(pair.ends[0].machine.handle_change_request(pair.now, "a request".into()));
    }
}

#[test]
fn a_fault_ends_what_the_peer_was_asked_about() {
    let mut pair = Pair::new(1);
    pair.lose();
    pair.ends[0].machine.handle_change_request(pair.now, "a request".into());
    pair.fault(0);
    pair.back();
    pair.pass(SECOND);
    assert_eq!((pair.expect_running(), pair.ends[0].machine.cause()), (1, "a fault"));
    assert!(!pair.names(0).contains(&"Drain".to_owned()));
    let late = Message::Heard { attempt: 1, number: 1 };
    pair.ends[0].machine.handle_message(pair.now, late).expect("allowed");
    assert_eq!(pair.ends[0].machine.poll_action(), None, "nothing was asked in this attempt");
}
