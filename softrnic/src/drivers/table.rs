//! What a driver is: its fields, and those of drivers that need no file of their own.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::abi::types::qp_type::{RC, UC, UD};
use crate::abi::types::{QpCap, SendWr, Wc, qp_state, wr_opcode};
use crate::host;
use crate::limits::{MAX_CQE, MAX_READS, MAX_SGE};

/// The number that a setting of a driver is.
pub(super) const fn number(setting: &str) -> u32 {
    match u32::from_str_radix(setting, 10) {
        Ok(number) => number,
        Err(_) => panic!("a driver's setting is no number"),
    }
}

/// What a driver's devices are like.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) name: &'static str,
    /// Variables and their values, which hold where the environment says nothing else.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    /// The same where the environment says that all ports are InfiniBand. These are stronger than
    /// `settings`.
    pub(crate) infiniband_settings: &'static [(&'static str, &'static str)],
    pub(crate) fw_ver: &'static str,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    /// Most scatter/gather elements of a work request, of a send queue and of a receive queue.
    pub(crate) max_sge: (u32, u32),
    /// Most outstanding READs of a queue pair, on either side.
    pub(crate) max_reads: u8,
    /// Most bytes of a memory region.
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    /// Attributes that limit nothing here.
    pub(crate) max_pd: i32,
    pub(crate) max_ah: i32,
    pub(crate) local_ca_ack_delay: u8,
    /// The fewest work requests that each queue of a queue pair may be asked to have.
    pub(crate) min_queue: MinQueue,
    /// Types of queue pairs, as `ibv_qp_type`, and the errno value for others.
    pub(crate) qp_types: &'static [i32],
    pub(crate) other_type: i32,
    /// The errno value of a queue pair that is asked to have too much; 0: it stays as it was.
    pub(crate) too_much: i32,
    /// Whether a queue that is asked to be too long gets the greatest length. Else it is refused.
    pub(crate) cuts_queues: bool,
    /// Whether inline data is taken when a work request is posted. Else the flag changes nothing,
    /// though the queue pair is granted what it is asked to have.
    pub(crate) takes_inline: bool,
    /// Whether the lowest five bits of a longer `min_rnr_timer` count. Else it is refused.
    pub(crate) cuts_rnr_timer: bool,
    pub(crate) has_atomics: bool,
    /// Verbs that the driver does not have: `EOPNOTSUPP`.
    pub(crate) absent: &'static [Verb],
    pub(crate) library: Library,
}

/// The part of a driver that is a library in the program: what it does before a request reaches
/// the card, and after the card has completed it.
#[derive(Debug)]
pub(crate) struct Library {
    /// The sizes of a queue pair; or the errno value of a refusal. Many drivers round up.
    pub(crate) sizes: fn(&Asked) -> Result<Sizes, i32>,
    /// The entries that a completion queue is to have, and what is made of them.
    pub(crate) cqe: fn(i64) -> Result<u32, i32>,
    pub(crate) round_cq: fn(u32) -> u32,
    /// How much of the send queue a send takes that has so many elements, and so many bytes inline.
    pub(crate) blocks: fn(&SendWr, usize, u64) -> u64,
    /// Whether a flag for inline data counts where the answer has data: the card fails such a
    /// request. Else it changes nothing.
    pub(crate) has_inline_answers: bool,
    /// `None`: it refuses no request. What the card cannot do fails there.
    pub(crate) refusals: Option<Refusals>,
    /// The completion, of a receive or of a send, that a poll leaves in a place where the program has
    /// another one. `None`: all of it is written.
    pub(crate) fill: Option<fn(Wc, Wc, bool) -> Wc>,
    /// Whether completions of sends say that these had immediate data.
    pub(crate) flags_sent_immediates: bool,
    /// Whether a reset frees the queues. Else what was in the send queue is free when a later
    /// send completes, and the places of receives stay taken.
    pub(crate) reset_frees: bool,
    /// The maker that options of enhanced connection establishment are of.
    pub(crate) ece_vendor: u32,
}

/// What a program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) cap: QpCap,
    /// Bits of `ibv_wr_opcode`; `None`: those that the type has.
    pub(crate) operations: Option<u64>,
}

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Those that the program gets when it creates the queue pair, and when it queries it.
    pub(crate) told: QpCap,
    pub(crate) queried: QpCap,
    /// Those that there are.
    pub(crate) real: QpCap,
}

impl Sizes {
    /// The same everywhere.
    pub(crate) fn all(cap: QpCap) -> Self {
        Self { told: cap, queried: cap, real: cap }
    }

    /// With other inline data.
    pub(crate) fn with_inline(self, change: impl Fn(u32) -> u32) -> Self {
        let changed = |cap: QpCap| QpCap { max_inline_data: change(cap.max_inline_data), ..cap };
        let Self { told, queried, real } = self;
        Self { told: changed(told), queried: changed(queried), real: changed(real) }
    }
}

/// The states of a queue pair: its own, and the one that the program has moved it to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct States {
    pub(crate) own: u32,
    pub(crate) known: u32,
    /// The furthest of INIT, RTR and RTS that it has been in since it was reset.
    pub(crate) reached: u32,
    /// Whether a poll since the program's last move has found a send that failed, or a receive that
    /// was flushed.
    pub(crate) is_found_failed: bool,
}

/// How posts are refused: errno values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusals {
    /// Sends and receives of a queue pair in these states. 0: none.
    pub(crate) sends: fn(States) -> i32,
    pub(crate) receives: fn(States) -> i32,
    /// Of a queue that is full.
    pub(crate) full: i32,
    /// Of an operation that does not exist.
    pub(crate) by_opcode: i32,
    /// Of too many elements and of too much inline data; the former in a receive.
    pub(crate) by_size: i32,
    pub(crate) receives_by_size: i32,
    /// Whether inline data that is too long is taken, and fails in the card.
    pub(crate) takes_long_inline: bool,
    /// Of a READ or an atomic with inline data. 0: none.
    pub(crate) inline_answers: i32,
    /// Whether inline data may be of any number of elements.
    pub(crate) has_any_inline: bool,
    /// Whether only sizes and the state are looked at: the card fails operations that the type does
    /// not have, and unknown flags change nothing.
    pub(crate) is_lenient: bool,
}

/// The fewest work requests of a send queue and of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MinQueue {
    pub(crate) send: u32,
    pub(crate) recv: u32,
}

/// What not every driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    CreateAh,
    CreateCqEx,
    CreateQpEx,
    CreateSrq,
    QueryQp,
    ReregMr,
    ResizeCq,
}

impl Driver {
    /// `EOPNOTSUPP` if it does not have `verb`.
    pub(crate) fn require(&self, verb: Verb) -> Result<(), i32> {
        if self.absent.contains(&verb) { Err(libc::EOPNOTSUPP) } else { Ok(()) }
    }

    /// Its library; beneath a provider the real one does the same above.
    pub(crate) fn library(&'static self) -> &'static Library {
        if IS_BENEATH.load(Relaxed) { &CARD } else { &self.library }
    }

    /// The value of a variable of the environment, or else the driver's. An empty value counts as
    /// absent.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>, String> {
        match host::text(name)? {
            None => self.own_text(name),
            said => Ok(said),
        }
    }

    /// The value that the driver has for a variable.
    fn own_text(&self, name: &str) -> Result<Option<String>, String> {
        let is_infiniband = host::text("SOFTRNIC_LINK")?.as_deref() == Some("ib");
        let stronger = if is_infiniband { self.infiniband_settings } else { &[] };
        let found = stronger.iter().chain(self.settings).find(|(variable, _)| *variable == name);
        Ok(found.map(|(_, value)| (*value).to_owned()))
    }
}

pub(super) const OWN_DRIVER: Driver = Driver {
    name: "softrnic",
    settings: &[],
    infiniband_settings: &[],
    fw_ver: env!("CARGO_PKG_VERSION"),
    // In no vendor's range.
    vendor_id: 0x00f0_0000,
    vendor_part_id: 0,
    max_sge: (MAX_SGE, MAX_SGE),
    max_reads: MAX_READS,
    max_mr_size: u64::MAX >> 1,
    page_size_cap: 0xffff_f000,
    max_pd: 1 << 20,
    max_ah: 1 << 20,
    local_ca_ack_delay: 0,
    min_queue: MinQueue { send: 0, recv: 0 },
    qp_types: &[RC, UC, UD],
    other_type: libc::EOPNOTSUPP,
    too_much: libc::EINVAL,
    cuts_queues: false,
    takes_inline: true,
    cuts_rnr_timer: false,
    has_atomics: true,
    absent: &[],
    library: OWN_LIBRARY,
};

const OWN_LIBRARY: Library = Library {
    sizes: |asked| Ok(Sizes::all(asked.cap)),
    cqe: |asked| {
        let asked = u32::try_from(asked).ok();
        asked.filter(|cqe| (1..=MAX_CQE).contains(cqe)).ok_or(libc::EINVAL)
    },
    // Like the common hardware: a power of two less one.
    round_cq: |cqe| (cqe + 1).next_power_of_two() - 1,
    blocks: |_, _, _| 1,
    has_inline_answers: true,
    refusals: Some(Refusals {
        sends: |states| {
            if (qp_state::RTS..=qp_state::ERR).contains(&states.own) { 0 } else { libc::EINVAL }
        },
        receives: |states| if states.own == qp_state::RESET { libc::EINVAL } else { 0 },
        full: libc::ENOMEM,
        by_opcode: libc::EOPNOTSUPP,
        by_size: libc::EINVAL,
        receives_by_size: libc::EINVAL,
        takes_long_inline: false,
        inline_answers: libc::EINVAL,
        has_any_inline: false,
        is_lenient: false,
    }),
    fill: None,
    flags_sent_immediates: false,
    reset_frees: true,
    // That of the PCI devices that `--faithful` shows.
    ece_vendor: 0xf000,
};

/// The card alone.
static CARD: Library = Library { refusals: None, round_cq: |cqe| cqe, ..OWN_LIBRARY };
static IS_BENEATH: AtomicBool = AtomicBool::new(false);

/// The devices of this process are cards alone, beneath a real driver library.
pub fn beneath_a_provider() {
    IS_BENEATH.store(true, Relaxed);
}

const fn rounded(sizes: fn(&Asked) -> Result<Sizes, i32>) -> Library {
    Library { sizes, ..OWN_LIBRARY }
}

/// efa: Elastic Fabric Adapter of Amazon. It has no reliable connections but a transport of its own
/// (SRD), which is not modelled.
pub(super) const EFA_DRIVER: Driver = Driver {
    name: "efa",
    settings: &[("SOFTRNIC_LINK", "unspecified")],
    vendor_id: 0x1d0f,
    vendor_part_id: 0xefa0,
    qp_types: &[UD],
    has_atomics: false,
    absent: &[Verb::CreateSrq, Verb::ReregMr, Verb::ResizeCq],
    ..OWN_DRIVER
};

/// hns: HiSilicon's RoCE engine in Kunpeng processors, the third version.
pub(super) const HNS_DRIVER: Driver = Driver {
    name: "hns",
    settings: &[
        ("SOFTRNIC_GIDS", "rich"),
        ("SOFTRNIC_MAX_INLINE", "1024"),
        ("SOFTRNIC_INLINE_EXCESS", "grant"),
    ],
    vendor_id: 0x19e5,
    min_queue: MinQueue { send: 1, recv: 0 },
    qp_types: &[RC, UD],
    absent: &[Verb::ResizeCq],
    library: Library {
        sizes: |&Asked { cap, .. }| {
            Ok(Sizes::all(QpCap { max_inline_data: power(cap.max_inline_data), ..cap }))
        },
        round_cq: u32::next_power_of_two,
        ..OWN_LIBRARY
    },
    ..OWN_DRIVER
};

/// The next power of two; of 0, 0.
fn power(bytes: u32) -> u32 {
    if bytes == 0 { 0 } else { bytes.next_power_of_two() }
}

/// irdma: E810 of Intel (the driver's generation 2), with RoCE v2.
pub(super) const IRDMA_DRIVER: Driver = Driver {
    name: "irdma",
    settings: &[
        ("SOFTRNIC_SPEED", "100"),
        ("SOFTRNIC_MAX_QP_WR", "4063"),
        ("SOFTRNIC_MAX_INLINE", "101"),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
    ],
    vendor_id: 0x8086,
    max_sge: (13, 13),
    max_mr_size: 1 << 45,
    qp_types: &[RC, UD],
    has_atomics: false,
    absent: &[Verb::CreateQpEx, Verb::CreateSrq],
    library: Library {
        sizes: irdma_sizes,
        blocks: |wr, elements, inline| match inline {
            0 => {
                let has_immediate =
                    matches!(wr.opcode, wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM);
                (elements as u64 + u64::from(has_immediate)) / 2 + 1
            }
            bytes => bytes.saturating_sub(8).div_ceil(31) + 1,
        },
        ..OWN_LIBRARY
    },
    ..OWN_DRIVER
};

/// The queues are counted in pieces of 32 bytes. What is granted has room for the longest requests:
/// of short ones the send queue takes more.
fn irdma_sizes(&Asked { cap, .. }: &Asked) -> Result<Sizes, i32> {
    /// Pieces of the send queue that are not granted, and those that cannot be used.
    const RESERVED: u32 = 258;
    const FREE: u32 = 257;
    /// The least receive queue, in requests.
    const FEWEST: u32 = 8;
    // Pieces of the longest request, as an exponent of 2.
    let longest = |elements: u32, inline: u32| match (elements, inline) {
        (..=1, ..=8) => 0,
        (..=3, ..=39) => 1,
        (..=7, ..=101) => 2,
        _ => 3,
    };
    // Immediate data is one more element.
    let send = longest(cap.max_send_sge + 1, cap.max_inline_data);
    let recv = longest(cap.max_recv_sge, 0);
    let sends = ((cap.max_send_wr << send) + RESERVED).next_power_of_two();
    let receives = ((cap.max_recv_wr << recv) + 1).next_power_of_two().max(FEWEST << recv);
    let told = QpCap {
        max_send_wr: (sends - RESERVED) >> send,
        max_recv_wr: (receives - 1) >> recv,
        ..cap
    };
    Ok(Sizes { told, queried: told, real: QpCap { max_send_wr: sends - FREE, ..told } })
}

/// mana: Azure's adapter of Microsoft.
pub(super) const MANA_DRIVER: Driver = Driver {
    name: "mana",
    settings: &[("SOFTRNIC_SPEED", "100"), ("SOFTRNIC_THREAD_DOMAINS", "absent")],
    vendor_id: 0,
    max_mr_size: u64::MAX,
    qp_types: &[RC],
    takes_inline: false,
    has_atomics: false,
    absent: &[
        Verb::CreateAh,
        Verb::CreateCqEx,
        Verb::CreateQpEx,
        Verb::CreateSrq,
        Verb::QueryQp,
        Verb::ReregMr,
        Verb::ResizeCq,
    ],
    ..OWN_DRIVER
};

/// rxe: soft-RoCE, the software device of Linux, as kernel 6.12 has it. docs/rxe.md has what was
/// seen on it.
pub(super) const RXE_DRIVER: Driver = Driver {
    name: "rxe",
    settings: &[
        ("SOFTRNIC_SPEED", "10"),
        ("SOFTRNIC_MAX_INLINE", "512"),
        ("SOFTRNIC_THREAD_DOMAINS", "absent"),
        ("SOFTRNIC_RNR_PLACES", "1"),
        ("SOFTRNIC_STALE_COMPLETIONS", "1"),
        ("SOFTRNIC_RESOLVE_MS", "1000"),
        ("SOFTRNIC_ENDLESS_RETRIES", "1"),
        ("SOFTRNIC_OWN_PORT_DOWN", "fails"),
        ("SOFTRNIC_LOOPBACK_DOWN", "lost"),
        ("SOFTRNIC_FLUSH_ONLY", "1"),
    ],
    fw_ver: "0.0.0",
    vendor_id: 0x00ff_ffff,
    max_mr_size: u64::MAX,
    local_ca_ack_delay: 15,
    absent: &[Verb::ReregMr],
    library: rounded(round),
    ..OWN_DRIVER
};

const ELEMENT: u32 = 16;

/// A queue has a power of two of entries. One stays free. Elements and inline data share
/// their place in an entry.
fn round(&Asked { cap, .. }: &Asked) -> Result<Sizes, i32> {
    let queue = |wr: u32| (wr + 1).next_power_of_two() - 1;
    let place = cap.max_inline_data.max(cap.max_send_sge * ELEMENT);
    Ok(Sizes::all(QpCap {
        max_send_wr: queue(cap.max_send_wr),
        max_recv_wr: queue(cap.max_recv_wr),
        max_send_sge: (place / ELEMENT).min(MAX_SGE),
        max_inline_data: place,
        ..cap
    }))
}
