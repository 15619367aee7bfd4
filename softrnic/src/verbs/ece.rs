//! Enhanced connection establishment: options that devices of one maker agree on. `SOFTRNIC_ECE` says which these have;
//! they are kept and reported, and change nothing.

use std::ffi::c_int;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::qp_state;
use crate::abi::export::export;
use crate::abi::types;
use crate::objects::qp::Qp;
use crate::verbs::{code, object};

/// `struct ibv_ece`.
#[repr(C)]
struct Ece {
    vendor_id: u32,
    options: u32,
    comp_mask: u32,
}

/// That of the PCI devices that `--faithful` shows.
const VENDOR: u32 = 0xf000;

/// Before a set: what the device offers. Afterwards: what of it the queue pair has.
unsafe extern "C" fn query_ece(handle: *mut types::Qp, out: *mut Ece) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        if qp.fabric.settings.ece == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's structure.
        unsafe { out.write(Ece { vendor_id: VENDOR, options: qp.ece.load(SeqCst), comp_mask: 0 }) };
        Ok(())
    })
}
export!("ibv_query_ece", "IBVERBS_1.10", query_ece);

/// Before the queue pair is ready to receive.
unsafe extern "C" fn set_ece(handle: *mut types::Qp, wanted: *const Ece) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        // SAFETY: the caller's structure.
        let Ece { vendor_id, options, comp_mask } = unsafe { wanted.read() };
        let offered = qp.fabric.settings.ece;
        if offered == 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let is_early = matches!(qp.slot.state.load(SeqCst), qp_state::RESET | qp_state::INIT);
        if vendor_id != VENDOR || comp_mask != 0 || !is_early {
            return Err(libc::EINVAL);
        }
        qp.ece.store(options & offered, SeqCst);
        Ok(())
    })
}
export!("ibv_set_ece", "IBVERBS_1.10", set_ece);
