//! What an identifier has once its device is known.

use crate::verbs::attach::engine;
use crate::verbs::cm::address::{Place, gid, storage};
use crate::verbs::cm::devices;
use crate::verbs::cm::id::{Id, State};

/// The default partition.
pub(super) const PKEY: u16 = 0xffff;

/// The identifier is at this port of a device: it has its context and a protection domain.
///
/// # Safety
/// `id` is held by the application, in a call of its own.
pub(super) unsafe fn settle(id: &Id, state: &mut State, place: Place) -> Result<(), i32> {
    let (context, pd) = devices::open(place.device)?;
    let fabric = engine()?.fabric;
    let abi = id.as_abi();
    // SAFETY: by the caller.
    unsafe {
        (*abi).verbs = context;
        if (*abi).pd.is_null() {
            (*abi).pd = pd;
        }
        (*abi).port_num = place.port as u8;
        (*abi).route.pkey = PKEY;
        (*abi).route.sgid = gid(fabric, place).ok_or(libc::ENODATA)?.1;
    }
    state.place = Some(place);
    Ok(())
}

/// The addresses of the identifier are these, where they are known.
///
/// # Safety
/// As for [`settle`].
pub(super) unsafe fn show(id: &Id, state: &State) {
    // SAFETY: by the caller.
    let route = unsafe { &mut (*id.as_abi()).route };
    if let Some(source) = state.source {
        route.source = storage(source);
    }
    if let Some(target) = state.target {
        route.target = storage(target);
    }
}
