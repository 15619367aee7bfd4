//! What a device does where devices differ: one list, for the software device and for others.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::node::{
    Address, CAP, Node, Terms, Work, create_qp, local_pair, modify, rtr, rts, to_state,
};
use super::verbs::*;

/// What to look at, and what is seen, in words.
pub type Observation = (&'static str, fn() -> String);

/// How long something may take that comes at once where it comes at all, in milliseconds.
static SOON_MS: AtomicU64 = AtomicU64::new(4000);

/// Looks with this time limit from now on.
pub fn be_patient(soon: Duration) {
    SOON_MS.store(soon.as_millis() as u64, SeqCst);
}

fn soon() -> Duration {
    Duration::from_millis(SOON_MS.load(SeqCst))
}

pub const LIST: &[Observation] = &[
    ("write, local key unknown", || {
        fails(&TERMS, |a, b| write(a, &[Sge { lkey: 0xffff_ff01, ..a.sge(0, 8) }], at(b, 0)))
    }),
    ("write, beyond the end of the local region", || {
        fails(&TERMS, |a, b| write(a, &[a.sge(4090, 8)], at(b, 0)))
    }),
    ("write, remote key unknown", || {
        fails(&TERMS, |a, b| write(a, &[a.sge(0, 8)], (at(b, 0).0, 0xffff_ff01)))
    }),
    ("write, beyond the end of the remote region", || {
        fails(&TERMS, |a, b| write(a, &[a.sge(0, 8)], at(b, 4089)))
    }),
    ("write, the peer's queue pair does not allow it", || {
        fails(&Terms { access: 1, ..TERMS }, |a, b| write(a, &[a.sge(0, 8)], at(b, 0)))
    }),
    ("send into a receive that is too small", || fails(&TERMS, |a, _| send(a, &[a.sge(0, 9)]))),
    ("send into a receive whose key is unknown", || {
        fails_into(
            &TERMS,
            |b| Sge { lkey: 0xffff_ff01, ..b.sge(0, 8) },
            |a, _| send(a, &[a.sge(0, 8)]),
        )
    }),
    ("read, beyond the end of the remote region", || {
        fails(&TERMS, |a, b| post(a, READ, &[a.sge(0, 8)], at(b, 4089)))
    }),
    ("send, never a receive, rnr_retry 1", || never_ready(1)),
    ("write, nobody answers, retry_cnt 3", || nobody_answers(3)),
    ("write, nobody answers, retry_cnt 7", || nobody_answers(7)),
    ("first message in RTR", first_message),
    ("completions beyond the room of a CQ", overflow),
    ("RTR to a GID that nobody has", || reaching(|rtr| rtr.dgid[1] ^= 1 << 60)),
    ("RTR from an entry of the GID table that is empty", || reaching(|rtr| rtr.sgid_index = 9)),
    ("RTR with a larger MTU than the port has", || reaching(|rtr| rtr.path_mtu = 6)),
    ("post of a send in INIT", || posted_in(INIT)),
    ("post of a send in RTR", || posted_in(RTR)),
    ("post of a send in ERR", || posted_in(ERR)),
    ("post of a receive in RESET", receive_in_reset),
    ("step to SQD", step_to_sqd),
    ("granted for 32 sends, 32 receives, 4 and 4 elements, 64 bytes inline", granted),
    ("sends that are taken of 32, none signaled or polled", || taken(0)),
    ("sends that are taken of 32, all signaled, none polled", || taken(SIGNALED)),
    ("receives that are taken of 32", receives_taken),
    ("a queue pair of 2^21 sends", || made_of(Cap { max_send_wr: 1 << 21, ..CAP })),
    ("a queue pair of 33 elements", || made_of(Cap { max_send_sge: 33, ..CAP })),
    ("a CQ of 0 entries", || made_cq(0)),
    ("a CQ of 2^20 entries", || made_cq(1 << 20)),
    ("registration of nothing", registered_nothing),
    ("registration of memory that is not there", || registered_at(0x1000, 4096)),
    ("local and remote key of a region", keys),
    ("max_msg_sz, GIDs, P_Keys, LID", port),
    ("byte_len of the completion of a write of 8", || complete(WRITE).byte_len.to_string()),
    ("queue pair and opcode in a failed completion", failed_fields),
];

/// Patient enough for an emulated machine, unlike 7 retries, which some devices take for an endless
/// number.
const TERMS: Terms =
    Terms { timeout: 14, retry_cnt: 5, rnr_retry: 7, min_rnr_timer: 12, access: 7 };

fn at(node: &Node, offset: u64) -> (u64, u64) {
    (node.address().addr + offset, node.address().rkey)
}

fn post(node: &Node, opcode: u32, sges: &[Sge], to: (u64, u64)) -> i32 {
    node.try_send(Work { id: 7, opcode, sges, to, ..Work::default() })
}

fn write(node: &Node, sges: &[Sge], to: (u64, u64)) -> i32 {
    post(node, WRITE, sges, to)
}

fn send(node: &Node, sges: &[Sge]) -> i32 {
    post(node, SEND, sges, (0, 0))
}

fn errno(code: i32) -> String {
    match code {
        0 => "accepted".into(),
        libc::EINVAL => "EINVAL".into(),
        libc::ENOMEM => "ENOMEM".into(),
        libc::EFAULT => "EFAULT".into(),
        libc::ETIMEDOUT => "ETIMEDOUT".into(),
        libc::EOPNOTSUPP => "EOPNOTSUPP".into(),
        libc::ENETUNREACH => "ENETUNREACH".into(),
        libc::ENODATA => "ENODATA".into(),
        libc::EHOSTUNREACH => "EHOSTUNREACH".into(),
        other => std::io::Error::from_raw_os_error(other).to_string(),
    }
}

fn last_errno() -> String {
    errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn status(wc: Option<Wc>) -> String {
    let Some(wc) = wc else { return "nothing".into() };
    match wc.status {
        OK => "success".into(),
        LOC_LEN => "LOC_LEN_ERR".into(),
        2 => "LOC_QP_OP_ERR".into(),
        LOC_PROT => "LOC_PROT_ERR".into(),
        FLUSH => "WR_FLUSH_ERR".into(),
        REM_INV_REQ => "REM_INV_REQ_ERR".into(),
        REM_ACCESS => "REM_ACCESS_ERR".into(),
        REM_OP => "REM_OP_ERR".into(),
        RETRY_EXC => "RETRY_EXC_ERR".into(),
        RNR_EXC => "RNR_RETRY_EXC_ERR".into(),
        other => format!("status {other}"),
    }
}

fn state(node: &Node) -> &'static str {
    ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"].get(node.state() as usize).unwrap_or(&"?")
}

/// The asynchronous events of a device, once none has come for a moment; those of its ports are not
/// looked at.
fn events(context: Ptr) -> String {
    let mut told = String::new();
    while has_event(context, (soon() / 13).as_millis() as i32) {
        told += match next_event(context).0 {
            0 => ", CQ_ERR",
            1 => ", QP_FATAL",
            2 => ", QP_REQ_ERR",
            3 => ", QP_ACCESS_ERR",
            COMM_EST => ", COMM_EST",
            SQ_DRAINED => ", SQ_DRAINED",
            PORT_ACTIVE | PORT_ERR | LID_CHANGE | GID_CHANGE => "",
            _ => ", another event",
        };
    }
    told
}

fn fails(terms: &Terms, work: fn(&Node, &Node) -> i32) -> String {
    fails_into(terms, |b| b.sge(0, 8), work)
}

/// What both ends of a connection see of a request, where the peer has posted one receive.
fn fails_into(terms: &Terms, into: fn(&Node) -> Sge, work: fn(&Node, &Node) -> i32) -> String {
    let (a, b) = local_pair(4096, terms);
    if b.try_recv(50, &[into(&b)]) != 0 {
        return "the receive is refused".into();
    }
    let refused = work(&a, &b);
    if refused != 0 {
        return format!("the post is refused: {}", errno(refused));
    }
    let mine = status(a.next_within(soon()));
    // The responder's queues are flushed a little later than the requester hears of it.
    let theirs = match b.next_within(soon() / 4) {
        None => "receive untouched".into(),
        wc => format!("receive {}", status(wc)),
    };
    format!("{mine}; responder: {theirs}, {}{}", state(&b), events(b.context))
}

fn never_ready(rnr_retry: u8) -> String {
    let (a, b) = local_pair(64, &Terms { rnr_retry, min_rnr_timer: 1, ..TERMS });
    assert_eq!(send(&a, &[a.sge(0, 8)]), 0);
    format!("{}; responder: {}{}", status(a.next_within(soon())), state(&b), events(b.context))
}

fn nobody_answers(retry_cnt: u8) -> String {
    let (a, b) = (Node::new(0, 64), Node::new(1, 64));
    a.connect(
        &Address { qpn: 0x77_7777, ..b.address() },
        &Terms { timeout: 8, retry_cnt, ..TERMS },
    );
    assert_eq!(write(&a, &[a.sge(0, 8)], at(&b, 0)), 0);
    status(a.next_within(soon()))
}

fn first_message() -> String {
    let (a, b) = (Node::new(0, 64), Node::new(1, 64));
    a.connect(&b.address(), &TERMS);
    assert_eq!((b.to_init(7), b.to_rtr(&a.address(), &TERMS)), (0, 0));
    assert_eq!(write(&a, &[a.sge(0, 8)], at(&b, 0)), 0);
    format!("{}{}", status(a.next_within(soon())), events(b.context))
}

fn overflow() -> String {
    const ROOM: i32 = 8;
    let (a, b) = (Node::with(0, 64, CAP, ROOM), Node::new(1, 64));
    a.connect(&b.address(), &TERMS);
    b.connect(&a.address(), &TERMS);
    // SAFETY: a live CQ.
    let room = unsafe { (*a.cq).cqe };
    let wanted = (room + 2).min(30);
    for _ in 0..wanted {
        assert_eq!(write(&a, &[a.sge(0, 8)], at(&b, 0)), 0);
    }
    let told = events(a.context);
    let mut came = 0;
    while a.next_within(soon() / 4).is_some() {
        came += 1;
    }
    format!("room for {room} of {ROOM}; {came} of {wanted} come, {}{told}", state(&a))
}

fn reaching(change: fn(&mut QpAttr)) -> String {
    let (a, b) = (Node::new(0, 64), Node::new(1, 64));
    let mut attributes = rtr(&b.address(), &TERMS);
    change(&mut attributes);
    assert_eq!(a.to_init(7), 0);
    errno(modify(a.qp, &attributes, RTR_MASK))
}

fn posted_in(wanted: u32) -> String {
    let (a, b) = (Node::new(0, 64), Node::new(1, 64));
    assert_eq!(a.to_init(7), 0);
    if wanted != INIT {
        assert_eq!(a.to_rtr(&b.address(), &TERMS), 0);
    }
    if wanted == ERR {
        assert_eq!((modify(a.qp, &rts(1, &TERMS), RTS_MASK), to_state(a.qp, ERR)), (0, 0));
    }
    match a.post_send(Work { sges: &[a.sge(0, 8)], to: at(&b, 0), ..Work::default() }) {
        (0, _) => format!("accepted: {}", status(a.next_within(soon() / 4))),
        refused => refusal(refused),
    }
}

fn refusal((code, bad): (i32, bool)) -> String {
    format!("{}{}", errno(code), if bad { "" } else { ", `bad_wr` not set" })
}

fn receive_in_reset() -> String {
    refusal(Node::new(0, 64).post_recv(1, &[]))
}

fn step_to_sqd() -> String {
    let (a, _b) = local_pair(64, &TERMS);
    format!("{}: {}", errno(to_state(a.qp, SQD)), state(&a))
}

fn granted() -> String {
    let node = Node::new(0, 64);
    let mut init = QpInit {
        user: std::ptr::null_mut(),
        send_cq: node.cq,
        recv_cq: node.cq,
        srq: std::ptr::null_mut(),
        cap: CAP,
        qp_type: 2,
        sq_sig_all: 0,
    };
    assert!(!ibv_create_qp(node.pd, &mut init).is_null());
    let Cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = init.cap;
    format!("{max_send_wr}, {max_recv_wr}, {max_send_sge} and {max_recv_sge}, {max_inline_data}")
}

fn taken(flags: u32) -> String {
    let (a, b) = local_pair(64, &TERMS);
    let mut count = 0;
    let refused = loop {
        let code =
            a.try_send(Work { flags, sges: &[a.sge(0, 8)], to: at(&b, 0), ..Work::default() });
        if code != 0 || count == 500 {
            break code;
        }
        count += 1;
        // So that what is not held back is gone.
        std::thread::sleep(Duration::from_millis(2));
    };
    if refused == 0 { "no end".into() } else { format!("{count}, then {}", errno(refused)) }
}

fn receives_taken() -> String {
    let (a, _b) = local_pair(64, &TERMS);
    let refused = (0..500).map(|i| (i, a.try_recv(i, &[]))).find(|(_, code)| *code != 0);
    refused
        .map_or_else(|| "no end".into(), |(count, code)| format!("{count}, then {}", errno(code)))
}

fn made_of(cap: Cap) -> String {
    let node = Node::new(0, 64);
    let made = create_qp(node.pd, node.cq, node.cq, cap);
    if made.is_null() { last_errno() } else { "accepted".into() }
}

fn made_cq(entries: i32) -> String {
    let node = Node::new(0, 64);
    let made = ibv_create_cq(node.context, entries, std::ptr::null_mut(), std::ptr::null_mut(), 0);
    if made.is_null() { last_errno() } else { "accepted".into() }
}

fn registered_nothing() -> String {
    const PAGE: usize = 4096;
    let page = (Node::new(0, 2 * PAGE).memory.leak().as_ptr() as usize).next_multiple_of(PAGE);
    let [aligned, other] = [page, page + 64].map(|address| registered_at(address, 0));
    if aligned == other {
        other
    } else {
        format!("{other} at an address that is not page-aligned, else {aligned}")
    }
}

fn registered_at(address: usize, length: usize) -> String {
    let node = Node::new(0, 64);
    let made = ibv_reg_mr(node.pd, address as Ptr, length, ALL_ACCESS);
    if made.is_null() { last_errno() } else { "accepted".into() }
}

fn keys() -> String {
    let node = Node::new(0, 64);
    // SAFETY: a live MR.
    let same = unsafe { (*node.mr).lkey == (*node.mr).rkey };
    if same { "are the same".into() } else { "differ".into() }
}

fn port() -> String {
    let attr = port_attr(open_first(), 1).expect("port 1");
    format!("{}, {}, {}, {}", attr.max_msg_sz, attr.gid_tbl_len, attr.pkey_tbl_len, attr.lid)
}

fn open_first() -> Ptr {
    super::node::open(0)
}

fn complete(opcode: u32) -> Wc {
    let (a, b) = local_pair(64, &TERMS);
    assert_eq!(post(&a, opcode, &[a.sge(0, 8)], at(&b, 0)), 0);
    a.next_within(soon()).expect("a completion")
}

fn failed_fields() -> String {
    let (a, b) = local_pair(64, &TERMS);
    assert_eq!(post(&a, READ, &[a.sge(0, 8)], (at(&b, 0).0, 0xffff_ff01)), 0);
    let wc = a.next_within(soon()).expect("a completion");
    let qp = if wc.qp_num == a.qpn() { "its number" } else { "another number" };
    // IBV_WC_RDMA_READ.
    let opcode = if wc.opcode == 2 { "its opcode" } else { "another opcode" };
    format!("{qp}, {opcode}")
}
