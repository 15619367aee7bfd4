//! FETCH_ADD and CMP_SWAP.

use std::ptr;

use crate::common::node::{Node, Terms, local_pair};
use crate::common::verbs::*;
use testkit::softrnic::Softrnic;

const EVERYTHING: u32 = 15;

fn terms() -> Terms {
    Terms { access: EVERYTHING, ..Terms::default() }
}

/// Registers the node's memory anew, with every access.
fn open_up(node: &mut Node) {
    assert_eq!(ibv_dereg_mr(node.mr), 0);
    node.mr = ibv_reg_mr(node.pd, node.memory.as_mut_ptr().cast(), node.memory.len(), EVERYTHING as i32);
    assert!(!node.mr.is_null());
}

/// Two nodes in this process whose memory allows atomics. `at` is an aligned offset in each.
fn nodes() -> (Node, Node, [usize; 2]) {
    let (mut a, mut b) = (Node::new(0, 64), Node::new(1, 64));
    open_up(&mut a);
    open_up(&mut b);
    a.connect(&b.address(), &terms());
    b.connect(&a.address(), &terms());
    let at = [&a, &b].map(|node| node.memory.as_ptr().align_offset(8));
    (a, b, at)
}

/// Posts an atomic on 8 bytes at `to` of the peer, whose old value goes to `at` here.
fn post(node: &Node, opcode: u32, at: usize, to: (u64, u64), operands: [u64; 2]) -> i32 {
    let mut sge = node.sge(at, 8);
    let mut wr = SendWr {
        wr_id: 9,
        next: ptr::null_mut(),
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode,
        flags: SIGNALED,
        imm: 0,
        remote_addr: to.0,
        // Where other requests have their key, atomics have the first operand; theirs is behind the second.
        rkey: operands[0],
        rest: [operands[1], to.1, 0],
    };
    post_send(node.qp, &mut wr, &mut ptr::null_mut())
}

fn word(node: &Node, at: usize) -> u64 {
    // SAFETY: eight bytes inside the node's memory, aligned.
    unsafe { node.memory.as_ptr().add(at).cast::<u64>().read_volatile() }
}

fn set(node: &mut Node, at: usize, value: u64) {
    node.memory[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn fetch_add_and_compare_swap_return_the_old_value() {
    Softrnic::new().alone(|| {
        let (a, mut b, at) = nodes();
        set(&mut b, at[1], u64::MAX - 1);
        let to = (b.address().addr + at[1] as u64, b.address().rkey);

        assert_eq!(post(&a, FETCH_ADD, at[0], to, [5, 0]), 0);
        let done = a.next();
        assert_eq!((done.status, done.opcode, done.byte_len), (OK, 4, 8));
        assert_eq!((word(&a, at[0]), word(&b, at[1])), (u64::MAX - 1, 3), "it wraps");

        let big = 0x1122_3344_5566_7788;
        assert_eq!(post(&a, CMP_SWAP, at[0], to, [3, big]), 0);
        assert_eq!((a.next().opcode, word(&a, at[0]), word(&b, at[1])), (3, 3, big));
        assert_eq!(post(&a, CMP_SWAP, at[0], to, [3, 7]), 0);
        assert_eq!(a.next().status, OK);
        assert_eq!((word(&a, at[0]), word(&b, at[1])), (big, big), "not equal: not swapped");
    });
}

#[test]
fn atomics_need_their_access_and_an_aligned_word() {
    Softrnic::new().alone(|| {
        // The region does not allow them.
        let (a, b) = local_pair(64, &terms());
        let at = b.memory.as_ptr().align_offset(8) as u64;
        assert_eq!(post(&a, FETCH_ADD, 0, (b.address().addr + at, b.address().rkey), [1, 0]), 0);
        assert_eq!((a.next().status, b.state()), (REM_ACCESS, ERR));

        // The word is not aligned.
        let (a, b, at) = nodes();
        assert_eq!(post(&a, FETCH_ADD, 0, (b.address().addr + at[1] as u64 + 4, b.address().rkey), [1, 0]), 0);
        assert_eq!((a.next().status, b.state()), (REM_INV_REQ, ERR));

        // The queue pair does not grant them.
        let (mut a, mut b) = (Node::new(0, 64), Node::new(1, 64));
        open_up(&mut a);
        open_up(&mut b);
        a.connect(&b.address(), &Terms::default());
        b.connect(&a.address(), &Terms::default());
        let at = b.memory.as_ptr().align_offset(8) as u64;
        assert_eq!(post(&a, FETCH_ADD, 0, (b.address().addr + at, b.address().rkey), [1, 0]), 0);
        assert_eq!((a.next().status, b.state()), (REM_INV_REQ, ERR));
    });
}

/// Two processes add to the same word of one of them; nothing is lost.
#[test]
fn concurrent_additions_all_count() {
    Softrnic::new().pair(|side, mut socket| {
        const ROUNDS: u64 = 5000;
        let mut node = Node::new(side, 4096);
        open_up(&mut node);
        // Both add to the memory of side 0: side 0 over a connection with itself.
        let mut own = Node::new(0, 64);
        open_up(&mut own);
        let at = node.memory.as_ptr().align_offset(8);
        let theirs: usize = socket.swap(&at);
        let peer = node.connect_over(&mut socket, &terms());
        let (adder, to) = if side == 0 {
            let me = node.address();
            (None, (me.addr + at as u64, me.rkey))
        } else {
            (Some(&node), (peer.addr + theirs as u64, peer.rkey))
        };
        let second = adder.is_none().then(|| second_pair(&node));
        let adder = adder.unwrap_or_else(|| &second.as_ref().expect("made").0);
        for _ in 0..ROUNDS {
            assert_eq!(post(adder, FETCH_ADD, 8, to, [1, 0]), 0);
            assert_eq!(adder.next().status, OK);
        }
        socket.barrier();
        if side == 0 {
            assert_eq!(word(&node, at), 2 * ROUNDS);
        }
    });
}

/// A queue pair connected with another one in the protection domain of `node`, which therefore reaches its memory.
fn second_pair(node: &Node) -> (Node, Node) {
    let one = Node::new(0, 64);
    let mut other = Node::new(0, 64);
    assert_eq!(ibv_destroy_qp(other.qp), 0);
    other.qp = crate::common::node::create_qp(node.pd, node.cq, node.cq, crate::common::node::CAP);
    assert!(!other.qp.is_null());
    one.connect(&other.address(), &terms());
    other.connect(&one.address(), &terms());
    (one, other)
}
