//! Attempts at a control connection to a listener's process, and what follows from their failures.

use crate::proto::control::Time;
use crate::proto::control::redial::Refusals;

/// TCP connection errors that may pass.
const PASSING: [i32; 6] = [
    libc::ECONNREFUSED,
    libc::ETIMEDOUT,
    libc::ECONNRESET,
    libc::EAGAIN,
    libc::EHOSTUNREACH,
    libc::ENETUNREACH,
];

/// The attempts for one connection.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// Refusals in a row by the listener's port.
    refusals: Refusals,
    /// Whether a control connection to the listener's process has ended without a frame. The
    /// process may have too many clients or connections on that one, or it is dead. In the latter
    /// case its port is closed as well.
    turned_away: bool,
    /// The errno of the latest failed attempt.
    trouble: Option<i32>,
}

/// What follows from a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It may pass.
    Transient,
    /// It is permanent.
    Permanent,
    /// The listener's process has died, or it took another peer.
    Abandoned,
}

impl Dials {
    /// A control connection is established.
    pub(super) fn handle_connected(&mut self) {
        self.refusals.clear();
    }

    /// The control connection has ended before the listener answered.
    pub(super) fn handle_end(&mut self) {
        self.turned_away = true;
    }

    /// An attempt has failed with `errno` at `now`.
    pub(super) fn handle_failed_dial(&mut self, errno: i32, now: Time) -> Failure {
        if !PASSING.contains(&errno) {
            return Failure::Permanent;
        }
        match errno {
            libc::ECONNREFUSED => self.refusals.handle_refusal(now),
            _ => self.refusals.clear(),
        }
        self.trouble = Some(errno);
        if self.turned_away && self.refusals.indicate_peer_death(now) {
            Failure::Abandoned
        } else {
            Failure::Transient
        }
    }

    /// The outcome when time is up.
    pub(super) fn outcome(&self) -> &'static str {
        match self.turned_away {
            true => "the listener accepted connections and closed them without an answer",
            false => {
                "no TCP connection was established (is the peer's process alive, and its port reachable?)"
            }
        }
    }

    /// The latest failure; empty if none.
    pub(super) fn trouble(&self) -> String {
        let trouble = self.trouble.map(std::io::Error::from_raw_os_error);
        trouble.map(|error| format!("the latest attempt: {error}")).unwrap_or_default()
    }

    /// The latest failure, as an addition to a message.
    pub(super) fn latest_failure(&self) -> String {
        let trouble = self.trouble();
        if trouble.is_empty() { trouble } else { format!("; {trouble}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// What follows from three refusals within two seconds.
    fn refused(dials: &mut Dials) -> [Failure; 3] {
        [0, 1, 2]
            .map(|second| dials.handle_failed_dial(libc::ECONNREFUSED, Duration::from_secs(second)))
    }

    #[test]
    fn a_port_that_refuses_is_a_dead_process_s_only_where_a_connection_to_it_has_ended() {
        assert_eq!(
            refused(&mut Dials::default()),
            [Failure::Transient; 3],
            "nobody may have listened yet"
        );
        let mut dials = Dials::default();
        dials.handle_end();
        assert_eq!(
            refused(&mut dials),
            [Failure::Transient, Failure::Transient, Failure::Abandoned]
        );
    }

    #[test]
    fn refusals_before_a_connection_or_before_another_failure_tell_of_no_death() {
        let end_it: [fn(&mut Dials); 2] = [Dials::handle_connected, |dials| {
            dials.handle_failed_dial(libc::ETIMEDOUT, Duration::from_secs(3));
        }];
        for end_it in end_it {
            let mut dials = Dials::default();
            refused(&mut dials);
            end_it(&mut dials);
            dials.handle_end();
            assert_eq!(
                dials.handle_failed_dial(libc::ECONNREFUSED, Duration::from_secs(4)),
                Failure::Transient
            );
        }
    }

    #[test]
    fn what_is_wrong_with_the_address_does_not_pass_and_what_is_wrong_with_the_network_may() {
        let mut dials = Dials::default();
        for errno in PASSING {
            assert_eq!(
                dials.handle_failed_dial(errno, Duration::ZERO),
                Failure::Transient,
                "{errno}"
            );
        }
        for errno in [libc::EINVAL, libc::EACCES, libc::EAFNOSUPPORT, libc::ENOMEM] {
            assert_eq!(
                dials.handle_failed_dial(errno, Duration::ZERO),
                Failure::Permanent,
                "{errno}"
            );
        }
    }

    #[test]
    fn it_is_reported_whether_there_was_a_connection_and_how_the_latest_attempt_failed() {
        let mut dials = Dials::default();
        assert!(
            dials.outcome().starts_with("no TCP connection was established "),
            "{}",
            dials.outcome()
        );
        assert_eq!(dials.latest_failure(), "");
        dials.handle_end();
        assert!(
            dials.outcome().starts_with("the listener accepted connections and closed them "),
            "{}",
            dials.outcome()
        );
        dials.handle_failed_dial(libc::ETIMEDOUT, Duration::ZERO);
        dials.handle_failed_dial(libc::ECONNREFUSED, Duration::ZERO);
        assert_eq!(
            dials.latest_failure(),
            "; the latest attempt: Connection refused (os error 111)"
        );
    }
}
