//! The work requests Ferrite uses, and their completions.

use super::queue::{CompletionQueue, QueuePair};
use super::status::Status;
use super::sys;
use crate::error::{Error, Result};
use std::fmt;
use std::mem::MaybeUninit;

/// Receive work requests that can be posted in one call.
pub const RECV_BATCH: usize = 32;
/// Completions that one poll takes.
pub const POLL_BATCH: usize = 16;
/// Writes that can be posted in one call.
pub const WRITE_BATCH: usize = 4;

/// Local memory of a work request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key of its memory region; meaningless for inline data.
    pub lkey: u32,
}

/// Memory of the peer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Target {
    /// Address in the peer's process.
    pub addr: u64,
    /// Key that the peer gave out.
    pub rkey: u32,
}

/// An RDMA WRITE.
#[derive(Debug, Clone, Copy, Default)]
pub struct Write {
    /// Comes back in the completion.
    pub id: u64,
    /// What to write; copied at the call if `inline`.
    pub local: Sge,
    /// Where to.
    pub target: Target,
    /// Immediate data, which consumes a receive work request of the peer.
    pub imm: Option<u32>,
    /// Whether to copy the data at the call.
    pub inline: bool,
    /// Whether success makes a completion. Failure always does.
    pub signaled: bool,
}

/// A completion.
#[repr(transparent)]
pub struct Completion(sys::ibv_wc);

impl Completion {
    /// The work request's id.
    #[inline]
    pub fn id(&self) -> u64 {
        self.0.wr_id
    }

    /// How it ended.
    #[inline]
    pub fn status(&self) -> Status {
        Status(self.0.status)
    }

    /// Immediate data of a receive; undefined unless the status is success.
    #[inline]
    pub fn imm(&self) -> u32 {
        // SAFETY: both variants are 32 bits of plain data.
        u32::from_be(unsafe { self.0.imm_data_invalidated_rkey_union.imm_data })
    }

    /// The device's own error code.
    pub fn vendor_error(&self) -> u32 {
        self.0.vendor_err
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("id", &self.id()).field("status", &self.status()).finish_non_exhaustive()
    }
}

/// Room for the completions of one poll.
#[derive(Debug)]
pub struct Batch([MaybeUninit<Completion>; POLL_BATCH]);

impl Default for Batch {
    #[inline(always)]
    fn default() -> Self {
        Self([const { MaybeUninit::uninit() }; POLL_BATCH])
    }
}

impl QueuePair {
    /// Posts one write.
    ///
    /// # Errors
    /// As [`Self::post_writes`].
    #[inline(always)]
    pub fn post_write(&mut self, write: &Write) -> Result<()> {
        let mut span = write.local.into();
        let mut request = MaybeUninit::uninit();
        write.put(&mut request, &mut span, std::ptr::null_mut());
        self.post_send(request.as_mut_ptr())
    }

    /// Posts up to [`WRITE_BATCH`] writes with one doorbell.
    ///
    /// # Errors
    /// The send queue is full or the queue pair is not connected any more: none or some are posted, and the connection
    /// cannot go on.
    pub fn post_writes(&mut self, writes: &[Write]) -> Result<()> {
        let count = writes.len();
        if count == 0 || count > WRITE_BATCH {
            return Err(Error::internal(format!("{count} writes in one call; 1 to {WRITE_BATCH} are possible")));
        }
        let mut requests = [const { MaybeUninit::<sys::ibv_send_wr>::uninit() }; WRITE_BATCH];
        let mut spans = [const { MaybeUninit::<sys::ibv_sge>::uninit() }; WRITE_BATCH];
        for (i, write) in writes.iter().enumerate() {
            let next = if i + 1 < count { requests[i + 1].as_mut_ptr() } else { std::ptr::null_mut() };
            let span = spans[i].write(write.local.into());
            write.put(&mut requests[i], span, next);
        }
        self.post_send(requests[0].as_mut_ptr())
    }

    /// Posts an RDMA READ of the peer's memory into local memory, signalled.
    ///
    /// # Errors
    /// As [`Self::post_writes`].
    pub fn post_read(&mut self, id: u64, local: Sge, target: Target) -> Result<()> {
        let mut span: sys::ibv_sge = local.into();
        let write = Write { id, local, target, signaled: true, ..Write::default() };
        let mut request = MaybeUninit::uninit();
        write.put(&mut request, &mut span, std::ptr::null_mut());
        // SAFETY: inside of `request`.
        unsafe { (*request.as_mut_ptr()).opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_READ };
        self.post_send(request.as_mut_ptr())
    }

    #[inline(always)]
    fn post_send(&mut self, first: *mut sys::ibv_send_wr) -> Result<()> {
        let mut bad = MaybeUninit::uninit();
        // SAFETY: the queue pair is live and exclusively borrowed; the chain and its spans live until the call returns,
        // which is as long as the library may look at them.
        let rc = unsafe { (self.post_send)(self.raw(), first, bad.as_mut_ptr()) };
        if rc == 0 { Ok(()) } else { Err(self.post_error("ibv_post_send", rc)) }
    }

    /// Posts `count` receive work requests, 1 to [`RECV_BATCH`], without memory: they take immediates only.
    /// Their completions carry the id that [`super::queue::InitQueuePair::connect`] was given.
    ///
    /// # Errors
    /// The receive queue is full, or the device is lost.
    #[inline(never)]
    pub fn post_receives(&mut self, count: usize) -> Result<()> {
        let Some(first) = self.recv_chain().last(count) else {
            return Err(Error::internal(format!("{count} receives in one call; 1 to {RECV_BATCH} are possible")));
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `post_send`; the chain is this queue pair's own and never changes.
        let rc = unsafe { sys::ibv_post_recv(self.raw(), first, &raw mut bad) };
        if rc == 0 { Ok(()) } else { Err(self.post_error("ibv_post_recv", rc)) }
    }

    #[cold]
    #[inline(never)]
    fn post_error(&self, call: &str, rc: i32) -> Error {
        Error::os(format_args!("{call}({}, queue pair {})", self.device_name(), self.number()), rc.abs())
    }
}

impl CompletionQueue {
    /// Takes up to [`POLL_BATCH`] completions.
    ///
    /// # Errors
    /// The queue itself has failed (overrun).
    #[inline(always)]
    pub fn poll<'a>(&self, batch: &'a mut Batch) -> Result<&'a [Completion]> {
        // SAFETY: the queue is live and the batch has room for as many as it says.
        let count = unsafe { (self.poll)(self.raw, POLL_BATCH as i32, batch.0.as_mut_ptr().cast()) };
        let count = count as usize;
        if count > POLL_BATCH {
            return Err(overrun());
        }
        // SAFETY: the call has written so many entries. They are numbers only, so junk in undefined fields is harmless.
        Ok(unsafe { std::slice::from_raw_parts(batch.0.as_ptr().cast(), count) })
    }
}

#[cold]
#[inline(never)]
fn overrun() -> Error {
    Error::os("ibv_poll_cq (has the completion queue overrun?)", libc::EIO)
}

impl Write {
    /// Fills in what an RDMA request has; the rest, which is for other operations, nobody reads.
    #[inline(always)]
    fn put(&self, at: &mut MaybeUninit<sys::ibv_send_wr>, span: *mut sys::ibv_sge, next: *mut sys::ibv_send_wr) {
        let mut flags = 0;
        if self.signaled {
            flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        if self.inline {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        let opcode = match self.imm {
            Some(_) => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        let request = at.as_mut_ptr();
        // SAFETY: the fields are inside of `at` and plain data, and nothing is read.
        unsafe {
            (*request).wr_id = self.id;
            (*request).next = next;
            (*request).sg_list = span;
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
    fn from(span: Sge) -> Self {
        Self { addr: span.addr, length: span.length, lkey: span.lkey }
    }
}

/// [`RECV_BATCH`] linked receive work requests without memory, made once: any number of the last ones is a chain too.
#[derive(Debug)]
pub(super) struct RecvChain(*mut sys::ibv_recv_wr);

impl RecvChain {
    /// A chain whose completions carry `id`.
    pub(super) fn new(id: u64) -> Self {
        let null = std::ptr::null_mut();
        let link = sys::ibv_recv_wr { wr_id: id, next: null, sg_list: std::ptr::null_mut(), num_sge: 0 };
        let base = Box::into_raw(Box::new([link; RECV_BATCH])).cast::<sys::ibv_recv_wr>();
        for i in 0..RECV_BATCH - 1 {
            // SAFETY: inside the array just made, which nobody else knows.
            unsafe { (*base.add(i)).next = base.add(i + 1) };
        }
        Self(base)
    }

    fn last(&self, count: usize) -> Option<*mut sys::ibv_recv_wr> {
        (1..=RECV_BATCH).contains(&count).then(|| self.0.wrapping_add(RECV_BATCH - count))
    }
}

impl Drop for RecvChain {
    fn drop(&mut self) {
        // SAFETY: made from such a box in `new`, and given back once.
        drop(unsafe { Box::from_raw(self.0.cast::<[sys::ibv_recv_wr; RECV_BATCH]>()) });
    }
}
