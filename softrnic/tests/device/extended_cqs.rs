//! Extended completion queues (`ibv_create_cq_ex`), and other sizes of completion queues.

use crate::common::datagrams::{self, QKEY, way_to};
use crate::common::extended_cqs::{
    CqInit, INIT, STANDARD, call, create, end_poll, head, next_poll, start_poll,
};
use crate::common::prelude::*;
use std::thread;

/// A node whose queue pair of this `ibv_qp_type` has an extended queue.
fn node(device: usize, qp_type: i32) -> Node {
    let mut node = Node::new(device, 256);
    assert_eq!((ibv_destroy_qp(node.qp), ibv_destroy_cq(node.cq)), (0, 0));
    node.cq = create(node.context, &INIT).expect("an extended queue");
    node.qp = create_qp_of(qp_type, node.pd, node.cq, node.cq, CAP);
    node
}

#[test]
fn completions_are_read_field_by_field() {
    Softrnic::new().alone(|| {
        let (a, b) = (Node::new(0, 256), node(1, 2));
        a.connect(&b.address(), &TERMS);
        b.connect(&a.address(), &TERMS);
        assert_eq!(start_poll(b.cq), libc::ENOENT);
        (0..3).for_each(|id| b.recv(id, &[b.sge(0, 64)]));
        a.send(Work { opcode: SEND_IMM, imm: 99, sges: &[a.sge(0, 7)], ..WORK });
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 9)], ..WORK });
        assert_eq!((start_poll(b.cq), head(b.cq)), (0, (OK, 0)));
        // Opcode, byte count, immediate data, queue pair, flags.
        assert_eq!(
            [168, 184, 192, 200, 216].map(|at| call::<u32>(b.cq, at)),
            [128, 7, 99, b.qpn(), 2]
        );
        assert_eq!((next_poll(b.cq), head(b.cq)), (0, (OK, 1)));
        assert_eq!([184, 216].map(|at| call::<u32>(b.cq, at)), [9, 0]);
        assert_eq!(next_poll(b.cq), libc::ENOENT);
        end_poll(b.cq);
        // The other way still goes.
        a.send(Work { opcode: SEND, ..WORK });
        assert_eq!((b.next().wr_id, start_poll(b.cq)), (2, libc::ENOENT));
    });
}

#[test]
fn datagrams_name_their_sender_there_too() {
    Softrnic::new().alone(|| {
        let (a, b) = (datagrams::ud_node(0, 64, 8), node(1, datagrams::UD));
        datagrams::ready(b.qp, QKEY);
        b.recv(5, &[b.sge(0, 128)]);
        let way = datagrams::handle_for(&a, &way_to(b.gid, 1)).expect("a handle");
        let to = datagrams::to(way, b.qpn(), QKEY);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], to, ..WORK });
        assert_eq!((start_poll(b.cq), head(b.cq)), (0, (OK, 5)));
        // Byte count, sender, flags; the kind of packet.
        assert_eq!([184, 208, 216].map(|at| call::<u32>(b.cq, at)), [48, a.qpn(), 1]);
        assert_eq!(
            (call::<u32>(b.cq, 224), call::<u8>(b.cq, 232), call::<u8>(b.cq, 240)),
            (0, 10, 0)
        );
        end_poll(b.cq);
    });
}

#[test]
fn what_an_extended_queue_does_not_have_is_refused() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        for (fields, flags, wc_flags, want) in [
            (0, 0, 1 << 7, libc::EOPNOTSUPP),
            (1, 2, STANDARD, libc::EOPNOTSUPP),
            (4, 0, STANDARD, libc::EOPNOTSUPP),
        ] {
            let init = CqInit { fields, flags, wc_flags, ..INIT };
            assert_eq!(
                create(node.context, &init).err(),
                Some(want),
                "{fields} {flags} {wc_flags:x}"
            );
        }
        for init in [
            CqInit { cqe: 0, ..INIT },
            CqInit { cqe: 1 << 20, ..INIT },
            CqInit { vector: 1, ..INIT },
        ] {
            assert_eq!(create(node.context, &init).err(), Some(libc::EINVAL));
        }
        let alone = create(node.context, &CqInit { fields: 1, flags: 1, ..INIT })
            .expect("for a single thread");
        assert_eq!(ibv_destroy_cq(alone), 0);
    });
}

/// Threads that look at completions of one queue take turns: nobody reads another's.
#[test]
fn threads_take_turns_at_an_extended_queue() {
    const EACH: u64 = 400;
    Softrnic::new().alone(|| {
        let (a, b) = (node(0, 2), Node::new(1, 64));
        a.connect(&b.address(), &TERMS);
        b.connect(&a.address(), &TERMS);
        let cq = a.cq as usize;
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                thread::spawn(move || {
                    let cq = cq as *mut Cq;
                    let mut ids = Vec::new();
                    while ids.last() != Some(&u64::MAX) {
                        if start_poll(cq) != 0 {
                            thread::yield_now();
                            continue;
                        }
                        let (before, flags) = (head(cq), call::<u32>(cq, 200));
                        thread::yield_now();
                        assert_eq!(
                            (head(cq), call::<u32>(cq, 200)),
                            (before, flags),
                            "it is still the same"
                        );
                        end_poll(cq);
                        ids.push(before.1);
                    }
                    ids
                })
            })
            .collect();
        let send = |id| {
            wait_until("room in the send queue", || {
                let rc = a.try_send(Work { id, ..WORK });
                assert!(rc == 0 || rc == libc::ENOMEM, "{rc}");
                rc == 0
            });
        };
        (0..EACH).for_each(send);
        // One for each thread.
        send(u64::MAX);
        send(u64::MAX);
        let mut ids: Vec<_> =
            pollers.into_iter().flat_map(|it| it.join().expect("it ends well")).collect();
        ids.sort_unstable();
        assert_eq!(ids[..EACH as usize], (0..EACH).collect::<Vec<_>>());
    });
}

#[test]
fn a_completion_queue_may_get_another_size() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        let cq = ibv_create_cq(a.context, 3, ptr::null_mut(), ptr::null_mut(), 0);
        assert_eq!(ibv_destroy_qp(a.qp), 0);
        a.qp = create_qp(a.pd, cq, cq, CAP);
        a.cq = cq;
        a.connect(&b.address(), &TERMS);
        let mut back = rtr(&a.address(), &TERMS);
        assert_eq!((to_state(b.qp, RESET), b.to_init(7)), (0, 0));
        back.rq_psn = a.psn;
        assert_eq!((modify(b.qp, &back, RTR_MASK), b.to_rts(&TERMS)), (0, 0));
        assert_eq!(
            (ibv_resize_cq(cq, 0), ibv_resize_cq(cq, 1 << 20)),
            (libc::EINVAL, libc::EINVAL)
        );
        assert_eq!(ibv_resize_cq(cq, 10), 0);
        // SAFETY: a live CQ.
        assert_eq!(unsafe { (*cq).cqe }, 15);
        (0..15).for_each(|id| a.send(Work { id, ..WORK }));
        assert_eq!(ibv_resize_cq(cq, 3), libc::EINVAL, "more are in it");
        assert!((0..15).all(|id| a.next().wr_id == id) && !a.has_event());
        assert_eq!(ibv_resize_cq(cq, 3), 0);
        (0..4).for_each(|id| a.send(Work { id, ..WORK }));
        assert_eq!(next_event(a.context).0, 0, "CQ_ERR: it has room for three");
    });
}
