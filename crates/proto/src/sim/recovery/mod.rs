//! Both ends of a connection that recovers from faults, over a fabric whose queue pairs come and
//! go.
//!
//! Both run the real [`Recovery`](crate::recovery::machine::Recovery), `SendFlow` and `RecvFlow`.
//! What the caller of the machine does, `worker` does here: it takes time, and anything may happen
//! meanwhile. The fabric: see [`fabric`]. What has to hold: see [`laws`]. Faults: see [`faults`].
//! Seeds are set as in the tests around this one.
//!
//! ```text
//! mod ──► world ──► worker, traffic ──► ends ──► fabric, laws ──► plan
//!           └─────► faults
//! ```

mod ends;
mod fabric;
mod faults;
mod laws;
mod observed;
#[cfg(test)]
mod reachable;
mod traffic;
mod worker;
mod world;

use super::fabric::End;
use super::plan::Plan;
#[cfg(test)]
use crate::control::Time;
use crate::random::{Random, run_seeds};
#[cfg(test)]
use crate::recovery::{
    machine::{Action, Role},
    message::Message,
    rail_mask::RailMask,
};
use faults::Plan as FaultPlan;
#[cfg(test)]
use observed::Observed;
#[cfg(test)]
use std::time::Duration;
use world::{Outcome, World};

fn run(mut random: Random, faults: impl FnOnce(&mut Random, &Plan) -> FaultPlan) -> Outcome {
    let plan = Plan::new(&mut random, 8);
    let faults = faults(&mut random, &plan);
    World::new(random, plan, faults).run()
}

/// Runs the schedule that follows from `random` with one of the plans of faults, and checks what
/// has to hold there.
pub(crate) fn check(mut random: Random) {
    match random.below(9) {
        0 => assert!(run(random, FaultPlan::survivable).is_all_delivered),
        4 => assert!(run(random, FaultPlan::restless).is_all_delivered),
        1 => {
            let outcome = run(random, |_, _| FaultPlan::nothing());
            assert!(outcome.is_all_delivered);
            assert_eq!((outcome.recoveries, outcome.replayed), (0, 0));
        }
        2 => check_failures(&run(random, FaultPlan::endless)),
        3 => check_failures(&run(random, FaultPlan::impatient)),
        5 => check_failures(&run(random, FaultPlan::parted)),
        7 => assert!(run(random, FaultPlan::with_change_requests).is_all_delivered),
        6 => check_unheard(&run(random, FaultPlan::unheard)),
        _ => {
            let outcome = run(random, FaultPlan::forgetful);
            assert!(outcome.is_all_delivered || has_lost(&outcome));
        }
    }
}

/// All is delivered, and there was no attempt before the control connection was back.
fn check_unheard(outcome: &Outcome) {
    assert!(outcome.is_all_delivered && outcome.before_back == [0; 2], "{outcome:?}");
}

/// A path that never comes back has ended both ends, unless all was delivered before.
fn check_failures(outcome: &Outcome) {
    assert!(
        outcome.is_all_delivered || outcome.failures.iter().all(Option::is_some),
        "{:?}",
        outcome.failures
    );
    for failure in outcome.failures.iter().flatten() {
        assert!(failure.contains("could not be recovered within "), "{failure}");
    }
}

/// Whether the sender has ended with an error, which is then that of a device that has died.
fn has_lost(outcome: &Outcome) -> bool {
    let failure = &outcome.failures[End::Sender as usize];
    failure
        .iter()
        .for_each(|text| assert!(text.contains("acknowledged by a device that died"), "{text}"));
    failure.is_some()
}

#[test]
fn after_any_faults_that_end_every_message_is_delivered_once_and_all_rails_are_used_again() {
    let (mut recoveries, mut late, mut replayed, mut runs) = (0, 0, 0, 0);
    run_seeds(1000, "recovery", |seed| {
        let outcome = run(Random::new(seed), FaultPlan::survivable);
        assert!(outcome.is_all_delivered);
        runs += 1;
        recoveries += outcome.recoveries;
        late += u64::from(outcome.late_packets);
        replayed += u64::from(outcome.replayed);
    });
    let all_seen = recoveries > runs && late > runs / 4 && replayed > runs / 2;
    assert!(
        runs == 1 || all_seen,
        "{runs} runs: {recoveries} recoveries, {late} late packets, {replayed} sent again"
    );
}

#[test]
fn without_a_fault_there_is_no_recovery() {
    run_seeds(200, "recovery without faults", |seed| {
        let outcome = run(Random::new(seed), |_, _| FaultPlan::nothing());
        assert!(outcome.is_all_delivered);
        assert_eq!((outcome.recoveries, outcome.replayed), (0, 0));
    });
}

#[test]
fn change_requests_while_control_connection_and_rails_come_and_go_end_well() {
    let (mut recoveries, mut runs) = (0, 0);
    run_seeds(300, "requests", |seed| {
        let outcome = run(Random::new(seed), FaultPlan::with_change_requests);
        assert!(outcome.is_all_delivered);
        (runs, recoveries) = (runs + 1, recoveries + outcome.recoveries);
    });
    assert!(runs == 1 || recoveries > runs, "{runs} runs: {recoveries} recoveries");
}

/// The control connection carries nothing: the queue pairs in use are not given up for better ones.
#[test]
fn what_is_wished_for_changes_nothing_that_works_before_the_peer_has_answered() {
    let (mut recoveries, mut runs) = (0, 0);
    run_seeds(300, "requests that nobody hears", |seed| {
        let outcome = run(Random::new(seed), FaultPlan::unheard);
        check_unheard(&outcome);
        (runs, recoveries) = (runs + 1, recoveries + outcome.recoveries);
    });
    assert!(
        runs == 1 || recoveries > 0,
        "no request comes true when the control connection is back"
    );
}

#[test]
fn a_path_that_never_comes_back_ends_both_ends_with_an_error() {
    run_seeds(100, "recovery without success", |seed| {
        check_failures(&run(Random::new(seed), FaultPlan::endless));
    });
}

#[test]
fn ends_that_give_up_early_end_with_an_error_and_both_of_them() {
    let (mut failed, mut runs) = (0, 0);
    run_seeds(200, "impatient recovery", |seed| {
        let outcome = run(Random::new(seed), FaultPlan::impatient);
        check_failures(&outcome);
        runs += 1;
        failed += u64::from(outcome.failures[0].is_some());
    });
    assert!(runs == 1 || failed > runs / 4, "{failed} of {runs} have failed");
}

/// A device acknowledges data that it then loses. Without [`FaultPlan::forgetful`] the laws do not
/// allow an error.
#[test]
fn data_that_is_acknowledged_and_lost_comes_again_or_ends_with_an_error_that_says_so() {
    let (mut lost, mut runs) = (0, 0);
    run_seeds(500, "recovery after a device died", |seed| {
        let outcome = run(Random::new(seed), FaultPlan::forgetful);
        runs += 1;
        let has_lost = has_lost(&outcome);
        assert!(outcome.is_all_delivered || has_lost);
        lost += u64::from(has_lost);
    });
    assert!(runs == 1 || lost > 0, "no message was lost");
}

/// What schedules have too seldom: an end that has failed is told what the peer can use, and that
/// it was heard. Nothing comes of it.
#[cfg(test)]
fn tell_one_that_has_failed(role: Role) {
    let rails = RailMask::first(2);
    let mut machine = Observed::new(role, rails, Duration::ZERO);
    machine.handle_fault(Time::ZERO, "a fault");
    machine
        .handle_message(Time::ZERO, Message::Ports { usable: rails })
        .expect("what a Ferrite says");
    machine
        .handle_message(Time::ZERO, Message::Heard { attempt: 1, number: 1 })
        .expect("what a Ferrite says");
    assert!(matches!(machine.poll_action(), Some(Action::Fail(_))));
    assert_eq!(machine.poll_action(), None);
}

/// A simulator that does not reach any more what it has reached proves less, without a sign of it.
#[test]
fn each_event_comes_in_each_state_in_which_it_can() {
    observed::take();
    for seed in 0..800 {
        run(Random::new(seed), FaultPlan::survivable);
        run(Random::new(seed), FaultPlan::restless);
        check_failures(&run(Random::new(seed), FaultPlan::parted));
    }
    for seed in 0..4000 {
        run(Random::new(seed), FaultPlan::with_change_requests);
    }
    for seed in 0..3000 {
        run(Random::new(seed), FaultPlan::impatient);
    }
    for seed in 0..100 {
        run(Random::new(seed), FaultPlan::endless);
        run(Random::new(seed), FaultPlan::forgetful);
    }
    [Role::Sender, Role::Receiver].into_iter().for_each(tell_one_that_has_failed);
    reachable::MACHINE.check(&observed::take());
}
