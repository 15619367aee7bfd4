//! Death on the control path: a process is killed while it creates and destroys.

mod common;

use std::os::unix::net::UnixStream;
use std::ptr;
use std::time::Duration;

use common::node::{CAP, Node, Terms, Work, create_qp, to_state};
use common::process::{Line, assert_clean, fabric_name, finish, is_side, line, pair, start};
use common::verbs::*;

/// Tables with room for little more than what one process needs: only what the dead left being cleared up lets the
/// next one work.
const TIGHT: [(&str, &str); 3] = [("SOFTRNIC_MAX_QP", "4"), ("SOFTRNIC_MAX_MR", "4"), ("SOFTRNIC_MAX_CQ", "4")];

#[test]
fn what_the_dead_leave_is_cleared_up() {
    const NAME: &str = "what_the_dead_leave_is_cleared_up";
    const ROUNDS: u64 = 40;
    if is_side(NAME, |side, line| if side == 0 { survive(line, ROUNDS) } else { churn(line) }) {
        return;
    }
    let fabric = fabric_name("churn");
    let mut env = vec![("SOFTRNIC_FABRIC", fabric.as_str())];
    env.extend_from_slice(&TIGHT);
    let (mine, theirs) = UnixStream::pair().expect("socket pair");
    let survivor = start(NAME, 0, theirs, &env);
    let mut to_survivor = line(mine);
    let mut seed = 99u64;
    for round in 0..ROUNDS {
        let (mine, theirs) = UnixStream::pair().expect("socket pair");
        let mut victim = start(NAME, 1, theirs, &env);
        assert_eq!(line(mine).recv::<u8>(), 1, "round {round}: the victim found no room");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((seed >> 33) % 3000));
        victim.kill().expect("kill");
        victim.wait().expect("wait");
        to_survivor.send(&1u8);
        assert_eq!(to_survivor.recv::<u8>(), 2, "round {round}: the survivor found no room");
    }
    finish(survivor);
    assert_clean(&fabric);
}

/// Creates and destroys everything, until killed.
fn churn(mut line: Line) {
    let node = Node::new(0, 4096);
    line.send(&1u8);
    loop {
        let cq = ibv_create_cq(node.context, 16, ptr::null_mut(), ptr::null_mut(), 0);
        let qp = create_qp(node.pd, cq, cq, CAP);
        let mr = ibv_reg_mr(node.pd, node.memory.as_ptr().cast_mut().cast(), 4096, ALL_ACCESS);
        assert!(!cq.is_null() && !qp.is_null() && !mr.is_null());
        assert_eq!((ibv_destroy_qp(qp), ibv_dereg_mr(mr), ibv_destroy_cq(cq)), (0, 0, 0));
    }
}

/// After each death: two more of everything, which there is room for once the dead are cleared up, and data flows.
fn survive(mut line: Line, rounds: u64) {
    let base = Node::new(0, 64);
    for _ in 0..rounds {
        assert_eq!(line.recv::<u8>(), 1);
        let (a, b) = (Node::new(0, 64), Node::new(0, 64));
        a.connect(&b.address(), &Terms::default());
        b.connect(&a.address(), &Terms::default());
        b.recv(1, &[]);
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        a.close();
        b.close();
        line.send(&2u8);
    }
    base.close();
}

/// The owner deregisters a region and unmaps it at once, while its peer keeps writing there. The device must have let
/// go of it by then: the writer hears of the missing key, never of missing memory.
#[test]
fn deregistration_waits_for_accesses_under_way() {
    pair("deregistration_waits_for_accesses_under_way", &[], |side, mut line| {
        // Long enough that the kernel takes it in several steps, looking at the mapping before each.
        const BYTES: usize = 32 << 20;
        let terms = Terms::default();
        let node = Node::new(side, BYTES);
        let mut seed = 7u64;
        for round in 0..20 {
            node.join(&mut line, &terms);
            if side == 0 {
                let [addr, rkey]: [u64; 2] = line.recv();
                let status = loop {
                    node.send(Work { sges: &[node.sge(0, BYTES)], to: (addr, rkey), ..Work::default() });
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
                    line.send(&[at as u64, u64::from((*mr).rkey)]);
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    std::thread::sleep(Duration::from_micros((seed >> 33) % 20_000));
                    assert_eq!(ibv_dereg_mr(mr), 0);
                    libc::munmap(at, BYTES);
                }
            }
            line.meet();
            assert_eq!(to_state(node.qp, RESET), 0);
            line.meet();
        }
    });
}
