//! Several ways through the fabric: which one a queue pair takes, what it shares there, and what
//! goes wrong there.

mod common;

use common::prelude::*;

const BYTES: usize = 200_000;

/// Two paths of 10 MB/s.
fn two_paths() -> Softrnic {
    Softrnic::new().env("SOFTRNIC_PATHS", 2).env("SOFTRNIC_PATH_MBS", 10)
}

/// A queue pair of device 0 whose packets have `flow_label`, and one of device 1 that it is
/// connected to.
fn pair(flow_label: u32, terms: &Terms) -> (Node, Node) {
    let (a, b) = (Node::new(0, BYTES), Node::new(1, BYTES));
    for (node, peer) in [(&a, &b), (&b, &a)] {
        node.connect_by(&QpAttr { flow_label, ..rtr(&peer.address(), terms) }, terms)
            .expect("connect");
    }
    (a, b)
}

fn write((a, b): &(Node, Node), length: usize) {
    a.send(Work { sges: &[a.sge(0, length)], to: b.at(0), ..WORK });
}

/// What a path of [`two_paths`] takes for [`BYTES`].
const LONG: Duration = Duration::from_millis(20);

/// Whether a short message of `other`, posted after a long one of `one`, is through before the long
/// one can be. On the same path it never is. On another one it is, unless the machine stops for as
/// long.
fn overtakes(other: &(Node, Node), one: &(Node, Node)) -> bool {
    overtakes_within(other, one, LONG)
}

fn overtakes_within(other: &(Node, Node), one: &(Node, Node), time: Duration) -> bool {
    let begin = Instant::now();
    write(one, BYTES);
    write(other, 8);
    assert_eq!(other.0.next().status, OK);
    let overtaken = begin.elapsed() < time;
    assert_eq!(one.0.next().status, OK);
    overtaken
}

/// The hash is fixed: of the flow labels 1 to 8, some take one path and some the other.
#[test]
fn queue_pairs_share_a_path_if_the_hash_of_their_flow_labels_is_the_same() {
    two_paths().alone(|| {
        let terms = TERMS;
        let first = pair(1, &terms);
        let again = pair(1, &terms);
        assert!(!overtakes(&again, &first), "the same label, so the same path");
        let others: Vec<_> = (2..=8).map(|label| pair(label, &terms)).collect();
        // As often as it takes on a machine that stops again and again.
        let mut tries = (0..200).flat_map(|_| &others);
        assert!(tries.any(|other| overtakes(other, &first)), "another path");
    });
}

/// What shares a path takes as long as all of it, at least; without paths nothing waits.
#[test]
fn messages_on_one_path_share_its_bandwidth() {
    two_paths().alone(|| {
        let all: Vec<_> = (0..3).map(|_| pair(5, &TERMS)).collect();
        let begin = Instant::now();
        all.iter().for_each(|pair| write(pair, BYTES));
        all.iter().for_each(|pair| assert_eq!(pair.0.next().status, OK));
        assert!(begin.elapsed() >= 3 * LONG, "600 kB at 10 MB/s: {:?}", begin.elapsed());
    });
}

/// Each message takes its part of both paths, so that whatever comes later waits for it, with every
/// flow label.
#[test]
fn in_a_fabric_that_spreads_packets_all_queue_pairs_share_all_paths() {
    two_paths().env("SOFTRNIC_SPRAY", 1).alone(|| {
        let all: Vec<_> = (1..=8).map(|label| pair(label, &TERMS)).collect();
        let (first, others) = all.split_first().expect("some");
        // Half of a message on each path.
        assert!(others.iter().all(|other| !overtakes_within(other, first, LONG / 2)));
    });
}

#[test]
fn a_path_that_is_dead_fails_the_queue_pairs_on_it_and_no_others() {
    let dead = Softrnic::new().env("SOFTRNIC_PATHS", 2).faults("drop attempts=all path=1");
    dead.alone(|| {
        let terms = Terms { timeout: 1, retry_cnt: 1, ..TERMS };
        let results: Vec<u32> = (1..=16)
            .map(|label| {
                let pair = pair(label, &terms);
                write(&pair, 8);
                pair.0.next().status
            })
            .collect();
        let failed = results.iter().filter(|status| **status != OK).count();
        assert!((3..=13).contains(&failed), "{results:?}");
        let again = results.iter().zip(1..).all(|(status, label)| {
            let pair = pair(label, &terms);
            write(&pair, 8);
            pair.0.next().status == *status
        });
        assert!(again, "the same label takes the same path");
    });
}

/// A rule that names a path slows that one alone.
#[test]
fn a_slow_path_slows_what_takes_it() {
    Softrnic::new().env("SOFTRNIC_PATHS", 2).faults("slow=0.01 path=0").alone(|| {
        let took = |label| {
            let pair = pair(label, &TERMS);
            // The first message brings the rule into effect.
            write(&pair, 8);
            pair.0.next();
            let begin = Instant::now();
            write(&pair, BYTES);
            pair.0.next();
            begin.elapsed()
        };
        let times: Vec<_> = (1..=16).map(took).collect();
        let slow = times.iter().filter(|time| **time >= Duration::from_millis(20)).count();
        assert!((3..16).contains(&slow), "{times:?}");
    });
}

#[test]
fn without_a_flow_label_the_numbers_of_the_queue_pairs_choose_the_path() {
    let dead = Softrnic::new().env("SOFTRNIC_PATHS", 2).faults("drop attempts=all path=1");
    dead.alone(|| {
        let terms = Terms { timeout: 1, retry_cnt: 1, ..TERMS };
        // All are kept, so that each has other numbers.
        let pairs: Vec<_> = (0..24).map(|_| pair(0, &terms)).collect();
        pairs.iter().for_each(|pair| write(pair, 8));
        let failed = pairs.iter().filter(|pair| pair.0.next().status != OK).count();
        assert!((3..=21).contains(&failed), "{failed} of 24");
    });
}
