//! The entries of the shared file. Every shared word is an atomic, so that no interleaving of
//! processes, and no death of one, is a data race; the comments say who writes.

use std::mem::size_of;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU16, AtomicU32, AtomicU64, AtomicUsize};

use crate::abi::types::qp_state;
use crate::limits::{DEVICES, PATHS, PORTS, RULES};
use crate::shm::work::{Capacities, WorkCounters};

/// Start of the file.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
    /// Protection domains are numbered over the whole fabric, 0 is none.
    pub(crate) next_pd: AtomicU32,
    /// Entries of each table that have storage. Written under the control lock.
    pub(crate) grown: [[AtomicU32; 4]; DEVICES],
    /// Where to look for a free entry first; only a hint. Written under the control lock.
    pub(crate) hint: [[AtomicU32; 4]; DEVICES],
    /// What the fabric's devices are like: text, its length in bytes first. Written once, under the
    /// control lock.
    pub(crate) topology: [AtomicU64; 1 + TOPOLOGY_WORDS],
    /// How often the device has failed. Written under the control lock.
    pub(crate) failures: [AtomicU32; DEVICES],
    /// When (monotonic ns) a device that has failed is back; 0: it works, [`u64::MAX`]: never.
    /// Written under the control lock.
    pub(crate) returns_at: [AtomicU64; DEVICES],
    /// 1: the device refuses all commands, and is about to fail. Written under the control lock.
    pub(crate) refusing: [AtomicU32; DEVICES],
    /// Device and port events so far; number n is entry n modulo [`EVENTS`] of `events`. Written
    /// under the control lock.
    pub(crate) event_count: AtomicU64,
    /// Event type | device << 8 | port << 16.
    pub(crate) events: [AtomicU64; EVENTS],
    /// Connections made so far from one port (device * [`PORTS`] + port - 1) to another: numbers
    /// the flows.
    pub(crate) flows: [[AtomicU32; PORTS * DEVICES]; PORTS * DEVICES],
    /// Changes with every change of the rules; 0 while there have never been any.
    pub(crate) rules_epoch: AtomicU32,
    /// Seed of all random decisions.
    pub(crate) seed: AtomicU64,
    /// Hashes of the rule texts that environments have brought. Written under the control lock.
    pub(crate) rule_texts: [AtomicU64; RULES],
    /// Process that executes an atomic at the device right now, or 0.
    pub(crate) atomic_turn: [AtomicU32; DEVICES],
    /// Not 0: copies may be staged, the jobs and their bytes have storage. Written under the
    /// control lock.
    pub(crate) is_staging: AtomicU32,
    /// Staged copies so far: gives them an order.
    pub(crate) jobs_begun: AtomicU64,
    /// Counts what changes the ways of packets: ports, GIDs, devices. Written under the control
    /// lock, after the change.
    pub(crate) changes: AtomicU64,
    /// Until when (monotonic ns) a card carries out commands, by its first device. Written by who
    /// gives one.
    pub(crate) busy_until: [AtomicU64; DEVICES],
}

/// Words of [`Header::topology`] after the first.
pub(crate) const TOPOLOGY_WORDS: usize = 128;
/// Device and port events that are kept.
pub(crate) const EVENTS: usize = 64;

/// [`ProcSlot::state`]: takes part.
pub(crate) const PROC_ALIVE: u32 = 1;
/// [`ProcSlot::state`]: in its exit handlers, takes part no more.
pub(crate) const PROC_EXITING: u32 = 2;

/// One process. Written by it alone, but for `bell` (anyone) and `life` (the kernel, when it dies).
#[repr(C, align(128))]
pub(crate) struct ProcSlot {
    /// Generation and slot number; 0 is free.
    pub(crate) id: AtomicU32,
    pub(crate) pid: AtomicI32,
    pub(crate) state: AtomicU32,
    /// Futex that wakes the service thread.
    pub(crate) bell: AtomicU32,
    /// Link of the service thread's robust list; points into that process.
    pub(crate) robust_next: AtomicUsize,
    /// Robust futex word: the service thread's id, to which the kernel adds `FUTEX_OWNER_DIED` at
    /// its death.
    pub(crate) life: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// Why it cannot reach the memory of some others directly (errno), or 0. Written seldom.
    pub(crate) obstacle: AtomicU32,
    /// Queries of ports, which are rare.
    pub(crate) port_queries: AtomicU32,
    // What peers look at with every message ends here.
    _pad: [u32; 5],
    /// Bit n: job n has been posted for this process. Set by requesters.
    pub(crate) jobs: AtomicU64,
    /// When (monotonic ns) it has last polled a CQ. Kept only while copies are staged.
    pub(crate) last_poll: AtomicU64,
    /// Address of [`Self::id`] in that process, to see whether one can read there.
    pub(crate) id_at: AtomicU64,
    /// How it reaches the memory of others: bit 0 directly, bit 1 staged.
    pub(crate) ways: AtomicU32,
    /// Commands that it has had cards carry out, by kind.
    pub(crate) commands: [AtomicU32; 9],
}

/// Entries of a GID table.
pub(crate) const GIDS: usize = 16;

/// One entry of a GID table.
#[repr(C)]
pub(crate) struct GidSlot {
    /// The GID's bytes, in memory order.
    pub(crate) words: [AtomicU64; 2],
    /// 0: empty, 1: IB or RoCE v1, 2: RoCE v2.
    pub(crate) kind: AtomicU32,
    _pad: u32,
}

/// One port. Written under the control lock, but for `tx_until` and `rx_until` (anyone who sends).
#[repr(C, align(1024))]
pub(crate) struct PortSlot {
    /// `ibv_port_state`: 4 is active, 1 is down, 0: there is no such port.
    pub(crate) state: AtomicU32,
    /// `ibv_mtu`.
    pub(crate) mtu: AtomicU32,
    /// `IBV_LINK_LAYER_*`: 1 is InfiniBand, 2 is Ethernet.
    pub(crate) link_layer: AtomicU32,
    /// InfiniBand only.
    pub(crate) lid: AtomicU32,
    /// In units of 100 Mb/s; what the attributes say, not what the wire model does.
    pub(crate) speed: AtomicU32,
    /// Datagrams that were dropped here for their Q_Key. Written by those who send.
    pub(crate) qkey_violations: AtomicU32,

    // The wire model.
    /// One way, from this port to the next or back; half of each end's.
    pub(crate) latency_ns: AtomicU64,
    /// In bytes per millisecond; 0: as fast as the processor copies.
    pub(crate) bytes_per_ms: AtomicU64,
    /// When (monotonic ns) the wire is free in each direction.
    pub(crate) tx_until: AtomicU64,
    pub(crate) rx_until: AtomicU64,

    pub(crate) gids: [GidSlot; GIDS],
    /// What queue pairs that are gone had sent. See [`Counters`].
    pub(crate) past: Counters,
    pub(crate) delayed: DelayedCounters,
    /// The ways that packets from here take through the fabric; as many are used as the topology
    /// says.
    pub(crate) paths: [PathSlot; PATHS],
}

/// One of several equal ways from a port to the others. Written when the port is set up and by
/// rules, but for `until` and `bytes` (anyone who sends).
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PathSlot {
    /// One way.
    pub(crate) latency_ns: AtomicU64,
    /// In bytes per millisecond; 0: no limit.
    pub(crate) bytes_per_ms: AtomicU64,
    /// When (monotonic ns) it is free.
    pub(crate) until: AtomicU64,
    /// What has been posted to go this way.
    pub(crate) bytes: AtomicU64,
}

/// What became of the packets from a port that a rule has delayed, so that they arrive when their
/// sender has taken them for lost. Written by those who send.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct DelayedCounters {
    /// On their way so far.
    pub(crate) launched: AtomicU64,
    /// Executed at the responder.
    pub(crate) landed: AtomicU64,
    // Dropped:
    /// There is no such queue pair, or it is not connected to the sender (any more).
    pub(crate) gone: AtomicU64,
    /// It is in the error state.
    pub(crate) in_error: AtomicU64,
    /// It expects another packet.
    pub(crate) wrong_psn: AtomicU64,
    /// It does not take it: the key, the access, no receive.
    pub(crate) refused: AtomicU64,
    /// Its port is down.
    pub(crate) port_down: AtomicU64,
}

/// What a requester has done.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Counters {
    pub(crate) messages: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Transmissions that got no answer.
    pub(crate) losses: AtomicU64,
    /// Transmissions that found no receive.
    pub(crate) rnr_waits: AtomicU64,
    /// Decisions of fault rules.
    pub(crate) faults: AtomicU64,
}

impl Counters {
    pub(crate) fn all(&self) -> [&AtomicU64; 5] {
        [&self.messages, &self.bytes, &self.losses, &self.rnr_waits, &self.faults]
    }

    /// Adds what `gone` counted, and clears it.
    pub(crate) fn absorb(&self, gone: &Self) {
        for (sum, part) in self.all().into_iter().zip(gone.all()) {
            sum.fetch_add(part.swap(0, SeqCst), SeqCst);
        }
    }
}

/// A fault rule; `crate::rules` says what the fields mean. Written under the control lock, but for
/// `hits` and `ends_at`.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct RuleSlot {
    /// Identity of the rule in this fabric; 0: no rule. Stored last.
    pub(crate) id: AtomicU32,
    pub(crate) action: AtomicU32,
    pub(crate) value: AtomicU64,
    /// Device + 1, port, peer device + 1, peer port, flow + 1: 0 is any.
    pub(crate) device: AtomicU32,
    pub(crate) port: AtomicU32,
    pub(crate) peer: AtomicU32,
    pub(crate) peer_port: AtomicU32,
    pub(crate) flow: AtomicU32,
    /// Bit n: applies to `ibv_wr_opcode` n.
    pub(crate) opcodes: AtomicU32,
    /// Message numbers (from 1), both included.
    pub(crate) first: AtomicU64,
    pub(crate) last: AtomicU64,
    pub(crate) every: AtomicU64,
    /// Of 2^32; [`u64::MAX`] is always.
    pub(crate) chance: AtomicU64,
    /// Transmissions of a message that are affected.
    pub(crate) attempts: AtomicU32,
    /// Most decisions, of the whole fabric; 0 is any number.
    pub(crate) times: AtomicU32,
    pub(crate) hits: AtomicU64,
    /// In ns, from its first decision on; 0 is for ever.
    pub(crate) lasts: AtomicU64,
    /// When (monotonic ns) that is over; 0: no decision yet. Written by the process whose message
    /// is first.
    pub(crate) ends_at: AtomicU64,
    /// A port that goes down gets its GIDs back so many ns after it is active; see
    /// `crate::rules`.
    pub(crate) gid_after: AtomicU64,
    pub(crate) gid_change: AtomicU16,
    /// Messages with a packet of more than so many bytes; 0 is any.
    pub(crate) larger: AtomicU16,
    /// Path + 1; 0 is any.
    pub(crate) path: AtomicU32,
    /// A device that fails refuses commands for so many ns before.
    pub(crate) refuses: AtomicU64,
}

/// [`QpSlot::peer`] of a QP that is connected to nobody.
pub(crate) const NO_PEER: u64 = u64::MAX;
/// [`QpSlot::peer`] of a UD QP, and the name that all who send to one enter it by.
pub(crate) const ANY_PEER: u64 = u64::MAX - 1;

/// The part of a QP that its peer sees.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QpSlot {
    // Identity and connection: written by the owner; `state` also RTR|RTS|SQD|SQE -> ERR by the
    // connected peer.
    /// [`ProcSlot::id`] of the owner; 0 is free.
    pub(crate) owner: AtomicU32,
    pub(crate) qpn: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// Name of the peer: its port << 40 | device index << 32 | QPN.
    pub(crate) peer: AtomicU64,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) send_cq: AtomicU32,
    pub(crate) recv_cq: AtomicU32,
    pub(crate) send_bit: AtomicU32,
    pub(crate) recv_bit: AtomicU32,
    pub(crate) rnr_timer: AtomicU32,
    pub(crate) read_depth: AtomicU32,
    pub(crate) ring_at: AtomicU64,

    pub(crate) ring_bytes: AtomicU32,
    /// Entries - 1.
    pub(crate) ring_mask: AtomicU32,
    /// 8-byte words per entry.
    pub(crate) ring_stride: AtomicU32,
    /// `ibv_qp_type`.
    pub(crate) transport: AtomicU32,
    /// Our port.
    pub(crate) port: AtomicU32,
    /// Number of this connection among those from our port to the peer's, from 0.
    pub(crate) flow: AtomicU32,
    /// Path + 1 that its packets take through the fabric; 0: there is but one.
    pub(crate) path: AtomicU32,
    /// UD: a datagram with another one is dropped.
    pub(crate) qkey: AtomicU32,
    /// Index + 1 of the SRQ that it receives from; 0: none. Then its ring has the receives that
    /// have been taken for it.
    pub(crate) srq: AtomicU32,
    /// Protection domain of what it receives: that of the SRQ, if it has one.
    pub(crate) recv_pd: AtomicU32,
    _pad0: [u32; 6],

    // Written by the connected peer while it holds `busy`, and by the owner when no peer may enter.
    /// 0, or serial << 32 | id of the process that executes against this QP right now. See `mark`.
    pub(crate) busy: AtomicU64,
    /// Receives completed.
    pub(crate) done: AtomicU64,
    pub(crate) expected_psn: AtomicU32,
    /// Bit n: async event n is to be delivered. Cleared by the owner's service thread.
    pub(crate) events: AtomicU32,
    /// Its owner has got the event of the first message.
    pub(crate) established: AtomicU32,
    _pad1: u32,
    /// UD: 0, or the datagram whose bytes are just being copied through the shared file, so that
    /// its receive is taken: QP, device and process of the sender. See `remote::hold`.
    pub(crate) holder: AtomicU64,
    /// With an SRQ: the receive that a process which has entered is about to take; see
    /// `shm::srq_ring`.
    pub(crate) wanted: AtomicU64,
    _pad2: [u32; 4],

    // Written by the owner.
    /// Receives posted.
    pub(crate) posted: AtomicU64,
    /// What this QP has sent.
    pub(crate) sent: Counters,
    pub(crate) capacities: Capacities,
    /// What it has had the driver and the card do.
    pub(crate) work: WorkCounters,
    _pad3: [u64; 18],
}

impl QpSlot {
    /// A connected QP goes into the error state; one that its owner has moved on meanwhile stays as
    /// it is.
    pub(crate) fn fail(&self) {
        for connected in [qp_state::RTS, qp_state::RTR, qp_state::SQD, qp_state::SQE] {
            let _ = self.state.compare_exchange(connected, qp_state::ERR, SeqCst, SeqCst);
        }
    }

    /// The send queue of a connected QP stops with an error; it goes on receiving.
    pub(crate) fn fail_send(&self) {
        for sending in [qp_state::RTS, qp_state::SQD] {
            let _ = self.state.compare_exchange(sending, qp_state::SQE, SeqCst, SeqCst);
        }
    }
}

/// A memory region. Written by its owner.
#[repr(C, align(64))]
pub(crate) struct MrSlot {
    pub(crate) owner: AtomicU32,
    /// Index << 8 | generation; 0 while not valid.
    pub(crate) key: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) iova: AtomicU64,
    pub(crate) addr: AtomicU64,
    pub(crate) length: AtomicU64,
    pub(crate) generation: AtomicU32,
    /// 0: the host's; else ordinal + 1 of the GPU whose it is.
    pub(crate) gpu: AtomicU32,
}

/// Bits of [`CqSlot::armed`].
pub(crate) mod armed {
    /// The next completion that is solicited or failed is to be notified.
    pub(crate) const FOR_SOLICITED: u32 = 1;
    /// The next completion is to be notified.
    pub(crate) const FOR_ANY: u32 = 2;
    /// A notification is to be delivered by the owner's service thread.
    pub(crate) const NOTIFY: u32 = 4;
}

/// The part of a CQ that producers in other processes see.
#[repr(C, align(64))]
pub(crate) struct CqSlot {
    pub(crate) owner: AtomicU32,
    pub(crate) capacity: AtomicU32,
    /// Bit n: some QP whose number in this CQ is n modulo 64 has something new. Set by producers.
    pub(crate) bell: AtomicU64,
    /// Completions added, by producers.
    pub(crate) pushed: AtomicU64,
    /// Completions taken, by the owner.
    pub(crate) polled: AtomicU64,
    /// Overrun: takes no more completions.
    pub(crate) dead: AtomicU32,
    pub(crate) events: AtomicU32,
    /// Completion notification: bits [`armed`]. One word, so that a process that takes an arm
    /// cannot die before it has notified.
    pub(crate) armed: AtomicU32,
    /// Completions that it was asked to have room for. Written by the owner.
    pub(crate) requested: AtomicU32,
    // Written by the owner; exact as long as one thread polls.
    /// Calls of `ibv_poll_cq` and of `ibv_start_poll`.
    pub(crate) polls: AtomicU64,
    /// Those that found something.
    pub(crate) fruitful_polls: AtomicU64,
    /// Those that take a lock in mlx5.
    pub(crate) locks: AtomicU64,
    /// 1: it was created for a single thread.
    pub(crate) single_threaded: AtomicU32,
}

/// The part of an SRQ that takers see.
#[repr(C, align(64))]
pub(crate) struct SrqSlot {
    // Written by the owner.
    pub(crate) owner: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) ring_at: AtomicU64,
    pub(crate) ring_bytes: AtomicU32,
    /// Entries - 1.
    pub(crate) ring_mask: AtomicU32,
    /// 8-byte words per entry.
    pub(crate) ring_stride: AtomicU32,
    /// The owner gets an event when fewer receives than this are left; 0: none. With
    /// [`LIMIT_REACHED`] the event is due. One word, so that a taker cannot die in between.
    pub(crate) limit: AtomicU32,
    /// Receives posted.
    pub(crate) posted: AtomicU64,
    /// Receives taken. Written by takers.
    pub(crate) head: AtomicU64,
}

/// [`SrqSlot::limit`]: fewer are left. Cleared by the owner's service thread.
pub(crate) const LIMIT_REACHED: u32 = 1 << 31;

impl SrqSlot {
    /// Receives that nobody has taken.
    pub(crate) fn left(&self) -> u64 {
        // In this order, or the head could be beyond what was posted.
        let head = self.head.load(SeqCst);
        self.posted.load(SeqCst).saturating_sub(head)
    }

    /// Whether the limit is reached just now: the owner is to be told, once.
    pub(crate) fn reaches_limit(&self) -> bool {
        let limit = self.limit.load(SeqCst);
        let is_reached = limit != 0 && limit & LIMIT_REACHED == 0 && self.left() < u64::from(limit);
        is_reached && self.limit.compare_exchange(limit, LIMIT_REACHED, SeqCst, SeqCst).is_ok()
    }
}

const _: () = {
    assert!(
        size_of::<ProcSlot>() == 128
            && size_of::<PortSlot>() == 1024
            && size_of::<RuleSlot>() == 128
    );
    assert!(size_of::<QpSlot>() == 512 && size_of::<MrSlot>() == 64 && size_of::<CqSlot>() == 128);
    assert!(size_of::<SrqSlot>() == 64);
};
