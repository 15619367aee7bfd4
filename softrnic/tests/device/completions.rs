//! One completion queue for many: queue pairs, and threads.

use std::ptr;

use crate::common::node::{CAP, Node, Terms, Work, create_qp, local_pair, poll};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// Many QPs on one CQ, more than the bits of its doorbell.
#[test]
fn seventy_qps_on_one_cq() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        let mut qps = vec![];
        for _ in 0..70 {
            let mut extra = (Node::new(0, 64), Node::new(1, 64));
            // The receiving QPs share b's CQ.
            assert_eq!(ibv_destroy_qp(extra.1.qp), 0);
            let cq = ibv_create_cq(extra.1.context, 8, ptr::null_mut(), ptr::null_mut(), 0);
            extra.1.qp = create_qp(extra.1.pd, cq, b.cq, CAP);
            extra.1.psn = 5;
            extra.0.connect(&extra.1.address(), &Terms::default());
            extra.1.connect(&extra.0.address(), &Terms::default());
            qps.push(extra);
        }
        for (i, (from, to)) in qps.iter().enumerate() {
            to.recv(i as u64, &[]);
            from.send(Work { opcode: SEND, ..Work::default() });
        }
        let mut ids: Vec<_> = (0..70).map(|_| b.next().wr_id).collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..70).collect::<Vec<_>>());
        drop(a);
    });
}

/// Two threads post on two QPs while a third polls their common CQ.
#[test]
fn threads_share_a_cq() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(64, &Terms::default());
        let (c, _d) = local_pair(64, &Terms::default());
        let count = 20_000u64;
        let post = |qp: usize, cq: usize| {
            std::thread::spawn(move || {
                let (mut bad, mut wr) = (
                    ptr::null_mut(),
                    SendWr {
                        wr_id: 0,
                        next: ptr::null_mut(),
                        sg_list: ptr::null_mut(),
                        num_sge: 0,
                        opcode: WRITE,
                        flags: SIGNALED,
                        imm: 0,
                        remote_addr: 0,
                        rkey: 0,
                        rest: [0; 3],
                    },
                );
                while wr.wr_id < count {
                    match post_send(qp as *mut Qp, &raw mut wr, &mut bad) {
                        0 => wr.wr_id += 1,
                        rc => {
                            assert_eq!(rc, libc::ENOMEM);
                            std::thread::yield_now();
                        }
                    }
                }
                cq
            })
        };
        let posters = [post(a.qp as usize, a.cq as usize), post(c.qp as usize, c.cq as usize)];
        for cq in [a.cq, c.cq] {
            for want in 0..count {
                let wc = loop {
                    if let Some(wc) = poll(cq) {
                        break wc;
                    }
                    std::thread::yield_now();
                };
                assert_eq!((wc.wr_id, wc.status), (want, OK));
            }
        }
        posters.into_iter().for_each(|p| assert!(p.join().is_ok()));
    });
}

/// An application that posts a send for each completion of one, as it polls it, gets its receives all the same: over UC and UD nothing
/// else would end that.
#[test]
fn sends_that_go_on_do_not_hold_up_receives() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        let send = |node: &Node| node.send(Work { opcode: WRITE, ..Work::default() });
        (0..2).for_each(|_| send(&a));
        a.recv(7, &[]);
        b.send(Work { opcode: SEND, ..Work::default() });
        let found = (0..10).find_map(|_| {
            let mut out = [Wc::default(); 2];
            let count = poll_cq(a.cq, 2, out.as_mut_ptr()) as usize;
            (0..count).for_each(|_| send(&a));
            out[..count].iter().find(|wc| wc.wr_id == 7).copied()
        });
        assert_eq!(found.expect("the receive").status, OK);
    });
}

/// Two connected nodes; the completions of the first one go to `cq`.
fn pair_on(cq: *mut Cq) -> (Node, Node) {
    let (mut a, b) = (Node::new(0, 64), Node::new(1, 64));
    assert_eq!(ibv_destroy_qp(a.qp), 0);
    a.qp = create_qp(a.pd, cq, cq, CAP);
    a.connect(&b.address(), &Terms::default());
    b.connect(&a.address(), &Terms::default());
    (a, b)
}

/// The same of several queue pairs: those whose bit of the doorbell is higher, and those that share one.
#[test]
fn a_queue_pair_that_goes_on_does_not_hold_up_others() {
    Softrnic::new().alone(|| {
        let mut nodes = vec![local_pair(64, &Terms::default())];
        let cq = nodes[0].0.cq;
        nodes.extend((0..65).map(|_| pair_on(cq)));
        let send = |at: usize| nodes[at].0.send(Work { id: at as u64, opcode: WRITE, ..Work::default() });
        for at in [0, 40, 64] {
            send(at);
        }
        let mut missing = vec![40, 64];
        for _ in 0..1000 {
            let Some(wc) = poll(cq) else { continue };
            missing.retain(|&at| at != wc.wr_id);
            if wc.wr_id == 0 {
                send(0);
            }
        }
        assert_eq!(missing, [0u64; 0]);
    });
}
