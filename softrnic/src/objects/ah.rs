//! Address handles: where datagrams go.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::{self, AhAttr};
use crate::network::port_id::PortId;
use crate::objects::pd::Pd;
use crate::process::route::Route;

/// What the application holds as `ibv_ah*` is its first field.
#[repr(C)]
pub(crate) struct Ah {
    abi: types::Ah,
    pub(crate) pd: Arc<Pd>,
    pub(crate) vector: AhAttr,
    pub(crate) route: Route,
}

impl Ah {
    /// RoCE resolves the address, as the kernel does: `ETIMEDOUT` where nobody has it.
    pub(crate) fn create(pd: &Arc<Pd>, vector: &AhAttr) -> Result<Box<Self>, i32> {
        pd.context.require_alive()?;
        let (fabric, port) = (pd.context.fabric, u32::from(vector.port_num));
        pd.context.port(port)?;
        let from = PortId { device: pd.context.device.index, port };
        // A packet that is larger than the MTU of the port where it arrives vanishes.
        let route = Route::of_datagrams(fabric, from, vector)?.with_mtu(u32::MAX);
        let protection = Pd::protection(pd);
        protection.users.fetch_add(1, SeqCst);
        let abi = types::Ah { context: pd.context.as_abi(), pd: pd.as_abi(), handle: 0 };
        Ok(Box::new(Self { abi, pd: Arc::clone(protection), vector: *vector, route }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Ah {
        (&raw const self.abi).cast_mut()
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        self.pd.users.fetch_sub(1, SeqCst);
    }
}
