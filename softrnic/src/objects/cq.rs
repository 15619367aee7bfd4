//! Completion queues.
//!
//! A CQ holds no completions. They stay in the rings of its QPs, which have one producer each, and
//! the CQ holds what all producers share: a doorbell with a bit per QP, and two counters to notice
//! an overrun.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::abi::types;
use crate::abi::types::{Calls, CqEx, Wc, event};
use crate::host::{FdQueue, InUse, lock};
use crate::objects::context::{Context, Pd};
use crate::shm::file::Table;
use crate::shm::slots::{CqSlot, armed};

/// A queue pair, as its completion queues see it.
pub(crate) trait CompletionSource: Send + Sync {
    /// Moves completions that concern `cq` into `out`, from `taken` on. True if something is left.
    fn drain(&self, cq: &Cq, out: &mut [MaybeUninit<Wc>], taken: &mut usize) -> bool;

    /// The completion queue has overrun: the queue pair fails.
    fn fail(&self);
}

/// What the application holds as `ibv_cq*` is its first field.
#[repr(C)]
pub(crate) struct Cq {
    abi: CqEx,
    /// The completion that is looked at; while `is_looked_at`, by one thread.
    looked_at: UnsafeCell<Wc>,
    is_looked_at: AtomicBool,
    pub(crate) context: Arc<Context>,
    pub(crate) slot: &'static CqSlot,
    pub(crate) index: u32,
    channel: Option<&'static Channel>,
    sources: Mutex<Sources>,
    /// Doorbell bits taken but not worked off.
    carry: AtomicU64,
    /// Number of the queue pair that a poll begins with: another one after each poll that has left
    /// something, so that none keeps the completions of others from being polled.
    turn: AtomicU32,
    /// Events given to the application, to be acknowledged before the CQ goes.
    pub(crate) comp_events: AtomicU32,
    pub(crate) async_events: AtomicU32,
    acks: Acks,
    /// Those who poll, or throw completions away.
    pub(crate) polling: InUse,
    parent_domain: Option<Arc<Pd>>,
}

/// Where its completions come from.
#[derive(Default)]
struct Sources {
    /// Its queue pairs by number; bit `number % 64` of the doorbell is theirs.
    by_number: Vec<Option<Arc<dyn CompletionSource>>>,
    /// Completions of queue pairs that are no more, or have been reset. The doorbell has its first
    /// bit for them.
    left: VecDeque<Wc>,
}

/// Names a CQ that is for one thread.
pub(crate) const SINGLE_THREADED_CQ: &str =
    "a completion queue that was created for a single thread";

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("index", &self.index).finish_non_exhaustive()
    }
}

// SAFETY: `abi` is written once but for its atomics; the rest synchronises itself.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    pub(crate) fn new(context: Arc<Context>, requested: CqRequest) -> Result<Arc<Self>, i32> {
        let CqRequest { cqe, cq_context, channel, calls, is_single_threaded, parent_domain } =
            requested;
        context.require_alive()?;
        let (fabric, device) = (context.fabric, context.device.index);
        let capacity = (fabric.settings.library.round_cq)(cqe);
        let control = fabric.file.control();
        let index = fabric.claim(&control, Table::Cq, device, fabric.settings.max_cq)?;
        let slot = fabric.cq(device, index);
        slot.capacity.store(capacity, SeqCst);
        slot.requested.store(cqe, SeqCst);
        for word in
            [&slot.bell, &slot.pushed, &slot.polled, &slot.polls, &slot.fruitful_polls, &slot.locks]
        {
            word.store(0, SeqCst);
        }
        slot.single_threaded.store(is_single_threaded.into(), SeqCst);
        for word in [&slot.dead, &slot.events, &slot.armed] {
            word.store(0, SeqCst);
        }
        drop(control);
        let base = types::Cq {
            context: context.as_abi(),
            channel: channel.map_or(std::ptr::null_mut(), Channel::as_abi),
            cq_context,
            handle: index,
            cqe: AtomicI32::new(capacity as i32),
            mutex: [0; 5],
            cond: [0; 6],
            comp_events_completed: AtomicU32::new(0),
            async_events_completed: AtomicU32::new(0),
        };
        let abi =
            CqEx { base, comp_mask: 0, status: AtomicU32::new(0), wr_id: AtomicU64::new(0), calls };
        if let Some(channel) = channel {
            channel.users.fetch_add(1, SeqCst);
        }
        if let Some(domain) = &parent_domain {
            domain.users.fetch_add(1, SeqCst);
        }
        Ok(Arc::new(Self {
            abi,
            looked_at: UnsafeCell::default(),
            is_looked_at: AtomicBool::new(false),
            context,
            slot,
            index,
            channel,
            sources: Mutex::default(),
            carry: AtomicU64::new(0),
            turn: AtomicU32::new(0),
            comp_events: AtomicU32::new(0),
            async_events: AtomicU32::new(0),
            acks: Acks::default(),
            polling: InUse::new(is_single_threaded),
            parent_domain,
        }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Cq {
        (&raw const self.abi.base).cast_mut()
    }

    /// Gives it room for other `cqe` completions; EINVAL if more are in it.
    pub(crate) fn resize(&self, cqe: u32) -> Result<(), i32> {
        let _polling = self.polling.while_in(SINGLE_THREADED_CQ);
        let _sources = lock(&self.sources);
        let capacity = (self.context.fabric.settings.library.round_cq)(cqe);
        // A completion may be polled before its producer has counted it.
        let waiting =
            self.slot.pushed.load(SeqCst).wrapping_sub(self.slot.polled.load(SeqCst)) as i64;
        if waiting > i64::from(capacity) {
            return Err(libc::EINVAL);
        }
        self.slot.capacity.store(capacity, SeqCst);
        self.slot.requested.store(cqe, SeqCst);
        self.abi.base.cqe.store(capacity as i32, SeqCst);
        Ok(())
    }

    /// One thread at a time looks at completions one by one: waits for the others, of which there
    /// are none if it is for one thread.
    pub(crate) fn begin_look(&self) {
        self.polling.enter(SINGLE_THREADED_CQ);
        while !self.polling.is_promised() && self.is_looked_at.swap(true, Acquire) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn end_look(&self) {
        self.is_looked_at.store(false, Release);
        self.polling.leave();
    }

    /// `wc` is the one that is looked at. Between `begin_look` and `end_look`.
    pub(crate) fn look_at(&self, wc: Wc) {
        self.abi.status.store(wc.status, Relaxed);
        self.abi.wr_id.store(wc.wr_id, Relaxed);
        // SAFETY: one thread at a time is here (`begin_look`, or the application's promise).
        unsafe { *self.looked_at.get() = wc };
    }

    /// The completion that is looked at. Between `begin_look` and `end_look`.
    pub(crate) fn looked_at(&self) -> Wc {
        // SAFETY: as in `look_at`.
        unsafe { *self.looked_at.get() }
    }

    /// Adds a queue pair; returns its number here.
    pub(crate) fn add(&self, source: Arc<dyn CompletionSource>) -> u32 {
        let sources = &mut lock(&self.sources).by_number;
        let free = sources.iter().position(Option::is_none).unwrap_or_else(|| {
            sources.push(None);
            sources.len() - 1
        });
        sources[free] = Some(source);
        free as u32
    }

    /// Runs `work` while nobody polls this CQ, which mlx5 sees to by the lock that it does not take
    /// if one thread uses the CQ. What `work` leaves is polled as it is, before all that comes
    /// later.
    pub(crate) fn while_not_polled(&self, work: impl FnOnce(&mut VecDeque<Wc>)) {
        let _polling = self.polling.while_in(SINGLE_THREADED_CQ);
        let left = &mut lock(&self.sources).left;
        work(left);
        if !left.is_empty() {
            self.slot.bell.fetch_or(1, SeqCst);
        }
    }

    /// Removes queue pair number `number`.
    pub(crate) fn remove(&self, number: u32) {
        if let Some(source) = lock(&self.sources).by_number.get_mut(number as usize) {
            *source = None;
        }
    }

    /// Takes completions that are there; returns how many.
    pub(crate) fn poll(&self, out: &mut [MaybeUninit<Wc>]) -> usize {
        if self.slot.bell.load(Relaxed) == 0 && self.carry.load(Relaxed) == 0 {
            return 0;
        }
        let Sources { by_number: sources, left } = &mut *lock(&self.sources);
        let (turn, first) = (self.turn.load(Relaxed), self.turn.load(Relaxed) % 64);
        let mut bits =
            (self.carry.load(Relaxed) | self.slot.bell.swap(0, Acquire)).rotate_right(first);
        let (mut keep, mut taken) = (0, 0);
        while taken < out.len()
            && let Some(wc) = left.pop_front()
        {
            out[taken].write(wc);
            taken += 1;
        }
        if !left.is_empty() {
            keep = 1;
        }
        while bits != 0 {
            if taken == out.len() {
                keep |= bits.rotate_left(first);
                break;
            }
            let bit = (bits.trailing_zeros() + first) % 64;
            bits &= bits - 1;
            let numbers = (bit as usize..sources.len()).step_by(64);
            let (count, skipped) = (numbers.len(), turn as usize / 64);
            for source in numbers
                .cycle()
                .skip(skipped % count.max(1))
                .take(count)
                .filter_map(|at| sources[at].as_ref())
            {
                if source.drain(self, out, &mut taken) {
                    keep |= 1 << bit;
                }
            }
        }
        self.carry.store(keep, Relaxed);
        if keep != 0 {
            self.turn.store(turn.wrapping_add(1), Relaxed);
        }
        if taken != 0 {
            self.slot.polled.fetch_add(taken as u64, SeqCst);
        }
        taken
    }

    /// A call has polled, found something or not, and taken a lock or not as mlx5 has it.
    #[inline]
    pub(crate) fn count_poll(&self, is_fruitful: bool, is_locked: bool) {
        let add = |counter: &AtomicU64, count: bool| {
            counter.store(counter.load(Relaxed) + u64::from(count), Relaxed)
        };
        add(&self.slot.polls, true);
        add(&self.slot.fruitful_polls, is_fruitful);
        add(&self.slot.locks, is_locked);
    }

    /// Whether it has queue pairs.
    pub(crate) fn is_in_use(&self) -> bool {
        lock(&self.sources).by_number.iter().any(Option::is_some)
    }

    /// Takes this CQ out of the fabric. It has no queue pairs, and the service thread does not know
    /// it any more.
    pub(crate) fn destroy(&self) {
        let fabric = self.context.fabric;
        let me = self.as_abi() as usize;
        self.context.events.purge(|e| e.element == me);
        if let Some(channel) = self.channel {
            channel.tokens.purge(|&token| token == me);
            channel.users.fetch_sub(1, SeqCst);
        }
        self.acks.wait(&[
            (&self.comp_events, &self.abi.base.comp_events_completed),
            (&self.async_events, &self.abi.base.async_events_completed),
        ]);
        let control = fabric.file.control();
        fabric.free(&control, Table::Cq, self.context.device.index, self.index);
        if let Some(domain) = &self.parent_domain {
            domain.users.fetch_sub(1, SeqCst);
        }
    }

    pub(crate) fn ack_comp_events(&self, count: u32) {
        self.acks.add(&self.abi.base.comp_events_completed, count);
    }

    pub(crate) fn ack_async_event(&self) {
        self.acks.add(&self.abi.base.async_events_completed, 1);
    }

    /// Asks for a notification of the next completion.
    pub(crate) fn arm(&self, is_for_any: bool) {
        let bit = if is_for_any { armed::FOR_ANY } else { armed::FOR_SOLICITED };
        // A notification that an earlier arm has asked for is delivered all the same.
        self.slot.armed.fetch_and(armed::NOTIFY, SeqCst);
        self.slot.armed.fetch_or(bit, SeqCst);
    }

    /// For the service thread: passes on the notifications that producers asked for.
    pub(crate) fn deliver(&self) {
        if self.slot.events.swap(0, SeqCst) != 0 {
            lock(&self.sources).by_number.iter().flatten().for_each(|source| source.fail());
            self.context.events.push(crate::objects::context::Event {
                element: self.as_abi() as usize,
                kind: event::CQ_ERR,
            });
        }
        if self.slot.armed.fetch_and(!armed::NOTIFY, SeqCst) & armed::NOTIFY != 0
            && let Some(channel) = self.channel
        {
            channel.tokens.push(self.as_abi() as usize);
        }
    }
}

/// What a completion queue is to be.
pub(crate) struct CqRequest {
    pub(crate) cqe: u32,
    /// The application's word for it.
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Option<&'static Channel>,
    /// All 0 if it is not an extended one.
    pub(crate) calls: Calls,
    /// One thread at a time uses it.
    pub(crate) is_single_threaded: bool,
    pub(crate) parent_domain: Option<Arc<Pd>>,
}

/// What the application holds as `ibv_comp_channel*` is its first field.
#[repr(C)]
pub(crate) struct Channel {
    abi: types::CompChannel,
    pub(crate) context: Arc<Context>,
    /// Application's `ibv_cq*` of each notification.
    pub(crate) tokens: FdQueue<usize>,
    pub(crate) users: AtomicU32,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: Arc<Context>) -> Result<Box<Self>, i32> {
        let tokens = FdQueue::new()?;
        let abi = types::CompChannel { context: context.as_abi(), fd: tokens.fd(), refcnt: 0 };
        Ok(Box::new(Self { abi, context, tokens, users: AtomicU32::new(0) }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::CompChannel {
        (&raw const self.abi).cast_mut()
    }
}

/// The acknowledged events of one object. Its fields that the application sees count them.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    counting: Mutex<()>,
    counted: Condvar,
}

impl Acks {
    /// `count` more events are acknowledged.
    pub(crate) fn add(&self, acknowledged: &AtomicU32, count: u32) {
        let _guard = lock(&self.counting);
        acknowledged.fetch_add(count, SeqCst);
        self.counted.notify_all();
    }

    /// Waits until all are: of each kind the events that were given, and those that are
    /// acknowledged.
    pub(crate) fn wait(&self, kinds: &[(&AtomicU32, &AtomicU32)]) {
        let mut guard = lock(&self.counting);
        while kinds
            .iter()
            .any(|(given, acknowledged)| given.load(SeqCst) != acknowledged.load(SeqCst))
        {
            guard = self.counted.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
