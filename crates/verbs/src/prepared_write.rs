//! An RDMA WRITE that is posted repeatedly with other values.

use super::queue_pair::QueuePair;
use super::sys;
use super::work::{Sge, Target, Write};
use crate::error::{Error, Result};
use std::fmt;
use std::mem::MaybeUninit;

/// A work request of which only the varying fields are rewritten.
pub struct PreparedWrite {
    request: sys::ibv_send_wr,
    sge: sys::ibv_sge,
}

/// How a device reads the data of a signalled write: `send_flags` of the work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSource(u32);

impl DataSource {
    /// From registered memory, later.
    pub const MEMORY: Self = Self(sys::IBV_SEND_SIGNALED);
    /// During the call, by the processor.
    pub const INLINE: Self = Self(sys::IBV_SEND_SIGNALED | sys::IBV_SEND_INLINE);
}

// SAFETY: its only pointer refers to its own element, and is set at each post.
unsafe impl Send for PreparedWrite {}
// SAFETY: as above; a shared reference gives access to nothing.
unsafe impl Sync for PreparedWrite {}

impl PreparedWrite {
    /// A work request according to `write`.
    pub fn new(write: &Write) -> Self {
        let mut sge = write.local.into();
        let mut request = MaybeUninit::zeroed();
        write.put(&mut request, &mut sge, std::ptr::null_mut());
        // SAFETY: a struct of numbers and pointers, for which zero is valid.
        Self { request: unsafe { request.assume_init() }, sge }
    }

    /// Sets the source and the target. The length is not 0, now or at creation.
    #[inline(always)]
    pub fn set_data(&mut self, local: Sge, target: Target) {
        self.sge = local.into();
        self.request.wr.rdma.remote_addr = target.addr;
        self.request.wr.rdma.rkey = target.rkey;
    }

    /// Sets the source and the target within the same memory regions. `length` is not 0, and
    /// neither was the earlier one.
    #[inline(always)]
    pub fn set_range(&mut self, addr: u64, length: u32, target: u64) {
        (self.sge.addr, self.sge.length) = (addr, length);
        self.request.wr.rdma.remote_addr = target;
    }

    /// Sets the work request id, and the immediate data of a write that has some.
    #[inline(always)]
    pub fn set_id(&mut self, id: u64, imm: u32) {
        self.request.wr_id = id;
        self.request.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
    }

    /// Sets how the device reads the data. Success creates a completion.
    #[inline(always)]
    pub fn set_signaled_data(&mut self, source: DataSource) {
        self.request.send_flags = source.0;
    }

    /// The work request id.
    pub fn id(&self) -> u64 {
        self.request.wr_id
    }

    /// Whether success creates a completion.
    #[inline(always)]
    pub fn set_signaled(&mut self, signaled: bool) {
        let flag = sys::IBV_SEND_SIGNALED;
        let others = self.request.send_flags & !flag;
        self.request.send_flags = others | if signaled { flag } else { 0 };
    }
}

/// The device's result for a refused post.
#[derive(Debug, Clone, Copy)]
pub struct RefusedPost(i32);

impl QueuePair {
    /// Posts `write` as it is now.
    ///
    /// # Errors
    /// As for [`Self::post_writes`].
    #[inline(always)]
    pub fn post_prepared(&mut self, write: &mut PreparedWrite) -> Result<()> {
        self.try_post(write).map_err(|refused| self.refusal(refused))
    }

    /// [`Self::post_prepared`], but returns a result that [`Self::refusal`] turns into an error.
    ///
    /// # Errors
    /// The device refuses.
    #[inline(always)]
    pub fn try_post(&mut self, write: &mut PreparedWrite) -> std::result::Result<(), RefusedPost> {
        write.request.sg_list = &raw mut write.sge;
        match self.post_chain(&raw mut write.request) {
            0 => Ok(()),
            rc => Err(RefusedPost(rc)),
        }
    }

    /// The error of a refused post.
    #[cold]
    #[inline(never)]
    pub fn refusal(&self, RefusedPost(rc): RefusedPost) -> Error {
        self.post_error("ibv_post_send", rc)
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
            (imm, inline, signaled) in any::<(Option<u32>, bool, bool)>(),
        ) {
            let (local, target) = (Sge { addr, length, lkey: keys[0] }, Target { addr: remote, rkey: keys[1] });
            let made = PreparedWrite::new(&Write { id, local, target, imm, inline, signaled });
            let mut changed = PreparedWrite::new(&Write {
                local: Sge { length: 1, ..Sge::default() },
                imm: imm.map(|_| 7),
                inline,
                ..Write::default()
            });
            changed.set_data(local, target);
            changed.set_id(id, imm.unwrap_or(0));
            changed.set_signaled(signaled);
            prop_assert_eq!(fields(&changed), fields(&made));
        }

        #[test]
        fn a_write_whose_range_is_changed_is_the_write_that_is_made_so(
            (addr, remote, keys) in any::<(u64, u64, [u32; 2])>(),
            lengths in any::<[u32; 2]>().prop_filter("not 0", |lengths| !lengths.contains(&0)),
        ) {
            let (local, target) = (Sge { addr, length: lengths[0], lkey: keys[0] }, Target { addr: remote, rkey: keys[1] });
            let write = Write { local, target, ..Write::default() };
            let mut changed = PreparedWrite::new(&Write {
                local: Sge { addr: 1, length: lengths[1], ..local },
                target: Target { addr: 2, ..target },
                ..write
            });
            changed.set_range(addr, lengths[0], remote);
            prop_assert_eq!(fields(&changed), fields(&PreparedWrite::new(&write)));
        }
    }
}
