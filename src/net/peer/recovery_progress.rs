//! The progress of a long recovery, for reports on what the connection waits for.

use std::fmt;
use std::time::{Duration, Instant};

/// A recovery in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// Since when the connection has not run.
    pub since: Instant,
    /// Attempts since then.
    pub attempts: u32,
    /// Why the latest attempt began.
    pub cause: String,
    /// What this end waits for.
    pub waits_for: String,
    /// The rails of the connection.
    pub rails: Vec<RailStanding>,
}

/// One rail of a recovering connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailStanding {
    /// Its number.
    pub number: u8,
    /// This end's port.
    pub port: String,
    /// Whether it is usable at this end: the port is active and has an address.
    pub is_usable: bool,
    /// Whether it was usable at the peer's end in its latest report.
    pub is_usable_by_peer: bool,
}

impl RecoveryProgress {
    /// How long the connection has not run.
    pub fn lasted(&self) -> Duration {
        self.since.elapsed()
    }

    /// How far it is, what to check, each rail with this end's port, and the latest failure: what
    /// another process needs to find the fault.
    pub fn summary(&self) -> String {
        let (seconds, attempts) = (self.lasted().as_secs_f64(), self.attempts);
        let rail = |RailStanding { number, port, is_usable, is_usable_by_peer }: &RailStanding| {
            let state = match (is_usable, is_usable_by_peer) {
                (true, true) => "port up at both ends, no acknowledgement",
                (false, true) => "this end cannot use its port",
                (true, false) => "the peer cannot use its port",
                (false, false) => "neither end can use its port",
            };
            format!(". Rail {number} ({port}): {state}")
        };
        let rails: String = self.rails.iter().map(rail).collect();
        // The rest of an error's text has been logged.
        let latest = self.cause.split_once("; ").map_or(self.cause.as_str(), |(first, _)| first);
        let has_rail = self.rails.iter().any(|rail| rail.is_usable && rail.is_usable_by_peer);
        let check = match has_rail {
            true => "the path between the ports (switches, routes, access lists)",
            false => "the port (cable, switch port, address, card)",
        };
        format!(
            "has been recovering from a fault for {seconds:.1} s, attempt {attempts}. Check {check}{rails}. Latest failure: {latest}"
        )
    }
}

impl fmt::Display for RecoveryProgress {
    /// The most useful part first: a log may cut the line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the connection {}. {}", self.summary(), self.waits_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_tells_its_ports_and_what_to_check() {
        let of = |is_usable, is_usable_by_peer| {
            let rail =
                RailStanding { number: 0, port: "mlx5_0:1".into(), is_usable, is_usable_by_peer };
            let progress = RecoveryProgress {
                since: Instant::now(),
                attempts: 21,
                cause: "no acknowledgement on rail(s) 0".into(),
                waits_for: "New queue pairs are being connected and tested".into(),
                rails: vec![rail],
            };
            progress.to_string()
        };
        let text = of(true, true);
        for words in [
            "attempt 21",
            "Rail 0 (mlx5_0:1): port up at both ends, no acknowledgement",
            "Latest failure: no acknowledgement on rail(s) 0",
            "switches",
        ] {
            assert!(text.contains(words), "{text}");
        }
        for (usable, by_peer, whose) in [
            (false, true, "this end cannot"),
            (true, false, "the peer cannot"),
            (false, false, "neither end can"),
        ] {
            let text = of(usable, by_peer);
            assert!(
                text.contains(whose) && text.contains("cable") && !text.contains("switches,"),
                "{text}"
            );
        }
    }
}
