//! UD: datagrams, and the address handles that say where they go.

use crate::common::channel::Channel;
use crate::common::datagrams::{HEADER, QKEY, UD, way_to, *};
use crate::common::prelude::*;
use crate::common::srqs::*;
use std::thread;
use testkit::side::enter;

const WITH_GRH: u32 = 1;
const WITH_IMM: u32 = 2;

/// A datagram of `bytes` from the beginning of `node`'s memory.
fn datagram<'a>(sges: &'a [Sge], way: (u64, u64)) -> Work<'a> {
    Work { opcode: SEND, sges, to: way, ..WORK }
}

/// An address handle for entry 1 of the GID table of the other's port 1.
fn handle(from: &Node, to: &Node) -> Ptr {
    handle_for(from, &way_to(to.gid, 1)).expect("an address handle")
}

#[test]
fn a_datagram_brings_a_header_that_leads_back_to_its_sender() {
    Softrnic::new().pair(|side, mut socket| {
        let mut node = ud_node(side, 4096, 32);
        let (gid, qpn): ([u64; 2], u32) = socket.swap(&(node.gid, node.qpn()));
        node.recv(5, &[node.sge(1024, 1024)]);
        socket.barrier();
        if side == 0 {
            node.memory[..6].copy_from_slice(b"hello!");
            let way = AhAttr { traffic_class: 9, ..way_to(gid, 1) };
            let way = handle_for(&node, &way).expect("an address handle");
            node.send(Work {
                opcode: SEND_IMM,
                imm: 77,
                ..datagram(&[node.sge(0, 6)], to(way, qpn, QKEY))
            });
            let wc = node.next();
            assert_eq!((wc.status, wc.opcode, ibv_destroy_ah(way)), (OK, 0, 0));
            let wc = node.next();
            assert_eq!((wc.wr_id, wc.byte_len, wc.src_qp), (5, 40 + 4, qpn));
            assert_eq!(&node.memory[1064..1068], b"ello");
        } else {
            let wc = node.next();
            assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len, wc.imm), (5, OK, 128, 46, 77));
            assert_eq!((wc.flags, wc.src_qp, wc.qp_num), (WITH_GRH | WITH_IMM, qpn, node.qpn()));
            let header = node.memory[1024..1064].to_vec();
            assert_eq!(
                (header[20], header[21], header[29]),
                (0x45, 9, 17),
                "IPv4, its traffic class, UDP"
            );
            // 20 + 8 + 12 + 8 + 4 + 8 + 4 bytes.
            assert_eq!(header[22..24], [0, 64]);
            assert_eq!(header[32..40], [10, 82, 1, 1, 10, 82, 1, 2]);
            assert_eq!(&node.memory[1064..1070], b"hello!");
            let back = handle_back(&node, &wc, &header).expect("the way back");
            node.send(datagram(&[node.sge(1065, 4)], to(back, qpn, QKEY)));
            assert_eq!((node.next().status, ibv_destroy_ah(back)), (OK, 0));
        }
        socket.barrier();
        node.close();
    });
}

/// The way back that the header of a datagram from `a` to `b` names, from and to entry `index`;
/// with the header and the completion.
fn there(a: &Node, b: &mut Node, index: u8) -> (AhAttr, Vec<u8>, Wc) {
    let way = AhAttr { flow_label: 0x12345, ..way_to(b.gid_of(1, i32::from(index)), index) };
    b.recv(1, &[b.sge(0, 128)]);
    a.send(datagram(&[a.sge(0, 3)], to(handle_for(a, &way).expect("a handle"), b.qpn(), QKEY)));
    assert_eq!(a.next().status, OK);
    let (wc, mut back) = (b.next(), AhAttr::default());
    assert_eq!((wc.status, wc.byte_len, wc.flags), (OK, 43, WITH_GRH));
    assert_eq!(ibv_init_ah_from_wc(b.context, 1, &wc, b.memory.as_ptr(), &mut back), 0);
    (back, b.memory[..HEADER].to_vec(), wc)
}

#[test]
fn every_kind_of_address_has_its_header() {
    Softrnic::new().gids("rich").alone(|| {
        let (a, mut b) = (ud_node(0, 128, 32), ud_node(1, 128, 32));
        // Each address is there as one of RoCE v1 and as one of v2.
        for index in 0..6 {
            let (back, header, wc) = there(&a, &mut b, index);
            let is_mapped = (2..4).contains(&index);
            let want = match (is_mapped, index % 2) {
                (true, 1) => (0x45, 17),
                (_, 1) => (0x61, 17),
                _ => (0x61, 27),
            };
            let at = if want.0 == 0x45 { (20, 29) } else { (0, 6) };
            assert_eq!(
                (header[at.0] | u8::from(want.0 == 0x61), header[at.1]),
                want,
                "entry {index}"
            );
            assert_eq!(
                wc.sl,
                if want.1 == 27 {
                    0
                } else if is_mapped {
                    10
                } else {
                    9
                },
                "as mlx5 says what packets look like"
            );
            assert_eq!((back.dgid, back.sgid_index), (a.gid_of(1, i32::from(index)), index));
            // The header of IPv4 has no room for it.
            assert_eq!(back.flow_label, if want.0 == 0x45 { 0 } else { 0x12345 });
        }
    });
}

#[test]
fn over_infiniband_a_lid_is_enough() {
    Softrnic::new().link("ib").alone(|| {
        let (a, b) = (Node::new(0, 64), ud_node(1, 128, 32));
        let lid = |node: &Node| port_attr(node.context, 1).expect("port 1").lid;
        let a = Node { qp: ud_node(0, 64, 8).qp, ..a };
        let sender = ud_node(0, 64, 8);
        let way = AhAttr { dlid: lid(&b), sl: 3, port: 1, ..AhAttr::default() };
        b.recv(1, &[b.sge(0, 128)]);
        sender.send(datagram(
            &[sender.sge(0, 8)],
            to(handle_for(&sender, &way).expect("a handle"), b.qpn(), QKEY),
        ));
        let wc = b.next();
        assert_eq!(
            (wc.status, wc.byte_len, wc.flags),
            (OK, 48, 0),
            "40 bytes are left out, and nothing is in them"
        );
        assert_eq!((wc.slid, wc.sl, wc.src_qp), (lid(&a), 3, sender.qpn()));
        let mut back = AhAttr::default();
        assert_eq!(ibv_init_ah_from_wc(b.context, 1, &wc, ptr::null(), &mut back), 0);
        assert_eq!(back, AhAttr { dlid: lid(&a), sl: 3, port: 1, ..AhAttr::default() });
    });
}

/// Nothing comes: whatever is sent later is there, and it is not.
fn assert_dropped(a: &Node, b: &Node, work: Work<'_>) {
    a.send(work);
    assert_eq!(a.next().status, OK, "the sender does not hear of it");
    assert!(b.poll().is_none());
    assert_eq!((b.state(), a.state()), (RTS, RTS));
}

#[test]
fn another_qkey_is_dropped_and_counted() {
    Softrnic::new().alone(|| {
        let (a, b) = (ud_node(0, 64, 8), ud_node(1, 128, 8));
        let (way, sges) = (handle(&a, &b), [a.sge(0, 8)]);
        b.recv(1, &[b.sge(0, 128)]);
        assert_dropped(&a, &b, datagram(&sges, to(way, b.qpn(), QKEY + 1)));
        let counted = port_attr(b.context, 1).expect("port 1").counters[1];
        assert_eq!(counted, 1);
        // With the highest bit it is that of the sending queue pair.
        a.send(datagram(&sges, to(way, b.qpn(), 0x8000_0000)));
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        assert_eq!(modify(a.qp, &QpAttr { state: RTS, qkey: 5, ..ATTR }, 1 | 1 << 6), 0);
        assert_dropped(&a, &b, datagram(&sges, to(way, b.qpn(), 0x8000_0000)));
    });
}

#[test]
fn without_a_receive_and_without_a_receiver_it_is_dropped() {
    Softrnic::new().alone(|| {
        let (a, b) = (ud_node(0, 64, 8), ud_node(1, 128, 8));
        let (way, sges) = (handle(&a, &b), [a.sge(0, 8)]);
        assert_dropped(&a, &b, datagram(&sges, to(way, b.qpn(), QKEY)));
        b.recv(1, &[b.sge(0, 128)]);
        assert!(b.poll().is_none(), "it does not wait for a receive");
        assert_dropped(&a, &b, datagram(&sges, to(way, b.qpn() + 1, QKEY)));
        // A queue pair that is connected takes none.
        let connected = Node::new(1, 64);
        connected.connect(&connected.address(), &Default::default());
        connected.recv(1, &[connected.sge(0, 64)]);
        assert_dropped(&a, &connected, datagram(&sges, to(way, connected.qpn(), 0)));
        // The receive is still there.
        a.send(datagram(&sges, to(way, b.qpn(), QKEY)));
        assert_eq!((a.next().status, b.next().wr_id), (OK, 1));
    });
}

#[test]
fn a_datagram_is_no_larger_than_the_mtu() {
    let mtu = [("SOFTRNIC_MTU", "2048,softrnic1/1=1024")];
    Softrnic::new().envs(&mtu).alone(|| {
        let (a, b, c) = (ud_node(0, 4096, 8), ud_node(1, 4096, 8), ud_node(0, 4096, 8));
        b.recv(1, &[b.sge(0, 4096)]);
        c.recv(2, &[c.sge(0, 4096)]);
        let (near, far) = (handle(&a, &c), handle(&a, &b));
        // What the port of the receiver does not take vanishes on the way.
        assert_dropped(&a, &b, datagram(&[a.sge(0, 1025)], to(far, b.qpn(), QKEY)));
        a.send(datagram(&[a.sge(0, 1024)], to(far, b.qpn(), QKEY)));
        assert_eq!((a.next().status, b.next().byte_len), (OK, 1064));
        a.send(datagram(&[a.sge(0, 2049)], to(near, c.qpn(), QKEY)));
        assert_eq!((a.next().status, a.state()), (LOC_LEN, SQE));
        assert!(c.poll().is_none());
        assert_eq!(to_state(a.qp, RTS), 0);
        a.send(datagram(&[a.sge(0, 2048)], to(near, c.qpn(), QKEY)));
        assert_eq!((a.next().status, c.next().byte_len), (OK, 2088));
    });
}

#[test]
fn a_receive_that_cannot_take_it_fails() {
    Softrnic::new().alone(|| {
        // The header needs room as well.
        type Spoil = fn(&Node) -> Sge;
        let spoils: [(u32, Spoil); 2] = [
            (LOC_LEN, |b| b.sge(0, 47)),
            (LOC_PROT, |b| Sge { lkey: 0xffff_ff01, ..b.sge(0, 128) }),
        ];
        for (status, spoiled) in spoils {
            let (a, b) = (ud_node(0, 64, 8), ud_node(1, 128, 8));
            b.recv(1, &[spoiled(&b)]);
            b.recv(2, &[b.sge(0, 128)]);
            a.send(datagram(&[a.sge(0, 8)], to(handle(&a, &b), b.qpn(), QKEY)));
            assert_eq!(a.next().status, OK, "the sender does not hear of it");
            let (failed, flushed) = (b.next(), b.next());
            assert_eq!(
                (failed.wr_id, failed.status, flushed.wr_id, flushed.status),
                (1, status, 2, FLUSH)
            );
            assert_eq!((b.state(), a.state()), (ERR, RTS));
        }
    });
}

#[test]
fn what_is_not_for_datagrams_is_refused() {
    Softrnic::new().alone(|| {
        let (a, b) = (ud_node(0, 64, 8), ud_node(1, 128, 8));
        let way = handle(&a, &b);
        for opcode in [WRITE, WRITE_IMM, READ, CMP_SWAP, FETCH_ADD] {
            assert_eq!(
                a.try_send(Work { opcode, to: to(way, b.qpn(), QKEY), ..WORK }),
                libc::EINVAL
            );
        }
        assert_eq!(
            a.try_send(datagram(&[], to(ptr::null_mut(), b.qpn(), QKEY))),
            libc::EINVAL,
            "no handle"
        );
        let other = ud_node(0, 64, 8);
        assert_eq!(
            a.try_send(datagram(&[], to(handle(&other, &b), b.qpn(), QKEY))),
            libc::EINVAL,
            "another domain's"
        );
        assert_eq!(ibv_dealloc_pd(other.pd), libc::EBUSY);
        let nobody = [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, 10, 82, 9, 9])];
        assert_eq!(handle_for(&a, &way_to(nobody, 1)), Err(libc::ETIMEDOUT));
        assert_eq!(handle_for(&a, &AhAttr { port: 2, ..way_to(b.gid, 1) }), Err(libc::EINVAL));
        assert_eq!(handle_for(&a, &AhAttr { is_global: 0, ..way_to(b.gid, 1) }), Err(libc::EINVAL));
        assert_eq!(handle_for(&a, &way_to(b.gid, 9)), Err(libc::ENODATA), "an empty entry");
        assert_eq!(ibv_destroy_ah(way), 0);
    });
}

#[test]
fn groups_have_no_members() {
    Softrnic::new().alone(|| {
        let (a, b) = (ud_node(0, 64, 8), ud_node(1, 128, 8));
        let group = [0, u64::from_ne_bytes([0, 0, 0xff, 0xff, 239, 1, 2, 3])];
        assert_eq!(ibv_attach_mcast(b.qp, &group, 0), libc::EOPNOTSUPP);
        assert_eq!(ibv_detach_mcast(b.qp, &group, 0), libc::EOPNOTSUPP);
        b.recv(1, &[b.sge(0, 128)]);
        let way = handle_for(&a, &way_to(group, 1)).expect("there is nobody to be asked");
        assert_dropped(&a, &b, datagram(&[a.sge(0, 8)], to(way, 0xff_ffff, QKEY)));
    });
}

#[test]
fn the_states_of_ud_need_their_attributes() {
    Softrnic::new().alone(|| {
        let node = ud_node(0, 64, 8);
        assert_eq!(to_state(node.qp, RESET), 0);
        let attr = QpAttr { port: 1, qkey: 7, sq_psn: 9, ..ATTR };
        for (state, mask) in [(INIT, UD_INIT_MASK), (RTR, 1), (RTS, UD_RTS_MASK)] {
            let attr = QpAttr { state, ..attr };
            for bit in (1..31).map(|b| 1 << b).filter(|b| mask & b != 0) {
                assert_eq!(modify(node.qp, &attr, mask & !bit), libc::EINVAL, "without {bit:#x}");
            }
            for connected in [3, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20] {
                assert_eq!(
                    modify(node.qp, &attr, mask | 1 << connected),
                    libc::EINVAL,
                    "with {connected}"
                );
            }
            assert_eq!(modify(node.qp, &attr, mask), 0);
        }
        let (mut got, mut init) = (ATTR, empty_init());
        assert_eq!(ibv_query_qp(node.qp, &mut got, -1, &mut init), 0);
        assert_eq!((got.state, got.qkey, init.qp_type), (RTS, 7, UD));
    });
}

/// The number of a sender and its count, as a datagram of 8 bytes has them.
fn said(node: &Node, at: usize) -> (u32, u32) {
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| node.memory[at + i]));
    (word(at), word(at + 4))
}

/// Sends so many datagrams, numbered, to the queue pair `qpn`.
fn send_numbered(gid: [u64; 2], qpn: u32, count: u32) {
    let mut node = ud_node(0, 8, 16);
    let way = to(handle_for(&node, &way_to(gid, 1)).expect("a handle"), qpn, QKEY);
    for number in 0..count {
        let own = node.qpn();
        node.memory[..4].copy_from_slice(&own.to_ne_bytes());
        node.memory[4..].copy_from_slice(&number.to_ne_bytes());
        node.send(datagram(&[node.sge(0, 8)], way));
        assert_eq!(node.next().status, OK);
    }
}

/// Many send to one queue pair at a time: each datagram comes whole, once, and in its sender's
/// order.
#[test]
fn many_send_to_one_at_a_time() {
    const SENDERS: u32 = 3;
    const EACH: u32 = 150;
    const SLOT: usize = 64;
    let total = 2 * SENDERS * EACH;
    Softrnic::new().pair(|side, mut socket| {
        let node = ud_node(1, total as usize * SLOT, total.next_power_of_two());
        if side == 0 {
            (0..total as usize).for_each(|i| node.recv(i as u64, &[node.sge(i * SLOT, SLOT)]));
        }
        let (gid, qpn): ([u64; 2], u32) = socket.swap(&(node.gid, node.qpn()));
        let (gid, qpn) = if side == 0 { (node.gid, node.qpn()) } else { (gid, qpn) };
        let senders: Vec<_> =
            (0..SENDERS).map(|_| thread::spawn(move || send_numbered(gid, qpn, EACH))).collect();
        if side == 0 {
            let mut next = std::collections::HashMap::<u32, u32>::new();
            for _ in 0..total {
                let wc = node.next();
                assert_eq!((wc.status, wc.byte_len), (OK, 48));
                let (from, number) = said(&node, wc.wr_id as usize * SLOT + HEADER);
                assert_eq!(from, wc.src_qp);
                let expected = next.insert(from, number + 1).unwrap_or(0);
                assert_eq!(number, expected, "from {from}");
            }
            assert_eq!(next.into_values().collect::<Vec<_>>(), [EACH; 2 * SENDERS as usize]);
        }
        senders.into_iter().for_each(|sender| sender.join().expect("it has sent"));
        socket.barrier();
    });
}

/// Senders that are killed leave their receiver as it was.
#[test]
fn killed_senders_harm_nobody() {
    const ROUNDS: u64 = 12;
    type Receiver = ([u64; 2], u32);
    enter(|side, mut socket| {
        if side == 1 {
            let (gid, qpn): Receiver = socket.recv();
            return send_numbered(gid, qpn, u32::MAX);
        }
        let node = ud_node(1, 4096, 64);
        socket.send(&(node.gid, node.qpn()));
        for round in 0..ROUNDS {
            // From the sender of this round; what the one before it has left comes first.
            (0..20 + round).for_each(|i| {
                node.recv(i, &[node.sge(0, 64)]);
                assert_eq!(node.next().status, OK);
            });
            socket.barrier();
        }
        assert_eq!((node.state(), node.has_event()), (RTS, false));
        node.close();
        // The last process removes the fabric's file: not before the last sender has been killed.
        socket.barrier();
    });
    let softrnic = Softrnic::new();
    let (receiver, mut to_receiver) = softrnic.start(0, &[]);
    let address: Receiver = to_receiver.recv();
    for _ in 0..ROUNDS {
        let (mut sender, mut to_sender) = softrnic.start(1, &[]);
        to_sender.send(&address);
        to_receiver.barrier();
        sender.signal(libc::SIGKILL);
        assert!(sender.ended().is_killed_by(libc::SIGKILL));
    }
    to_receiver.barrier();
    receiver.finish();
    softrnic.assert_clean();
}

/// Rules go by where each datagram goes.
#[test]
fn datagrams_have_faults() {
    let rules = "drop message=1; late=1ms message=2; rnr message=3; cut=44 message=4; drop message=6.. peer=softrnic1";
    Softrnic::new().faults(rules).alone(|| {
        let (mut a, b, c) = (ud_node(0, 64, 16), ud_node(1, 128, 16), ud_node(0, 128, 16));
        let (far, near) = (handle(&a, &b), handle(&a, &c));
        a.memory.fill(7);
        b.recv(1, &[b.sge(0, 128)]);
        c.recv(2, &[c.sge(0, 128)]);
        for _ in 1..=4 {
            assert_dropped(&a, &b, datagram(&[a.sge(0, 8)], to(far, b.qpn(), QKEY)));
        }
        assert_eq!(b.memory[40..48], [7, 7, 7, 7, 0, 0, 0, 0], "what is cut has arrived");
        a.send(datagram(&[a.sge(0, 8)], to(far, b.qpn(), QKEY)));
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        b.recv(3, &[b.sge(0, 128)]);
        assert_dropped(&a, &b, datagram(&[a.sge(0, 8)], to(far, b.qpn(), QKEY)));
        a.send(datagram(&[a.sge(0, 8)], to(near, c.qpn(), QKEY)));
        assert_eq!((a.next().status, c.next().status), (OK, OK));
    });
}

/// Asynchronous events.
const SRQ_LIMIT_REACHED: u32 = 15;
const QP_LAST_WQE_REACHED: u32 = 16;

fn connect(a: &Node, b: &Node, terms: &Terms) {
    a.connect(&b.address(), terms);
    b.connect(&a.address(), terms);
}

/// The number in the first four bytes of `node`'s memory, sent.
fn send_number(node: &mut Node, number: u32) {
    node.memory[..4].copy_from_slice(&number.to_ne_bytes());
    node.send(Work { opcode: SEND, sges: &[node.sge(0, 4)], ..WORK });
}

#[test]
fn queue_pairs_take_their_receives_from_one_queue_in_order() {
    Softrnic::new().alone(|| {
        let (b, srq) = node_on_srq(1, 4096, 8);
        let c = beside(&b, srq);
        let (mut to_b, mut to_c) = (Node::new(0, 64), Node::new(0, 64));
        connect(&to_b, &b, &TERMS);
        to_c.connect(&Address { qpn: c.qpn(), psn: c.psn, ..b.address() }, &TERMS);
        c.connect(&to_c.address(), &TERMS);
        for id in 0..4 {
            assert_eq!(post(srq, id, &[b.sge(id as usize * 8, 8)]), 0);
        }
        for (id, from_c) in [(0u64, false), (1, true), (2, true), (3, false)] {
            let (sender, receiver) =
                if from_c { (&mut to_c, c.qpn()) } else { (&mut to_b, b.qpn()) };
            send_number(sender, 100 + id as u32);
            let wc = b.next();
            assert_eq!((wc.status, wc.wr_id, wc.qp_num, wc.byte_len), (OK, id, receiver, 4));
            assert_eq!(b.memory[id as usize * 8], 100 + id as u8);
            assert_eq!(sender.next().status, OK);
        }
        // Nothing is left: the next one waits until something is.
        send_number(&mut to_c, 9);
        assert!(b.poll().is_none() && to_c.poll().is_none());
        assert_eq!(post(srq, 7, &[b.sge(64, 8)]), 0);
        assert_eq!((to_c.next().status, b.next().wr_id, b.memory[64]), (OK, 7, 9));
        assert_eq!(b.try_recv(1, &[]), libc::EINVAL, "it has no queue of its own");
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        assert_eq!((ibv_destroy_qp(c.qp), ibv_destroy_qp(b.qp)), (0, 0));
        assert_eq!(ibv_destroy_srq(srq), 0);
    });
}

#[test]
fn a_shared_queue_has_its_bounds() {
    Softrnic::new().env("SOFTRNIC_MAX_QP_WR", 64).alone(|| {
        let (b, srq) = node_on_srq(1, 64, 4);
        let a = Node::new(0, 64);
        assert_eq!(create(b.pd, 0, 1), Err(libc::EINVAL));
        assert_eq!(create(b.pd, 65, 1), Err(libc::EINVAL));
        assert_eq!(create(b.pd, 4, 33), Err(libc::EINVAL));
        assert_eq!(query(srq), SrqAttr { max_wr: 4, max_sge: 2, limit: 0 });
        let size = SrqAttr { max_wr: 8, ..SrqAttr::default() };
        assert_eq!(ibv_modify_srq(srq, &size, MAX_WR), libc::EINVAL, "it stays as it was made");
        assert_eq!(post(srq, 1, &[b.sge(0, 8); 3]), libc::EINVAL);
        assert!((0..4).all(|id| post(srq, id, &[]) == 0));
        assert_eq!(post(srq, 9, &[]), libc::ENOMEM);
        connect(&a, &b, &TERMS);
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!(a.next().status, OK);
        assert_eq!(post(srq, 9, &[]), libc::ENOMEM, "taken, but not polled");
        assert_eq!(b.next().wr_id, 0);
        assert_eq!((post(srq, 9, &[]), post(srq, 10, &[])), (0, libc::ENOMEM));
        // A queue pair that is reset throws its completions away.
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!((a.next().status, to_state(b.qp, RESET)), (OK, 0));
        assert_eq!((post(srq, 10, &[]), post(srq, 11, &[])), (0, libc::ENOMEM));
        let other = Node::new(0, 64);
        assert_eq!(ibv_dealloc_pd(b.pd), libc::EBUSY);
        drop(other);
    });
}

#[test]
fn the_limit_is_told_once() {
    Softrnic::new().alone(|| {
        let (b, srq) = node_on_srq(1, 64, 8);
        let a = Node::new(0, 64);
        connect(&a, &b, &TERMS);
        (0..5).for_each(|id| assert_eq!(post(srq, id, &[]), 0));
        assert_eq!(arm(srq, 9), libc::EINVAL, "more than it has");
        assert_eq!((arm(srq, 4), query(srq).limit), (0, 4));
        let take = || {
            a.send(Work { opcode: SEND, ..WORK });
            assert_eq!((a.next().status, b.next().status), (OK, OK));
        };
        take();
        assert!(!b.has_event(), "four are left");
        take();
        assert_eq!(next_event(b.context), (SRQ_LIMIT_REACHED, srq as usize));
        assert_eq!(query(srq).limit, 0);
        take();
        assert!(!b.has_event(), "it is armed no more");
        assert_eq!(arm(srq, 2), 0);
        assert!(!b.has_event(), "two are left");
        assert_eq!(arm(srq, 3), 0);
        assert_eq!(
            next_event(b.context),
            (SRQ_LIMIT_REACHED, srq as usize),
            "fewer are left already"
        );
    });
}

#[test]
fn a_queue_pair_that_fails_says_that_it_takes_no_more() {
    Softrnic::new().alone(|| {
        let (b, srq) = node_on_srq(1, 64, 8);
        let a = Node::new(0, 64);
        (0..2).for_each(|id| assert_eq!(post(srq, id, &[]), 0));
        for round in 0..2 {
            connect(&a, &b, &TERMS);
            assert_eq!(to_state(b.qp, ERR), 0);
            assert_eq!(
                next_event(b.context),
                (QP_LAST_WQE_REACHED, b.qp as usize),
                "round {round}"
            );
            b.send(WORK);
            assert_eq!(b.next().status, FLUSH);
            assert!(b.poll().is_none() && !b.has_event(), "the receives are the others'");
            assert_eq!((to_state(a.qp, RESET), to_state(b.qp, RESET)), (0, 0));
        }
        // By a peer: the receive that it has taken completes, the other one stays.
        connect(&a, &b, &TERMS);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], ..WORK });
        assert_eq!((a.next().status, b.next().status), (REM_INV_REQ, LOC_LEN));
        let mut kinds = [next_event(b.context).0, next_event(b.context).0];
        kinds.sort_unstable();
        assert_eq!(kinds, [2, QP_LAST_WQE_REACHED], "QP_REQ_ERR, and that it takes no more");
        assert_eq!((to_state(a.qp, RESET), to_state(b.qp, RESET)), (0, 0));
        connect(&a, &b, &TERMS);
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!((a.next().status, b.next().wr_id), (OK, 1));
    });
}

/// The keys of its receives are those of its own protection domain.
#[test]
fn a_shared_queue_has_its_own_protection_domain() {
    Softrnic::new().alone(|| {
        let (mut b, other) = (Node::new(1, 64), Node::new(1, 64));
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        let pd = ibv_alloc_pd(b.context);
        let srq = create(pd, 4, 2).expect("a shared receive queue");
        b.qp = qp_on(srq, 2, b.pd, b.cq);
        let mr = ibv_reg_mr(pd, b.memory.as_mut_ptr().cast(), 64, ALL_ACCESS);
        // SAFETY: a live MR.
        let lkey = unsafe { (*mr).lkey };
        assert_eq!(post(srq, 1, &[Sge { lkey, ..b.sge(0, 8) }]), 0);
        assert_eq!(post(srq, 2, &[b.sge(0, 8)]), 0);
        let a = Node::new(0, 64);
        connect(&a, &b, &TERMS);
        for (want, seen) in [(OK, OK), (REM_OP, LOC_PROT)] {
            a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], ..WORK });
            assert_eq!((a.next().status, b.next().status), (want, seen));
        }
        drop(other);
    });
}

#[test]
fn datagrams_take_shared_receives() {
    Softrnic::new().alone(|| {
        let (mut b, srq) = node_on_srq(1, 256, 8);
        let a = ud_node(0, 64, 8);
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        b.qp = qp_on(srq, UD, b.pd, b.cq);
        ready(b.qp, QKEY);
        let way = handle_for(&a, &way_to(b.gid, 1)).expect("a handle");
        let sges = [a.sge(0, 8)];
        let work = Work { opcode: SEND, sges: &sges, to: to(way, b.qpn(), QKEY), ..WORK };
        for id in 0..20 {
            assert_eq!(post(srq, id, &[b.sge(0, 128)]), 0);
            a.send(work);
            let wc = b.next();
            assert_eq!((a.next().status, wc.status, wc.wr_id), (OK, OK, id));
            assert_eq!((wc.byte_len as usize, wc.src_qp), (HEADER + 8, a.qpn()));
        }
        a.send(work);
        assert_eq!(a.next().status, OK);
        assert!(b.poll().is_none(), "dropped");
    });
}

const SENDERS: usize = 3;

/// Many take from one queue at a time, from two processes: each receive is taken once, and each
/// message comes.
#[test]
fn each_receive_is_taken_once() {
    const EACH: u32 = 300;
    const ROOM: u32 = 16;
    Softrnic::new().pair(|side, mut socket| {
        let terms = TERMS;
        let mut nodes: Vec<Node> = (0..SENDERS).map(|_| Node::new(0, 64)).collect();
        let (receiver, srq) = node_on_srq(1, ROOM as usize * 8, ROOM);
        let mut targets = vec![];
        // The senders of side 0 are in the receiver's process, those of side 1 are not.
        for number in 0..2 * SENDERS {
            let target = beside(&receiver, srq);
            let is_here = number < SENDERS;
            let address = Address { qpn: target.qpn(), psn: target.psn, ..receiver.address() };
            let sender = nodes[number % SENDERS].address();
            let (theirs, their_sender): (Address, Address) = socket.swap(&(address, sender));
            if side == 0 {
                target.connect(if is_here { &sender } else { &their_sender }, &terms);
                targets.push(target);
                if is_here {
                    nodes[number].connect(&address, &terms);
                }
            } else if !is_here {
                nodes[number % SENDERS].connect(&theirs, &terms);
            }
            socket.barrier();
        }
        if side == 0 {
            (0..u64::from(ROOM))
                .for_each(|id| assert_eq!(post(srq, id, &[receiver.sge(id as usize * 8, 8)]), 0));
        }
        socket.barrier();
        thread::scope(|scope| {
            for node in &mut nodes {
                let node = Sending(node);
                scope.spawn(move || node.send_all(EACH));
            }
            if side == 0 {
                let mut next = std::collections::HashMap::<u32, u32>::new();
                for _ in 0..2 * SENDERS as u32 * EACH {
                    let wc = receiver.next();
                    assert_eq!(wc.status, OK);
                    let at = wc.wr_id as usize * 8;
                    let number =
                        u32::from_ne_bytes(std::array::from_fn(|i| receiver.memory[at + i]));
                    let expected = next.insert(wc.qp_num, number + 1).unwrap_or(0);
                    assert_eq!(number, expected, "of queue pair {}", wc.qp_num);
                    assert_eq!(post(srq, wc.wr_id, &[receiver.sge(at, 8)]), 0);
                }
                assert_eq!(next.len(), 2 * SENDERS);
            }
        });
        socket.barrier();
    });
}

/// A node that one thread alone uses.
struct Sending<'a>(&'a mut Node);

// SAFETY: the library may be called from every thread.
unsafe impl Send for Sending<'_> {}

impl Sending<'_> {
    fn send_all(self, count: u32) {
        for number in 0..count {
            send_number(self.0, number);
            assert_eq!(self.0.next().status, OK);
        }
    }
}

/// Senders that are killed while they take receives lose none of them.
#[test]
fn killed_senders_keep_no_receive() {
    const ROUNDS: u64 = 12;
    const ROOM: u32 = 8;
    enter(|side, mut socket| {
        let terms = TERMS;
        if side == 1 {
            let mut node = Node::new(0, 64);
            let peer: Address = socket.swap(&node.address());
            node.connect(&peer, &terms);
            socket.barrier();
            return (0..u32::MAX).for_each(|number| {
                send_number(&mut node, number);
                node.next();
            });
        }
        let (node, srq) = node_on_srq(1, 4096, ROOM);
        for round in 0..ROUNDS {
            let peer: Address = socket.swap(&node.address());
            node.connect(&peer, &terms);
            socket.barrier();
            while post(srq, 0, &[node.sge(0, 8)]) == 0 {}
            for _ in 0..20 + round {
                assert_eq!(node.next().status, OK);
                assert_eq!(post(srq, 0, &[node.sge(0, 8)]), 0);
            }
            // The sender is killed here.
            socket.barrier();
            socket.barrier();
            assert_eq!(to_state(node.qp, RESET), 0);
            // What is left untaken is still there, and what was taken is free.
            let (mut posted, mut taken) = (0, 0);
            let own = Node::new(0, 64);
            connect(&own, &node, &Terms { rnr_retry: 0, ..terms });
            while post(srq, 1, &[node.sge(0, 8)]) == 0 {
                posted += 1;
            }
            loop {
                own.send(Work { opcode: SEND, ..WORK });
                if own.next().status != OK {
                    break;
                }
                assert_eq!(node.next().status, OK);
                taken += 1;
            }
            assert_eq!(taken, ROOM, "round {round}: {posted} posted");
            assert_eq!(to_state(node.qp, RESET), 0);
            own.close();
        }
        assert_eq!((ibv_destroy_qp(node.qp), ibv_destroy_srq(srq)), (0, 0));
    });
    let softrnic = Softrnic::new();
    let (receiver, mut to_receiver) = softrnic.start(0, &[]);
    for _ in 0..ROUNDS {
        let (mut sender, mut to_sender) = softrnic.start(1, &[]);
        let (theirs, ours): (Address, Address) = (to_sender.recv(), to_receiver.recv());
        to_sender.send(&ours);
        to_receiver.send(&theirs);
        let (a, b): (u8, u8) = (to_sender.recv(), to_receiver.recv());
        to_sender.send(&b);
        to_receiver.send(&a);
        to_receiver.barrier();
        sender.signal(libc::SIGKILL);
        assert!(sender.ended().is_killed_by(libc::SIGKILL));
        to_receiver.barrier();
    }
    receiver.finish();
    softrnic.assert_clean();
}

type Create = unsafe extern "C" fn(Ptr) -> Ptr;
type Destroy = unsafe extern "C" fn(Ptr) -> i32;
type GetEvent = unsafe extern "C" fn(Ptr, *mut *mut Cq, *mut Ptr) -> i32;
type Ack = unsafe extern "C" fn(*mut Cq, u32);
type Arm = unsafe extern "C" fn(*mut Cq, i32) -> i32;

fn is_readable(fd: i32, wait_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
}

fn set_nonblocking(fd: i32) {
    // SAFETY: plain fcntl on a live descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
}

#[test]
fn a_completion_channel_wakes_the_receiver() {
    Softrnic::new().pair(|side, mut socket| {
        let mut node = Node::new(0, 64);
        // SAFETY: the functions' types in the verbs interface.
        let (create, destroy, get, ack, arm): (Create, Destroy, GetEvent, Ack, Arm) = unsafe {
            (
                std::mem::transmute::<Ptr, Create>(symbol(
                    "ibv_create_comp_channel", "IBVERBS_1.0",
                )),
                std::mem::transmute::<Ptr, Destroy>(symbol(
                    "ibv_destroy_comp_channel", "IBVERBS_1.0",
                )),
                std::mem::transmute::<Ptr, GetEvent>(symbol("ibv_get_cq_event", "IBVERBS_1.1")),
                std::mem::transmute::<Ptr, Ack>(symbol("ibv_ack_cq_events", "IBVERBS_1.1")),
                std::mem::transmute::<Ptr, Arm>(op(node.context, 12)),
            )
        };
        // SAFETY: live handles; the channel's descriptor lies at byte 8.
        unsafe {
            let channel = create(node.context);
            let fd = *channel.cast::<u8>().add(8).cast::<i32>();
            let cq = ibv_create_cq(node.context, 16, 0x77 as Ptr, channel, 0);
            assert_eq!(ibv_destroy_qp(node.qp), 0);
            node.qp = create_qp(node.pd, cq, cq, CAP);
            node.psn = 1;
            node.connect_over(&mut socket, &TERMS);
            if side == 1 {
                node.recv(1, &[]);
                node.recv(2, &[]);
                assert_eq!(arm(cq, 0), 0);
            }
            socket.barrier();
            if side == 0 {
                node.send(Work { opcode: SEND, ..WORK });
                node.send(Work { opcode: SEND, ..WORK });
            } else {
                assert!(is_readable(fd, 60_000), "not woken");
                let (mut which, mut context) = (ptr::null_mut(), ptr::null_mut());
                assert_eq!(get(channel, &raw mut which, &raw mut context), 0);
                assert_eq!((which, context), (cq, 0x77 as Ptr));
                // Armed once, one event.
                line_is_quiet(fd);
                set_nonblocking(fd);
                assert_eq!(get(channel, &raw mut which, &raw mut context), -1);
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
                assert_eq!(destroy(channel), libc::EBUSY);
                ack(cq, 1);
            }
            socket.barrier();
            assert_eq!(ibv_destroy_qp(node.qp), 0);
            assert_eq!(ibv_destroy_cq(cq), 0);
            assert_eq!(destroy(channel), 0);
        }
    });
}

fn line_is_quiet(fd: i32) {
    assert!(!is_readable(fd, 50), "a second event");
}

#[test]
fn the_event_descriptor_may_be_nonblocking() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        // SAFETY: async_fd lies at byte 268 of a context.
        let fd = unsafe { *b.context.cast::<u8>().add(268).cast::<i32>() };
        set_nonblocking(fd);
        let mut event = AsyncEvent::default();
        assert_eq!(ibv_get_async_event(b.context, &mut event), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        a.send(Work { sges: &[a.sge(0, 8)], ..WORK });
        assert!(is_readable(fd, 60_000));
        assert_eq!(ibv_get_async_event(b.context, &mut event), 0);
        assert_eq!((event.element, event.kind), (b.qp as usize, 3));
    });
}

#[test]
fn uc_loses_silently() {
    Softrnic::new().alone(|| {
        let nodes = [Node::new(0, 64), Node::new(1, 64)].map(|mut node| {
            assert_eq!(ibv_destroy_qp(node.qp), 0);
            let mut init = empty_init();
            (init.send_cq, init.recv_cq, init.qp_type, init.cap) = (node.cq, node.cq, 3, CAP);
            node.qp = ibv_create_qp(node.pd, &mut init);
            assert!(!node.qp.is_null());
            node.psn = node.qpn() & 0xff;
            node
        });
        for (node, peer) in [(&nodes[0], &nodes[1]), (&nodes[1], &nodes[0])] {
            assert_eq!(node.to_init(7), 0);
            let rc_only = 1 << 17 | 1 << 15;
            let attr = rtr(&peer.address(), &TERMS);
            assert_eq!(modify(node.qp, &attr, RTR_MASK), libc::EINVAL, "attributes of RC");
            assert_eq!(modify(node.qp, &attr, RTR_MASK & !rc_only), 0);
            assert_eq!(
                modify(node.qp, &QpAttr { state: RTS, sq_psn: node.psn, ..attr }, 1 | 1 << 16),
                0
            );
        }
        let [a, b] = &nodes;
        // No receive: lost, but sent.
        a.send(Work { opcode: SEND_IMM, imm: 1, ..WORK });
        assert_eq!(a.next().status, OK);
        b.recv(4, &[]);
        a.send(Work { opcode: SEND_IMM, imm: 2, ..WORK });
        assert_eq!((a.next().status, b.next().imm), (OK, 2));
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        a.send(Work { opcode: SEND_IMM, imm: 3, ..WORK });
        assert_eq!(a.next().status, OK);
    });
}

/// Processes come and go at the same time, over and over: no process finds a fabric that is half
/// made or half removed.
#[test]
fn many_processes_come_and_go() {
    enter(|_, mut socket| {
        let node = Node::new(0, 4096);
        node.connect(&node.address(), &TERMS);
        node.recv(1, &[node.sge(0, 8)]);
        node.send(Work { opcode: SEND, sges: &[node.sge(8, 8)], ..WORK });
        assert!((0..2).all(|_| node.next().status == OK));
        socket.send(&1u8);
        node.close();
    });
    let softrnic = Softrnic::new();
    for round in 0..5u64 {
        let running: Vec<_> = (0..12)
            .map(|i| {
                thread::sleep(Duration::from_micros(round * 400));
                softrnic.start(i, &[])
            })
            .collect();
        for (process, mut socket) in running {
            assert_eq!(socket.recv::<u8>(), 1);
            process.finish();
        }
        softrnic.assert_clean();
    }
}

/// A QP on whose receive CQ, apart from that for sends, an event is waited for.
fn wait_for_receives() -> (Node, Node, Channel) {
    let (a, mut b) = (Node::new(0, 64), Node::new(1, 64));
    let channel = Channel::new(b.context);
    let recv_cq = ibv_create_cq(b.context, 16, ptr::null_mut(), channel.handle, 0);
    assert_eq!(ibv_destroy_qp(b.qp), 0);
    b.qp = create_qp(b.pd, b.cq, recv_cq, CAP);
    b.psn = b.qpn() & 0xff;
    a.connect(&b.address(), &TERMS);
    b.connect(&a.address(), &TERMS);
    b.recv(7, &[]);
    Channel::arm(recv_cq);
    b.cq = recv_cq;
    (a, b, channel)
}

/// A process that waits for an event polls no CQ: the receives of a QP that fails are flushed all
/// the same.
#[test]
fn the_receives_of_a_failed_qp_are_told() {
    Softrnic::new().alone(|| {
        for fails_by_itself in [false, true] {
            let (a, b, channel) = wait_for_receives();
            let (bad, sender) =
                (Sge { addr: 0, length: 8, lkey: 0 }, if fails_by_itself { &b } else { &a });
            // With a key that no region has: a local or a remote one.
            let sges = if fails_by_itself { [bad] } else { [a.sge(0, 8)] };
            sender.send(Work { sges: &sges, ..WORK });
            assert!(channel.has_event(60_000), "of its own request: {fails_by_itself}");
            channel.take_event();
            let wc = b.next();
            assert_eq!((wc.wr_id, wc.status), (7, FLUSH));
        }
    });
}

/// Many QPs on one CQ, more than the bits of its doorbell.
#[test]
fn seventy_qps_on_one_cq() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let mut qps = vec![];
        for _ in 0..70 {
            let mut extra = (Node::new(0, 64), Node::new(1, 64));
            // The receiving QPs share b's CQ.
            assert_eq!(ibv_destroy_qp(extra.1.qp), 0);
            let cq = ibv_create_cq(extra.1.context, 8, ptr::null_mut(), ptr::null_mut(), 0);
            extra.1.qp = create_qp(extra.1.pd, cq, b.cq, CAP);
            extra.1.psn = 5;
            extra.0.connect(&extra.1.address(), &TERMS);
            extra.1.connect(&extra.0.address(), &TERMS);
            qps.push(extra);
        }
        for (i, (from, to)) in qps.iter().enumerate() {
            to.recv(i as u64, &[]);
            from.send(Work { opcode: SEND, ..WORK });
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
        let (a, _b) = local_pair(64, &TERMS);
        let (c, _d) = local_pair(64, &TERMS);
        let count = 20_000u64;
        let post = |qp: usize, cq: usize| {
            thread::spawn(move || {
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
                            thread::yield_now();
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
                    if let Some(wc) = poll(cq) {
                        break wc;
                    }
                    thread::yield_now();
                };
                assert_eq!((wc.wr_id, wc.status), (want, OK));
            }
        }
        posters.into_iter().for_each(|p| assert!(p.join().is_ok()));
    });
}

/// An application that posts a send for each completion of one, as it polls it, gets its receives
/// all the same: over UC and UD nothing else would end that.
#[test]
fn sends_that_go_on_do_not_hold_up_receives() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let send = |node: &Node| node.send(Work { opcode: WRITE, ..WORK });
        (0..2).for_each(|_| send(&a));
        a.recv(7, &[]);
        b.send(Work { opcode: SEND, ..WORK });
        let found = (0..10).find_map(|_| {
            let mut out = [Wc::default(); 2];
            let count = poll_cq(a.cq, 2, out.as_mut_ptr()) as usize;
            (0..count).for_each(|_| send(&a));
            out[..count].iter().find(|wc| wc.wr_id == 7).copied()
        });
        assert_eq!(found.expect("the receive").status, OK);
    });
}

/// Two connected nodes; the completions of the first one go to `cq`.
fn pair_on(cq: *mut Cq) -> (Node, Node) {
    let (mut a, b) = (Node::new(0, 64), Node::new(1, 64));
    assert_eq!(ibv_destroy_qp(a.qp), 0);
    a.qp = create_qp(a.pd, cq, cq, CAP);
    a.connect(&b.address(), &TERMS);
    b.connect(&a.address(), &TERMS);
    (a, b)
}

/// The same of several queue pairs: those whose bit of the doorbell is higher, and those that share
/// one.
#[test]
fn a_queue_pair_that_goes_on_does_not_hold_up_others() {
    Softrnic::new().alone(|| {
        let mut nodes = vec![local_pair(64, &TERMS)];
        let cq = nodes[0].0.cq;
        nodes.extend((0..65).map(|_| pair_on(cq)));
        let send = |at: usize| nodes[at].0.send(Work { id: at as u64, opcode: WRITE, ..WORK });
        for at in [0, 40, 64] {
            send(at);
        }
        let mut missing = vec![40, 64];
        for _ in 0..1000 {
            let Some(wc) = poll(cq) else { continue };
            missing.retain(|&at| at != wc.wr_id);
            if wc.wr_id == 0 {
                send(0);
            }
        }
        assert_eq!(missing, [0u64; 0]);
    });
}
