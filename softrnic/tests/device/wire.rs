//! The model of the wire, and order where it is relaxed.

use std::time::{Duration, Instant};

use crate::common::node::{Node, Terms, Work, local_pair};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// The slower of the ports sets the pace: a message cannot be there before its bytes have passed.
#[test]
fn bandwidth_has_a_bound_and_bytes_take_their_time() {
    Softrnic::new().faults("slow=0.01 message=1").alone(|| {
        let (a, b) = local_pair(100_000, &Terms::default());
        let sges = [a.sge(0, 100_000)];
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { sges: &sges, to, ..Work::default() });
        a.next();
        let begin = Instant::now();
        for id in 0..3 {
            a.send(Work { id, sges: &sges, to, ..Work::default() });
        }
        let ids = [(); 3].map(|()| a.next().wr_id);
        assert_eq!(ids, [0, 1, 2]);
        // 300 kB at 10 MB/s. A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= Duration::from_millis(29), "{:?}", begin.elapsed());
    });
}

/// In chaos a long write into memory with relaxed ordering lands in pieces and whole; elsewhere in order.
#[test]
fn relaxed_memory_is_written_in_no_order_but_completely() {
    const RELAXED: i32 = 1 << 20;
    Softrnic::new().env("SOFTRNIC_CHAOS", "1").alone(|| {
        let (mut a, mut b) = (Node::new(0, 65_536), Node::new(1, 65_536));
        assert_eq!(ibv_dereg_mr(b.mr), 0);
        b.mr = ibv_reg_mr(b.pd, b.memory.as_mut_ptr().cast(), 65_536, ALL_ACCESS | RELAXED);
        a.connect(&b.address(), &Terms::default());
        b.connect(&a.address(), &Terms::default());
        for (round, length) in [1usize, 63, 64, 65, 1000, 4096, 65_536, 65_535].into_iter().enumerate() {
            for (i, byte) in a.memory.iter_mut().enumerate() {
                *byte = (i * 7 + i / 256 + round) as u8;
            }
            b.memory.fill(0);
            let sges = [a.sge(0, length)];
            a.send(Work { sges: &sges, to: (b.address().addr, b.address().rkey), ..Work::default() });
            assert_eq!(a.next().status, OK);
            assert!(a.memory[..length] == b.memory[..length], "{length} bytes");
            assert!(b.memory[length..].iter().all(|&byte| byte == 0), "{length} bytes and no more");
        }
    });
}
