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
//! Faults: see [`faults`]. What has to hold: see [`laws`].
//!
//! ```text
//! mod ──► world ──► ends ──► data::{send, recv} ──► verbs ──► device ──► fabric
//!           ├─────► control ──► control::peer_state
//!           └─────► plan, faults, laws
//! ```
//!
//! Every test runs many seeds: `FERRITE_SIM_SEEDS=1000000` sets how many, `FERRITE_SIM_SEED=42`
//! runs just that one; both together run so many from that one on, so that several processes can
//! share the work.
//!
//! Recovery has simulators of its own, in [`crate::proto`].

mod control;
mod device;
mod ends;
mod fabric;
mod faults;
mod laws;
mod plan;
mod world;

use crate::proto::random::{Random, run_seeds};
use ends::End;
use faults::Fault;
use plan::Plan;
use world::{Outcome, World};

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

/// The sender has closed in good order after the last acknowledgement, so that a write to it over
/// one rail fails, while the completion of the last message waits in the queue of another rail.
#[test]
fn known_seed_a_request_is_complete_though_a_rail_that_is_polled_before_has_failed() {
    let (_, outcome) = run(Random::new(40_919), Faults::Survivable);
    assert!(outcome.is_all_delivered);
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
