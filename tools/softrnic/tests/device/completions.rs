//! One completion queue for many: queue pairs, and threads.

use std::ptr;

use crate::common::node::{Node, Terms, Work, local_pair};
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
            extra.1.qp = crate::common::node::create_qp(extra.1.pd, cq, b.cq, crate::common::node::CAP);
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
                    if let Some(wc) = crate::common::node::poll(cq) {
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
