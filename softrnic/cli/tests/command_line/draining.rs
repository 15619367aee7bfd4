//! Send queues that are stopped: on request (SQD) or by an error of UC (SQE). And the first message of a connection.

use std::time::Duration;

use crate::common::node::{CAP, Node, Terms, Work, create_qp_of, empty_init, local_pair, modify, rtr, rts, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

const CUR_STATE: i32 = 1 << 1;
const NOTIFY: i32 = 1 << 2;
const ACCESS: i32 = 1 << 3;
const TIMEOUT: i32 = 1 << 9;

/// To SQD, with the event asked for.
fn drain(node: &Node) -> i32 {
    modify(node.qp, &QpAttr { state: SQD, drain: [1, 0], ..QpAttr::default() }, 1 | NOTIFY)
}

fn query(node: &Node) -> QpAttr {
    let (mut attr, mut init) = (QpAttr::default(), empty_init());
    assert_eq!(ibv_query_qp(node.qp, &mut attr, -1, &mut init), 0);
    assert_eq!(init.cap, CAP);
    attr
}

#[test]
fn what_is_under_way_is_finished_and_nothing_begun() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        // No receive is there yet: this one is sent again and again.
        a.send(Work { id: 1, opcode: SEND, ..Work::default() });
        a.send(Work { id: 2, ..Work::default() });
        assert_eq!(drain(&a), 0);
        assert_eq!((a.state(), query(&a).drain), (SQD, [0, 1]), "draining");
        // Another attribute changes meanwhile; the event is still wanted.
        assert_eq!(modify(a.qp, &QpAttr { state: SQD, timeout: 12, ..QpAttr::default() }, 1 | TIMEOUT), 0);
        a.send(Work { id: 3, ..Work::default() });
        assert!(!has_event(a.context, 20), "not drained yet");
        b.recv(10, &[]);
        assert_eq!((a.next().wr_id, b.next().wr_id), (1, 10));
        assert_eq!(next_event(a.context), (SQ_DRAINED, a.qp as usize));
        assert_eq!(query(&a).drain, [0, 0]);
        // It still receives.
        a.recv(11, &[]);
        b.send(Work { id: 12, opcode: SEND, ..Work::default() });
        assert_eq!((b.next().wr_id, a.next().wr_id), (12, 11));
        assert!(a.next_within(Duration::from_millis(20)).is_none(), "stopped");
        assert_eq!(to_state(a.qp, RTS), 0);
        assert_eq!((a.next().wr_id, a.next().wr_id), (2, 3));
        assert!(!has_event(a.context, 0), "one event");
    });
}

#[test]
fn an_idle_queue_is_drained_at_once_and_told_if_asked() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(64, &Terms::default());
        assert_eq!(to_state(a.qp, SQD), 0);
        assert!(!has_event(a.context, 50), "not asked for");
        assert_eq!(to_state(a.qp, RTS), 0);
        assert_eq!(drain(&a), 0);
        assert_eq!(next_event(a.context).0, SQ_DRAINED);
        a.send(Work { id: 1, ..Work::default() });
        assert_eq!(to_state(a.qp, ERR), 0);
        assert_eq!(a.next().status, FLUSH);
    });
}

#[test]
fn masks_of_the_rarer_transitions() {
    Softrnic::new().alone(|| {
        let terms = Terms::default();
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let to = |state| QpAttr { state, ..QpAttr::default() };
        assert_eq!(to_state(a.qp, SQD), libc::EINVAL, "from RESET");
        assert_eq!(a.to_init(7), 0);
        assert_eq!(to_state(a.qp, SQD), libc::EINVAL, "from INIT");
        let cur = QpAttr { cur_state: INIT, ..rtr(&b.address(), &terms) };
        assert_eq!(modify(a.qp, &cur, RTR_MASK | CUR_STATE), libc::EINVAL, "CUR_STATE is for those that send");
        assert_eq!(a.to_rtr(&b.address(), &terms), 0);
        assert_eq!(to_state(a.qp, RTR), libc::EINVAL, "there is no RTR to RTR");
        assert_eq!(to_state(a.qp, SQD), libc::EINVAL, "from RTR");
        let cur = QpAttr { cur_state: RTS, ..rts(a.psn, &terms) };
        assert_eq!(modify(a.qp, &cur, RTS_MASK | CUR_STATE), libc::EINVAL, "it is in RTR");
        assert_eq!(modify(a.qp, &QpAttr { cur_state: RTR, ..cur }, RTS_MASK | CUR_STATE), 0);

        assert_eq!(modify(a.qp, &to(RTS), 1 | NOTIFY), libc::EINVAL);
        assert_eq!(modify(a.qp, &to(SQD), 1 | ACCESS), libc::EINVAL);
        assert_eq!(modify(a.qp, &to(SQE), 1), libc::EINVAL, "RC has no SQE");
        assert_eq!(drain(&a), 0);
        let longer = QpAttr { state: SQD, timeout: 19, ..QpAttr::default() };
        assert_eq!(modify(a.qp, &longer, 1 | TIMEOUT), 0);
        assert_eq!(modify(a.qp, &QpAttr { timeout: 32, ..longer }, 1 | TIMEOUT), libc::EINVAL);
        assert_eq!(modify(a.qp, &longer, 1 | 1 << 16), libc::EINVAL, "SQ_PSN");
        assert_eq!(query(&a).timeout, 19);
        assert_eq!(modify(a.qp, &longer, TIMEOUT), 0, "without a state: SQD to SQD");
        assert_eq!(modify(a.qp, &QpAttr { state: RTS, timeout: 8, ..longer }, 1 | TIMEOUT), libc::EINVAL);
        assert_eq!(to_state(a.qp, RTS), 0);
    });
}

#[test]
fn a_drained_queue_may_be_led_elsewhere() {
    Softrnic::new().ports(2).alone(|| {
        let terms = Terms { timeout: 8, retry_cnt: 1, ..Terms::default() };
        let (a, b) = local_pair(64, &terms);
        for (node, peer) in [(&a, &b), (&b, &a)] {
            assert_eq!(to_state(node.qp, SQD), 0);
            let vector =
                QpAttr { state: SQD, port: 2, ah_port: 2, dgid: peer.gid_of(2, 1), ..rtr(&peer.address(), &terms) };
            assert_eq!(modify(node.qp, &vector, 1 | 1 << 5 | 1 << 7), 0);
            assert_eq!(query(node).port, 2);
            assert_eq!(to_state(node.qp, RTS), 0);
        }
        crate::program::control(&["port", "0/1", "down"]);
        a.send(Work::default());
        assert_eq!(a.next().status, OK, "by the second ports");
    });
}

#[test]
fn an_error_of_uc_stops_its_send_queue_only() {
    Softrnic::new().alone(|| {
        let terms = Terms::default();
        let mut nodes = [Node::new(0, 64), Node::new(1, 64)];
        for node in &mut nodes {
            assert_eq!(ibv_destroy_qp(node.qp), 0);
            node.qp = create_qp_of(3, node.pd, node.cq, node.cq, CAP);
        }
        let [a, b] = &nodes;
        for (node, peer) in [(a, b), (b, a)] {
            assert_eq!(node.to_init(7), 0);
            assert_eq!(modify(node.qp, &rtr(&peer.address(), &terms), UC_RTR_MASK), 0);
            assert_eq!(modify(node.qp, &rts(node.psn, &terms), UC_RTS_MASK), 0);
        }
        a.recv(10, &[]);
        let bad = Sge { lkey: a.key() ^ 0xff, ..a.sge(0, 8) };
        a.send(Work { id: 1, opcode: SEND, sges: &[bad], ..Work::default() });
        a.send(Work { id: 2, flags: 0, ..Work::default() });
        let ended = [a.next(), a.next()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!((ended, a.state()), ([(1, LOC_PROT), (2, FLUSH)], SQE));
        b.send(Work { id: 20, opcode: SEND, ..Work::default() });
        assert_eq!((a.next().wr_id, a.state()), (10, SQE), "it still receives");
        assert_eq!(modify(a.qp, &QpAttr { state: SQD, ..QpAttr::default() }, 1), libc::EINVAL);
        assert_eq!(to_state(a.qp, RTS), 0);
        b.recv(11, &[]);
        a.send(Work { id: 3, opcode: SEND, ..Work::default() });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (3, OK));
        let ids = [b.next().wr_id, b.next().wr_id];
        assert_eq!(ids, [20, 11]);
    });
}

#[test]
fn the_first_message_establishes_communication() {
    Softrnic::new().alone(|| {
        let terms = Terms::default();
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        a.connect(&b.address(), &terms);
        assert_eq!((b.to_init(7), b.to_rtr(&a.address(), &terms)), (0, 0));
        for id in [1, 2] {
            b.recv(id, &[]);
            a.send(Work { opcode: SEND, ..Work::default() });
            assert_eq!((a.next().status, b.next().wr_id), (OK, id));
        }
        assert_eq!(next_event(b.context), (COMM_EST, b.qp as usize));
        assert!(!has_event(b.context, 50), "once");
        assert_eq!(b.to_rts(&terms), 0);
        a.send(Work::default());
        assert_eq!(a.next().status, OK);
        assert!(!has_event(b.context, 50) && !has_event(a.context, 0), "in RTS it is no news");
        a.close();
        b.close();
    });
}

#[test]
fn a_query_says_what_was_set_and_how_far_it_has_come() {
    Softrnic::new().alone(|| {
        let terms = Terms { timeout: 15, retry_cnt: 5, rnr_retry: 6, min_rnr_timer: 9, access: 3 };
        let (a, b) = local_pair(64, &terms);
        let (peer, seen) = (b.address(), query(&a));
        assert_eq!((seen.state, seen.cur_state, seen.path_mtu, seen.access), (RTS, RTS, 5, 3));
        assert_eq!((seen.dest_qpn, seen.rq_psn, seen.sq_psn), (peer.qpn, peer.psn, a.psn));
        assert_eq!((seen.dgid, seen.is_global, seen.sgid_index, seen.ah_port), (peer.gid, 1, 1, 1));
        assert_eq!((seen.timeout, seen.retry_cnt, seen.rnr_retry, seen.min_rnr_timer), (15, 5, 6, 9));
        assert_eq!((seen.max_rd_atomic, seen.max_dest_rd_atomic, seen.port, seen.cap), (1, 1, 1, CAP));
        a.send(Work::default());
        assert_eq!(a.next().status, OK);
        let next = |psn| (psn + 1) & 0xff_ffff;
        assert_eq!((query(&a).sq_psn, query(&b).rq_psn), (next(a.psn), next(a.psn)));
        assert_eq!(to_state(a.qp, RESET), 0);
        let seen = query(&a);
        assert_eq!((seen.state, seen.sq_psn, seen.rq_psn, seen.dest_qpn), (RESET, 0, 0, 0));
    });
}
