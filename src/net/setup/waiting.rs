//! Which errors are waited out while a connection is set up: a port cannot be used just now, or a device fails.

use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use std::time::{Duration, Instant};

/// Returns `error` if it may pass, so that the caller tries again. From then on the events of the devices of `nic` are taken, so that one
/// that fails is known to be lost, and is opened again.
///
/// # Errors
/// What the user is told. `error` does not pass, or not until `deadline`; or nobody can take the events.
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

/// `error`, which has been waited out until the end of the time for that.
pub(super) fn given_up(nic: &Nic, error: Error) -> Error {
    error.context(format!("waited for it for FERRITE_HANDSHAKE_TIMEOUT={} s", nic.config.handshake_timeout_s))
}

/// Whether a control connection that has ended after `up` counts as one that was established, and not as an attempt that failed. `limit` is
/// how long a set-up may take.
pub(super) fn was_established(up: Duration, limit: Duration) -> bool {
    up > limit / 10
}

/// There is no thread that would take the events of a device, because of `unwatched`, so `error` cannot be waited out.
fn not_waited_for(unwatched: Error, error: &Error) -> Error {
    unwatched.context(format!("needed to wait until this has passed: {error}"))
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
        let told = not_waited_for(unwatched, &Error::system("port 1 of softrnic0 is down").recoverable());
        let text = "a thread for softrnic0 failed: Resource temporarily unavailable (os error 11); needed to wait until \
                    this has passed: port 1 of softrnic0 is down";
        assert_eq!((told.text().as_str(), told.errno, told.is_recoverable), (text, Some(libc::EAGAIN), false));
    }
}
