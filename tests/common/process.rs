//! The body of a test in two processes, or in one.

use ferrite::error::Result;
use ferrite::pair::Setting;
use ferrite::seat::Seat;
use serde::Serialize;
use serde::de::DeserializeOwned;
use testkit::test_name;

/// Runs `body` in two processes, and returns what they returned.
pub(crate) fn pair<T>(setting: &Setting, body: impl FnOnce(&mut Seat) -> Result<T>) -> Result<[T; 2]>
where
    T: Serialize + DeserializeOwned,
{
    ferrite::pair::run(&test_name(), setting, body)
}

/// Runs `body` in a process of its own; its peer only waits.
pub(crate) fn alone(setting: &Setting, body: impl FnOnce(&mut Seat) -> Result<()>) -> Result<()> {
    pair(setting, |seat| {
        if seat.rank() == 0 {
            body(seat)?;
        }
        seat.barrier()
    })?;
    Ok(())
}
