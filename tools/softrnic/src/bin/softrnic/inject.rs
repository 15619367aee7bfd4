//! Faults on demand.

use clap::Args;
use ibverbs::control::{Error, Network};

/// Puts fault rules into force, lists them, takes them away.
///
/// A rule is ACTION[=VALUE] [key=value ...]; without keys it strikes every message. Actions: drop, drop-ack, delay=TIME,
/// late=TIME, rnr, corrupt, qp-error, access-error, operation-error, cq-overrun, port-down[=TIME], port-up, slow=GB/s,
/// device-fatal, kill, modify-qp=ERRNO, reg-mr=ERRNO. Keys: device, peer, flow, opcode, message, every, chance,
/// attempts, times.
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "Example: softrnic inject drop device=softrnic0 message=100.. chance=0.01"
)]
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

impl Inject {
    pub(crate) fn apply(&self, network: &Network) -> Result<(), String> {
        self.change(network).map_err(|error| error.to_string())?;
        for one in network.rules() {
            println!("{:3}  {}  struck {}", one.number, one.rule, one.strikes);
        }
        Ok(())
    }

    fn change(&self, network: &Network) -> Result<(), Error> {
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
        Ok(())
    }
}
