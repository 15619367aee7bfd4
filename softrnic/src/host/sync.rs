//! Atomics of protocols that `tests/models` explores: there, these names are those of a model checker.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};
pub(crate) use std::thread::yield_now;
