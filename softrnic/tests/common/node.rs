//! One open device with a PD, a CQ and a connected QP: what most tests begin with.

use std::ptr;
use std::time::{Duration, Instant};

use super::verbs::*;
use testkit::Peer;

/// Device `index` of the list, opened.
pub fn open(index: usize) -> Ptr {
    let mut count = 0;
    let list = ibv_get_device_list(&mut count);
    assert!(!list.is_null() && (index as i32) < count, "{count} devices");
    // SAFETY: `index` is below the count.
    let context = ibv_open_device(unsafe { *list.add(index) });
    ibv_free_device_list(list);
    assert!(!context.is_null());
    context
}

/// What a peer must know.
#[derive(Clone, Copy, Default, Debug)]
pub struct Address {
    pub gid: [u64; 2],
    pub qpn: u32,
    pub psn: u32,
    pub rkey: u64,
    pub addr: u64,
}

/// How to connect.
#[derive(Clone, Copy)]
pub struct Terms {
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub access: u32,
}

/// 4.096 us x 2^10 = 4.2 ms.
pub const TERMS: Terms =
    Terms { timeout: 10, retry_cnt: 3, rnr_retry: 7, min_rnr_timer: 12, access: 7 };

impl Default for Terms {
    fn default() -> Self {
        TERMS
    }
}

pub struct Node {
    pub context: Ptr,
    pub pd: Ptr,
    pub cq: *mut Cq,
    pub qp: *mut Qp,
    pub mr: *mut Mr,
    pub memory: Vec<u8>,
    pub gid: [u64; 2],
    pub psn: u32,
}

pub const CAP: Cap =
    Cap { max_send_wr: 32, max_recv_wr: 32, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

pub fn create_qp(pd: Ptr, send_cq: *mut Cq, recv_cq: *mut Cq, cap: Cap) -> *mut Qp {
    create_qp_of(2, pd, send_cq, recv_cq, cap)
}

/// RC is 2, UC is 3.
pub fn create_qp_of(
    qp_type: i32,
    pd: Ptr,
    send_cq: *mut Cq,
    recv_cq: *mut Cq,
    cap: Cap,
) -> *mut Qp {
    let mut init = QpInit {
        user: ptr::null_mut(),
        send_cq,
        recv_cq,
        srq: ptr::null_mut(),
        cap,
        qp_type,
        sq_sig_all: 0,
    };
    ibv_create_qp(pd, &mut init)
}

impl Node {
    pub fn new(device: usize, bytes: usize) -> Self {
        Self::with(device, bytes, CAP, 256)
    }

    pub fn with(device: usize, bytes: usize, cap: Cap, cqe: i32) -> Self {
        let context = open(device);
        let pd = ibv_alloc_pd(context);
        let cq = ibv_create_cq(context, cqe, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!cq.is_null());
        let qp = create_qp(pd, cq, cq, cap);
        assert!(!qp.is_null(), "create_qp: {}", std::io::Error::last_os_error());
        let mut memory = vec![0u8; bytes];
        let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), bytes, ALL_ACCESS);
        assert!(!mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
        // SAFETY: a live QP.
        let psn = (unsafe { (*qp).qp_num } * 7) & 0xff_ffff;
        let mut node = Self { context, pd, cq, qp, mr, memory, gid: [0; 2], psn };
        node.gid = node.gid_of(1, 1);
        node
    }

    pub fn qpn(&self) -> u32 {
        // SAFETY: a live QP.
        unsafe { (*self.qp).qp_num }
    }

    pub fn key(&self) -> u32 {
        // SAFETY: a live MR.
        unsafe { (*self.mr).lkey }
    }

    /// Entry `index` of the GID table of `port`.
    pub fn gid_of(&self, port: u8, index: i32) -> [u64; 2] {
        let mut gid = [0u8; 16];
        assert_eq!(ibv_query_gid(self.context, port, index, &mut gid), 0);
        // SAFETY: same size, any bits are valid.
        unsafe { std::mem::transmute::<[u8; 16], [u64; 2]>(gid) }
    }

    pub fn address(&self) -> Address {
        let addr = self.memory.as_ptr() as u64;
        Address { gid: self.gid, qpn: self.qpn(), psn: self.psn, rkey: u64::from(self.key()), addr }
    }

    /// Byte `offset` of its memory, as the peer writes there.
    pub fn at(&self, offset: u64) -> (u64, u64) {
        (self.memory.as_ptr() as u64 + offset, u64::from(self.key()))
    }

    pub fn to_init(&self, access: u32) -> i32 {
        modify(self.qp, &QpAttr { state: INIT, port: 1, access, ..QpAttr::default() }, INIT_MASK)
    }

    pub fn to_rtr(&self, peer: &Address, terms: &Terms) -> i32 {
        modify(self.qp, &rtr(peer, terms), RTR_MASK)
    }

    pub fn to_rts(&self, terms: &Terms) -> i32 {
        modify(self.qp, &rts(self.psn, terms), RTS_MASK)
    }

    pub fn connect(&self, peer: &Address, terms: &Terms) {
        assert_eq!(self.to_init(terms.access), 0);
        assert_eq!(self.to_rtr(peer, terms), 0);
        assert_eq!(self.to_rts(terms), 0);
    }

    /// Connects through the port of `rtr` and by its address vector; the error is that of the step
    /// to RTR.
    pub fn connect_by(&self, rtr: &QpAttr, terms: &Terms) -> Result<(), i32> {
        let init =
            QpAttr { state: INIT, port: rtr.ah_port, access: terms.access, ..QpAttr::default() };
        assert_eq!(modify(self.qp, &init, INIT_MASK), 0);
        match modify(self.qp, rtr, RTR_MASK) {
            0 => assert_eq!(self.to_rts(terms), 0),
            code => return Err(code),
        }
        Ok(())
    }

    /// Connects with the node of the other process, which does the same; both are in RTS
    /// afterwards. The other node's address.
    pub fn connect_over(&self, socket: &mut Peer, terms: &Terms) -> Address {
        let peer: Address = socket.swap(&self.address());
        self.connect(&peer, terms);
        socket.barrier();
        peer
    }

    pub fn sge(&self, at: usize, length: usize) -> Sge {
        Sge {
            addr: self.memory.as_ptr() as u64 + at as u64,
            length: length as u32,
            lkey: self.key(),
        }
    }

    pub fn try_send(&self, wr: Work<'_>) -> i32 {
        let (rc, bad) = self.post_send(wr);
        assert_eq!(bad, rc != 0, "bad_wr is set exactly on failure");
        rc
    }

    /// What the post returns, and whether it has named a request that is bad.
    pub fn post_send(&self, wr: Work<'_>) -> (i32, bool) {
        let mut sges = wr.sges.to_vec();
        let mut raw = SendWr {
            wr_id: wr.id,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
            opcode: wr.opcode,
            flags: wr.flags,
            imm: wr.imm,
            remote_addr: wr.to.0,
            rkey: wr.to.1,
            rest: [0; 3],
        };
        let mut bad = ptr::null_mut();
        let rc = post_send(self.qp, &mut raw, &mut bad);
        (rc, !bad.is_null())
    }

    pub fn send(&self, wr: Work<'_>) {
        assert_eq!(self.try_send(wr), 0);
    }

    pub fn try_recv(&self, id: u64, sges: &[Sge]) -> i32 {
        let (rc, bad) = self.post_recv(id, sges);
        assert_eq!(bad, rc != 0, "bad_wr is set exactly on failure");
        rc
    }

    pub fn post_recv(&self, id: u64, sges: &[Sge]) -> (i32, bool) {
        let mut sges = sges.to_vec();
        let mut raw = RecvWr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as i32,
        };
        let mut bad = ptr::null_mut();
        let rc = post_recv(self.qp, &mut raw, &mut bad);
        (rc, !bad.is_null())
    }

    pub fn recv(&self, id: u64, sges: &[Sge]) {
        assert_eq!(self.try_recv(id, sges), 0);
    }

    pub fn poll(&self) -> Option<Wc> {
        poll(self.cq)
    }

    /// The next completion.
    pub fn next(&self) -> Wc {
        self.next_within(Duration::from_secs(60)).expect("a completion")
    }

    pub fn next_within(&self, limit: Duration) -> Option<Wc> {
        let end = Instant::now() + limit;
        loop {
            if let Some(wc) = self.poll() {
                return Some(wc);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Whether an asynchronous event comes, for what must not come: looks for it for a moment.
    pub fn has_event(&self) -> bool {
        has_event(self.context, 50)
    }

    /// Nothing has happened to it: the other side alone has an error.
    pub fn assert_unharmed(&self) {
        assert_eq!(self.state(), RTS);
        assert!(self.poll().is_none());
        assert!(!self.has_event());
    }

    pub fn state(&self) -> u32 {
        let (mut attr, mut init) = (QpAttr::default(), empty_init());
        assert_eq!(ibv_query_qp(self.qp, &mut attr, 1, &mut init), 0);
        attr.state
    }

    /// Releases everything, in order, and checks that all of it can be.
    pub fn close(self) {
        assert_eq!(ibv_destroy_qp(self.qp), 0);
        assert_eq!(ibv_dereg_mr(self.mr), 0);
        assert_eq!(ibv_destroy_cq(self.cq), 0);
        assert_eq!(ibv_dealloc_pd(self.pd), 0);
        assert_eq!(ibv_close_device(self.context), 0);
    }
}

pub fn poll(cq: *mut Cq) -> Option<Wc> {
    let mut wc = Wc::default();
    match poll_cq(cq, 1, &mut wc) {
        0 => None,
        1 => Some(wc),
        other => panic!("poll_cq: {other}"),
    }
}

pub fn modify(qp: *mut Qp, attr: &QpAttr, mask: i32) -> i32 {
    ibv_modify_qp(qp, attr, mask)
}

pub fn to_state(qp: *mut Qp, state: u32) -> i32 {
    modify(qp, &QpAttr { state, ..QpAttr::default() }, 1)
}

pub fn rtr(peer: &Address, terms: &Terms) -> QpAttr {
    QpAttr {
        state: RTR,
        path_mtu: 5,
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        max_dest_rd_atomic: 1,
        min_rnr_timer: terms.min_rnr_timer,
        dgid: peer.gid,
        is_global: 1,
        sgid_index: 1,
        ah_port: 1,
        ..QpAttr::default()
    }
}

pub fn rts(psn: u32, terms: &Terms) -> QpAttr {
    QpAttr {
        state: RTS,
        sq_psn: psn,
        timeout: terms.timeout,
        retry_cnt: terms.retry_cnt,
        rnr_retry: terms.rnr_retry,
        max_rd_atomic: 1,
        ..QpAttr::default()
    }
}

pub fn empty_init() -> QpInit {
    // SAFETY: null pointers and zeros are valid here.
    unsafe { std::mem::zeroed() }
}

/// A send work request.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    pub id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub imm: u32,
    pub sges: &'a [Sge],
    /// Address and rkey.
    pub to: (u64, u64),
}

/// A signaled write of no data.
pub const WORK: Work<'static> =
    Work { id: 1, opcode: WRITE, flags: SIGNALED, imm: 0, sges: &[], to: (0, 0) };

impl Default for Work<'_> {
    fn default() -> Self {
        WORK
    }
}

/// Two connected nodes in one process: (device 0, device 1).
pub fn local_pair(bytes: usize, terms: &Terms) -> (Node, Node) {
    let (a, b) = (Node::new(0, bytes), Node::new(1, bytes));
    a.connect(&b.address(), terms);
    b.connect(&a.address(), terms);
    (a, b)
}

/// Connects two nodes in one process, each through a port, by the GIDs of entry `index`.
pub fn connect_ports(a: (&Node, u8), b: (&Node, u8), index: u8, terms: &Terms) {
    for ((node, port), (peer, peer_port)) in [(a, b), (b, a)] {
        let gid = peer.gid_of(peer_port, i32::from(index));
        let vector = rtr(&Address { gid, ..peer.address() }, terms);
        node.connect_by(&QpAttr { ah_port: port, sgid_index: index, ..vector }, terms)
            .expect("connect");
    }
}
