//! Rows of docs/semantics.md that no other test shows.

use crate::common::node::{Address, CAP, Node, Terms, Work, create_qp, local_pair, modify, rtr, rts};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// A number is one of its device only: with the right number and the wrong GID a request reaches another QP, or none.
#[test]
fn one_number_on_two_devices_names_two_queue_pairs() {
    Softrnic::new().alone(|| {
        let (a, b, sender) = (Node::new(0, 64), Node::new(1, 64), Node::new(0, 64));
        assert_eq!(a.qpn(), b.qpn(), "the first of each device");
        let to = |node: &Node, peer: Address| {
            node.connect(&peer, &Terms::default());
            node.recv(3, &[]);
        };
        to(&b, sender.address());
        to(&a, a.address());
        sender.connect(&b.address(), &Terms::default());
        sender.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!((sender.next().status, b.next().status), (OK, OK));
        assert!(a.poll().is_none());
    });
}

/// READs need `max_rd_atomic` at the requester and `max_dest_rd_atomic` at the responder.
#[test]
fn reads_need_room_at_both_ends() {
    Softrnic::new().alone(|| {
        for (ours, theirs, want) in [(1, 1, OK), (0, 1, 2), (1, 0, REM_INV_REQ)] {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            let terms = Terms::default();
            for (node, peer) in [(&a, &b), (&b, &a)] {
                assert_eq!(node.to_init(7), 0);
                let attr = QpAttr { max_dest_rd_atomic: theirs, ..rtr(&peer.address(), &terms) };
                assert_eq!(modify(node.qp, &attr, RTR_MASK), 0);
                let attr = QpAttr { max_rd_atomic: ours, ..rts(node.psn, &terms) };
                assert_eq!(modify(node.qp, &attr, RTS_MASK), 0);
            }
            let to = (b.address().addr, b.address().rkey);
            a.send(Work { opcode: READ, sges: &[a.sge(0, 8)], to, ..Work::default() });
            // 2 is LOC_QP_OP_ERR.
            assert_eq!(a.next().status, want, "{ours} and {theirs}");
        }
    });
}

/// A key that was given back stays refused when its place is taken by another region.
#[test]
fn a_stale_key_reaches_nothing() {
    Softrnic::new().alone(|| {
        let (a, mut b) = local_pair(64, &Terms::default());
        let stale = b.address();
        assert_eq!(ibv_dereg_mr(b.mr), 0);
        b.mr = ibv_reg_mr(b.pd, b.memory.as_mut_ptr().cast(), 64, ALL_ACCESS);
        assert_eq!(u64::from(b.key()) >> 8, stale.rkey >> 8, "the same place");
        a.send(Work { sges: &[a.sge(0, 8)], to: (stale.addr, stale.rkey), ..Work::default() });
        assert_eq!(a.next().status, REM_ACCESS);
    });
}

/// Applications register whole pages around a buffer.
#[test]
fn a_region_may_be_wider_than_its_buffer() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(3 * 4096, &Terms::default());
        let start = b.memory.as_ptr() as usize + 100;
        let (low, high) = (start & !4095, (start + 5000).next_multiple_of(4096));
        let mr = ibv_reg_mr(b.pd, low as Ptr, high - low, ALL_ACCESS);
        assert!(!mr.is_null());
        // SAFETY: a live MR.
        let rkey = u64::from(unsafe { (*mr).rkey });
        a.send(Work { sges: &[a.sge(0, 5000)], to: (start as u64, rkey), ..Work::default() });
        assert_eq!(a.next().status, OK);
        a.send(Work { sges: &[a.sge(0, 9)], to: (high as u64 - 8, rkey), ..Work::default() });
        assert_eq!(a.next().status, REM_ACCESS, "but not one byte more");
    });
}

/// QPs without a send or without a receive queue exist, and take nothing there.
#[test]
fn a_queue_may_have_no_room_at_all() {
    Softrnic::new().alone(|| {
        let mut node = Node::new(0, 64);
        assert_eq!(ibv_destroy_qp(node.qp), 0);
        node.qp = create_qp(node.pd, node.cq, node.cq, Cap { max_send_wr: 0, max_recv_wr: 0, ..CAP });
        assert!(!node.qp.is_null());
        node.connect(&node.address(), &Terms::default());
        assert_eq!((node.try_send(Work::default()), node.try_recv(1, &[])), (libc::ENOMEM, libc::ENOMEM));
        node.close();
    });
}
