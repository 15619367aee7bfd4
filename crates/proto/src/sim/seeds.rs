//! Which seeds run: so many as a test says, or those that the environment names.

/// Calls `run` with `count` seeds, or with those that the environment names.
pub(super) fn run_seeds(count: u64, what: &str, mut run: impl FnMut(u64)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, count) = match (number("FERRITE_SIM_SEED"), number("FERRITE_SIM_SEEDS")) {
        (Some(seed), count) => (seed, count.unwrap_or(1)),
        (None, named) => (0, named.unwrap_or(count)),
    };
    for seed in first..first + count {
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        assert!(checked.is_ok(), "{what}: replay with FERRITE_SIM_SEED={seed}");
    }
}
