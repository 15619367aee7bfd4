//! Both ends of a connection as they ship, over a simulated libibverbs, driven by a seed.
//!
//! [`SendComm`](super::data::send::SendComm) and [`RecvComm`](super::data::recv::RecvComm) are made
//! as [`setup`](super::setup) makes them, and called as NCCL calls them. Below them is a [table of
//! functions](device) in place of libibverbs, over a [fabric] in one thread. It keeps the order of
//! the work requests of a queue pair, and nothing else: it delays and interleaves. Queue pairs are
//! on one to four rails, each with its own speed and keys; the two ends may have different numbers
//! of rails and queue pairs. What comes over the control connection is [simulated](control), and so
//! is the time.
//!
//! With recovery, the devices also have watchers and workers, which have no threads: the schedule
//! runs their jobs and handles their events: see [`world`].
//!
//! Faults: see [`faults`], [`recovery_faults`]. What has to hold: see [`laws`].
//!
//! ```text
//! mod ──► world ──► ends ──► data::{send, recv}, net::recovery ──► verbs ──► device ──► fabric
//!           ├─────► control ──► peer::state
//!           └─────► plan, faults, recovery_faults, laws
//! ```
//!
//! Every test runs many seeds: `FERRITE_SIM_SEEDS=1000000` sets how many, `FERRITE_SIM_SEED=42`
//! runs just that one. Both together run that number of seeds from that one on, so that several
//! processes can share the work. With `FERRITE_SIM_LOG=1` a run shows its log lines and faults.

// Without the tests, only `fuzz` uses it.
#![cfg_attr(
    not(test),
    allow(dead_code, unused_imports, unsafe_code, clippy::expect_used, clippy::panic)
)]

mod control;
mod device;
mod ends;
mod fabric;
mod faults;
mod laws;
mod plan;
mod recovery_faults;
mod world;

use crate::proto::random::{Random, run_seeds};
use fabric::{End, REMOTE_ACCESS_ERROR};
use faults::Fault;
use plan::Plan;
use std::time::Duration;
use world::{Outcome, World, says_lost};

/// Prints log lines with the simulated time.
#[cfg(test)]
#[derive(Debug)]
struct Lines;

#[cfg(test)]
impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        static BEGAN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let now = crate::verbs::clock::now();
        println!("{:?} {}", now - *BEGAN.get_or_init(|| now), record.args());
    }

    fn flush(&self) {}
}

#[cfg(test)]
fn show_lines() {
    if std::env::var_os("FERRITE_SIM_LOG").is_some() && log::set_logger(&Lines).is_ok() {
        log::set_max_level(log::LevelFilter::Debug);
    }
}

/// Which faults there are in a run.
#[derive(Debug, Clone, Copy)]
enum Faults {
    Never,
    /// One to three that the connection outlives.
    Survivable,
    /// One that ends the connection, and up to two that do not.
    Fatal,
}

/// Runs the schedule that follows from `random`. Returns its fatal fault, if any, and the outcome.
fn run(mut random: Random, faults: Faults) -> (Option<Fault>, Outcome) {
    let most_groups = match faults {
        Faults::Never if random.one_in(40) => 400,
        Faults::Never => 30,
        _ => 12,
    };
    let plan = Plan::new(&mut random, most_groups);
    // In half of the runs the faults come in quick succession.
    let last_step = 40 * plan.messages.len() as u64;
    let (start, span) =
        if random.one_in(2) { (0, last_step) } else { (random.below(last_step), 100) };
    let mut steps: Vec<_> = (0..1 + random.below(3)).map(|_| start + random.below(span)).collect();
    steps.sort_unstable();
    let fatal = random.index(steps.len());
    let planned: Vec<_> = match faults {
        Faults::Never => Vec::new(),
        Faults::Survivable => {
            steps.into_iter().map(|step| (step, Fault::survivable(&mut random))).collect()
        }
        Faults::Fatal => {
            let mut fault = |i| {
                if i == fatal { Fault::fatal(&mut random) } else { Fault::survivable(&mut random) }
            };
            steps.into_iter().enumerate().map(|(i, step)| (step, fault(i))).collect()
        }
    };
    let fatal = planned.iter().map(|(_, fault)| *fault).find(|fault| fault.is_fatal());
    (fatal, World::new(random, plan).run(&planned))
}

/// The errors of both ends are explained by the fault.
fn check_causes(fatal: Option<Fault>, outcome: &Outcome) {
    for end in End::BOTH {
        if let (Some(fault), Some(cause)) = (fatal, outcome.causes[end as usize]) {
            assert!(fault.explains(end, cause), "{end:?} reports {cause:?} after {fault:?}");
        }
    }
}

/// Runs the schedule that follows from `random` with one of the plans of faults, and checks what
/// has to hold there.
pub fn check(mut random: Random) {
    use recovery_faults::Plan as Plans;
    match random.below(11) {
        0 | 8 => check_delivered(&recover(random, Plans::survivable)),
        4 => check_delivered(&recover(random, Plans::restless)),
        1 => check_delivered(&recover(random, Plans::nothing)),
        2 => check_failures(&recover(random, Plans::endless)),
        3 => check_failures(&recover(random, Plans::impatient)),
        5 => check_delivered(&recover(random, Plans::forgetful)),
        6 => check_delivered(&recover(random, Plans::unheard)),
        7 => check_delivered(&recover(random, Plans::with_requests)),
        9 => assert!(run(random, Faults::Survivable).1.is_all_delivered),
        _ => {
            let (fatal, outcome) = run(random, Faults::Fatal);
            check_causes(fatal, &outcome);
        }
    }
}

/// All is delivered, unless a device has lost what it had acknowledged.
fn check_delivered(outcome: &Outcome) {
    assert!(has_lost(outcome) || outcome.is_all_delivered, "{outcome:?}");
}

/// Runs `count` seeds, or as many or those that the environment names, and has `check` look at each
/// outcome.
fn run_all(count: u64, faults: Faults, mut check: impl FnMut(Option<Fault>, &Outcome)) {
    run_seeds(count, &format!("{faults:?}"), |seed| {
        let (fatal, outcome) = run(Random::new(seed), faults);
        check(fatal, &outcome);
    });
}

#[test]
fn without_a_fault_every_schedule_delivers_every_message_once() {
    run_all(400, Faults::Never, |_, outcome| assert!(outcome.is_all_delivered));
}

#[test]
fn after_port_flaps_and_lost_control_connections_every_message_is_delivered_once() {
    run_all(500, Faults::Survivable, |_, outcome| assert!(outcome.is_all_delivered));
}

/// Without recovery a fatal fault ends the connection, unless all was delivered before. No law is
/// broken, and nothing waits for ever.
#[test]
fn after_a_fatal_fault_every_request_ends_safely_and_each_error_is_explained_by_the_fault() {
    let (mut runs, mut failed) = (0, 0);
    run_all(1000, Faults::Fatal, |fatal, outcome| {
        runs += 1;
        failed += u64::from(outcome.causes != [None; 2]);
        check_causes(fatal, outcome);
    });
    assert!(
        runs == 1 || failed > runs / 4,
        "only {failed} of {runs} runs had an error: the faults come too late"
    );
}

/// The next two tests show what is NOT guaranteed without recovery. They fail as soon as no run
/// shows it any more: then it becomes a law.
fn happens(what: impl Fn(&Outcome) -> bool) -> bool {
    (0..2000).any(|seed| what(&run(Random::new(seed), Faults::Fatal).1))
}

#[test]
fn known_gap_a_delayed_write_may_land_in_a_buffer_whose_receive_has_failed() {
    assert!(happens(|outcome| outcome.late_writes > 0));
}

#[test]
fn known_gap_a_message_may_be_delivered_and_its_send_reported_as_failed() {
    assert!(happens(|outcome| outcome.has_disagreement));
}

/// Runs the schedule that follows from `random`, whose ends recover from `faults`.
fn recover(
    mut random: Random,
    faults: impl FnOnce(&mut Random, &Plan) -> recovery_faults::Plan,
) -> Outcome {
    #[cfg(test)]
    show_lines();
    let plan = Plan::new(&mut random, 16);
    let mut faults = faults(&mut random, &plan);
    if random.one_in(4) {
        faults.recovers.most_starting = 0;
    }
    World::with_recovery(random, plan, faults).recover()
}

/// A fault that never ends has ended both ends with an error, unless all was delivered before.
fn check_failures(outcome: &Outcome) {
    let Outcome { failures, polls, .. } = outcome;
    let receiver = polls[End::Receiver as usize];
    let explains = |text: &String| {
        let known = ["could not be recovered within ", "SIMULATED-DEATH"];
        says_lost(text, receiver) || known.iter().any(|part| text.contains(part))
    };
    let is_explained = |end: End| failures[end as usize].as_ref().is_some_and(explains);
    for end in End::BOTH {
        let Some(text) = &failures[end as usize] else { continue };
        // After the other end has failed: a poll that fails, and a write to what the receiver has
        // deregistered.
        let is_poll = text.contains("ibv_poll_cq(") && polls[end as usize].have_failed;
        let is_late = end == End::Sender && text.contains(&REMOTE_ACCESS_ERROR.to_string());
        assert!(is_explained(end) || (is_poll || is_late) && is_explained(end.other()), "{text}");
    }
}

/// Whether the ends have ended with an error, which is then that of a device that has died. An end
/// that does not hear of it gives up.
fn has_lost(outcome: &Outcome) -> bool {
    let mut texts = outcome.failures.iter().flatten().peekable();
    let has_failed = texts.peek().is_some();
    let polls = outcome.polls[End::Receiver as usize];
    let is_said = texts.any(|text| says_lost(text, polls));
    assert!(is_said || !has_failed, "{:?}", outcome.failures);
    check_failures(outcome);
    has_failed
}

/// The test of other rails has not ended then.
#[test]
fn queues_that_fail_between_the_test_of_queue_pairs_and_their_use_are_replaced() {
    run_seeds(300, "tested queues fail", |seed| {
        check_delivered(&recover(Random::new(seed), recovery_faults::Plan::tested_queues_fail));
    });
}

/// The error names the device.
#[test]
fn polls_that_lose_what_has_arrived_end_the_connection_with_an_error_that_says_so() {
    let (mut runs, mut named) = (0, 0);
    run_seeds(200, "polls that lose", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::lossy);
        check_delivered(&outcome);
        let names = |text: &String| {
            text.contains("ibv_poll_cq(sim1_") && text.contains("a received message is lost")
        };
        (runs, named) = (runs + 1, named + u32::from(outcome.failures.iter().flatten().any(names)));
    });
    println!("{named} of {runs} runs have ended so");
    assert!(!is_sample(runs) || named > 0, "{runs} runs");
}

/// Whether the seeds are those of each test run, or so many that a sum over them says something.
fn is_sample(runs: u32) -> bool {
    runs >= 10_000 || runs >= 100 && std::env::var_os("FERRITE_SIM_SEED").is_none()
}

/// Otherwise a failure could not be looked at again.
#[test]
fn a_seed_is_one_schedule() {
    for seed in 0..30 {
        let run = || recover(Random::new(seed), recovery_faults::Plan::survivable);
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn recovery_without_a_fault_does_nothing() {
    run_seeds(100, "recovery without faults", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::nothing);
        assert!(outcome.is_all_delivered && outcome.recoveries == 0, "{outcome:?}");
    });
}

/// The devices send again what was lost before the connection may begin to recover. Connections
/// with another rail do not wait.
#[test]
fn a_connection_that_waits_to_recover_need_not_if_the_fault_ends_meanwhile() {
    let (mut runs, mut recoveries) = (0, 0);
    run_seeds(300, "soon over", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::soon_over);
        assert!(outcome.is_all_delivered, "{outcome:?}");
        (runs, recoveries) = (runs + 1, recoveries + outcome.recoveries);
    });
    println!("{runs} runs: {recoveries} recoveries");
    assert!(!is_sample(runs) || recoveries < runs / 4, "{runs} runs: {recoveries} recoveries");
}

#[test]
fn a_connection_does_not_wait_to_recover_if_another_rail_works_that_it_does_not_use() {
    let (mut runs, mut early) = (0, 0);
    run_seeds(300, "another rail", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::has_another);
        assert!(outcome.is_all_delivered, "{outcome:?}");
        (runs, early) = (runs + 1, early + u32::from(outcome.before_back > 0));
    });
    // In few runs, a rail that loses large packets takes longer to test than the port to come back.
    assert!(!is_sample(runs) || early + runs / 1000 >= runs, "{early} of {runs} runs");
}

#[test]
fn an_end_that_gets_no_acknowledgement_recovers_soon_or_after_2_s_if_many_others_do() {
    for end in End::BOTH {
        for (most_starting, expected) in [(1, 60..1000), (0, 2000..3000)] {
            let mut random = Random::new(7);
            let plan = Plan { tests_rarely: false, ..Plan::new(&mut random, 16) };
            let mut faults = recovery_faults::Plan::survivable(&mut random, &plan);
            faults.recovers.most_starting = most_starting;
            let time = World::with_recovery(random, plan, faults).time_to_recover(end);
            assert!(expected.contains(&time.as_millis()), "{end:?} {most_starting}: {time:?}");
        }
    }
}

/// Nothing would show that a message was lost meanwhile.
#[test]
fn an_end_that_detects_no_stall_does_not_wait_to_recover() {
    for (stall_ms, may_wait) in [(60, true), (0, false)] {
        let mut random = Random::new(7);
        let plan = Plan::new(&mut random, 16);
        let mut faults = recovery_faults::Plan::survivable(&mut random, &plan);
        (faults.recovers.most_starting, faults.recovers.stall_ms) = (0, stall_ms);
        let world = World::with_recovery(random, plan, faults);
        let recovery = world.recovery_of(End::Sender).expect("it recovers");
        assert_eq!(recovery.may_start(Duration::ZERO), !may_wait);
    }
}

/// Although nothing is sent that would stall.
#[test]
fn a_connection_waits_for_seconds_at_most_and_then_leaves_a_port_that_is_down() {
    run_seeds(100, "a late fall", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::falls_late);
        assert!(outcome.is_all_delivered && outcome.recoveries > 0, "{outcome:?}");
        // Then it waits for the port, and another may begin.
        assert!(outcome.longest_start < Duration::from_secs(1), "{outcome:?}");
    });
}

#[test]
fn after_any_faults_that_end_every_message_is_delivered_once_and_all_rails_are_used_again() {
    let (mut runs, mut recoveries, mut late, mut resent) = (0, 0, 0, 0);
    let mut polled = [0; 2];
    run_seeds(300, "recovery", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::survivable);
        check_delivered(&outcome);
        runs += 1;
        recoveries += outcome.recoveries;
        late += outcome.late_packets;
        resent += outcome.resent;
        polled = [0, 1].map(|how| polled[how] + u32::from(outcome.polled[how]));
    });
    let seen = format!(
        "{recoveries} recoveries, {late} late packets, {resent} sent again, {polled:?} polled"
    );
    println!("{runs} runs: {seen}");
    let all_seen = recoveries > runs / 2 && late > runs / 4 && resent > runs / 2;
    let [singly, in_batches] = polled;
    assert!(runs == 1 || all_seen && singly > runs / 2 && in_batches > runs / 8, "{seen}");
}

#[test]
fn a_connection_that_begins_on_some_of_its_rails_comes_to_use_all() {
    let (mut runs, mut recoveries) = (0, 0);
    run_seeds(300, "begins on some rails", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::begins_on_some);
        assert!(outcome.is_all_delivered, "{outcome:?}");
        (runs, recoveries) = (runs + 1, recoveries + outcome.recoveries);
    });
    assert!(runs == 1 || recoveries > runs / 8, "{recoveries} recoveries in {runs} runs");
}

#[test]
fn many_short_faults_in_the_middle_of_recoveries_end_well() {
    run_seeds(150, "restless recovery", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::restless);
        check_delivered(&outcome);
    });
}

/// Their devices acknowledge a message before they report its arrival.
#[test]
fn ends_that_fence_soon_after_a_message_has_arrived_lose_none() {
    run_seeds(200, "hasty fences", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::hasty);
        assert!(outcome.is_all_delivered && outcome.failures == [None, None], "{outcome:?}");
    });
}

#[test]
fn requests_for_other_paths_while_control_connection_and_rails_come_and_go_end_well() {
    let (mut runs, mut recoveries) = (0, 0);
    run_seeds(100, "requests", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::with_requests);
        assert!(outcome.is_all_delivered, "{outcome:?}");
        (runs, recoveries) = (runs + 1, recoveries + outcome.recoveries);
    });
    assert!(!is_sample(runs) || recoveries > runs / 2, "{runs} runs: {recoveries} recoveries");
}

/// The control connection carries nothing: the queue pairs in use are not given up for better ones.
#[test]
fn what_is_requested_changes_nothing_that_works_before_the_peer_has_answered() {
    let mut recoveries = 0;
    run_seeds(100, "requests that nobody hears", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::unheard);
        assert!(outcome.is_all_delivered, "{outcome:?}");
        recoveries += outcome.recoveries;
    });
    println!("{recoveries} recoveries");
}

#[test]
fn a_fault_that_never_ends_ends_both_ends_with_an_error() {
    let (mut runs, mut failed) = (0, 0);
    run_seeds(100, "recovery without success", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::endless);
        check_failures(&outcome);
        runs += 1;
        failed += u64::from(outcome.failures.iter().any(Option::is_some));
    });
    assert!(runs == 1 || failed > runs / 4, "{failed} of {runs} have failed");
}

#[test]
fn ends_that_give_up_early_end_with_an_error_and_both_of_them() {
    let (mut runs, mut failed) = (0, 0);
    run_seeds(100, "impatient recovery", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::impatient);
        check_failures(&outcome);
        runs += 1;
        failed += u64::from(outcome.failures[0].is_some());
    });
    assert!(runs == 1 || failed > runs / 20, "{failed} of {runs} have failed");
}

/// A device acknowledges data that it then loses. Only then the laws allow an error.
#[test]
fn data_that_is_acknowledged_and_lost_comes_again_or_ends_with_an_error_that_says_so() {
    let (mut lost, mut runs) = (0, 0);
    run_seeds(200, "recovery after a device died", |seed| {
        let outcome = recover(Random::new(seed), recovery_faults::Plan::forgetful);
        runs += 1;
        let has_lost = has_lost(&outcome);
        assert!(outcome.is_all_delivered || has_lost, "{outcome:?}");
        lost += u64::from(has_lost);
    });
    assert!(runs == 1 || lost > 0, "no message was lost");
}
