//! SRQ: receives that several queue pairs share.

use std::thread;

use crate::common::datagrams::{self, HEADER, QKEY, UD, way_to};
use crate::common::node::{Address, Node, Terms, Work, to_state};
use crate::common::srqs::*;
use crate::common::verbs::*;
use testkit::side::enter;
use testkit::softrnic::Softrnic;

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
    node.send(Work { opcode: SEND, sges: &[node.sge(0, 4)], ..Work::default() });
}

#[test]
fn queue_pairs_take_their_receives_from_one_queue_in_order() {
    Softrnic::new().alone(|| {
        let (b, srq) = node_on_srq(1, 4096, 8);
        let c = beside(&b, srq);
        let (mut to_b, mut to_c) = (Node::new(0, 64), Node::new(0, 64));
        connect(&to_b, &b, &Terms::default());
        to_c.connect(&Address { qpn: c.qpn(), psn: c.psn, ..b.address() }, &Terms::default());
        c.connect(&to_c.address(), &Terms::default());
        for id in 0..4 {
            assert_eq!(post(srq, id, &[b.sge(id as usize * 8, 8)]), 0);
        }
        for (id, from_c) in [(0u64, false), (1, true), (2, true), (3, false)] {
            let (sender, receiver) = if from_c { (&mut to_c, c.qpn()) } else { (&mut to_b, b.qpn()) };
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
        assert_eq!(create(b.pd, 4, 17), Err(libc::EINVAL));
        assert_eq!(query(srq), SrqAttr { max_wr: 4, max_sge: 2, limit: 0 });
        let size = SrqAttr { max_wr: 8, ..SrqAttr::default() };
        assert_eq!(ibv_modify_srq(srq, &size, MAX_WR), libc::EINVAL, "it stays as it was made");
        assert_eq!(post(srq, 1, &[b.sge(0, 8); 3]), libc::EINVAL);
        assert!((0..4).all(|id| post(srq, id, &[]) == 0));
        assert_eq!(post(srq, 9, &[]), libc::ENOMEM);
        connect(&a, &b, &Terms::default());
        a.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!(a.next().status, OK);
        assert_eq!(post(srq, 9, &[]), libc::ENOMEM, "taken, but not polled");
        assert_eq!(b.next().wr_id, 0);
        assert_eq!((post(srq, 9, &[]), post(srq, 10, &[])), (0, libc::ENOMEM));
        // A queue pair that is reset throws its completions away.
        a.send(Work { opcode: SEND, ..Work::default() });
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
        connect(&a, &b, &Terms::default());
        (0..5).for_each(|id| assert_eq!(post(srq, id, &[]), 0));
        assert_eq!(arm(srq, 9), libc::EINVAL, "more than it has");
        assert_eq!((arm(srq, 4), query(srq).limit), (0, 4));
        let take = || {
            a.send(Work { opcode: SEND, ..Work::default() });
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
        assert_eq!(next_event(b.context), (SRQ_LIMIT_REACHED, srq as usize), "fewer are left already");
    });
}

#[test]
fn a_queue_pair_that_fails_says_that_it_takes_no_more() {
    Softrnic::new().alone(|| {
        let (b, srq) = node_on_srq(1, 64, 8);
        let a = Node::new(0, 64);
        (0..2).for_each(|id| assert_eq!(post(srq, id, &[]), 0));
        for round in 0..2 {
            connect(&a, &b, &Terms::default());
            assert_eq!(to_state(b.qp, ERR), 0);
            assert_eq!(next_event(b.context), (QP_LAST_WQE_REACHED, b.qp as usize), "round {round}");
            b.send(Work::default());
            assert_eq!(b.next().status, FLUSH);
            assert!(b.poll().is_none() && !b.has_event(), "the receives are the others'");
            assert_eq!((to_state(a.qp, RESET), to_state(b.qp, RESET)), (0, 0));
        }
        // By a peer: the receive that it has taken completes, the other one stays.
        connect(&a, &b, &Terms::default());
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], ..Work::default() });
        assert_eq!((a.next().status, b.next().status), (REM_INV_REQ, LOC_LEN));
        let mut kinds = [next_event(b.context).0, next_event(b.context).0];
        kinds.sort_unstable();
        assert_eq!(kinds, [2, QP_LAST_WQE_REACHED], "QP_REQ_ERR, and that it takes no more");
        assert_eq!((to_state(a.qp, RESET), to_state(b.qp, RESET)), (0, 0));
        connect(&a, &b, &Terms::default());
        a.send(Work { opcode: SEND, ..Work::default() });
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
        connect(&a, &b, &Terms::default());
        for (want, seen) in [(OK, OK), (REM_OP, LOC_PROT)] {
            a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], ..Work::default() });
            assert_eq!((a.next().status, b.next().status), (want, seen));
        }
        drop(other);
    });
}

#[test]
fn datagrams_take_shared_receives() {
    Softrnic::new().alone(|| {
        let (mut b, srq) = node_on_srq(1, 256, 8);
        let a = datagrams::ud_node(0, 64, 8);
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        b.qp = qp_on(srq, UD, b.pd, b.cq);
        datagrams::ready(b.qp, QKEY);
        let way = datagrams::handle_for(&a, &way_to(b.gid, 1)).expect("a handle");
        let sges = [a.sge(0, 8)];
        let work = Work { opcode: SEND, sges: &sges, to: datagrams::to(way, b.qpn(), QKEY), ..Work::default() };
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

/// Many take from one queue at a time, from two processes: each receive is taken once, and each message comes.
#[test]
fn each_receive_is_taken_once() {
    const EACH: u32 = 300;
    const ROOM: u32 = 16;
    Softrnic::new().pair(|side, mut socket| {
        let terms = Terms::default();
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
            (0..u64::from(ROOM)).for_each(|id| assert_eq!(post(srq, id, &[receiver.sge(id as usize * 8, 8)]), 0));
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
                    let number = u32::from_ne_bytes(std::array::from_fn(|i| receiver.memory[at + i]));
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
        let terms = Terms::default();
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
                own.send(Work { opcode: SEND, ..Work::default() });
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
