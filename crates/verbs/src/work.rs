//! Work requests: posting them, and polling their completions.

#![deny(clippy::disallowed_methods)]

use super::completion_queue::{CompletionQueue, Polling};
use super::cq_ex::ExtendedQueue;
use super::queue_pair::QueuePair;
use super::status::Status;
use super::sys;
use crate::error::{Error, Result};
use std::fmt;
use std::mem::MaybeUninit;

pub use super::recv_chain::RECV_BATCH;

/// The most completions of one poll.
pub const POLL_BATCH: usize = 16;
/// The most writes posted in one call.
pub const WRITE_BATCH: usize = 4;

/// A scatter/gather element: local memory of a work request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sge {
    /// Its address.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Key of its memory region. Not used for inline data.
    pub lkey: u32,
}

/// Memory of the peer that a work request reads or writes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Target {
    /// Address in the peer's process.
    pub addr: u64,
    /// The peer's key for its memory region.
    pub rkey: u32,
}

/// An RDMA WRITE.
#[derive(Debug, Clone, Copy, Default)]
pub struct Write {
    /// Work request id, which the completion carries.
    pub id: u64,
    /// The data.
    pub local: Sge,
    /// The target memory.
    pub target: Target,
    /// Immediate data. It consumes a receive work request of the peer.
    pub imm: Option<u32>,
    /// Whether the device reads the data during the call, so that its memory need not be
    /// registered.
    pub inline: bool,
    /// Whether success creates a completion. Failure always does.
    pub signaled: bool,
}

/// A completion.
#[repr(transparent)]
pub struct Completion(sys::ibv_wc);

impl Completion {
    /// The id of the work request.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// Its status.
    #[inline]
    pub fn status(&self) -> Status {
        Status(self.0.status)
    }

    /// Immediate data of a receive. Undefined unless the status is success.
    #[inline]
    pub fn imm(&self) -> u32 {
        // SAFETY: any value that the device has written is a number.
        u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data })
    }

    /// The same, if it has succeeded.
    #[inline(always)]
    pub fn success(&self) -> Option<Success<'_>> {
        let success = Success { id: self.id(), place: Place::Polled(self) };
        (self.status() == Status::SUCCESS).then_some(success)
    }

    /// The vendor's error code. Undefined if the status is success.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Space for the completions of one poll.
#[derive(Debug)]
pub struct Batch([MaybeUninit<Completion>; POLL_BATCH]);

impl Default for Batch {
    #[inline(always)]
    fn default() -> Self {
        Self([const { MaybeUninit::uninit() }; POLL_BATCH])
    }
}

impl Batch {
    /// The first `count` completions, which a device has written. `None`: there cannot be so many,
    /// so the poll has failed.
    #[inline(always)]
    fn first(&self, count: usize) -> Option<&[Completion]> {
        // Checked first, since most polls find nothing.
        if count == 0 {
            return Some(&[]);
        }
        if count > POLL_BATCH {
            return None;
        }
        // SAFETY: the device has written this many entries. They consist of numbers, for which
        // every value is valid.
        Some(unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) })
    }

    /// Fills it with the completion of `queue` that is read and those that follow it. Ends the
    /// poll.
    ///
    /// # Safety
    /// As for [`ExtendedQueue::next`].
    #[inline(never)]
    unsafe fn fill(&mut self, queue: ExtendedQueue, how: &mut Polling) -> &[Completion] {
        let mut count = 0;
        for place in &mut self.0 {
            // SAFETY: by the caller; `next` says whether there is another one.
            unsafe {
                place.write(Completion(queue.completion()));
                count += 1;
                if count == POLL_BATCH {
                    break;
                }
                match queue.next() {
                    0 => {}
                    libc::ENOENT => break,
                    _ => {
                        *how = Polling::Broken(queue);
                        break;
                    }
                }
            }
        }
        // SAFETY: by the caller.
        unsafe { queue.end() };
        self.first(count).unwrap_or_default()
    }
}

impl QueuePair {
    /// Posts one write.
    ///
    /// # Errors
    /// As for [`Self::post_writes`].
    #[inline(always)]
    pub fn post_write(&mut self, write: &Write) -> Result<()> {
        let mut sge = write.local.into();
        let mut request = MaybeUninit::uninit();
        write.put(&mut request, &mut sge, std::ptr::null_mut());
        self.post_send(request.as_mut_ptr())
    }

    /// Posts up to [`WRITE_BATCH`] writes with one doorbell.
    ///
    /// # Errors
    /// The send queue is full, or the queue pair is in state ERROR. Some of the writes may be
    /// posted; the connection cannot continue.
    pub fn post_writes(&mut self, writes: &[Write]) -> Result<()> {
        let count = writes.len();
        if count == 0 || count > WRITE_BATCH {
            return Err(Error::misuse(format!(
                "{count} writes in one call; 1 to {WRITE_BATCH} are allowed"
            )));
        }
        self.post_send(Chain::new().link(writes))
    }

    /// Posts a signalled RDMA READ of `target` into `local`.
    ///
    /// # Errors
    /// As for [`Self::post_writes`].
    pub fn post_read(&mut self, id: u64, local: Sge, target: Target) -> Result<()> {
        let mut sge: sys::ibv_sge = local.into();
        let write = Write { id, local, target, signaled: true, ..Write::default() };
        let mut request = MaybeUninit::uninit();
        write.put(&mut request, &mut sge, std::ptr::null_mut());
        // SAFETY: a field of `request`.
        unsafe { (*request.as_mut_ptr()).opcode = sys::IBV_WR_RDMA_READ };
        self.post_send(request.as_mut_ptr())
    }

    /// Posts a chain of work requests.
    pub(super) fn post_send(&mut self, first: *mut sys::ibv_send_wr) -> Result<()> {
        let rc = match self.extended() {
            // SAFETY: as in `post_chain`; RDMA WRITE and READ are all that is posted.
            Some(extended) => unsafe { extended.post(first) },
            None => self.post_chain(first),
        };
        if rc == 0 { Ok(()) } else { Err(self.post_error("ibv_post_send", rc)) }
    }

    /// `ibv_post_send`, with the device's result.
    #[inline(always)]
    pub(super) fn post_chain(&mut self, first: *mut sys::ibv_send_wr) -> i32 {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue pair is live and exclusively borrowed. The chain and its elements live
        // until the call returns, and the library does not use them later.
        unsafe { (self.post_send)(self.raw(), first, bad.as_mut_ptr()) }
    }

    /// Posts `count` receive work requests, 1 to [`RECV_BATCH`], without memory: they receive
    /// immediate data only. Their completions carry the id passed to
    /// [`super::queue_pair::InitQueuePair::connect`].
    ///
    /// # Errors
    /// The receive queue is full, or the device has failed.
    #[inline(never)]
    pub fn post_receives(&mut self, count: usize) -> Result<()> {
        let Some(first) = self.recv_chain().last(count) else {
            return Err(Error::misuse(format!(
                "{count} receives in one call; 1 to {RECV_BATCH} are allowed"
            )));
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `post_send`; the chain is this queue pair's own and never changes.
        let rc = unsafe { (self.post_recv)(self.raw(), first, &raw mut bad) };
        if rc == 0 { Ok(()) } else { Err(self.post_error("ibv_post_recv", rc)) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn post_error(&self, call: &str, rc: i32) -> Error {
        Error::of_queue(
            format_args!("{call}({}, queue pair {})", self.device_name(), self.number()),
            rc.abs(),
        )
    }
}

/// Space for work requests that are posted in one call.
struct Chain {
    requests: [MaybeUninit<sys::ibv_send_wr>; WRITE_BATCH],
    sges: [MaybeUninit<sys::ibv_sge>; WRITE_BATCH],
}

impl Chain {
    fn new() -> Self {
        Self {
            requests: [const { MaybeUninit::uninit() }; _],
            sges: [const { MaybeUninit::uninit() }; _],
        }
    }

    /// The first of the work requests for the first [`WRITE_BATCH`] of `writes`, each of which
    /// points to the next one. Valid until the next use of this object.
    fn link(&mut self, writes: &[Write]) -> *mut sys::ibv_send_wr {
        let mut next = std::ptr::null_mut();
        // From the last one on: writing a request invalidates pointers to it.
        for ((write, request), sge) in
            writes.iter().zip(&mut self.requests).zip(&mut self.sges).rev()
        {
            write.put(request, sge.write(write.local.into()), next);
            next = request.as_mut_ptr();
        }
        next
    }
}

/// What [`CompletionQueue::look`] has found.
#[derive(Debug)]
pub enum CompletionLook {
    /// No completion.
    Nothing,
    /// At least one completion: [`CompletionQueue::read`] is next.
    Something(Unread),
    /// The queue has failed: [`CompletionQueue::poll_error`].
    Failed,
}

/// Shows that [`CompletionQueue::look`] has found a completion, which is not read yet.
#[derive(Debug)]
pub struct Unread(());

/// A successful completion that is read or was polled.
#[derive(Debug, Clone, Copy)]
pub struct Success<'a> {
    id: u64,
    place: Place<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Place<'a> {
    Read(ExtendedQueue),
    Polled(&'a Completion),
}

impl Success<'_> {
    /// The id of the work request.
    #[inline(always)]
    pub fn id(self) -> u64 {
        self.id
    }

    /// Immediate data of a receive. Call it for a receive only.
    #[inline(always)]
    pub fn imm(self) -> u32 {
        match self.place {
            // SAFETY: made while this is the completion that is read.
            Place::Read(queue) => u32::from_be(unsafe { queue.imm() }),
            Place::Polled(completion) => completion.imm(),
        }
    }
}

/// What has become of a completion that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// It is handled.
    Yes,
    /// It is handled, and [`CompletionQueue::read`] does not count it.
    Uncounted,
    /// It is handled, and no other one is to be read now.
    Last,
    /// It is not handled.
    No,
}

impl CompletionQueue {
    /// Polls up to [`POLL_BATCH`] completions.
    ///
    /// # Errors
    /// The queue has failed (overrun).
    #[inline(always)]
    pub fn poll<'a>(&mut self, batch: &'a mut Batch) -> Result<&'a [Completion]> {
        match self.how {
            Polling::Batches(poll) => {
                // SAFETY: the queue is live and exclusively borrowed, and the batch has room for
                // the given number.
                let count =
                    unsafe { poll(self.raw, POLL_BATCH as i32, batch.0.as_mut_ptr().cast()) };
                batch.first(count as usize).ok_or_else(|| self.poll_error())
            }
            Polling::Singly(_) => match self.look() {
                Some(CompletionLook::Something(unread)) => self.poll_singly(unread, batch),
                Some(CompletionLook::Failed) => Err(self.poll_error()),
                Some(CompletionLook::Nothing) | None => Ok(&[]),
            },
            Polling::Broken(queue) => Err(self.report_broken(queue)),
        }
    }

    /// The error of a queue that could not go to its next completion. What is left can be read: a
    /// fence does.
    #[cold]
    #[inline(never)]
    fn report_broken(&mut self, queue: ExtendedQueue) -> Error {
        self.how = Polling::Singly(queue);
        self.handle.mark_exhausted();
        self.poll_error()
    }

    #[inline(never)]
    fn poll_singly<'a>(
        &mut self,
        unread: Unread,
        batch: &'a mut Batch,
    ) -> Result<&'a [Completion]> {
        self.read(unread, batch, POLL_BATCH, |_| ReadOutcome::No).map(Option::unwrap_or_default)
    }

    /// Removes the completions of destroyed queue pairs: these complete nothing more, but some
    /// drivers keep what had completed. Returns whether other queue pairs may use the queue.
    pub fn clear(&mut self) -> bool {
        let mut batch = Batch::default();
        // A driver that reports completions without end must not keep this thread here.
        for _ in 0..=u16::MAX {
            match self.poll(&mut batch) {
                Ok([]) => return !self.has_failed() && self.handle.is_free(),
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Whether there are completions, if the device can tell without returning one.
    #[inline(always)]
    pub fn look(&mut self) -> Option<CompletionLook> {
        let Polling::Singly(queue) = self.how else { return None };
        // SAFETY: the queue is live and exclusively borrowed.
        Some(match unsafe { queue.start() } {
            libc::ENOENT => CompletionLook::Nothing,
            0 => CompletionLook::Something(Unread(())),
            _ => CompletionLook::Failed,
        })
    }

    /// Reads completions after [`Self::look`] of this queue has found some, and passes the
    /// successful ones to `take`, until it has counted `most`, at least 1. Returns `None` if it has
    /// taken all; otherwise all from the first one on that has failed or was not taken.
    ///
    /// # Errors
    /// The queue has failed (overrun).
    #[inline(always)]
    pub fn read<'a>(
        &mut self,
        _unread: Unread,
        batch: &'a mut Batch,
        most: usize,
        mut take: impl FnMut(Success<'_>) -> ReadOutcome,
    ) -> Result<Option<&'a [Completion]>> {
        let Polling::Singly(queue) = self.how else { return Ok(None) };
        let mut left = most;
        // SAFETY: as in `look`, which has found a completion; others follow while `next` says so.
        unsafe {
            loop {
                if queue.status() != Status::SUCCESS {
                    return Ok(Some(batch.fill(queue, &mut self.how)));
                }
                match take(Success { id: queue.id(), place: Place::Read(queue) }) {
                    ReadOutcome::Yes => {
                        left = left.wrapping_sub(1);
                        if left == 0 {
                            break;
                        }
                    }
                    ReadOutcome::Uncounted => {}
                    ReadOutcome::Last => {
                        queue.end();
                        return Ok(Some(&[]));
                    }
                    ReadOutcome::No => return Ok(Some(batch.fill(queue, &mut self.how))),
                }
                match queue.next() {
                    0 => {}
                    libc::ENOENT => break,
                    // Some drivers have consumed the entry. What was read is handled first.
                    _ => {
                        self.how = Polling::Broken(queue);
                        break;
                    }
                }
            }
            queue.end();
        }
        Ok(None)
    }

    /// Check this after an empty poll.
    ///
    /// # Errors
    /// The queue has failed, so no completion will arrive.
    pub fn check(&self) -> Result<()> {
        if self.has_failed() { Err(self.poll_error()) } else { Ok(()) }
    }
}

impl Write {
    /// Fills in the fields for RDMA READ and RDMA WRITE. The library does not read the others.
    #[inline(always)]
    pub(super) fn put(
        &self,
        at: &mut MaybeUninit<sys::ibv_send_wr>,
        sge: *mut sys::ibv_sge,
        next: *mut sys::ibv_send_wr,
    ) {
        let mut flags = 0;
        if self.signaled {
            flags |= sys::IBV_SEND_SIGNALED;
        }
        if self.inline {
            flags |= sys::IBV_SEND_INLINE;
        }
        let opcode = match self.imm {
            Some(_) => sys::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => sys::IBV_WR_RDMA_WRITE,
        };
        let request = at.as_mut_ptr();
        // SAFETY: fields of `at`, which are plain data and are not read.
        unsafe {
            (*request).wr_id = self.id;
            (*request).next = next;
            (*request).sg_list = sge;
            (*request).num_sge = i32::from(self.local.length > 0);
            (*request).opcode = opcode;
            (*request).send_flags = flags;
            if let Some(imm) = self.imm {
                (*request).imm_data_invalidated_rkey_union.imm_data = imm.to_be();
            }
            (*request).wr.rdma.remote_addr = self.target.addr;
            (*request).wr.rdma.rkey = self.target.rkey;
        }
    }
}

impl From<Sge> for sys::ibv_sge {
    #[inline]
    fn from(sge: Sge) -> Self {
        Self { addr: sge.addr, length: sge.length, lkey: sge.lkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_one_call_are_linked_in_order() {
        let write = |id: u64| Write {
            id,
            local: Sge { addr: 10 * id, length: 1, lkey: 0 },
            ..Write::default()
        };
        let mut chain = Chain::new();
        for count in 1..=WRITE_BATCH as u64 {
            let mut at = chain.link(&(1..=count).map(write).collect::<Vec<_>>());
            for id in 1..=count {
                // SAFETY: a linked request, with initialised fields and element.
                let (found, addr) = unsafe { ((*at).wr_id, (*(*at).sg_list).addr) };
                assert_eq!((found, addr), (id, 10 * id));
                // SAFETY: as above.
                at = unsafe { (*at).next };
            }
            assert!(at.is_null(), "{count} were linked");
        }
    }
}
