//! A peer that says what no Ferrite says, or says it without end.

use super::*;
use crate::recovery::missing_list::MissingList;
use crate::sample::endpoint;
use proptest::prelude::*;

fn machine(role: Role) -> Recovery {
    Recovery::new(role, RailMask::first(2), GIVE_UP)
}

fn halt(attempt: u32) -> Message {
    Message::Halt { attempt, usable: RailMask(0b11), cause: "why not".into() }
}

fn offer(attempt: u32, rails: u8) -> Message {
    Message::Offer {
        attempt,
        rails: RailMask(rails),
        endpoint: endpoint(rails.count_ones() as usize, 1, true),
    }
}

fn answer(attempt: u32, rails: u8) -> Message {
    Message::Answer {
        attempt,
        rails: RailMask(rails),
        endpoint: endpoint(rails.count_ones() as usize, 1, true),
    }
}

#[test]
fn rails_that_do_not_exist_and_frames_of_the_wrong_end_are_refused() {
    let missing_list = MissingList { oldest: 1, next: 1, missing: Vec::new() };
    let wrong = MissingList { oldest: 1, next: 600, missing: Vec::new() };
    let one_short =
        Message::Offer { attempt: 1, rails: RailMask(0b11), endpoint: endpoint(1, 1, true) };
    for (role, message) in [
        (Role::Receiver, offer(1, 0b100)),
        (Role::Receiver, offer(1, 0)),
        (Role::Receiver, one_short),
        (Role::Receiver, Message::Ports { usable: RailMask(0b100) }),
        (
            Role::Receiver,
            Message::Halt { attempt: 1, usable: RailMask(0xff), cause: String::new() },
        ),
        (Role::Receiver, answer(1, 0b11)),
        (Role::Receiver, Message::MissingList { attempt: 1, missing_list }),
        (Role::Sender, Message::MissingList { attempt: 1, missing_list: wrong }),
        (Role::Sender, offer(1, 0b11)),
        (Role::Sender, Message::Ready { attempt: 1, reach: Reach::default() }),
        (Role::Sender, halt(u32::MAX)),
    ] {
        let mut machine = machine(role);
        assert!(machine.handle_message(Time::ZERO, message.clone()).is_err(), "{message:?}");
        assert_eq!(machine, self::machine(role), "nothing has changed");
    }
}

#[test]
fn an_answer_for_other_rails_than_were_offered_is_refused() {
    let mut machine = machine(Role::Sender);
    machine.handle_message(Time::ZERO, halt(1)).expect("allowed");
    while let Some(action) = machine.poll_action() {
        match action {
            Action::Fence => machine.handle_fenced(Time::ZERO),
            Action::Create { attempt, .. } => {
                machine.handle_created(Time::ZERO, attempt, Ok(endpoint(2, 1, true)))
            }
            _ => {}
        }
    }
    assert!(machine.handle_message(Time::ZERO, answer(1, 0b01)).is_err());
    assert!(machine.handle_message(Time::ZERO, answer(1, 0b11)).is_ok());
}

/// What `role` does while a peer begins an attempt each millisecond for `seconds`. Returns how
/// often queue pairs were created.
fn hurried(role: Role, seconds: u64) -> (Recovery, u32) {
    let (mut machine, mut created, mut attempt) = (machine(role), 0, 0);
    for time in 0..seconds * 1000 {
        let now = Time::from_millis(time);
        if machine.poll_timeout().is_some_and(|timeout| timeout <= now) {
            machine.handle_timeout(now);
        }
        attempt += 1;
        machine.handle_message(now, halt(attempt)).expect("allowed");
        if role == Role::Receiver {
            machine.handle_message(now, offer(attempt, 0b11)).expect("allowed");
        }
        let mut actions = 0;
        while let Some(action) = machine.poll_action() {
            actions += 1;
            match action {
                Action::Fence => machine.handle_fenced(now),
                Action::Create { attempt, .. } | Action::Connect { attempt, .. } => {
                    created += 1;
                    match role {
                        Role::Sender => {
                            machine.handle_created(now, attempt, Ok(endpoint(2, 1, true)))
                        }
                        Role::Receiver => {
                            machine.handle_connected(now, attempt, Ok(endpoint(2, 1, true)))
                        }
                    }
                }
                _ => {}
            }
        }
        assert!(actions < 10, "{actions} at once");
    }
    (machine, created)
}

#[test]
fn a_peer_that_begins_attempts_without_end_costs_few_queue_pairs_and_is_given_up() {
    for role in [Role::Sender, Role::Receiver] {
        let (machine, created) = hurried(role, 10);
        assert!(!machine.is_running() && created <= 5, "{role:?}: {created}");
        let (mut machine, _) = hurried(role, 121);
        assert_eq!((machine.state, machine.poll_action()), (State::Failed, None));
    }
}

#[test]
fn attempts_end_before_their_number_wraps() {
    let mut machine = machine(Role::Sender);
    machine.attempt = u32::MAX - 1;
    machine.handle_fault(Time::ZERO, "a fault");
    assert_eq!((machine.attempt(), machine.state), (u32::MAX, State::Halted));
    machine.begin_next(Time::ZERO, "another".into());
    assert_eq!(machine.state, State::Failed);
}

fn message() -> impl Strategy<Value = Message> {
    let attempt = 0u32..4;
    let missing_list = (0u32..3, 0u32..3).prop_map(|(oldest, more)| MissingList {
        oldest,
        next: oldest + more,
        missing: Vec::new(),
    });
    prop_oneof![
        attempt.clone().prop_map(halt),
        (attempt.clone(), 0u8..8).prop_map(|(attempt, rails)| offer(attempt, rails)),
        (attempt.clone(), 0u8..8).prop_map(|(attempt, rails)| answer(attempt, rails)),
        attempt.clone().prop_map(|attempt| Message::Ready { attempt, reach: Reach::default() }),
        (0u8..8).prop_map(|usable| Message::Ports { usable: RailMask(usable) }),
        (attempt, missing_list)
            .prop_map(|(attempt, missing_list)| Message::MissingList { attempt, missing_list }),
    ]
}

proptest! {
    /// Every job is asked for only where the one before has ended, queue pairs are created only
    /// where there are none, and actions come to an end.
    #[test]
    fn whatever_a_peer_says_the_order_of_actions_holds(role in prop_oneof![Just(Role::Sender), Just(Role::Receiver)],
                                                       said in proptest::collection::vec((message(), 0u64..800, any::<bool>()), 0..60)) {
        let mut machine = machine(role);
        let (mut now, mut has_queue_pairs) = (Time::ZERO, true);
        for (message, wait, is_fault) in said {
            now += Duration::from_millis(wait);
            if is_fault {
                machine.handle_fault(now, "a fault");
            }
            if machine.poll_timeout().is_some_and(|time| time <= now) {
                machine.handle_timeout(now);
            }
            if machine.handle_message(now, message).is_err() {
                break;
            }
            for count in 0.. {
                prop_assert!(count < 30, "no end of actions");
                let Some(action) = machine.poll_action() else { break };
                match action {
                    Action::Fence => {
                        has_queue_pairs = false;
                        machine.handle_fenced(now);
                    }
                    Action::Discard => has_queue_pairs = false,
                    Action::Create { attempt, rails } => {
                        prop_assert!(!std::mem::replace(&mut has_queue_pairs, true) && !rails.is_empty());
                        machine.handle_created(now, attempt, Ok(endpoint(rails.count().into(), 1, true)));
                    }
                    Action::Connect { attempt, rails, .. } => {
                        let had = std::mem::replace(&mut has_queue_pairs, true);
                        prop_assert!(had == (role == Role::Sender) && !rails.is_empty());
                        machine.handle_connected(now, attempt, Ok(endpoint(rails.count().into(), 1, true)));
                    }
                    Action::Resume { attempt, .. } => {
                        prop_assert!(has_queue_pairs);
                        let missing_list = MissingList { oldest: 1, next: 1, missing: Vec::new() };
                        machine.handle_resumed(now, attempt, (role == Role::Receiver).then_some(missing_list));
                    }
                    _ => {}
                }
            }
            prop_assert!(machine.is_running() <= has_queue_pairs);
        }
    }
}
