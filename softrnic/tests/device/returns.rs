//! Ports and devices that go by a fault rule and come back by themselves, ports with their addresses or others.

use std::time::{Duration, Instant};

use crate::common::node::{CAP, Node, Terms, Work, connect_ports, create_qp, local_pair, rtr, to_state};
use crate::common::verbs::*;
use testkit::side::exit_without_handlers;
use testkit::softrnic::Softrnic;

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
    a.send(Work { opcode: SEND, ..Work::default() });
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
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!(events(&a), [PORT_ERR, GID_CHANGE, PORT_ACTIVE]);
        assert_eq!(port_attr(a.context, 1).expect("port").state, 4);
        assert_ne!(a.gid_of(1, 0), EMPTY);
        assert_eq!(a.gid_of(1, 1), EMPTY);
        let by_old = rtr(&d.address(), &QUICK);
        assert_eq!(c.connect_by(&by_old, &QUICK), Err(libc::ENODATA), "from the entry that is empty");
        let to_old = QpAttr { dgid: before, ..rtr(&c.address(), &QUICK) };
        assert_eq!(d.connect_by(&to_old, &QUICK), Err(libc::ETIMEDOUT), "to the address that is not there");
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
        c.connect_by(&QpAttr { sgid_index: 2, ..rtr(&d.address(), &QUICK) }, &QUICK).expect("a new connection");
        d.connect_by(&QpAttr { dgid: gid, ..rtr(&c.address(), &QUICK) }, &QUICK).expect("a new connection");
        assert_eq!((send(&c, &d), send(&d, &c)), (OK, OK));
    });
}

#[test]
fn all_kinds_of_addresses_return_at_other_indices() {
    let env = [("SOFTRNIC_FAULTS", "port-down=1ms gid=move gid-after=1ms"), ("SOFTRNIC_GIDS", "rich")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        let before: Vec<_> = (0..6).map(|index| a.gid_of(1, index)).collect();
        connect_ports((&a, 1), (&b, 1), 3, &QUICK);
        assert_eq!(send(&a, &b), RETRY_EXC);
        let expected = [&[PORT_ERR][..], &[GID_CHANGE; 4], &[PORT_ACTIVE], &[GID_CHANGE; 4]].concat();
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
        (device, std::ffi::CStr::from_ptr(ibv_get_device_name(device)).to_str().expect("UTF-8").to_owned())
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
    assert!(ibv_reg_mr(node.pd, bytes.as_mut_ptr().cast(), 64, 1).is_null() && errno() == Some(libc::EIO));
    assert!(ibv_alloc_pd(node.context).is_null() && errno() == Some(libc::EIO));
    let null = std::ptr::null_mut();
    assert!(ibv_create_cq(node.context, 1, null, null, 0).is_null() && errno() == Some(libc::EIO));
    assert_eq!((to_state(node.qp, RESET), node.to_init(7), to_state(node.qp, ERR)), (0, libc::EIO, 0));
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
    let rules = "device-fatal=1000s device=softrnic0 times=1; device-fatal device=softrnic1 times=1";
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
        assert_eq!((send(&a, &b), b.next().status), (OK, OK), "the message that the rule applies to");
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
        let to = (a.address().addr, a.address().rkey);
        b.send(Work { opcode: WRITE, sges: &[b.sge(0, 8)], to, ..Work::default() });
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
        (0..2).for_each(|_| a.send(Work { opcode: SEND, ..Work::default() }));
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
        let guids: Vec<_> = listed().into_iter().map(|(device, _)| ibv_get_device_guid(device)).collect();
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

/// What a read over a queue pair that is connected with itself comes to while its port is down, and what a write to a peer.
fn read_while_down() -> (u32, u32) {
    let mut own = Node::new(0, 16);
    own.connect(&own.address(), &QUICK);
    let (a, b) = local_pair(16, &QUICK);
    a.send(Work::default());
    assert_eq!(next_event(a.context), (PORT_ERR, 1));
    own.memory[..8].fill(7);
    let to = (own.address().addr, own.address().rkey);
    own.send(Work { opcode: READ, sges: &[own.sge(8, 8)], to, ..Work::default() });
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
