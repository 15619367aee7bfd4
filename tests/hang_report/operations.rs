//! What the reports say about NCCL's operations, which these ranks report to the plugin's profiler.

use crate::common::prelude::*;
use crate::job::{Job, Shape, built, enter};
use ferrite::hang;
use nccl_net::inspect::operation::{Call, Function};
use nccl_net::inspect::stats::layout::{HEADER_WORDS, record, timed};
use std::path::Path;

/// Begins once messages flow.
const SOON: u32 = 20;
/// The number of the last of 8 operations.
const OPERATION: &str = "in AllReduce number 7 of communicator dp";

/// A chain whose last rank makes no call any more after some messages, when it has begun `begun`
/// operations.
fn chain(count: u32, begun: u64) -> Job {
    Job::start(Shape::Chain, count, &[], |rank| {
        let is_last = rank.number + 1 == count;
        rank.abi = 12;
        rank.begun = Some(if is_last { begun } else { 8 });
        rank.stops_after = is_last.then_some(SOON);
    })
}

/// The operation of the first message that was timed, of the first connection in a statistics file.
fn timed_operation(file: &Path) -> Option<Call> {
    let bytes = std::fs::read(file).expect("it is readable");
    let words: Vec<u64> =
        bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let message = &words[HEADER_WORDS + record::TIMED..][..timed::WORDS];
    assert_eq!(message[timed::MESSAGE], 2, "number 1");
    Call::from_bits(message[timed::OPERATION])
}

#[test]
fn a_rank_that_has_not_begun_the_operation_is_reported_from_all_others() {
    require!(built());
    enter();
    let mut job = chain(3, 7);
    let not_begun =
        "NCCL there has not launched the operation (last AllReduce of this communicator: number 6)";
    job.line(0, &["NCCL took ncclProfiler_v6: reports name operations"]);
    job.line(1, &["rank 1 has been waiting for", OPERATION, "has not called irecv", not_begun]);
    let line = job.line(
        0,
        &[
            "rank 0 has been waiting for", OPERATION, "1 connection(s) away: rank 1",
            " waits for ", not_begun,
        ],
    );
    assert_eq!(line.matches(OPERATION).count(), 1, "it is said once: {line}");
    job.line(
        2,
        &[
            "rank 1",
            OPERATION,
            "to be asked for data by this process",
            "NCCL here has not launched the operation",
        ],
    );
    let wait = &job.reports(1)[0]["waits"][0];
    assert_eq!(
        (&wait["operation"]["function"], &wait["operation"]["number"]),
        (&"AllReduce".into(), &7.into()),
        "{wait}"
    );
    assert_eq!(
        (&wait["peer_has_begun"], &wait["cause"]["far_has_begun"]),
        (&false.into(), &false.into()),
        "{wait}"
    );
    assert_eq!(wait["operation"]["communicator_name"], "dp", "{wait}");
    // Another process reads it in the statistics file.
    let file = hang::of_living(job.processes[1].pid()).expect("its file");
    wait_until("the record to name it", || {
        let connections = hang::connections(&file).expect("valid");
        connections
            .iter()
            .any(|connection| OPERATION.ends_with(&connection.operation) && connection.sends)
            .then_some(())
    });
    // So are messages that were timed: number 1 of each connection is.
    assert_eq!(
        timed_operation(&file),
        Some(Call { function: Function::AllReduce, number: Some(7) })
    );
    job.processes[2].signal(libc::SIGKILL);
    job.line(1, &["the peer's process has died", "during AllReduce number 7 of communicator dp"]);
}

#[test]
fn a_rank_that_has_begun_the_operation_and_does_not_resume_is_reported_so() {
    require!(built());
    enter();
    let job = chain(2, 8);
    job.line(
        0,
        &[
            "rank 0 has been waiting for",
            OPERATION,
            "has not called irecv",
            "NCCL there has launched the operation: a GPU",
        ],
    );
    assert_eq!(job.reports(0)[0]["waits"][0]["peer_has_begun"], true);
}

#[test]
fn the_log_says_that_nccl_has_taken_another_profiler() {
    require!(built());
    enter();
    let env = [("NCCL_PROFILER_PLUGIN", "inspector")];
    let job = Job::start(Shape::Chain, 2, &env, |rank| rank.abi = 12);
    job.line(
        0,
        &["NCCL has not taken Ferrite's profiler (NCCL_PROFILER_PLUGIN=inspector): reports name no operations"],
    );
}

#[test]
fn nothing_is_named_where_the_user_wants_no_profiler() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 2, &[("FERRITE_PROFILER", "0")], |rank| {
        (rank.abi, rank.begun) = (12, Some(8));
        rank.stops_after = (rank.number == 1).then_some(SOON);
    });
    let line = job.line(0, &["rank 0 has been waiting for", "has not called irecv"]);
    assert!(!job.processes[0].output().contains("took ncclProfiler"), "{line}");
}
