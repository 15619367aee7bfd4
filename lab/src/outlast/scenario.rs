//! The scenarios: which faults, when, over how many ports.
//!
//! Times are scaled: the retries of a queue pair last half a second ([`RETRIES`]), not the 34 s of the transports' defaults (NCCL up to
//! 2.22: 8.6 s), so an outage of three seconds stands for one of minutes.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::outlast::fault::Step;
use crate::outlast::script::Script;

/// Transmissions 67 ms apart, eight of them.
pub(crate) const RETRIES: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "14"), ("NCCL_IB_RETRY_CNT", "7")];
/// Transmissions 4 ms apart, and 17 ms.
const RETRIES_34_MS: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "10"), ("NCCL_IB_RETRY_CNT", "7")];
const RETRIES_134_MS: [(&str, &str); 2] = [("NCCL_IB_TIMEOUT", "12"), ("NCCL_IB_RETRY_CNT", "7")];

/// Which ports the stream goes over. Rank 0, the sender, is on the first ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ports {
    /// softrnic0 and softrnic1.
    One,
    /// softrnic0 and softrnic2; softrnic1 and softrnic3 are there and not used.
    OneOfTwo,
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
    /// As [`StreamPlan::pause`](crate::outlast::plan::StreamPlan::pause).
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
    Scenario { name, claim, ports, stream_ms, pause: None, retries: RETRIES, script: Script::Fixed(script) }
}

const fn flaps(name: &'static str, claim: &'static str, ports: Ports, of: &'static [&'static str]) -> Scenario {
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
    flaps("flaps", "the sender's port goes down and up again and again", Ports::One, &["softrnic0/1"]),
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
        &[(500, "port softrnic0/1 down"), (1500, "port softrnic0/1 up"), (5500, "port softrnic1/1 down")],
    ),
    scenario(
        "ports-in-turn",
        "two ports; the first goes down, then the second, then the first comes back",
        Ports::Two,
        6000,
        &[(500, "port softrnic0/1 down"), (2000, "port softrnic1/1 down"), (4000, "port softrnic0/1 up")],
    ),
    scenario(
        "ports-in-turn-second-back",
        "two ports; the first goes down for good, then the second is down for 2 s",
        Ports::Two,
        6000,
        &[(500, "port softrnic0/1 down"), (2000, "port softrnic1/1 down"), (4000, "port softrnic1/1 up")],
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
    scenario("kill-sender", "the sender's process is killed", Ports::One, 2000, &[(500, "kill sender")]),
    scenario("kill-receiver", "the receiver's process is killed", Ports::One, 2000, &[(500, "kill receiver")]),
    scenario(
        "spare-port",
        "one port, which goes down for good; the other card's port is up and reaches the peer",
        Ports::OneOfTwo,
        4000,
        &[(500, "port softrnic0/1 down")],
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
        let names = || SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", ");
        found
            .copied()
            .ok_or_else(|| Error::Usage(format!("there is no scenario {name}; there are {}, and all", names())))
    }

    /// The steps in the order of their times, and how long the stream lasts. `faults` is how many there are where a scenario is made
    /// of random ones.
    ///
    /// # Errors
    /// Those of [`Fault::parse`](crate::outlast::fault::Fault::parse).
    pub(crate) fn script(&self, seed: u64, faults: u32) -> Result<(Vec<Step>, Duration)> {
        let (steps, last) = self.script.steps(seed, faults)?;
        Ok((steps, last.unwrap_or_else(|| Duration::from_millis(self.stream_ms))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_has_a_name_of_its_own_and_a_script_in_order() {
        for (at, scenario) in SCENARIOS.iter().enumerate() {
            assert!(SCENARIOS[..at].iter().all(|other| other.name != scenario.name), "{}", scenario.name);
            let (steps, duration) = scenario.script(1, 10).expect(scenario.name);
            assert!(steps.is_sorted_by_key(|step| step.at), "{}", scenario.name);
            assert!(steps.iter().all(|step| step.at < duration), "{}", scenario.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let problem = Scenario::named("flop").expect_err("there is none").to_string();
        assert!(problem.starts_with("there is no scenario flop; there are none, ") && problem.contains("late-write"));
    }
}
