//! The arguments of `ferrite ecmp`.

use std::path::PathBuf;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::size::parse_size;
use crate::ecmp::job::Workload;
use crate::ecmp::plot;
use crate::ecmp::policy::Policy;
use crate::ecmp::rate_control::RateControl;
use crate::ecmp::report;
use crate::ecmp::results::{self, Named, Outcome, SCHEMA};
use crate::ecmp::scenario::{Scenario, Wrong};
use crate::error::{Error, Result};
use crate::system::output;

const POLICIES: &str = "turns:1,turns:4,turns:8,even:4,even:8,shares:4,shares:8,moves:4,moves:8";

#[derive(Debug, Args)]
#[command(after_help = "\
A model, not a measurement: no network is used, and each run gives the same numbers. Switches choose paths by a hash; rates are max-min \
fair at once, unless --rate-control says otherwise; messages are cut, sent and counted by the plugin's own code. Numbers are shares of what the same job reaches in a fabric \
that spreads every packet. What the model knows and does not: docs/paths.md.

Policies:
  turns:N   whole messages over N queue pairs in turn: NCCL's built-in transport (by default turns:1)
  even:N    each message cut evenly over N: NCCL's built-in transport with NCCL_IB_SPLIT_DATA_ON_QPS=1
  shares:N  N lanes, each with a share that follows what it completes
  moves:N   the same, and a lane that stays slow gets another path

Examples:
  ferrite ecmp                                         a ring on each of 4 rails of 64 hosts
  ferrite ecmp --fault slow                            one link between switches has a quarter of its speed
  ferrite ecmp --workload all-to-all --oversubscription 2
  ferrite ecmp --rate-control dcqcn --pauses           with queues in switches and what keeps them short
  ferrite ecmp --hosts 512 --rails 8 --tiers 3 --policy turns:1,shares:4 --seeds 1

Exit code 0: done; 2: it could not be; 130: interrupted.")]
pub(super) struct Ecmp {
    /// What the job does: ring, all-to-all or hierarchical
    #[arg(long, value_name = "NAME", default_value = "ring")]
    workload: Workload,
    /// Hosts, placed at random
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..=4096))]
    hosts: u16,
    /// NICs of a host, each on a rail of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=8))]
    rails: u8,
    /// NICs of a leaf
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=128))]
    leaf: u16,
    /// Tiers of switches: 2, or 3 with pods of 4 leaves
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=3))]
    tiers: u8,
    /// NICs of a leaf for each of its uplinks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    oversubscription: u8,
    /// What is wrong with one link between switches: none, slow, slow:SHARE, lossy, lossy:SHARE or dead. SHARE is what is left of its
    /// speed, or what arrives in time: 0.25, 0.5
    #[arg(long, value_name = "FAULT", default_value = "none", value_parser = parse_fault)]
    fault: Wrong,
    /// Flows of other jobs between random leaves, each of half a NIC's speed at most
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=4096))]
    background: u16,
    /// Switches hash the number of the destination queue pair too
    #[arg(long)]
    hash_queue_pair: bool,
    /// Switches spread every packet, whatever the policy
    #[arg(long, conflicts_with = "hash_queue_pair")]
    spray: bool,
    /// How fast queue pairs send: fair (max-min fair at once), dcqcn, or none (as fast as their port; queues fill)
    #[arg(long, value_name = "NAME", default_value = "fair")]
    rate_control: RateControl,
    /// A switch stops a link from which it holds too much, as PFC does, and so all that would take that link
    #[arg(long)]
    pauses: bool,
    /// Policies, which are compared in the same fabrics
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = POLICIES)]
    policy: Vec<Policy>,
    /// Fabrics and placements: seeds 0 to N-1
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// Bytes of a message
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = parse_size)]
    size: usize,
    /// Milliseconds of the job before it is measured, in which shares are learnt
    #[arg(long, value_name = "MS", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    warm_up: u32,
    /// Milliseconds of the job that are measured
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    measure: u32,
    /// How much faster time passes for the plugin's budget of moves (one second after the first, twice as long after each further one,
    /// up to a minute; longer rests after four without gain) than for all else: 100 shows in 0.3 s where lanes are after half a minute
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    budget_speed: u32,
    /// Write the table as bars, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// One JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Nothing is computed: the tables of what was written with --json, each named by its file, as 1-JOB.json or 1-JOB.ANYTHING.json
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "json")]
    results: Vec<PathBuf>,
}

impl Ecmp {
    pub(super) fn run(self) -> Result<Exit> {
        if !self.results.is_empty() {
            let all = results::read(&self.results)?;
            self.draw(&all)?;
            return output::write_stdout(&results::text(&all)).map(|()| Exit::Good);
        }
        let scenario = self.scenario();
        let rows = scenario.run(&self.policy)?;
        // What is not of the job says nothing of what was found.
        let arguments = std::env::args().skip(1).filter(|word| word != "--json").collect();
        let outcome = Outcome { schema: SCHEMA.to_owned(), arguments, scenario: report::heading(&scenario), rows };
        let text = match self.json {
            true => results::json(&outcome)?,
            false => report::text(&outcome.scenario, &outcome.rows),
        };
        self.draw(&[Named { name: self.workload.name().to_owned(), outcomes: vec![outcome] }])?;
        output::write_stdout(&text).map(|()| Exit::Good)
    }

    fn draw(&self, all: &[Named]) -> Result<()> {
        let Some(path) = &self.svg else { return Ok(()) };
        std::fs::write(path, plot::draw(all)).map_err(|e| Error::io(format!("cannot write {}", path.display()), e))
    }

    fn scenario(&self) -> Scenario {
        Scenario {
            workload: self.workload,
            hosts: self.hosts.into(),
            rails: self.rails.into(),
            leaf_nics: self.leaf.into(),
            tiers: self.tiers,
            oversubscription: self.oversubscription.into(),
            wrong: self.fault,
            others: self.background.into(),
            hashes_queue_pairs: self.hash_queue_pair,
            sprays: self.spray,
            rate_control: self.rate_control,
            pauses: self.pauses,
            seeds: self.seeds.into(),
            bytes: self.size as u32,
            budget_speed: self.budget_speed,
            warm_up: f64::from(self.warm_up) * 1e3,
            measured: f64::from(self.measure) * 1e3,
        }
    }
}

fn parse_fault(text: &str) -> Result<Wrong, String> {
    let wrong = || {
        format!(
            "{text} is no fault; none, slow, lossy and dead are, and slow:SHARE, lossy:SHARE with a share between 0 and 1"
        )
    };
    let (name, share) = text.split_once(':').map_or((text, None), |(name, share)| (name, Some(share)));
    let share = share.map(|share| share.parse().ok().filter(|share| *share > 0.0 && *share < 1.0).ok_or_else(wrong));
    match (name, share.transpose()?) {
        ("none", None) => Ok(Wrong::Nothing),
        ("dead", None) => Ok(Wrong::Dead),
        ("slow", share) => Ok(Wrong::Slow(share.unwrap_or(0.25))),
        ("lossy", share) => Ok(Wrong::Lossy(share.unwrap_or(0.5))),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults() {
        assert_eq!(parse_fault("none"), Ok(Wrong::Nothing));
        assert_eq!(parse_fault("slow:0.1"), Ok(Wrong::Slow(0.1)));
        assert_eq!((parse_fault("lossy"), parse_fault("dead")), (Ok(Wrong::Lossy(0.5)), Ok(Wrong::Dead)));
        for wrong in ["", "slow:", "slow:0", "lossy:1", "dead:0.5", "none:1", "slow:nan"] {
            assert!(parse_fault(wrong).is_err(), "{wrong}");
        }
    }
}
