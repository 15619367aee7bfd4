//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::types;
use crate::copy::gpu;
use crate::drivers::driver::Verb;
use crate::host::errno::set_errno;
use crate::objects::mr::{Change, Mr, Range};
use crate::objects::pd::Pd;
use crate::process::commands::Command;
use crate::verbs::attach::engine_of;
use crate::verbs::{code, context, minus_one, object, pointer, shared};

pub(super) unsafe extern "C" fn alloc_pd(handle: *mut types::Context) -> *mut types::Pd {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd = Pd::new(unsafe { context(handle) }?)?;
        pd.context.fabric.count_command(Command::AllocPd);
        let handle = pd.as_abi();
        // Given back by `dealloc_pd`.
        let _ = Arc::into_raw(pd);
        Ok(handle)
    })
}
export!("ibv_alloc_pd", "IBVERBS_1.1", alloc_pd);

unsafe extern "C" fn dealloc_pd(handle: *mut types::Pd) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let pd: &Pd = unsafe { object(handle) };
        // A parent domain is none of the device's.
        if pd.context.is_refusing() && !pd.is_parent() {
            return Ok(());
        }
        if pd.users.load(SeqCst) != 0 && !pd.context.fabric.is_gone() {
            return Err(libc::EBUSY);
        }
        pd.release();
        // SAFETY: takes back what `alloc_pd` or `alloc_parent_domain` leaked.
        drop(unsafe { Arc::from_raw(handle.cast::<Pd>()) });
        Ok(())
    })
}
export!("ibv_dealloc_pd", "IBVERBS_1.1", dealloc_pd);

fn register(pd: *mut types::Pd, range: Range, flags: u32) -> *mut types::Mr {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        let engine = engine_of(pd.context.fabric)?;
        let mr = engine.register(&pd, range, flags)?;
        engine.fabric.count_command(Command::RegisterMr);
        let handle = mr.as_abi();
        // Given back by `dereg_mr`.
        let _ = Box::into_raw(mr);
        Ok(handle)
    })
}

fn host(addr: *mut c_void, length: usize, iova: u64) -> Range {
    Range { addr: addr as u64, length, iova, dmabuf: None }
}

unsafe extern "C" fn reg_mr(pd: *mut types::Pd, addr: *mut c_void, length: usize, flags: c_int) -> *mut types::Mr {
    register(pd, host(addr, length, addr as u64), flags as u32)
}
export!("ibv_reg_mr", "IBVERBS_1.1", reg_mr);

unsafe extern "C" fn reg_mr_iova(
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_int,
) -> *mut types::Mr {
    register(pd, host(addr, length, iova), flags as u32)
}
export!("ibv_reg_mr_iova", "IBVERBS_1.7", reg_mr_iova);

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut types::Mr {
    register(pd, host(addr, length, iova), flags)
}
export!("ibv_reg_mr_iova2", "IBVERBS_1.8", reg_mr_iova2);

/// Callers probe with no descriptor and look at errno: EBADF where dma-bufs can be registered, else EOPNOTSUPP.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut types::Pd,
    _offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut types::Mr {
    // A probe has no length either.
    if fd < 0 {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        return pointer(|| gpu::find_dmabuf(pd.context.fabric, fd, iova, 0).and(Err(libc::EBADF)));
    }
    register(pd, Range { addr: iova, length, iova, dmabuf: Some(fd) }, flags as u32)
}
export!("ibv_reg_dmabuf_mr", "IBVERBS_1.12", reg_dmabuf_mr);

/// What `ibv_rereg_mr` changes.
mod rereg {
    pub(super) const TRANSLATION: i32 = 1;
    pub(super) const PD: i32 = 1 << 1;
    pub(super) const ACCESS: i32 = 1 << 2;
}
/// `IBV_REREG_MR_ERR_INPUT`: the region is as it was.
const WRONG_INPUT: c_int = -1;
/// `IBV_REREG_MR_ERR_CMD`.
const FAILED: c_int = -4;

unsafe extern "C" fn rereg_mr(
    handle: *mut types::Mr,
    flags: c_int,
    pd: *mut types::Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let changes = |what| flags & what != 0;
    let is_wrong = flags & !(rereg::TRANSLATION | rereg::PD | rereg::ACCESS) != 0
        || (changes(rereg::TRANSLATION) && (length == 0 || addr.is_null()))
        || (access != 0 && !changes(rereg::ACCESS));
    if is_wrong {
        set_errno(libc::EINVAL);
        return WRONG_INPUT;
    }
    let rc = minus_one(|| {
        // SAFETY: the caller's handle, which nobody else uses meanwhile.
        let mr: &mut Mr = unsafe { &mut *handle.cast() };
        let engine = engine_of(mr.pd().context.fabric)?;
        engine.fabric.settings.driver.require(Verb::ReregMr)?;
        let change = Change {
            range: changes(rereg::TRANSLATION).then(|| host(addr, length, addr as u64)),
            // SAFETY: the caller's handle.
            pd: changes(rereg::PD).then(|| unsafe { shared(pd) }),
            access: changes(rereg::ACCESS).then_some(access as u32),
        };
        engine.reregister(mr, change)?;
        engine.fabric.count_command(Command::RegisterMr);
        Ok(())
    });
    if rc == 0 { 0 } else { FAILED }
}
export!("ibv_rereg_mr", "IBVERBS_1.1", rereg_mr);

unsafe extern "C" fn dereg_mr(handle: *mut types::Mr) -> c_int {
    code(|| {
        // SAFETY: the caller's handle. The parent domain that it was registered with may be gone.
        let pd = Arc::clone(unsafe { object::<Mr, _>(handle) }.pd());
        if pd.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(pd.context.fabric) {
            // SAFETY: takes back what `register` leaked.
            engine.deregister(*unsafe { Box::from_raw(handle.cast::<Mr>()) });
            engine.fabric.count_command(Command::DeregisterMr);
        }
        Ok(())
    })
}
export!("ibv_dereg_mr", "IBVERBS_1.1", dereg_mr);
