//! Memory regions, and the checks of the keys that name them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::types;
use crate::abi::types::access;
use crate::copy::gpu;
use crate::host::last_errno;
use crate::objects::context::Pd;
use crate::process::fabric;
use crate::process::fabric::{Fabric, RegKind};
use crate::shm::file::{PAGE, Table};
use crate::shm::slots::MrSlot;

/// What the application holds as `ibv_mr*` is its first field.
#[repr(C)]
pub(crate) struct Mr {
    abi: types::Mr,
    pd: Arc<Pd>,
    index: u32,
    kind: RegKind,
}

const KNOWN: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::HUGETLB
    | access::OPTIONAL;

/// What is to be registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    /// Address in this process; with a dma-buf, its `iova`.
    pub(crate) addr: u64,
    pub(crate) length: usize,
    /// Address that requests use.
    pub(crate) iova: u64,
    /// The dma-buf that it is, if it is one.
    pub(crate) dmabuf: Option<i32>,
}

/// What `ibv_rereg_mr` changes of a region; `None`: it stays.
pub(crate) struct Change {
    /// Its memory, which is the host's or a GPU's by address.
    pub(crate) range: Option<Range>,
    pub(crate) pd: Option<Arc<Pd>>,
    pub(crate) access: Option<u32>,
}

impl Range {
    /// Whose memory it is, see `MrSlot::gpu`; an error if it cannot be registered.
    fn owner(&self, fabric: &Fabric) -> Result<u32, i32> {
        if let Some(fd) = self.dmabuf {
            return gpu::find_dmabuf(fabric, fd, self.addr, self.length as u64);
        }
        let gpu = gpu::find(fabric, self.addr, self.length as u64)?;
        if gpu == 0 {
            require_mapped(self.addr, self.length)?;
        }
        Ok(gpu)
    }
}

impl Mr {
    /// Whether `range` may be registered for such access.
    pub(crate) fn check(range: Range, flags: u32) -> Result<(), i32> {
        let Range { addr, length, iova, .. } = range;
        let writes_remotely = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let wraps =
            addr.checked_add(length as u64).is_none() || iova.checked_add(length as u64).is_none();
        if length == 0 || wraps || (writes_remotely && flags & access::LOCAL_WRITE == 0) {
            return Err(libc::EINVAL);
        }
        if flags & !KNOWN != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        Ok(())
    }

    /// Registers `range`, which [`Self::check`] has found in order.
    pub(crate) fn register(pd: &Arc<Pd>, range: Range, flags: u32) -> Result<Box<Self>, i32> {
        pd.context.require_alive()?;
        let Range { addr, length, iova, .. } = range;
        let (fabric, device) = (pd.context.fabric, pd.context.device.index);
        if length as u64 > fabric.settings.driver.max_mr_size {
            return Err(libc::EINVAL);
        }
        let gpu = range.owner(fabric)?;
        let control = fabric.file.control();
        let index = fabric.claim(&control, Table::Mr, device, fabric.settings.max_mr).inspect_err(
            |_| {
                give_back(gpu, addr, length as u64);
            },
        )?;
        let slot = fabric.mr(device, index);
        let generation = slot.generation.fetch_add(1, Relaxed).wrapping_add(1) % 255 + 1;
        let key = index << 8 | generation;
        slot.pd.store(pd.id, Relaxed);
        slot.access.store(flags, Relaxed);
        slot.iova.store(iova, Relaxed);
        slot.addr.store(addr, Relaxed);
        slot.length.store(length as u64, Relaxed);
        slot.gpu.store(gpu, Relaxed);
        slot.key.store(key, SeqCst);
        let protection = Pd::protection(pd);
        protection.users.fetch_add(1, SeqCst);
        let kind = match (gpu, range.dmabuf) {
            (0, _) => RegKind::Host,
            (_, None) => RegKind::GpuByAddress,
            (_, Some(_)) => RegKind::GpuByDmabuf,
        };
        fabric::registered(length, kind);
        let abi = types::Mr {
            context: pd.context.as_abi(),
            pd: pd.as_abi(),
            addr: addr as *mut _,
            length,
            handle: index,
            lkey: key,
            rkey: key,
        };
        Ok(Box::new(Self { abi, pd: Arc::clone(protection), index, kind }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Mr {
        (&raw const self.abi).cast_mut()
    }

    /// Its protection domain.
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Its key, local and remote.
    pub(crate) fn key(&self) -> u32 {
        self.abi.lkey
    }

    /// Whether `change` is in order; whose the new memory is (see `MrSlot::gpu`), if there is some.
    pub(crate) fn check_change(&self, change: &Change) -> Result<Option<u32>, i32> {
        self.pd.context.require_alive()?;
        let slot = self.slot();
        let (addr, length, iova) =
            (slot.addr.load(Relaxed), slot.length.load(Relaxed), slot.iova.load(Relaxed));
        let now = Range { addr, length: length as usize, iova, dmabuf: None };
        if change.range.is_some_and(|range| {
            range.length as u64 > self.pd.context.fabric.settings.driver.max_mr_size
        }) {
            return Err(libc::EINVAL);
        }
        Self::check(
            change.range.unwrap_or(now),
            change.access.unwrap_or_else(|| slot.access.load(Relaxed)),
        )?;
        if change
            .pd
            .as_ref()
            .is_some_and(|pd| pd.context.device.index != self.pd.context.device.index)
        {
            return Err(libc::EINVAL);
        }
        change.range.map(|range| range.owner(self.pd.context.fabric)).transpose()
    }

    /// Becomes what [`Self::check_change`] has found in order. Its key is invalid, all accesses are
    /// over; it is valid again afterwards.
    pub(crate) fn change(&mut self, change: Change, gpu: Option<u32>) {
        let slot = self.slot();
        if let Some(access) = change.access {
            slot.access.store(access, Relaxed);
        }
        if let (Some(range), Some(gpu)) = (change.range, gpu) {
            give_back(slot.gpu.load(Relaxed), slot.addr.load(Relaxed), slot.length.load(Relaxed));
            slot.addr.store(range.addr, Relaxed);
            slot.iova.store(range.iova, Relaxed);
            slot.length.store(range.length as u64, Relaxed);
            slot.gpu.store(gpu, Relaxed);
            fabric::deregistered(self.abi.length, self.kind);
            self.kind = if gpu == 0 { RegKind::Host } else { RegKind::GpuByAddress };
            fabric::registered(range.length, self.kind);
            (self.abi.addr, self.abi.length) = (range.addr as *mut _, range.length);
        }
        if let Some(pd) = change.pd {
            let protection = Pd::protection(&pd);
            slot.pd.store(protection.id, Relaxed);
            protection.users.fetch_add(1, SeqCst);
            self.pd.users.fetch_sub(1, SeqCst);
            self.pd = Arc::clone(protection);
            self.abi.pd = pd.as_abi();
        }
        slot.key.store(self.abi.lkey, SeqCst);
    }

    fn slot(&self) -> &'static MrSlot {
        self.pd.context.fabric.mr(self.pd.context.device.index, self.index)
    }

    /// Invalidates the keys: no access begins any more.
    pub(crate) fn invalidate(&self) {
        self.slot().key.store(0, SeqCst);
    }

    /// Gives the entry back. Its keys are invalid and all accesses that began before are over.
    pub(crate) fn release(self) {
        let (fabric, device) = (self.pd.context.fabric, self.pd.context.device.index);
        let slot = self.slot();
        give_back(slot.gpu.load(Relaxed), slot.addr.load(Relaxed), slot.length.load(Relaxed));
        let control = fabric.file.control();
        fabric.free(&control, Table::Mr, device, self.index);
        self.pd.users.fetch_sub(1, SeqCst);
        fabric::deregistered(self.abi.length, self.kind);
    }
}

/// Memory that is not registered any more; `gpu`: see `MrSlot::gpu`.
fn give_back(gpu: u32, addr: u64, length: u64) {
    if gpu != 0 {
        gpu::give_back(addr, length);
    }
}

/// EFAULT unless every page of the range is mapped, as pinning it would find.
fn require_mapped(addr: u64, length: usize) -> Result<(), i32> {
    let start = addr & !(PAGE as u64 - 1);
    let bytes = (addr - start) as usize + length;
    // SAFETY: MS_ASYNC changes nothing; the kernel only walks the mappings, and answers ENOMEM for
    // a hole.
    let rc = unsafe { libc::msync(start as *mut _, bytes, libc::MS_ASYNC) };
    if rc == 0 || last_errno() != libc::ENOMEM { Ok(()) } else { Err(libc::EFAULT) }
}
