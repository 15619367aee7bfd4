//! Queue pairs that are made for certain operations (`ibv_create_qp_ex`).

use crate::common::prelude::*;
use std::io::Error;

/// `struct ibv_qp_init_attr_ex`.
#[repr(C)]
struct QpInitEx {
    init: QpInit,
    pd: Ptr,
    unused: [u64; 7],
    operations: u64,
}

pub(crate) const PD: u32 = 1;
pub(crate) const OPERATIONS: u32 = 1 << 6;
const CREATE_FLAGS: u32 = 1 << 2;

/// Makes a queue pair with these fields by the call that stands 56 bytes in front of the context.
fn create(node: &Node, fields: u32, operations: u64) -> Result<*mut Qp, i32> {
    create_of(2, node, fields, operations)
}

/// As `create`, of this `ibv_qp_type`.
pub(crate) fn create_of(
    qp_type: i32,
    node: &Node,
    fields: u32,
    operations: u64,
) -> Result<*mut Qp, i32> {
    create_with(qp_type, node, CAP, fields, operations)
}

/// As `create_of`, with these capacities.
pub(crate) fn create_with(
    qp_type: i32,
    node: &Node,
    cap: Cap,
    fields: u32,
    operations: u64,
) -> Result<*mut Qp, i32> {
    let init = QpInit {
        user: ptr::null_mut(),
        send_cq: node.cq,
        recv_cq: node.cq,
        srq: ptr::null_mut(),
        cap,
        qp_type,
        sq_sig_all: 0,
    };
    let mut attr = QpInitEx { init, pd: node.pd.cast(), unused: [0; 7], operations };
    // SAFETY: the mask is the last four bytes of the 64 that the shorter structure has.
    unsafe { (&raw mut attr.init).cast::<u32>().add(15).write(fields) };
    // SAFETY: an open context has a table in front of it, with a function of this type in this
    // place.
    let call = unsafe {
        let place = node.context.cast::<u8>().sub(56);
        place.cast::<extern "C" fn(Ptr, *mut QpInitEx) -> *mut Qp>().read()
    };
    let qp = call(node.context.cast(), &mut attr);
    if qp.is_null() { Err(Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(qp) }
}

#[test]
fn a_queue_pair_for_writes_takes_writes_alone() {
    Softrnic::new().alone(|| {
        let mut node = Node::new(0, 64);
        let peer = Node::new(1, 64);
        let made = create(&node, PD | OPERATIONS, 0b11).expect("a queue pair");
        assert_eq!(ibv_destroy_qp(std::mem::replace(&mut node.qp, made)), 0);
        node.connect(&peer.address(), &TERMS);
        peer.connect(&node.address(), &TERMS);
        let to = peer.at(0);
        let posted = |opcode| {
            peer.recv(1, &[]);
            node.try_send(Work { sges: &[node.sge(0, 8)], to, opcode, ..WORK })
        };
        assert_eq!(
            [WRITE, WRITE_IMM, SEND, SEND_IMM, READ].map(posted),
            [0, 0, libc::EINVAL, libc::EINVAL, libc::EINVAL]
        );
        assert_eq!((node.next().status, node.next().status), (OK, OK));
    });
}

#[test]
fn what_is_not_known_of_it_is_refused() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let refused =
            |fields, operations| create(&node, fields, operations).expect_err("it is refused");
        assert_eq!(refused(OPERATIONS, 1), libc::EINVAL, "no protection domain");
        assert_eq!(refused(PD | CREATE_FLAGS, 0), libc::EOPNOTSUPP);
        assert_eq!(refused(PD | OPERATIONS, 1 << 8), libc::EOPNOTSUPP, "memory windows");
        for (qp_type, operations) in [(3, 1 << 4), (4, 1)] {
            let made = create_of(qp_type, &node, PD | OPERATIONS, operations);
            assert_eq!(made.err(), Some(libc::EOPNOTSUPP), "no operation of this transport");
        }
        let all = create(&node, PD, 0).expect("as ibv_create_qp makes them");
        assert_eq!(ibv_destroy_qp(all), 0);
    });
}
