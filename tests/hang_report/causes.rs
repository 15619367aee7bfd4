//! One test for each cause: every rank that waits has to name it, and the process.

use crate::common::prelude::*;
use crate::job::{Job, Shape, built, enter};
use crate::rank::Rank;
use ferrite::hang;
use ferrite::hang::{Finding, State};
use nccl_net::inspect::stats::layout::{FILE_PREFIX, HEADER_WORDS, RECORD_WORDS, record};
use serde_json::Value;

/// Begins once messages flow.
const SOON: u32 = 20;

/// Of the lines of `rank` about waits, none says any of `words`.
fn says_nothing_of(job: &Job, rank: usize, words: &[&str]) {
    let output = job.processes[rank].output();
    let waits = output.lines().filter(|line| line.contains("has been waiting for"));
    let wrong: Vec<_> = waits.filter(|line| words.iter().any(|word| line.contains(word))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const PATH: [&str; 4] =
    ["do not arrive", "have not arrived", "not acknowledged", "does not answer"];

#[test]
fn a_receiver_that_stops_asking_is_named_by_both_ranks_before_it() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 3, &[], |rank| {
        rank.stops_after = (rank.number == 2).then_some(SOON)
    });
    let last = job.place(2, false);
    job.line(
        1,
        &["has been waiting for", "to be asked for data by", &last, "has not called irecv"],
    );
    job.line(
        0,
        &[
            "has been waiting for",
            &job.place(1, true),
            "The cause, 1 connection(s) away: ",
            &last,
            "has not called irecv",
        ],
    );
    job.line(2, &["rank 1", "to be asked for data by this process", "has not called irecv"]);
    (0..2).for_each(|rank| says_nothing_of(&job, rank, &PATH));
    let answer = job.found(1, |found| matches!(found, Finding::Answer(_)));
    assert!(answer.hangs(None) && answer.text().contains(&last), "{answer:?}");
    let report = &job.reports(1)[0];
    assert_eq!(
        (&report["waits"][0]["verdict"], &report["rank"]),
        (&"PeerHasNotAsked".into(), &1.into()),
        "{report}"
    );
}

/// Rank 1 has never been asked for anything. It does not know its rank, and does not take one from
/// memory that nobody has written to.
#[test]
fn a_sender_that_was_never_asked_names_no_rank_of_its_own() {
    require!(built());
    enter();
    let job =
        Job::start(Shape::Chain, 3, &[], |rank| rank.stops_after = (rank.number == 2).then_some(0));
    let line = job.line(1, &["waits", "to be asked for data by", "has not called irecv"]);
    assert!(!line.contains("rank "), "{line}");
    let report = &job.reports(1)[0];
    assert_eq!(
        (&report["rank"], &report["waits"][0]["cause"]["near"]["rank"]),
        (&Value::Null, &Value::Null),
        "{report}"
    );
    let line = job.line(2, &["to be asked for data by this process", "has not called irecv"]);
    assert!(!line.contains("rank "), "{line}");
}

/// Whether rank 1 knows its rank, where NCCL's set-up of communicators uses the network too: the
/// tags of that are no ranks.
fn rank_1_of_a_job_with_early_connections(change: impl Fn(&mut Rank)) -> Option<u64> {
    let job = Job::start(Shape::Chain, 3, &[("NCCL_OOB_NET_ENABLE", "1")], |rank| {
        rank.stops_after = (rank.number == 2).then_some(SOON);
        change(rank);
    });
    let line =
        job.line(1, &["has been waiting for", "to be asked for data by", "has not called irecv"]);
    let rank = job.reports(1)[0]["rank"].as_u64();
    assert_eq!(line.contains("rank 1 has been waiting"), rank == Some(1), "{line}");
    let told = job.line(2, &["to be asked for data by this process"]);
    assert_eq!(told.contains("rank 1"), rank == Some(1), "{told}");
    rank
}

#[test]
fn where_connections_are_early_messages_without_handles_tell_no_rank() {
    require!(built());
    enter();
    for abi in [9, 12] {
        assert_eq!(
            rank_1_of_a_job_with_early_connections(|rank| rank.abi = abi),
            None,
            "version {abi}"
        );
    }
}

#[test]
fn where_connections_are_early_messages_with_handles_tell_the_rank() {
    require!(built());
    enter();
    assert_eq!(
        rank_1_of_a_job_with_early_connections(|rank| (rank.abi, rank.has_handles) = (12, true)),
        Some(1)
    );
}

#[test]
fn a_sender_that_stops_sending_is_named_by_both_ranks_behind_it() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 3, &[], |rank| {
        rank.stops_after = (rank.number == 0).then_some(SOON)
    });
    job.line(
        1,
        &[
            "has been waiting for",
            "for data of rank 0",
            &job.place(0, true),
            "has not called isend",
        ],
    );
    job.line(
        2,
        &[
            "has been waiting for", "for data of rank 1", ", which waits too.", "rank 0",
            "has not called isend",
        ],
    );
    job.line(0, &["for data of this process", "has not called isend"]);
    (1..3).for_each(|rank| says_nothing_of(&job, rank, &PATH));
}

/// Its process has looked at its end before the receiver asks, and nothing has begun there since.
#[test]
fn a_sender_that_was_idle_before_it_was_asked_is_named_as_one_that_has_not_sent() {
    require!(built());
    enter();
    let mut job = Job::start(Shape::Chain, 2, &[], |rank| rank.waits_after = Some(0));
    (0..2).for_each(|rank| drop(job.line(rank, &["waits for the test"])));
    job.found(0, |found| matches!(found, Finding::Answer(_)));
    job.keep_queue_pairs(1);
    job.line(1, &["has been waiting for", "for data of", "has not called isend"]);
    says_nothing_of(&job, 1, &PATH);
}

cases! { ();
    in_a_ring_of_8_all_name_the_rank_that_has_stopped => all_name_rank_5(8, "1");
    /// One of those that run at night.
    in_a_ring_of_64_all_name_the_rank_that_has_stopped => all_name_rank_5(64, "5");
}

fn all_name_rank_5(count: u32, seconds: &str) {
    require!(built());
    enter();
    let env = [("FERRITE_HANG_SECONDS", seconds)];
    let job = Job::start(Shape::Ring, count, &env, |rank| {
        rank.stops_after = (rank.number == 5).then_some(SOON)
    });
    for rank in (0..count as usize).filter(|rank| *rank != 5) {
        let line = job.line(rank, &["has been waiting for", "rank 5 on "]);
        assert!(line.contains("has not called") && line.contains(&job.place(5, true)), "{line}");
        says_nothing_of(&job, rank, &PATH);
    }
}

#[test]
fn a_process_that_is_stopped_is_named_as_one_that_does_not_answer() {
    require!(built());
    enter();
    let mut job = Job::start(Shape::Ring, 3, &[], |rank| rank.pause_ms = 1);
    (0..3).for_each(|rank| drop(job.line(rank, &["passes messages on"])));
    job.processes[1].signal(libc::SIGSTOP);
    // On a busy machine a report may come before the process has been silent for long enough, and
    // the next one a minute later: so the ranks are asked. They name the process by the rank that
    // it sends with, or by its number alone.
    for rank in [0, 2] {
        job.line(rank, &["has been waiting for"]);
        let places = [true, false].map(|sends| job.place(1, sends));
        job.found(rank, |found| {
            let text = found.text();
            let names_it = places.iter().any(|place| text.contains(place));
            matches!(found, Finding::Answer(_)) && text.contains("does not answer") && names_it
        });
    }
    let outside = job.found(1, |found| matches!(found, Finding::Outside(State::Stopped, _)));
    assert!(outside.text().contains("receives from rank 0 on"), "{}", outside.text());
    job.processes[1].signal(libc::SIGCONT);
    for rank in [0, 2] {
        job.line(rank, &["the wait ended by itself after"]);
    }
}

/// A chain of two without failover, where what `rule` says is lost for ever.
fn black_hole(rule: &str) -> Job {
    let env = [("FERRITE_FAILOVER", "0"), ("SOFTRNIC_FAULTS", rule)];
    Job::start(Shape::Chain, 2, &env, |_| ())
}

#[test]
fn a_path_that_loses_messages_is_named_by_both_ends() {
    require!(built());
    enter();
    let job = black_hole("drop attempts=all opcode=write-imm device=softrnic0 message=20..");
    let words = "have not arrived: the path loses them";
    job.line(0, &["has been waiting for", "for acknowledgements of", &job.place(1, false), words]);
    job.line(1, &["has been waiting for", "for data of rank 0", &job.place(0, true), words]);
}

/// NCCL tests all the time: when both ends have waited for longer than it takes until one counts as
/// not tested, they still say that the path loses messages.
fn a_wait_is_one_of_a_path(env: &[(&str, &str)], has_two_threads: bool) {
    require!(built());
    enter();
    let lost =
        ("SOFTRNIC_FAULTS", "drop attempts=all opcode=write-imm device=softrnic0 message=20..");
    // The device waits for ever for an acknowledgement. No message is timed: the calls for one that
    // is take another way.
    let always =
        [("FERRITE_FAILOVER", "0"), ("NCCL_IB_TIMEOUT", "0"), ("FERRITE_SAMPLE", "0"), lost];
    let env: Vec<_> = always.iter().chain(env).copied().collect();
    let job = Job::start(Shape::Chain, 2, &env, |rank| {
        rank.has_two_threads = has_two_threads;
        // An end that is looked at while NCCL's thread is inside shows by that alone that NCCL
        // calls.
        rank.idle_us = 10_000;
    });
    for rank in 0..2 {
        job.found(rank, |found| {
            let Finding::Answer(report) = found else { return false };
            let since_s = report["waits"][0]["since_s"].as_f64();
            since_s > Some(5.0) && found.text().contains("have not arrived: the path loses them")
        });
    }
}

cases! { ();
    a_long_wait_for_a_path_is_none_for_nccl => a_wait_is_one_of_a_path(&[], false);
    a_long_wait_for_a_path_over_lanes_is_none_for_nccl =>
        a_wait_is_one_of_a_path(&[("FERRITE_LANES", "2")], false);
    /// No call takes the fast path.
    a_long_wait_for_a_path_of_a_connection_that_two_threads_have_called_is_none_for_nccl =>
        a_wait_is_one_of_a_path(&[], true);
}

/// What the file of statistics of a rank says of its connection: the words of the only record.
fn record(job: &Job, rank: usize) -> Vec<u64> {
    let path = hang::of_living(job.processes[rank].pid()).expect("its file");
    let bytes = std::fs::read(path).expect("it can be read");
    let words: Vec<_> =
        bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    words[HEADER_WORDS..][..RECORD_WORDS].to_vec()
}

#[test]
fn a_recovery_without_an_end_tells_ports_and_attempts_at_both_ends_and_in_the_statistics() {
    require!(built());
    enter();
    let lost = "drop attempts=all opcode=write-imm device=softrnic0 message=20..; drop attempts=all opcode=write device=softrnic0";
    let job = Job::start(Shape::Chain, 2, &[("SOFTRNIC_FAULTS", lost)], |_| ());
    for rank in 0..2 {
        let found = job.found(rank, |found| {
            let Finding::Answer(report) = found else { return false };
            report["waits"][0]["recovery"]["attempts"].as_u64() >= Some(3) && found.hangs(None)
        });
        let text = found.text();
        println!("{text}");
        for words in
            ["(softrnic", "up at both ends", "no acknowledgement", "Check the path", "attempt "]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        let Finding::Answer(report) = found else { unreachable!("it has answered") };
        let wait = &report["waits"][0];
        assert_eq!(
            (&wait["verdict"], wait["recovery"]["rails"][0]["usable_by_peer"].as_bool()),
            (&"Recovering".into(), Some(true))
        );
        let numbers = if rank == 0 { ["sent", "acknowledged"] } else { ["posted", "arrived"] };
        assert!(
            numbers.iter().all(|name| wait["local"][name].is_u64() && text.contains(name)),
            "{text}"
        );
        wait_until("the statistics to say so", || {
            let words = record(&job, rank);
            (words[record::RECOVERING] != 0 && words[record::ATTEMPTS] >= 3).then_some(())
        });
    }
}

#[test]
fn a_recovery_over_a_port_that_is_down_says_which() {
    require!(built());
    enter();
    let down = [("SOFTRNIC_FAULTS", "port-down device=softrnic0 opcode=write-imm message=20")];
    let job = Job::start(Shape::Chain, 2, &down, |_| ());
    for (rank, whose) in [(0, "this end cannot use its port"), (1, "the peer cannot use its port")]
    {
        let found = job.found(
            rank,
            |found| matches!(found, Finding::Answer(report) if report["waits"][0]["recovery"]["rails"].is_array()),
        );
        assert!(found.text().contains(whose) && found.text().contains("cable"), "{}", found.text());
    }
}

#[test]
fn a_job_that_resumes_does_not_hang() {
    require!(built());
    enter();
    let job = Job::start(Shape::Ring, 2, &[], |_| ());
    (0..2).for_each(|rank| drop(job.line(rank, &["passes messages on"])));
    for rank in 0..2 {
        let found = job.found(rank, |found| matches!(found, Finding::Answer(_)));
        assert!(!found.hangs(Some(Duration::from_secs(60))), "{found:?}");
    }
}

/// Its number may have been another process's before, and anybody may make a file of that name.
#[test]
fn a_file_with_the_number_of_a_process_is_not_taken_for_its_own() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 2, &[], |_| ());
    (0..2).for_each(|rank| drop(job.line(rank, &["passes messages on"])));
    let [own, other] =
        [0, 1].map(|rank| hang::of_living(job.processes[rank].pid()).expect("its file"));
    let planted = own.with_file_name(format!("{FILE_PREFIX}{}.0", job.processes[0].pid()));
    std::fs::copy(other, &planted).expect("written");
    let found = hang::of_living(job.processes[0].pid());
    std::fs::remove_file(planted).expect("removed");
    assert_eq!(found, Some(own));
}

#[test]
fn a_path_that_loses_clear_to_sends_is_named_by_both_ends() {
    require!(built());
    enter();
    let job = black_hole("drop attempts=all opcode=write device=softrnic1 message=20..");
    let words = "its clear-to-sends do not arrive at the sender";
    job.line(0, &["has been waiting for", "to be asked for data by", &job.place(1, false), words]);
    job.line(1, &["has been waiting for", "for data of rank 0", &job.place(0, true), words]);
}

#[test]
fn a_path_that_loses_acknowledgements_is_named() {
    require!(built());
    enter();
    let job = black_hole("drop-ack attempts=all opcode=write-imm device=softrnic0 message=20..");
    let words = "the path back loses the acknowledgements";
    job.line(0, &["has been waiting for", "for acknowledgements of", &job.place(1, false), words]);
}

#[test]
fn a_slow_rank_is_not_taken_for_a_broken_one() {
    require!(built());
    enter();
    let job = Job::start(Shape::Chain, 2, &[], |rank| {
        rank.pause_ms = if rank.number == 0 { 6000 } else { 0 }
    });
    job.line(1, &["has been waiting for", "for data of rank 0", "has not called isend"]);
    job.line(1, &["the wait ended by itself after"]);
    says_nothing_of(&job, 1, &PATH);
}

#[test]
fn a_peer_that_dies_is_an_error_and_no_wait() {
    require!(built());
    enter();
    let mut job = Job::start(Shape::Chain, 2, &[], |rank| rank.pause_ms = 1);
    job.line(0, &["passes messages on"]);
    job.processes[1].signal(libc::SIGKILL);
    job.line(0, &["the peer's process has died"]);
    job.line(0, &["rank 0 ends"]);
    says_nothing_of(&job, 0, &PATH);
}

/// A rank that has met an error closes its other connections because of it, and so on.
#[test]
fn an_error_is_reported_to_all_ranks_before_it_with_the_rank_that_has_met_it_first() {
    require!(built());
    enter();
    // Each rank waits for messages whenever it hears of the error: one that waits for none closes
    // in good order. And none sends while its peer deregisters memory: it would meet an error of
    // its own.
    let mut job = Job::start(Shape::Chain, 4, &[], |rank| {
        rank.is_independent = true;
        rank.waits_after = Some(30).filter(|_| rank.number < 2);
    });
    for rank in [0, 1] {
        job.line(rank, &["waits for the test"]);
    }
    let (met, dead) = (job.processes[2].pid(), job.processes[3].pid());
    // It knows its own rank as soon as it has looked at its messages.
    let (with_rank, without) = (format!(" (pid {met}): "), format!("process {met} on "));
    let died = format!("of process {dead} on ");
    job.processes[3].signal(libc::SIGKILL);
    job.line(2, &[&died, "the peer's process has died"]);
    for rank in [1, 0] {
        job.line(rank + 1, &[&format!("rank {} ends", rank + 1)]);
        job.keep_queue_pairs(rank);
        let first = "the first error there: ";
        let line = job
            .line(rank, &["the receiver was closed", first, &died, "the peer's process has died"]);
        let who = line.split(first).nth(1).unwrap_or_default();
        assert!(who.starts_with(&without) || who.contains(&with_rank), "rank {rank}: {line}");
    }
}

/// A report is for an operator who has set nothing: it appears, once, whether NCCL shows warnings
/// or not.
fn a_report_appears(nccl_debug: &str) {
    require!(built());
    enter();
    let rule = "drop attempts=all opcode=write-imm device=softrnic0 message=20..";
    let env = [("FERRITE_FAILOVER", "0"), ("SOFTRNIC_FAULTS", rule), ("NCCL_DEBUG", nccl_debug)];
    let job = Job::start(Shape::Chain, 2, &env, |_| ());
    let [first, second] = [0, 1].map(|rank| job.line(rank, &["report", "has been waiting for"]));
    assert!(first.contains(".json") && second.contains(".json"), "{first}\n{second}");
    for rank in [0, 1] {
        let output = job.processes[rank].output();
        assert_eq!(
            output.lines().filter(|line| line.contains("has been waiting for")).count(),
            1,
            "{output}"
        );
    }
}

cases! { ();
    a_report_appears_where_nccl_shows_warnings => a_report_appears("WARN");
    a_report_appears_where_nccl_shows_nothing => a_report_appears("");
    a_report_appears_where_only_some_releases_show_warnings => a_report_appears("ATTN");
}
