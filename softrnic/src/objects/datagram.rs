//! Posted datagrams: where each goes, which is its own and not its queue pair's.

use crate::network::header::{HEADER_BYTES, NetworkHeader};
use crate::process::route::Route;
use crate::shm::slots::NO_PEER;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram {
    /// Name of the queue pair, see `QpSlot::peer`.
    pub(crate) peer: u64,
    pub(crate) route: Route,
    pub(crate) path: Option<u32>,
    pub(crate) qkey: u32,
    /// It has a network header, which says who sends it. The receive has room for one in any case.
    pub(crate) has_header: bool,
    pub(crate) header: NetworkHeader,
    pub(crate) service_level: u8,
}

impl Default for Datagram {
    fn default() -> Self {
        Self {
            peer: NO_PEER,
            route: Route::default(),
            path: None,
            qkey: 0,
            has_header: false,
            header: [0; HEADER_BYTES],
            service_level: 0,
        }
    }
}
