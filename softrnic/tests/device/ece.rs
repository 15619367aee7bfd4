//! Enhanced connection establishment: what is offered, and what is left of an offer.

use crate::common::prelude::*;

type Call = extern "C" fn(*mut Qp, *mut [u32; 3]) -> i32;

fn call(name: &str) -> Call {
    // SAFETY: the verbs interface's type; `struct ibv_ece` is three numbers.
    unsafe { std::mem::transmute(symbol(name, "IBVERBS_1.10")) }
}

#[test]
fn options_are_reduced_to_what_both_have() {
    Softrnic::new().env("SOFTRNIC_ECE", "13").alone(|| {
        let (query, set) = (call("ibv_query_ece"), call("ibv_set_ece"));
        let node = Node::new(0, 64);
        let mut ece = [0; 3];
        assert_eq!((query(node.qp, &mut ece), ece), (0, [0xf000, 13, 0]));
        assert_eq!(set(node.qp, &mut [0xf000, 7, 0]), 0);
        assert_eq!((query(node.qp, &mut ece), ece), (0, [0xf000, 0, 0]), "not agreed on yet");
        assert_eq!(set(node.qp, &mut [0x15b3, 7, 0]), libc::EINVAL, "another maker's");
        assert_eq!(set(node.qp, &mut [0xf000, 7, 1]), libc::EINVAL, "fields that nobody knows");
        assert_eq!(node.to_init(7), 0);
        assert_eq!((query(node.qp, &mut ece), ece), (0, [0xf000, 5, 0]));
        assert_eq!(set(node.qp, &mut [0xf000, 4, 0]), 0);
        assert_eq!(node.to_rtr(&node.address(), &TERMS), 0);
        assert_eq!((query(node.qp, &mut ece), ece), (0, [0xf000, 4, 0]));
    });
}

#[test]
fn without_options_it_is_not_supported() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        assert_eq!(call("ibv_query_ece")(node.qp, &mut [0; 3]), libc::EOPNOTSUPP);
        assert_eq!(call("ibv_set_ece")(node.qp, &mut [0xf000, 1, 0]), libc::EOPNOTSUPP);
    });
}
