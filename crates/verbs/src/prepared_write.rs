//! RDMA WRITEs that are posted repeatedly with other values.

use super::queue_pair::QueuePair;
use super::sys;
use super::work::{Sge, Target, Write};
use crate::error::Error;
use std::fmt;
use std::mem::MaybeUninit;

/// A work request of which only the varying fields are rewritten.
struct PreparedWrite {
    request: sys::ibv_send_wr,
    sge: sys::ibv_sge,
}

// SAFETY: its only pointer refers to its own element, and is set at each post.
unsafe impl Send for PreparedWrite {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for PreparedWrite {}

/// A write without immediate data, which the device reads during the call.
#[derive(Debug)]
pub struct InlineWrite(PreparedWrite);

/// A signalled write with immediate data.
#[derive(Debug)]
pub struct ImmediateWrite(PreparedWrite);

/// How a device reads the data of a signalled write: `send_flags` of the work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSource(u32);

impl DataSource {
    /// From registered memory, later.
    pub const MEMORY: Self = Self(sys::IBV_SEND_SIGNALED);
    /// During the call, by the processor.
    pub const INLINE: Self = Self(sys::IBV_SEND_SIGNALED | sys::IBV_SEND_INLINE);
}

impl PreparedWrite {
    /// A work request according to `write`.
    fn new(write: &Write) -> Self {
        let mut sge = write.local.into();
        let mut request = MaybeUninit::zeroed();
        write.put(&mut request, &mut sge, std::ptr::null_mut());
        // SAFETY: a struct of numbers and pointers, for which zero is valid.
        Self { request: unsafe { request.assume_init() }, sge }
    }
}

impl InlineWrite {
    /// A write with the id `id` into the peer's memory region `rkey`.
    pub fn new(id: u64, rkey: u32) -> Self {
        Self(PreparedWrite::new(&Write {
            id,
            local: Sge { length: 1, ..Sge::default() },
            target: Target { addr: 0, rkey },
            inline: true,
            ..Write::default()
        }))
    }

    /// Sets the source, the target, and whether success creates a completion. `length` is not 0.
    #[inline(always)]
    fn set(&mut self, addr: u64, length: u32, target: u64, signaled: bool) {
        let PreparedWrite { request, sge } = &mut self.0;
        (sge.addr, sge.length) = (addr, length);
        request.wr.rdma.remote_addr = target;
        let flag = if signaled { sys::IBV_SEND_SIGNALED } else { 0 };
        request.send_flags = sys::IBV_SEND_INLINE | flag;
    }
}

impl Default for ImmediateWrite {
    fn default() -> Self {
        Self(PreparedWrite::new(&Write {
            local: Sge { length: 1, ..Sge::default() },
            imm: Some(0),
            signaled: true,
            ..Write::default()
        }))
    }
}

/// What an [`ImmediateWrite`] carries, and where. The length is not 0.
#[derive(Debug, Clone, Copy)]
pub struct Data {
    /// The data.
    pub local: Sge,
    /// The target memory.
    pub target: Target,
    /// How the device reads the data.
    pub source: DataSource,
}

impl ImmediateWrite {
    #[inline(always)]
    fn set_data(&mut self, Data { local, target, source }: Data) {
        let PreparedWrite { request, sge } = &mut self.0;
        *sge = local.into();
        request.wr.rdma.remote_addr = target.addr;
        request.wr.rdma.rkey = target.rkey;
        request.send_flags = source.0;
    }

    /// Sets the work request id and the immediate data.
    #[inline(always)]
    fn set_id(&mut self, id: u64, imm: u32) {
        self.0.request.wr_id = id;
        self.0.request.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
    }
}

/// The device's result for a refused post.
#[derive(Debug, Clone, Copy)]
pub struct RefusedPost {
    rc: i32,
    /// The work request id.
    pub id: u64,
}

impl RefusedPost {
    /// Calls `id` only if the post was refused.
    #[inline(always)]
    fn of(rc: i32, id: impl FnOnce() -> u64) -> Result<(), Self> {
        if rc == 0 { Ok(()) } else { Err(Self { rc, id: id() }) }
    }
}

impl QueuePair {
    /// Posts `write` of `length` bytes at `addr`, which is not 0, to address `target`. `signaled`:
    /// success creates a completion.
    ///
    /// # Errors
    /// The device refuses, which [`Self::refusal`] turns into an error.
    #[inline(always)]
    pub fn post_inline(
        &mut self,
        write: &mut InlineWrite,
        (addr, length, target): (u64, u32, u64),
        signaled: bool,
    ) -> Result<(), RefusedPost> {
        if let Some(extended) = self.extended() {
            let PreparedWrite { request, .. } = &write.0;
            // SAFETY: as in `post_chain`. The queue pair was created for writes.
            let rc = unsafe {
                extended.start();
                extended.begin(request.wr_id, if signaled { sys::IBV_SEND_SIGNALED } else { 0 });
                extended.write(request.wr.rdma.rkey, target);
                extended.data(&sys::ibv_sge { addr, length, lkey: 0 }, true);
                extended.complete()
            };
            // Read back, so that nothing is saved for it during the post.
            // SAFETY: as above.
            return RefusedPost::of(rc, || unsafe { extended.id() });
        }
        write.set(addr, length, target, signaled);
        let PreparedWrite { request, sge } = &mut write.0;
        request.sg_list = sge;
        RefusedPost::of(self.post_chain(request), || request.wr_id)
    }

    /// Posts `write` with this work request id, immediate data and data.
    ///
    /// # Errors
    /// As for [`Self::post_inline`].
    #[inline(always)]
    pub fn post_immediate(
        &mut self,
        write: &mut ImmediateWrite,
        (id, imm): (u64, u32),
        data: Data,
    ) -> Result<(), RefusedPost> {
        if let Some(extended) = self.extended() {
            let Data { local, target: Target { addr, rkey }, source } = data;
            // SAFETY: as in `post_chain`. The queue pair was created for such writes.
            let rc = unsafe {
                extended.start();
                extended.begin(id, sys::IBV_SEND_SIGNALED);
                extended.write_imm(rkey, addr, imm.to_be());
                extended.data(&local.into(), source == DataSource::INLINE);
                extended.complete()
            };
            // SAFETY: as above.
            return RefusedPost::of(rc, || unsafe { extended.id() });
        }
        write.set_id(id, imm);
        write.set_data(data);
        let PreparedWrite { request, sge } = &mut write.0;
        request.sg_list = sge;
        RefusedPost::of(self.post_chain(request), || request.wr_id)
    }

    /// The error of a refused post.
    #[cold]
    #[inline(never)]
    pub fn refusal(&self, refused: RefusedPost) -> Error {
        self.post_error("ibv_post_send", refused.rc)
    }
}

impl fmt::Debug for PreparedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedWrite").field("id", &self.request.wr_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All fields that a device may read, except the address of the element.
    fn fields(write: &PreparedWrite) -> impl PartialEq + fmt::Debug + use<> {
        let PreparedWrite { request, sge } = write;
        // SAFETY: numbers, of which every one is valid; `put` or zeros are there.
        let (imm, rdma) =
            unsafe { (request.imm_data_invalidated_rkey_union.imm_data, request.wr.rdma) };
        let number = (request.num_sge, request.opcode, request.send_flags);
        (
            (request.wr_id, request.next, imm, number),
            (rdma.remote_addr, rdma.rkey),
            (sge.addr, sge.length, sge.lkey),
        )
    }

    proptest! {
        #[test]
        fn a_write_that_is_changed_is_the_write_that_is_made_so(
            (id, addr, remote, keys) in any::<(u64, u64, u64, [u32; 2])>(),
            length in 1u32..,
            (imm, inline) in any::<(u32, bool)>(),
        ) {
            let (local, target) = (Sge { addr, length, lkey: keys[0] }, Target { addr: remote, rkey: keys[1] });
            let made = PreparedWrite::new(&Write { id, local, target, imm: Some(imm), inline, signaled: true });
            let mut changed = ImmediateWrite::default();
            let source = if inline { DataSource::INLINE } else { DataSource::MEMORY };
            changed.set_data(Data { local, target, source });
            changed.set_id(id, imm);
            prop_assert_eq!(fields(&changed.0), fields(&made));
        }

        #[test]
        fn an_inline_write_that_is_changed_is_the_write_that_is_made_so(
            (id, addr, remote, rkey) in any::<(u64, u64, u64, u32)>(),
            length in 1u32..,
            signaled: bool,
        ) {
            let (local, target) = (Sge { addr, length, lkey: 0 }, Target { addr: remote, rkey });
            let made = Write { id, local, target, imm: None, inline: true, signaled };
            let mut changed = InlineWrite::new(id, rkey);
            changed.set(1, 1, 2, !signaled);
            changed.set(addr, length, remote, signaled);
            prop_assert_eq!(fields(&changed.0), fields(&PreparedWrite::new(&made)));
        }
    }
}
