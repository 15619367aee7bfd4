//! The QP state machine, and limits of queues and tables.

use crate::common::prelude::*;
use crate::drivers::{LIST, Look, Looked, PART, compare_rows, port_speed, speed, table};
use testkit::side::enter;

#[test]
fn every_required_attribute_is_required() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let terms = TERMS;
        let init = QpAttr { state: INIT, port: 1, access: 7, ..ATTR };
        let steps = [
            (init, INIT_MASK),
            (rtr(&node.address(), &terms), RTR_MASK),
            (rts(node.psn, &terms), RTS_MASK),
        ];
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
        let terms = TERMS;
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
        let init = QpAttr { state: INIT, port: 1, access: 7, ..ATTR };
        assert_eq!(modify(node.qp, &QpAttr { port: 2, ..init }, INIT_MASK), libc::EINVAL);
        assert_eq!(modify(node.qp, &QpAttr { pkey_index: 1, ..init }, INIT_MASK), libc::EINVAL);
        assert_eq!(modify(node.qp, &init, INIT_MASK), 0);
        let good = rtr(&node.address(), &TERMS);
        for bad in [
            QpAttr { is_global: 0, ..good },
            QpAttr { sgid_index: 16, ..good },
            QpAttr { path_mtu: 6, ..good },
            QpAttr { path_mtu: 0, ..good },
            QpAttr { max_dest_rd_atomic: 200, ..good },
        ] {
            assert_eq!(modify(node.qp, &bad, RTR_MASK), libc::EINVAL, "{bad:?}");
        }
        assert_eq!(
            modify(node.qp, &QpAttr { sgid_index: 2, ..good }, RTR_MASK),
            libc::ENODATA,
            "an empty entry"
        );
        let nobody =
            QpAttr { dgid: [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, 10, 82, 9, 9])], ..good };
        assert_eq!(modify(node.qp, &nobody, RTR_MASK), libc::ETIMEDOUT, "unreachable");
        assert_eq!(modify(node.qp, &good, RTR_MASK), 0);
    });
}

#[test]
fn posting_in_the_wrong_state() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let terms = TERMS;
        assert_eq!(node.try_recv(1, &[]), libc::EINVAL, "RESET");
        assert_eq!(node.try_send(WORK), libc::EINVAL, "RESET");
        assert_eq!(node.to_init(7), 0);
        assert_eq!(node.try_recv(1, &[]), 0, "INIT");
        assert_eq!(node.try_send(WORK), libc::EINVAL, "INIT");
        assert_eq!(node.to_rtr(&node.address(), &terms), 0);
        assert_eq!(node.try_send(WORK), libc::EINVAL, "RTR");
        assert_eq!(node.to_rts(&terms), 0);
        assert_eq!(node.try_send(WORK), 0, "RTS");
    });
}

#[test]
fn error_state_flushes_both_queues() {
    Softrnic::new().alone(|| {
        // The peer has no receive, so the first request waits and the second stays behind it.
        let (a, _b) = local_pair(64, &TERMS);
        a.recv(10, &[]);
        a.recv(11, &[]);
        a.send(Work { id: 20, opcode: SEND, ..WORK });
        a.send(Work { id: 21, flags: 0, ..WORK });
        assert!(a.poll().is_none());
        assert_eq!(to_state(a.qp, ERR), 0);
        let mut ids: Vec<_> = (0..4).map(|_| a.next()).map(|wc| (wc.wr_id, wc.status)).collect();
        ids.sort_unstable();
        assert_eq!(ids, [(10, FLUSH), (11, FLUSH), (20, FLUSH), (21, FLUSH)]);
        // What is posted now is flushed at once, signaled or not.
        a.recv(12, &[]);
        assert_eq!((a.next().wr_id, a.poll().is_none()), (12, true));
        a.send(Work { id: 22, flags: 0, ..WORK });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (22, FLUSH));
    });
}

#[test]
fn reset_discards_silently_and_the_qp_works_again() {
    Softrnic::new().alone(|| {
        let terms = TERMS;
        let (a, b) = local_pair(64, &terms);
        a.recv(10, &[]);
        a.send(Work { id: 20, ..WORK });
        a.send(Work { id: 21, opcode: SEND, ..WORK });
        assert_eq!(to_state(a.qp, RESET), 0);
        assert!(a.poll().is_none(), "completion of a reset QP");
        assert_eq!(to_state(b.qp, RESET), 0);
        a.connect(&b.address(), &terms);
        b.connect(&a.address(), &terms);
        b.recv(30, &[]);
        a.send(Work { id: 31, opcode: SEND, ..WORK });
        assert_eq!((a.next().wr_id, b.next().wr_id), (31, 30));
        assert!(a.poll().is_none() && b.poll().is_none());
    });
}

#[test]
fn unsignaled_requests_hold_their_slots() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(64, &TERMS);
        for id in 0..u64::from(CAP.max_send_wr) {
            let flags = if id == 9 { SIGNALED } else { 0 };
            a.send(Work { id, flags, ..WORK });
        }
        assert_eq!(a.try_send(WORK), libc::ENOMEM);
        assert_eq!(a.try_send(WORK), libc::ENOMEM, "still");
        assert_eq!(a.next().wr_id, 9);
        for id in 0..10 {
            a.send(Work { id, flags: 0, ..WORK });
        }
        assert_eq!(a.try_send(WORK), libc::ENOMEM, "ten slots, not more");
    });
}

#[test]
fn receive_queue_has_its_bound() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        for id in 0..u64::from(CAP.max_recv_wr) {
            b.recv(id, &[]);
        }
        assert_eq!(b.try_recv(99, &[]), libc::ENOMEM);
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!(b.try_recv(99, &[]), libc::ENOMEM, "done, but not polled");
        assert_eq!(b.next().wr_id, 0);
        assert_eq!(b.try_recv(99, &[]), 0);
    });
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(4096, &TERMS);
        let five = [a.sge(0, 8); 5];
        assert_eq!(a.try_send(Work { sges: &five, ..WORK }), libc::EINVAL);
        assert_eq!(a.try_recv(1, &five), libc::EINVAL);
        let long = [a.sge(0, 65)];
        assert_eq!(a.try_send(Work { sges: &long, flags: INLINE, ..WORK }), libc::EINVAL);
        assert_eq!(a.try_send(Work { opcode: READ, flags: INLINE, ..WORK }), libc::EINVAL);
        assert_eq!(a.try_send(Work { opcode: BIND_MW, ..WORK }), libc::EOPNOTSUPP);
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
    let limits = [
        ("SOFTRNIC_MAX_QP", "2"),
        ("SOFTRNIC_MAX_CQ", "2"),
        ("SOFTRNIC_MAX_MR", "2"),
        ("SOFTRNIC_MAX_QP_WR", "64"),
    ];
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
        let errno = |mr: *mut Mr| {
            if mr.is_null() { std::io::Error::last_os_error().raw_os_error() } else { None }
        };
        assert_eq!(errno(ibv_reg_mr(node.pd, at, 0, 1)), Some(libc::EINVAL), "empty");
        assert_eq!(
            errno(ibv_reg_mr(node.pd, at, 64, 2)),
            Some(libc::EINVAL),
            "remote write needs local write"
        );
        assert_eq!(
            errno(ibv_reg_mr(node.pd, 4096 as *mut _, 64, 1)),
            Some(libc::EFAULT),
            "not mapped"
        );
        assert_eq!(
            errno(ibv_reg_mr(node.pd, at, 64, 1 | 1 << 20)),
            None,
            "optional flags are hints"
        );
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
            a.send(Work { opcode: SEND, ..WORK });
            assert_eq!(a.next().status, OK);
        }
        assert_eq!(to_state(b.qp, ERR), 0);
        let expected =
            [(1, OK), (2, OK), (3, OK), (4, FLUSH), (5, FLUSH), (6, FLUSH), (7, FLUSH), (8, FLUSH)];
        assert_eq!(taken(&b), expected);
        // One that is posted now is flushed as well, and nothing gets in.
        b.recv(9, &[]);
        assert_eq!(taken(&b), [(9, FLUSH)]);
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!(a.next().status, RETRY_EXC);
        assert!(b.poll().is_none() && !b.has_event());
    });
}

/// As ionic's provider does it. What was polled before is not touched, and after a reset the queue
/// pair is like any other.
#[test]
fn what_has_completed_and_nobody_has_polled_may_be_dropped() {
    Softrnic::new().env("SOFTRNIC_ERROR_DROPS", "1").alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=4).for_each(|id| b.recv(id, &[]));
        for _ in 0..3 {
            a.send(Work { opcode: SEND, ..WORK });
            assert_eq!(a.next().status, OK, "it is acknowledged");
        }
        let first = b.next();
        assert_eq!((first.wr_id, first.status), (1, OK));
        assert_eq!(to_state(b.qp, ERR), 0);
        assert_eq!(taken(&b), [(2, FLUSH), (3, FLUSH), (4, FLUSH)]);
        let (a, _b) = local_pair(16, &QUICK);
        (1..=3).for_each(|id| a.send(Work { id, ..WORK }));
        let first = a.next();
        assert_eq!((first.wr_id, first.status), (1, OK));
        assert_eq!(to_state(a.qp, ERR), 0);
        assert_eq!(taken(&a), [(2, FLUSH), (3, FLUSH)]);
    });
}

#[test]
fn a_queue_pair_put_into_error_flushes_its_sends_in_order_behind_its_successes() {
    Softrnic::new().faults("drop message=3 attempts=all").alone(|| {
        let (a, _b) = local_pair(16, &NEVER);
        (1..=5).for_each(|id| a.send(Work { id, ..WORK }));
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
            a.send(Work { id, opcode: SEND, ..WORK });
        }
        // Completions of both are in one queue.
        assert_eq!(to_state(other.qp, ERR), 0);
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        let left: [_; 4] =
            std::array::from_fn(|_| b.next()).map(|wc| (wc.qp_num, wc.wr_id, wc.status));
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
            a.send(Work { opcode: SEND, ..WORK });
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

/// With a message of each under way, at both ends: at once nothing but the event, and after the
/// retries their errors.
#[test]
fn a_port_that_goes_down_is_noticed_by_the_queue_pairs_that_send() {
    let rules = "port-down device=softrnic0 peer=softrnic1 flow=0 message=2 times=1";
    Softrnic::new().faults(rules).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        let (c, d) = local_pair(16, &NEVER);
        let (idle, far) = local_pair(16, &QUICK);
        b.recv(1, &[]);
        a.send(WORK);
        assert_eq!(a.next().status, OK);
        a.send(Work { id: 2, opcode: SEND, ..WORK });
        // Both of them towards each other: one with a long timeout, the peer's port is up.
        c.send(Work { id: 3, ..WORK });
        d.send(Work { id: 4, ..WORK });
        assert_eq!(next_event(a.context), (PORT_ERR, 1));
        assert_eq!((a.next().status, a.state()), (RETRY_EXC, ERR), "the sender, after its retries");
        assert_eq!([c.state(), d.state(), idle.state(), far.state(), b.state()], [RTS; 5]);
        assert!(c.poll().is_none() && d.poll().is_none() && b.poll().is_none());
        assert!(!b.has_event(), "the other end is not told");
        far.send(Work { id: 5, ..WORK });
        assert_eq!(
            (far.next().status, far.state(), idle.state()),
            (RETRY_EXC, ERR, RTS),
            "sends to the port"
        );
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
        a.send(Work { id: 7, ..WORK });
        assert_eq!(a.next().status, RETRY_EXC, "it is not connected yet");
        // What is sent to the number finds the next queue pair, once that is connected back.
        assert_eq!(to_state(a.qp, RESET), 0);
        a.connect(&next.address(), &Terms { timeout: 14, retry_cnt: 7, ..QUICK });
        a.send(Work { id: 8, opcode: SEND, ..WORK });
        assert!(a.poll().is_none());
        next.connect(&a.address(), &QUICK);
        next.recv(2, &[]);
        assert_eq!((taken(&a), taken(&next)), ([(8, OK)], [(2, OK)]));
    });
}

/// Tables with room for little more than one process needs: the next one finds room only if what a
/// killed process had is freed.
const SMALL_TABLES: [(&str, &str); 3] =
    [("SOFTRNIC_MAX_QP", "4"), ("SOFTRNIC_MAX_MR", "4"), ("SOFTRNIC_MAX_CQ", "4")];

#[test]
fn what_killed_processes_have_created_is_freed() {
    const ROUNDS: u64 = 40;
    enter(|side, socket| if side == 0 { run_survivor(socket, ROUNDS) } else { run_victim(socket) });
    let softrnic = Softrnic::new().envs(&SMALL_TABLES);
    let (survivor, mut to_survivor) = softrnic.start(0, &[]);
    let mut seed = 99u64;
    for round in 0..ROUNDS {
        let (mut victim, mut from_victim) = softrnic.start(1, &[]);
        assert_eq!(
            from_victim.recv::<u8>(),
            1,
            "round {round}: the process to be killed found no room"
        );
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((seed >> 33) % 3000));
        victim.signal(libc::SIGKILL);
        let ended = victim.ended();
        assert!(ended.is_killed_by(libc::SIGKILL), "{ended}");
        to_survivor.send(&1u8);
        assert_eq!(to_survivor.recv::<u8>(), 2, "round {round}: the survivor found no room");
    }
    survivor.finish();
    softrnic.assert_clean();
}

/// Creates and destroys everything, until killed.
fn run_victim(mut socket: Peer) {
    let node = Node::new(0, 4096);
    socket.send(&1u8);
    loop {
        let cq = ibv_create_cq(node.context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        let qp = create_qp(node.pd, cq, cq, CAP);
        let mr = ibv_reg_mr(node.pd, node.memory.as_ptr().cast_mut().cast(), 4096, ALL_ACCESS);
        assert!(!cq.is_null() && !qp.is_null() && !mr.is_null());
        assert_eq!((ibv_destroy_qp(qp), ibv_dereg_mr(mr), ibv_destroy_cq(cq)), (0, 0, 0));
    }
}

/// After each kill: two more of everything, for which there is room once what the killed process
/// had is freed, and data flows.
fn run_survivor(mut socket: Peer, rounds: u64) {
    let base = Node::new(0, 64);
    for _ in 0..rounds {
        assert_eq!(socket.recv::<u8>(), 1);
        let (a, b) = (Node::new(0, 64), Node::new(0, 64));
        a.connect(&b.address(), &TERMS);
        b.connect(&a.address(), &TERMS);
        b.recv(1, &[]);
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        a.close();
        b.close();
        socket.send(&2u8);
    }
    base.close();
}

/// The owner deregisters a region and unmaps it at once, while its peer keeps writing there. The
/// device must not access it any more by then: the writer's request fails for the missing key,
/// never for missing memory.
#[test]
fn deregistration_waits_for_accesses_under_way() {
    Softrnic::new().pair(|side, mut socket| {
        // Long enough that the kernel takes it in several steps, looking at the mapping before
        // each.
        const BYTES: usize = 32 << 20;
        let terms = TERMS;
        let node = Node::new(side, BYTES);
        let mut seed = 7u64;
        for round in 0..20 {
            node.connect_over(&mut socket, &terms);
            if side == 0 {
                let [addr, rkey]: [u64; 2] = socket.recv();
                let status = loop {
                    node.send(Work { sges: &[node.sge(0, BYTES)], to: (addr, rkey), ..WORK });
                    let wc = node.next();
                    if wc.status != OK {
                        break wc.status;
                    }
                };
                assert_eq!(status, REM_ACCESS, "round {round}");
            } else {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
                // SAFETY: a fresh mapping that goes when the device has let go of it.
                unsafe {
                    let at = libc::mmap(ptr::null_mut(), BYTES, 3, flags, -1, 0);
                    let mr = ibv_reg_mr(node.pd, at, BYTES, ALL_ACCESS);
                    socket.send(&[at as u64, u64::from((*mr).rkey)]);
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    std::thread::sleep(Duration::from_micros((seed >> 33) % 20_000));
                    assert_eq!(ibv_dereg_mr(mr), 0);
                    libc::munmap(at, BYTES);
                }
            }
            socket.barrier();
            assert_eq!(to_state(node.qp, RESET), 0);
            socket.barrier();
        }
    });
}

/// `active_width` as the page has it, `active_speed` and `active_speed_ex`.
fn signalling(look: &Looked) -> String {
    let port = port_attr(look.context, 1).expect("a port");
    let width = match port.active_width {
        1 => "1X",
        2 => "4X",
        _ => "other",
    };
    format!("{width}, {}, {}", port.active_speed, port.active_speed_ex)
}

fn firmware(look: &Looked) -> String {
    let bytes =
        look.attributes.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    bytes.map(char::from).collect()
}

fn pages(look: &Looked) -> String {
    format!("{:x}", u64::from(look.attribute(92)) << 32 | u64::from(look.attribute(88)))
}

/// What is looked at in each generation of mlx5, first with Ethernet and then with InfiniBand.
const OF_GENERATION: [(&str, Look); 8] = [
    ("vendor and part", PART),
    ("`fw_ver`", firmware),
    ("speed, Gb/s", speed),
    ("`active_width`, `active_speed`, `active_speed_ex`", signalling),
    ("`page_size_cap`", pages),
    ("`max_pd`", |look| look.attribute(140).to_string()),
    ("`max_ah`", |look| look.attribute(200).to_string()),
    ("`local_ca_ack_delay`", |look| (look.attribute(224) >> 16 & 0xff).to_string()),
];
const WITH_INFINIBAND: [(&str, Look); 2] = [
    ("speed on InfiniBand", speed),
    ("`active_width`, `active_speed`, `active_speed_ex` on InfiniBand", signalling),
];

/// Looks at what generations of mlx5 differ in, and compares it with the column of `driver`.
fn compare_generation(driver: &str) {
    let rows = table("of mlx5");
    let env = [("SOFTRNIC_DRIVER", driver), ("SOFTRNIC_LINK", "ib")];
    compare_rows(&rows, driver, &env[..1], &OF_GENERATION);
    compare_rows(&rows, driver, &env, &WITH_INFINIBAND);
    assert_eq!(
        rows.len(),
        OF_GENERATION.len() + WITH_INFINIBAND.len() + 2,
        "every row is looked at"
    );
}

#[test]
fn generations_of_mlx5_are_as_the_page_has_them() {
    ["mlx5-cx4", "mlx5-cx5", "mlx5-cx6", "mlx5-cx6dx", "mlx5-cx7", "mlx5-cx8"]
        .into_iter()
        .for_each(compare_generation);
}

/// In all that the page's first table has, they differ from mlx5 in their part and in their speed.
#[test]
fn generations_of_mlx5_are_like_mlx5() {
    let rows = table("what");
    let same: Vec<_> = LIST
        .into_iter()
        .filter(|(what, _)| !["vendor and part", "speed, Gb/s"].contains(what))
        .collect();
    for generation in &table("of mlx5")[0][1..] {
        compare_rows(&rows, "mlx5", &[("SOFTRNIC_DRIVER", generation)], &same);
    }
}

/// The name without a generation is one for the ConnectX-7.
#[test]
fn mlx5_is_a_connectx_7() {
    let rows = table("of mlx5");
    compare_rows(&rows, "mlx5-cx7", &[("SOFTRNIC_DRIVER", "mlx5")], &OF_GENERATION);
}

/// What the environment says is stronger than what the generation is like on InfiniBand.
#[test]
fn a_speed_is_stronger_than_the_generations() {
    let env = [("SOFTRNIC_DRIVER", "mlx5-cx8"), ("SOFTRNIC_LINK", "ib"), ("SOFTRNIC_SPEED", "200")];
    Softrnic::new().envs(&env).alone(|| assert_eq!(signalling(&Looked::new()), "4X, 64, 64"));
}

/// Where some ports alone are InfiniBand, all have the speed of Ethernet.
#[test]
fn exceptions_of_the_link_layer_do_not_change_the_speed() {
    let env = [("SOFTRNIC_DRIVER", "mlx5-cx8"), ("SOFTRNIC_LINK", "roce,softrnic0/1=ib")];
    Softrnic::new().envs(&env).alone(|| assert_eq!(speed(&Looked::new()), "400"));
}

/// 200 Gb/s a lane, told to a program with a libibverbs that is older.
#[test]
fn ports_may_tell_their_speed_in_the_old_attribute_alone() {
    let env =
        [("SOFTRNIC_DRIVER", "mlx5-cx8"), ("SOFTRNIC_LINK", "ib"), ("SOFTRNIC_OLD_SPEED", "1")];
    Softrnic::new().envs(&env).alone(|| {
        let look = Looked::new();
        assert_eq!(signalling(&look), "4X, 128, 0");
        assert_eq!(port_speed(look.context), Err(libc::EOPNOTSUPP));
    });
}

/// A number is one of its device only: with the right number and the wrong GID a request reaches
/// another QP, or none.
#[test]
fn one_number_on_two_devices_names_two_queue_pairs() {
    Softrnic::new().alone(|| {
        let (a, b, sender) = (Node::new(0, 64), Node::new(1, 64), Node::new(0, 64));
        assert_eq!(a.qpn(), b.qpn(), "the first of each device");
        let to = |node: &Node, peer: Address| {
            node.connect(&peer, &TERMS);
            node.recv(3, &[]);
        };
        to(&b, sender.address());
        to(&a, a.address());
        sender.connect(&b.address(), &TERMS);
        sender.send(Work { opcode: SEND, ..WORK });
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
            let terms = TERMS;
            for (node, peer) in [(&a, &b), (&b, &a)] {
                assert_eq!(node.to_init(7), 0);
                let attr = QpAttr { max_dest_rd_atomic: theirs, ..rtr(&peer.address(), &terms) };
                assert_eq!(modify(node.qp, &attr, RTR_MASK), 0);
                let attr = QpAttr { max_rd_atomic: ours, ..rts(node.psn, &terms) };
                assert_eq!(modify(node.qp, &attr, RTS_MASK), 0);
            }
            let to = b.at(0);
            a.send(Work { opcode: READ, sges: &[a.sge(0, 8)], to, ..WORK });
            // 2 is LOC_QP_OP_ERR.
            assert_eq!(a.next().status, want, "{ours} and {theirs}");
        }
    });
}

/// A key that was given back stays refused when its place is taken by another region.
#[test]
fn a_stale_key_reaches_nothing() {
    Softrnic::new().alone(|| {
        let (a, mut b) = local_pair(64, &TERMS);
        let stale = b.address();
        assert_eq!(ibv_dereg_mr(b.mr), 0);
        b.mr = ibv_reg_mr(b.pd, b.memory.as_mut_ptr().cast(), 64, ALL_ACCESS);
        assert_eq!(u64::from(b.key()) >> 8, stale.rkey >> 8, "the same place");
        a.send(Work { sges: &[a.sge(0, 8)], to: (stale.addr, stale.rkey), ..WORK });
        assert_eq!(a.next().status, REM_ACCESS);
    });
}

/// Applications register whole pages around a buffer.
#[test]
fn a_region_may_be_wider_than_its_buffer() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(3 * 4096, &TERMS);
        let start = b.memory.as_ptr() as usize + 100;
        let (low, high) = (start & !4095, (start + 5000).next_multiple_of(4096));
        let mr = ibv_reg_mr(b.pd, low as Ptr, high - low, ALL_ACCESS);
        assert!(!mr.is_null());
        // SAFETY: a live MR.
        let rkey = u64::from(unsafe { (*mr).rkey });
        a.send(Work { sges: &[a.sge(0, 5000)], to: (start as u64, rkey), ..WORK });
        assert_eq!(a.next().status, OK);
        a.send(Work { sges: &[a.sge(0, 9)], to: (high as u64 - 8, rkey), ..WORK });
        assert_eq!(a.next().status, REM_ACCESS, "but not one byte more");
    });
}

/// QPs without a send or without a receive queue exist, and take nothing there.
#[test]
fn a_queue_may_have_no_room_at_all() {
    Softrnic::new().alone(|| {
        let mut node = Node::new(0, 64);
        assert_eq!(ibv_destroy_qp(node.qp), 0);
        node.qp =
            create_qp(node.pd, node.cq, node.cq, Cap { max_send_wr: 0, max_recv_wr: 0, ..CAP });
        assert!(!node.qp.is_null());
        node.connect(&node.address(), &TERMS);
        assert_eq!((node.try_send(WORK), node.try_recv(1, &[])), (libc::ENOMEM, libc::ENOMEM));
        node.close();
    });
}

#[test]
fn softrnic_is_as_its_column_says() {
    Softrnic::new().alone(|| crate::common::table::compare(1));
}
