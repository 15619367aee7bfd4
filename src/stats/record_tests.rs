//! Tests of the record of an end.

use super::layout::{CLOSED, OPEN, record, timed};
use super::record::{ConnStats, Direction, Opening};
use super::timing::Completed;
use super::{histogram, stalls};
use std::sync::atomic::Ordering;

fn end(direction: Direction) -> ConnStats {
    ConnStats::open(&Opening {
        direction,
        device: "mlx5_0",
        peer_host: "n-0412",
        peer_pid: 3021,
        peer_rank: None,
        peer_label: Some(118),
        connection: 5,
    })
}

const EIGHT_BYTES: Completed = Completed { messages: 1, bytes: 8 };

fn word(end: &ConnStats, at: usize) -> u64 {
    end.words[at].load(Ordering::Relaxed)
}

#[test]
fn messages_and_bytes_are_counted_and_the_first_message_tells_the_rank() {
    let mut end = end(Direction::Receive);
    assert!(end.handle_begun(1));
    assert_eq!(
        (end.handle_due_receive(1, 1, Some(7)), word(&end, record::PEER_RANK)),
        (Some(7), 8)
    );
    assert_eq!(end.handle_due_receive(1, 1, Some(7)), None, "it is known");
    assert!(!end.handle_begun(8));
    end.handle_done(100);
    end.handle_group_done(&[1, 2, 3]);
    assert_eq!([record::BEGUN, record::DONE, record::BYTES].map(|at| word(&end, at)), [9, 4, 106]);
    assert_eq!((word(&end, record::PEER_LABEL), word(&end, record::PEER_PID)), (119, 3021));
}

/// Samples of each stage.
fn samples(end: &ConnStats) -> [u64; 3] {
    let count = |stage: usize| {
        let at = record::HISTOGRAMS + stage * histogram::WORDS;
        end.words[at..][..histogram::WORDS]
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .map(halves)
            .sum()
    };
    [0, 1, 2].map(count)
}

fn halves(word: u64) -> u64 {
    (word >> 32) + u64::from(word as u32)
}

/// An end of which one in `interval` messages is timed.
fn timed(direction: Direction, interval: u32) -> ConnStats {
    end(direction).timed_every(interval)
}

#[test]
fn a_sender_times_one_message_in_64_and_the_pause_before_it() {
    let mut end = timed(Direction::Send, 64);
    let mut timed = Vec::new();
    for message in 0..200 {
        if message % 2 == 0 {
            end.handle_refused();
        }
        if end.handle_begun(1) {
            end.handle_due_send(message, Some(3));
        }
        if end.timed_request() == Some(message) {
            timed.push(message);
            end.handle_timed_done(EIGHT_BYTES);
        }
    }
    assert_eq!(timed, [1, 65, 129, 193]);
    assert_eq!(samples(&end), [4; 3]);
}

#[test]
fn a_receiver_times_one_message_in_64_until_the_next_irecv() {
    let mut end = timed(Direction::Receive, 64);
    let mut timed = Vec::new();
    for message in 0..200 {
        if end.handle_begun(1) {
            let _ = end.handle_due_receive(message, 1, Some(3));
        }
        if end.timed_request() == Some(message) {
            timed.push(message);
            (0..2).for_each(|_| end.handle_announced());
            end.handle_timed_done(EIGHT_BYTES);
        }
    }
    assert_eq!(timed, [1, 65, 129, 193], "the same as the sender");
    assert_eq!(samples(&end), [4; 3]);
}

/// The numbers of the messages in the record, in the order of its words.
fn kept(end: &ConnStats) -> Vec<u64> {
    let all = (0..record::TIMED_MESSAGES).map(|place| record::TIMED + place * timed::WORDS);
    let whole =
        all.filter(|at| word(end, at + timed::MESSAGE) == word(end, at + timed::MESSAGE_AGAIN));
    whole.filter_map(|at| word(end, at).checked_sub(1)).collect()
}

#[test]
fn the_last_messages_that_were_timed_are_kept_with_their_times() {
    let (mut send, mut receive) = (timed(Direction::Send, 4), timed(Direction::Receive, 4));
    for message in 0..4 * 27 {
        if send.handle_begun(1) {
            send.handle_due_send(message, Some(3));
        }
        if receive.handle_begun(1) {
            let _ = receive.handle_due_receive(message, 1, Some(3));
        }
        for end in [&mut send, &mut receive] {
            if end.timed_request() == Some(message) {
                end.set_timed_operation(message.into());
                end.handle_announced();
                end.handle_timed_done(Completed { messages: 1, bytes: u64::from(message) << 20 });
            }
        }
    }
    // The first two have made room for the last two.
    let expected: Vec<u64> =
        [101, 105].into_iter().chain((2..25).map(|step| 4 * step + 1)).collect();
    assert_eq!([&send, &receive].map(kept), [expected.clone(), expected]);
    let at = record::TIMED + timed::WORDS;
    assert_eq!([&send, &receive].map(|end| word(end, at + timed::BYTES)), [1 << 56 | 105 << 20; 2]);
    assert_eq!([&send, &receive].map(|end| word(end, at + timed::OPERATION)), [105; 2]);
    for end in [&send, &receive] {
        let [earlier, later] = [at - timed::WORDS, at].map(|at| word(end, at + timed::AT));
        let times =
            (0..record::STAGES).map(|stage| word(end, at + timed::STAGES + stage)).sum::<u64>();
        assert!(earlier < later && times < later, "{earlier} {times} {later}");
    }
    assert_ne!(word(&receive, at + timed::STAGES + record::CONSUME), 0, "the next irecv has come");
}

#[test]
fn a_timed_send_has_the_number_that_the_message_has_at_the_receiver() {
    let mut end = timed(Direction::Send, 4);
    for message in 0..6 {
        if end.handle_begun(1) {
            end.handle_due_send(message, Some(3));
        }
        if end.timed_request() == Some(message) {
            end.set_timed_place(message + 2);
            end.handle_timed_done(EIGHT_BYTES);
        }
    }
    assert_eq!(kept(&end), [3, 7], "messages 1 and 5 of the sender");
}

#[test]
fn a_receive_of_several_messages_is_timed_if_the_sender_times_one_of_them() {
    let mut end = timed(Direction::Receive, 8);
    let (mut begun, mut timed) = (0, Vec::new());
    for (request, count) in
        [3, 3, 3, 1, 2, 8, 1, 8, 8, 8, 1, 1, 1, 1, 1, 1, 1, 1].into_iter().enumerate()
    {
        if end.handle_begun(count) {
            let _ = end.handle_due_receive(request as u32, count as u8, Some(3));
        }
        if end.timed_request() == Some(request as u32) {
            timed.push(begun..begun + count as u64);
            end.handle_timed_done(Completed { messages: count as u8, bytes: 8 });
        }
        begun += count as u64;
    }
    assert!(timed.iter().all(|range| range.clone().any(|number| number % 8 == 1)), "{timed:?}");
    assert!(timed.len() >= 6, "{timed:?}");
}

#[test]
fn of_messages_that_overlap_one_is_timed_at_a_time_and_a_lost_one_does_not_end_that() {
    for direction in [Direction::Send, Direction::Receive] {
        let mut end = timed(direction, 4);
        let due = |end: &mut ConnStats, request| {
            if end.handle_begun(1) {
                match direction {
                    Direction::Send => end.handle_due_send(request, Some(3)),
                    Direction::Receive => drop(end.handle_due_receive(request, 1, Some(3))),
                }
            }
        };
        (0..20).for_each(|request| due(&mut end, request));
        assert_eq!(end.timed_request(), Some(1), "the first one still");
        end.forget_timed();
        (20..40).for_each(|request| due(&mut end, request));
        assert!(end.timed_request().is_some_and(|request| request >= 20));
    }
}

#[test]
fn without_samples_no_message_is_timed() {
    let mut end = timed(Direction::Send, 0);
    assert!(end.handle_begun(1), "for the rank");
    end.handle_due_send(0, Some(3));
    assert!((0..1000).all(|_| !end.handle_begun(1)) && end.timed_request().is_none());
}

/// Counters are written by this thread, and looked at once a second of a made-up time.
#[test]
fn an_end_that_waits_and_does_not_move_for_a_second_has_stalled() {
    const SECOND: u64 = 1_000_000_000;
    let mut end = end(Direction::Receive);
    let mut seconds = 100;
    let mut look = |end: &ConnStats| {
        seconds += 1;
        assert!(stalls::check_record(end.words, seconds * SECOND));
        [record::STALLS, record::STALL, record::LONGEST_STALL].map(|at| word(end, at))
    };
    assert_eq!([look(&end), look(&end)], [[0; 3]; 2], "nothing is outstanding");
    let _ = end.handle_begun(2);
    assert_eq!(look(&end), [0; 3], "it has moved");
    assert_eq!([look(&end), look(&end)], [[1, SECOND, SECOND], [1, 2 * SECOND, 2 * SECOND]]);
    end.handle_done(8);
    assert_eq!(look(&end), [1, 0, 2 * SECOND], "it has moved, and waits for the other one");
    assert_eq!(look(&end), [2, SECOND, 2 * SECOND]);
    end.handle_done(8);
    assert_eq!([look(&end), look(&end)], [[2, 0, 2 * SECOND]; 2], "nothing is outstanding");
    let words = end.words;
    drop(end);
    assert!(!stalls::check_record(words, 200 * SECOND));
}

#[test]
fn a_sender_without_a_clear_to_send_stalls_too() {
    let mut end = end(Direction::Send);
    end.handle_refused();
    assert!((1..=2).all(|second| stalls::check_record(end.words, second)));
    assert_eq!(word(&end, record::STALLS), 1);
}

#[test]
fn a_message_that_is_refused_many_times_counts_once() {
    let mut end = end(Direction::Send);
    for waits in [1, 2] {
        (0..10).for_each(|_| end.handle_refused());
        assert_eq!(word(&end, record::WAITS), waits);
        assert_eq!(word(&end, record::REFUSED_AT), word(&end, record::BEGUN), "it waits");
        let _ = end.handle_begun(1);
    }
    assert_ne!(word(&end, record::REFUSED_AT), word(&end, record::BEGUN));
}

#[test]
fn a_negative_tag_is_no_rank() {
    let mut end = end(Direction::Receive);
    assert_eq!(
        (end.handle_due_receive(0, 1, Some(-1i32 as u32)), word(&end, record::PEER_RANK)),
        (None, 0)
    );
}

#[test]
fn queue_pair_numbers_take_half_a_word_each() {
    let end = end(Direction::Send);
    end.set_queue_pairs([(0, "mlx5_0"), (2, "mlx5_2")].into_iter(), [5, 6, 7].into_iter());
    let seen = [record::RAIL_COUNT, record::QP_COUNT, record::QPS, record::QPS + 1]
        .map(|at| word(&end, at));
    assert_eq!(seen, [2, 3, 5 | 6 << 32, 7]);
    assert_eq!(
        word(&end, record::RAIL_NAMES + 2 * record::RAIL_NAME_WORDS),
        u64::from_ne_bytes(*b"mlx5_2\0\0")
    );
}

#[test]
fn a_closed_end_stays_readable() {
    let open = end(Direction::Send);
    let words = open.words;
    assert_eq!(words[record::STATE].load(Ordering::Relaxed) & 0xff, OPEN);
    drop(open);
    assert_eq!(words[record::STATE].load(Ordering::Relaxed) & 0xff, CLOSED);
    assert_ne!(words[record::CLOSED].load(Ordering::Relaxed), 0);
}
