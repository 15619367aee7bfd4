//! The scenarios: which faults, when, over how many ports.
//!
//! Times are scaled: the retries of a queue pair last half a second ([`RETRIES`]), not the
//! transports' 8.6 s (NCCL up to 2.22, Ferrite) or 34 s, so an outage of three seconds stands for
//! one of minutes.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::verbs::Verbs;

/// Transmissions 67 ms apart, eight of them.
pub(crate) const RETRIES: [(&str, &str); 2] =
    [("NCCL_IB_TIMEOUT", "14"), ("NCCL_IB_RETRY_CNT", "7")];
/// Transmissions 4 ms apart, and 17 ms.
const RETRIES_34_MS: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "10"), ("NCCL_IB_RETRY_CNT", "7")];
const RETRIES_134_MS: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "12"), ("NCCL_IB_RETRY_CNT", "7")];

/// Which ports the stream goes over. Rank 0, the sender, is on the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ports {
    /// softrnic0 and softrnic1.
    One,
    /// softrnic0 and 1 as one device, softrnic2 and 3 as one.
    Two,
}

/// A scenario.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// What happens, in a line.
    pub(crate) claim: &'static str,
    pub(crate) ports: Ports,
    /// How long the stream would last without a fault; ms.
    pub(crate) stream_ms: u64,
    /// As [`StreamPlan::pause`](StreamPlan::pause).
    pub(crate) pause: Option<(u64, u64)>,
    /// The variables of [`RETRIES`].
    pub(crate) retries: [(&'static str, &'static str); 2],
    script: Script,
}

const fn scenario(
    name: &'static str,
    claim: &'static str,
    ports: Ports,
    stream_ms: u64,
    script: &'static [(u64, &'static str)],
) -> Scenario {
    Scenario {
        name,
        claim,
        ports,
        stream_ms,
        pause: None,
        retries: RETRIES,
        script: Script::Fixed(script),
    }
}

const fn flaps(
    name: &'static str,
    claim: &'static str,
    ports: Ports,
    of: &'static [&'static str],
) -> Scenario {
    let script = Script::Flaps(of);
    Scenario { name, claim, ports, stream_ms: 0, pause: None, retries: RETRIES, script }
}

/// The devices of [`Ports::Two`], with one port each.
const DEVICES: &[&str] = &["softrnic0", "softrnic1", "softrnic2", "softrnic3"];

/// All of them.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("none", "no fault", Ports::One, 1000, &[]),
    scenario("none-two-ports", "two ports, no fault", Ports::Two, 1000, &[]),
    scenario(
        "flap-sender",
        "the sender's port is down for 20 ms",
        Ports::One,
        2000,
        &[(500, "port softrnic0/1 down"), (520, "port softrnic0/1 up")],
    ),
    scenario(
        "flap-receiver",
        "the receiver's port is down for 20 ms",
        Ports::One,
        2000,
        &[(500, "port softrnic1/1 down"), (520, "port softrnic1/1 up")],
    ),
    scenario(
        "flap-both",
        "both ports are down for 20 ms",
        Ports::One,
        2000,
        &[
            (500, "port softrnic0/1 down"),
            (500, "port softrnic1/1 down"),
            (520, "port softrnic0/1 up"),
            (520, "port softrnic1/1 up"),
        ],
    ),
    flaps(
        "flaps",
        "the sender's port goes down and up again and again",
        Ports::One,
        &["softrnic0/1"],
    ),
    flaps(
        "flaps-two-ports",
        "two ports; any of the four goes down and up, again and again",
        Ports::Two,
        &["softrnic0/1", "softrnic1/1", "softrnic2/1", "softrnic3/1"],
    ),
    scenario(
        "port-down",
        "the only port is down for 3 s, longer than the retries",
        Ports::One,
        5000,
        &[(500, "port softrnic0/1 down"), (3500, "port softrnic0/1 up")],
    ),
    scenario(
        "port-down-receiver",
        "the receiver's only port is down for 3 s",
        Ports::One,
        5000,
        &[(500, "port softrnic1/1 down"), (3500, "port softrnic1/1 up")],
    ),
    scenario(
        "first-port-down",
        "two ports; the first goes down for good",
        Ports::Two,
        3000,
        &[(500, "port softrnic0/1 down")],
    ),
    scenario(
        "second-port-down",
        "two ports; the second goes down for good",
        Ports::Two,
        3000,
        &[(500, "port softrnic1/1 down")],
    ),
    scenario(
        "port-back",
        "two ports; the first is down for 1 s, four seconds later the second goes down for good",
        Ports::Two,
        8000,
        &[
            (500, "port softrnic0/1 down"),
            (1500, "port softrnic0/1 up"),
            (5500, "port softrnic1/1 down"),
        ],
    ),
    scenario(
        "ports-in-turn",
        "two ports; the first goes down, then the second, then the first comes back",
        Ports::Two,
        6000,
        &[
            (500, "port softrnic0/1 down"),
            (2000, "port softrnic1/1 down"),
            (4000, "port softrnic0/1 up"),
        ],
    ),
    scenario(
        "ports-in-turn-second-back",
        "two ports; the first goes down for good, then the second is down for 2 s",
        Ports::Two,
        6000,
        &[
            (500, "port softrnic0/1 down"),
            (2000, "port softrnic1/1 down"),
            (4000, "port softrnic1/1 up"),
        ],
    ),
    scenario(
        "black-hole",
        "the only way from the sender loses everything for 2 s; no port tells of it",
        Ports::One,
        4000,
        &[(500, "drop device=softrnic0 attempts=all"), (2500, "clear")],
    ),
    scenario(
        "black-hole-first-port",
        "two ports; all that the sender sends from the first is lost from now on; no port tells of it",
        Ports::Two,
        3000,
        &[(500, "drop device=softrnic0 attempts=all")],
    ),
    scenario(
        "ack-lost",
        "all arrives, but for 1 s no acknowledgement comes back to the sender",
        Ports::One,
        3000,
        &[(500, "drop-ack device=softrnic0 attempts=all"), (1500, "clear")],
    ),
    scenario(
        "cts-lost",
        "for 1 s the receiver's clear-to-sends are lost",
        Ports::One,
        3000,
        &[(500, "drop device=softrnic1 opcode=write attempts=all"), (1500, "clear")],
    ),
    scenario(
        "late-write",
        "two ports; a message of the first is taken for lost, and arrives 300 ms after its retries",
        Ports::Two,
        4000,
        &[(500, "late=900ms device=softrnic0 opcode=write,write-imm attempts=all times=8")],
    ),
    Scenario {
        name: "ack-lost-idle-receiver",
        claim: "two ports; an acknowledgement is lost while the receiver makes no call for 100 ms, longer than the retries",
        ports: Ports::Two,
        stream_ms: 3000,
        pause: Some((199, 100)),
        retries: RETRIES_34_MS,
        script: Script::Fixed(&[(0, "drop-ack device=softrnic0 flow=0 message=200 attempts=all")]),
    },
    Scenario {
        name: "ack-lost-replay-delayed",
        claim: "the same for 200 ms, and what is sent again comes 150 ms late: when the receiver has seen the message",
        ports: Ports::Two,
        stream_ms: 3000,
        pause: Some((199, 200)),
        retries: RETRIES_134_MS,
        script: Script::Fixed(&[
            (0, "drop-ack device=softrnic0 flow=0 message=200 attempts=all"),
            // The last of the eight messages in flight is 207 on this connection.
            (0, "delay=150ms device=softrnic1 flow=0 message=208 times=1"),
        ]),
    },
    scenario(
        "replay-fault",
        "two ports; the first loses everything, and the second's queue pair fails while its messages are sent again",
        Ports::Two,
        4000,
        &[(500, "drop device=softrnic0 attempts=all"), (900, "qp-error device=softrnic1 times=1")],
    ),
    scenario(
        "qp-error",
        "the sender's queue pair fails",
        Ports::One,
        2000,
        &[(500, "qp-error device=softrnic0 times=1")],
    ),
    scenario(
        "operation-error",
        "the receiver cannot reach its own memory, once",
        Ports::One,
        2000,
        &[(500, "operation-error device=softrnic0 times=1")],
    ),
    scenario(
        "device-reset",
        "the sender's only device fails, and its driver has it again after 1 s",
        Ports::One,
        4000,
        &[(500, "device-fatal=1s device=softrnic0 times=1")],
    ),
    scenario(
        "device-reset-receiver",
        "the receiver's only device fails, and its driver has it again after 1 s",
        Ports::One,
        4000,
        &[(500, "device-fatal=1s device=softrnic1 times=1")],
    ),
    scenario(
        "device-reset-second-port",
        "two ports; the second's device fails for 1 s, three seconds after its return the first's fails for good",
        Ports::Two,
        8000,
        &[(500, "device-fatal=1s device=softrnic1 times=1"), (4500, "fail softrnic0")],
    ),
    scenario(
        "gid-moved",
        "two ports; the first comes back with its address at another GID index, later the second goes down for good",
        Ports::Two,
        8000,
        &[
            (500, "port softrnic0/1 down"),
            (510, "gid softrnic0/1 remove 1"),
            (1400, "gid softrnic0/1 add 3 ::ffff:10.82.1.1"),
            (1500, "port softrnic0/1 up"),
            (5500, "port softrnic1/1 down"),
        ],
    ),
    scenario(
        "control-cut",
        "the TCP connection of the set-up is reset; then the sender's port is down for 20 ms",
        Ports::One,
        3000,
        &[(500, "line cut"), (1000, "port softrnic0/1 down"), (1020, "port softrnic0/1 up")],
    ),
    scenario(
        "all-cut",
        "both ports are down and TCP is silent for 5 s",
        Ports::One,
        8000,
        &[
            (500, "line silent 5s"),
            (500, "port softrnic0/1 down"),
            (500, "port softrnic1/1 down"),
            (5500, "port softrnic0/1 up"),
            (5500, "port softrnic1/1 up"),
        ],
    ),
    scenario(
        "kill-sender",
        "the sender's process is killed",
        Ports::One,
        2000,
        &[(500, "kill sender")],
    ),
    scenario(
        "kill-receiver",
        "the receiver's process is killed",
        Ports::One,
        2000,
        &[(500, "kill receiver")],
    ),
    Scenario {
        name: "random",
        claim: "two ports; faults of every kind that ends, at random times, some while another one lasts",
        ports: Ports::Two,
        stream_ms: 0,
        pause: None,
        retries: RETRIES_34_MS,
        script: Script::Random(DEVICES),
    },
];

impl Scenario {
    /// # Errors
    /// [`Error::Usage`] with all names.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = SCENARIOS.iter().find(|scenario| scenario.name == name);
        let names =
            || SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
        found.copied().ok_or_else(|| {
            Error::Usage(format!("there is no scenario {name}; there are {}, and all", names()))
        })
    }

    /// The steps in the order of their times, and how long the stream lasts. `faults` is how many
    /// there are where a scenario is made of random ones.
    ///
    /// # Errors
    /// Those of [`Fault::parse`](Fault::parse).
    pub(crate) fn script(&self, seed: u64) -> Result<(Vec<Step>, Duration)> {
        let (steps, last) = self.script.steps(seed, RANDOM_FAULTS)?;
        Ok((steps, last.unwrap_or_else(|| Duration::from_millis(self.stream_ms))))
    }
}

/// Faults of a script that is random.
const RANDOM_FAULTS: u32 = 100;
/// When the first random fault begins; ms.
const FIRST_MS: u64 = 500;
/// How long a stream lasts after the last random fault; ms.
const AFTER_LAST_MS: u64 = 1000;

/// Which faults there are, and when.
#[derive(Debug, Clone, Copy)]
pub(super) enum Script {
    /// Milliseconds after the start, and the fault as [`Fault::parse`] reads it.
    Fixed(&'static [(u64, &'static str)]),
    /// These ports, one of them at a time and at random, go down for 5 to 60 ms, after 20 to 60 ms
    /// up.
    Flaps(&'static [&'static str]),
    /// Faults of [`KINDS`] at these devices.
    Random(&'static [&'static str]),
}

/// A kind of fault: what begins it, with `{}` for a device; how long it lasts at most, in ms; and
/// what ends it.
type Kind = (&'static str, u64, Option<&'static str>);

/// Faults after which a connection can continue.
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
    /// The steps in the order of their times, and when the stream ends if they say so. `faults` is
    /// how many random ones there are.
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
        self.at += if overlaps {
            self.random.below(lasting + 1)
        } else {
            lasting + 50 + self.random.below(1000)
        };
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

/// One thing that is done to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A rule of the software device, in its language.
    Rule(String),
    /// All rules end.
    Clear,
    /// Another command of the software device: `port`, `gid` or `fail` with its words.
    Change(Vec<String>),
    /// The process of this rank is killed.
    Kill(usize),
    /// The process of this rank is stopped, or resumes if it was.
    Stop(usize),
    Continue(usize),
    /// The TCP connection of the connection's set-up, in the receiver's process.
    Line(LineFault),
}

impl Fault {
    /// # Errors
    /// [`Error::Usage`] with what is allowed. A rule is not looked into.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let wrong = |why: &str| Error::Usage(format!("--fault {text:?}: {why}"));
        match words[..] {
            [] => Err(wrong("it is empty")),
            ["clear"] => Ok(Self::Clear),
            ["kill", "sender"] => Ok(Self::Kill(0)),
            ["kill", "receiver"] => Ok(Self::Kill(1)),
            ["stop", "sender"] => Ok(Self::Stop(0)),
            ["stop", "receiver"] => Ok(Self::Stop(1)),
            ["continue", "sender"] => Ok(Self::Continue(0)),
            ["continue", "receiver"] => Ok(Self::Continue(1)),
            ["line", "cut"] => Ok(Self::Line(LineFault::Cut)),
            ["line", "silent", time] => {
                let time = parse_time(time).map_err(|why| wrong(&why))?;
                Ok(Self::Line(LineFault::Silent(time.as_millis() as u64)))
            }
            ["line", ..] => Err(wrong("it is `line cut` or `line silent TIME`")),
            ["port" | "gid" | "fail", _, ..] => {
                Ok(Self::Change(words.iter().map(|word| (*word).into()).collect()))
            }
            _ => Ok(Self::Rule(text.trim().into())),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => f.write_str(rule),
            Self::Clear => f.write_str("clear"),
            Self::Change(words) => f.write_str(&words.join(" ")),
            Self::Kill(rank) => write!(f, "kill {}", end_name(*rank)),
            Self::Stop(rank) => write!(f, "stop {}", end_name(*rank)),
            Self::Continue(rank) => write!(f, "continue {}", end_name(*rank)),
            Self::Line(LineFault::Cut) => f.write_str("line cut"),
            Self::Line(LineFault::Silent(time)) => write!(f, "line silent {time}ms"),
        }
    }
}

fn end_name(rank: usize) -> &'static str {
    if rank == 0 { "sender" } else { "receiver" }
}

/// A fault and its time after the start of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
}

/// `300ms`, `2s`, `50us`.
pub(crate) fn parse_time(text: &str) -> std::result::Result<Duration, String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let number: Option<f64> = text[..end].parse().ok();
    let unit = match &text[end..] {
        "us" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        _ => None,
    };
    let seconds =
        number.zip(unit).map(|(number, unit)| number * unit).filter(|s| (0.0..=1e6).contains(s));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| {
        format!("{text:?} is no time; times are written 50us, 300ms or 2s; at most 1000000s")
    })
}

/// Messages in flight, at most.
pub(crate) const DEPTH: usize = 8;
/// Receive buffers, so many that a message that is sent again has completed before its buffer is
/// used next. Those that no receive is posted for hold a guard pattern, so that a late write into
/// one of them is seen.
pub(crate) const BUFFERS: usize = 3 * DEPTH;

/// One stream of messages from rank 0, the sender, to rank 1, the receiver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreamPlan {
    /// How many messages.
    pub(crate) messages: u64,
    /// The size of each; bytes.
    pub(crate) bytes: usize,
    /// No message is sent earlier than so many microseconds after the one before it was due.
    pub(crate) period_us: u64,
    /// When the receiver waits for this message, with [`DEPTH`] receives posted, it makes no call
    /// for so many milliseconds.
    pub(crate) pause: Option<(u64, u64)>,
    /// From the end of the stream until all receive buffers are looked at again.
    pub(crate) settle_ms: u64,
    /// An end without progress for so long counts as hung.
    pub(crate) limit_ms: u64,
}

/// What happens to the TCP connection by which the two ends set up the stream's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LineFault {
    /// Both ends see it reset; a new one can be made at once.
    Cut,
    /// For so many milliseconds no byte arrives, on this one and on new ones.
    Silent(u64),
}

/// The order to both processes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OutlastJob {
    /// The transport.
    pub(crate) source: Source,
    /// The software device.
    pub(crate) verbs: Verbs,
    /// Whether the transport is to use two ports as one device.
    pub(crate) is_fused: bool,
    /// The messages.
    pub(crate) stream: StreamPlan,
    /// Faults of the TCP connection, and how many milliseconds after the start of the stream.
    pub(crate) line_faults: Vec<(u64, LineFault)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own_and_a_script_in_order() {
        for (at, scenario) in SCENARIOS.iter().enumerate() {
            assert!(
                SCENARIOS[..at].iter().all(|other| other.name != scenario.name),
                "{}",
                scenario.name
            );
            let (steps, duration) = scenario.script(1).expect(scenario.name);
            assert!(steps.is_sorted_by_key(|step| step.at), "{}", scenario.name);
            assert!(steps.iter().all(|step| step.at < duration), "{}", scenario.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let problem = Scenario::named("flop").expect_err("there is none").to_string();
        assert!(
            problem.starts_with("there is no scenario flop; there are none, ")
                && problem.contains("late-write")
        );
    }

    #[test]
    fn random_faults_are_those_of_the_seed() {
        for (script, steps) in
            [(Script::Flaps(&["a/1", "b/1"]), 40), (Script::Random(&["a", "b"]), 20)]
        {
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

    #[test]
    fn faults_are_read_as_they_are_printed() {
        for text in [
            "clear", "kill sender", "kill receiver", "stop receiver", "continue sender",
            "line cut", "line silent 250ms", "port softrnic0/1 down",
            "drop device=softrnic0 attempts=all",
        ] {
            assert_eq!(Fault::parse(text).expect(text).to_string(), text);
        }
        for text in ["", " ", "line", "line silent", "line silent 3", "line up"] {
            assert!(matches!(Fault::parse(text), Err(Error::Usage(_))), "{text:?}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse_time("1.5ms"), Ok(Duration::from_micros(1500)));
        assert_eq!(parse_time("2s"), Ok(Duration::from_secs(2)));
        // An hour, as scripts write it.
        assert_eq!(parse_time("3600000ms"), Ok(Duration::from_secs(3600)));
        for text in ["", "3", "ms", "-1s", "1h", "1e9s", "99999999s"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }
}
