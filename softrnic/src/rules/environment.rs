//! The rules and the seed in a process's environment. All processes of a job have the same environment: the rules of the
//! first one count, those of the others are recognised by the hash of their text and left out.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::network::topology::Topology;
use crate::rules::rule::FaultRule;
use crate::rules::{table, text};
use crate::shm::file::{ControlLock, Failure, SharedFile};

/// Adds what `SOFTRNIC_FAULTS` and `SOFTRNIC_SEED` say, if the fabric does not have it yet.
pub(crate) fn load_env(
    file: &SharedFile,
    control: &ControlLock<'_>,
    topology: &Topology,
    rules: Option<&str>,
    seed: Option<u64>,
) -> Result<(), Failure> {
    let header = file.header();
    if let Some(seed) = seed {
        header.seed.store(seed, SeqCst);
    }
    let Some(rules) = rules else { return Ok(()) };
    let mut hasher = DefaultHasher::new();
    rules.hash(&mut hasher);
    let hash = hasher.finish() | 1;
    if header.rule_texts.iter().any(|known| known.load(Relaxed) == hash) {
        return Ok(());
    }
    let rules = parse(topology, rules).map_err(|what| (what, libc::EINVAL))?;
    table::install(file, control, &rules).map_err(|what| (named(&what), libc::EINVAL))?;
    if let Some(free) = header.rule_texts.iter().find(|known| known.load(Relaxed) == 0) {
        free.store(hash, Relaxed);
    }
    Ok(())
}

/// The rules in the text of `SOFTRNIC_FAULTS`, which fit this fabric; or a sentence.
pub(crate) fn parse(topology: &Topology, rules: &str) -> Result<Vec<FaultRule>, String> {
    let rules = text::parse(rules).map_err(|error| named(&error.to_string()))?;
    table::require(topology, &rules).map_err(|what| named(&what))?;
    Ok(rules)
}

fn named(what: &str) -> String {
    format!("SOFTRNIC_FAULTS: {what}")
}
