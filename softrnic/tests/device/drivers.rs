//! The devices of each driver, held against the table of docs/cards.md.

use crate::common::datagrams::way_to;
use crate::common::domains::thread_domain;
use crate::common::extended_cqs;
use crate::common::prelude::*;
use crate::create_ex;
use std::io::Error;

const PAGE: &str = include_str!("../../docs/cards.md");
/// As `ibv_qp_type`.
const KINDS: [(&str, i32); 3] = [("RC", 2), ("UC", 3), ("UD", 4)];
const ONE: Cap =
    Cap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
const INLINE_16: Cap = Cap { max_inline_data: 16, ..ONE };
const FETCH_ADD: u32 = 6;
/// Of the mask of `ibv_modify_qp`.
const MIN_RNR_TIMER: i32 = 1 << 15;
const NAMES: [(i32, &str); 4] = [
    (0, "no errno"),
    (libc::EINVAL, "EINVAL"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ENOMEM, "ENOMEM"),
];

fn name(errno: i32) -> String {
    NAMES
        .iter()
        .find(|(code, _)| *code == errno)
        .map_or_else(|| errno.to_string(), |(_, name)| (*name).to_owned())
}

fn forget_errno() {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = 0 };
}

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// What became of a call that returns an errno value.
fn of_code(rc: i32) -> String {
    if rc == 0 { "yes".to_owned() } else { name(rc) }
}

/// What became of a call that returns a pointer, before which errno was forgotten.
fn of_pointer<T>(made: *mut T) -> String {
    if made.is_null() { name(errno()) } else { "yes".to_owned() }
}

/// An open device.
pub(crate) struct Looked {
    pub(crate) context: Ptr,
    pd: Ptr,
    cq: *mut Cq,
    pub(crate) attributes: [u32; 58],
}

impl Looked {
    pub(crate) fn new() -> Self {
        let context = open(0);
        let cq = ibv_create_cq(context, 100, ptr::null_mut(), ptr::null_mut(), 0);
        let mut attributes = [0; 58];
        assert_eq!(ibv_query_device(context, attributes.as_mut_ptr().cast()), 0);
        Self { context, pd: ibv_alloc_pd(context), cq, attributes }
    }

    /// The attribute at byte `at` of `struct ibv_device_attr`.
    pub(crate) fn attribute(&self, at: usize) -> u32 {
        self.attributes[at / 4]
    }

    /// What a queue pair of this type is granted that is to have `cap`, or the errno of the
    /// refusal.
    fn grant(&self, qp_type: i32, cap: Cap) -> Result<Cap, i32> {
        let (cq, none) = (self.cq, ptr::null_mut());
        let mut init =
            QpInit { user: none, send_cq: cq, recv_cq: cq, srq: none, cap, qp_type, sq_sig_all: 0 };
        forget_errno();
        let qp = ibv_create_qp(self.pd, &mut init);
        if qp.is_null() {
            return Err(errno());
        }
        assert_eq!(ibv_destroy_qp(qp), 0);
        Ok(init.cap)
    }

    /// A type of queue pair that there is.
    fn kind(&self) -> i32 {
        KINDS
            .iter()
            .map(|(_, kind)| *kind)
            .find(|kind| self.grant(*kind, ONE).is_ok())
            .expect("one")
    }

    fn granted(&self, cap: Cap, of: fn(Cap) -> u32) -> String {
        self.grant(self.kind(), cap).map_or_else(name, |cap| of(cap).to_string())
    }

    /// The most of what `with` sets that is granted, of 1 to 32.
    fn most(&self, with: fn(u32) -> Cap) -> u32 {
        (1..=32).rev().find(|n| self.grant(self.kind(), with(*n)).is_ok()).expect("one")
    }

    /// A connected queue pair, to itself; `None`: there are no connections.
    fn node(&self) -> Option<Node> {
        self.grant(2, ONE).ok()?;
        let cap = if self.grant(2, INLINE_16).is_ok() { INLINE_16 } else { ONE };
        let node = Node::with(0, 64, cap, 64);
        node.connect(&node.address(), &TERMS);
        Some(node)
    }

    /// What becomes of a request in `node`, whose element has the key 0 if `keyless`: the status of
    /// its completion, or the errno.
    fn posted(&self, opcode: u32, flags: u32, keyless: bool) -> String {
        let Some(node) = self.node() else { return "no RC".to_owned() };
        let Address { addr, rkey, .. } = node.address();
        let mut sge = node.sge(0, 8);
        sge.lkey *= u32::from(!keyless);
        let to = (addr + 8, rkey);
        match node.post_send(Work { sges: &[sge], opcode, flags: flags | SIGNALED, to, ..WORK }).0 {
            0 => match node.next().status {
                OK => "yes".to_owned(),
                LOC_PROT => "LOC_PROT_ERR".to_owned(),
                // The region does not allow it.
                _ if opcode == FETCH_ADD => "yes".to_owned(),
                other => format!("status {other}"),
            },
            code => name(code),
        }
    }
}

fn gids(look: &Looked) -> String {
    let mut kinds = Vec::new();
    for index in 0.. {
        let mut entry = [0u32; 8];
        // SAFETY: the type of the function, and a structure of this size.
        let rc = unsafe {
            let call: extern "C" fn(Ptr, u32, u32, *mut u32, u32, usize) -> i32 =
                std::mem::transmute(symbol("_ibv_query_gid_ex", "IBVERBS_1.11"));
            call(look.context, 1, index, entry.as_mut_ptr(), 0, 32)
        };
        if rc != 0 {
            break;
        }
        kinds.push(format!("v{}", entry[6]));
    }
    kinds.join(" ")
}

fn port(look: &Looked) -> String {
    let layer = port_attr(look.context, 1).expect("a port").link_layer;
    if layer == 2 { "Ethernet" } else { "unspecified" }.to_owned()
}

/// In units of 100 Mb/s, or the errno value of the refusal.
pub(crate) fn port_speed(context: Ptr) -> Result<u64, i32> {
    let mut speed = 0;
    // SAFETY: the type of the function.
    let call: extern "C" fn(Ptr, u32, *mut u64) -> i32 =
        unsafe { std::mem::transmute(symbol("ibv_query_port_speed", "IBVERBS_1.16")) };
    match call(context, 1, &mut speed) {
        0 => Ok(speed),
        rc => Err(rc),
    }
}

pub(crate) fn speed(look: &Looked) -> String {
    port_speed(look.context).map_or_else(name, |speed| (speed / 10).to_string())
}

fn inline_data(look: &Looked) -> String {
    let of = |bytes| look.granted(Cap { max_inline_data: bytes, ..ONE }, |cap| cap.max_inline_data);
    [0, 28, 96, 97, 1000].map(of).join(", ")
}

fn memory(look: &Looked) -> String {
    let bytes = u64::from(look.attribute(84)) << 32 | u64::from(look.attribute(80));
    format!("2^{}", 64 - bytes.saturating_sub(1).leading_zeros())
}

fn rereg(look: &Looked) -> String {
    let mut memory = [0u8; 64];
    let mr = ibv_reg_mr(look.pd, memory.as_mut_ptr().cast(), 64, 7);
    forget_errno();
    let rc = ibv_rereg_mr(mr, 4, ptr::null_mut(), ptr::null_mut(), 0, 1);
    if rc == 0 { "yes".to_owned() } else { name(errno()) }
}

fn query_qp(look: &Looked) -> String {
    let (cq, none) = (look.cq, ptr::null_mut());
    let qp_type = look.kind();
    let mut init = QpInit {
        user: none,
        send_cq: cq,
        recv_cq: cq,
        srq: none,
        cap: ONE,
        qp_type,
        sq_sig_all: 0,
    };
    let qp = ibv_create_qp(look.pd, &mut init);
    of_code(ibv_query_qp(qp, &mut QpAttr::default(), 1, &mut init))
}

/// What a queue pair has whose `min_rnr_timer` was to be 37: 5 is what its five lowest bits say.
fn longer_rnr_timer(look: &Looked) -> String {
    let Some(node) = look.node() else { return "no RC".to_owned() };
    let attr = QpAttr { min_rnr_timer: 37, ..ATTR };
    match modify(node.qp, &attr, MIN_RNR_TIMER) {
        0 => {
            let mut known = ATTR;
            match ibv_query_qp(node.qp, &mut known, MIN_RNR_TIMER, &mut empty_init()) {
                0 => known.min_rnr_timer.to_string(),
                code => name(code),
            }
        }
        code => name(code),
    }
}

fn srq(look: &Looked) -> String {
    let attr = SrqAttr { max_wr: 16, max_sge: 1, limit: 0 };
    forget_errno();
    of_pointer(ibv_create_srq(look.pd, &mut SrqInit { user: ptr::null_mut(), attr }))
}

fn create_ah(look: &Looked) -> String {
    let mut gid = [0u8; 16];
    assert_eq!(ibv_query_gid(look.context, 1, 1, &mut gid), 0);
    // SAFETY: same size, any bits are valid.
    let way = way_to(unsafe { std::mem::transmute::<[u8; 16], [u64; 2]>(gid) }, 1);
    forget_errno();
    of_pointer(ibv_create_ah(look.pd, &way))
}

fn ece(look: &Looked) -> String {
    let Some(node) = look.node() else { return "no RC".to_owned() };
    // SAFETY: the type of the function; `struct ibv_ece` is three numbers.
    let call: extern "C" fn(*mut Qp, *mut [u32; 3]) -> i32 =
        unsafe { std::mem::transmute(symbol("ibv_query_ece", "IBVERBS_1.10")) };
    of_code(call(node.qp, &mut [0; 3]))
}

fn create_qp_ex(look: &Looked) -> String {
    let Some(node) = look.node() else { return "no RC".to_owned() };
    create_ex::create_with(2, &node, ONE, create_ex::PD | create_ex::OPERATIONS, 1)
        .map_or_else(name, |_| "yes".into())
}

pub(crate) type Look = fn(&Looked) -> String;

pub(crate) const PART: Look =
    |look| format!("{:04x}:{:04x}", look.attribute(96), look.attribute(100));

/// What is looked at, under the names that the page has.
pub(crate) const LIST: [(&str, Look); 29] = [
    ("vendor and part", PART),
    ("link layer", port),
    ("speed, Gb/s", speed),
    ("GID table", gids),
    ("RC", |look| look.grant(2, ONE).map_or_else(name, |_| "yes".into())),
    ("UC", |look| look.grant(3, ONE).map_or_else(name, |_| "yes".into())),
    ("UD", |look| look.grant(4, ONE).map_or_else(name, |_| "yes".into())),
    ("`max_qp_wr`", |look| look.attribute(112).to_string()),
    ("one more than that", |look| {
        look.granted(Cap { max_send_wr: look.attribute(112) + 1, ..ONE }, |cap| cap.max_send_wr)
    }),
    ("100 sends are asked for", |look| {
        look.granted(Cap { max_send_wr: 100, ..ONE }, |cap| cap.max_send_wr)
    }),
    ("100 receives", |look| look.granted(Cap { max_recv_wr: 100, ..ONE }, |cap| cap.max_recv_wr)),
    ("no receives", |look| look.granted(Cap { max_recv_wr: 0, ..ONE }, |cap| cap.max_recv_wr)),
    ("elements of a send, of a receive", |look| {
        let send = look.most(|max_send_sge| Cap { max_send_sge, ..ONE });
        format!("{send}, {}", look.most(|max_recv_sge| Cap { max_recv_sge, ..ONE }))
    }),
    ("`max_sge`", |look| look.attribute(120).to_string()),
    ("0, 28, 96, 97, 1000 bytes inline are asked for", inline_data),
    ("an inline write without a key", |look| look.posted(WRITE, INLINE, true)),
    ("an atomic", |look| look.posted(FETCH_ADD, 0, false)),
    ("`max_mr_size`", memory),
    // SAFETY: a live completion queue.
    ("a completion queue of 100", |look| unsafe { (*look.cq).cqe }.to_string()),
    ("`ibv_resize_cq`", |look| of_code(ibv_resize_cq(look.cq, 200))),
    ("`ibv_create_srq`", srq),
    ("`ibv_create_ah`", create_ah),
    ("`ibv_query_qp`", query_qp),
    ("a `min_rnr_timer` of 37", longer_rnr_timer),
    ("`ibv_rereg_mr`", rereg),
    ("`ibv_alloc_td`", |look| thread_domain(look.context, 0).map_or_else(name, |_| "yes".into())),
    ("`ibv_create_cq_ex`", |look| {
        extended_cqs::create(look.context, &extended_cqs::INIT).map_or_else(name, |_| "yes".into())
    }),
    ("`ibv_create_qp_ex`", create_qp_ex),
    ("`ibv_query_ece`", ece),
];

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// The lines of the page's table that begins with the cell `first`, cell by cell.
pub(crate) fn table(first: &str) -> Vec<Vec<&'static str>> {
    let lines = PAGE.lines().skip_while(|line| cells(line)[0] != first);
    lines.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// Compares what `list` sees of the devices that `env` makes with the column of `driver`.
pub(crate) fn compare_rows(
    rows: &[Vec<&str>],
    driver: &str,
    env: &[(&str, &str)],
    list: &[(&str, Look)],
) {
    let column = rows[0].iter().position(|cell| *cell == driver).expect("its column");
    Softrnic::new().envs(env).alone(|| {
        let look = Looked::new();
        let mut wrong = Vec::new();
        for (what, see) in list {
            let (seen, row) = (see(&look), rows.iter().find(|row| row[0] == *what));
            let told = row.map_or("no row", |row| row[column]);
            if told != seen {
                wrong.push(format!("{driver}, {what}: {seen}, where the page has: {told}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// Looks at everything, and compares it with the column of `driver`.
fn compare(driver: &str) {
    let rows = table("what");
    let env = [("SOFTRNIC_DRIVER", driver)];
    compare_rows(&rows, driver, if driver == "softrnic" { &[] } else { &env }, &LIST);
    assert_eq!(rows.len(), LIST.len() + 2, "every row is looked at");
}

cases! { ();
    softrnics_own_devices_are_as_the_page_has_them => compare("softrnic");
    devices_of_mlx5_and_erdma_are_as_the_page_has_them =>
        ["mlx5", "erdma"].into_iter().for_each(compare);
    devices_of_bnxt_re_irdma_and_hns_are_as_the_page_has_them =>
        ["bnxt_re", "irdma", "hns"].into_iter().for_each(compare);
    devices_of_ionic_mana_and_efa_are_as_the_page_has_them =>
        ["ionic", "mana", "efa"].into_iter().for_each(compare);
    devices_like_those_of_rxe_are_as_the_page_has_them => compare("rxe");
}

/// What the environment says is stronger than what the driver is like.
#[test]
fn a_setting_is_stronger_than_the_driver() {
    let env =
        [("SOFTRNIC_DRIVER", "erdma"), ("SOFTRNIC_MAX_INLINE", "200"), ("SOFTRNIC_GIDS", "rich")];
    Softrnic::new().envs(&env).alone(|| {
        let look = Looked::new();
        assert_eq!(inline_data(&look), "0, 28, 96, 97, EINVAL");
        assert_eq!(gids(&look), "v1 v2 v1 v2 v1 v2");
    });
}

/// The numbers are those of rdma-core 44 (findings/libirdma-takes-more-sends-than-it-grants.sh).
#[test]
fn a_queue_pair_of_irdma_takes_more_sends_than_it_has_granted() {
    Softrnic::new().env("SOFTRNIC_DRIVER", "irdma").alone(|| {
        let look = Looked::new();
        for (elements, granted, taken) in
            [(1, 127, 255), (2, 127, 255), (4, 191, 767), (8, 223, 1791)]
        {
            let (max_send_wr, max_recv_wr) = (100, 100);
            let cap = Cap { max_send_wr, max_recv_wr, max_send_sge: elements, ..ONE };
            let told = look.grant(2, cap).expect("granted");
            assert_eq!((told.max_send_wr, told.max_recv_wr), (granted, 127), "{elements}");
            let node = Node::with(0, 64, cap, 64);
            let Address { addr, rkey, .. } = node.address();
            node.connect(&node.address(), &TERMS);
            let one = [node.sge(0, 8)];
            let work = Work { flags: 0, sges: &one, to: (addr + 8, rkey), ..WORK };
            let counted = (0..).find(|_| node.try_send(work) == libc::ENOMEM);
            let received = (0..).find(|_| node.try_recv(1, &[]) == libc::ENOMEM);
            assert_eq!((counted, received), (Some(taken), Some(127)), "{elements}");
        }
    });
}
