//! A network that changes while programs use it: ports go down and up, addresses come and go, devices fail.

use std::ptr;

use crate::common::node::{CAP, Node, Terms, Work, connect_ports, create_qp, local_pair, modify, open, rtr, to_state};
use crate::common::verbs::*;
use crate::program::{control, refused};
use testkit::softrnic::Softrnic;

const QUICK: Terms = Terms { timeout: 8, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Gives up after 8.6 s.
const PATIENT: Terms = Terms { timeout: 18, retry_cnt: 7, ..QUICK };

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

#[test]
fn a_short_outage_is_survived() {
    Softrnic::new().alone(|| {
        for port in ["softrnic0/1", "rnic1/1"] {
            let (a, b) = local_pair(64, &PATIENT);
            b.recv(1, &[]);
            control(&["port", port, "down"]);
            a.send(Work { opcode: SEND, ..Work::default() });
            assert!(a.poll().is_none(), "{port}: nothing gets through");
            control(&["port", port, "up"]);
            assert_eq!((a.next().status, b.next().status), (OK, OK), "{port}");
            assert_eq!((a.state(), b.state()), (RTS, RTS));
        }
    });
}

#[test]
fn a_long_outage_ends_in_an_error_of_the_sender_alone() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &QUICK);
        b.recv(1, &[]);
        control(&["port", "0/1", "down"]);
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!(a.next().status, RETRY_EXC);
        control(&["port", "0/1", "up"]);
        assert_eq!((a.state(), b.state()), (ERR, RTS));
        assert!(b.poll().is_none() && !has_event(b.context, 50), "the peer has neither completion nor event");
    });
}

#[test]
fn connecting_needs_both_ports_up() {
    Softrnic::new().alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        for port in ["0/1", "1/1"] {
            control(&["port", port, "down"]);
            assert_eq!(a.connect_by(&rtr(&b.address(), &QUICK), &QUICK), Err(libc::ETIMEDOUT), "{port}");
            control(&["port", port, "up"]);
        }
        assert_eq!(a.connect_by(&rtr(&b.address(), &QUICK), &QUICK), Ok(()));
    });
}

#[test]
fn port_events_reach_every_process_in_order() {
    Softrnic::new().ports(2).pair(|side, mut socket| {
        let (first, second, other) = (open(0), open(0), open(1));
        socket.barrier();
        if side == 0 {
            for change in [
                &["port", "0/2", "down"][..],
                &["port", "0/2", "down"][..],
                &["port", "0/2", "up"][..],
                &["gid", "0/1", "add", "5", "::ffff:10.0.0.1", "v2"][..],
            ] {
                control(change);
            }
        }
        for context in [first, second] {
            assert_eq!(next_event(context), (PORT_ERR, 2));
            assert_eq!(next_event(context), (PORT_ACTIVE, 2));
            assert_eq!(next_event(context), (GID_CHANGE, 1));
            assert!(!has_event(context, 50), "no event where nothing changes");
        }
        assert_eq!(port_attr(first, 2).expect("port").state, 4);
        assert!(!has_event(other, 0), "another device");
        assert!(!has_event(open(0), 50), "opened afterwards");
        socket.barrier();
    });
}

#[test]
fn the_state_is_there_before_the_event() {
    Softrnic::new().alone(|| {
        let context = open(0);
        for (word, event, state, phys) in [("down", PORT_ERR, 1, 3), ("up", PORT_ACTIVE, 4, 5)] {
            let change = std::thread::spawn(move || control(&["port", "0/1", word]));
            assert_eq!(next_event(context), (event, 1));
            let attr = port_attr(context, 1).expect("port");
            assert_eq!((attr.state, attr.phys_state), (state, phys));
            change.join().expect("the change");
        }
    });
}

#[test]
fn limits_of_a_port_change_at_once() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(4096, &QUICK);
        control(&["port", "1/1", "--mtu", "512", "--speed", "100", "--latency-us", "1.5", "--bandwidth", "12.5"]);
        let attr = port_attr(b.context, 1).expect("port");
        assert_eq!((attr.active_mtu, attr.active_speed, attr.active_width), (2, 32, 2));
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { sges: &[a.sge(0, 513)], to, ..Work::default() });
        assert_eq!(a.next().status, RETRY_EXC);
        let seen: serde_json::Value = serde_json::from_str(&control(&["stat", "--json"])).expect("JSON");
        let port = &seen["devices"][1]["ports"][0];
        assert_eq!(
            (port["latency_ns"].as_u64(), port["bytes_per_second"].as_u64()),
            (Some(1500), Some(12_500_000_000))
        );
        assert_eq!((port["mtu"].as_u64(), port["gbps"].as_u64()), (Some(512), Some(100)));
    });
}

#[test]
fn packets_need_their_gid_at_both_ends() {
    Softrnic::new().gids("rich").alone(|| {
        // Entries 2 and 3 are one address, as RoCE v1 and v2. What is done to them, and what a packet comes to.
        let cases: [(u8, &[&str], u32); 6] = [
            (2, &["gid", "1/1", "remove", "3"], OK),
            (3, &["gid", "1/1", "remove", "3"], RETRY_EXC),
            (2, &["gid", "1/1", "remove", "2"], RETRY_EXC),
            (2, &["gid", "0/1", "remove", "2"], RETRY_EXC),
            (3, &["gid", "0/1", "add", "3", "::ffff:10.0.0.7", "v2"], RETRY_EXC),
            (3, &["gid", "0/1", "add", "3", "::ffff:10.82.1.1", "v1"], RETRY_EXC),
        ];
        for (index, change, status) in cases {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            connect_ports((&a, 1), (&b, 1), index, &QUICK);
            b.recv(1, &[]);
            control(change);
            a.send(Work { opcode: SEND, ..Work::default() });
            assert_eq!(a.next().status, status, "{index}: {change:?}");
            for (port, last) in [("0/1", "1"), ("1/1", "2")] {
                let gid = format!("::ffff:10.82.1.{last}");
                control(&["gid", port, "add", "2", &gid, "v1"]);
                control(&["gid", port, "add", "3", &gid, "v2"]);
            }
        }
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        control(&["gid", "1/1", "add", "9", "::ffff:10.9.9.9"]);
        let vector = QpAttr { dgid: b.gid_of(1, 9), sgid_index: 3, ..rtr(&b.address(), &QUICK) };
        a.connect_by(&vector, &QUICK).expect("a new address");
        control(&["gid", "0/1", "remove", "3"]);
        let (c, d) = (Node::new(0, 64), &b);
        let vector = QpAttr { sgid_index: 3, dgid: d.gid_of(1, 3), ..rtr(&d.address(), &QUICK) };
        assert_eq!(c.connect_by(&vector, &QUICK), Err(libc::ENODATA), "an entry that has become empty");
    });
}

#[test]
fn another_lid_is_another_address() {
    Softrnic::new().link("ib").alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let lid = |node: &Node| port_attr(node.context, 1).expect("port").lid;
        for (node, peer) in [(&a, &b), (&b, &a)] {
            let vector = QpAttr { is_global: 0, dlid: lid(peer), ..rtr(&peer.address(), &QUICK) };
            node.connect_by(&vector, &QUICK).expect("connect");
        }
        a.send(Work::default());
        assert_eq!(a.next().status, OK);
        let told = refused(&["port", "1/1", "--lid", &lid(&a).to_string()]);
        assert!(told.contains("unused"), "{told}");
        control(&["port", "1/1", "--lid", "77"]);
        assert_eq!((next_event(b.context), lid(&b)), ((LID_CHANGE, 1), 77));
        a.send(Work::default());
        assert_eq!(a.next().status, RETRY_EXC);
    });
}

#[test]
fn a_failed_device_flushes_and_refuses() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &QUICK);
        let fresh = create_qp(a.pd, a.cq, a.cq, CAP);
        for node in [&a, &b] {
            node.recv(10, &[]);
            node.recv(11, &[]);
        }
        control(&["fail", "softrnic0"]);
        assert_eq!(next_event(a.context), (DEVICE_FATAL, 0));
        let flushed = [a.next(), a.next()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!((flushed, a.state()), ([(10, FLUSH), (11, FLUSH)], ERR));
        a.send(Work { id: 12, ..Work::default() });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (12, FLUSH));
        assert_eq!(port_attr(a.context, 1).expect("port").state, 1);

        let mut bytes = [0u8; 64];
        assert!(create_qp(a.pd, a.cq, a.cq, CAP).is_null() && errno() == Some(libc::EIO));
        assert!(ibv_reg_mr(a.pd, bytes.as_mut_ptr().cast(), 64, 1).is_null() && errno() == Some(libc::EIO));
        assert!(ibv_alloc_pd(a.context).is_null() && errno() == Some(libc::EIO));
        assert!(ibv_create_cq(a.context, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), Some(libc::EIO));
        let init = QpAttr { state: INIT, port: 1, access: 7, ..QpAttr::default() };
        assert_eq!(modify(fresh, &init, INIT_MASK), libc::EIO);
        assert_eq!((to_state(fresh, ERR), to_state(fresh, RESET), to_state(a.qp, RESET)), (0, 0, 0));

        b.send(Work { id: 13, opcode: SEND, ..Work::default() });
        let wc = b.next();
        assert_eq!((wc.wr_id, wc.status), (13, RETRY_EXC), "no answer");
        assert!(refused(&["port", "0/1", "up"]).contains("failed"));
        assert_eq!(ibv_destroy_qp(fresh), 0);
        a.close();
        b.close();
    });
}
