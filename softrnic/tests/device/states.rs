//! The QP state machine, and limits of queues and tables.

use std::ptr;

use crate::common::node::{CAP, Node, Terms, Work, create_qp, local_pair, modify, rtr, rts, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

#[test]
fn every_required_attribute_is_required() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let terms = Terms::default();
        let init = QpAttr { state: INIT, port: 1, access: 7, ..QpAttr::default() };
        let steps = [(init, INIT_MASK), (rtr(&node.address(), &terms), RTR_MASK), (rts(node.psn, &terms), RTS_MASK)];
        for (attr, mask) in steps {
            let before = node.state();
            for bit in (1..31).map(|b| 1 << b).filter(|b| mask & b != 0) {
                assert_eq!(modify(node.qp, &attr, mask & !bit), libc::EINVAL, "without {bit:#x}");
                assert_eq!(node.state(), before);
            }
            let qkey = 1 << 6;
            assert_eq!(modify(node.qp, &attr, mask | qkey), libc::EINVAL, "with a UD attribute");
            assert_eq!(modify(node.qp, &attr, mask), 0);
            assert_eq!(node.state(), attr.state);
        }
    });
}

#[test]
fn states_cannot_be_skipped() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let terms = Terms::default();
        assert_eq!(node.to_rtr(&node.address(), &terms), libc::EINVAL);
        assert_eq!(node.to_rts(&terms), libc::EINVAL);
        assert_eq!(node.to_init(7), 0);
        assert_eq!(node.to_rts(&terms), libc::EINVAL);
    });
}

#[test]
fn values_out_of_range_are_refused() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let init = QpAttr { state: INIT, port: 1, access: 7, ..QpAttr::default() };
        assert_eq!(modify(node.qp, &QpAttr { port: 2, ..init }, INIT_MASK), libc::EINVAL);
        assert_eq!(modify(node.qp, &QpAttr { pkey_index: 1, ..init }, INIT_MASK), libc::EINVAL);
        assert_eq!(modify(node.qp, &init, INIT_MASK), 0);
        let good = rtr(&node.address(), &Terms::default());
        for bad in [
            QpAttr { is_global: 0, ..good },
            QpAttr { sgid_index: 16, ..good },
            QpAttr { path_mtu: 6, ..good },
            QpAttr { path_mtu: 0, ..good },
            QpAttr { max_dest_rd_atomic: 200, ..good },
        ] {
            assert_eq!(modify(node.qp, &bad, RTR_MASK), libc::EINVAL, "{bad:?}");
        }
        assert_eq!(modify(node.qp, &QpAttr { sgid_index: 2, ..good }, RTR_MASK), libc::ENODATA, "an empty entry");
        let nobody = QpAttr { dgid: [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, 10, 82, 9, 9])], ..good };
        assert_eq!(modify(node.qp, &nobody, RTR_MASK), libc::ETIMEDOUT, "unreachable");
        assert_eq!(modify(node.qp, &good, RTR_MASK), 0);
    });
}

#[test]
fn posting_in_the_wrong_state() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let terms = Terms::default();
        assert_eq!(node.try_recv(1, &[]), libc::EINVAL, "RESET");
        assert_eq!(node.try_send(Work::default()), libc::EINVAL, "RESET");
        assert_eq!(node.to_init(7), 0);
        assert_eq!(node.try_recv(1, &[]), 0, "INIT");
        assert_eq!(node.try_send(Work::default()), libc::EINVAL, "INIT");
        assert_eq!(node.to_rtr(&node.address(), &terms), 0);
        assert_eq!(node.try_send(Work::default()), libc::EINVAL, "RTR");
        assert_eq!(node.to_rts(&terms), 0);
        assert_eq!(node.try_send(Work::default()), 0, "RTS");
    });
}

#[test]
fn error_state_flushes_both_queues() {
    Softrnic::new().alone(|| {
        // The peer has no receive, so the first request waits and the second stays behind it.
        let (a, _b) = local_pair(64, &Terms::default());
        a.recv(10, &[]);
        a.recv(11, &[]);
        a.send(Work { id: 20, opcode: SEND, ..Work::default() });
        a.send(Work { id: 21, flags: 0, ..Work::default() });
        assert!(a.poll().is_none());
        assert_eq!(to_state(a.qp, ERR), 0);
        let mut ids: Vec<_> = (0..4).map(|_| a.next()).map(|wc| (wc.wr_id, wc.status)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [(10, FLUSH), (11, FLUSH), (20, FLUSH), (21, FLUSH)]);
        // What is posted now is flushed at once, signaled or not.
        a.recv(12, &[]);
        assert_eq!((a.next().wr_id, a.poll().is_none()), (12, true));
        a.send(Work { id: 22, flags: 0, ..Work::default() });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (22, FLUSH));
    });
}

#[test]
fn reset_discards_silently_and_the_qp_works_again() {
    Softrnic::new().alone(|| {
        let terms = Terms::default();
        let (a, b) = local_pair(64, &terms);
        a.recv(10, &[]);
        a.send(Work { id: 20, ..Work::default() });
        a.send(Work { id: 21, opcode: SEND, ..Work::default() });
        assert_eq!(to_state(a.qp, RESET), 0);
        assert!(a.poll().is_none(), "completion of a reset QP");
        assert_eq!(to_state(b.qp, RESET), 0);
        a.connect(&b.address(), &terms);
        b.connect(&a.address(), &terms);
        b.recv(30, &[]);
        a.send(Work { id: 31, opcode: SEND, ..Work::default() });
        assert_eq!((a.next().wr_id, b.next().wr_id), (31, 30));
        assert!(a.poll().is_none() && b.poll().is_none());
    });
}

#[test]
fn unsignaled_requests_hold_their_slots() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(64, &Terms::default());
        for id in 0..u64::from(CAP.max_send_wr) {
            let flags = if id == 9 { SIGNALED } else { 0 };
            a.send(Work { id, flags, ..Work::default() });
        }
        assert_eq!(a.try_send(Work::default()), libc::ENOMEM);
        assert_eq!(a.try_send(Work::default()), libc::ENOMEM, "still");
        assert_eq!(a.next().wr_id, 9);
        for id in 0..10 {
            a.send(Work { id, flags: 0, ..Work::default() });
        }
        assert_eq!(a.try_send(Work::default()), libc::ENOMEM, "ten slots, not more");
    });
}

#[test]
fn receive_queue_has_its_bound() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        for id in 0..u64::from(CAP.max_recv_wr) {
            b.recv(id, &[]);
        }
        assert_eq!(b.try_recv(99, &[]), libc::ENOMEM);
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!(b.try_recv(99, &[]), libc::ENOMEM, "done, but not polled");
        assert_eq!(b.next().wr_id, 0);
        assert_eq!(b.try_recv(99, &[]), 0);
    });
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(4096, &Terms::default());
        let five = [a.sge(0, 8); 5];
        assert_eq!(a.try_send(Work { sges: &five, ..Work::default() }), libc::EINVAL);
        assert_eq!(a.try_recv(1, &five), libc::EINVAL);
        let long = [a.sge(0, 65)];
        assert_eq!(a.try_send(Work { sges: &long, flags: INLINE, ..Work::default() }), libc::EINVAL);
        assert_eq!(a.try_send(Work { opcode: READ, flags: INLINE, ..Work::default() }), libc::EINVAL);
        assert_eq!(a.try_send(Work { opcode: BIND_MW, ..Work::default() }), libc::EOPNOTSUPP);
    });
}

#[test]
fn parents_are_busy_while_they_have_children() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        assert_eq!(ibv_dealloc_pd(node.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(node.cq), libc::EBUSY);
        node.close();
    });
}

#[test]
fn tables_have_their_limits() {
    let limits =
        [("SOFTRNIC_MAX_QP", "2"), ("SOFTRNIC_MAX_CQ", "2"), ("SOFTRNIC_MAX_MR", "2"), ("SOFTRNIC_MAX_QP_WR", "64")];
    Softrnic::new().envs(&limits).alone(|| {
        let node = Node::new(0, 64);
        let errno = || std::io::Error::last_os_error().raw_os_error();
        let too_long = Cap { max_send_wr: 65, ..CAP };
        assert!(create_qp(node.pd, node.cq, node.cq, too_long).is_null());
        assert_eq!(errno(), Some(libc::EINVAL));
        for _ in 0..3 {
            let qp = create_qp(node.pd, node.cq, node.cq, CAP);
            assert!(!qp.is_null());
            assert!(create_qp(node.pd, node.cq, node.cq, CAP).is_null());
            assert_eq!(errno(), Some(libc::ENOMEM));
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
        let cq = ibv_create_cq(node.context, 1, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!cq.is_null());
        assert!(ibv_create_cq(node.context, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), Some(libc::ENOMEM));
        let mut more = [0u8; 64];
        let mr = ibv_reg_mr(node.pd, more.as_mut_ptr().cast(), 64, 1);
        assert!(!mr.is_null());
        assert!(ibv_reg_mr(node.pd, more.as_mut_ptr().cast(), 64, 1).is_null());
        assert_eq!(errno(), Some(libc::ENOMEM));
    });
}

#[test]
fn registration_checks_what_it_is_given() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 8192);
        let at = node.memory.as_ptr().cast_mut().cast();
        let errno = |mr: *mut Mr| if mr.is_null() { std::io::Error::last_os_error().raw_os_error() } else { None };
        assert_eq!(errno(ibv_reg_mr(node.pd, at, 0, 1)), Some(libc::EINVAL), "empty");
        assert_eq!(errno(ibv_reg_mr(node.pd, at, 64, 2)), Some(libc::EINVAL), "remote write needs local write");
        assert_eq!(errno(ibv_reg_mr(node.pd, 4096 as *mut _, 64, 1)), Some(libc::EFAULT), "not mapped");
        assert_eq!(errno(ibv_reg_mr(node.pd, at, 64, 1 | 1 << 20)), None, "optional flags are hints");
    });
}

#[test]
fn numbers_are_not_reused_at_once() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let first = create_qp(node.pd, node.cq, node.cq, CAP);
        // SAFETY: a live QP.
        let qpn = unsafe { (*first).qp_num };
        assert_eq!(ibv_destroy_qp(first), 0);
        let second = create_qp(node.pd, node.cq, node.cq, CAP);
        // SAFETY: a live QP.
        assert_ne!(unsafe { (*second).qp_num }, qpn);
        let mut bytes = [0u8; 64];
        let mr = ibv_reg_mr(node.pd, bytes.as_mut_ptr().cast(), 64, 1);
        // SAFETY: a live MR.
        let key = unsafe { (*mr).rkey };
        assert_eq!(ibv_dereg_mr(mr), 0);
        let mr = ibv_reg_mr(node.pd, bytes.as_mut_ptr().cast(), 64, 1);
        // SAFETY: a live MR.
        assert_ne!(unsafe { (*mr).rkey }, key);
    });
}
