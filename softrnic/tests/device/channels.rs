//! Descriptors to wait on, UC, and many processes at once.

use std::ptr;
use std::time::Duration;

use crate::common::channel::Channel;
use crate::common::node::{CAP, Node, Terms, Work, create_qp, empty_init, local_pair, modify, rtr};
use crate::common::verbs::*;
use testkit::side::enter;
use testkit::softrnic::Softrnic;

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
                std::mem::transmute::<Ptr, Create>(symbol("ibv_create_comp_channel", "IBVERBS_1.0")),
                std::mem::transmute::<Ptr, Destroy>(symbol("ibv_destroy_comp_channel", "IBVERBS_1.0")),
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
            node.connect_over(&mut socket, &Terms::default());
            if side == 1 {
                node.recv(1, &[]);
                node.recv(2, &[]);
                assert_eq!(arm(cq, 0), 0);
            }
            socket.barrier();
            if side == 0 {
                node.send(Work { opcode: SEND, ..Work::default() });
                node.send(Work { opcode: SEND, ..Work::default() });
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
        let (a, b) = local_pair(64, &Terms::default());
        // SAFETY: async_fd lies at byte 268 of a context.
        let fd = unsafe { *b.context.cast::<u8>().add(268).cast::<i32>() };
        set_nonblocking(fd);
        let mut event = AsyncEvent::default();
        assert_eq!(ibv_get_async_event(b.context, &mut event), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        a.send(Work { sges: &[a.sge(0, 8)], ..Work::default() });
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
            let attr = rtr(&peer.address(), &Terms::default());
            assert_eq!(modify(node.qp, &attr, RTR_MASK), libc::EINVAL, "attributes of RC");
            assert_eq!(modify(node.qp, &attr, RTR_MASK & !rc_only), 0);
            assert_eq!(modify(node.qp, &QpAttr { state: RTS, sq_psn: node.psn, ..attr }, 1 | 1 << 16), 0);
        }
        let [a, b] = &nodes;
        // No receive: lost, but sent.
        a.send(Work { opcode: SEND_IMM, imm: 1, ..Work::default() });
        assert_eq!(a.next().status, OK);
        b.recv(4, &[]);
        a.send(Work { opcode: SEND_IMM, imm: 2, ..Work::default() });
        assert_eq!((a.next().status, b.next().imm), (OK, 2));
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        a.send(Work { opcode: SEND_IMM, imm: 3, ..Work::default() });
        assert_eq!(a.next().status, OK);
    });
}

/// Processes come and go at the same time, over and over: no process finds a fabric that is half made or half removed.
#[test]
fn many_processes_come_and_go() {
    enter(|_, mut socket| {
        let node = Node::new(0, 4096);
        node.connect(&node.address(), &Terms::default());
        node.recv(1, &[node.sge(0, 8)]);
        node.send(Work { opcode: SEND, sges: &[node.sge(8, 8)], ..Work::default() });
        assert!((0..2).all(|_| node.next().status == OK));
        socket.send(&1u8);
        node.close();
    });
    let softrnic = Softrnic::new();
    for round in 0..5u64 {
        let running: Vec<_> = (0..12)
            .map(|i| {
                std::thread::sleep(Duration::from_micros(round * 400));
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
    a.connect(&b.address(), &Terms::default());
    b.connect(&a.address(), &Terms::default());
    b.recv(7, &[]);
    Channel::arm(recv_cq);
    b.cq = recv_cq;
    (a, b, channel)
}

/// A process that waits for an event polls no CQ: the receives of a QP that fails are flushed all the same.
#[test]
fn the_receives_of_a_failed_qp_are_told() {
    Softrnic::new().alone(|| {
        for fails_by_itself in [false, true] {
            let (a, b, channel) = wait_for_receives();
            let (bad, sender) = (Sge { addr: 0, length: 8, lkey: 0 }, if fails_by_itself { &b } else { &a });
            // With a key that no region has: a local or a remote one.
            let sges = if fails_by_itself { [bad] } else { [a.sge(0, 8)] };
            sender.send(Work { sges: &sges, ..Work::default() });
            assert!(channel.has_event(60_000), "of its own request: {fails_by_itself}");
            channel.take_event();
            let wc = b.next();
            assert_eq!((wc.wr_id, wc.status), (7, FLUSH));
        }
    });
}
