//! Work requests that are made call by call (`ibv_wr_start` and its kin).

use crate::common::datagrams::{self, QKEY, UD, way_to};
use crate::common::prelude::*;
use crate::create_ex::{OPERATIONS, PD, create_of};
use std::io::Error;
use std::mem::transmute_copy;

const ALL: u64 = 0x7f;

/// The same queue pair, as `ibv_qp_to_qp_ex` gives it.
fn extended(qp: *mut Qp) -> *mut Qp {
    let call = symbol("ibv_qp_to_qp_ex", "IBVERBS_1.6");
    // SAFETY: its type in the verbs interface.
    unsafe { transmute_copy::<Ptr, unsafe extern "C" fn(*mut Qp) -> *mut Qp>(&call)(qp) }
}

/// Function number `index` of an extended queue pair, behind its 184 bytes of other things.
///
/// # Safety
/// `F` is its type in the verbs interface.
unsafe fn function_of<F>(qp: *mut Qp, index: usize) -> F {
    // SAFETY: by the caller.
    unsafe { transmute_copy(&*qp.cast::<u8>().add(184 + 8 * index).cast::<Ptr>()) }
}

/// `calls!(name = index (args) -> ret)`: a wrapper as the inlined ones are.
macro_rules! calls {
    ($(fn $name:ident = $index:literal ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        fn $name(qp: *mut Qp $(, $arg: $ty)*) -> $ret {
            // SAFETY: the type is that of the verbs interface.
            unsafe { function_of::<unsafe extern "C" fn(*mut Qp $(, $ty)*) -> $ret>(qp, $index)(qp $(, $arg)*) }
        }
    )*};
}

calls! {
    fn cmp_swp = 0 (rkey: u32, addr: u64, compare: u64, swap: u64) -> ();
    fn fetch_add = 1 (rkey: u32, addr: u64, add: u64) -> ();
    fn local_inv = 3 (rkey: u32) -> ();
    fn read = 4 (rkey: u32, addr: u64) -> ();
    fn write = 5 (rkey: u32, addr: u64) -> ();
    fn write_imm = 6 (rkey: u32, addr: u64, imm: u32) -> ();
    fn send = 7 () -> ();
    fn send_imm = 8 (imm: u32) -> ();
    fn set_ud_addr = 11 (way: Ptr, qpn: u32, qkey: u32) -> ();
    fn set_inline_data = 13 (addr: *const u8, length: usize) -> ();
    fn set_inline_data_list = 14 (count: usize, list: *const [usize; 2]) -> ();
    fn set_sge = 15 (lkey: u32, addr: u64, length: u32) -> ();
    fn set_sge_list = 16 (count: usize, list: *const Sge) -> ();
    fn start = 17 () -> ();
    fn complete = 18 () -> i32;
    fn abort = 19 () -> ();
}

/// The next work request has this identification and these flags.
fn name(qp: *mut Qp, id: u64, flags: u32) {
    // SAFETY: an extended queue pair has them there.
    unsafe {
        qp.cast::<u8>().add(168).cast::<u64>().write(id);
        qp.cast::<u8>().add(176).cast::<u32>().write(flags);
    }
}

/// Two connected nodes, the first with an extended queue pair for all operations.
fn pair() -> (Node, Node) {
    let (mut a, b) = (Node::new(0, 256), Node::new(1, 256));
    assert_eq!(ibv_destroy_qp(a.qp), 0);
    a.qp = create_of(2, &a, PD | OPERATIONS, ALL).expect("an extended queue pair");
    a.connect(&b.address(), &Terms { access: 15, ..TERMS });
    b.connect(&a.address(), &Terms { access: 15, ..TERMS });
    (a, b)
}

#[test]
fn requests_are_made_call_by_call_and_posted_together() {
    Softrnic::new().alone(|| {
        let (mut a, b) = pair();
        let (qp, to) = (extended(a.qp), b.address());
        assert_eq!(qp, a.qp);
        a.memory[..16].copy_from_slice(b"0123456789abcdef");
        let (from, rkey) = (a.memory.as_ptr() as u64, to.rkey as u32);
        (0..3).for_each(|id| b.recv(id, &[b.sge(128, 64)]));
        start(qp);
        name(qp, 1, SIGNALED);
        write(qp, rkey, to.addr);
        set_sge(qp, a.key(), from, 8);
        name(qp, 2, 0);
        write_imm(qp, rkey, to.addr + 8, 77);
        set_sge_list(qp, 2, [a.sge(8, 2), a.sge(12, 2)].as_ptr());
        name(qp, 3, SIGNALED);
        send(qp);
        set_inline_data(qp, b"inline".as_ptr(), 6);
        assert!(b.poll().is_none(), "nothing is posted yet");
        name(qp, 4, SIGNALED);
        send_imm(qp, 78);
        let pieces =
            [b"two".as_slice(), b"parts"].map(|piece| [piece.as_ptr() as usize, piece.len()]);
        set_inline_data_list(qp, 2, pieces.as_ptr());
        assert_eq!(complete(qp), 0);
        let ids = [1, 3, 4].map(|_| a.next()).map(|wc| (wc.wr_id, wc.status));
        assert_eq!(ids, [(1, OK), (3, OK), (4, OK)]);
        assert_eq!(b.memory[..13], *b"0123456789cd\0");
        let got = [0, 1, 2].map(|_| b.next()).map(|wc| (wc.imm, wc.byte_len));
        assert_eq!(got, [(77, 4), (0, 6), (78, 8)]);
        assert_eq!(b.memory[128..136], *b"twoparts");
    });
}

#[test]
fn reads_and_atomics_are_made_so_too() {
    Softrnic::new().alone(|| {
        let (a, mut b) = pair();
        assert_eq!(
            ibv_rereg_mr(b.mr, 4, ptr::null_mut(), ptr::null_mut(), 0, 15),
            0,
            "atomics too"
        );
        b.memory[..8].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        let (qp, to, from) = (a.qp, b.address(), a.memory.as_ptr() as u64);
        let rkey = to.rkey as u32;
        start(qp);
        name(qp, 1, SIGNALED);
        fetch_add(qp, rkey, to.addr, (1 << 33) + 5);
        set_sge(qp, a.key(), from, 8);
        cmp_swp(qp, rkey, to.addr, (1 << 40) + (1 << 33) + 5, 1 << 50);
        set_sge(qp, a.key(), from + 8, 8);
        read(qp, rkey, to.addr);
        set_sge(qp, a.key(), from + 16, 8);
        assert_eq!(complete(qp), 0);
        assert_eq!([0, 1, 2].map(|_| a.next().status), [OK; 3]);
        let word = |at: usize| {
            u64::from_ne_bytes(a.memory[8 * at..8 * at + 8].try_into().expect("8 bytes"))
        };
        assert_eq!([0, 1, 2].map(word), [1 << 40, (1 << 40) + (1 << 33) + 5, 1 << 50]);
    });
}

#[test]
fn datagrams_are_made_so_too() {
    Softrnic::new().alone(|| {
        let (mut a, b) = (Node::new(0, 64), datagrams::ud_node(1, 128, 8));
        assert_eq!(ibv_destroy_qp(a.qp), 0);
        a.qp = create_of(UD, &a, PD | OPERATIONS, 1 << SEND | 1 << SEND_IMM)
            .expect("an extended queue pair");
        datagrams::ready(a.qp, QKEY);
        let way = datagrams::handle_for(&a, &way_to(b.gid, 1)).expect("a handle");
        b.recv(1, &[b.sge(0, 128)]);
        start(a.qp);
        name(a.qp, 9, SIGNALED);
        send_imm(a.qp, 5);
        set_ud_addr(a.qp, way, b.qpn(), QKEY);
        set_inline_data(a.qp, b"datagram".as_ptr(), 8);
        assert_eq!(complete(a.qp), 0);
        let got = b.next();
        assert_eq!((a.next().wr_id, got.byte_len, got.imm), (9, 48, 5));
        assert_eq!(b.memory[40..48], *b"datagram");
        start(a.qp);
        send(a.qp);
        set_inline_data(a.qp, b"datagram".as_ptr(), 8);
        assert_eq!(complete(a.qp), libc::EINVAL, "no receiver");
    });
}

#[test]
fn a_list_with_something_wrong_is_not_posted() {
    Softrnic::new().alone(|| {
        let (a, b) = pair();
        let (qp, to) = (a.qp, b.address());
        let rkey = to.rkey as u32;
        let begin = || {
            start(qp);
            name(qp, 1, SIGNALED);
            write(qp, rkey, to.addr);
        };
        let write_nothing = || {
            write(qp, rkey, to.addr);
            set_sge_list(qp, 0, ptr::null());
        };
        begin();
        abort(qp);
        begin();
        set_inline_data(qp, [0; 65].as_ptr(), 65);
        assert_eq!(complete(qp), libc::EINVAL, "more than is granted");
        begin();
        local_inv(qp, rkey);
        assert_eq!(complete(qp), libc::EOPNOTSUPP);
        start(qp);
        set_sge(qp, a.key(), 0, 0);
        assert_eq!(complete(qp), libc::EINVAL, "of no request");
        begin();
        set_sge_list(qp, 5, [a.sge(0, 1); 5].as_ptr());
        assert_eq!(complete(qp), libc::EINVAL, "more elements than are granted");
        begin();
        write_nothing();
        assert_eq!(complete(qp), libc::EINVAL, "the first has no data");
        start(qp);
        write_nothing();
        write(qp, rkey, to.addr);
        assert_eq!(complete(qp), libc::EINVAL, "the last has no data");
        start(qp);
        write_nothing();
        set_inline_data(qp, b"once more".as_ptr(), 9);
        assert_eq!(complete(qp), libc::EINVAL, "it has data already");
        start(qp);
        name(qp, 1, SIGNALED);
        (0..33).for_each(|_| write_nothing());
        assert_eq!(complete(qp), libc::ENOMEM, "one more than there is room for");
        assert!(a.poll().is_none() && a.state() == RTS);
        start(qp);
        (0..32).for_each(|_| write_nothing());
        assert_eq!(complete(qp), 0);
        assert_eq!(ids_of(&a, 32), [1; 32], "nothing of the others is left");
    });
}

fn ids_of(node: &Node, count: usize) -> Vec<u64> {
    (0..count).map(|_| node.next().wr_id).collect()
}

#[test]
fn a_queue_pair_without_operations_is_no_extended_one() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        assert!(extended(a.qp).is_null());
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
        let plain = create_of(2, &a, PD, 0).expect("a queue pair");
        assert!(extended(plain).is_null());
        let (c, _) = pair();
        // The other way still goes.
        let to = b.at(0);
        c.send(Work { to, ..WORK });
        assert_eq!(c.next().status, OK);
    });
}
