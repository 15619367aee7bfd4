//! Ports, link layers, and the addresses by which queue pairs find each other.

use std::mem::transmute_copy;

use crate::common::node::{Node, Terms, Work, connect_ports, modify, open, rtr};
use crate::common::verbs::*;
use testkit::side::enter;
use testkit::softrnic::Softrnic;

const QUICK: Terms = Terms { timeout: 8, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };

/// What a request from `a` to `b` comes to.
fn send(a: &Node, b: &Node) -> u32 {
    b.recv(1, &[]);
    a.send(Work { opcode: SEND, ..Work::default() });
    a.next().status
}

#[test]
fn attributes_say_what_was_asked_for() {
    let env = [
        ("SOFTRNIC_DEVICES", "3"),
        ("SOFTRNIC_PORTS", "2"),
        ("SOFTRNIC_CARD", "2"),
        ("SOFTRNIC_SPEED", "400,softrnic0/2=100,softrnic1/1=800,softrnic1/2=56,2/1=25"),
        ("SOFTRNIC_MTU", "softrnic1/1=1024"),
        ("SOFTRNIC_LINK", "roce,softrnic2/2=ib"),
    ];
    Softrnic::new().envs(&env).alone(|| {
        // SAFETY: the function's type in the verbs interface.
        let speed: unsafe extern "C" fn(Ptr, u32, *mut u64) -> i32 =
            unsafe { transmute_copy(&symbol("ibv_query_port_speed", "IBVERBS_1.16")) };
        // Device, port; width, speed code, extended code; 100 Mb/s; MTU code; link layer.
        let expected = [
            (0, 1, 2, 128, 128, 4000, 5, 2),
            (0, 2, 2, 32, 32, 1000, 5, 2),
            (1, 1, 2, 128, 256, 8000, 3, 2),
            (1, 2, 2, 16, 16, 560, 5, 2),
            (2, 1, 1, 32, 32, 250, 5, 2),
            (2, 2, 2, 128, 128, 4000, 5, 1),
        ];
        for (device, port, width, code, code_ex, hundreds, mtu, layer) in expected {
            let context = open(device);
            let attr = port_attr(context, port).expect("port");
            assert_eq!((attr.active_width, attr.active_speed, attr.active_speed_ex), (width, code, code_ex));
            assert_eq!((attr.active_mtu, attr.link_layer, attr.state, attr.phys_state), (mtu, layer, 4, 5));
            assert_eq!((attr.lid != 0, attr.sm_lid != 0, attr.flags), (layer == 1, layer == 1, u8::from(layer == 2)));
            let mut value = 0;
            // SAFETY: an open context.
            assert_eq!(unsafe { speed(context, u32::from(port), &mut value) }, 0);
            assert_eq!(value, hundreds);
            assert_eq!(port_attr(context, 0), Err(libc::EINVAL));
            assert_eq!(port_attr(context, 3), Err(libc::EINVAL));
            let mut gid = [0; 16];
            assert_eq!(ibv_query_gid(context, 3, 0, &mut gid), -1);
        }
        assert_eq!(cards(3), [0, 0, 2], "devices 0 and 1 are one card");
    });
}

/// For each device the first one with the same system image GUID; checks GUID and port count on the way.
fn cards(devices: usize) -> Vec<usize> {
    let mut seen: Vec<[u8; 8]> = Vec::new();
    let image = |device: usize| {
        let mut attr = [0u8; 232];
        assert_eq!(ibv_query_device(open(device), attr.as_mut_ptr().cast()), 0);
        assert_eq!(attr[227], 2, "ports");
        seen.push(attr[64..72].try_into().expect("8 bytes"));
        <[u8; 8]>::try_from(&attr[72..80]).expect("8 bytes")
    };
    let images: Vec<_> = (0..devices).map(image).collect();
    seen.dedup();
    assert_eq!(seen.len(), devices, "every device has its own GUID");
    images.iter().map(|image| images.iter().position(|other| other == image).expect("itself")).collect()
}

#[test]
fn both_ports_carry_data() {
    Softrnic::new().ports(2).alone(|| {
        for (from, to) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            connect_ports((&a, from), (&b, to), 1, &QUICK);
            assert_eq!(send(&a, &b), OK, "{from} -> {to}");
            assert_eq!(b.next().status, OK);
            a.close();
            b.close();
        }
        let a = Node::new(0, 64);
        let init = QpAttr { state: INIT, port: 3, access: 7, ..QpAttr::default() };
        assert_eq!(modify(a.qp, &init, INIT_MASK), libc::EINVAL, "no port 3");
        assert_eq!(modify(a.qp, &QpAttr { port: 2, ..init }, INIT_MASK), 0);
        assert_eq!(a.to_rtr(&a.address(), &QUICK), libc::EINVAL, "an address vector of another port");
    });
}

#[test]
fn a_queue_pair_is_found_at_its_own_port_only() {
    Softrnic::new().ports(2).alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        // B sits at port 2, and A looks for it at port 1.
        a.connect_by(&rtr(&b.address(), &QUICK), &QUICK).expect("connect");
        let vector = QpAttr { ah_port: 2, ..rtr(&a.address(), &QUICK) };
        b.connect_by(&vector, &QUICK).expect("connect");
        assert_eq!(send(&a, &b), RETRY_EXC);
        // B's packets come from a port that A is not connected to.
        assert_eq!(send(&b, &a), RETRY_EXC);
    });
}

#[test]
fn infiniband_goes_by_lid() {
    Softrnic::new().link("ib").ports(2).pair(|side, mut socket| {
        let node = Node::new(side, 64);
        let attr = port_attr(node.context, 2).expect("port");
        let (lid, peer) = (attr.lid, socket.swap(&node.address()));
        let peer_lid: u16 = socket.swap(&lid);
        assert!(lid != 0 && peer_lid != 0 && lid != peer_lid);
        assert_eq!(node.gid_of(2, 0)[0], u64::from_ne_bytes([0xfe, 0x80, 0, 0, 0, 0, 0, 0]));
        assert_eq!(node.gid_of(2, 1), [0, 0], "one GID");
        let gid: [u64; 2] = socket.swap(&node.gid_of(2, 0));
        let local = QpAttr { is_global: 0, dlid: peer_lid, ah_port: 2, ..rtr(&peer, &QUICK) };
        let global = QpAttr { is_global: 1, sgid_index: 0, dgid: gid, ..local };
        let no_source = QpAttr { sgid_index: 1, ..global };
        let astray = QpAttr { dlid: 999, ..local };
        let wrong_gid = QpAttr { dgid: [gid[0], 1], ..global };
        for (vector, status) in [(local, OK), (global, OK), (astray, RETRY_EXC), (wrong_gid, RETRY_EXC)] {
            assert_eq!(node.connect_by(&vector, &QUICK), Ok(()));
            socket.barrier();
            node.recv(5, &[]);
            socket.barrier();
            node.send(Work { opcode: SEND, ..Work::default() });
            let first = node.next();
            let sent = if first.wr_id == 5 && status == OK { node.next() } else { first };
            assert_eq!(sent.status, status, "{vector:?}");
            socket.barrier();
            assert_eq!(modify(node.qp, &QpAttr::default(), 1), 0, "reset");
            socket.barrier();
        }
        assert_eq!(node.connect_by(&no_source, &QUICK), Err(libc::ENODATA), "an empty GID entry");
    });
}

#[test]
fn rich_tables_have_both_kinds_of_every_address() {
    Softrnic::new().gids("rich").alone(|| {
        type All = unsafe extern "C" fn(Ptr, Ptr, usize, u32, usize) -> isize;
        // SAFETY: the function's type in the verbs interface.
        let all: All = unsafe { transmute_copy(&symbol("_ibv_query_gid_table", "IBVERBS_1.11")) };
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let mut table = [[0u8; 32]; 16];
        // SAFETY: sixteen entries of 32 bytes.
        assert_eq!(unsafe { all(a.context, table.as_mut_ptr().cast(), 16, 0, 32) }, 6);
        for (index, entry) in table[..6].iter().enumerate() {
            assert_eq!((entry[16], entry[24]), (index as u8, 1 + index as u8 % 2), "index and type");
            assert_eq!(entry[..16], table[index & !1][..16], "pairs of one address");
        }
        let starts = [[0xfe, 0x80, 0], [0, 0, 0], [0xfd, 0x52, 0x4e]];
        assert!(starts.iter().enumerate().all(|(i, start)| table[2 * i][..3] == *start));
        for index in 0..6 {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            connect_ports((&a, 1), (&b, 1), index, &QUICK);
            assert_eq!(send(&a, &b), OK, "entry {index}");
        }
        // Source and target of different families, and targets that nobody has.
        let vector = |dgid, sgid_index| QpAttr { dgid, sgid_index, ..rtr(&b.address(), &QUICK) };
        let (local, mapped, global) = (b.gid_of(1, 1), b.gid_of(1, 3), b.gid_of(1, 5));
        let nobody = |gid: [u64; 2]| [gid[0], gid[1] ^ u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 0x40])];
        assert_eq!(a.connect_by(&vector(global, 3), &QUICK), Err(libc::EINVAL), "IPv4 to IPv6");
        assert_eq!(modify(a.qp, &vector(mapped, 1), RTR_MASK), libc::EINVAL, "link-local to IPv4");
        assert_eq!(modify(a.qp, &vector(mapped, 5), RTR_MASK), libc::EINVAL, "IPv6 to IPv4");
        for (gid, index) in [(local, 1), (mapped, 3), (global, 5)] {
            assert_eq!(modify(a.qp, &vector(nobody(gid), index), RTR_MASK), libc::ETIMEDOUT, "{gid:x?}");
        }
        assert_eq!(modify(a.qp, &vector(global, 1), RTR_MASK), 0, "IPv6 to IPv6");
    });
}

/// Ports 1 and 2 are in `10.82.1.…` and `10.82.2.…`. What the step to RTR from one to the other gives where so many bits make a network.
fn to_the_other_port(bits: &str, expected: i32) {
    Softrnic::new().ports(2).env("SOFTRNIC_NETWORK_BITS", bits).alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        assert_eq!(a.to_init(7), 0);
        let to = |port| QpAttr { dgid: b.gid_of(port, 1), sgid_index: 1, ..rtr(&b.address(), &QUICK) };
        assert_eq!(modify(a.qp, &to(2), RTR_MASK), expected);
        if expected != 0 {
            assert_eq!(modify(a.qp, &to(1), RTR_MASK), 0, "the own network");
        }
    });
}

#[test]
fn an_address_of_another_network_cannot_be_resolved_where_no_router_joins_the_two() {
    to_the_other_port("24", libc::ETIMEDOUT);
}

#[test]
fn an_address_of_the_same_network_is_resolved() {
    to_the_other_port("16", 0);
}

#[test]
fn large_messages_vanish_where_the_mtu_is_too_small() {
    let env = [("SOFTRNIC_MTU", "4096,softrnic1/1=1024")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = (Node::new(0, 4096), Node::new(1, 4096));
        connect_ports((&a, 1), (&b, 1), 1, &QUICK);
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { sges: &[a.sge(0, 1024)], to, ..Work::default() });
        assert_eq!(a.next().status, OK);
        a.send(Work { sges: &[a.sge(0, 1025)], to, ..Work::default() });
        assert_eq!(a.next().status, RETRY_EXC);
    });
}

#[test]
fn a_port_may_have_no_link_layer() {
    Softrnic::new().link("roce,softrnic1/1=unspecified").alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let layers = [&a, &b].map(|node| port_attr(node.context, 1).expect("port").link_layer);
        assert_eq!(layers, [2, 0]);
        connect_ports((&a, 1), (&b, 1), 1, &QUICK);
        assert_eq!(send(&a, &b), OK);
    });
}

#[test]
fn the_first_process_decides_the_shape() {
    enter(|_, mut socket| {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        let ports = if list.is_null() { 0 } else { u8::from(port_attr(open(0), 2).is_ok()) + 1 };
        socket.send(&(if list.is_null() { -1 } else { count }, ports));
        let _: u8 = socket.recv();
    });
    let softrnic = Softrnic::new();
    let start = |env: &[(&str, &str)]| {
        let (process, mut socket) = softrnic.start(0, env);
        let found: (i32, u8) = socket.recv();
        (process, socket, found)
    };
    let (first, mut to_first, found) = start(&[("SOFTRNIC_DEVICES", "3"), ("SOFTRNIC_PORTS", "2")]);
    assert_eq!(found, (3, 2));
    for (env, expected) in [
        (&[][..], (3, 2)),
        (&[("SOFTRNIC_DEVICES", "3"), ("SOFTRNIC_SPEED", "400")][..], (3, 2)),
        (&[("SOFTRNIC_DEVICES", "2")][..], (-1, 0)),
        (&[("SOFTRNIC_SPEED", "400,softrnic2/2=100")][..], (-1, 0)),
        (&[("SOFTRNIC_GIDS", "rich")][..], (-1, 0)),
    ] {
        let (process, mut socket, found) = start(env);
        assert_eq!(found, expected, "{env:?}");
        socket.send(&1u8);
        let ended = process.ended();
        if expected.0 < 0 {
            let (name, value) = env[0];
            let says = |what: &str| ended.output.contains(what);
            assert!(says(name) && says(value) && says("unset it") && says("SOFTRNIC_FABRIC"), "{ended}");
        }
    }
    to_first.send(&1u8);
    first.finish();
    softrnic.assert_clean();
    // No process is left in the fabric, so the next one decides anew.
    let (next, mut socket, found) = start(&[("SOFTRNIC_DEVICES", "2")]);
    assert_eq!(found, (2, 1));
    socket.send(&1u8);
    next.finish();
}
