//! Retries: what happens when nobody answers, and when no receive is posted.

use std::time::{Duration, Instant};

use crate::common::node::{Address, Node, Terms, Work, local_pair, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

#[test]
fn receiver_not_ready_waits_and_then_delivers() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &Terms { timeout: 1, retry_cnt: 0, ..Terms::default() });
        a.memory[..8].fill(7);
        a.send(Work { opcode: SEND_IMM, imm: 5, sges: &[a.sge(0, 8)], ..Work::default() });
        // 7 is "for ever": far longer than the retry timeout of 8 us, and nobody polls.
        std::thread::sleep(Duration::from_millis(50));
        assert!(a.poll().is_none());
        b.recv(3, &[b.sge(0, 8)]);
        // The service thread delivers: nobody polls.
        let end = Instant::now() + Duration::from_secs(60);
        // SAFETY: the device writes there; a volatile read of our own memory.
        while unsafe { b.memory.as_ptr().add(7).read_volatile() } != 7 {
            assert!(Instant::now() < end, "not delivered without a poll");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((b.next().imm, a.next().status), (5, OK));
    });
}

#[test]
fn receiver_not_ready_for_too_long() {
    Softrnic::new().alone(|| {
        let terms = Terms { rnr_retry: 3, min_rnr_timer: 20, ..Terms::default() };
        let (a, b) = local_pair(64, &terms);
        let start = Instant::now();
        a.send(Work { opcode: SEND, flags: 0, ..Work::default() });
        assert_eq!(a.next().status, RNR_EXC);
        let waited = start.elapsed();
        assert!(waited >= Duration::from_micros(3 * 10_240), "3 x 10.24 ms, but {waited:?}");
        b.assert_unharmed();
    });
}

#[test]
fn nobody_answers() {
    Softrnic::new().alone(|| {
        type Spoil = fn(&Node);
        let spoils: [(&str, Spoil); 3] = [
            ("peer in reset", |b| assert_eq!(to_state(b.qp, RESET), 0)),
            ("peer in error", |b| assert_eq!(to_state(b.qp, ERR), 0)),
            ("peer destroyed", |b| assert_eq!(ibv_destroy_qp(b.qp), 0)),
        ];
        for (what, spoil) in spoils {
            let (a, b) = local_pair(64, &Terms::default());
            spoil(&b);
            let start = Instant::now();
            a.send(Work { id: 4, flags: 0, ..Work::default() });
            let wc = a.next();
            assert_eq!((wc.wr_id, wc.status), (4, RETRY_EXC), "{what}");
            // 4.19 ms, four times.
            assert!(start.elapsed() >= Duration::from_micros(4 * 4194), "{what}: {:?}", start.elapsed());
            assert!(!b.has_event(), "the peer gets no event");
        }
    });
}

#[test]
fn somebody_else_is_addressed() {
    Softrnic::new().alone(|| {
        let terms = Terms::default();
        // Wrong packet sequence number.
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let mut peer = a.address();
        peer.psn += 1;
        b.connect(&peer, &terms);
        a.connect(&b.address(), &terms);
        a.send(Work::default());
        assert_eq!(a.next().status, RETRY_EXC, "PSN");
        assert_eq!(b.state(), RTS);
        // Right QP number, wrong device. (Numbers repeat across devices: with equal ones, `a` would reach itself.)
        let (a, _other, b) = (Node::new(0, 64), Node::new(1, 64), Node::new(1, 64));
        assert_ne!(a.qpn(), b.qpn());
        b.connect(&a.address(), &terms);
        let peer = Address { gid: a.gid, ..b.address() };
        a.connect(&peer, &terms);
        a.send(Work::default());
        assert_eq!(a.next().status, RETRY_EXC, "GID");
        // Connected, but not with us.
        let (a, b, mut c) = (Node::new(0, 64), Node::new(1, 64), Node::new(0, 64));
        c.psn = a.psn;
        b.connect(&c.address(), &terms);
        a.connect(&b.address(), &terms);
        a.send(Work::default());
        assert_eq!(a.next().status, RETRY_EXC, "not connected back");
    });
}

#[test]
fn a_peer_that_is_late_is_reached_by_a_retry() {
    Softrnic::new().alone(|| {
        // 4.096 us x 2^17 x 8 = 4.3 s to be late in.
        let terms = Terms { timeout: 17, retry_cnt: 7, ..Terms::default() };
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        a.connect(&b.address(), &terms);
        a.send(Work::default());
        assert!(a.poll().is_none());
        b.connect(&a.address(), &terms);
        assert_eq!(a.next().status, OK);
    });
}

#[test]
fn time_scale_shortens_timeouts() {
    // 4.096 us x 2^20 = 4.3 s, eight times, scaled to 34 ms.
    Softrnic::new().env("SOFTRNIC_TIME_SCALE", "0.001").alone(|| {
        let (a, b) = local_pair(64, &Terms { timeout: 20, retry_cnt: 7, ..Terms::default() });
        assert_eq!(to_state(b.qp, RESET), 0);
        let start = Instant::now();
        a.send(Work::default());
        assert_eq!(a.next().status, RETRY_EXC);
        let waited = start.elapsed();
        assert!(waited >= Duration::from_millis(34) && waited < Duration::from_secs(30), "{waited:?}");
    });
}
