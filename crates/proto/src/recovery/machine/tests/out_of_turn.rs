//! What comes early, late or twice.

use super::*;
use crate::sample::endpoint;

/// The actions that `machine` has now.
fn actions(machine: &mut Recovery) -> Vec<Action> {
    std::iter::from_fn(|| machine.poll_action()).collect()
}

#[test]
fn a_timeout_that_comes_early_changes_nothing() {
    let mut seen = Vec::new();
    let mut pair = Pair::new(2);
    pair.are_jobs_slow = true;
    assert!(pair.ends[0].machine.handle_change_request(pair.now, "a request".into()));
    for events in 0.. {
        for end in &mut pair.ends {
            let before = end.machine.clone();
            end.machine.handle_timeout(pair.now);
            assert_eq!(before, end.machine, "after {events} events");
            seen.push(end.machine.state_name());
        }
        if !pair.step() {
            if !pair.ends[0].machine.is_about_to_change() {
                break;
            }
            pair.ends[0].machine.handle_drained(pair.now);
        }
    }
    for state in ["Draining", "Offered", "Answered", "AwaitingMissingList"] {
        assert!(seen.contains(&state), "{state}: {seen:?}");
    }
}

/// Frames of the control connection that are said again, since the receiver's answer may have been
/// lost.
#[test]
fn an_offer_that_comes_twice_is_answered_twice_and_the_first_one_counts() {
    let mut machine = Recovery::new(Role::Receiver, RailMask::first(2), GIVE_UP);
    let now = Time::from_secs(1);
    machine.handle_fault(now, "a fault");
    let offer = |rails: u8| {
        let rails = RailMask(rails);
        Message::Offer { attempt: 1, rails, endpoint: endpoint(rails.count().into(), 1, false) }
    };
    for rails in [3, 1] {
        machine.handle_message(now, offer(rails)).expect("what a Ferrite says");
    }
    assert!(matches!(
        actions(&mut machine)[..],
        [Action::Send(Message::Halt { .. }), Action::Fence]
    ));
    machine.handle_fenced(now);
    let connect = actions(&mut machine);
    let [Action::Connect { attempt: 1, rails, remote }] = &connect[..] else {
        panic!("{connect:?}")
    };
    assert_eq!((*rails, remote.rails.len()), (RailMask(3), 2), "the first offer counts");
    machine.handle_connected(now, 1, Ok(endpoint(2, 1, false)));
    let is_answer = |actions: Vec<Action>| {
        matches!(actions[..], [Action::Send(Message::Answer { attempt: 1, .. })])
    };
    assert!(is_answer(actions(&mut machine)));
    machine.handle_message(now, offer(3)).expect("what a Ferrite says");
    assert!(is_answer(actions(&mut machine)), "it is said again");
}

/// A sender that has been asked to create the queue pairs of attempt 1.
fn creating() -> (Recovery, Time) {
    let (mut machine, now) =
        (Recovery::new(Role::Sender, RailMask::first(2), GIVE_UP), Time::from_secs(1));
    machine.handle_fault(now, "a fault");
    actions(&mut machine);
    machine.handle_fenced(now);
    let halt = Message::Halt { attempt: 1, usable: RailMask::first(2), cause: String::new() };
    machine.handle_message(now, halt).expect("what a Ferrite says");
    let [Action::Send(Message::Halt { .. }), Action::Create { attempt: 1, .. }] =
        actions(&mut machine)[..]
    else {
        panic!("{machine:?}")
    };
    (machine, now)
}

/// A sender whose queue pairs of attempt 1 are being connected, when something else has ended that
/// attempt.
fn connecting() -> (Recovery, Time) {
    let (mut machine, now) = creating();
    machine.handle_created(now, 1, Ok(endpoint(2, 1, false)));
    actions(&mut machine);
    let answer =
        Message::Answer { attempt: 1, rails: RailMask::first(2), endpoint: endpoint(2, 1, false) };
    machine.handle_message(now, answer).expect("what a Ferrite says");
    assert!(matches!(actions(&mut machine)[..], [Action::Connect { attempt: 1, .. }]));
    (machine, now)
}

#[test]
fn queue_pairs_of_an_attempt_that_is_over_are_not_used() {
    let (mut machine, now) = connecting();
    machine.handle_usable(now, RailMask::first(1));
    assert_eq!((machine.attempt(), machine.state_name()), (2, "Halted"));
    machine.handle_connected(now, 1, Ok(endpoint(2, 1, false)));
    assert_eq!((machine.attempt(), machine.state_name()), (2, "Halted"));
    let later = actions(&mut machine);
    assert!(later.contains(&Action::Discard), "{later:?}");
    let (mut machine, now) = connecting();
    machine.handle_connected(now, 7, Ok(endpoint(2, 1, false)));
    assert_eq!(machine.state_name(), "Connecting", "those of another attempt");
}

#[test]
fn new_queue_pairs_that_are_not_discarded_yet_are_discarded_by_a_later_attempt() {
    let (mut machine, now) = connecting();
    machine.handle_usable(now, RailMask::first(1));
    machine.handle_connected(now, 1, Ok(endpoint(2, 1, false)));
    let halt = Message::Halt { attempt: 3, usable: RailMask::first(2), cause: String::new() };
    machine.handle_message(now, halt).expect("what a Ferrite says");
    assert_eq!((machine.attempt(), machine.state_name()), (3, "Halted"));
    let later = actions(&mut machine);
    assert!(later.contains(&Action::Discard), "{later:?}");
}

#[test]
fn the_end_of_a_job_that_is_not_under_way_changes_nothing() {
    let (mut machine, now) = connecting();
    let before = machine.clone();
    machine.handle_fenced(now);
    machine.handle_created(now, 1, Ok(endpoint(2, 1, false)));
    machine.handle_resumed(now, 1, None);
    assert_eq!(machine, before);
}

/// If it is not known which rail is to blame, there is none that could be left out at once.
#[test]
fn the_next_attempt_begins_at_once_only_if_a_dead_rail_is_left_out_and_another_is_there() {
    for (dead, is_at_once) in
        [(RailMask::NONE, false), (RailMask::first(1), true), (RailMask::first(2), false)]
    {
        let mut pair = Pair::new(2);
        pair.fault(0);
        pair.ends[0].refusals = 1;
        pair.settle();
        // The first attempt was refused, so that the second one has to wait, and a third.
        let (mut machine, mut now) = connecting();
        machine.handle_connected(now, 1, Err("refused".into()));
        now += SECOND;
        machine.handle_timeout(now);
        actions(&mut machine);
        let attempt = machine.attempt();
        let halt = Message::Halt { attempt, usable: RailMask::first(2), cause: String::new() };
        machine.handle_message(now, halt).expect("what a Ferrite says");
        actions(&mut machine);
        machine.handle_created(now, attempt, Ok(endpoint(2, 1, false)));
        actions(&mut machine);
        let answer =
            Message::Answer { attempt, rails: RailMask::first(2), endpoint: endpoint(2, 1, false) };
        machine.handle_message(now, answer).expect("what a Ferrite says");
        assert!(matches!(actions(&mut machine)[..], [Action::Connect { .. }]), "{machine:?}");
        machine.handle_unreachable(now, attempt, dead);
        let halt = Message::Halt {
            attempt: attempt + 1,
            usable: RailMask::first(2),
            cause: String::new(),
        };
        machine.handle_message(now, halt).expect("what a Ferrite says");
        assert_eq!(machine.state_name() == "Creating", is_at_once, "{dead}: {machine:?}");
    }
}

/// Nothing is written to a buffer, nor read from one, after the error.
#[test]
fn an_end_that_fails_fences_if_it_has_not_and_asks_for_nothing_more() {
    for role in [Role::Sender, Role::Receiver] {
        let mut machine = Recovery::new(role, RailMask::first(1), GIVE_UP);
        machine.handle_fault(Time::from_secs(1), "a fault");
        machine.handle_timeout(Time::from_secs(1) + GIVE_UP);
        let all = actions(&mut machine);
        assert!(matches!(all[..], [Action::Fence, Action::Fail(_)]), "{all:?}");
        machine.handle_fenced(Time::from_secs(1) + GIVE_UP);
        machine.handle_timeout(Time::from_secs(1000));
        assert!(actions(&mut machine).is_empty());
    }
}

#[test]
fn an_end_that_has_failed_does_not_resume_with_the_queue_pairs_that_it_asked_for() {
    // The time to give up comes while the queue pairs are connected, or created.
    let (mut machine, now) = connecting();
    machine.handle_timeout(now + GIVE_UP);
    assert!(matches!(actions(&mut machine)[..], [Action::Fail(_)]), "{machine:?}");
    machine.handle_unreachable(now + GIVE_UP, 1, RailMask::first(1));
    assert_eq!((machine.state_name(), actions(&mut machine)), ("Failed", Vec::new()));

    let (mut machine, now) = creating();
    machine.handle_timeout(now + GIVE_UP);
    assert!(matches!(actions(&mut machine)[..], [Action::Fail(_)]), "{machine:?}");
    machine.handle_created(now + GIVE_UP, 1, Ok(endpoint(2, 1, false)));
    assert_eq!((machine.state_name(), actions(&mut machine)), ("Failed", Vec::new()));
}

/// A rail that comes back while the connection runs is reported, and nothing else.
#[test]
fn a_running_end_tells_the_rails_that_it_can_use_in_one_frame() {
    let mut pair = Pair::new(2);
    pair.usable(1, 1);
    pair.settle();
    pair.ends[1].actions.clear();
    pair.usable(1, 3);
    let said = actions(&mut pair.ends[1].machine);
    assert_eq!(said, [Action::Send(Message::Ports { usable: RailMask(3) })]);
}
