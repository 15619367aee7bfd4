//! What a device does that is asked for more inline data than it has.

use std::io::Error;
use std::ptr;

use crate::common::node::{CAP, Node, Terms, Work, create_qp, local_pair};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

/// A queue pair that is to have so many inline bytes; the bytes that it is granted, or the errno, which was `errno_before`.
fn granted(node: &Node, max_inline_data: u32, errno_before: i32) -> Result<u32, i32> {
    let mut init = QpInit {
        user: ptr::null_mut(),
        send_cq: node.cq,
        recv_cq: node.cq,
        srq: ptr::null_mut(),
        cap: Cap { max_inline_data, ..CAP },
        qp_type: 2,
        sq_sig_all: 0,
    };
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno_before };
    let qp = ibv_create_qp(node.pd, &mut init);
    if qp.is_null() {
        return Err(Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    let granted = init.cap;
    assert_eq!(Cap { max_inline_data: 0, ..granted }, Cap { max_inline_data: 0, ..CAP });
    assert_eq!(ibv_query_qp(qp, &mut QpAttr::default(), 1, &mut init), 0);
    assert_eq!(init.cap, granted);
    assert_eq!(ibv_destroy_qp(qp), 0);
    Ok(granted.max_inline_data)
}

/// A node whose own queue pair asks for none.
fn node() -> Node {
    Node::with(0, 64, Cap { max_inline_data: 0, ..CAP }, 256)
}

#[test]
fn too_much_inline_data_is_refused() {
    Softrnic::new().env("SOFTRNIC_MAX_INLINE", "96").alone(|| {
        let node = node();
        let grants = [0, 64, 96, 97, 256].map(|bytes| granted(&node, bytes, libc::ENOMEM));
        assert_eq!(grants, [Ok(0), Ok(64), Ok(96), Err(libc::EINVAL), Err(libc::EINVAL)]);
    });
}

#[test]
fn a_refusal_may_leave_errno_as_it_was() {
    let env = [("SOFTRNIC_MAX_INLINE", "96"), ("SOFTRNIC_INLINE_EXCESS", "silent")];
    Softrnic::new().envs(&env).alone(|| {
        let node = node();
        assert_eq!(granted(&node, 96, 0), Ok(96));
        assert_eq!([0, libc::ENOMEM].map(|before| granted(&node, 97, before)), [Err(0), Err(libc::ENOMEM)]);
        let too_long = Cap { max_send_wr: 1 << 20, ..CAP };
        assert!(create_qp(node.pd, node.cq, node.cq, too_long).is_null());
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::EINVAL), "other refusals have their reasons");
    });
}

#[test]
fn less_may_be_granted_than_asked_for() {
    let env = [("SOFTRNIC_MAX_INLINE", "96"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    Softrnic::new().envs(&env).alone(|| {
        let node = node();
        assert_eq!([0, 64, 96, 97, 256].map(|bytes| granted(&node, bytes, 0)), [0, 64, 96, 96, 96].map(Ok));
    });
}

#[test]
fn a_device_may_have_none() {
    let env = [("SOFTRNIC_MAX_INLINE", "0"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        assert_eq!([0, 64].map(|bytes| granted(&a, bytes, 0)), [0, 0].map(Ok));
        let sges = [a.sge(0, 8)];
        let to = (b.address().addr, b.address().rkey);
        let work = |flags| Work { sges: &sges, to, flags, ..Work::default() };
        assert_eq!(a.try_send(work(INLINE | SIGNALED)), libc::EINVAL);
        a.send(work(SIGNALED));
        assert_eq!(a.next().status, OK);
    });
}
