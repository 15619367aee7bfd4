//! The end of queue pairs: what comes of their requests, and what stays behind.

use crate::common::node::{CAP, Node, Terms, Work, connect_ports, create_qp, local_pair, rtr, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Sends again after 1000 s or more.
const NEVER: Terms = Terms { timeout: 28, ..QUICK };

/// The next `N` completions.
fn taken<const N: usize>(node: &Node) -> [(u64, u32); N] {
    std::array::from_fn(|_| node.next()).map(|wc| (wc.wr_id, wc.status))
}

#[test]
fn a_queue_pair_put_into_error_flushes_its_receives_in_order_behind_its_successes() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=8).for_each(|id| b.recv(id, &[]));
        for _ in 0..3 {
            a.send(Work { opcode: SEND, ..Work::default() });
            assert_eq!(a.next().status, OK);
        }
        assert_eq!(to_state(b.qp, ERR), 0);
        let expected = [(1, OK), (2, OK), (3, OK), (4, FLUSH), (5, FLUSH), (6, FLUSH), (7, FLUSH), (8, FLUSH)];
        assert_eq!(taken(&b), expected);
        // One that is posted now is flushed as well, and nothing gets in.
        b.recv(9, &[]);
        assert_eq!(taken(&b), [(9, FLUSH)]);
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!(a.next().status, RETRY_EXC);
        assert!(b.poll().is_none() && !b.has_event());
    });
}

/// As ionic's provider does it. What was polled before is not touched, and after a reset the queue pair is like any other.
#[test]
fn receives_that_nobody_has_polled_may_be_dropped() {
    Softrnic::new().env("SOFTRNIC_ERROR_DROPS", "1").alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=4).for_each(|id| b.recv(id, &[]));
        for _ in 0..3 {
            a.send(Work { opcode: SEND, ..Work::default() });
            assert_eq!(a.next().status, OK, "it is acknowledged");
        }
        let first = b.next();
        assert_eq!((first.wr_id, first.status), (1, OK));
        assert_eq!(to_state(b.qp, ERR), 0);
        assert_eq!(taken(&b), [(2, FLUSH), (3, FLUSH), (4, FLUSH)]);
    });
}

#[test]
fn a_queue_pair_put_into_error_flushes_its_sends_in_order_behind_its_successes() {
    let rule = ("SOFTRNIC_FAULTS", "drop message=3 attempts=all");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (a, _b) = local_pair(16, &NEVER);
        (1..=5).for_each(|id| a.send(Work { id, ..Work::default() }));
        assert_eq!(to_state(a.qp, ERR), 0);
        assert_eq!(taken(&a), [(1, OK), (2, OK), (3, FLUSH), (4, FLUSH), (5, FLUSH)]);
    });
}

#[test]
fn completions_of_a_queue_pair_that_is_destroyed_are_thrown_away() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        let other = Node { qp: create_qp(b.pd, b.cq, b.cq, CAP), ..Node::new(1, 16) };
        assert_eq!(other.to_init(7), 0);
        for node in [&b, &other] {
            (1..=4).for_each(|id| node.recv(id, &[]));
        }
        for id in 1..=3 {
            a.send(Work { id, opcode: SEND, ..Work::default() });
        }
        // Completions of both are in one queue.
        assert_eq!(to_state(other.qp, ERR), 0);
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        let left: [_; 4] = std::array::from_fn(|_| b.next()).map(|wc| (wc.qp_num, wc.wr_id, wc.status));
        assert_eq!(left, [1, 2, 3, 4].map(|id| (other.qpn(), id, FLUSH)));
        assert!(b.poll().is_none());
        assert_eq!(ibv_destroy_qp(other.qp), 0);
        // The senders' completions are still to come, and go with it too.
        assert_eq!(ibv_destroy_qp(a.qp), 0);
        assert!(a.poll().is_none());
    });
}

/// What this process has open, and has registered or made.
fn held() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).expect("procfs").count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

fn resident_pages() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number")
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    // As many objects as are in use at a time, and no more.
    let env = [("SOFTRNIC_MAX_QP", "2"), ("SOFTRNIC_MAX_CQ", "1"), ("SOFTRNIC_MAX_MR", "1")];
    Softrnic::new().envs(&env).alone(|| {
        let round = || {
            let (a, b) = local_pair(16, &QUICK);
            (1..=4).for_each(|id| b.recv(id, &[]));
            a.send(Work { opcode: SEND, ..Work::default() });
            assert_eq!((a.next().status, b.next().status), (OK, OK));
            assert_eq!((to_state(a.qp, ERR), to_state(b.qp, ERR)), (0, 0));
            a.close();
            b.close();
        };
        (0..100).for_each(|_| round());
        let before = (held(), resident_pages());
        (0..900).for_each(|_| round());
        assert_eq!(held(), before.0, "descriptors and threads");
        let more = resident_pages().saturating_sub(before.1);
        assert!(more < 256, "{more} pages more after 900 rounds");
    });
}

/// With a message of each under way, at both ends: at once nothing but the event, and after the retries their errors.
#[test]
fn a_port_that_goes_down_is_noticed_by_the_queue_pairs_that_send() {
    let rules = "port-down device=softrnic0 peer=softrnic1 flow=0 message=2 times=1";
    Softrnic::new().faults(rules).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        let (c, d) = local_pair(16, &NEVER);
        let (idle, far) = local_pair(16, &QUICK);
        b.recv(1, &[]);
        a.send(Work::default());
        assert_eq!(a.next().status, OK);
        a.send(Work { id: 2, opcode: SEND, ..Work::default() });
        // Both of them towards each other: one with a long timeout, the peer's port is up.
        c.send(Work { id: 3, ..Work::default() });
        d.send(Work { id: 4, ..Work::default() });
        assert_eq!(next_event(a.context), (PORT_ERR, 1));
        assert_eq!((a.next().status, a.state()), (RETRY_EXC, ERR), "the sender, after its retries");
        assert_eq!([c.state(), d.state(), idle.state(), far.state(), b.state()], [RTS; 5]);
        assert!(c.poll().is_none() && d.poll().is_none() && b.poll().is_none());
        assert!(!b.has_event(), "the other end is not told");
        far.send(Work { id: 5, ..Work::default() });
        assert_eq!((far.next().status, far.state(), idle.state()), (RETRY_EXC, ERR, RTS), "sends to the port");
        // Requests under way are flushed when their owner says so, and only then.
        assert_eq!((to_state(c.qp, ERR), to_state(d.qp, ERR)), (0, 0));
        assert_eq!((taken(&c), taken(&d)), ([(3, FLUSH)], [(4, FLUSH)]));
    });
}

#[test]
fn the_step_to_rtr_towards_a_gid_that_is_not_there_is_refused_at_once() {
    Softrnic::new().alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        let mut nobody = rtr(&b.address(), &QUICK);
        nobody.dgid[1] ^= 1 << 56;
        assert_eq!(a.connect_by(&nobody, &QUICK), Err(libc::ETIMEDOUT));
        assert_eq!(a.state(), INIT, "it may be tried again");
        connect_ports((&a, 1), (&b, 1), 1, &QUICK);
    });
}

#[test]
fn a_number_may_be_given_out_again_at_once() {
    Softrnic::new().env("SOFTRNIC_QPN_REUSE", "1").alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        let number = b.qpn();
        let (pd, cq) = (b.pd, b.cq);
        b.recv(1, &[]);
        assert_eq!((to_state(b.qp, ERR), ibv_destroy_qp(b.qp)), (0, 0));
        let next = Node { qp: create_qp(pd, cq, cq, CAP), psn: b.psn, ..b };
        assert_eq!(next.qpn(), number);
        a.send(Work { id: 7, ..Work::default() });
        assert_eq!(a.next().status, RETRY_EXC, "it is not connected yet");
        // What is sent to the number finds the next queue pair, once that is connected back.
        assert_eq!(to_state(a.qp, RESET), 0);
        a.connect(&next.address(), &Terms { timeout: 14, retry_cnt: 7, ..QUICK });
        a.send(Work { id: 8, opcode: SEND, ..Work::default() });
        assert!(a.poll().is_none());
        next.connect(&a.address(), &QUICK);
        next.recv(2, &[]);
        assert_eq!((taken(&a), taken(&next)), ([(8, OK)], [(2, OK)]));
    });
}
