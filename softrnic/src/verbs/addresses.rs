//! Address handles.

use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::consts::WC_GRH;
use crate::abi::export::export;
use crate::abi::types::{self, AhAttr, Wc};
use crate::drivers::driver::Verb;
use crate::network::gid::TypedGid;
use crate::network::header::{Described, NetworkHeader};
use crate::objects::ah::Ah;
use crate::objects::context::Context;
use crate::objects::pd::Pd;
use crate::shm::slots::GIDS;
use crate::verbs::attach::engine_of;
use crate::verbs::{code, context, minus_one, object, pointer, shared};

fn create(pd: &Arc<Pd>, vector: &AhAttr) -> Result<*mut types::Ah, i32> {
    engine_of(pd.context.fabric)?.fabric.settings.driver.require(Verb::CreateAh)?;
    // Given back by `destroy_ah`.
    Ok(Box::leak(Ah::create(pd, vector)?).as_abi())
}

unsafe extern "C" fn create_ah(pd: *mut types::Pd, vector: *const AhAttr) -> *mut types::Ah {
    // SAFETY: the caller's handle and structure.
    pointer(|| create(&unsafe { shared(pd) }, unsafe { &*vector }))
}
export!("ibv_create_ah", "IBVERBS_1.1", create_ah);

unsafe extern "C" fn destroy_ah(handle: *mut types::Ah) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let ah: &Ah = unsafe { object(handle) };
        if !ah.pd.context.fabric.is_gone() {
            // SAFETY: takes back what `create` leaked.
            drop(unsafe { Box::from_raw(handle.cast::<Ah>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_ah", "IBVERBS_1.1", destroy_ah);

/// The way back to the sender of a datagram.
///
/// # Safety
/// `header` is the network header, where the completion says that there is one.
unsafe fn way_back(context: &Context, port: u8, wc: &Wc, header: *const NetworkHeader) -> Result<AhAttr, i32> {
    let slot = context.port(u32::from(port))?;
    let (dlid, sl, src_path_bits) = (wc.slid, wc.sl, wc.dlid_path_bits);
    let vector = AhAttr { dlid, sl, src_path_bits, port_num: port, ..AhAttr::default() };
    if wc.wc_flags & WC_GRH == 0 {
        return Ok(vector);
    }
    // SAFETY: by the caller.
    let found = Described::of_bytes(unsafe { &*header }).ok_or(libc::EPROTONOSUPPORT)?;
    let mine = TypedGid { gid: found.target, kind: found.source.kind };
    let index = (0..GIDS).find(|&index| slot.gid(index) == Some(mine)).ok_or(libc::ENOENT)?;
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| found.source.gid[at + i]));
    Ok(AhAttr {
        dgid: [word(0), word(8)],
        flow_label: found.flow_label,
        sgid_index: index as u8,
        hop_limit: 0xff,
        traffic_class: found.traffic_class,
        is_global: 1,
        ..vector
    })
}

unsafe extern "C" fn init_ah_from_wc(
    handle: *mut types::Context,
    port: u8,
    wc: *const Wc,
    header: *const NetworkHeader,
    out: *mut AhAttr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        // SAFETY: the caller's structures.
        unsafe { out.write(way_back(&context, port, &*wc, header)?) };
        Ok(())
    })
}
export!("ibv_init_ah_from_wc", "IBVERBS_1.1", init_ah_from_wc);

unsafe extern "C" fn create_ah_from_wc(
    pd: *mut types::Pd,
    wc: *const Wc,
    header: *const NetworkHeader,
    port: u8,
) -> *mut types::Ah {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        // SAFETY: the caller's structures.
        let vector = unsafe { way_back(&pd.context, port, &*wc, header) }?;
        create(&pd, &vector)
    })
}
export!("ibv_create_ah_from_wc", "IBVERBS_1.1", create_ah_from_wc);
