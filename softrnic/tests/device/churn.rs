//! Processes that are killed while they create and destroy objects.

use std::ptr;
use std::time::Duration;

use crate::common::node::{CAP, Node, Terms, Work, create_qp, to_state};
use crate::common::verbs::*;
use testkit::Peer;
use testkit::side::enter;
use testkit::softrnic::Softrnic;

/// Tables with room for little more than one process needs: the next one finds room only if what a killed process had is
/// freed.
const SMALL_TABLES: [(&str, &str); 3] = [("SOFTRNIC_MAX_QP", "4"), ("SOFTRNIC_MAX_MR", "4"), ("SOFTRNIC_MAX_CQ", "4")];

#[test]
fn what_killed_processes_have_created_is_freed() {
    const ROUNDS: u64 = 40;
    enter(|side, socket| if side == 0 { run_survivor(socket, ROUNDS) } else { run_victim(socket) });
    let softrnic = Softrnic::new().envs(&SMALL_TABLES);
    let (survivor, mut to_survivor) = softrnic.start(0, &[]);
    let mut seed = 99u64;
    for round in 0..ROUNDS {
        let (mut victim, mut from_victim) = softrnic.start(1, &[]);
        assert_eq!(from_victim.recv::<u8>(), 1, "round {round}: the process to be killed found no room");
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

/// After each kill: two more of everything, for which there is room once what the killed process had is freed, and data
/// flows.
fn run_survivor(mut socket: Peer, rounds: u64) {
    let base = Node::new(0, 64);
    for _ in 0..rounds {
        assert_eq!(socket.recv::<u8>(), 1);
        let (a, b) = (Node::new(0, 64), Node::new(0, 64));
        a.connect(&b.address(), &Terms::default());
        b.connect(&a.address(), &Terms::default());
        b.recv(1, &[]);
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        a.close();
        b.close();
        socket.send(&2u8);
    }
    base.close();
}

/// The owner deregisters a region and unmaps it at once, while its peer keeps writing there. The device must not access it
/// any more by then: the writer's request fails for the missing key, never for missing memory.
#[test]
fn deregistration_waits_for_accesses_under_way() {
    Softrnic::new().pair(|side, mut socket| {
        // Long enough that the kernel takes it in several steps, looking at the mapping before each.
        const BYTES: usize = 32 << 20;
        let terms = Terms::default();
        let node = Node::new(side, BYTES);
        let mut seed = 7u64;
        for round in 0..20 {
            node.connect_over(&mut socket, &terms);
            if side == 0 {
                let [addr, rkey]: [u64; 2] = socket.recv();
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
