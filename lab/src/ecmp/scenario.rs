//! A fabric, a job and what is wrong, run with several policies and seeds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::ecmp::fabric::{Fabric, Fault, Shape};
use crate::ecmp::fair::Path;
use crate::ecmp::hash::{Fields, Random};
use crate::ecmp::job::{Workload, streams};
use crate::ecmp::policy::Policy;
use crate::ecmp::queues::Queues;
use crate::ecmp::rate_control::RateControl;
use crate::ecmp::run::{Measured, NIC_RATE, Run, Span};
use crate::error::{Error, Result};

/// Traffic of others has at most this share of a NIC's speed in each flow.
const OTHERS_RATE: f64 = 0.5;

/// What is wrong with one link between a leaf and a spine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wrong {
    Nothing,
    /// It has this share of its speed.
    Slow(f64),
    /// This share of what it carries arrives in time.
    Lossy(f64),
    Dead,
}

/// All that a run depends on, but for the policy and the seed.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) workload: Workload,
    pub(crate) hosts: usize,
    /// NICs of a host.
    pub(crate) rails: usize,
    /// NICs of a leaf.
    pub(crate) leaf_nics: usize,
    /// 2 or 3.
    pub(crate) tiers: u8,
    /// NICs of a leaf for each of its uplinks.
    pub(crate) oversubscription: usize,
    pub(crate) wrong: Wrong,
    /// Flows of others between leaves.
    pub(crate) others: usize,
    /// Switches hash the destination queue pair's number too.
    pub(crate) hashes_queue_pairs: bool,
    /// Switches spread every packet.
    pub(crate) sprays: bool,
    pub(crate) rate_control: RateControl,
    /// A switch stops a link from which it holds too much.
    pub(crate) pauses: bool,
    pub(crate) seeds: u64,
    /// Bytes of a message.
    pub(crate) bytes: u32,
    /// How much faster time passes for the plugin's budget of moves than for all else.
    pub(crate) budget_speed: u32,
    /// us.
    pub(crate) warm_up: f64,
    /// us.
    pub(crate) measured: f64,
}

/// us.
const MINUTE: f64 = 60e6;
/// Leaves of a pod with three tiers.
const POD_LEAVES: usize = 4;
/// Steps of time in which a message is sent, if its connection has an even part of its NIC's speed.
const STEPS_OF_A_MESSAGE: f64 = 8.0;

/// What a policy reaches: shares are of what the same job reaches in the same fabric if that spreads every packet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) policy: String,
    /// Of the slowest group, mean over seeds.
    pub(crate) slowest: f64,
    /// Of the slowest group with the worst seed.
    pub(crate) worst: f64,
    /// Of all groups, mean over groups and seeds.
    pub(crate) mean: f64,
    /// Work requests with data for each message.
    pub(crate) work_requests: f64,
    /// Lanes of a connection that have got another path before it was measured, and while it was.
    pub(crate) moves: [f64; 2],
    /// New paths for each lane and minute of the budget's time while it was measured.
    pub(crate) new_paths: f64,
}

impl Scenario {
    /// Runs it with each policy, on all processors.
    ///
    /// # Errors
    /// What is asked for makes no fabric or no job; or the plugin's code refuses something.
    pub(crate) fn run(&self, policies: &[Policy]) -> Result<Vec<Row>> {
        self.check()?;
        let cases: Vec<(u64, Policy)> = (0..self.seeds)
            .flat_map(|seed| [Policy::Ideal].iter().chain(policies).map(move |policy| (seed, *policy)))
            .collect();
        let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some((seed, policy)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = self.measure(*seed, *policy);
                if let Ok(mut results) = results.lock() {
                    results.push((*seed, *policy, outcome));
                }
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(cases.len());
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let results = results.into_inner().map_err(|_| Error::Misuse("a run of the model has panicked"))?;
        let mut measured = Vec::with_capacity(results.len());
        for (seed, policy, outcome) in results {
            measured.push((seed, policy, outcome?));
        }
        Ok(policies.iter().map(|policy| self.row(*policy, &measured)).collect())
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Usage(what));
        let (workload, least) = (self.workload.name(), self.workload.least_hosts());
        if self.hosts < least {
            return wrong(format!("--hosts {}: {workload} needs {least}", self.hosts));
        }
        if !self.leaf_nics.is_multiple_of(self.oversubscription) {
            return wrong(format!(
                "--leaf {}: cannot be divided by --oversubscription {}",
                self.leaf_nics, self.oversubscription
            ));
        }
        if self.pauses && self.rate_control == RateControl::Fair {
            return wrong("--pauses: with --rate-control fair no queue fills; dcqcn and none fill them".into());
        }
        if self.shape().leaves() < 2 {
            return wrong(format!("{} NICs fit one leaf of {}: there is no fabric", self.nics(), self.leaf_nics));
        }
        Ok(())
    }

    pub(crate) fn nics(&self) -> usize {
        self.hosts * self.rails
    }

    fn shape(&self) -> Shape {
        Shape {
            nics: self.nics(),
            leaf_nics: self.leaf_nics,
            uplinks: self.leaf_nics / self.oversubscription,
            pod_leaves: (self.tiers == 3).then_some(POD_LEAVES),
        }
    }

    /// One run.
    fn measure(&self, seed: u64, policy: Policy) -> Result<Measured> {
        let mut random = Random::new(seed);
        let mut fabric = Fabric::new(self.shape(), random.next());
        let shape = fabric.shape();
        let (leaf, spine) = (random.below(shape.leaves()), random.below(shape.uplinks));
        match self.wrong {
            Wrong::Nothing => {}
            Wrong::Slow(share) => fabric.break_link(leaf, spine, Fault::Slow(share)),
            Wrong::Lossy(share) => fabric.break_link(leaf, spine, Fault::Lossy(share)),
            Wrong::Dead => fabric.break_link(leaf, spine, Fault::Dead),
        }
        let streams = streams(self.workload, self.hosts, self.rails, &mut random);
        let mut fabric = if policy == Policy::Ideal || self.sprays { fabric.pooled() } else { fabric };
        let others = self.others(&mut fabric, &mut random)?;
        let connections_of_a_nic = (streams.len() as f64 / shape.nics as f64).max(1.0);
        let step = connections_of_a_nic * f64::from(self.bytes) / NIC_RATE / STEPS_OF_A_MESSAGE;
        let span = Span {
            bytes: self.bytes,
            warm_up: self.warm_up,
            measured: self.measured,
            step,
            budget_speed: self.budget_speed,
        };
        let queues = self.queues(policy, random.next());
        Run::new(&fabric, &streams, policy, self.hashes_queue_pairs, &others, random)?.with_queues(queues).measure(span)
    }

    /// The queues of a run. None where rates are fair at once, as they are in the fabric that all is compared with.
    fn queues(&self, policy: Policy, seed: u64) -> Option<Queues> {
        let has_queues = self.rate_control != RateControl::Fair && policy != Policy::Ideal;
        has_queues.then(|| Queues::new(self.rate_control, self.pauses, NIC_RATE, Random::new(seed)))
    }

    /// Flows of others, which send all the time.
    fn others(&self, fabric: &mut Fabric, random: &mut Random) -> Result<Vec<Path>> {
        let leaves = fabric.shape().leaves();
        let mut other = |number: usize| {
            let from = random.below(leaves);
            let to = (from + 1 + random.below(leaves - 1)) % leaves;
            let source = (fabric.shape().nics + number) as u32;
            let fields = Fields { source, destination: random.next() as u32, port: 0xc000, queue_pair: 0 };
            let between = fabric.switch_path(from, to, fields);
            let between =
                between.ok_or_else(|| Error::Usage(format!("no path is left from leaf {from} to leaf {to}")))?;
            let limit = fabric.add_link(OTHERS_RATE);
            Ok(Path::new(&[&[limit], between.as_slice()].concat()))
        };
        (0..self.others).map(&mut other).collect()
    }

    fn row(&self, policy: Policy, measured: &[(u64, Policy, Measured)]) -> Row {
        let of = |seed: u64, wanted: Policy| {
            let found = measured.iter().find(|(other, policy, _)| (*other, *policy) == (seed, wanted));
            found.map(|(.., measured)| measured)
        };
        let pairs: Vec<_> =
            (0..self.seeds).filter_map(|seed| Some((of(seed, policy)?, of(seed, Policy::Ideal)?))).collect();
        let slowest = |measured: &Measured| measured.groups.iter().copied().fold(f64::INFINITY, f64::min);
        let average = |measured: &Measured| mean(measured.groups.iter().copied());
        let shares: Vec<f64> = pairs.iter().map(|(own, ideal)| slowest(own) / slowest(ideal)).collect();
        let moves = [0, 1].map(|part| mean(pairs.iter().map(|(own, _)| own.moves[part])));
        let lane_minutes =
            f64::from(policy.striping().qp_count()) * self.measured * f64::from(self.budget_speed) / MINUTE;
        Row {
            policy: policy.to_string(),
            slowest: mean(shares.iter().copied()),
            worst: shares.iter().copied().fold(f64::INFINITY, f64::min),
            mean: mean(pairs.iter().map(|(own, ideal)| average(own) / average(ideal))),
            work_requests: mean(pairs.iter().map(|(own, _)| own.work_requests)),
            moves,
            new_paths: moves[1] / lane_minutes.max(f64::MIN_POSITIVE),
        }
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = numbers.fold((0.0, 0u32), |(sum, count), number| (sum + number, count + 1));
    sum / f64::from(count.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Scenario {
        Scenario {
            workload: Workload::Ring,
            hosts: 8,
            rails: 2,
            leaf_nics: 4,
            tiers: 2,
            oversubscription: 1,
            wrong: Wrong::Nothing,
            others: 0,
            hashes_queue_pairs: false,
            sprays: false,
            seeds: 2,
            bytes: 1 << 20,
            budget_speed: 1,
            rate_control: RateControl::Fair,
            pauses: false,
            warm_up: 1000.0,
            measured: 1000.0,
        }
    }

    #[test]
    fn the_same_seeds_give_the_same_rows_and_others_do_not() {
        let policies = [Policy::Turns(1), Policy::Even(2), Policy::Shares(2), Policy::Moves(2)];
        let rows = |seeds| Scenario { seeds, ..small() }.run(&policies).expect("a fabric");
        assert_eq!(rows(2), rows(2));
        assert_ne!(rows(2), rows(3));
    }

    #[test]
    fn a_fabric_that_spreads_every_packet_reaches_what_its_links_can_carry() {
        for (oversubscription, tiers) in [(1, 2), (2, 2), (1, 3)] {
            let scenario = Scenario { oversubscription, tiers, ..small() };
            let ideal = scenario.measure(0, Policy::Ideal).expect("a fabric");
            let due = 1.0 / oversubscription as f64;
            assert!(
                ideal.groups.iter().all(|share| (due - 0.02..1.02).contains(share)),
                "{oversubscription}: {ideal:?}"
            );
        }
    }

    /// All lanes take the same ways, so that none is slower than another.
    #[test]
    fn where_every_packet_is_spread_all_policies_reach_that_and_no_lane_moves() {
        let span = Scenario { warm_up: 20_000.0, measured: 2000.0, budget_speed: 1000, ..small() };
        let scenario = Scenario { sprays: true, hosts: 4, rails: 1, leaf_nics: 2, seeds: 1, ..span };
        let rows = scenario.run(&[Policy::Turns(1), Policy::Even(4), Policy::Shares(4), Policy::Moves(4)]);
        for row in rows.expect("a fabric") {
            assert!((0.95..1.05).contains(&row.slowest) && row.moves == [0.0; 2] && row.new_paths == 0.0, "{row:?}");
        }
    }

    #[test]
    fn what_makes_no_fabric_is_refused_with_the_argument() {
        let refusal = |scenario: Scenario| scenario.run(&[]).expect_err("refused").to_string();
        assert_eq!(refusal(Scenario { hosts: 1, ..small() }), "--hosts 1: ring needs 2");
        assert_eq!(refusal(Scenario { leaf_nics: 64, ..small() }), "16 NICs fit one leaf of 64: there is no fabric");
        let odd = refusal(Scenario { leaf_nics: 3, oversubscription: 2, ..small() });
        assert_eq!(odd, "--leaf 3: cannot be divided by --oversubscription 2");
    }

    #[test]
    fn every_fault_workload_and_kind_of_switch_runs() {
        for (workload, hosts, wrong) in [
            (Workload::Ring, 8, Wrong::Slow(0.25)),
            (Workload::AllToAll, 8, Wrong::Dead),
            (Workload::Hierarchical, 16, Wrong::Lossy(0.5)),
        ] {
            let scenario =
                Scenario { workload, hosts, wrong, others: 4, hashes_queue_pairs: true, tiers: 3, ..small() };
            let rows = Scenario { seeds: 1, ..scenario }.run(&[Policy::Moves(4)]).expect("a fabric");
            assert!(rows[0].slowest > 0.05 && rows[0].slowest < 1.2, "{workload:?} {wrong:?}: {rows:?}");
        }
    }
}
