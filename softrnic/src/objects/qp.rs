//! Queue pairs: their state, their receive queue, their completions.

use std::collections::VecDeque;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, Weak};

use crate::abi::consts::{Status, event, qp_state, qp_type};
use crate::abi::qp_ex::QpExTail;
use crate::abi::types::{self, QpAttr, QpCap, Sge, Wc};
use crate::host::in_use::InUse;
use crate::host::lock::lock;
use crate::network::port_id::PortId;
use crate::objects::acks::Acks;
use crate::objects::cq::{CompletionSource, Cq};
use crate::objects::pd::Pd;
use crate::objects::qp_entry::{abi_of, claim_slot, grant, unconnected};
use crate::objects::qp_request::QpRequest;
use crate::objects::send_queue::{SendQueue, entries};
use crate::objects::send_ring::SendRing;
use crate::objects::srq::Srq;
use crate::objects::wr_list::Making;
use crate::process::fabric::Fabric;
use crate::remote::completion;
use crate::shm::recv_ring::{Received, RecvRing, Sender};
use crate::shm::slots::{ANY_PEER, QpSlot};

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
    pub(crate) signal_all: bool,
    /// What may be posted to the send queue: bit n is `ibv_wr_opcode` n.
    pub(crate) operations: u64,
    /// Whether work requests are inline that say so.
    pub(crate) takes_inline: bool,
    /// What `ibv_query_qp` reports.
    pub(crate) attributes: Mutex<QpAttr>,
    pub(crate) send: Mutex<SendQueue>,
    pub(crate) send_ring: SendRing,
    /// Options of enhanced connection establishment.
    pub(crate) ece: AtomicU32,
    /// Serialises posting of receives, flushing and reset.
    pub(crate) recv: Mutex<()>,
    recv_ring: RecvRing,
    recv_polled: AtomicU64,
    /// What has been received, and nobody has polled, is reported as flushed.
    drops_received: AtomicBool,
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
const FLUSHED: Received = Received { status: Status::Flush as u32, opcode: 0, byte_len: 0, imm: 0, wc_flags: 0 };

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
        if !driver.qp_types.contains(&requested.qp_type) {
            return Err(driver.other_type);
        }
        let mut requested = requested.without_own_receives();
        let operations = requested.operations(driver.has_atomics)?;
        let asked = requested.cap;
        let cap = grant(&fabric.settings, asked, requested.srq.is_none())?;
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
            signal_all: requested.signal_all,
            operations,
            takes_inline: driver.takes_inline,
            attributes: Mutex::new(QpAttr { cap, port_num: 1, ..QpAttr::default() }),
            send: Mutex::new(SendQueue::new(&cap, requested.qp_type == qp_type::UD)),
            send_ring: SendRing::new(entries(&cap)),
            ece: AtomicU32::new(fabric.settings.ece),
            recv: Mutex::default(),
            recv_ring,
            recv_polled: AtomicU64::new(0),
            drops_received: AtomicBool::new(false),
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
        let recv = if Arc::ptr_eq(&self.send_cq, &self.recv_cq) { send } else { self.recv_cq.add(source) };
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

    /// Puts one receive into the queue. Call with `recv` locked.
    pub(crate) fn fill_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        if self.slot.state.load(SeqCst) == qp_state::RESET
            || self.srq.is_some()
            || sges.len() > self.cap.max_recv_sge as usize
        {
            return Err(libc::EINVAL);
        }
        let posted = self.slot.posted.load(Relaxed);
        if posted - self.recv_polled.load(Acquire) >= u64::from(self.cap.max_recv_wr) {
            return Err(libc::ENOMEM);
        }
        self.recv_ring.post(self.slot, wr_id, sges);
        Ok(())
    }

    /// Whether the table entry is still this queue pair's. Call with `recv` locked, for it to stay so.
    pub(crate) fn is_in_fabric(&self) -> bool {
        self.slot.qpn.load(SeqCst) == self.abi.qp_num && self.slot.generation.load(SeqCst) == self.generation
    }

    /// Completes the posted receives as flushed, with an SRQ the one that it has taken. No peer is in the queue pair. Call with `recv`
    /// locked.
    pub(crate) fn flush_recv(&self) {
        if let Some(srq) = &self.srq {
            srq.ring.recover(self.slot, self.index);
        }
        let posted = self.slot.posted.load(Relaxed);
        for at in self.slot.done.load(Acquire)..posted {
            if !completion::admit(self.fabric, self.recv_cq.slot) {
                break;
            }
            self.recv_ring.finish(self.slot, at, &FLUSHED);
            completion::announce(self.fabric, self.recv_cq.slot, self.slot.recv_bit.load(Relaxed), true);
        }
        // Who gets this event polls for what has completed.
        if self.srq.is_some() && !self.is_last_told.swap(true, SeqCst) {
            self.tell_owner(event::QP_LAST_WQE_REACHED);
        }
    }

    /// Whether what has been received, and nobody has polled, is reported as flushed.
    pub(crate) fn drop_received(&self, is_dropped: bool) {
        self.drops_received.store(is_dropped, Relaxed);
    }

    /// Has the next poll of the receive CQ look at this QP.
    pub(crate) fn ring_recv(&self) {
        self.recv_cq.slot.bell.fetch_or(1 << (self.slot.recv_bit.load(Relaxed) % 64), SeqCst);
    }

    /// Moves the completions that concern `cq` into `out`: of sends, then of receives; the other way round after a call that had no room
    /// for the receives. True if something is left. Call under that CQ's lock.
    pub(crate) fn take_completions(&self, cq: &Cq, out: &mut [MaybeUninit<Wc>], taken: &mut usize) -> bool {
        let is_of_sends = std::ptr::eq(&raw const *self.send_cq, cq);
        let is_of_receives = std::ptr::eq(&raw const *self.recv_cq, cq);
        if !(is_of_sends && is_of_receives) {
            return if is_of_sends { self.take_sends(out, taken) } else { self.take_receives(out, taken) };
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
            out[*taken].write(self.wc(done.wr_id, done.status, done.opcode, done.byte_len));
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
            let got = if self.drops_received.load(Relaxed) { FLUSHED } else { got };
            out[*taken].write(self.recv_wc(wr_id, at, &got));
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
        self.finish_wc(Wc { imm_data, wc_flags, src_qp, ..self.wc(wr_id, got.status, got.opcode, got.byte_len) })
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

    /// Forgets all requests and completions; the latter stay in their queues on devices on which they do. The state is RESET, and no peer is
    /// in the queue pair any more.
    pub(crate) fn discard(&self) {
        let stay = self.fabric.settings.stale_completions;
        let send = |left: &mut VecDeque<Wc>| {
            let mut send = lock(&self.send);
            while stay && let Some(done) = self.send_ring.take() {
                left.push_back(self.wc(done.wr_id, done.status, done.opcode, done.byte_len));
            }
            send.discard();
            let thrown = self.send_ring.discard(send.posted);
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
            let thrown = done - at;
            self.recv_cq.slot.polled.fetch_add(thrown, SeqCst);
            self.slot.done.store(posted, SeqCst);
            self.recv_polled.store(posted, SeqCst);
        };
        self.send_cq.while_not_polled(send);
        self.recv_cq.while_not_polled(recv);
    }

    /// Gives the table entry back, when all events have been acknowledged. Nothing refers to it any more.
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
