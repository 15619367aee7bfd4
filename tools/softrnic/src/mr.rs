//! Memory regions, and the checks of the keys that name them.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::access;
use crate::abi::types;
use crate::engine::Piece;
use crate::fabric::layout::{PAGE, Table};
use crate::fabric::{Fabric, lock};
use crate::gpu;
use crate::notice::last_errno;
use crate::pd::Pd;
use crate::usage::{self, Way};

/// What the application holds as `ibv_mr*` is its first field.
#[repr(C)]
pub(crate) struct Mr {
    abi: types::Mr,
    pd: Arc<Pd>,
    index: u32,
    way: Way,
}

/// Memory that a key has been found to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Address in the process that owns it.
    pub(crate) addr: u64,
    pub(crate) is_relaxed: bool,
    /// See `MrSlot::gpu`.
    pub(crate) gpu: u32,
}

impl Place {
    /// `len` bytes there, which `key` allows.
    #[inline]
    pub(crate) fn piece(&self, key: u32, len: u64) -> Piece {
        Piece { addr: self.addr, len, key, gpu: self.gpu }
    }
}

/// A key does not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forbidden;

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

impl Range {
    /// Whose memory it is, see `MrSlot::gpu`; an error if it cannot be registered.
    fn owner(&self, fabric: &Fabric) -> Result<u32, i32> {
        if let Some(fd) = self.dmabuf {
            return gpu::find_dmabuf(fabric, fd, self.addr);
        }
        let gpu = gpu::find(fabric, self.addr)?;
        if gpu == 0 {
            require_mapped(self.addr, self.length)?;
        }
        Ok(gpu)
    }
}

impl Mr {
    pub(crate) fn register(pd: &Arc<Pd>, range: Range, flags: u32) -> Result<Box<Self>, i32> {
        let Range { addr, length, iova, .. } = range;
        let writes_remotely = flags & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let wraps = addr.checked_add(length as u64).is_none() || iova.checked_add(length as u64).is_none();
        if length == 0 || wraps || (writes_remotely && flags & access::LOCAL_WRITE == 0) {
            return Err(libc::EINVAL);
        }
        if flags & !KNOWN != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let (fabric, device) = (pd.context.fabric, pd.context.device.index);
        crate::faults::reg_mr(fabric, device)?;
        let gpu = range.owner(fabric)?;
        let control = fabric.file.control();
        let index = fabric.claim(&control, Table::Mr, device, fabric.settings.max_mr)?;
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
        pd.users.fetch_add(1, SeqCst);
        let way = match (gpu, range.dmabuf) {
            (0, _) => Way::Host,
            (_, None) => Way::GpuByAddress,
            (_, Some(_)) => Way::GpuByDmabuf,
        };
        usage::registered(length, way);
        let abi = types::Mr {
            context: pd.context.as_abi(),
            pd: pd.as_abi(),
            addr: addr as *mut _,
            length,
            handle: index,
            lkey: key,
            rkey: key,
        };
        Ok(Box::new(Self { abi, pd: Arc::clone(pd), index, way }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Mr {
        (&raw const self.abi).cast_mut()
    }

    /// Invalidates the keys, then waits for every access that began before.
    pub(crate) fn deregister(self) {
        let (fabric, device) = (self.pd.context.fabric, self.pd.context.device.index);
        fabric.mr(device, self.index).key.store(0, SeqCst);
        let users: Vec<_> = lock(&fabric.qps).iter().filter(|qp| qp.pd.id == self.pd.id).cloned().collect();
        for qp in users {
            // Our own threads read and write it under this lock, peers while they visit the QP.
            // What passes through the stage is sent again from the beginning, and finds the key invalid.
            lock(&qp.send).moving.take_if(|moving| moving.uses(self.abi.lkey));
            fabric.await_visitor(qp.slot);
        }
        if fabric.has_stage() {
            fabric.server.quiesce(fabric);
        }
        let control = fabric.file.control();
        fabric.free(&control, Table::Mr, device, self.index);
        self.pd.users.fetch_sub(1, SeqCst);
        usage::deregistered(self.abi.length, self.way);
    }
}

/// Checks that `key` of `device` and `pd` allows `need` on `[at, at + length)`; returns where that is.
#[inline]
pub(crate) fn resolve(
    fabric: &Fabric,
    (device, pd): (usize, u32),
    key: u32,
    (at, length): (u64, u64),
    need: u32,
) -> Result<Place, Forbidden> {
    let mr = fabric.find_mr(device, key).ok_or(Forbidden)?;
    let offset = at.wrapping_sub(mr.iova.load(Relaxed));
    let size = mr.length.load(Relaxed);
    let fits = offset <= size && length <= size - offset;
    let flags = mr.access.load(Relaxed);
    if !fits || mr.pd.load(Relaxed) != pd || flags & need != need {
        return Err(Forbidden);
    }
    let is_relaxed = flags & access::RELAXED_ORDERING != 0;
    Ok(Place { addr: mr.addr.load(Relaxed) + offset, is_relaxed, gpu: mr.gpu.load(Relaxed) })
}

/// EFAULT unless every page of the range is mapped, as pinning it would find.
fn require_mapped(addr: u64, length: usize) -> Result<(), i32> {
    let start = addr & !(PAGE as u64 - 1);
    let bytes = (addr - start) as usize + length;
    // SAFETY: MS_ASYNC changes nothing; the kernel only walks the mappings, and answers ENOMEM for a hole.
    let rc = unsafe { libc::msync(start as *mut _, bytes, libc::MS_ASYNC) };
    if rc == 0 || last_errno() != libc::ENOMEM { Ok(()) } else { Err(libc::EFAULT) }
}
