//! The faults of a scenario and their times.

use std::time::Duration;

use crate::error::Result;
use crate::outlast::fault::{Fault, Step};

/// When the first random fault begins; ms.
const FIRST_MS: u64 = 500;
/// How long a stream lasts after the last random fault; ms.
const AFTER_LAST_MS: u64 = 1000;

/// Which faults there are, and when.
#[derive(Debug, Clone, Copy)]
pub(super) enum Script {
    /// Milliseconds after the start, and the fault as [`Fault::parse`] reads it.
    Fixed(&'static [(u64, &'static str)]),
    /// These ports, one of them at a time and at random, go down for 5 to 60 ms, after 20 to 60 ms up.
    Flaps(&'static [&'static str]),
    /// Faults of [`KINDS`] at these devices.
    Random(&'static [&'static str]),
}

/// A kind of fault: what begins it, with `{}` for a device; how long it lasts at most, in ms; and what ends it.
type Kind = (&'static str, u64, Option<&'static str>);

/// Faults after which a connection can go on.
const KINDS: &[Kind] = &[
    ("port {}/1 down", 400, Some("port {}/1 up")),
    ("drop device={} attempts=all", 600, Some("clear")),
    ("drop-ack device={} attempts=all", 600, Some("clear")),
    ("drop device={} opcode=write attempts=all", 600, Some("clear")),
    ("late=200ms device={} opcode=write,write-imm attempts=all times=4", 0, None),
    ("delay=30ms device={} times=3", 0, None),
    ("qp-error device={} times=1", 0, None),
    ("operation-error device={} times=1", 0, None),
    ("line cut", 0, None),
    ("line silent 300ms", 0, None),
];

impl Script {
    /// The steps in the order of their times, and when the stream ends if they say so. `faults` is how many random ones there are.
    ///
    /// # Errors
    /// Those of [`Fault::parse`].
    pub(super) fn steps(&self, seed: u64, faults: u32) -> Result<(Vec<Step>, Option<Duration>)> {
        let mut script = Steps { steps: Vec::new(), random: Random(seed), at: FIRST_MS };
        match self {
            Self::Fixed(lines) => {
                lines.iter().try_for_each(|(at, text)| script.push(*at, text))?;
                return Ok((script.steps, None));
            }
            Self::Flaps(ports) => (0..faults).try_for_each(|_| script.push_flap(ports))?,
            Self::Random(devices) => (0..faults).try_for_each(|_| script.push_any(devices))?,
        }
        script.steps.sort_by_key(|step| step.at);
        let last = script.steps.last().map_or(Duration::ZERO, |step| step.at);
        let end = last.max(Duration::from_millis(script.at)) + Duration::from_millis(AFTER_LAST_MS);
        Ok((script.steps, Some(end)))
    }
}

/// Steps that are made one after the other.
struct Steps {
    steps: Vec<Step>,
    random: Random,
    /// When the next one begins; ms.
    at: u64,
}

impl Steps {
    fn push(&mut self, at_ms: u64, text: &str) -> Result<()> {
        self.steps.push(Step { at: Duration::from_millis(at_ms), fault: Fault::parse(text)? });
        Ok(())
    }

    fn push_flap(&mut self, ports: &[&str]) -> Result<()> {
        let port = self.random.of(ports);
        for (state, least, most) in [("down", 5, 60), ("up", 20, 60)] {
            self.push(self.at, &format!("port {port} {state}"))?;
            self.at += least + self.random.below(most - least + 1);
        }
        Ok(())
    }

    /// Of four faults one begins while another one lasts.
    fn push_any(&mut self, devices: &[&str]) -> Result<()> {
        let (begin, longest, end) = *self.random.of(KINDS);
        let device = *self.random.of(devices);
        let lasting = self.random.below(longest + 1);
        self.push(self.at, &begin.replace("{}", device))?;
        if let Some(end) = end {
            self.push(self.at + lasting, &end.replace("{}", device))?;
        }
        let overlaps = self.random.below(4) == 0;
        self.at += if overlaps { self.random.below(lasting + 1) } else { lasting + 50 + self.random.below(1000) };
        Ok(())
    }
}

/// A generator of random numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_faults_are_those_of_the_seed() {
        for (script, steps) in [(Script::Flaps(&["a/1", "b/1"]), 40), (Script::Random(&["a", "b"]), 20)] {
            let made = |seed| script.steps(seed, 20).expect("it is read");
            assert_eq!(made(3), made(3));
            assert_ne!(made(3), made(4));
            assert!(made(3).0.len() >= steps, "{:?}", made(3));
        }
    }

    #[test]
    fn random_faults_have_every_kind_and_each_that_lasts_has_an_end() {
        let (steps, _) = Script::Random(&["a"]).steps(1, 300).expect("it is read");
        let count = |text: &str| steps.iter().filter(|step| step.fault.to_string() == text).count();
        for (begin, _, end) in KINDS {
            assert!(count(&begin.replace("{}", "a")) > 0, "{begin}");
            assert!(end.is_none_or(|end| count(&end.replace("{}", "a")) > 0), "{begin}");
        }
        assert_eq!(count("port a/1 down"), count("port a/1 up"));
    }
}
