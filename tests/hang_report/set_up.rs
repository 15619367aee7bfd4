//! Connections that are not set up: who waits says so, and for what.

use crate::common::prelude::*;
use crate::job::{Job, Shape, built, enter};
use ferrite::hang::Finding;
use serde_json::Value;

/// What `ferrite hang` finds of a rank whose set-up waits for `stage`.
fn waiting(job: &Job, rank: usize, stage: &str, is_called: bool) -> Value {
    let found = job.found(rank, |found| match found {
        Finding::Answer(report) => {
            let all = report["set_ups"].as_array().expect("a list");
            all.iter().any(|set_up| set_up["waits_for"] == stage && set_up["called"] == is_called)
        }
        Finding::Outside(..) => false,
    });
    assert_eq!(found.hangs(Some(Duration::ZERO)), is_called, "{found:?}");
    let Finding::Answer(report) = found else { unreachable!("it has answered") };
    report
}

#[test]
fn a_listener_to_which_nobody_comes_says_so() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 2, &[], |rank| rank.never_connects = true);
    job.line(
        1,
        &[
            "WARN",
            "softrnic1: has been listening at 127.0.0.1:",
            "no peer has connected",
            "ferrite-hang.",
        ],
    );
    let report = waiting(&job, 1, "Peer", true);
    assert!(
        report["text"].as_str().is_some_and(|text| text.contains("no peer has connected")),
        "{report}"
    );
    assert_eq!(
        (report["waits"].as_array().map(Vec::len), &report["set_ups"][0]["call"]),
        (Some(0), &"Accept".into())
    );
    // The file has the same.
    assert_eq!(job.reports(1)[0]["set_ups"][0]["waits_for"], "Peer");
}

/// The peer may be late, as far as this end can know: so it is no warning where the user has not
/// said how long is too long.
#[test]
fn a_connect_that_the_peer_does_not_accept_says_so_at_both_ends() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 2, &[], |rank| rank.never_accepts = true);
    job.line(0, &["softrnic0: has been connecting to 127.0.0.1:", "the peer has not accepted"]);
    waiting(&job, 0, "Accept", true);
    let line = job.line(
        1,
        &["softrnic1: has been listening at 127.0.0.1:", "NCCL here has not called accept"],
    );
    assert!(!line.contains("WARN"), "{line}");
    waiting(&job, 1, "Peer", false);
}

#[test]
fn a_connection_beside_others_that_is_not_set_up_is_reported_too() {
    require!(built());
    enter();
    // Rank 1 sends to rank 2, which accepts, and nobody has been connecting to rank 1.
    let job = Job::start(Shape::Chain, 3, &[], |rank| rank.never_connects = rank.number == 0);
    job.line(1, &["softrnic1: has been listening at", "no peer has connected"]);
    waiting(&job, 1, "Peer", true);
}

#[test]
fn queue_pairs_that_cannot_be_connected_are_reported_with_the_error_and_the_peer() {
    require!(built());
    enter();
    let fault = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic1 every=1"),
        ("NCCL_IB_MQP_RETRY_CNT", "10000"),
    ];
    let job = Job::start(Shape::Chain, 2, &fault, |_| ());
    let peer = job.place(0, false);
    job.line(
        1,
        &[
            "WARN",
            "softrnic1: has been listening at",
            "the queue pairs cannot be connected to those of",
            &peer,
            "Connection timed out",
        ],
    );
    waiting(&job, 1, "QueuePairs", true);
    job.line(0, &["softrnic0: has been connecting to", "the peer has not accepted"]);
}

#[test]
fn a_set_up_that_was_reported_says_when_it_has_gone_on() {
    require!(built());
    enter();
    // So many attempts fail; one takes 100 ms.
    let fault = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic1 times=30"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "100"),
    ];
    let job = Job::start(Shape::Chain, 2, &fault, |_| ());
    job.line(1, &["the queue pairs cannot be connected"]);
    job.line(1, &["set-up continued"]);
    job.line(1, &["passes messages on"]);
}
