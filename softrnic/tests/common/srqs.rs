//! Shared receive queues.

use std::io::Error;
use std::mem::transmute_copy;
use std::ptr;

use super::node::{CAP, Node};
use super::verbs::*;

/// Attribute bits of `ibv_modify_srq`.
pub const MAX_WR: i32 = 1;
pub const LIMIT: i32 = 2;

/// A shared receive queue, or errno.
pub fn create(pd: Ptr, max_wr: u32, max_sge: u32) -> Result<Ptr, i32> {
    let mut init = SrqInit { user: ptr::null_mut(), attr: SrqAttr { max_wr, max_sge, limit: 0 } };
    let srq = ibv_create_srq(pd, &mut init);
    if srq.is_null() { Err(Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(srq) }
}

/// A queue pair of this `ibv_qp_type` that receives from `srq`.
pub fn qp_on(srq: Ptr, qp_type: i32, pd: Ptr, cq: *mut Cq) -> *mut Qp {
    let (send_cq, recv_cq) = (cq, cq);
    let mut init =
        QpInit { user: ptr::null_mut(), send_cq, recv_cq, srq, cap: CAP, qp_type, sq_sig_all: 0 };
    let qp = ibv_create_qp(pd, &mut init);
    assert!(!qp.is_null(), "{}", Error::last_os_error());
    assert_eq!(
        (init.cap.max_recv_wr, init.cap.max_recv_sge),
        (0, 0),
        "it has no receives of its own"
    );
    qp
}

/// A node on `device` whose queue pair receives from a shared queue of `max_wr` receives, and that
/// queue.
pub fn node_on_srq(device: usize, bytes: usize, max_wr: u32) -> (Node, Ptr) {
    let mut node = Node::with(device, bytes, CAP, 4096);
    let srq = create(node.pd, max_wr, 2).expect("a shared receive queue");
    assert_eq!(ibv_destroy_qp(node.qp), 0);
    node.qp = qp_on(srq, 2, node.pd, node.cq);
    (node, srq)
}

/// One more node on the same context, domain, memory, completion queue and shared queue.
pub fn beside(node: &Node, srq: Ptr) -> Node {
    let qp = qp_on(srq, 2, node.pd, node.cq);
    Node { qp, memory: Vec::new(), psn: node.psn + 1, ..*node }
}

/// Posts one receive.
pub fn post(srq: Ptr, id: u64, sges: &[Sge]) -> i32 {
    let mut sges = sges.to_vec();
    let (sg_list, num_sge) = (sges.as_mut_ptr(), sges.len() as i32);
    let mut wr = RecvWr { wr_id: id, next: ptr::null_mut(), sg_list, num_sge };
    let mut bad: *mut RecvWr = ptr::null_mut();
    // SAFETY: an SRQ begins with its context, whose table has this function at 20.
    let rc = unsafe {
        let call: unsafe extern "C" fn(Ptr, *mut RecvWr, *mut *mut RecvWr) -> i32 =
            transmute_copy(&op(*srq.cast::<Ptr>(), 20));
        call(srq, &mut wr, &mut bad)
    };
    assert_eq!(!bad.is_null(), rc != 0, "bad_wr is set exactly on failure");
    rc
}

pub fn query(srq: Ptr) -> SrqAttr {
    let mut attr = SrqAttr::default();
    assert_eq!(ibv_query_srq(srq, &mut attr), 0);
    attr
}

pub fn arm(srq: Ptr, limit: u32) -> i32 {
    ibv_modify_srq(srq, &SrqAttr { limit, ..SrqAttr::default() }, LIMIT)
}
