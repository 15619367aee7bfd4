//! Queue pairs: their state, their receive queue, their completions.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use crate::abi::qp_ex::{Calls, QpExTail};
use crate::abi::types;
use crate::abi::types::{
    ALL_OPERATIONS, QpAttr, QpCap, Sge, Status, WC_WITH_IMM, Wc, access, event, qp_attr as mask,
    qp_state as state, qp_state, qp_type, wr_opcode,
};
use crate::drivers::table::{Asked, Driver, Library, Sizes, States};
use crate::host::{InUse, lock};
use crate::limits::{MAX_INLINE, MAX_SGE, QPS};
use crate::network::topology::{MTU_4096, PortId};
use crate::objects::context::{Event, Pd};
use crate::objects::cq::{Acks, CompletionSource, Cq};
use crate::objects::send_queue::{Making, SendQueue, SendRing, Taken, entries};
use crate::objects::srq::Srq;
use crate::process::fabric::Fabric;
use crate::process::settings::{InlineExcess, Settings};
use crate::remote::responder;
use crate::shm::file::Table;
use crate::shm::recv_ring::{Received, RecvRing, Sender};
use crate::shm::slots::{ANY_PEER, NO_PEER, QpSlot};

/// What the application holds as `ibv_qp*` is its first field.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) abi: types::Qp,
    pub(crate) extended: QpExTail,
    pub(crate) this: Weak<Self>,
    pub(crate) fabric: &'static Fabric,
    pub(crate) device: usize,
    pub(crate) pd: Arc<Pd>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    /// Where it receives from, if not from a queue of its own.
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) slot: &'static QpSlot,
    index: u32,
    /// Of its table entry: no other queue pair has had both.
    generation: u32,
    pub(crate) cap: QpCap,
    /// The sizes that the program gets when it creates it.
    pub(crate) told: QpCap,
    pub(crate) library: &'static Library,
    /// The furthest of INIT, RTR and RTS that it has been in since it was reset.
    pub(crate) reached: AtomicU32,
    /// See [`States::is_found_failed`].
    pub(crate) is_found_failed: AtomicBool,
    pub(crate) signal_all: bool,
    /// What may be posted to the send queue: bit n is `ibv_wr_opcode` n.
    pub(crate) operations: u64,
    /// Whether work requests are inline that say so.
    pub(crate) takes_inline: bool,
    /// What `ibv_query_qp` reports.
    pub(crate) attributes: Mutex<QpAttr>,
    pub(crate) send: Mutex<SendQueue>,
    pub(crate) send_ring: SendRing,
    /// Options of enhanced connection establishment; those that the next change of the queue pair
    /// is to agree on, 0: none.
    pub(crate) ece: AtomicU32,
    pub(crate) ece_to_be: AtomicU32,
    /// Serialises posting of receives, flushing and reset.
    pub(crate) recv: Mutex<()>,
    recv_ring: RecvRing,
    recv_polled: AtomicU64,
    /// Receives that a reset has removed, and whose places are still taken.
    recv_kept: AtomicU64,
    /// What has completed, and nobody has polled, is reported as flushed.
    drops_done: AtomicBool,
    /// Completions of receives were left by the last poll.
    receives_first: AtomicBool,
    /// With an SRQ, in the error state: the application has been told that it takes no more.
    is_last_told: AtomicBool,
    /// Asynchronous events given to the application, to be acknowledged before the QP goes.
    pub(crate) async_events: AtomicU32,
    acks: Acks,
    /// Those who post.
    pub(crate) sending: InUse,
    pub(crate) receiving: InUse,
    /// Of an extended queue pair: the work requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub(crate) making: Making,
}

/// A receive that no message has come for.
const FLUSHED: Received =
    Received { status: Status::Flush as u32, opcode: 0, byte_len: 0, imm: 0, wc_flags: 0 };

/// Names the send queue of a queue pair in a thread domain.
pub(crate) const SENDING: &str = "the send queue of a queue pair in a thread domain";

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.abi.qp_num).finish_non_exhaustive()
    }
}

// SAFETY: `abi` is written once but for its atomics; the rest synchronises itself.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Qp {
    /// The errno value of a refusal may be 0: errno stays as it was.
    pub(crate) fn create(pd: &Arc<Pd>, requested: QpRequest) -> Result<Arc<Self>, i32> {
        pd.context.require_alive()?;
        let (fabric, device) = (pd.context.fabric, pd.context.device.index);
        let driver = fabric.settings.driver;
        let has_type = driver.qp_types.contains(&requested.qp_type);
        // A library that checks sizes itself does so before the type.
        if !has_type && driver.too_much != 0 {
            return Err(driver.other_type);
        }
        let mut requested = requested.without_own_receives();
        let operations = requested.operations(driver.has_atomics)?;
        let asked = requested.cap;
        let Sizes { told, queried, real: cap } =
            grant(&fabric.settings, (asked, requested.operations), requested.srq.is_none())?;
        if !has_type {
            return Err(driver.other_type);
        }
        let (queried, cap) = requested.real.map_or((queried, cap), |real| (real, real));
        requested.cap = cap;
        let (index, slot) = claim_slot(fabric, device, pd, &requested, &asked)?;
        let abi = abi_of(pd, &requested, index, slot);
        let (wr_id, wr_flags) = (AtomicU64::new(0), AtomicU32::new(0));
        let extended = QpExTail { comp_mask: 0, wr_id, wr_flags, calls: requested.calls };
        let Some(recv_ring) = RecvRing::of(fabric, slot) else { return Err(libc::EIO) };
        pd.users.fetch_add(1, SeqCst);
        if let Some(srq) = &requested.srq {
            srq.users.fetch_add(1, SeqCst);
        }
        Ok(Arc::new_cyclic(|this| Self {
            abi,
            extended,
            this: Weak::clone(this),
            fabric,
            device,
            pd: Arc::clone(pd),
            send_cq: requested.send_cq,
            recv_cq: requested.recv_cq,
            srq: requested.srq,
            slot,
            index,
            generation: slot.generation.load(SeqCst),
            cap,
            told,
            library: fabric.settings.library,
            reached: AtomicU32::new(qp_state::RESET),
            is_found_failed: AtomicBool::new(false),
            signal_all: requested.signal_all,
            operations,
            takes_inline: driver.takes_inline,
            attributes: Mutex::new(QpAttr { cap: queried, port_num: 1, ..QpAttr::default() }),
            send: Mutex::new(SendQueue::new(&cap, requested.qp_type == qp_type::UD)),
            send_ring: SendRing::new(entries(&cap)),
            ece: AtomicU32::new(fabric.settings.ece),
            ece_to_be: AtomicU32::new(0),
            recv: Mutex::default(),
            recv_ring,
            recv_polled: AtomicU64::new(0),
            recv_kept: AtomicU64::new(0),
            drops_done: AtomicBool::new(false),
            receives_first: AtomicBool::new(false),
            is_last_told: AtomicBool::new(false),
            async_events: AtomicU32::new(0),
            acks: Acks::default(),
            sending: InUse::new(pd.has_thread()),
            receiving: InUse::new(pd.has_thread()),
            making: Making::default(),
        }))
    }

    /// Enters it into its completion queues, as `source`.
    pub(crate) fn join_cqs(&self, source: Arc<dyn CompletionSource>) {
        let send = self.send_cq.add(Arc::clone(&source));
        let recv =
            if Arc::ptr_eq(&self.send_cq, &self.recv_cq) { send } else { self.recv_cq.add(source) };
        self.slot.send_bit.store(send, SeqCst);
        self.slot.recv_bit.store(recv, SeqCst);
    }

    /// Takes it out of its completion queues.
    pub(crate) fn leave_cqs(&self) {
        self.send_cq.remove(self.slot.send_bit.load(SeqCst));
        if !Arc::ptr_eq(&self.send_cq, &self.recv_cq) {
            self.recv_cq.remove(self.slot.recv_bit.load(SeqCst));
        }
    }

    pub(crate) fn as_abi(&self) -> *mut types::Qp {
        (&raw const self.abi).cast_mut()
    }

    /// Whether it was created with the operations that it is for.
    pub(crate) fn is_extended(&self) -> bool {
        self.extended.calls[0] != 0
    }

    /// How peers name this QP, see `QpSlot::peer`.
    #[inline]
    pub(crate) fn name(&self) -> u64 {
        self.port().qp_name(self.abi.qp_num)
    }

    /// UC or UD: it does not learn of losses.
    #[inline]
    pub(crate) fn is_unreliable(&self) -> bool {
        self.abi.qp_type != qp_type::RC
    }

    #[inline]
    pub(crate) fn is_ud(&self) -> bool {
        self.abi.qp_type == qp_type::UD
    }

    /// See `QpSlot::peer`, while it is not connected.
    pub(crate) fn unconnected(&self) -> u64 {
        unconnected(self.abi.qp_type)
    }

    /// The port it is bound to.
    #[inline]
    pub(crate) fn port(&self) -> PortId {
        PortId { device: self.device, port: self.slot.port.load(Relaxed) }
    }

    pub(crate) fn states(&self) -> States {
        States {
            own: self.slot.state.load(SeqCst),
            known: self.abi.state.load(Relaxed),
            reached: self.reached.load(Relaxed),
            is_found_failed: self.is_found_failed.load(Relaxed),
        }
    }

    /// Puts one receive into the queue. Call with `recv` locked.
    pub(crate) fn fill_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        let refusals = self.library.refusals.as_ref();
        if self.srq.is_some() {
            return Err(libc::EINVAL);
        }
        if let Some(refusals) = refusals {
            refused((refusals.receives)(self.states()))?;
        }
        let posted = self.slot.posted.load(Relaxed);
        let taken = posted - self.recv_polled.load(Acquire) + self.recv_kept.load(Relaxed);
        if taken >= u64::from(self.cap.max_recv_wr) {
            return Err(refusals.map_or(libc::ENOMEM, |refusals| refusals.full));
        }
        if sges.len() > self.cap.max_recv_sge as usize {
            return Err(refusals.map_or(libc::EINVAL, |refusals| refusals.receives_by_size));
        }
        self.recv_ring.post(self.slot, wr_id, sges);
        Ok(())
    }

    /// Whether the table entry is still this queue pair's. Call with `recv` locked, for it to stay
    /// so.
    pub(crate) fn is_in_fabric(&self) -> bool {
        self.slot.qpn.load(SeqCst) == self.abi.qp_num
            && self.slot.generation.load(SeqCst) == self.generation
    }

    /// Completes the posted receives as flushed, with an SRQ the one that it has taken. No peer is
    /// in the queue pair. Call with `recv` locked.
    pub(crate) fn flush_recv(&self) {
        if let Some(srq) = &self.srq {
            srq.ring.recover(self.slot, self.index);
        }
        let posted = self.slot.posted.load(Relaxed);
        for at in self.slot.done.load(Acquire)..posted {
            if !responder::admit_completion(self.fabric, self.recv_cq.slot) {
                break;
            }
            self.recv_ring.finish(self.slot, at, &FLUSHED);
            responder::announce(
                self.fabric,
                self.recv_cq.slot,
                self.slot.recv_bit.load(Relaxed),
                true,
            );
        }
        // Who gets this event polls for what has completed.
        if self.srq.is_some() && !self.is_last_told.swap(true, SeqCst) {
            self.tell_owner(event::QP_LAST_WQE_REACHED);
        }
    }

    /// Whether what has completed, and nobody has polled, is reported as flushed.
    pub(crate) fn drop_done(&self, is_dropped: bool) {
        self.drops_done.store(is_dropped, Relaxed);
    }

    /// Has the next poll of the receive CQ look at this QP.
    pub(crate) fn ring_recv(&self) {
        self.recv_cq.slot.bell.fetch_or(1 << (self.slot.recv_bit.load(Relaxed) % 64), SeqCst);
    }

    /// Moves the completions that concern `cq` into `out`: of sends, then of receives; the other
    /// way round after a call that had no room for the receives. True if something is left. Call
    /// under that CQ's lock.
    pub(crate) fn take_completions(
        &self,
        cq: &Cq,
        out: &mut [MaybeUninit<Wc>],
        taken: &mut usize,
    ) -> bool {
        let is_of_sends = std::ptr::eq(&raw const *self.send_cq, cq);
        let is_of_receives = std::ptr::eq(&raw const *self.recv_cq, cq);
        if !(is_of_sends && is_of_receives) {
            return if is_of_sends {
                self.take_sends(out, taken)
            } else {
                self.take_receives(out, taken)
            };
        }
        if self.receives_first.swap(false, Relaxed) {
            return self.take_receives(out, taken) | self.take_sends(out, taken);
        }
        let is_left = self.take_sends(out, taken);
        let is_received = self.take_receives(out, taken);
        self.receives_first.store(is_received, Relaxed);
        is_left || is_received
    }

    /// True if some are left.
    fn take_sends(&self, out: &mut [MaybeUninit<Wc>], taken: &mut usize) -> bool {
        while *taken < out.len()
            && let Some(done) = self.send_ring.take()
        {
            let wc = match self.drops_done.load(Relaxed) {
                true => self.wc(done.wr_id, Status::Flush as u32, done.opcode, 0),
                false => self.sent_wc(&done),
            };
            self.put(&mut out[*taken], wc, false);
            *taken += 1;
        }
        self.send_ring.has_more()
    }

    /// True if some are left.
    fn take_receives(&self, out: &mut [MaybeUninit<Wc>], taken: &mut usize) -> bool {
        let first = self.recv_polled.load(Relaxed);
        let mut at = first;
        while *taken < out.len()
            && let Some((wr_id, got)) = self.recv_ring.take(self.slot, at)
        {
            let got = if self.drops_done.load(Relaxed) { FLUSHED } else { got };
            self.put(&mut out[*taken], self.recv_wc(wr_id, at, &got), true);
            *taken += 1;
            at += 1;
        }
        // Pairs with the load in `post_recv`: the entry may be overwritten now.
        self.recv_polled.store(at, std::sync::atomic::Ordering::Release);
        if let Some(srq) = &self.srq {
            srq.give_back(at - first);
        }
        at != self.slot.done.load(Acquire)
    }

    /// Writes a completion into the program's memory.
    fn put(&self, place: &mut MaybeUninit<Wc>, wc: Wc, is_receive: bool) {
        if wc.status != 0 && (!is_receive || wc.status == Status::Flush as u32) {
            self.is_found_failed.store(true, Relaxed);
        }
        let wc = match self.library.fill {
            Some(fill) if wc.status == 0 || !self.fabric.settings.strict => {
                // SAFETY: the program's memory, of numbers only.
                fill(unsafe { place.assume_init_read() }, wc, is_receive)
            }
            _ => wc,
        };
        place.write(wc);
    }

    fn sent_wc(&self, done: &Taken) -> Wc {
        let wc = self.wc(done.wr_id, done.status, done.opcode, done.byte_len);
        Wc { wc_flags: if done.has_immediate { WC_WITH_IMM } else { wc.wc_flags }, ..wc }
    }

    fn wc(&self, wr_id: u64, status: u32, opcode: u32, byte_len: u32) -> Wc {
        let wc = Wc { wr_id, status, opcode, byte_len, qp_num: self.abi.qp_num, ..Wc::default() };
        self.finish_wc(wc)
    }

    fn recv_wc(&self, wr_id: u64, at: u64, got: &Received) -> Wc {
        if self.is_ud() {
            return self.datagram_wc(wr_id, at, got);
        }
        let (imm_data, wc_flags) = (got.imm, got.wc_flags);
        let peer = self.slot.peer.load(Relaxed);
        let src_qp = if peer >= ANY_PEER { 0 } else { peer as u32 };
        self.finish_wc(Wc {
            imm_data,
            wc_flags,
            src_qp,
            ..self.wc(wr_id, got.status, got.opcode, got.byte_len)
        })
    }

    /// A completion of a datagram, which says who has sent it.
    fn datagram_wc(&self, wr_id: u64, at: u64, got: &Received) -> Wc {
        let Sender { qpn: src_qp, lid: slid, service_level: sl } = self.recv_ring.sender(at);
        let (imm_data, wc_flags) = (got.imm, got.wc_flags);
        let wc = self.wc(wr_id, got.status, got.opcode, got.byte_len);
        self.finish_wc(Wc { imm_data, wc_flags, src_qp, slid, sl, ..wc })
    }

    /// In a failed completion only four fields mean something; strict mode makes that visible.
    fn finish_wc(&self, wc: Wc) -> Wc {
        if wc.status == 0 {
            return wc;
        }
        let (wr_id, status, qp_num) = (wc.wr_id, wc.status, wc.qp_num);
        if !self.fabric.settings.strict {
            return Wc { vendor_err: status, ..wc };
        }
        let junk = 0xdead_beef;
        Wc {
            wr_id,
            status,
            qp_num,
            vendor_err: status,
            opcode: junk,
            byte_len: junk,
            imm_data: junk,
            src_qp: junk,
            wc_flags: junk,
            ..wc
        }
    }

    /// Forgets all requests and completions; the latter stay in their queues on devices on which
    /// they do. The state is RESET, and no peer is in the queue pair any more.
    pub(crate) fn discard(&self) {
        let stay = self.fabric.settings.stale_completions;
        let send = |left: &mut VecDeque<Wc>| {
            let mut send = lock(&self.send);
            while stay && let Some(done) = self.send_ring.take() {
                left.push_back(self.sent_wc(&done));
            }
            send.discard();
            let freed = self.library.reset_frees.then_some(send.taken);
            let thrown = self.send_ring.discard(send.posted, freed);
            self.send_cq.slot.polled.fetch_add(thrown, SeqCst);
        };
        let recv = |left: &mut VecDeque<Wc>| {
            let _guard = lock(&self.recv);
            let mut at = self.recv_polled.load(SeqCst);
            while stay && let Some((wr_id, got)) = self.recv_ring.take(self.slot, at) {
                left.push_back(self.recv_wc(wr_id, at, &got));
                at += 1;
            }
            if let Some(srq) = &self.srq {
                srq.ring.recover(self.slot, self.index);
                srq.give_back(self.slot.posted.load(SeqCst) - self.recv_polled.load(SeqCst));
                self.is_last_told.store(false, SeqCst);
            }
            let (done, posted) = (self.slot.done.load(SeqCst), self.slot.posted.load(SeqCst));
            if !self.library.reset_frees {
                self.recv_kept.fetch_add(posted - at, Relaxed);
            }
            let thrown = done - at;
            self.recv_cq.slot.polled.fetch_add(thrown, SeqCst);
            self.slot.done.store(posted, SeqCst);
            self.recv_polled.store(posted, SeqCst);
        };
        self.send_cq.while_not_polled(send);
        self.recv_cq.while_not_polled(recv);
    }

    /// Gives the table entry back, when all events have been acknowledged. Nothing refers to it any
    /// more.
    pub(crate) fn release(&self) {
        let me = self.as_abi() as usize;
        self.pd.context.events.purge(|e| e.element == me);
        self.acks.wait(&[(&self.async_events, &self.abi.events_completed)]);
        let control = self.fabric.file.control();
        {
            let _guard = lock(&self.recv);
            self.fabric.free_qp(&control, self.device, self.index);
        }
        self.pd.users.fetch_sub(1, SeqCst);
        if let Some(srq) = &self.srq {
            srq.users.fetch_sub(1, SeqCst);
        }
    }

    pub(crate) fn ack_async_event(&self) {
        self.acks.add(&self.abi.events_completed, 1);
    }
}

/// An errno value, or 0, as a result.
pub(crate) fn refused(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// The peer of a queue pair that is not connected: UD takes datagrams from all.
pub(super) fn unconnected(kind: i32) -> u64 {
    if kind == qp_type::UD { ANY_PEER } else { NO_PEER }
}

/// What a queue pair gets that is to have `requested`; the errno value of a refusal, 0 for one that
/// leaves errno as it was.
pub(super) fn grant(
    settings: &Settings,
    (requested, operations): (QpCap, Option<u64>),
    has_receives: bool,
) -> Result<Sizes, i32> {
    let (driver, most) = (settings.driver, settings.max_qp_wr);
    let cut = |wr: u32| if driver.cuts_queues { wr.min(most) } else { wr };
    let requested = QpCap {
        max_send_wr: cut(requested.max_send_wr),
        max_recv_wr: cut(requested.max_recv_wr),
        ..requested
    };
    let is_too_much = requested.max_send_wr > most
        || requested.max_recv_wr > most
        || requested.max_send_sge > driver.max_sge.0
        || requested.max_recv_sge > driver.max_sge.1;
    if is_too_much {
        return Err(driver.too_much);
    }
    let least = driver.min_queue;
    if requested.max_send_wr < least.send || has_receives && requested.max_recv_wr < least.recv {
        return Err(libc::EINVAL);
    }
    if requested.max_inline_data <= settings.max_inline {
        let sizes = (settings.library.sizes)(&Asked { cap: requested, operations })?;
        let sizes = if settings.grant_more { more_than(sizes.told) } else { sizes };
        // No queue pair has more than the first limit: it is a wrong number of the library's.
        let limit = |bytes| if bytes > MAX_INLINE { bytes } else { settings.max_inline.min(bytes) };
        return Ok(sizes.with_inline(limit));
    }
    match settings.inline_excess {
        InlineExcess::Refuse => Err(libc::EINVAL),
        InlineExcess::RefuseSilently => Err(0),
        InlineExcess::Grant => {
            let cap = QpCap { max_inline_data: settings.max_inline, ..requested };
            let sizes = (settings.library.sizes)(&Asked { cap, operations })?;
            Ok(sizes.with_inline(|_| settings.max_inline))
        }
    }
}

/// More of everything than `cap`, but of queues that have nothing. A queue may become longer than
/// the device says that queues are. It reports the inline data that libmlx5 reports for queue
/// pairs without elements: far more than there is.
fn more_than(cap: QpCap) -> Sizes {
    let queue = |wr: u32| if wr == 0 { 0 } else { 2 * wr + 1 };
    let elements = |sge: u32, wr: u32| if wr == 0 { sge } else { (sge + 3).min(MAX_SGE) };
    let real = QpCap {
        max_send_wr: queue(cap.max_send_wr),
        max_recv_wr: queue(cap.max_recv_wr),
        max_send_sge: elements(cap.max_send_sge, cap.max_send_wr),
        max_recv_sge: elements(cap.max_recv_sge, cap.max_recv_wr),
        max_inline_data: (cap.max_inline_data + 1).next_multiple_of(64).min(MAX_INLINE),
    };
    let told = QpCap { max_inline_data: u32::MAX - 3, ..real };
    Sizes { told, queried: told, real }
}

/// Takes a table entry and fills in what does not depend on the connection. `requested` has what is
/// granted, `asked` what the application has asked for.
pub(super) fn claim_slot(
    fabric: &Fabric,
    device: usize,
    pd: &Pd,
    requested: &QpRequest,
    asked: &QpCap,
) -> Result<(u32, &'static QpSlot), i32> {
    let (mask, stride, bytes) =
        RecvRing::layout(requested.ring(), requested.qp_type == qp_type::UD);
    let control = fabric.file.control();
    let index = fabric.claim(&control, Table::Qp, device, fabric.settings.max_qp)?;
    let slot = fabric.qp(device, index);
    // What a former owner left must not pass for ours.
    slot.ring_bytes.store(0, SeqCst);
    slot.state.store(qp_state::RESET, SeqCst);
    slot.peer.store(unconnected(requested.qp_type), SeqCst);
    slot.holder.store(0, SeqCst);
    slot.qkey.store(0, SeqCst);
    if !fabric.is_entered(slot) {
        slot.busy.store(0, SeqCst);
    }
    let ring_at = fabric
        .claim_ring(&control, bytes)
        .inspect_err(|_| fabric.free(&control, Table::Qp, device, index))?;
    slot.ring_at.store(ring_at, SeqCst);
    slot.ring_bytes.store(bytes as u32, SeqCst);
    slot.ring_mask.store(mask, SeqCst);
    slot.ring_stride.store(stride, SeqCst);
    slot.pd.store(pd.id, SeqCst);
    slot.recv_pd.store(requested.srq.as_ref().map_or(pd.id, |srq| srq.pd.id), SeqCst);
    slot.srq.store(requested.srq.as_ref().map_or(0, |srq| srq.index + 1), SeqCst);
    slot.wanted.store(0, SeqCst);
    slot.transport.store(requested.qp_type as u32, SeqCst);
    slot.send_cq.store(requested.send_cq.index, SeqCst);
    slot.recv_cq.store(requested.recv_cq.index, SeqCst);
    slot.access.store(0, SeqCst);
    slot.port.store(1, SeqCst);
    slot.flow.store(0, SeqCst);
    slot.expected_psn.store(0, SeqCst);
    slot.events.store(0, SeqCst);
    slot.established.store(0, SeqCst);
    for count in slot.sent.all().into_iter().chain(slot.work.all()) {
        count.store(0, Relaxed);
    }
    slot.capacities.set(asked, requested.operations, pd.has_thread());
    slot.done.store(0, SeqCst);
    slot.posted.store(0, SeqCst);
    let generation = slot.generation.fetch_add(1, SeqCst).wrapping_add(1);
    let part = if fabric.settings.qpn_reuse { 1 } else { generation % 4095 + 1 };
    slot.qpn.store(part * QPS + index, SeqCst);
    Ok((index, slot))
}

/// What the application holds of the queue pair with this table entry.
pub(super) fn abi_of(pd: &Pd, requested: &QpRequest, index: u32, slot: &QpSlot) -> types::Qp {
    types::Qp {
        context: pd.context.as_abi(),
        qp_context: requested.qp_context,
        pd: pd.as_abi(),
        send_cq: requested.send_cq.as_abi(),
        recv_cq: requested.recv_cq.as_abi(),
        srq: requested.srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.as_abi()),
        handle: index,
        qp_num: slot.qpn.load(SeqCst),
        state: AtomicU32::new(qp_state::RESET),
        qp_type: requested.qp_type,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: AtomicU32::new(0),
    }
}

impl Qp {
    /// Leaves an event of this QP for the service thread.
    pub(crate) fn tell_owner(&self, kind: u32) {
        self.slot.events.fetch_or(1 << kind, SeqCst);
        self.fabric.wake(self.fabric.me);
    }

    /// For the service thread: passes on the events that peers left here. True if one of them means
    /// an error.
    pub(crate) fn deliver(&self) -> bool {
        let events = self.slot.events.swap(0, SeqCst);
        for kind in (event::QP_FATAL..=event::SQ_DRAINED).chain([event::QP_LAST_WQE_REACHED]) {
            if events & 1 << kind != 0 {
                self.pd.context.events.push(Event { element: self.as_abi() as usize, kind });
            }
        }
        let fatal = 1 << event::QP_FATAL | 1 << event::QP_REQ_ERR | 1 << event::QP_ACCESS_ERR;
        events & fatal != 0
    }
}

/// What `ibv_create_qp` asks for.
pub(crate) struct QpRequest {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    /// Where it receives from, if not from a queue of its own.
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) cap: QpCap,
    /// Beneath a provider: the sizes that it has made.
    pub(crate) real: Option<QpCap>,
    pub(crate) qp_type: i32,
    pub(crate) signal_all: bool,
    /// `None`: all.
    pub(crate) operations: Option<u64>,
    /// All 0 if it is not an extended one.
    pub(crate) calls: Calls,
}

impl QpRequest {
    /// The same, without a receive queue of its own if it has a shared one: as mlx5 grants it.
    pub(super) fn without_own_receives(mut self) -> Self {
        if self.srq.is_some() {
            (self.cap.max_recv_wr, self.cap.max_recv_sge) = (0, 0);
        }
        self
    }

    /// Receives in its ring, and elements of each. With a shared queue all receives of that may be
    /// taken and not polled.
    pub(super) fn ring(&self) -> (u32, u32) {
        self.srq
            .as_ref()
            .map_or((self.cap.max_recv_wr, self.cap.max_recv_sge), |srq| (srq.max_wr, srq.max_sge))
    }

    /// What may be posted to the send queue: bit n is `ibv_wr_opcode` n.
    /// `EOPNOTSUPP`: one that was asked for is none of its type.
    pub(super) fn operations(&self, has_atomics: bool) -> Result<u64, i32> {
        const SENDS: u64 = 1 << wr_opcode::SEND | 1 << wr_opcode::SEND_WITH_IMM;
        const WRITES: u64 = 1 << wr_opcode::RDMA_WRITE | 1 << wr_opcode::RDMA_WRITE_WITH_IMM;
        let possible = match self.qp_type {
            qp_type::UD => SENDS,
            qp_type::UC => SENDS | WRITES,
            _ if has_atomics => ALL_OPERATIONS,
            _ => {
                ALL_OPERATIONS
                    & !(1 << wr_opcode::ATOMIC_CMP_SWAP | 1 << wr_opcode::ATOMIC_FETCH_ADD)
            }
        };
        let wanted = self.operations.unwrap_or(possible);
        if wanted & !possible == 0 { Ok(wanted) } else { Err(libc::EOPNOTSUPP) }
    }
}

/// Attribute bits that a transition needs, and those it allows besides.
pub(crate) struct AttrMask {
    pub(crate) needs: i32,
    pub(crate) allows: i32,
}

/// The attributes for `from` -> `to` of an `ibv_qp_type`, if there is such a transition. UC has
/// neither READs nor retries. There is no path migration.
pub(crate) fn attributes(from: u32, to: u32, qp_type: i32) -> Option<AttrMask> {
    if qp_type == qp_type::UD {
        return of_datagrams(from, to);
    }
    let is_rc = qp_type == qp_type::RC;
    let only_rc = |bits: i32| if is_rc { bits } else { 0 };
    let basics = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    let timing = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
    // To and from the states in which something may be sent.
    let sending = mask::CUR_STATE | mask::ACCESS_FLAGS | only_rc(mask::MIN_RNR_TIMER);
    let (needs, allows) = match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (basics, 0),
        (state::INIT, state::INIT) => (0, basics),
        (state::INIT, state::RTR) => (
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | only_rc(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
            mask::PKEY_INDEX | mask::ACCESS_FLAGS,
        ),
        (state::RTR, state::RTS) => (mask::SQ_PSN | only_rc(timing), sending),
        (state::RTS | state::SQD, state::RTS) => (0, sending),
        (state::SQE, state::RTS) if !is_rc => (0, mask::CUR_STATE | mask::ACCESS_FLAGS),
        (state::RTS, state::SQD) => (0, mask::EN_SQD_ASYNC_NOTIFY),
        (state::SQD, state::SQD) => (
            0,
            mask::AV
                | mask::PKEY_INDEX
                | mask::ACCESS_FLAGS
                | only_rc(timing | mask::PORT | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        ),
        _ => return None,
    };
    Some(AttrMask { needs, allows })
}

/// As [`attributes`], of UD, which is not connected: each datagram brings its address.
fn of_datagrams(from: u32, to: u32) -> Option<AttrMask> {
    let basics = mask::PKEY_INDEX | mask::PORT | mask::QKEY;
    let (needs, allows) = match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (basics, 0),
        (state::INIT, state::INIT) => (0, basics),
        (state::INIT, state::RTR) => (0, mask::PKEY_INDEX | mask::QKEY),
        (state::RTR, state::RTS) => (mask::SQ_PSN, mask::CUR_STATE | mask::QKEY),
        (state::RTS | state::SQD | state::SQE, state::RTS) => (0, mask::CUR_STATE | mask::QKEY),
        (state::RTS, state::SQD) => (0, mask::EN_SQD_ASYNC_NOTIFY),
        (state::SQD, state::SQD) => (0, mask::PKEY_INDEX | mask::QKEY),
        _ => return None,
    };
    Some(AttrMask { needs, allows })
}

/// EINVAL if a value is out of range: of `ports` ports, and for this driver.
pub(crate) fn check_values(
    attr: &QpAttr,
    given: i32,
    ports: u32,
    driver: &Driver,
) -> Result<(), i32> {
    let has = |bit: i32| given & bit != 0;
    let flags =
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let is_bad = has(mask::PKEY_INDEX) && attr.pkey_index != 0
        || has(mask::PORT) && !(1..=ports).contains(&u32::from(attr.port_num))
        || has(mask::ACCESS_FLAGS) && attr.qp_access_flags & !(flags | access::OPTIONAL) != 0
        || has(mask::PATH_MTU) && !(1..=MTU_4096).contains(&attr.path_mtu)
        || has(mask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > driver.max_reads
        || has(mask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > driver.max_reads
        || has(mask::MIN_RNR_TIMER) && attr.min_rnr_timer > 31 && !driver.cuts_rnr_timer
        || has(mask::TIMEOUT) && attr.timeout > 31
        || has(mask::RETRY_CNT) && attr.retry_cnt > 7
        || has(mask::RNR_RETRY) && attr.rnr_retry > 7
        || has(mask::DEST_QPN) && attr.dest_qp_num >= 1 << 24;
    if is_bad { Err(libc::EINVAL) } else { Ok(()) }
}

/// Takes over the attributes that are `given`.
pub(crate) fn remember(known: &mut QpAttr, attr: &QpAttr, given: i32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => { $(if given & mask::$bit != 0 { $(known.$field = attr.$field;)+ })+ };
    }
    take! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        QKEY: qkey;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        SQ_PSN: sq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        DEST_QPN: dest_qp_num;
    }
    known.rq_psn &= 0xff_ffff;
    known.sq_psn &= 0xff_ffff;
    known.min_rnr_timer &= 31;
}
