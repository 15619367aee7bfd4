//! Two processes that connect to each other, over a TCP that a seed is in charge of.
//!
//! Both listen and both dial, several connections each way. Bytes come in pieces of any length. Control connections are reset,
//! or lost without a word, at any byte; ports refuse for a moment; a connection is given up at any step and begun anew; one
//! process may die, and somebody who knows no more than a token says anything at the ports. Then the network is well again, and
//! all is quiet. Whatever the seed:
//!
//! 1. while both processes live and nobody has closed it, a connection is open at both ends in the end, and never said to be
//!    closed or broken before;
//! 2. whoever wants a connection gets it;
//! 3. when a process has died, its peer is told at each end that dials, and at each end whose control connection stood;
//! 4. no stream hears a frame of another one;
//! 5. what is kept is bounded, and nothing is kept of connections that are no more;
//! 6. frames of established ends come in order and none twice, over one control connection none is missing, and none comes after the
//!    loss of the control connection that it was sent over;
//! 7. it all comes to an end.
//!
//! `FERRITE_SIM_SEEDS=1000000` runs that many schedules, `FERRITE_SIM_SEED=42` just that one.

mod app;
mod dice;
mod hostile;
mod network;
mod speech;
mod talk;
mod world;

use world::World;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn run(seed: u64) {
    let result = std::panic::catch_unwind(|| World::new(seed).run());
    if result.is_err() {
        panic!("seed {seed}: FERRITE_SIM_SEED={seed} runs it again");
    }
}

#[test]
fn no_schedule_of_losses_ends_a_connection_whose_processes_live() {
    if let Some(seed) = number("FERRITE_SIM_SEED") {
        return run(seed);
    }
    (0..number("FERRITE_SIM_SEEDS").unwrap_or(2000)).for_each(run);
}
