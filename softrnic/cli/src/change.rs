//! What can be changed while programs run.

use std::fmt::Display;
use std::net::Ipv6Addr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use ibverbs::control::{DeviceName, Error, GidKind, Network, PortName};

use crate::find::{Failure, print};

/// Takes a port down or up, or changes its limits.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Port {
    /// softrnic0/1, or rnic0/1, or 0/1
    name: PortName,
    state: Option<State>,
    /// Latency of the modelled wire, in microseconds
    #[arg(long, value_name = "US", value_parser = positive)]
    latency_us: Option<f64>,
    /// Bandwidth of the modelled wire in GB/s; 0 is as fast as it goes
    #[arg(long, value_name = "GBPS", value_parser = positive)]
    bandwidth: Option<f64>,
    /// In bytes; larger packets vanish
    #[arg(long)]
    mtu: Option<u32>,
    /// What the attributes say, in Gb/s
    #[arg(long)]
    speed: Option<u32>,
    /// InfiniBand only
    #[arg(long)]
    lid: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum State {
    Up,
    Down,
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number
        .filter(|n| (0.0..=1e6).contains(n))
        .ok_or_else(|| "must be a number from 0 to 1000000".to_owned())
}

impl Port {
    pub(crate) fn apply(&self, network: &Network) -> Result<(), Failure> {
        let changes = self.changes();
        if changes.is_empty() {
            return Err(Failure::Refused(format!(
                "what of {}? up, down, or an option; see --help",
                self.name
            )));
        }
        self.set(network)?;
        print_change(network, &self.name, &changes)
    }

    /// What is asked for, in words.
    fn changes(&self) -> String {
        let state =
            self.state.map(|state| if state == State::Up { "up" } else { "down" }.to_owned());
        let all = [
            state,
            self.latency_us.map(|us| format!("latency {us} us")),
            self.bandwidth.map(|gbps| format!("bandwidth {gbps} GB/s")),
            self.mtu.map(|bytes| format!("mtu {bytes}")),
            self.speed.map(|gbps| format!("speed {gbps} Gb/s")),
            self.lid.map(|lid| format!("lid {lid}")),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// All that can be wrong is looked at before anything is changed.
    fn set(&self, network: &Network) -> Result<(), Error> {
        let name = self.name;
        network.check_port(name, self.mtu, self.speed, self.lid)?;
        if let Some(us) = self.latency_us {
            network.set_latency(name, Duration::from_secs_f64(us / 1e6))?;
        }
        if let Some(gbps) = self.bandwidth {
            network.set_bandwidth(name, (gbps != 0.0).then_some((gbps * 1e9) as u64))?;
        }
        if let Some(bytes) = self.mtu {
            network.set_mtu(name, bytes)?;
        }
        if let Some(gbps) = self.speed {
            network.set_speed(name, gbps)?;
        }
        if let Some(lid) = self.lid {
            network.set_lid(name, lid)?;
        }
        self.state.map_or(Ok(()), |state| network.set_port_state(name, state == State::Up))
    }
}

/// Changes the GID table of a port.
#[derive(Debug, Args)]
pub(crate) struct Gid {
    /// softrnic0/1, or rnic0/1, or 0/1
    name: PortName,
    #[command(subcommand)]
    change: GidChange,
}

#[derive(Debug, Subcommand)]
enum GidChange {
    /// Fills an entry, or replaces what is in it
    Add {
        /// 0 to 15
        index: usize,
        /// As IPv6, such as ::ffff:10.82.1.9
        gid: Ipv6Addr,
        /// Of RoCE; InfiniBand has none
        version: Option<Version>,
    },
    /// Empties an entry; packets from and to it vanish
    Remove {
        /// 0 to 15
        index: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Version {
    V1,
    V2,
}

impl Gid {
    pub(crate) fn apply(&self, network: &Network) -> Result<(), Failure> {
        let change = match self.change {
            GidChange::Remove { index } => {
                network.remove_gid(self.name, index)?;
                format!("gid {index} removed")
            }
            GidChange::Add { index, gid, version } => {
                let kind = match version {
                    Some(Version::V1) => GidKind::RoceV1,
                    Some(Version::V2) => GidKind::RoceV2,
                    None => network.gid_kind(self.name)?,
                };
                network.set_gid(self.name, index, gid, kind)?;
                format!("gid {index} {gid}")
            }
        };
        print_change(network, &self.name, &change)
    }
}

/// Fails a device, for good or for a time.
#[derive(Debug, Args)]
pub(crate) struct Fail {
    /// softrnic0, or rnic0, or 0
    name: DeviceName,

    /// It can be opened anew so many milliseconds after it has failed, which are waited for; else
    /// never
    #[arg(long, value_name = "MS")]
    back_after: Option<u64>,

    /// For so many milliseconds before it fails it refuses all commands, while its queue pairs work
    /// on
    #[arg(long, value_name = "MS", default_value_t = 0)]
    refuses: u64,
}

impl Fail {
    pub(crate) fn apply(&self, network: &Network) -> Result<(), Failure> {
        let lasts = self.back_after.map(Duration::from_millis);
        network.fail_device_after(self.name, Duration::from_millis(self.refuses), lasts)?;
        let change = self
            .back_after
            .map_or_else(|| "failed for good".into(), |ms| format!("failed for {ms} ms"));
        print_change(network, &self.name, &change)
    }
}

/// Says what was changed where.
fn print_change(network: &Network, name: &dyn Display, change: &str) -> Result<(), Failure> {
    print(&format!("fabric {}: {name} {change}\n", network.name()))
}

/// Puts fault rules into force, lists them, takes them away
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Inject {
    /// Rules, separated by `;`. Without any: lists those in force
    rules: Vec<String>,
    /// Removes the rule of this number, as listed
    #[arg(long, value_name = "NUMBER", conflicts_with = "rules")]
    remove: Option<u32>,
    /// Removes all rules first
    #[arg(long)]
    clear: bool,
    /// Seed of all random decisions from now on
    #[arg(long)]
    seed: Option<u64>,
}

const AFTER_HELP: &str = "\
A rule is ACTION[=VALUE] [KEY=VALUE ...]; without keys it applies to every message.

Actions on messages:
  drop, drop-ack, delay=TIME, late=TIME, rnr, corrupt, slow=GB/s
  cut=BYTES, forget, qp-error, access-error, operation-error, cq-overrun
Actions on ports, devices and processes:
  port-down[=TIME], port-up, device-fatal[=TIME], kill
Actions on calls:
  modify-qp=ERRNO, reg-mr=ERRNO, poll-cq=ERRNO, post-send=ERRNO
Keys:
  device, peer, flow, opcode, message, every, chance, attempts, times
  for=TIME; of port-down=TIME: gid-after=TIME, gid=move, gid=other

Example: softrnic inject drop device=softrnic0 message=100.. chance=0.01";

impl Inject {
    /// Whether nothing is to be changed.
    pub(crate) fn is_question(&self) -> bool {
        self.rules.is_empty() && self.remove.is_none() && !self.clear && self.seed.is_none()
    }

    /// Shows the rules in force.
    pub(crate) fn list(&self, network: &Network) -> Result<(), Failure> {
        print(&rules(network))
    }

    /// Changes the rules, and shows where and what there is now.
    pub(crate) fn apply(&self, network: &Network) -> Result<(), Failure> {
        if self.clear {
            network.clear_rules();
        }
        if let Some(seed) = self.seed {
            network.set_seed(seed);
        }
        if let Some(number) = self.remove {
            network.remove_rule(number)?;
        }
        network.inject(&self.rules.join(" "))?;
        let seed = self.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
        let rules = rules(network);
        let count = rules.lines().count();
        print(&format!("fabric {}: {count} fault rule(s) in force{seed}\n{rules}", network.name()))
    }
}

fn rules(network: &Network) -> String {
    network
        .rules()
        .iter()
        .map(|one| format!("{:3}  {}  applied {}\n", one.number, one.rule, one.hits))
        .collect()
}
