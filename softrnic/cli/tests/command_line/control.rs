//! A network that changes while programs use it: ports go down and up, addresses come and go,
//! devices fail.

use crate::common::prelude::*;
use crate::program::{control, refused, stat};
use serde_json::{Value, json};
use testkit::unique::unique_name;

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
            a.send(Work { opcode: SEND, ..WORK });
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
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!(a.next().status, RETRY_EXC);
        control(&["port", "0/1", "up"]);
        assert_eq!((a.state(), b.state()), (ERR, RTS));
        assert!(
            b.poll().is_none() && !has_event(b.context, 50),
            "the peer has neither completion nor event"
        );
    });
}

#[test]
fn connecting_needs_both_ports_up() {
    Softrnic::new().alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        for port in ["0/1", "1/1"] {
            control(&["port", port, "down"]);
            assert_eq!(
                a.connect_by(&rtr(&b.address(), &QUICK), &QUICK),
                Err(libc::ETIMEDOUT),
                "{port}"
            );
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
        control(&[
            "port", "1/1", "--mtu", "512", "--speed", "100", "--latency-us", "1.5", "--bandwidth",
            "12.5",
        ]);
        let attr = port_attr(b.context, 1).expect("port");
        assert_eq!((attr.active_mtu, attr.active_speed, attr.active_width), (2, 32, 2));
        let to = b.at(0);
        a.send(Work { sges: &[a.sge(0, 513)], to, ..WORK });
        assert_eq!(a.next().status, RETRY_EXC);
        let seen = stat();
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
        // Entries 2 and 3 are one address, as RoCE v1 and v2. What is done to them, and what a
        // packet comes to.
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
            a.send(Work { opcode: SEND, ..WORK });
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
        assert_eq!(
            c.connect_by(&vector, &QUICK),
            Err(libc::ENODATA),
            "an entry that has become empty"
        );
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
        a.send(WORK);
        assert_eq!(a.next().status, OK);
        let told = refused(&["port", "1/1", "--lid", &lid(&a).to_string()]);
        assert!(told.contains("unused"), "{told}");
        control(&["port", "1/1", "--lid", "77"]);
        assert_eq!((next_event(b.context), lid(&b)), ((LID_CHANGE, 1), 77));
        a.send(WORK);
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
        a.send(Work { id: 12, ..WORK });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (12, FLUSH));
        assert_eq!(port_attr(a.context, 1).expect("port").state, 1);

        let mut bytes = [0u8; 64];
        assert!(create_qp(a.pd, a.cq, a.cq, CAP).is_null() && errno() == Some(libc::EIO));
        assert!(
            ibv_reg_mr(a.pd, bytes.as_mut_ptr().cast(), 64, 1).is_null()
                && errno() == Some(libc::EIO)
        );
        assert!(ibv_alloc_pd(a.context).is_null() && errno() == Some(libc::EIO));
        assert!(ibv_create_cq(a.context, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null());
        assert_eq!(errno(), Some(libc::EIO));
        let init = QpAttr { state: INIT, port: 1, access: 7, ..ATTR };
        assert_eq!(modify(fresh, &init, INIT_MASK), libc::EIO);
        assert_eq!(
            (to_state(fresh, ERR), to_state(fresh, RESET), to_state(a.qp, RESET)),
            (0, 0, 0)
        );

        b.send(Work { id: 13, opcode: SEND, ..WORK });
        let wc = b.next();
        assert_eq!((wc.wr_id, wc.status), (13, RETRY_EXC), "no answer");
        assert!(refused(&["port", "0/1", "up"]).contains("failed"));
        assert_eq!(ibv_destroy_qp(fresh), 0);
        a.close();
        b.close();
    });
}

/// Gives up after 1 ms.
const DELAYED_QUICK: Terms =
    Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };

/// What the first port has to say when all that was launched has arrived or been dropped.
fn counted() -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let seen = stat();
        let delayed = &seen["devices"][0]["ports"][0]["delayed"];
        let number = |value: &Value| value.as_u64().expect("a number");
        let dropped =
            delayed["dropped"].as_object().expect("reasons").values().map(number).sum::<u64>();
        if number(&delayed["landed"]) + dropped == number(&delayed["launched"]) {
            return delayed.clone();
        }
        assert!(Instant::now() < end, "still on its way: {delayed}");
    }
}

/// Sends a write from `a` to `b`'s memory, which is always lost; and delayed by a rule.
fn write(a: &Node, b: &Address, key: u64) {
    a.send(Work { sges: &[a.sge(0, 16)], to: (b.addr, key), ..WORK });
    assert_eq!(a.next().status, RETRY_EXC);
}

#[test]
fn what_becomes_of_delayed_packets_is_counted() {
    Softrnic::new().faults("late=1ms message=1; drop message=1 attempts=all").alone(|| {
        let sent: Vec<_> = (0..6).map(|_| local_pair(16, &DELAYED_QUICK)).collect();
        assert!(!control(&["stat"]).contains("delayed packets"), "nothing is said where there is nothing");
        let (psn_here, psn_there) = (Node::new(0, 16), Node::new(1, 16));
        psn_here.connect(&psn_there.address(), &DELAYED_QUICK);
        psn_there.connect(&Address { psn: psn_here.psn ^ 1, ..psn_here.address() }, &DELAYED_QUICK);
        let [landed, destroyed, reset, failed, refused, down] = &sent[..] else { unreachable!() };

        assert_eq!(ibv_destroy_qp(destroyed.1.qp), 0);
        assert_eq!((to_state(reset.1.qp, RESET), to_state(failed.1.qp, ERR)), (0, 0));
        for (a, b) in [landed, destroyed, reset, failed] {
            let peer = b.memory.as_ptr() as u64;
            write(a, &Address { addr: peer, ..Address::default() }, u64::from(b.key()));
        }
        write(&refused.0, &refused.1.address(), 1);
        write(&psn_here, &psn_there.address(), psn_there.address().rkey);
        counted();
        control(&["port", "1/1", "down"]);
        write(&down.0, &down.1.address(), down.1.address().rkey);
        let dropped = json!({
            "queue_pair_gone": 2, "queue_pair_in_error": 1, "wrong_psn": 1, "refused": 1, "port_down": 1,
        });
        assert_eq!(counted(), json!({ "launched": 7, "landed": 1, "dropped": dropped }));
        let line = "delayed packets: 7 launched, 1 landed; dropped: 2 queue pair gone, 1 in error, 1 wrong psn, 1 refused, \
                    1 port down";
        let text = control(&["stat"]);
        assert!(text.contains(line), "{text}");
    });
}

const CUR_STATE: i32 = 1 << 1;
const NOTIFY: i32 = 1 << 2;
const ACCESS: i32 = 1 << 3;
const TIMEOUT: i32 = 1 << 9;

/// To SQD, with the event asked for.
fn drain(node: &Node) -> i32 {
    modify(node.qp, &QpAttr { state: SQD, drain: [1, 0], ..ATTR }, 1 | NOTIFY)
}

fn query(node: &Node) -> QpAttr {
    let (mut attr, mut init) = (ATTR, empty_init());
    assert_eq!(ibv_query_qp(node.qp, &mut attr, -1, &mut init), 0);
    assert_eq!(init.cap, CAP);
    attr
}

#[test]
fn what_is_under_way_is_finished_and_nothing_begun() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        // No receive is there yet: this one is sent again and again.
        a.send(Work { id: 1, opcode: SEND, ..WORK });
        a.send(Work { id: 2, ..WORK });
        assert_eq!(drain(&a), 0);
        assert_eq!((a.state(), query(&a).drain), (SQD, [0, 1]), "draining");
        // Another attribute changes meanwhile; the event is still wanted.
        assert_eq!(modify(a.qp, &QpAttr { state: SQD, timeout: 12, ..ATTR }, 1 | TIMEOUT), 0);
        a.send(Work { id: 3, ..WORK });
        assert!(!has_event(a.context, 20), "not drained yet");
        b.recv(10, &[]);
        assert_eq!((a.next().wr_id, b.next().wr_id), (1, 10));
        assert_eq!(next_event(a.context), (SQ_DRAINED, a.qp as usize));
        assert_eq!(query(&a).drain, [0, 0]);
        // It still receives.
        a.recv(11, &[]);
        b.send(Work { id: 12, opcode: SEND, ..WORK });
        assert_eq!((b.next().wr_id, a.next().wr_id), (12, 11));
        assert!(a.next_within(Duration::from_millis(20)).is_none(), "stopped");
        assert_eq!(to_state(a.qp, RTS), 0);
        assert_eq!((a.next().wr_id, a.next().wr_id), (2, 3));
        assert!(!has_event(a.context, 0), "one event");
    });
}

#[test]
fn an_idle_queue_is_drained_at_once_and_told_if_asked() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(64, &TERMS);
        assert_eq!(to_state(a.qp, SQD), 0);
        assert!(!has_event(a.context, 50), "not asked for");
        assert_eq!(to_state(a.qp, RTS), 0);
        assert_eq!(drain(&a), 0);
        assert_eq!(next_event(a.context).0, SQ_DRAINED);
        a.send(Work { id: 1, ..WORK });
        assert_eq!(to_state(a.qp, ERR), 0);
        assert_eq!(a.next().status, FLUSH);
    });
}

#[test]
fn masks_of_the_rarer_transitions() {
    Softrnic::new().alone(|| {
        let terms = TERMS;
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let to = |state| QpAttr { state, ..ATTR };
        assert_eq!(to_state(a.qp, SQD), libc::EINVAL, "from RESET");
        assert_eq!(a.to_init(7), 0);
        assert_eq!(to_state(a.qp, SQD), libc::EINVAL, "from INIT");
        let cur = QpAttr { cur_state: INIT, ..rtr(&b.address(), &terms) };
        assert_eq!(
            modify(a.qp, &cur, RTR_MASK | CUR_STATE),
            libc::EINVAL,
            "CUR_STATE is for those that send"
        );
        assert_eq!(a.to_rtr(&b.address(), &terms), 0);
        assert_eq!(to_state(a.qp, RTR), libc::EINVAL, "there is no RTR to RTR");
        assert_eq!(to_state(a.qp, SQD), libc::EINVAL, "from RTR");
        let cur = QpAttr { cur_state: RTS, ..rts(a.psn, &terms) };
        assert_eq!(modify(a.qp, &cur, RTS_MASK | CUR_STATE), libc::EINVAL, "it is in RTR");
        assert_eq!(modify(a.qp, &QpAttr { cur_state: RTR, ..cur }, RTS_MASK | CUR_STATE), 0);

        assert_eq!(modify(a.qp, &to(RTS), 1 | NOTIFY), libc::EINVAL);
        assert_eq!(modify(a.qp, &to(SQD), 1 | ACCESS), libc::EINVAL);
        assert_eq!(modify(a.qp, &to(SQE), 1), libc::EINVAL, "RC has no SQE");
        assert_eq!(drain(&a), 0);
        let longer = QpAttr { state: SQD, timeout: 19, ..ATTR };
        assert_eq!(modify(a.qp, &longer, 1 | TIMEOUT), 0);
        assert_eq!(modify(a.qp, &QpAttr { timeout: 32, ..longer }, 1 | TIMEOUT), libc::EINVAL);
        assert_eq!(modify(a.qp, &longer, 1 | 1 << 16), libc::EINVAL, "SQ_PSN");
        assert_eq!(query(&a).timeout, 19);
        assert_eq!(modify(a.qp, &longer, TIMEOUT), 0, "without a state: SQD to SQD");
        assert_eq!(
            modify(a.qp, &QpAttr { state: RTS, timeout: 8, ..longer }, 1 | TIMEOUT),
            libc::EINVAL
        );
        assert_eq!(to_state(a.qp, RTS), 0);
    });
}

#[test]
fn a_drained_queue_may_be_led_elsewhere() {
    Softrnic::new().ports(2).alone(|| {
        let terms = Terms { timeout: 8, retry_cnt: 1, ..TERMS };
        let (a, b) = local_pair(64, &terms);
        for (node, peer) in [(&a, &b), (&b, &a)] {
            assert_eq!(to_state(node.qp, SQD), 0);
            let vector = QpAttr {
                state: SQD,
                port: 2,
                ah_port: 2,
                dgid: peer.gid_of(2, 1),
                ..rtr(&peer.address(), &terms)
            };
            assert_eq!(modify(node.qp, &vector, 1 | 1 << 5 | 1 << 7), 0);
            assert_eq!(query(node).port, 2);
            assert_eq!(to_state(node.qp, RTS), 0);
        }
        control(&["port", "0/1", "down"]);
        a.send(WORK);
        assert_eq!(a.next().status, OK, "by the second ports");
    });
}

#[test]
fn an_error_of_uc_stops_its_send_queue_only() {
    Softrnic::new().alone(|| {
        let terms = TERMS;
        let mut nodes = [Node::new(0, 64), Node::new(1, 64)];
        for node in &mut nodes {
            assert_eq!(ibv_destroy_qp(node.qp), 0);
            node.qp = create_qp_of(3, node.pd, node.cq, node.cq, CAP);
        }
        let [a, b] = &nodes;
        for (node, peer) in [(a, b), (b, a)] {
            assert_eq!(node.to_init(7), 0);
            assert_eq!(modify(node.qp, &rtr(&peer.address(), &terms), UC_RTR_MASK), 0);
            assert_eq!(modify(node.qp, &rts(node.psn, &terms), UC_RTS_MASK), 0);
        }
        a.recv(10, &[]);
        let bad = Sge { lkey: a.key() ^ 0xff, ..a.sge(0, 8) };
        a.send(Work { id: 1, opcode: SEND, sges: &[bad], ..WORK });
        a.send(Work { id: 2, flags: 0, ..WORK });
        let ended = [a.next(), a.next()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!((ended, a.state()), ([(1, LOC_PROT), (2, FLUSH)], SQE));
        b.send(Work { id: 20, opcode: SEND, ..WORK });
        assert_eq!((a.next().wr_id, a.state()), (10, SQE), "it still receives");
        assert_eq!(modify(a.qp, &QpAttr { state: SQD, ..ATTR }, 1), libc::EINVAL);
        assert_eq!(to_state(a.qp, RTS), 0);
        b.recv(11, &[]);
        a.send(Work { id: 3, opcode: SEND, ..WORK });
        let wc = a.next();
        assert_eq!((wc.wr_id, wc.status), (3, OK));
        let ids = [b.next().wr_id, b.next().wr_id];
        assert_eq!(ids, [20, 11]);
    });
}

#[test]
fn the_first_message_establishes_communication() {
    Softrnic::new().alone(|| {
        let terms = TERMS;
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        a.connect(&b.address(), &terms);
        assert_eq!((b.to_init(7), b.to_rtr(&a.address(), &terms)), (0, 0));
        for id in [1, 2] {
            b.recv(id, &[]);
            a.send(Work { opcode: SEND, ..WORK });
            assert_eq!((a.next().status, b.next().wr_id), (OK, id));
        }
        assert_eq!(next_event(b.context), (COMM_EST, b.qp as usize));
        assert!(!has_event(b.context, 50), "once");
        assert_eq!(b.to_rts(&terms), 0);
        a.send(WORK);
        assert_eq!(a.next().status, OK);
        assert!(!has_event(b.context, 50) && !has_event(a.context, 0), "in RTS it is no news");
        a.close();
        b.close();
    });
}

#[test]
fn a_query_says_what_was_set_and_how_far_it_has_come() {
    Softrnic::new().alone(|| {
        let terms = Terms { timeout: 15, retry_cnt: 5, rnr_retry: 6, min_rnr_timer: 9, access: 3 };
        let (a, b) = local_pair(64, &terms);
        let (peer, seen) = (b.address(), query(&a));
        assert_eq!((seen.state, seen.cur_state, seen.path_mtu, seen.access), (RTS, RTS, 5, 3));
        assert_eq!((seen.dest_qpn, seen.rq_psn, seen.sq_psn), (peer.qpn, peer.psn, a.psn));
        assert_eq!((seen.dgid, seen.is_global, seen.sgid_index, seen.ah_port), (peer.gid, 1, 1, 1));
        assert_eq!(
            (seen.timeout, seen.retry_cnt, seen.rnr_retry, seen.min_rnr_timer),
            (15, 5, 6, 9)
        );
        assert_eq!(
            (seen.max_rd_atomic, seen.max_dest_rd_atomic, seen.port, seen.cap),
            (1, 1, 1, CAP)
        );
        a.send(WORK);
        assert_eq!(a.next().status, OK);
        let next = |psn| (psn + 1) & 0xff_ffff;
        assert_eq!((query(&a).sq_psn, query(&b).rq_psn), (next(a.psn), next(a.psn)));
        assert_eq!(to_state(a.qp, RESET), 0);
        let seen = query(&a);
        assert_eq!((seen.state, seen.sq_psn, seen.rq_psn, seen.dest_qpn), (RESET, 0, 0, 0));
    });
}

/// A write of 16 bytes, `value` each.
fn rules_write(a: &mut Node, b: &Node, id: u64, value: u8) {
    a.memory[..16].fill(value);
    let sges = [a.sge(0, 16)];
    a.send(Work { id, sges: &sges, to: b.at(0), ..WORK });
}

/// What `local_pair` gives in a process with these rules, and what became of `count` writes.
fn statuses(count: u64) -> (Node, Node, Vec<u32>) {
    let (mut a, b) = local_pair(64, &TERMS);
    for id in 0..count {
        rules_write(&mut a, &b, id, id as u8 + 1);
    }
    let seen = (0..count).map(|id| (id, a.next())).map(|(id, wc)| {
        assert_eq!(wc.wr_id, id);
        wc.status
    });
    let seen = seen.collect();
    (a, b, seen)
}

#[test]
fn a_lost_message_is_sent_again() {
    Softrnic::new().faults("drop message=2").alone(|| {
        let (_a, b, seen) = statuses(3);
        assert_eq!((seen, b.memory[0]), (vec![OK; 3], 3));
    });
}

#[test]
fn a_message_that_is_always_lost_fails_and_is_not_delivered() {
    Softrnic::new().faults("drop message=2 attempts=all").alone(|| {
        let (_a, b, seen) = statuses(3);
        assert_eq!((seen, b.memory[0], b.state()), (vec![OK, RETRY_EXC, FLUSH], 1, RTS));
    });
}

/// The data is there, the receive is complete, and the sender's request fails.
#[test]
fn a_lost_acknowledgement_leaves_the_data_delivered() {
    Softrnic::new().faults("drop-ack attempts=all").alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        b.recv(7, &[]);
        b.recv(8, &[]);
        a.memory[..16].fill(9);
        let sges = [a.sge(0, 16)];
        let to = b.at(0);
        a.send(Work { opcode: WRITE_IMM, imm: 5, sges: &sges, to, ..WORK });
        let got = b.next();
        assert_eq!((got.wr_id, got.status, got.imm, b.memory[0]), (7, OK, 5, 9));
        assert_eq!((a.next().status, a.state(), b.state()), (RETRY_EXC, ERR, RTS));
        assert!(b.next_within(Duration::from_millis(50)).is_none(), "delivered once");
    });
}

#[test]
fn a_message_whose_first_acknowledgement_is_lost_counts_once() {
    Softrnic::new().faults("drop-ack message=1").alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        b.recv(7, &[]);
        b.recv(8, &[]);
        for imm in [1, 2] {
            a.send(Work { opcode: SEND_IMM, imm, ..WORK });
            assert_eq!(a.next().status, OK);
        }
        let seen = [b.next(), b.next()].map(|wc| (wc.wr_id, wc.imm));
        assert_eq!(seen, [(7, 1), (8, 2)]);
    });
}

#[test]
fn a_responder_that_is_never_ready_exhausts_the_retries() {
    Softrnic::new().faults("rnr opcode=send message=2 attempts=all").alone(|| {
        let (a, b) = local_pair(64, &Terms { rnr_retry: 2, ..TERMS });
        b.recv(1, &[]);
        b.recv(2, &[]);
        for _ in 0..2 {
            a.send(Work { opcode: SEND, ..WORK });
        }
        assert_eq!([a.next().status, a.next().status], [OK, RNR_EXC]);
        assert_eq!(b.next().wr_id, 1);
        assert_eq!(b.poll().map(|wc| wc.wr_id), None);
    });
}

#[test]
fn one_bit_of_the_data_turns() {
    Softrnic::new().faults("corrupt message=2").alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        for (message, wrong_bits) in [(1u8, 0), (2, 1), (3, 0)] {
            rules_write(&mut a, &b, 1, message);
            assert_eq!(a.next().status, OK);
            let wrong: u32 = b.memory[..16].iter().map(|byte| (byte ^ message).count_ones()).sum();
            assert_eq!(wrong, wrong_bits, "message {message}");
        }
    });
}

#[test]
fn failures_at_either_end_have_their_statuses() {
    Softrnic::new()
        .envs(&[(
            "SOFTRNIC_FAULTS",
            "qp-error message=1 flow=0; access-error message=1 flow=1; operation-error message=1 flow=2",
        )])
        .alone(|| {
            for (status, states) in [(2, [ERR, RTS]), (REM_ACCESS, [ERR, ERR]), (REM_OP, [ERR, ERR])] {
                let (a, b, seen) = statuses(1);
                assert_eq!((seen, [a.state(), b.state()]), (vec![status], states));
            }
        });
}

#[test]
fn an_overrun_on_demand_kills_the_queue_and_its_queue_pairs() {
    Softrnic::new().faults("cq-overrun message=1").alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        rules_write(&mut a, &b, 1, 1);
        let mut event = AsyncEvent::default();
        assert_eq!(ibv_get_async_event(a.context, &mut event), 0);
        assert_eq!((event.kind, event.element), (0, a.cq as usize));
        ibv_ack_async_event(&mut event);
        assert_eq!(a.state(), ERR);
        // Nothing shows when the message has been dealt with: its memory stays.
        std::mem::forget((a, b));
    });
}

/// The sender has given up, reset its queue pair and reused its buffer; then the packet arrives,
/// with the old bytes.
#[test]
fn a_late_write_lands_after_its_sender_is_gone() {
    let rule = ("SOFTRNIC_FAULTS", "late=100ms message=1; drop message=1 attempts=all");
    let env = [rule, ("SOFTRNIC_TIME_SCALE", "0.001")];
    Softrnic::new().envs(&env).alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        b.recv(3, &[]);
        a.memory[..16].fill(7);
        let sges = [a.sge(0, 16)];
        let to = b.at(0);
        a.send(Work { opcode: WRITE_IMM, imm: 1, sges: &sges, to, ..WORK });
        assert_eq!(a.next().status, RETRY_EXC);
        assert_eq!(to_state(a.qp, RESET), 0);
        a.memory.fill(0);
        let got = b.next();
        assert_eq!((got.wr_id, got.imm, b.memory[0]), (3, 1, 7));
    });
}

/// But not when the responder has moved on.
#[test]
fn a_late_write_is_thrown_away_once_its_number_has_passed() {
    Softrnic::new().faults("late=50ms message=1").alone(|| {
        let (mut a, b) = local_pair(64, &Terms { timeout: 8, ..TERMS });
        for value in [1, 2] {
            rules_write(&mut a, &b, 1, value);
            assert_eq!(a.next().status, OK);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(b.memory[0], 2);
    });
}

#[test]
fn calls_fail_as_often_as_asked() {
    Softrnic::new()
        .faults("modify-qp=ETIMEDOUT times=2; reg-mr=ENOMEM message=3 device=softrnic1")
        .alone(|| {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            assert_eq!(a.to_init(7), 0);
            let outcomes = [(); 3].map(|()| a.to_rtr(&b.address(), &TERMS));
            assert_eq!(outcomes, [libc::ETIMEDOUT, libc::ETIMEDOUT, 0]);
            let mut memory = [0u8; 64];
            let mut register =
                |node: &Node| !ibv_reg_mr(node.pd, memory.as_mut_ptr().cast(), 64, 7).is_null();
            assert!(register(&a) && register(&a) && register(&a));
            assert_eq!([register(&b), register(&b), register(&b)], [true, false, true]);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
        });
}

#[test]
fn calls_of_some_numbers_fail() {
    Softrnic::new().faults("poll-cq=EIO message=3.. every=2 times=2 device=softrnic1").alone(
        || {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            let poll = |node: &Node| poll_cq(node.cq, 1, &mut Wc::default());
            assert_eq!([(); 5].map(|()| poll(&a)), [0; 5]);
            assert_eq!([(); 3].map(|()| poll(&b)), [0, 0, -libc::EIO]);
            let rules = control(&["inject"]);
            assert!(rules.contains("applied 1"), "{rules}");
            assert_eq!([(); 5].map(|()| poll(&b)), [0, -libc::EIO, 0, 0, 0]);
            let rules = control(&["inject"]);
            assert!(rules.contains("applied 2"), "{rules}");
        },
    );
}

#[test]
fn calls_fail_until_the_time_of_their_rule_is_over() {
    Softrnic::new().faults("poll-cq=EIO for=100ms").alone(|| {
        let node = Node::new(0, 64);
        let poll = || poll_cq(node.cq, 1, &mut Wc::default());
        assert_eq!(poll(), -libc::EIO);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!([(); 9].map(|()| poll()), [0; 9]);
        let rules = control(&["inject"]);
        assert!(rules.contains("applied 1\n"), "{rules}");
    });
}

#[test]
fn a_delay_holds_up_what_is_behind_it() {
    Softrnic::new().faults("delay=80ms message=2").alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        let begin = Instant::now();
        for id in 1..=3 {
            rules_write(&mut a, &b, id, id as u8);
        }
        assert_eq!(a.next().wr_id, 1);
        assert_eq!(a.next().wr_id, 2);
        // A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= Duration::from_millis(80), "held up for {:?}", begin.elapsed());
        assert_eq!(a.next().wr_id, 3);
        assert_eq!(b.memory[0], 3);
    });
}

/// As where a switch takes smaller packets than the ports say. A queue pair has packets of up to
/// 4096 bytes here.
#[test]
fn packets_that_are_too_large_are_lost_and_others_arrive() {
    Softrnic::new().faults("drop larger=1024 attempts=all").alone(|| {
        for (bytes, status) in [(0, OK), (1024, OK), (1025, RETRY_EXC), (8192, RETRY_EXC)] {
            let (a, b) = local_pair(8192, &TERMS);
            let sges = [a.sge(0, bytes)];
            a.send(Work { sges: &sges, to: b.at(0), ..WORK });
            assert_eq!(a.next().status, status, "{bytes} bytes");
        }
    });
}

/// Rules come and go while traffic runs.
#[test]
fn rules_can_be_changed_from_outside() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        let mut value = 0;
        let mut wrong_bits = || {
            value += 1;
            rules_write(&mut a, &b, 1, value);
            assert_eq!(a.next().status, OK);
            b.memory[..16].iter().map(|byte| (byte ^ value).count_ones()).sum::<u32>()
        };
        assert_eq!(wrong_bits(), 0);
        let listed = control(&["inject", "corrupt", "device=softrnic0;", "drop device=softrnic1"]);
        assert!(listed.contains("1  corrupt device=softrnic0  applied 0"), "{listed}");
        assert_eq!(wrong_bits(), 1);
        let listed = control(&["inject"]);
        assert!(
            listed.contains("device=softrnic0  applied 1") && listed.contains("2  drop"),
            "{listed}"
        );
        assert!(!control(&["inject", "--remove", "1"]).contains("corrupt"));
        assert_eq!(wrong_bits(), 0);
        let fabric = std::env::var("SOFTRNIC_FABRIC").expect("set");
        assert_eq!(
            control(&["inject", "--clear"]),
            format!("fabric {fabric}: 0 fault rule(s) in force\n")
        );
        assert_eq!(control(&["inject"]), "");
        for (args, says) in [
            (&["inject", "dorp"][..], "no action \"dorp\""),
            (&["inject", "drop device=softrnic5"][..], "there is no softrnic5 among 2"),
            (&["inject", "--remove", "7"][..], "no rule in force has the number 7"),
        ] {
            let told = refused(args);
            assert!(told.contains(says), "{args:?}: {told}");
        }
        let many = "drop;".repeat(65);
        assert!(refused(&["inject", &many]).contains("65 fault rules do not fit"));
    });
}

/// 300 messages each way.
fn exchange(side: usize, mut socket: Peer) {
    let node = Node::new(side, 64);
    node.connect_over(&mut socket, &Terms { timeout: 1, retry_cnt: 7, ..TERMS });
    for id in 0..300 {
        node.recv(id, &[]);
        socket.barrier();
        node.send(Work { opcode: SEND, ..WORK });
        assert_eq!([node.next().status, node.next().status], [OK, OK]);
    }
    socket.barrier();
}

/// With the same seed the rules hit the same messages, with another seed other ones, whatever the
/// timing.
#[test]
fn the_same_seed_gives_the_same_faults() {
    let rules = "drop chance=0.1; rnr chance=0.05 opcode=send; delay=1us chance=0.1";
    let files = ["1", "1", "2"].map(|seed| {
        let file = std::env::temp_dir().join(unique_name("softrnic-trace"));
        let softrnic = Softrnic::new()
            .faults(rules)
            .env("SOFTRNIC_TRACE", file.display())
            .env("SOFTRNIC_SEED", seed);
        softrnic.pair(exchange);
        file
    });
    let traces = files.map(|file| {
        let text = std::fs::read_to_string(&file).expect("trace");
        std::fs::remove_file(&file).expect("own file");
        let mut lines: Vec<_> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    });
    assert!(traces[0].len() > 50, "{:?}", traces[0]);
    assert_eq!(traces[0], traces[1]);
    assert_ne!(traces[0], traces[2]);
}

#[test]
fn a_rule_that_comes_behind_one_for_others_applies_at_once() {
    Softrnic::new().faults("drop flow=99 attempts=all").alone(|| {
        let (a, _b) = local_pair(16, &Terms { timeout: 7, retry_cnt: 1, ..TERMS });
        for rule in
            [None, Some("drop attempts=all device=softrnic1"), Some("drop attempts=all flow=0")]
        {
            rule.into_iter().for_each(|rule| drop(control(&["inject", rule])));
            a.send(WORK);
            let is_struck = rule.is_some_and(|rule| rule.contains("flow=0"));
            assert_eq!(a.next().status, if is_struck { RETRY_EXC } else { OK }, "{rule:?}");
        }
    });
}
