//! What a machine says of itself.

use super::*;
use std::collections::BTreeSet;

const DESTROY: &str = "The old queue pairs are not destroyed yet";
const HALT: &str = "The peer has not answered: its host may be down";
const OFFER: &str = "The sender has not offered new queue pairs";
const NEW: &str = "New queue pairs are being connected and tested";
const ANSWERS: [&str; 2] =
    ["The peer has not answered yet (limit: 5 s)", "The peer has not answered yet (limit: 40 s)"];
const RUNS: &str = "It failed repeatedly";

/// What an end says that it waits for.
fn waited_for(pair: &Pair, end: usize) -> String {
    let text = pair.ends[end].machine.describe(pair.now + SECOND);
    assert!(text.contains(" attempt(s) in "), "{text}");
    text.split(". ").nth(1).expect("a sentence").to_owned()
}

#[test]
fn each_end_says_what_it_waits_for() {
    let mut said = [Vec::new(), Vec::new()];
    let mut pair = Pair::new(1);
    pair.are_jobs_slow = true;
    pair.fault(0);
    while pair.step() {
        for (end, said) in said.iter_mut().enumerate() {
            let text = waited_for(&pair, end);
            if said.last() != Some(&text) {
                said.push(text);
            }
        }
    }
    assert_eq!(said[0], [DESTROY, HALT, NEW, ANSWERS[0], NEW, ANSWERS[0], NEW, RUNS]);
    assert_eq!(said[1], [RUNS, DESTROY, NEW, ANSWERS[1], NEW, RUNS]);
}

#[test]
fn an_end_without_an_answer_or_a_rail_says_so() {
    for (end, text) in [(0, HALT), (1, OFFER)] {
        let mut pair = Pair::new(1);
        pair.lose();
        pair.fault(end);
        pair.settle();
        assert_eq!(waited_for(&pair, end), text);
    }
    let mut pair = Pair::new(1);
    pair.ends[0].refusals = 1;
    pair.fault(0);
    pair.settle();
    assert_eq!(waited_for(&pair, 0), "The next attempt begins soon");
    let mut pair = Pair::new(1);
    pair.usable(1, 0);
    pair.settle();
    let said = [0, 1].map(|end| waited_for(&pair, end));
    assert_eq!(said, ["No rail is usable at both ends", OFFER]);
    pair.pass(GIVE_UP + SECOND);
    let failure = pair.failure(0).expect("it gives up");
    let rails = "Usable rails: all here, none at the peer. No rail is usable at both ends. ";
    assert!(failure.contains(rails), "{failure}");
}

/// Attempt 1 fails just before the time to give up, at either end. Nothing that attempt 2 waits for
/// by then is the reason.
#[test]
fn an_end_that_gives_up_names_what_it_waits_for_unless_the_attempt_has_just_begun() {
    let mut given_up = BTreeSet::new();
    for (refusing, end) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut pair = Pair::new(1);
        pair.are_jobs_slow = true;
        pair.ends[refusing].refusals = 1;
        pair.fault(0);
        pair.fault(1);
        let limit = pair.now + GIVE_UP;
        pair.now = limit - SECOND;
        loop {
            if !pair.step() {
                pair.now += FIRST_PAUSE;
                let now = pair.now;
                pair.ends.iter_mut().for_each(|end| end.machine.handle_timeout(now));
            }
            let mut machine = pair.ends[end].machine.clone();
            let (attempt, waited_for) = (machine.attempt(), machine.waited_for());
            match (machine.is_running(), attempt) {
                (true, 2) => break,
                (true, _) => continue,
                (false, _) => machine.handle_timeout(limit),
            }
            let last = std::iter::from_fn(|| machine.poll_action()).last();
            let Some(Action::Fail(text)) = last else { panic!("{last:?}: {machine:?}") };
            assert_eq!(text.contains(&waited_for), attempt == 1, "{attempt} {waited_for}: {text}");
            assert_eq!(text.contains("refused"), attempt == 2, "{attempt} {waited_for}: {text}");
            given_up.insert((end, attempt, waited_for));
        }
    }
    let offered = [1, 2].map(|attempt| (0, attempt, ANSWERS[0].to_owned()));
    assert!(offered.iter().all(|one| given_up.contains(one)), "{given_up:?}");
}

#[test]
fn a_sender_that_wants_other_paths_takes_its_time() {
    let mut pair = Pair::new(1);
    let now = pair.now;
    let change = |machine: &mut Recovery| {
        machine.handle_change_request(now, "to give lane 2 another path".into())
    };
    assert!(change(&mut pair.ends[0].machine));
    assert!(!change(&mut pair.ends[0].machine), "it is under way");
    pair.settle();
    assert_eq!(pair.expect_running(), 0, "it waits for what is outstanding");
    pair.ends[0].machine.handle_drained(now);
    pair.settle();
    assert_eq!(pair.expect_running(), 1);
    let causes = [0, 1].map(|end| pair.ends[end].machine.cause().to_owned());
    assert_eq!(
        causes,
        ["to give lane 2 another path", "reported by the peer: to give lane 2 another path"]
    );
}

#[test]
fn a_machine_knows_its_queue_pairs_and_the_peers_rails() {
    let mut pair = Pair::new(2);
    assert!(pair.ends[0].machine.has_queue_pairs());
    assert_eq!(pair.ends[0].machine.usable_by_peer(), RailMask::first(2));
    pair.usable(1, 1);
    pair.settle();
    assert_eq!(pair.ends[0].machine.usable_by_peer(), RailMask::first(1));
    let mut pair = Pair::new(1);
    pair.fault(0);
    while pair.ends[0].machine.has_queue_pairs() {
        assert!(pair.step(), "they are destroyed");
    }
}
