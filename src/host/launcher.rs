//! This process's rank, from the job's launcher.

use std::sync::OnceLock;

/// The launchers' variables for it: torchrun, Slurm, Open MPI, PMIx. The first one that is set
/// counts.
const VARIABLES: [&str; 4] = ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"];

/// The variable with the rank, and the rank. The first call reads the environment, while NCCL
/// initialises the plugin: later, a thread of the program may change it.
pub fn rank() -> Option<(&'static str, u32)> {
    static RANK: OnceLock<Option<(&'static str, u32)>> = OnceLock::new();
    *RANK.get_or_init(|| rank_in(|name| std::env::var(name).ok()))
}

fn rank_in(lookup: impl Fn(&str) -> Option<String>) -> Option<(&'static str, u32)> {
    let read = |name: &'static str| {
        Some((name, lookup(name)?.trim().parse().ok().filter(|rank| *rank < 1 << 31)?))
    };
    VARIABLES.into_iter().find_map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_with_a_rank_counts() {
        let with = |set: &'static [(&str, &str)]| {
            rank_in(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(with(&[]), None);
        assert_eq!(
            with(&[("PMIX_RANK", "3"), ("SLURM_PROCID", "118")]),
            Some(("SLURM_PROCID", 118))
        );
        assert_eq!(with(&[("RANK", "none"), ("PMIX_RANK", " 0 ")]), Some(("PMIX_RANK", 0)));
        assert_eq!(with(&[("RANK", "-1"), ("SLURM_PROCID", "4294967296")]), None);
    }
}
