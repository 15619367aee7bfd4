//! The rules and the seed that a process brings with it, in its environment. All processes of a job have the same
//! environment; the first one's rules count, the others' are known by their text.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{table, text};
use crate::fabric::Fabric;
use crate::fabric::file::{Control, Failure};

/// Adds what `SOFTRNIC_FAULTS` and `SOFTRNIC_SEED` say, if the fabric does not have it yet.
pub(crate) fn bring(fabric: &Fabric, control: &Control<'_>) -> Result<(), Failure> {
    let header = fabric.header();
    if let Some(seed) = fabric.settings.seed {
        header.seed.store(seed, SeqCst);
    }
    let Some(rules) = &fabric.settings.faults else { return Ok(()) };
    let mut hasher = DefaultHasher::new();
    rules.hash(&mut hasher);
    let hash = hasher.finish() | 1;
    if header.rule_texts.iter().any(|known| known.load(Relaxed) == hash) {
        return Ok(());
    }
    let refused = |what: String| (format!("SOFTRNIC_FAULTS: {what}"), libc::EINVAL);
    let rules = text::parse(rules).map_err(|e| refused(e.to_string()))?;
    table::require(&fabric.shape, &rules).map_err(refused)?;
    table::install(fabric, control, &rules).map_err(refused)?;
    if let Some(free) = header.rule_texts.iter().find(|known| known.load(Relaxed) == 0) {
        free.store(hash, Relaxed);
    }
    Ok(())
}
