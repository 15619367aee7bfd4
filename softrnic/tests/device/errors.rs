//! Errors, and which end has a completion or an event for them: one test per row of the table of
//! errors.

use crate::common::prelude::*;
use testkit::side::exit_without_handlers;

/// Posts `work` from a fresh connection and returns (requester, responder, requester's completion).
/// Before it, the responder has posted one receive of 8 bytes, and the requester has one request
/// behind it.
fn provoke(terms: &Terms, work: impl FnOnce(&Node, &Node) -> i32) -> (Node, Node, Wc) {
    let (a, b) = local_pair(4096, terms);
    b.recv(50, &[b.sge(0, 8)]);
    assert_eq!(work(&a, &b), 0);
    let wc = a.next();
    a.send(Work { id: 99, flags: 0, ..WORK });
    let behind = a.next();
    assert_eq!(
        (behind.wr_id, behind.status),
        (99, FLUSH),
        "everything behind the failure is flushed"
    );
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
            ("key of another protection domain", |a, _| Sge {
                lkey: foreign_key(a),
                ..a.sge(0, 8)
            }),
            ("beyond the end", |a, _| a.sge(4090, 8)),
            ("before the start", |a, _| Sge { addr: a.memory.as_ptr() as u64 - 1, ..a.sge(0, 8) }),
        ];
        for (what, spoil) in spoils {
            let (a, b, wc) = provoke(&TERMS, |a, b| {
                let to = b.address();
                let sges = [spoil(a, b)];
                a.try_send(Work { id: 7, flags: 0, sges: &sges, to: (to.addr, to.rkey), ..WORK })
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
                let (_a, b, wc) = provoke(&TERMS, |a, b| {
                    a.try_send(Work {
                        id: 7,
                        opcode,
                        flags: 0,
                        sges: &[a.sge(0, 8)],
                        to: spoil(b),
                        ..WORK
                    })
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
            let (_a, b, wc) = provoke(&TERMS, |a, b| {
                let mr = ibv_reg_mr(b.pd, bytes.as_mut_ptr().cast(), 64, allowed);
                // SAFETY: a live MR.
                let to = (bytes.as_ptr() as u64, u64::from(unsafe { (*mr).rkey }));
                a.try_send(Work { opcode, sges: &[a.sge(0, 8)], to, ..WORK })
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
        let (_a, b, wc) = provoke(&TERMS, |a, b| {
            let mr = ibv_reg_mr(a.pd, bytes.as_ptr().cast_mut().cast(), 64, 0);
            // SAFETY: a live MR.
            let sge = Sge { addr: bytes.as_ptr() as u64, length: 8, lkey: unsafe { (*mr).lkey } };
            a.try_send(Work { opcode: READ, sges: &[sge], to: b.at(0), ..WORK })
        });
        assert_eq!(wc.status, LOC_PROT);
        b.assert_unharmed();
    });
}

#[test]
fn qp_access_is_checked() {
    Softrnic::new().alone(|| {
        for (opcode, access) in [(WRITE, 1 | 4), (WRITE_IMM, 1 | 4), (READ, 1 | 2)] {
            let terms = Terms { access, ..TERMS };
            let (_a, b, wc) = provoke(&terms, |a, b| {
                let to = b.at(0);
                a.try_send(Work { opcode, sges: &[a.sge(0, 8)], to, ..WORK })
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
        let (_a, b, wc) =
            provoke(&TERMS, |a, _| a.try_send(Work { opcode: SEND, sges: &[a.sge(0, 9)], ..WORK }));
        assert_eq!(wc.status, REM_INV_REQ);
        let wc = b.next();
        assert_eq!((wc.wr_id, wc.status), (50, LOC_LEN));
        assert_eq!(event(&b), 2, "QP_REQ_ERR");
    });
}

#[test]
fn receive_with_a_bad_key() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        b.recv(50, &[Sge { lkey: 0xffff_ff01, ..b.sge(0, 8) }]);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], ..WORK });
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
            // SAFETY: a fresh mapping, registered and then removed; the device must not crash for
            // it.
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
            node.connect_over(&mut socket, &TERMS);
            let theirs: [u64; 2] = socket.swap(&[at as u64, u64::from(key)]);
            if side == 0 {
                let sge = Sge { addr: at as u64, length: 64, lkey: key };
                node.send(Work { sges: &[sge], to: (theirs[0], theirs[1]), ..WORK });
                assert_eq!(node.next().status, if culprit == 0 { LOC_PROT } else { REM_OP });
            }
            socket.barrier();
        }
    });
}

#[test]
fn zero_bytes_need_no_key() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        b.recv(9, &[]);
        a.send(Work { opcode: WRITE, ..WORK });
        a.send(Work { opcode: READ, ..WORK });
        a.send(Work { opcode: WRITE_IMM, imm: 3, ..WORK });
        assert!((0..3).all(|_| a.next().status == OK));
        let wc = b.next();
        assert_eq!((wc.status, wc.opcode, wc.imm, wc.byte_len), (OK, 129, 3, 0));
    });
}

#[test]
fn zero_bytes_need_a_key_where_the_device_looks() {
    Softrnic::new().env("SOFTRNIC_ZERO_KEYS", "1").alone(|| {
        let target = |b: &Node| b.at(0);
        let (a, b) = local_pair(64, &TERMS);
        b.recv(9, &[]);
        for (opcode, to) in [(WRITE, target(&b)), (READ, target(&b)), (WRITE_IMM, target(&b))] {
            a.send(Work { opcode, to, ..WORK });
        }
        assert!((0..3).all(|_| a.next().status == OK));
        type Spoil = fn((u64, u64)) -> (u64, u64);
        let spoils: [Spoil; 3] =
            [|_| (0, 0), |(addr, _)| (addr, 0xffff_ff01), |(addr, key)| (addr + 4097, key)];
        for (i, spoil) in spoils.into_iter().enumerate() {
            for opcode in [WRITE, READ, WRITE_IMM] {
                let (_, b, wc) = provoke(&TERMS, |a, b| {
                    a.try_send(Work { id: 7, opcode, to: spoil(target(b)), ..WORK })
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
        a.connect(&a.address(), &TERMS);
        for id in 0..4 {
            a.send(Work { id, ..WORK });
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
        let (a, b) = local_pair(64, &TERMS);
        assert_eq!(to_state(b.qp, RESET), 0);
        a.send(Work { id: 3, ..WORK });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status, wc.qp_num), (3, RETRY_EXC, a.qpn()));
        assert!(wc.opcode > 0xffff && wc.byte_len > 0xffff);
    });
}

#[test]
fn events_hold_back_destruction() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        a.send(Work { sges: &[a.sge(0, 8)], ..WORK });
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
        let (a, b) = local_pair(64, &TERMS);
        a.send(Work { sges: &[a.sge(0, 8)], ..WORK });
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
        let mut init = empty_init();
        (init.send_cq, init.recv_cq, init.qp_type, init.cap) = (node.cq, node.cq, 8, CAP);
        assert!(ibv_create_qp(node.pd, &mut init).is_null(), "raw packets");
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        let bare = Cap { max_send_wr: 0, max_recv_wr: 0, ..CAP };
        assert!(!create_qp(node.pd, node.cq, node.cq, bare).is_null(), "queues of length 0");
        for slot in [7, 8, 9] {
            assert!(
                op(node.context, slot).is_null(),
                "memory windows: inlined wrappers say EOPNOTSUPP"
            );
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

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Gives up after 8.6 s.
const PATIENT: Terms = Terms { timeout: 18, retry_cnt: 7, ..QUICK };

/// An entry of a GID table that is empty.
const EMPTY: [u64; 2] = [0; 2];

/// `::ffff:` and the octets.
fn mapped(octets: [u8; 4]) -> [u64; 2] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&octets);
    // SAFETY: same size, any bits are valid.
    unsafe { std::mem::transmute::<[u8; 16], [u64; 2]>(gid) }
}

fn send(a: &Node, b: &Node) -> u32 {
    b.recv(1, &[]);
    a.send(Work { opcode: SEND, ..WORK });
    a.next().status
}

fn events<const N: usize>(node: &Node) -> [u32; N] {
    std::array::from_fn(|_| next_event(node.context).0)
}

#[test]
fn an_address_that_comes_later_than_its_port_is_waited_for() {
    let rule = "port-down=20ms gid-after=20ms device=softrnic0 message=1 times=1";
    Softrnic::new().faults(rule).alone(|| {
        let (a, b) = local_pair(16, &PATIENT);
        let before = [a.gid_of(1, 0), a.gid_of(1, 1)];
        assert_eq!((send(&a, &b), b.next().status), (OK, OK));
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE, GID_CHANGE]);
        assert_eq!([a.gid_of(1, 0), a.gid_of(1, 1)], before);
        assert!(!b.has_event(), "the other port");
    });
}

#[test]
fn until_its_address_is_back_a_port_has_the_link_local_one() {
    let rule = "port-down=1ms gid-after=1000s device=softrnic0 message=1 times=1";
    Softrnic::new().faults(rule).alone(|| {
        let (a, b) = local_pair(16, &PATIENT);
        let (c, d) = (Node::new(0, 16), Node::new(1, 16));
        let before = c.gid;
        b.recv(1, &[]);
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(port_attr(a.context, 1).expect("port").state, 4);
        assert_ne!(a.gid_of(1, 0), EMPTY);
        assert_eq!(a.gid_of(1, 1), EMPTY);
        let by_old = rtr(&d.address(), &QUICK);
        assert_eq!(
            c.connect_by(&by_old, &QUICK),
            Err(libc::ENODATA),
            "from the entry that is empty"
        );
        let to_old = QpAttr { dgid: before, ..rtr(&c.address(), &QUICK) };
        assert_eq!(
            d.connect_by(&to_old, &QUICK),
            Err(libc::ETIMEDOUT),
            "to the address that is not there"
        );
        assert!(a.poll().is_none(), "the message is lost as long as that");
        connect_ports((&c, 1), (&d, 1), 0, &QUICK);
        assert_eq!(send(&c, &d), OK, "by the link-local addresses");
        assert!(!a.has_event());
    });
}

#[test]
fn an_address_may_return_at_another_index() {
    let rule = "port-down=1ms gid=move device=softrnic0 message=1 times=1";
    Softrnic::new().faults(rule).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        // In the table before the port is active.
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, GID_CHANGE, PORT_ACTIVE]);
        assert_eq!([1, 2].map(|index| a.gid_of(1, index)), [EMPTY, mapped([10, 82, 1, 1])]);
        let (c, d) = (Node::new(0, 16), Node::new(1, 16));
        let gid = c.gid_of(1, 2);
        c.connect_by(&QpAttr { sgid_index: 2, ..rtr(&d.address(), &QUICK) }, &QUICK)
            .expect("a new connection");
        d.connect_by(&QpAttr { dgid: gid, ..rtr(&c.address(), &QUICK) }, &QUICK)
            .expect("a new connection");
        assert_eq!((send(&c, &d), send(&d, &c)), (OK, OK));
    });
}

#[test]
fn all_kinds_of_addresses_return_at_other_indices() {
    let env =
        [("SOFTRNIC_FAULTS", "port-down=1ms gid=move gid-after=1ms"), ("SOFTRNIC_GIDS", "rich")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        let before: Vec<_> = (0..6).map(|index| a.gid_of(1, index)).collect();
        connect_ports((&a, 1), (&b, 1), 3, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        let expected =
            [&[PORT_ERR][..], &[GID_CHANGE; 4], &[PORT_ACTIVE], &[GID_CHANGE; 4]].concat();
        assert_eq!(&events::<10>(&a)[..], expected);
        let after: Vec<_> = (0..10).map(|index| a.gid_of(1, index)).collect();
        assert_eq!((&after[..2], &after[6..]), (&before[..2], &before[2..]));
        assert_eq!(after[2..6], [EMPTY; 4]);
    });
}

#[test]
fn another_address_may_come_in_its_place() {
    let rule = "port-down=1ms gid=other gid-after=1ms device=softrnic0 message=1 times=1";
    Softrnic::new().faults(rule).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE, GID_CHANGE]);
        assert_eq!(a.gid_of(1, 1), mapped([10, 83, 1, 1]));
        let (c, d) = local_pair(16, &QUICK);
        assert_eq!((send(&c, &d), send(&d, &c)), (OK, OK));
    });
}

/// The devices in the list: their handles and names.
fn listed() -> Vec<(Ptr, String)> {
    let mut count = 0;
    let list = ibv_get_device_list(&mut count);
    // SAFETY: the list has so many devices, whose names are C strings.
    let one = |at| unsafe {
        let device = *list.add(at);
        (
            device,
            std::ffi::CStr::from_ptr(ibv_get_device_name(device))
                .to_str()
                .expect("UTF-8")
                .to_owned(),
        )
    };
    let all = (0..count as usize).map(one).collect();
    ibv_free_device_list(list);
    all
}

/// Their names alone.
fn names() -> Vec<String> {
    listed().into_iter().map(|(_, name)| name).collect()
}

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

/// Everything about a context that is dead.
fn assert_dead(node: &Node) {
    assert_eq!((node.state(), port_attr(node.context, 1).expect("port").state), (ERR, 1));
    let mut bytes = [0u8; 64];
    assert!(create_qp(node.pd, node.cq, node.cq, CAP).is_null() && errno() == Some(libc::EIO));
    assert!(
        ibv_reg_mr(node.pd, bytes.as_mut_ptr().cast(), 64, 1).is_null()
            && errno() == Some(libc::EIO)
    );
    assert!(ibv_alloc_pd(node.context).is_null() && errno() == Some(libc::EIO));
    let null = ptr::null_mut();
    assert!(ibv_create_cq(node.context, 1, null, null, 0).is_null() && errno() == Some(libc::EIO));
    assert_eq!(
        (to_state(node.qp, RESET), node.to_init(7), to_state(node.qp, ERR)),
        (0, libc::EIO, 0)
    );
    node.recv(5, &[]);
    assert_eq!(node.next().status, FLUSH);
}

#[test]
fn a_device_that_has_failed_can_be_opened_anew_when_it_is_back() {
    let rules = "device-fatal=200ms device=softrnic0 message=2 times=1; port-down=1ms device=softrnic0/2 times=1";
    let env = [("SOFTRNIC_FAULTS", rules), ("SOFTRNIC_PORTS", "2")];
    Softrnic::new().envs(&env).alone(|| {
        let all = listed();
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!((send(&a, &b), listed()), (OK, all.clone()));
        assert_eq!(send(&a, &b), FLUSH);
        assert_eq!(next_event(a.context), (DEVICE_FATAL, 0));
        assert_dead(&a);
        loop {
            match names() {
                names if names.len() == 1 => assert_eq!(names, ["softrnic1"]),
                names => break assert_eq!(names, ["softrnic0", "softrnic1"]),
            }
            std::thread::yield_now();
        }

        assert_dead(&a);
        for port in [1, 2] {
            let (c, d) = (Node::new(0, 16), Node::new(1, 16));
            assert_eq!(port_attr(c.context, port).expect("port").state, 4);
            connect_ports((&c, port), (&d, port), 1, &PATIENT);
            assert_eq!((send(&c, &d), d.next().status), (OK, OK));
            assert_eq!((send(&d, &c), c.next().status), (OK, OK));
            if port == 2 {
                assert_eq!(events(&c), [PORT_ERR, PORT_ACTIVE], "this port goes and comes");
            }
        }
        assert!(!a.has_event(), "a context that is dead is told nothing more");
        assert_eq!(b.next().status, OK);
        assert_eq!(send(&b, &a), RETRY_EXC, "the old connection");
        a.close();
        b.close();
        assert_eq!(ibv_close_device(ibv_open_device(all[0].0)), 0);
    });
}

#[test]
fn a_device_that_is_away_cannot_be_opened_and_one_that_failed_for_good_stays_in_the_list() {
    let rules =
        "device-fatal=1000s device=softrnic0 times=1; device-fatal device=softrnic1 times=1";
    Softrnic::new().faults(rules).alone(|| {
        let all = listed();
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!((send(&a, &b), names()), (FLUSH, vec!["softrnic1".to_owned()]));
        assert!(ibv_open_device(all[0].0).is_null());
        assert_eq!(errno(), Some(libc::EIO));
        let to_a = rtr(&a.address(), &QUICK);
        let d = Node::new(0, 16);
        assert_eq!(d.connect_by(&to_a, &QUICK), Err(libc::ETIMEDOUT), "its ports are down");
        assert_eq!((send(&b, &a), names()), (FLUSH, vec!["softrnic1".to_owned()]));
        assert!(ibv_open_device(all[1].0).is_null());
        assert_eq!(errno(), Some(libc::EIO));
    });
}

#[test]
fn a_device_may_refuse_commands_before_it_fails() {
    let rule = "device-fatal=20ms refuses=200ms device=softrnic0 message=2 times=1";
    Softrnic::new().faults(rule).alone(|| {
        let (a, mut b) = local_pair(16, &PATIENT);
        assert_eq!((send(&a, &b), b.next().status), (OK, OK));
        (0..2).for_each(|_| a.recv(1, &[]));
        assert_eq!(
            (send(&a, &b), b.next().status),
            (OK, OK),
            "the message that the rule applies to"
        );
        let mut bytes = [0u8; 64];
        let refused = Some(libc::EIO);
        assert_eq!((to_state(a.qp, ERR), a.state()), (libc::EIO, RTS));
        assert!(create_qp(a.pd, a.cq, a.cq, CAP).is_null() && errno() == refused);
        assert!(ibv_reg_mr(a.pd, bytes.as_mut_ptr().cast(), 64, 1).is_null() && errno() == refused);
        assert!(port_attr(a.context, 1).is_err());
        assert!(ibv_open_device(listed()[0].0).is_null() && errno() == refused);
        // What is destroyed goes on.
        assert_eq!((ibv_destroy_qp(a.qp), ibv_dereg_mr(a.mr)), (0, 0));
        b.memory[..8].fill(7);
        let to = a.at(0);
        b.send(Work { opcode: WRITE, sges: &[b.sge(0, 8)], to, ..WORK });
        assert_eq!((b.next().status, a.memory[..8].to_vec()), (OK, vec![7; 8]));
        assert!(!a.has_event(), "it has not failed yet");
        assert_eq!(next_event(a.context), (DEVICE_FATAL, 0));
        assert_eq!((a.next().status, a.next().status), (FLUSH, FLUSH));
        while ibv_open_device(listed().first().expect("softrnic1").0).is_null() {
            std::thread::yield_now();
        }
        std::mem::forget(a);
    });
}

#[test]
fn on_a_device_that_has_failed_it_may_be_that_nothing_completes() {
    let rule = "device-fatal device=softrnic0 message=2 times=1";
    let env = [("SOFTRNIC_FAULTS", rule), ("SOFTRNIC_SILENT_FAILURE", "1")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        assert_eq!((send(&a, &b), b.next().status), (OK, OK));
        (0..2).for_each(|_| a.recv(1, &[]));
        (0..2).for_each(|_| a.send(Work { opcode: SEND, ..WORK }));
        assert_eq!(next_event(a.context), (DEVICE_FATAL, 0));
        a.recv(1, &[]);
        assert_eq!(to_state(a.qp, ERR), 0);
        assert!(a.poll().is_none());
        // The other device works on.
        assert_eq!(send(&b, &a), RETRY_EXC);
        assert!(a.poll().is_none());
    });
}

#[test]
fn all_devices_may_have_one_node_guid() {
    Softrnic::new().env("SOFTRNIC_SAME_GUID", "1").alone(|| {
        let guids: Vec<_> =
            listed().into_iter().map(|(device, _)| ibv_get_device_guid(device)).collect();
        assert!(guids[0] == guids[1] && guids[0] != 0, "{guids:?}");
    });
}

/// The process that failed the device ends; the device is back all the same.
#[test]
fn a_device_is_back_though_the_process_that_lost_it_is_gone() {
    let rule = "device-fatal=20ms device=softrnic0 times=1";
    Softrnic::new().faults(rule).pair(|side, mut socket| {
        let device = listed()[0].0;
        if side == 0 {
            let (a, b) = local_pair(16, &QUICK);
            socket.barrier();
            assert_eq!(send(&a, &b), FLUSH);
            // With its timers.
            exit_without_handlers();
        }
        socket.barrier();
        assert_eq!(socket.try_recv::<u8>(), None, "the other side has ended");
        let end = Instant::now() + Duration::from_secs(60);
        while ibv_open_device(device).is_null() {
            assert!(Instant::now() < end, "the device is not back");
            std::thread::yield_now();
        }
        assert_eq!(names().len(), 2);
    });
}

/// What a read over a queue pair that is connected with itself comes to while its port is down, and
/// what a write to a peer.
fn read_while_down() -> (u32, u32) {
    let mut own = Node::new(0, 16);
    own.connect(&own.address(), &QUICK);
    let (a, b) = local_pair(16, &QUICK);
    a.send(WORK);
    assert_eq!(next_event(a.context), (PORT_ERR, 1));
    own.memory[..8].fill(7);
    let to = own.at(0);
    own.send(Work { opcode: READ, sges: &[own.sge(8, 8)], to, ..WORK });
    let status = own.next().status;
    assert_eq!(own.memory[8] == 7, status == OK);
    drop(b);
    (status, a.next().status)
}

#[test]
fn a_queue_pair_connected_with_itself_works_while_its_port_is_down() {
    let env = [("SOFTRNIC_FAULTS", "port-down peer=softrnic1")];
    Softrnic::new().envs(&env).alone(|| {
        assert_eq!(read_while_down(), (OK, RETRY_EXC));
    });
}

#[test]
fn packets_to_the_same_queue_pair_may_be_lost_with_the_port() {
    let env = [("SOFTRNIC_FAULTS", "port-down peer=softrnic1"), ("SOFTRNIC_LOOPBACK_DOWN", "lost")];
    Softrnic::new().envs(&env).alone(|| {
        assert_eq!(read_while_down(), (RETRY_EXC, RETRY_EXC));
    });
}

#[test]
fn receiver_not_ready_waits_and_then_delivers() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &Terms { timeout: 1, retry_cnt: 0, ..TERMS });
        a.memory[..8].fill(7);
        a.send(Work { opcode: SEND_IMM, imm: 5, sges: &[a.sge(0, 8)], ..WORK });
        // 7 is "for ever": far longer than the retry timeout of 8 us, and nobody polls.
        std::thread::sleep(Duration::from_millis(50));
        assert!(a.poll().is_none());
        b.recv(3, &[b.sge(0, 8)]);
        // The service thread delivers: nobody polls.
        let end = Instant::now() + Duration::from_secs(60);
        // SAFETY: the device writes there; a volatile read of our own memory.
        while unsafe { b.memory.as_ptr().add(7).read_volatile() } != 7 {
            assert!(Instant::now() < end, "not delivered without a poll");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((b.next().imm, a.next().status), (5, OK));
    });
}

#[test]
fn receiver_not_ready_for_too_long() {
    Softrnic::new().alone(|| {
        let terms = Terms { rnr_retry: 3, min_rnr_timer: 20, ..TERMS };
        let (a, b) = local_pair(64, &terms);
        let start = Instant::now();
        a.send(Work { opcode: SEND, flags: 0, ..WORK });
        assert_eq!(a.next().status, RNR_EXC);
        let waited = start.elapsed();
        assert!(waited >= Duration::from_micros(3 * 10_240), "3 x 10.24 ms, but {waited:?}");
        b.assert_unharmed();
    });
}

#[test]
fn nobody_answers() {
    Softrnic::new().alone(|| {
        type Spoil = fn(&Node);
        let spoils: [(&str, Spoil); 3] = [
            ("peer in reset", |b| assert_eq!(to_state(b.qp, RESET), 0)),
            ("peer in error", |b| assert_eq!(to_state(b.qp, ERR), 0)),
            ("peer destroyed", |b| assert_eq!(ibv_destroy_qp(b.qp), 0)),
        ];
        for (what, spoil) in spoils {
            let (a, b) = local_pair(64, &TERMS);
            spoil(&b);
            let start = Instant::now();
            a.send(Work { id: 4, flags: 0, ..WORK });
            let wc = a.next();
            assert_eq!((wc.wr_id, wc.status), (4, RETRY_EXC), "{what}");
            // 4.19 ms, four times.
            assert!(
                start.elapsed() >= Duration::from_micros(4 * 4194),
                "{what}: {:?}",
                start.elapsed()
            );
            assert!(!b.has_event(), "the peer gets no event");
        }
    });
}

#[test]
fn somebody_else_is_addressed() {
    Softrnic::new().alone(|| {
        let terms = TERMS;
        // Wrong packet sequence number.
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let mut peer = a.address();
        peer.psn += 1;
        b.connect(&peer, &terms);
        a.connect(&b.address(), &terms);
        a.send(WORK);
        assert_eq!(a.next().status, RETRY_EXC, "PSN");
        assert_eq!(b.state(), RTS);
        // Right QP number, wrong device. (Numbers repeat across devices: with equal ones, `a` would
        // reach itself.)
        let (a, _other, b) = (Node::new(0, 64), Node::new(1, 64), Node::new(1, 64));
        assert_ne!(a.qpn(), b.qpn());
        b.connect(&a.address(), &terms);
        let peer = Address { gid: a.gid, ..b.address() };
        a.connect(&peer, &terms);
        a.send(WORK);
        assert_eq!(a.next().status, RETRY_EXC, "GID");
        // Connected, but not with us.
        let (a, b, mut c) = (Node::new(0, 64), Node::new(1, 64), Node::new(0, 64));
        c.psn = a.psn;
        b.connect(&c.address(), &terms);
        a.connect(&b.address(), &terms);
        a.send(WORK);
        assert_eq!(a.next().status, RETRY_EXC, "not connected back");
    });
}

#[test]
fn a_peer_that_is_late_is_reached_by_a_retry() {
    Softrnic::new().alone(|| {
        // 4.096 us x 2^17 x 8 = 4.3 s to be late in.
        let terms = Terms { timeout: 17, retry_cnt: 7, ..TERMS };
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        a.connect(&b.address(), &terms);
        a.send(WORK);
        assert!(a.poll().is_none());
        b.connect(&a.address(), &terms);
        assert_eq!(a.next().status, OK);
    });
}

#[test]
fn time_scale_shortens_timeouts() {
    // 4.096 us x 2^20 = 4.3 s, eight times, scaled to 34 ms.
    Softrnic::new().env("SOFTRNIC_TIME_SCALE", "0.001").alone(|| {
        let (a, b) = local_pair(64, &Terms { timeout: 20, retry_cnt: 7, ..TERMS });
        assert_eq!(to_state(b.qp, RESET), 0);
        let start = Instant::now();
        a.send(WORK);
        assert_eq!(a.next().status, RETRY_EXC);
        let waited = start.elapsed();
        assert!(
            waited >= Duration::from_millis(34) && waited < Duration::from_secs(30),
            "{waited:?}"
        );
    });
}

/// Sends again after 67 ms, 7 times.
const TRANSMISSIONS_PATIENT: Terms = Terms { timeout: 14, retry_cnt: 7, ..QUICK };

/// A write of all of `a`'s memory, `value` each.
fn write(a: &mut Node, b: &Node, value: u8) {
    a.memory.fill(value);
    let sges = [a.sge(0, a.memory.len())];
    a.send(Work { sges: &sges, to: b.at(0), ..WORK });
}

#[test]
fn a_rule_ends_by_itself() {
    let rules = "drop attempts=all flow=0 for=1000s; drop attempts=all flow=1 for=50ms";
    Softrnic::new().faults(rules).alone(|| {
        let (mut a, b) = local_pair(16, &QUICK);
        write(&mut a, &b, 1);
        assert_eq!(a.next().status, RETRY_EXC, "the rule of flow 0 is in force");
        let (mut c, d) = local_pair(16, &TRANSMISSIONS_PATIENT);
        let begin = Instant::now();
        write(&mut c, &d, 2);
        assert_eq!((c.next().status, d.memory[0]), (OK, 2), "the rule of flow 1 has ended");
        // A lower bound: no machine is too slow for it.
        assert!(
            begin.elapsed() >= Duration::from_millis(67),
            "lost at first, {:?}",
            begin.elapsed()
        );
    });
}

/// Cut after 5000 of 9000 bytes, for good: directly and through the stage.
fn cut_for_good() {
    let (mut a, b) = local_pair(9000, &QUICK);
    b.recv(7, &[]);
    a.memory.fill(1);
    let to = b.at(0);
    a.send(Work { opcode: WRITE_IMM, sges: &[a.sge(0, 4000), a.sge(4000, 5000)], to, ..WORK });
    assert_eq!((a.next().status, a.state()), (RETRY_EXC, ERR));
    let placed = b.memory.iter().position(|byte| *byte == 0);
    assert_eq!((placed, b.memory[5000..].iter().all(|byte| *byte == 0)), (Some(5000), true));
    b.assert_unharmed();
}

#[test]
fn of_a_message_that_is_cut_the_beginning_arrives() {
    Softrnic::new().faults("cut=5000 attempts=all").alone(cut_for_good);
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
        let (mut a, mut b) = local_pair(64, &Terms { access: 15, ..TERMS });
        for value in 1..=3 {
            write(&mut a, &b, value);
            assert_eq!(a.next().status, OK);
            assert!(b.memory.iter().all(|byte| *byte == value), "message {value}");
        }
        b.memory.fill(4);
        let to = b.at(0);
        a.send(Work { opcode: READ, sges: &[a.sge(0, 64)], to, ..WORK });
        assert_eq!(a.next().status, OK);
        assert!(a.memory.iter().all(|byte| *byte == 4));
        // A send that is cut keeps its receive.
        b.recv(8, &[b.sge(0, 64)]);
        a.memory.fill(5);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 64)], ..WORK });
        assert_eq!((a.next().status, b.next().wr_id), (OK, 8));
        assert!(b.memory.iter().all(|byte| *byte == 5) && b.poll().is_none());
    });
}

#[test]
fn of_a_read_that_is_cut_the_beginning_arrives_and_of_an_atomic_nothing() {
    Softrnic::new().faults("cut=3 attempts=all").alone(|| {
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
            let (mut sge, mut bad) = (a.sge(0, 8), ptr::null_mut());
            // An atomic has its operands where a READ has its key, and the key behind them.
            let is_read = opcode == READ;
            let (first, rest) = if is_read { (key, [0; 3]) } else { (1, [0, key, 0]) };
            let mut request = SendWr {
                wr_id: 1,
                next: ptr::null_mut(),
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
        let to = b.at(0);
        for (id, opcode) in [WRITE, WRITE_IMM, SEND].into_iter().enumerate() {
            a.send(Work { id: id as u64, opcode, sges: &[a.sge(0, 16)], to, ..WORK });
            assert_eq!((a.next().status, b.memory[0]), (OK, 0), "{id}");
            b.assert_unharmed();
        }
        // A read is answered.
        a.send(Work { opcode: READ, sges: &[a.sge(0, 16)], to, ..WORK });
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
        a.send(Work { sges: &[a.sge(0, 16)], to: (b.address().addr, 1), ..WORK });
        assert_eq!((a.next().status, b.state()), (REM_ACCESS, ERR));
    });
}

/// The rules that concern a queue pair are found once for each connection that it has.
#[test]
fn the_rules_of_a_connection_are_not_those_of_the_next_one() {
    Softrnic::new().faults("drop attempts=all flow=1 device=softrnic0").alone(|| {
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
