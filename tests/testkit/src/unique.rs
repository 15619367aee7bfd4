//! Names that nobody else on this machine uses.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};

/// `PREFIX-PID-NUMBER-RANDOM`: another one at each call. The random part tells processes with the
/// same id in different process id namespaces apart.
#[must_use]
pub fn unique_name(prefix: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let random = RandomState::new().hash_one(number) as u32;
    format!("{prefix}-{pid}-{number}-{random:08x}")
}
