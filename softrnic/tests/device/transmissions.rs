//! Fault rules that concern single transmissions: how long they last, and how much of a message gets through.

use std::time::{Duration, Instant};

use crate::common::node::{Node, Terms, Work, local_pair, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

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
    Softrnic::new().faults(rules).alone(|| {
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

/// Cut after 5000 of 9000 bytes, for good: directly and through the stage.
fn cut_for_good() {
    let (mut a, b) = local_pair(9000, &QUICK);
    b.recv(7, &[]);
    a.memory.fill(1);
    let to = (b.address().addr, b.address().rkey);
    a.send(Work { opcode: WRITE_IMM, sges: &[a.sge(0, 4000), a.sge(4000, 5000)], to, ..Work::default() });
    assert_eq!((a.next().status, a.state()), (RETRY_EXC, ERR));
    let placed = b.memory.iter().position(|byte| *byte == 0);
    assert_eq!((placed, b.memory[5000..].iter().all(|byte| *byte == 0)), (Some(5000), true));
    b.assert_unharmed();
}

#[test]
fn of_a_message_that_is_cut_the_beginning_arrives() {
    let rule = ("SOFTRNIC_FAULTS", "cut=5000 attempts=all");
    Softrnic::new().envs(&[rule]).alone(cut_for_good);
}

#[test]
fn of_a_message_that_is_cut_the_beginning_arrives_when_staged() {
    let env = [("SOFTRNIC_FAULTS", "cut=5000 attempts=all"), ("SOFTRNIC_STAGED", "1")];
    Softrnic::new().envs(&env).alone(cut_for_good);
}

#[test]
fn a_message_that_is_cut_once_arrives_whole() {
    let rules = "cut=0 message=1; cut=4 message=2; cut=100000 message=3; cut=20 opcode=read message=4; cut=8 message=5";
    Softrnic::new().faults(rules).alone(|| {
        let (mut a, mut b) = local_pair(64, &Terms { access: 15, ..Terms::default() });
        for value in 1..=3 {
            write(&mut a, &b, value);
            assert_eq!(a.next().status, OK);
            assert!(b.memory.iter().all(|byte| *byte == value), "message {value}");
        }
        b.memory.fill(4);
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { opcode: READ, sges: &[a.sge(0, 64)], to, ..Work::default() });
        assert_eq!(a.next().status, OK);
        assert!(a.memory.iter().all(|byte| *byte == 4));
        // A send that is cut keeps its receive.
        b.recv(8, &[b.sge(0, 64)]);
        a.memory.fill(5);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 64)], ..Work::default() });
        assert_eq!((a.next().status, b.next().wr_id), (OK, 8));
        assert!(b.memory.iter().all(|byte| *byte == 5) && b.poll().is_none());
    });
}

#[test]
fn of_a_read_that_is_cut_the_beginning_arrives_and_of_an_atomic_nothing() {
    let rule = ("SOFTRNIC_FAULTS", "cut=3 attempts=all");
    Softrnic::new().envs(&[rule]).alone(|| {
        for (opcode, here, there) in [(READ, [9, 9, 9, 0], 9), (FETCH_ADD, [0; 4], 9)] {
            let (a, mut b) = (Node::new(0, 8), Node::new(1, 8));
            let all = ALL_ACCESS | 8;
            let mr = ibv_reg_mr(b.pd, b.memory.as_mut_ptr().cast(), 8, all);
            assert!(!mr.is_null());
            let terms = Terms { access: 15, ..QUICK };
            a.connect(&b.address(), &terms);
            b.connect(&a.address(), &terms);
            b.memory.fill(9);
            // SAFETY: a live MR.
            let key = u64::from(unsafe { (*mr).rkey });
            let (mut sge, mut bad) = (a.sge(0, 8), std::ptr::null_mut());
            // An atomic has its operands where a READ has its key, and the key behind them.
            let is_read = opcode == READ;
            let (first, rest) = if is_read { (key, [0; 3]) } else { (1, [0, key, 0]) };
            let mut request = SendWr {
                wr_id: 1,
                next: std::ptr::null_mut(),
                sg_list: &mut sge,
                num_sge: 1,
                opcode,
                flags: SIGNALED,
                imm: 0,
                remote_addr: b.address().addr,
                rkey: first,
                rest,
            };
            assert_eq!(post_send(a.qp, &mut request, &mut bad), 0);
            assert_eq!(a.next().status, RETRY_EXC, "{opcode}");
            assert_eq!((&a.memory[..4], b.memory[0]), (&here[..], there), "{opcode}");
        }
    });
}

#[test]
fn what_is_forgotten_is_acknowledged_and_does_not_appear() {
    let rules = "forget device=softrnic0 message=1..5; device-fatal device=softrnic1 times=1";
    Softrnic::new().faults(rules).alone(|| {
        let (mut a, mut b) = local_pair(16, &QUICK);
        b.recv(7, &[b.sge(0, 16)]);
        a.memory.fill(1);
        let to = (b.address().addr, b.address().rkey);
        for (id, opcode) in [WRITE, WRITE_IMM, SEND].into_iter().enumerate() {
            a.send(Work { id: id as u64, opcode, sges: &[a.sge(0, 16)], to, ..Work::default() });
            assert_eq!((a.next().status, b.memory[0]), (OK, 0), "{id}");
            b.assert_unharmed();
        }
        // A read is answered.
        a.send(Work { opcode: READ, sges: &[a.sge(0, 16)], to, ..Work::default() });
        assert_eq!((a.next().status, a.memory[0]), (OK, 0));
        write(&mut a, &b, 5);
        assert_eq!((a.next().status, b.memory[0]), (OK, 0));
        // The next message is the sixth for both.
        write(&mut a, &b, 6);
        assert_eq!((a.next().status, b.memory[0]), (OK, 6));
        assert!(b.poll().is_none());
        write(&mut b, &a, 0);
        assert_eq!(
            [b.next(), b.next()].map(|wc| wc.status),
            [FLUSH, FLUSH],
            "the device is gone, the receive is flushed"
        );
    });
}

/// A key that the responder refuses is refused, though the message would be forgotten.
#[test]
fn what_is_refused_is_not_forgotten() {
    Softrnic::new().faults("forget").alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        a.send(Work { sges: &[a.sge(0, 16)], to: (b.address().addr, 1), ..Work::default() });
        assert_eq!((a.next().status, b.state()), (REM_ACCESS, ERR));
    });
}

/// The rules that concern a queue pair are found once for each connection that it has.
#[test]
fn the_rules_of_a_connection_are_not_those_of_the_next_one() {
    let rule = ("SOFTRNIC_FAULTS", "drop attempts=all flow=1 device=softrnic0");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (mut a, b) = local_pair(16, &QUICK);
        for status in [OK, RETRY_EXC, OK] {
            write(&mut a, &b, 1);
            assert_eq!(a.next().status, status);
            assert_eq!((to_state(a.qp, RESET), to_state(b.qp, RESET)), (0, 0));
            a.connect(&b.address(), &QUICK);
            b.connect(&a.address(), &QUICK);
        }
    });
}
