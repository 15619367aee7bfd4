//! The atomics of `place`. `tests/models` replaces this file by a model checker's.

pub(super) use std::sync::atomic::{AtomicU64, Ordering, fence};
