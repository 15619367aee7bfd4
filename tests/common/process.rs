//! The body of a test in two processes, or in one.

use lab::error::Result;
use lab::pair::Setting;
use lab::pair::WorkerCtx;
use lab::verbs::Verbs;
use serde::Serialize;
use serde::de::DeserializeOwned;
use testkit::{Missing, require, test_name};

/// Whether this process is one of the two that a test has started.
pub(crate) fn is_worker() -> bool {
    std::env::var_os("FERRITE_TASK").is_some()
}

/// Runs `body` in two processes, and returns what they returned.
pub(crate) fn pair<T>(
    setting: &Setting,
    body: impl FnOnce(&mut WorkerCtx) -> Result<T>,
) -> Result<[T; 2]>
where
    T: Serialize + DeserializeOwned,
{
    // Devices of the system are in its own namespace.
    if !is_worker() && setting.verbs != Verbs::System {
        testkit::network::own();
    }
    lab::pair::run(&test_name(), setting, body)
}

/// Runs `body` in two processes. The test ends as skipped if something is missing for `setting`.
pub(crate) fn both(
    setting: std::result::Result<Setting, Missing>,
    body: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<()> {
    pair(&require!(setting), body).map(drop)
}

/// Runs `body` in a process of its own; its peer only waits. The test ends as skipped if something
/// is missing for `setting`.
pub(crate) fn alone(
    setting: std::result::Result<Setting, Missing>,
    body: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<()> {
    both(setting, |worker| {
        if worker.rank() == 0 {
            body(worker)?;
        }
        worker.barrier()
    })
}
