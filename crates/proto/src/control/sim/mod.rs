//! Two processes that connect to each other, over a TCP that a seed is in charge of.
//!
//! Both listen and both dial, several connections each way. Bytes come in pieces of any length.
//! Control connections are reset, closed by something between the two, or lost silently, at any
//! byte, and one end may hear of it long after the other one; ports refuse for a moment, and
//! firewalls for seconds or minutes; a connection is given up at any step and begun anew; one
//! process may die, with something unread or not, with a child that keeps its device open for a
//! time or not; both may be stopped for a while; one may not tell its port, as an earlier release;
//! and a hostile client that knows only a token sends arbitrary bytes to the ports. Then the
//! network is well again, and all is quiet. Whatever the seed:
//!
//! 1. while both processes live and nobody has closed it, a connection is open at both ends in the
//!    end, and never reported as closed or broken before;
//! 2. each connection that is asked for comes about;
//! 3. when a process has died, its peer learns it at each end that can call it, within seconds
//!    after the last control connection has ended;
//! 4. no stream receives a frame of another one;
//! 5. what is kept is bounded, and nothing is kept of connections that are no more;
//! 6. frames of established ends come in order and none twice, over one control connection none is
//!    missing, and none comes after the loss of the control connection that it was sent over;
//! 7. every run comes to an end.
//!
//! `FERRITE_SIM_SEEDS=1000000` runs that many schedules, `FERRITE_SIM_SEED=42` just that one, and
//! both together so many from that one on.

#![allow(clippy::expect_used, clippy::panic)]

mod app;
mod closing;
mod frame_order;
mod hostile;
mod life;
mod network;
mod recovery_frames;
#[cfg(test)]
mod strangers;
mod world;

use crate::random::Random;
use world::World;

#[cfg(test)]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[cfg(test)]
fn run(seed: u64) {
    let result = std::panic::catch_unwind(|| World::new(seed, Random::new(seed)).run());
    if result.is_err() {
        panic!("seed {seed}: FERRITE_SIM_SEED={seed} runs it again");
    }
}

/// Runs the schedule that follows from `random`, and checks what has to hold.
pub(crate) fn check(random: Random) {
    World::new(0, random).run();
}

#[test]
fn no_schedule_of_losses_ends_a_connection_whose_processes_live() {
    let (first, count) = match (number("FERRITE_SIM_SEED"), number("FERRITE_SIM_SEEDS")) {
        (Some(seed), count) => (seed, count.unwrap_or(1)),
        (None, count) => (0, count.unwrap_or(5000)),
    };
    (first..first + count).for_each(run);
}

#[test]
fn whatever_strangers_say_no_more_of_them_are_kept_than_may_be() {
    (0..100).for_each(strangers::run);
}
