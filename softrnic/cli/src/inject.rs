//! Faults on demand.

use clap::Args;
use ibverbs::control::Network;

use crate::outcome::{Failure, print};

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
    network.rules().iter().map(|one| format!("{:3}  {}  applied {}\n", one.number, one.rule, one.hits)).collect()
}
