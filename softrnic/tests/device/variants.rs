//! What some cards and kernels do otherwise, each by a setting of its own.

use std::ptr;
use std::time::{Duration, Instant};

use crate::common::node::{CAP, Node, Terms, Work, connect_ports, create_qp, local_pair, rtr, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Gives up after 2.1 s.
const PATIENT: Terms = Terms { timeout: 16, retry_cnt: 7, ..QUICK };
/// Gives up after the second "receiver not ready".
const IMPATIENT: Terms = Terms { rnr_retry: 1, min_rnr_timer: 1, ..PATIENT };
const LOC_QP_OP: u32 = 2;
/// Three packets.
const BYTES: usize = 9000;

/// Copies go directly: staged ones are not placed before the message is.
fn placing() -> Softrnic {
    Softrnic::new().envs(&[("SOFTRNIC_RNR_PLACES", "1"), ("SOFTRNIC_STAGED", "0")])
}

/// A message of `a`'s memory, all of it 1, for the memory of `b`.
fn message(a: &mut Node, b: &Node, opcode: u32) {
    a.memory.fill(1);
    let to = (b.address().addr, b.address().rkey);
    a.send(Work { opcode, sges: &[a.sge(0, 4000), a.sge(4000, a.memory.len() - 4000)], to, ..Work::default() });
}

/// How many bytes from the start are there; none may be behind them.
fn placed(b: &Node) -> usize {
    let count = b.memory.iter().take_while(|byte| **byte == 1).count();
    assert!(b.memory[count..].iter().all(|byte| *byte == 0));
    count
}

/// What is in the memory of a peer that has no receive, when a message of this kind has failed.
fn left_without_a_receive(opcode: u32, bytes: usize) -> usize {
    let (mut a, b) = local_pair(bytes, &IMPATIENT);
    message(&mut a, &b, opcode);
    assert_eq!(a.next().status, RNR_EXC);
    b.assert_unharmed();
    placed(&b)
}

#[test]
fn a_write_that_meets_no_receive_may_leave_all_but_its_last_packet() {
    placing().alone(|| {
        assert_eq!(left_without_a_receive(WRITE_IMM, BYTES), 8192);
        assert_eq!(left_without_a_receive(WRITE_IMM, 8192), 4096);
        assert_eq!(left_without_a_receive(WRITE_IMM, 4096), 0, "one packet");
        assert_eq!(left_without_a_receive(SEND_IMM, BYTES), 0, "its first packet needs the receive");
    });
}

#[test]
fn by_default_it_leaves_nothing() {
    Softrnic::new().alone(|| assert_eq!(left_without_a_receive(WRITE_IMM, BYTES), 0));
}

/// The receives are there, and a rule has it otherwise.
#[test]
fn a_rule_that_has_a_receive_missing_leaves_as_much() {
    placing().faults("rnr attempts=all").alone(|| {
        let (mut a, b) = local_pair(BYTES, &IMPATIENT);
        b.recv(1, &[]);
        message(&mut a, &b, WRITE_IMM);
        assert_eq!((a.next().status, placed(&b)), (RNR_EXC, 8192));
        b.assert_unharmed();
    });
}

#[test]
fn a_write_that_meets_a_receive_later_arrives_whole_and_once() {
    placing().alone(|| {
        let (mut a, b) = local_pair(BYTES, &PATIENT);
        message(&mut a, &b, WRITE_IMM);
        assert_eq!(placed(&b), 8192);
        assert!(b.poll().is_none() && a.poll().is_none());
        b.recv(5, &[]);
        assert_eq!((a.next().status, b.next().wr_id, placed(&b)), (OK, 5, BYTES));
        assert!(b.poll().is_none());
    });
}

#[test]
fn the_first_packets_need_their_key() {
    placing().alone(|| {
        let (a, b) = local_pair(BYTES, &IMPATIENT);
        let to = (b.address().addr, 0xffff_ff01);
        a.send(Work { opcode: WRITE_IMM, sges: &[a.sge(0, BYTES)], to, ..Work::default() });
        assert_eq!((a.next().status, b.state(), placed(&b)), (REM_ACCESS, ERR, 0));
    });
}

/// The next `N` completions: of which queue pair, of which request, and how it went.
fn taken<const N: usize>(node: &Node) -> [(u32, u64, u32); N] {
    std::array::from_fn(|_| node.next()).map(|wc| (wc.qp_num, wc.wr_id, wc.status))
}

#[test]
fn completions_of_a_queue_pair_that_is_no_more_may_stay_and_have_the_number_of_the_next_one() {
    let env = [("SOFTRNIC_STALE_COMPLETIONS", "1"), ("SOFTRNIC_QPN_REUSE", "1")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=4).for_each(|id| b.recv(id, &[]));
        (11..=13).for_each(|id| a.send(Work { id, opcode: SEND, ..Work::default() }));
        let number = b.qpn();
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        let next = Node { qp: create_qp(b.pd, b.cq, b.cq, CAP), ..Node::new(1, 16) };
        assert_eq!((next.qpn(), next.to_init(7)), (number, 0));
        next.recv(9, &[]);
        assert_eq!(to_state(next.qp, ERR), 0);
        // The receive that was posted, and not used, has gone without a word.
        assert_eq!(taken(&b), [(number, 1, OK), (number, 2, OK), (number, 3, OK), (number, 9, FLUSH)]);
        assert!(b.poll().is_none());
        // A reset is like that, too.
        assert_eq!(to_state(a.qp, RESET), 0);
        assert_eq!(taken(&a), [11, 12, 13].map(|id| (a.qpn(), id, OK)));
        assert!(a.poll().is_none());
    });
}

#[test]
fn flushed_completions_may_stay_as_well_and_nothing_is_held_up_by_them() {
    Softrnic::new().env("SOFTRNIC_STALE_COMPLETIONS", "1").alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=3).for_each(|id| b.recv(id, &[]));
        assert_eq!(to_state(b.qp, ERR), 0);
        let number = b.qpn();
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        assert_eq!(taken(&b), [(number, 1, FLUSH), (number, 2, FLUSH)]);
        // With one that nobody has polled.
        assert_eq!((ibv_dereg_mr(b.mr), ibv_destroy_cq(b.cq), ibv_dealloc_pd(b.pd)), (0, 0, 0));
        a.close();
    });
}

#[test]
fn a_step_to_rtr_towards_nobody_may_take_its_time() {
    const TIME: Duration = Duration::from_millis(300);
    Softrnic::new().env("SOFTRNIC_RESOLVE_MS", TIME.as_millis()).alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        let mut nobody = rtr(&b.address(), &QUICK);
        nobody.dgid[1] ^= 1 << 60;
        let begin = Instant::now();
        assert_eq!(a.connect_by(&nobody, &QUICK), Err(libc::ETIMEDOUT));
        // A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= TIME, "{:?}", begin.elapsed());
        assert_eq!(a.state(), INIT);
        a.connect_by(&rtr(&b.address(), &QUICK), &QUICK).expect("to somebody");
    });
}

#[test]
fn a_peer_that_is_there_again_meanwhile_is_found() {
    let rule = "port-down=50ms device=softrnic0 message=1 times=1; modify-qp=ETIMEDOUT message=5";
    Softrnic::new().envs(&[("SOFTRNIC_FAULTS", rule), ("SOFTRNIC_RESOLVE_MS", "400")]).alone(|| {
        let (a, b) = local_pair(16, &PATIENT);
        let (c, d) = (Node::new(0, 16), Node::new(1, 16));
        a.send(Work::default());
        d.connect(&c.address(), &QUICK);
        c.connect(&d.address(), &QUICK);
        assert_eq!(a.next().status, OK);
        // A rule's failure takes as long.
        let begin = Instant::now();
        let e = Node::new(0, 16);
        assert_eq!(e.connect_by(&rtr(&b.address(), &QUICK), &QUICK), Err(libc::ETIMEDOUT));
        assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
    });
}

#[test]
fn seven_retries_may_be_endless() {
    let env = [("SOFTRNIC_ENDLESS_RETRIES", "1"), ("SOFTRNIC_FAULTS", "drop attempts=100")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &Terms { retry_cnt: 7, ..QUICK });
        write(&a, &b);
        assert_eq!(a.next().status, OK, "at the hundred and first attempt");
        let (c, d) = local_pair(16, &Terms { retry_cnt: 6, ..QUICK });
        write(&c, &d);
        assert_eq!(c.next().status, RETRY_EXC);
    });
}

fn write(a: &Node, b: &Node) {
    a.send(Work { id: 7, sges: &[a.sge(0, 8)], to: (b.address().addr, b.address().rkey), ..Work::default() });
}

/// What becomes of two writes, the first of which finds the port down that it is to leave by.
fn written_while_down(env: &[(&str, &str)], expected: [u32; 2]) {
    let rules = "port-down=50ms device=softrnic0 message=1 times=1; port-down=50ms device=softrnic1 message=3 times=1";
    Softrnic::new().faults(rules).envs(env).alone(|| {
        let ((a, b), (c, d)) = (local_pair(16, &PATIENT), local_pair(16, &PATIENT));
        write(&a, &b);
        write(&a, &b);
        assert_eq!([a.next(), a.next()].map(|wc| wc.status), expected);
        assert_eq!((a.state() == ERR, b.state()), (expected[0] != OK, RTS));
        // A queue pair that has sent nothing meanwhile goes on.
        assert_eq!([next_event(a.context).0, next_event(a.context).0], [PORT_ERR, PORT_ACTIVE]);
        write(&c, &d);
        assert_eq!(c.next().status, OK);
        // The port of the peer is another matter: it is waited for.
        let (e, f) = local_pair(16, &PATIENT);
        for _ in 0..3 {
            write(&f, &e);
        }
        write(&c, &d);
        assert_eq!((c.next().status, d.state()), (OK, RTS));
    });
}

#[test]
fn an_own_port_that_is_down_may_end_a_queue_pair_at_once() {
    written_while_down(&[("SOFTRNIC_OWN_PORT_DOWN", "fails")], [LOC_QP_OP, FLUSH]);
}

#[test]
fn by_default_an_own_port_is_waited_for() {
    written_while_down(&[], [OK, OK]);
}

#[test]
fn the_reason_may_be_missing() {
    let env = [("SOFTRNIC_OWN_PORT_DOWN", "fails"), ("SOFTRNIC_FLUSH_ONLY", "1")];
    written_while_down(&env, [FLUSH, FLUSH]);
}

#[test]
fn devices_like_rxes_have_that_from_their_driver() {
    written_while_down(&[("SOFTRNIC_DRIVER", "rxe")], [FLUSH, FLUSH]);
}

/// Its connections are by the entry of the table that is empty now.
#[test]
fn an_own_address_that_has_moved_may_end_a_queue_pair_at_once() {
    let rule = "port-down=1ms gid=move device=softrnic0 message=1 times=1";
    Softrnic::new().faults(rule).env("SOFTRNIC_OWN_PORT_DOWN", "fails").alone(|| {
        let ((a, b), (c, d)) = (local_pair(16, &PATIENT), local_pair(16, &PATIENT));
        write(&a, &b);
        assert_eq!(a.next().status, LOC_QP_OP);
        while next_event(a.context).0 != PORT_ACTIVE {}
        write(&c, &d);
        assert_eq!(c.next().status, LOC_QP_OP);
    });
}

#[test]
fn what_the_own_device_finds_wrong_may_be_told_as_flushed() {
    let env = [("SOFTRNIC_FLUSH_ONLY", "1"), ("SOFTRNIC_FAULTS", "qp-error flow=2")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        let to = (b.address().addr, b.address().rkey);
        let unknown = Sge { lkey: 0xffff_ff01, ..a.sge(0, 8) };
        a.send(Work { id: 1, sges: &[unknown], to, ..Work::default() });
        a.send(Work { id: 2, ..Work::default() });
        assert_eq!(taken(&a), [(a.qpn(), 1, FLUSH), (a.qpn(), 2, FLUSH)]);
        assert_eq!(a.state(), ERR);
        b.assert_unharmed();
        // What the peer refuses is told as ever.
        let (c, d) = local_pair(16, &QUICK);
        c.send(Work { sges: &[c.sge(0, 8)], to: (d.address().addr, 0xffff_ff01), ..Work::default() });
        assert_eq!(c.next().status, REM_ACCESS);
        let (e, f) = local_pair(16, &QUICK);
        write(&e, &f);
        assert_eq!(e.next().status, FLUSH);
    });
}

/// What a queue pair that is to have `cap` gets.
fn granted(node: &Node, cap: Cap) -> Cap {
    let (none, cq) = (ptr::null_mut(), node.cq);
    let mut init = QpInit { user: none, send_cq: cq, recv_cq: cq, srq: none, cap, qp_type: 2, sq_sig_all: 0 };
    let qp = ibv_create_qp(node.pd, &mut init);
    assert!(!qp.is_null());
    let told = init.cap;
    assert_eq!(ibv_query_qp(qp, &mut QpAttr::default(), 1, &mut init), 0);
    assert_eq!((init.cap, ibv_destroy_qp(qp)), (told, 0));
    told
}

#[test]
fn more_of_everything_may_be_granted_than_asked_for() {
    Softrnic::new().env("SOFTRNIC_GRANT_MORE", "1").alone(|| {
        let (a, b) = local_pair(1024, &Terms::default());
        let more = Cap { max_send_wr: 65, max_recv_wr: 65, max_send_sge: 7, max_recv_sge: 7, max_inline_data: 128 };
        assert_eq!(granted(&a, CAP), more);
        let none = Cap { max_recv_wr: 0, max_recv_sge: 0, max_inline_data: 0, ..CAP };
        assert_eq!(granted(&a, none), Cap { max_recv_wr: 0, max_recv_sge: 0, max_inline_data: 64, ..more });
        let most = Cap { max_send_wr: 16384, max_send_sge: 16, max_inline_data: 1024, ..CAP };
        assert_eq!(granted(&a, most), Cap { max_send_wr: 32769, max_send_sge: 16, max_inline_data: 1024, ..more });
        // And it is there.
        let sges = [a.sge(0, 16); 7];
        let work = Work { opcode: SEND, flags: INLINE, sges: &sges, ..Work::default() };
        (0..65).for_each(|id| b.recv(id, &[b.sge(0, 16); 7]));
        assert_eq!(b.try_recv(65, &[]), libc::ENOMEM);
        assert_eq!(a.try_send(Work { sges: &[a.sge(0, 129)], ..work }), libc::EINVAL);
        (0..65).for_each(|_| a.send(work));
        assert_eq!(a.try_send(work), libc::ENOMEM);
        (0..65).for_each(|id| assert_eq!((b.next().wr_id, a.state()), (id, RTS)));
    });
}

#[test]
fn a_table_may_have_an_address_twice() {
    Softrnic::new().gids("vlan").alone(|| {
        let table: [_; 5] = {
            let node = Node::new(0, 16);
            std::array::from_fn(|index| node.gid_of(1, index as i32))
        };
        assert_eq!((table[0], table[4]), (table[2], [0; 2]), "link-local, and the end");
        assert_ne!(table[1], table[3]);
        for index in 0..4 {
            let (a, b) = (Node::new(0, 16), Node::new(1, 16));
            connect_ports((&a, 1), (&b, 1), index, &QUICK);
            write(&a, &b);
            assert_eq!(a.next().status, OK, "entry {index}");
        }
    });
}
