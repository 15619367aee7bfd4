//! Errors that connection set-up waits out: an unusable port, or a failing device.

use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use std::time::{Duration, Instant};

/// Returns `error` if it may pass, so that the caller tries again. Starts watching the devices of
/// `nic`, so that a failing one is known to be lost and is opened again.
///
/// # Errors
/// The error for the user: `error` is permanent or has lasted until `deadline`, or no watcher can
/// be started.
pub(super) fn wait_out(nic: &Nic, error: Error, deadline: Instant) -> Result<Error> {
    if !nic.config.failover || !error.is_recoverable {
        return Err(error);
    }
    if Instant::now() >= deadline {
        return Err(given_up(nic, error));
    }
    let watched = nic.cards.iter().try_for_each(|card| card.watcher().map(drop));
    watched.map_err(|unwatched| not_waited_for(unwatched, &error))?;
    Ok(error)
}

/// `error`, which has lasted until the deadline.
pub(super) fn given_up(nic: &Nic, error: Error) -> Error {
    error.context(format!(
        "still failing after {} s (FERRITE_HANDSHAKE_TIMEOUT)",
        nic.config.handshake_timeout_s
    ))
}

/// Whether a control connection that ended after `up` counts as established, rather than as a
/// failed attempt. `limit` is the time that a set-up may take.
pub(super) fn was_established(up: Duration, limit: Duration) -> bool {
    up > limit / 10
}

/// No watcher can be started because of `unwatched`, so waiting for `error` to pass is impossible.
fn not_waited_for(unwatched: Error, error: &Error) -> Error {
    unwatched.context(format!("cannot wait for this to pass: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_connection_was_established_after_more_than_a_tenth_of_the_limit() {
        let seconds = Duration::from_secs;
        assert_eq!(
            [0, 6, 7, 60, 600].map(|up| was_established(seconds(up), seconds(60))),
            [false, false, true, true, true]
        );
    }

    #[test]
    fn an_error_that_cannot_be_waited_out_says_first_why_not() {
        let unwatched = Error::os("a thread for softrnic0", libc::EAGAIN);
        let told =
            not_waited_for(unwatched, &Error::system("port 1 of softrnic0 is down").recoverable());
        let text = "a thread for softrnic0 failed: Resource temporarily unavailable (os error 11); cannot wait for \
                    this to pass: port 1 of softrnic0 is down";
        assert_eq!(
            (told.text().as_str(), told.errno, told.is_recoverable),
            (text, Some(libc::EAGAIN), false)
        );
    }
}
