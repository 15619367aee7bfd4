//! UD: datagrams, and the address handles that say where they go.

use std::thread;

use crate::common::datagrams::*;
use crate::common::node::{Node, Work, modify, to_state};
use crate::common::verbs::*;
use testkit::side::enter;
use testkit::softrnic::Softrnic;

const WITH_GRH: u32 = 1;
const WITH_IMM: u32 = 2;

/// A datagram of `bytes` from the beginning of `node`'s memory.
fn datagram<'a>(sges: &'a [Sge], way: (u64, u64)) -> Work<'a> {
    Work { opcode: SEND, sges, to: way, ..Work::default() }
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
            node.send(Work { opcode: SEND_IMM, imm: 77, ..datagram(&[node.sge(0, 6)], to(way, qpn, QKEY)) });
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
            assert_eq!((header[20], header[21], header[29]), (0x45, 9, 17), "IPv4, its traffic class, UDP");
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

/// The way back that the header of a datagram from `a` to `b` names, from and to entry `index`; with the header and the completion.
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
            assert_eq!((header[at.0] | u8::from(want.0 == 0x61), header[at.1]), want, "entry {index}");
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
        sender.send(datagram(&[sender.sge(0, 8)], to(handle_for(&sender, &way).expect("a handle"), b.qpn(), QKEY)));
        let wc = b.next();
        assert_eq!((wc.status, wc.byte_len, wc.flags), (OK, 48, 0), "40 bytes are left out, and nothing is in them");
        assert_eq!((wc.slid, wc.sl, wc.src_qp), (lid(&a), 3, sender.qpn()));
        let mut back = AhAttr::default();
        assert_eq!(ibv_init_ah_from_wc(b.context, 1, &wc, std::ptr::null(), &mut back), 0);
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
        assert_eq!(modify(a.qp, &QpAttr { state: RTS, qkey: 5, ..QpAttr::default() }, 1 | 1 << 6), 0);
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
        let spoils: [(u32, Spoil); 2] =
            [(LOC_LEN, |b| b.sge(0, 47)), (LOC_PROT, |b| Sge { lkey: 0xffff_ff01, ..b.sge(0, 128) })];
        for (status, spoiled) in spoils {
            let (a, b) = (ud_node(0, 64, 8), ud_node(1, 128, 8));
            b.recv(1, &[spoiled(&b)]);
            b.recv(2, &[b.sge(0, 128)]);
            a.send(datagram(&[a.sge(0, 8)], to(handle(&a, &b), b.qpn(), QKEY)));
            assert_eq!(a.next().status, OK, "the sender does not hear of it");
            let (failed, flushed) = (b.next(), b.next());
            assert_eq!((failed.wr_id, failed.status, flushed.wr_id, flushed.status), (1, status, 2, FLUSH));
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
            assert_eq!(a.try_send(Work { opcode, to: to(way, b.qpn(), QKEY), ..Work::default() }), libc::EINVAL);
        }
        assert_eq!(a.try_send(datagram(&[], to(std::ptr::null_mut(), b.qpn(), QKEY))), libc::EINVAL, "no handle");
        let other = ud_node(0, 64, 8);
        assert_eq!(a.try_send(datagram(&[], to(handle(&other, &b), b.qpn(), QKEY))), libc::EINVAL, "another domain's");
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
        let attr = QpAttr { port: 1, qkey: 7, sq_psn: 9, ..QpAttr::default() };
        for (state, mask) in [(INIT, UD_INIT_MASK), (RTR, 1), (RTS, UD_RTS_MASK)] {
            let attr = QpAttr { state, ..attr };
            for bit in (1..31).map(|b| 1 << b).filter(|b| mask & b != 0) {
                assert_eq!(modify(node.qp, &attr, mask & !bit), libc::EINVAL, "without {bit:#x}");
            }
            for connected in [3, 7, 8, 9, 10, 11, 12, 13, 15, 17, 20] {
                assert_eq!(modify(node.qp, &attr, mask | 1 << connected), libc::EINVAL, "with {connected}");
            }
            assert_eq!(modify(node.qp, &attr, mask), 0);
        }
        let (mut got, mut init) = (QpAttr::default(), crate::common::node::empty_init());
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

/// Many send to one queue pair at a time: each datagram comes whole, once, and in its sender's order.
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
        let senders: Vec<_> = (0..SENDERS).map(|_| thread::spawn(move || send_numbered(gid, qpn, EACH))).collect();
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
