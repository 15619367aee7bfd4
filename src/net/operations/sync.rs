//! The atomics of `place`. `tests/models` has a model checker's in place of this file.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
