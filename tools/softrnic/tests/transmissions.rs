//! Fault rules that concern single transmissions: how long they last, and how much of a message gets through.

mod common;

use std::time::{Duration, Instant};

use common::node::{Node, Terms, Work, local_pair};
use common::process::alone;
use common::verbs::*;

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Sends again after 67 ms, 7 times.
const PATIENT: Terms = Terms { timeout: 14, retry_cnt: 7, ..QUICK };

/// A write of all of `a`'s memory, `value` each.
fn write(a: &mut Node, b: &Node, value: u8) {
    a.memory.fill(value);
    let sges = [a.sge(0, a.memory.len())];
    a.send(Work { sges: &sges, to: (b.address().addr, b.address().rkey), ..Work::default() });
}

#[test]
fn a_rule_ends_by_itself() {
    let rules = "drop attempts=all flow=0 for=1000s; drop attempts=all flow=1 for=50ms";
    alone("a_rule_ends_by_itself", &[("SOFTRNIC_FAULTS", rules)], || {
        let (mut a, b) = local_pair(16, &QUICK);
        write(&mut a, &b, 1);
        assert_eq!(a.next().status, RETRY_EXC, "the rule of flow 0 is in force");
        let (mut c, d) = local_pair(16, &PATIENT);
        let begin = Instant::now();
        write(&mut c, &d, 2);
        assert_eq!((c.next().status, d.memory[0]), (OK, 2), "the rule of flow 1 has ended");
        // A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= Duration::from_millis(67), "lost at first, {:?}", begin.elapsed());
    });
}
