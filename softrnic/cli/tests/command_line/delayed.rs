//! What `softrnic stat` says of packets that a rule has delayed.

use std::time::{Duration, Instant};

use crate::common::node::{Address, Node, Terms, Work, local_pair, to_state};
use crate::common::verbs::*;
use crate::program::control;
use serde_json::{Value, json};
use testkit::softrnic::Softrnic;

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };

/// What the first port has to say when all that was launched has arrived or been dropped.
fn counted() -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let seen: Value = serde_json::from_str(&control(&["stat", "--json"])).expect("JSON");
        let delayed = &seen["devices"][0]["ports"][0]["delayed"];
        let number = |value: &Value| value.as_u64().expect("a number");
        let dropped = delayed["dropped"].as_object().expect("reasons").values().map(number).sum::<u64>();
        if number(&delayed["landed"]) + dropped == number(&delayed["launched"]) {
            return delayed.clone();
        }
        assert!(Instant::now() < end, "still on its way: {delayed}");
    }
}

/// Sends a write from `a` to `b`'s memory, which is always lost; and delayed by a rule.
fn write(a: &Node, b: &Address, key: u64) {
    a.send(Work { sges: &[a.sge(0, 16)], to: (b.addr, key), ..Work::default() });
    assert_eq!(a.next().status, RETRY_EXC);
}

#[test]
fn what_becomes_of_delayed_packets_is_counted() {
    let rules = ("SOFTRNIC_FAULTS", "late=1ms message=1; drop message=1 attempts=all");
    Softrnic::new().envs(&[rules]).alone(|| {
        let sent: Vec<_> = (0..6).map(|_| local_pair(16, &QUICK)).collect();
        assert!(!control(&["stat"]).contains("delayed packets"), "nothing is said where there is nothing");
        let (psn_here, psn_there) = (Node::new(0, 16), Node::new(1, 16));
        psn_here.connect(&psn_there.address(), &QUICK);
        psn_there.connect(&Address { psn: psn_here.psn ^ 1, ..psn_here.address() }, &QUICK);
        let [landed, destroyed, reset, failed, refused, down] = &sent[..] else { unreachable!() };

        assert_eq!(ibv_destroy_qp(destroyed.1.qp), 0);
        assert_eq!((to_state(reset.1.qp, RESET), to_state(failed.1.qp, ERR)), (0, 0));
        for (a, b) in [landed, destroyed, reset, failed] {
            let peer = b.memory.as_ptr() as u64;
            write(a, &Address { addr: peer, ..Address::default() }, u64::from(b.key()));
        }
        write(&refused.0, &refused.1.address(), 1);
        write(&psn_here, &psn_there.address(), psn_there.address().rkey);
        counted();
        control(&["port", "1/1", "down"]);
        write(&down.0, &down.1.address(), down.1.address().rkey);
        let dropped = json!({
            "queue_pair_gone": 2, "queue_pair_in_error": 1, "wrong_psn": 1, "refused": 1, "port_down": 1,
        });
        assert_eq!(counted(), json!({ "launched": 7, "landed": 1, "dropped": dropped }));
        let line = "delayed packets: 7 launched, 1 landed; dropped: 2 queue pair gone, 1 in error, 1 wrong psn, 1 refused, \
                    1 port down";
        let text = control(&["stat"]);
        assert!(text.contains(line), "{text}");
    });
}
