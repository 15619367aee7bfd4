//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::types;
use crate::copy::gpu;
use crate::objects::mr::{Mr, Range};
use crate::objects::pd::Pd;
use crate::process::commands::Command;
use crate::verbs::attach::engine_of;
use crate::verbs::{code, context, object, pointer, shared};

unsafe extern "C" fn alloc_pd(handle: *mut types::Context) -> *mut types::Pd {
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
        return pointer(|| gpu::find_dmabuf(pd.context.fabric, fd, iova).and(Err(libc::EBADF)));
    }
    register(pd, Range { addr: iova, length, iova, dmabuf: Some(fd) }, flags as u32)
}
export!("ibv_reg_dmabuf_mr", "IBVERBS_1.12", reg_dmabuf_mr);

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
