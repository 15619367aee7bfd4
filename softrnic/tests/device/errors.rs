//! Errors, and which end has a completion or an event for them: one test per row of the table of errors.

use std::ptr;
use std::time::Duration;

use crate::common::node::{CAP, Node, Terms, Work, create_qp, local_pair, to_state};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// Posts `work` from a fresh connection and returns (requester, responder, requester's completion). Before it, the
/// responder has posted one receive of 8 bytes, and the requester has one request behind it.
fn provoke(terms: &Terms, work: impl FnOnce(&Node, &Node) -> i32) -> (Node, Node, Wc) {
    let (a, b) = local_pair(4096, terms);
    b.recv(50, &[b.sge(0, 8)]);
    assert_eq!(work(&a, &b), 0);
    let wc = a.next();
    a.send(Work { id: 99, flags: 0, ..Work::default() });
    let behind = a.next();
    assert_eq!((behind.wr_id, behind.status), (99, FLUSH), "everything behind the failure is flushed");
    assert_eq!(a.state(), ERR);
    (a, b, wc)
}

/// A key for the memory of `node`, in another protection domain of its device.
fn foreign_key(node: &Node) -> u32 {
    let pd = ibv_alloc_pd(node.context);
    let mr = ibv_reg_mr(pd, node.memory.as_ptr().cast_mut().cast(), node.memory.len(), ALL_ACCESS);
    // SAFETY: a live MR.
    unsafe { (*mr).rkey }
}

/// The one asynchronous event that `node` has, which must be about its QP.
fn event(node: &Node) -> u32 {
    let mut event = AsyncEvent::default();
    assert_eq!(ibv_get_async_event(node.context, &mut event), 0);
    assert_eq!(event.element, node.qp as usize);
    ibv_ack_async_event(&mut event);
    event.kind
}

#[test]
fn local_key_is_checked() {
    Softrnic::new().alone(|| {
        type Spoil = fn(&Node, &Node) -> Sge;
        let spoils: [(&str, Spoil); 4] = [
            ("unknown key", |a, _| Sge { lkey: 0xffff_ff01, ..a.sge(0, 8) }),
            ("key of another protection domain", |a, _| Sge { lkey: foreign_key(a), ..a.sge(0, 8) }),
            ("beyond the end", |a, _| a.sge(4090, 8)),
            ("before the start", |a, _| Sge { addr: a.memory.as_ptr() as u64 - 1, ..a.sge(0, 8) }),
        ];
        for (what, spoil) in spoils {
            let (a, b, wc) = provoke(&Terms::default(), |a, b| {
                let to = b.address();
                let sges = [spoil(a, b)];
                a.try_send(Work { id: 7, flags: 0, sges: &sges, to: (to.addr, to.rkey), ..Work::default() })
            });
            assert_eq!((wc.wr_id, wc.status), (7, LOC_PROT), "{what}");
            b.assert_unharmed();
            drop((a, b));
        }
    });
}

#[test]
fn remote_key_is_checked() {
    Softrnic::new().alone(|| {
        type Spoil = fn(&Node) -> (u64, u64);
        let spoils: [(&str, Spoil); 5] = [
            ("key of another protection domain", |b| (b.address().addr, u64::from(foreign_key(b)))),
            ("unknown key", |b| (b.address().addr, 0xffff_ff01)),
            ("stale generation", |b| (b.address().addr, b.address().rkey + 1)),
            ("beyond the end", |b| (b.address().addr + 4089, b.address().rkey)),
            ("wraps", |b| (u64::MAX - 3, b.address().rkey)),
        ];
        for opcode in [WRITE, READ] {
            for (what, spoil) in spoils {
                let (_a, b, wc) = provoke(&Terms::default(), |a, b| {
                    a.try_send(Work { id: 7, opcode, flags: 0, sges: &[a.sge(0, 8)], to: spoil(b), ..Work::default() })
                });
                assert_eq!((wc.wr_id, wc.status), (7, REM_ACCESS), "{what}");
                assert_eq!(event(&b), 3, "QP_ACCESS_ERR");
                let wc = b.next();
                assert_eq!((wc.wr_id, wc.status), (50, FLUSH), "{what}");
                assert_eq!(b.state(), ERR);
            }
        }
    });
}

#[test]
fn region_access_is_checked() {
    Softrnic::new().alone(|| {
        for (opcode, allowed) in [(WRITE, 1 | 4), (READ, 1 | 2)] {
            let mut bytes = vec![0u8; 64];
            let (_a, b, wc) = provoke(&Terms::default(), |a, b| {
                let mr = ibv_reg_mr(b.pd, bytes.as_mut_ptr().cast(), 64, allowed);
                // SAFETY: a live MR.
                let to = (bytes.as_ptr() as u64, u64::from(unsafe { (*mr).rkey }));
                a.try_send(Work { opcode, sges: &[a.sge(0, 8)], to, ..Work::default() })
            });
            assert_eq!(wc.status, REM_ACCESS);
            assert_eq!(event(&b), 3);
        }
    });
}

#[test]
fn read_needs_local_write() {
    Softrnic::new().alone(|| {
        let bytes = [0u8; 64];
        let (_a, b, wc) = provoke(&Terms::default(), |a, b| {
            let mr = ibv_reg_mr(a.pd, bytes.as_ptr().cast_mut().cast(), 64, 0);
            // SAFETY: a live MR.
            let sge = Sge { addr: bytes.as_ptr() as u64, length: 8, lkey: unsafe { (*mr).lkey } };
            a.try_send(Work { opcode: READ, sges: &[sge], to: (b.address().addr, b.address().rkey), ..Work::default() })
        });
        assert_eq!(wc.status, LOC_PROT);
        b.assert_unharmed();
    });
}

#[test]
fn qp_access_is_checked() {
    Softrnic::new().alone(|| {
        for (opcode, access) in [(WRITE, 1 | 4), (WRITE_IMM, 1 | 4), (READ, 1 | 2)] {
            let terms = Terms { access, ..Terms::default() };
            let (_a, b, wc) = provoke(&terms, |a, b| {
                let to = (b.address().addr, b.address().rkey);
                a.try_send(Work { opcode, sges: &[a.sge(0, 8)], to, ..Work::default() })
            });
            assert_eq!(wc.status, REM_INV_REQ);
            assert_eq!(event(&b), 2, "QP_REQ_ERR");
            assert_eq!(b.next().status, FLUSH);
        }
    });
}

#[test]
fn receive_that_is_too_small() {
    Softrnic::new().alone(|| {
        let (_a, b, wc) = provoke(&Terms::default(), |a, _| {
            a.try_send(Work { opcode: SEND, sges: &[a.sge(0, 9)], ..Work::default() })
        });
        assert_eq!(wc.status, REM_INV_REQ);
        let wc = b.next();
        assert_eq!((wc.wr_id, wc.status), (50, LOC_LEN));
        assert_eq!(event(&b), 2, "QP_REQ_ERR");
    });
}

#[test]
fn receive_with_a_bad_key() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        b.recv(50, &[Sge { lkey: 0xffff_ff01, ..b.sge(0, 8) }]);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], ..Work::default() });
        assert_eq!(a.next().status, REM_OP);
        assert_eq!(b.next().status, LOC_PROT);
    });
}

#[test]
fn memory_that_is_gone_on_either_side() {
    Softrnic::new().pair(|side, mut socket| {
        for culprit in 0..2 {
            let mut node = Node::new(0, 4096);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a fresh mapping, registered and then removed; the device must not crash for it.
            let (at, key) = unsafe {
                let at = libc::mmap(ptr::null_mut(), 4096, 3, flags, -1, 0);
                let mr = ibv_reg_mr(node.pd, at, 4096, ALL_ACCESS);
                (at, (*mr).rkey)
            };
            if side == culprit {
                // SAFETY: mapped above.
                unsafe { libc::munmap(at, 4096) };
                node.psn += 1;
            }
            node.connect_over(&mut socket, &Terms::default());
            let theirs: [u64; 2] = socket.swap(&[at as u64, u64::from(key)]);
            if side == 0 {
                let sge = Sge { addr: at as u64, length: 64, lkey: key };
                node.send(Work { sges: &[sge], to: (theirs[0], theirs[1]), ..Work::default() });
                assert_eq!(node.next().status, if culprit == 0 { LOC_PROT } else { REM_OP });
            }
            socket.barrier();
        }
    });
}

#[test]
fn zero_bytes_need_no_key() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        b.recv(9, &[]);
        a.send(Work { opcode: WRITE, ..Work::default() });
        a.send(Work { opcode: READ, ..Work::default() });
        a.send(Work { opcode: WRITE_IMM, imm: 3, ..Work::default() });
        assert!((0..3).all(|_| a.next().status == OK));
        let wc = b.next();
        assert_eq!((wc.status, wc.opcode, wc.imm, wc.byte_len), (OK, 129, 3, 0));
    });
}

#[test]
fn zero_bytes_need_a_key_where_the_device_looks() {
    Softrnic::new().env("SOFTRNIC_ZERO_KEYS", "1").alone(|| {
        let target = |b: &Node| (b.address().addr, b.address().rkey);
        let (a, b) = local_pair(64, &Terms::default());
        b.recv(9, &[]);
        for (opcode, to) in [(WRITE, target(&b)), (READ, target(&b)), (WRITE_IMM, target(&b))] {
            a.send(Work { opcode, to, ..Work::default() });
        }
        assert!((0..3).all(|_| a.next().status == OK));
        type Spoil = fn((u64, u64)) -> (u64, u64);
        let spoils: [Spoil; 3] = [|_| (0, 0), |(addr, _)| (addr, 0xffff_ff01), |(addr, key)| (addr + 4097, key)];
        for (i, spoil) in spoils.into_iter().enumerate() {
            for opcode in [WRITE, READ, WRITE_IMM] {
                let (_, b, wc) = provoke(&Terms::default(), |a, b| {
                    a.try_send(Work { id: 7, opcode, to: spoil(target(b)), ..Work::default() })
                });
                assert_eq!((wc.wr_id, wc.status), (7, REM_ACCESS), "{opcode}, way {i}");
                assert_eq!(event(&b), 3, "QP_ACCESS_ERR");
            }
        }
    });
}

#[test]
fn a_full_completion_queue_dies() {
    Softrnic::new().alone(|| {
        // 3 rounds up to 3.
        let a = Node::with(0, 64, CAP, 3);
        a.connect(&a.address(), &Terms::default());
        for id in 0..4 {
            a.send(Work { id, ..Work::default() });
        }
        let mut event = AsyncEvent::default();
        assert_eq!(ibv_get_async_event(a.context, &mut event), 0);
        assert_eq!((event.element, event.kind), (a.cq as usize, 0), "CQ_ERR");
        assert_eq!(a.state(), ERR);
        let ids: Vec<_> = std::iter::from_fn(|| a.poll()).map(|wc| wc.wr_id).collect();
        assert_eq!(ids, [0, 1, 2], "what was there stays");
    });
}

#[test]
fn strict_mode_shows_what_is_not_defined() {
    Softrnic::new().strict().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        assert_eq!(to_state(b.qp, RESET), 0);
        a.send(Work { id: 3, ..Work::default() });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status, wc.qp_num), (3, RETRY_EXC, a.qpn()));
        assert!(wc.opcode > 0xffff && wc.byte_len > 0xffff);
    });
}

#[test]
fn events_hold_back_destruction() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        a.send(Work { sges: &[a.sge(0, 8)], ..Work::default() });
        assert_eq!(a.next().status, REM_ACCESS);
        let mut event = AsyncEvent::default();
        assert_eq!(ibv_get_async_event(b.context, &mut event), 0);
        let qp = b.qp as usize;
        let destroyer = std::thread::spawn(move || ibv_destroy_qp(qp as *mut Qp));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!destroyer.is_finished(), "destroyed before its event was acknowledged");
        ibv_ack_async_event(&mut event);
        assert_eq!(destroyer.join().expect("destroy"), 0);
        // An event that was not fetched is removed with its QP.
        let (a, b) = local_pair(64, &Terms::default());
        a.send(Work { sges: &[a.sge(0, 8)], ..Work::default() });
        assert_eq!(a.next().status, REM_ACCESS);
        assert!(has_event(b.context, 60_000));
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        assert!(!b.has_event());
    });
}

#[test]
fn unsupported_kinds_say_so() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let mut init = crate::common::node::empty_init();
        (init.send_cq, init.recv_cq, init.qp_type, init.cap) = (node.cq, node.cq, 8, CAP);
        assert!(ibv_create_qp(node.pd, &mut init).is_null(), "raw packets");
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        let bare = Cap { max_send_wr: 0, max_recv_wr: 0, ..CAP };
        assert!(!create_qp(node.pd, node.cq, node.cq, bare).is_null(), "queues of length 0");
        for slot in [7, 8, 9] {
            assert!(op(node.context, slot).is_null(), "memory windows: inlined wrappers say EOPNOTSUPP");
        }
        // A DMA-BUF probe goes by errno.
        let probe = symbol("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
        // SAFETY: its type in the verbs interface.
        let probe: unsafe extern "C" fn(Ptr, u64, usize, u64, i32, i32) -> *mut Mr =
            unsafe { std::mem::transmute(probe) };
        // SAFETY: a live PD.
        assert!(unsafe { probe(node.pd, 0, 0, 0, -1, 0) }.is_null());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    });
}
