//! UD queue pairs and address handles.

use super::node::{CAP, Node, create_qp_of, modify};
use super::verbs::*;

/// `IBV_QPT_UD`.
pub const UD: i32 = 4;
/// What receives of datagrams begin with.
pub const HEADER: usize = 40;
pub const QKEY: u32 = 0x1111_1111;

pub const UD_INIT_MASK: i32 = 1 | 1 << 4 | 1 << 5 | 1 << 6;
pub const UD_RTS_MASK: i32 = 1 | 1 << 16;

/// A node on `device` whose queue pair is one of UD, ready to send, with room for so many requests
/// of either kind.
pub fn ud_node(device: usize, bytes: usize, room: u32) -> Node {
    let mut node = Node::with(device, bytes, CAP, 4096);
    assert_eq!(ibv_destroy_qp(node.qp), 0);
    node.qp = create_qp_of(
        UD,
        node.pd,
        node.cq,
        node.cq,
        Cap { max_send_wr: room, max_recv_wr: room, ..CAP },
    );
    assert!(!node.qp.is_null(), "{}", std::io::Error::last_os_error());
    ready(node.qp, QKEY);
    node
}

/// Makes a queue pair of UD ready to send.
pub fn ready(qp: *mut Qp, qkey: u32) {
    let attr = QpAttr { port: 1, qkey, ..QpAttr::default() };
    assert_eq!(modify(qp, &QpAttr { state: INIT, ..attr }, UD_INIT_MASK), 0);
    assert_eq!(modify(qp, &QpAttr { state: RTR, ..attr }, 1), 0);
    assert_eq!(modify(qp, &QpAttr { state: RTS, ..attr }, UD_RTS_MASK), 0);
}

/// The way from port 1 to the port that has `gid`, from entry `index`.
pub fn way_to(gid: [u64; 2], index: u8) -> AhAttr {
    AhAttr {
        dgid: gid,
        sgid_index: index,
        hop_limit: 64,
        is_global: 1,
        port: 1,
        ..AhAttr::default()
    }
}

/// An address handle of `node`, or errno.
pub fn handle_for(node: &Node, way: &AhAttr) -> Result<Ptr, i32> {
    made(ibv_create_ah(node.pd, way))
}

/// One for who has sent the datagram of a completion, whose receive begins with `header`.
pub fn handle_back(node: &Node, wc: &Wc, header: &[u8]) -> Result<Ptr, i32> {
    made(ibv_create_ah_from_wc(node.pd, wc, header.as_ptr(), 1))
}

fn made(handle: Ptr) -> Result<Ptr, i32> {
    if handle.is_null() {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else {
        Ok(handle)
    }
}

/// What a work request has in place of address and key.
pub fn to(handle: Ptr, qpn: u32, qkey: u32) -> (u64, u64) {
    (handle as u64, u64::from(qpn) | u64::from(qkey) << 32)
}
