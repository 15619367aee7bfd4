//! Thread domains, parent domains, and completion queues for a single thread.

use crate::common::datagrams::{self, way_to};
use crate::common::domains::{
    self, ALLOCATORS, PD_CONTEXT, free_thread_domain, parent_domain, thread_domain,
};
use crate::common::extended_cqs::{CqInit, INIT, create, end_poll, head, start_poll};
use crate::common::prelude::*;
use crate::common::srqs;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Barrier};
use std::thread;
use testkit::process::Ended;
use testkit::side::enter;

/// For a single thread.
const SINGLE: CqInit = CqInit { fields: 1, flags: 1, ..INIT };

/// A node whose queue pair is in a thread domain, and whose completion queue is for a single
/// thread; with its two domains.
fn node_of_one_thread(device: usize) -> (Node, Ptr, Ptr) {
    let mut node = Node::new(device, 64);
    assert_eq!((ibv_destroy_qp(node.qp), ibv_destroy_cq(node.cq)), (0, 0));
    let (td, parent) = domains::of(&node);
    node.cq = create(node.context, &SINGLE).expect("for a single thread");
    node.qp = create_qp(parent, node.cq, node.cq, CAP);
    assert!(!node.qp.is_null());
    (node, td, parent)
}

fn connect(a: &Node, b: &Node) {
    a.connect(&b.address(), &TERMS);
    b.connect(&a.address(), &TERMS);
}

#[test]
fn a_parent_domain_is_its_protection_domain() {
    Softrnic::new().alone(|| {
        let (mut a, td, parent) = node_of_one_thread(0);
        let b = Node::new(1, 64);
        connect(&a, &b);
        let to = b.at(0);
        // Memory of the protection domain, then of the parent domain.
        a.send(Work { sges: &[a.sge(0, 8)], to, ..WORK });
        assert_eq!(a.next().status, OK);
        assert_eq!(ibv_dereg_mr(a.mr), 0);
        a.mr = ibv_reg_mr(parent, a.memory.as_mut_ptr().cast(), 64, 7);
        // SAFETY: a live region.
        assert_eq!(unsafe { (*a.mr).pd }, parent);
        a.send(Work { sges: &[a.sge(0, 8)], to, ..WORK });
        b.send(Work { sges: &[b.sge(0, 8)], to: a.at(0), ..WORK });
        assert_eq!((a.next().status, b.next().status), (OK, OK));
        // Of another domain it is not.
        let other = ibv_alloc_pd(a.context);
        let foreign = ibv_reg_mr(other, a.memory.as_mut_ptr().cast(), 64, 7);
        // SAFETY: a live region.
        let lkey = unsafe { (*foreign).lkey };
        a.send(Work { sges: &[Sge { lkey, ..a.sge(0, 8) }], to, ..WORK });
        assert_eq!(a.next().status, LOC_PROT);
        assert_eq!((ibv_dereg_mr(foreign), ibv_dealloc_pd(other)), (0, 0));
        assert_eq!((ibv_destroy_qp(a.qp), ibv_destroy_cq(a.cq)), (0, 0));
        // As with mlx5, memory does not hold the parent domain.
        assert_eq!((ibv_dealloc_pd(parent), free_thread_domain(a.context, td)), (0, 0));
        assert_eq!(ibv_dealloc_pd(a.pd), libc::EBUSY, "the memory is in it");
        assert_eq!((ibv_dereg_mr(a.mr), ibv_dealloc_pd(a.pd)), (0, 0));
    });
}

#[test]
fn address_handles_and_shared_queues_take_a_parent_domain() {
    Softrnic::new().alone(|| {
        let (a, b) = (datagrams::ud_node(0, 64, 8), datagrams::ud_node(1, 128, 8));
        let (td, parent) = domains::of(&a);
        let srq = srqs::create(parent, 4, 1).expect("a shared receive queue");
        let way = ibv_create_ah(parent, &way_to(b.gid, 1));
        assert!(!way.is_null());
        b.recv(1, &[b.sge(0, 128)]);
        let to = datagrams::to(way, b.qpn(), datagrams::QKEY);
        a.send(Work { opcode: SEND, sges: &[a.sge(0, 8)], to, ..WORK });
        assert_eq!((a.next().status, b.next().byte_len), (OK, 48));
        let qp = srqs::qp_on(srq, 2, parent, a.cq);
        assert_eq!(ibv_dealloc_pd(parent), libc::EBUSY);
        assert_eq!(
            (ibv_destroy_qp(qp), ibv_dealloc_pd(parent), free_thread_domain(a.context, td)),
            (0, 0, 0)
        );
        assert_eq!((ibv_destroy_ah(way), ibv_destroy_srq(srq)), (0, 0));
        a.close();
    });
}

#[test]
fn what_is_in_use_is_not_given_back() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let (context, pd) = (node.context, ibv_alloc_pd(node.context));
        let td = thread_domain(context, 0).expect("a thread domain");
        let first = parent_domain(context, pd, td, 0).expect("a parent domain");
        let nested = parent_domain(context, first, ptr::null_mut(), 0)
            .expect("of the same protection domain");
        assert_eq!(
            (free_thread_domain(context, td), ibv_dealloc_pd(pd)),
            (libc::EBUSY, libc::EBUSY)
        );
        let init = CqInit { fields: 2, parent_domain: first, ..INIT };
        let cq = create(context, &init).expect("in a parent domain");
        let qp = create_qp(first, cq, cq, CAP);
        assert_eq!((ibv_dealloc_pd(first), ibv_destroy_qp(qp)), (libc::EBUSY, 0));
        assert_eq!((ibv_dealloc_pd(first), ibv_destroy_cq(cq)), (libc::EBUSY, 0));
        assert_eq!((ibv_dealloc_pd(first), free_thread_domain(context, td)), (0, 0));
        assert_eq!(
            (ibv_dealloc_pd(pd), ibv_dealloc_pd(nested), ibv_dealloc_pd(pd)),
            (libc::EBUSY, 0, 0)
        );
        node.close();
    });
}

#[test]
fn what_domains_do_not_have_is_refused() {
    Softrnic::new().alone(|| {
        let Node { context, pd, .. } = Node::new(0, 64);
        let none = ptr::null_mut();
        assert_eq!(thread_domain(context, 1), Err(libc::EINVAL));
        assert_eq!(parent_domain(context, none, none, 0), Err(libc::EINVAL));
        assert_eq!(parent_domain(context, pd, none, 8), Err(libc::EINVAL));
        assert_eq!(
            parent_domain(context, pd, none, ALLOCATORS | PD_CONTEXT),
            Err(libc::EOPNOTSUPP)
        );
        for domain in [none, pd] {
            let init = CqInit { fields: 2, parent_domain: domain, ..INIT };
            assert_eq!(create(context, &init), Err(libc::EINVAL), "no parent domain");
        }
    });
}

#[test]
fn a_device_may_have_no_thread_domains() {
    for (value, code) in [("absent", libc::EOPNOTSUPP), ("exhausted", libc::ENOMEM)] {
        Softrnic::new().env("SOFTRNIC_THREAD_DOMAINS", value).alone(|| {
            let Node { context, pd, .. } = Node::new(0, 64);
            assert_eq!(thread_domain(context, 0), Err(code));
            assert_eq!(parent_domain(context, pd, ptr::null_mut(), 0), Err(code));
            assert_eq!(create(context, &SINGLE), Err(code));
            assert!(create(context, &INIT).is_ok(), "a queue for all threads");
        });
    }
}

/// Runs what the calling test has given to [`enter`], which is to end by an abort; what it printed.
fn violation() -> String {
    let softrnic = Softrnic::new();
    let Ended { status, output } = softrnic.start(0, &[]).0.ended();
    assert_eq!(status.signal(), Some(libc::SIGABRT), "{output}");
    // The next one removes what it has left.
    softrnic.start(1, &[]).0.finish();
    softrnic.assert_clean();
    output
}

/// Runs `body` on side 0.
fn on_side_0(side: usize, body: impl FnOnce()) {
    if side == 0 {
        body();
    } else {
        open(0);
    }
}

#[test]
fn a_second_thread_in_a_completion_queue_for_one_ends_the_process() {
    enter(|side, _: Peer| {
        on_side_0(side, || {
            let (a, _, _) = node_of_one_thread(0);
            let b = Node::new(1, 64);
            connect(&a, &b);
            a.send(Work { id: 5, ..WORK });
            assert_eq!((start_poll(a.cq), head(a.cq)), (0, (OK, 5)));
            let cq = a.cq as usize;
            let _ = thread::spawn(move || poll_cq(cq as *mut Cq, 1, &mut Wc::default())).join();
        });
    });
    assert!(violation().contains("two threads are in a completion queue"));
}

#[test]
fn a_queue_pair_that_goes_looks_at_its_completion_queue() {
    enter(|side, _: Peer| {
        on_side_0(side, || {
            let (a, _, _) = node_of_one_thread(0);
            let b = Node::new(1, 64);
            connect(&a, &b);
            a.send(WORK);
            assert_eq!(start_poll(a.cq), 0);
            let qp = a.qp as usize;
            let _ = thread::spawn(move || ibv_destroy_qp(qp as *mut Qp)).join();
        });
    });
    assert!(violation().contains("two threads are in a completion queue"));
}

#[test]
fn a_second_thread_in_a_queue_pair_of_a_thread_domain_ends_the_process() {
    enter(|side, _: Peer| {
        on_side_0(side, || {
            let (a, _, _) = node_of_one_thread(0);
            let b = Node::new(1, 64);
            connect(&a, &b);
            let qp = a.qp as usize;
            // So often that both are in it at some time.
            let begin = Arc::new(Barrier::new(2));
            let post = move || {
                begin.wait();
                for _ in 0..2_000_000 {
                    let mut list = [RecvWr {
                        wr_id: 1,
                        next: ptr::null_mut(),
                        sg_list: ptr::null_mut(),
                        num_sge: 0,
                    }; 2];
                    list[0].next = &raw mut list[1];
                    let mut bad = ptr::null_mut();
                    post_recv(qp as *mut Qp, list.as_mut_ptr(), &mut bad);
                }
            };
            let threads = [thread::spawn(post.clone()), thread::spawn(post)];
            for thread in threads {
                let _: thread::Result<()> = thread.join();
            }
        });
    });
    assert!(violation().contains("two threads are in the receive queue"));
}

#[test]
fn threads_may_take_turns() {
    Softrnic::new().alone(|| {
        let (a, td, parent) = node_of_one_thread(0);
        let b = Node::new(1, 64);
        connect(&a, &b);
        let (qp, cq) = (a.qp as usize, a.cq as usize);
        for _ in 0..3 {
            let turn = move || {
                let mut bad = ptr::null_mut();
                let mut receive = RecvWr {
                    wr_id: 1,
                    next: ptr::null_mut(),
                    sg_list: ptr::null_mut(),
                    num_sge: 0,
                };
                assert_eq!(post_recv(qp as *mut Qp, &mut receive, &mut bad), 0);
                assert_eq!(start_poll(cq as *mut Cq), libc::ENOENT);
                assert_eq!(poll_cq(cq as *mut Cq, 1, &mut Wc::default()), 0);
            };
            thread::spawn(turn).join().expect("it ends well");
            a.send(WORK);
            assert_eq!(start_poll(a.cq), 0);
            end_poll(a.cq);
        }
        assert_eq!((ibv_destroy_qp(a.qp), ibv_destroy_cq(a.cq)), (0, 0));
        assert_eq!((ibv_dealloc_pd(parent), free_thread_domain(a.context, td)), (0, 0));
    });
}
