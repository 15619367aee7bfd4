//! What the tests of this program ask of the software device, and how their processes are set up.

use crate::common::prelude::*;
use crate::stream::{Shape, Stream};
use std::process::{Child, Command, Stdio};
use testkit::dist::softrnic_program;

/// What no test takes, however slow the machine.
const LIMIT: Duration = Duration::from_secs(900);

/// How the devices of a test are arranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fabric {
    /// One rail: rank 0 has `softrnic0`, rank 1 `softrnic1`.
    OneRail,
    /// One rail, and each message is split over three queue pairs.
    Split,
    /// One rail with four lanes.
    Lanes,
    /// Two rails: rank 0 has `softrnic0+softrnic1`, rank 1 `softrnic2+softrnic3`.
    TwoRails,
    /// The same with ports of InfiniBand: data and its immediate are separate writes.
    TwoInfiniBandRails,
}

/// Runs `body` in two processes, with variables for both.
pub(crate) fn run(
    fabric: Fabric,
    env: &[(&str, &str)],
    body: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<()> {
    require!(softrnic_program());
    let adapt = |setting: Setting| {
        // Devices do not send again before a recovery, however busy the machine.
        let setting = setting.env(ALL_INFO.0, ALL_INFO.1).env("NCCL_IB_TIMEOUT", "20");
        let setting = setting.env("RUST_BACKTRACE", "1");
        env.iter().fold(setting, |setting, (name, value)| setting.env(name, value))
    };
    match fabric {
        Fabric::OneRail => pair(&adapt(require!(setting())), body).map(drop),
        Fabric::Split => {
            let setting = adapt(require!(setting())).env("NCCL_IB_QPS_PER_CONNECTION", "3");
            pair(&setting.env("NCCL_IB_SPLIT_DATA_ON_QPS", "1"), body).map(drop)
        }
        Fabric::Lanes => {
            pair(&adapt(require!(setting())).env("FERRITE_LANES", "4"), body).map(drop)
        }
        Fabric::TwoRails => faithful::run(&["--devices", "4"], adapt, body),
        Fabric::TwoInfiniBandRails => {
            faithful::run(&["--devices", "4", "--link", "ib"], adapt, body)
        }
    }
}

/// One test for each arrangement of devices: `count` messages each way while rules are in force. In
/// the rules `RANK0` stands for a device of rank 0, and `RANK1` for one of rank 1; of two rails
/// they are the second ones.
macro_rules! all_arrives_on_each_fabric {
    ($name:ident, $rules:expr, $shape:expr, $count:expr) => {
        mod $name {
            use crate::fabric::{Fabric, all_arrives};
            use lab::error::Result;

            #[test]
            fn on_one_rail() -> Result<()> {
                let rules = $rules.replace("RANK0", "softrnic0").replace("RANK1", "softrnic1");
                all_arrives(Fabric::OneRail, &rules, $shape, $count)
            }

            #[test]
            fn on_three_queue_pairs() -> Result<()> {
                let rules = $rules.replace("RANK0", "softrnic0").replace("RANK1", "softrnic1");
                all_arrives(Fabric::Split, &rules, $shape, $count)
            }

            #[test]
            fn on_two_rails() -> Result<()> {
                let rules = $rules.replace("RANK0", "softrnic1").replace("RANK1", "softrnic3");
                all_arrives(Fabric::TwoRails, &rules, $shape, $count)
            }
        }
    };
}

pub(crate) use all_arrives_on_each_fabric;

/// `count` messages each way while `rules` are in force. Each rule has to be applied, the
/// connection has to recover, and all messages have to arrive.
pub(crate) fn all_arrives(fabric: Fabric, rules: &str, shape: Shape, count: usize) -> Result<()> {
    run(fabric, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let mut stream = Stream::open(worker, shape)?;
        stream.exchange(worker, count)?;
        end(worker, stream)
    })
}

/// Messages both ways until `is_enough` says so at rank 0.
pub(crate) fn exchange_until(
    worker: &mut WorkerCtx,
    stream: &mut Stream,
    what: &'static str,
    mut is_enough: impl FnMut() -> bool,
) -> Result<()> {
    let begin = Instant::now();
    loop {
        worker.begin(what)?;
        stream.exchange(worker, 20)?;
        let is_enough = worker.rank() == 0 && is_enough();
        if worker.agree(u64::from(is_enough))? == 1 {
            return Ok(());
        }
        assert!(begin.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
    }
}

/// At the end of a test: all rules have been applied, and at least one end has said that its
/// connection has recovered.
pub(crate) fn end(worker: &mut WorkerCtx, stream: Stream) -> Result<()> {
    worker.barrier()?;
    for (rule, count) in applied() {
        assert!(count > 0, "{rule:?} has not been applied");
    }
    let recovered = recoveries();
    let theirs = worker.swap(recovered as u64)?;
    assert!(recovered as u64 + theirs > 0, "no connection has recovered: {}", log());
    worker.barrier()?;
    stream.close()
}

/// How often connections of this process have recovered, as far as its log goes back.
pub(crate) fn recoveries() -> usize {
    lab::nccl::debug_log::lines().iter().filter(|line| line.contains(" recovered")).count()
}

/// The fault rules in force, and how often each has been applied.
pub(crate) fn applied() -> Vec<(String, u64)> {
    let text = softrnic(&["inject"]);
    let rule = |line: &str| {
        let (rule, count) = line.trim().rsplit_once("  applied ").expect("a rule and a number");
        (rule.to_owned(), count.parse().expect("a number"))
    };
    text.lines().filter(|line| !line.is_empty()).map(rule).collect()
}

/// Puts fault rules into force in place of those before.
pub(crate) fn inject_only(rules: &str) {
    softrnic(&["inject", "--clear", rules]);
}

/// Takes a port down or up.
pub(crate) fn set_port(port: &str, state: &str) {
    softrnic(&["port", port, state]);
}

/// Bytes that a port has sent so far.
pub(crate) fn sent(port: &str) -> u64 {
    let text = softrnic(&["stat"]);
    let line =
        text.lines().find(|line| line.trim_start().starts_with(port)).expect("a line for the port");
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "bytes,").expect("a number of bytes");
    words[at - 1].parse().expect("a number")
}

/// What the command `softrnic` with these arguments writes.
pub(crate) fn softrnic(arguments: &[&str]) -> String {
    let path = softrnic_program().unwrap_or_else(|missing| panic!("{missing}"));
    program::stdout_of(Command::new(path).args(arguments))
}

/// The same of a command that takes long, which is not waited for.
pub(crate) fn begin_softrnic(arguments: &[&str]) -> Child {
    let path = softrnic_program().unwrap_or_else(|missing| panic!("{missing}"));
    Command::new(path).args(arguments).stdout(Stdio::null()).spawn().expect("a process")
}
