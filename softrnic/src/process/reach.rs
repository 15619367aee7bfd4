//! Whether the memory of another process can be reached from here.
//!
//! It takes the same user, one process id namespace, and a sandbox that allows it. Where one is missing copies are
//! staged. A process number of another namespace may be another program's here; so we look for what only the right one
//! has at the right place: its id in this fabric.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::host::errno::last_errno;
use crate::process::fabric::Fabric;
use crate::shm::process_id::slot_of;

/// [`ProcSlot::ways`](crate::shm::slots::ProcSlot): directly.
pub(crate) const DIRECT: u32 = 1;
/// As above: staged.
pub(crate) const STAGED: u32 = 2;

impl Fabric {
    /// Whether copies to and from process `id`, number `pid`, go directly.
    #[inline]
    pub(crate) fn reaches(&self, id: u32, pid: i32) -> bool {
        let known = &self.reached[slot_of(id)];
        let seen = known.load(Relaxed);
        if seen >> 2 == u64::from(id) { seen & 3 == u64::from(DIRECT) } else { self.probe(id, pid) }
    }

    #[cold]
    fn probe(&self, id: u32, pid: i32) -> bool {
        let way = match self.try_to_read(id, pid) {
            Ok(()) => DIRECT,
            Err(code) => {
                self.proc(slot_of(self.me)).obstacle.store(code as u32, Relaxed);
                STAGED
            }
        };
        self.proc(slot_of(self.me)).ways.fetch_or(way, Relaxed);
        self.reached[slot_of(id)].store(u64::from(id) << 2 | u64::from(way), Relaxed);
        way == DIRECT
    }

    fn try_to_read(&self, id: u32, pid: i32) -> Result<(), i32> {
        if self.settings.staged {
            // As if it were forbidden.
            return Err(libc::EPERM);
        }
        let mut found = 0u32;
        let ours = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 4 };
        let at = self.proc(slot_of(id)).id_at.load(Acquire);
        let theirs = libc::iovec { iov_base: at as *mut _, iov_len: 4 };
        // SAFETY: writes four bytes to `found`; the kernel checks the address it reads.
        let got = unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
        match got {
            4 if found == id => Ok(()),
            4 => Err(libc::ESRCH),
            _ => Err(last_errno()),
        }
    }
}
