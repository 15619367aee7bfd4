//! How often the log reports lost control connections to one host.

use super::Time;
use super::event::Level;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// After a warning for a host, further losses of control connections to it are logged at debug
/// level for this time.
const QUIET: Duration = Duration::from_secs(60);

/// The latest warning of each host.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<IpAddr, Time>);

impl Losses {
    /// The urgency of a lost control connection to `host`.
    pub(super) fn level(&mut self, now: Time, host: IpAddr) -> Level {
        self.0.retain(|_, warned| now.saturating_sub(*warned) < QUIET);
        if self.0.contains_key(&host) {
            return Level::Debug;
        }
        self.0.insert(host, now);
        Level::Warn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn a_host_is_warned_of_once_a_minute_and_forgotten_after_that() {
        let mut losses = Losses::default();
        let host = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
        let at = Duration::from_secs;
        assert_eq!(
            [losses.level(at(1), host(1)), losses.level(at(60), host(1))],
            [Level::Warn, Level::Debug]
        );
        assert_eq!(
            [losses.level(at(60), host(2)), losses.level(at(61), host(1))],
            [Level::Warn, Level::Warn]
        );
        losses.level(at(1000), host(3));
        assert_eq!(losses.0.len(), 1);
    }
}
