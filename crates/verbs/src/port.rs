//! Queries of a port: its state, its GID table and its speed.

use super::context::Context;
use super::extended_call;
use super::sys::{self, ibv_gid_entry, ibv_port_attr};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What `ibv_query_port` returns.
#[derive(Debug, Clone, Copy)]
pub struct PortAttributes {
    /// Whether the port is in state ACTIVE.
    pub active: bool,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Whether packets need a global route header (GIDs) even within an InfiniBand subnet.
    pub grh_required: bool,
    /// Local identifier (InfiniBand).
    pub lid: u16,
    /// MTU as `enum ibv_mtu`: 1 = 256 … 5 = 4096 bytes.
    pub mtu: u8,
    /// The largest MTU that the port supports, with the same codes.
    pub max_mtu: u8,
    /// LID of the subnet manager (InfiniBand); 0 if none.
    pub sm_lid: u16,
    /// Entries of the GID table.
    pub gid_count: i32,
    /// Entries of the partition key table.
    pub pkey_count: u16,
    /// Speed of one lane, as the bit mask of `active_speed`.
    pub speed: u32,
    /// Whether `speed` may stand for a higher one: the kernel then reports the maximum of the older
    /// field.
    pub speed_may_be_higher: bool,
    /// Number of lanes, as the bit mask of `active_width`.
    pub width: u8,
}

/// The highest bit of `active_speed`: NDR, 100 Gb/s a lane.
const HIGHEST_OLD_SPEED: u8 = 128;

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet: packets are RoCE.
    Ethernet,
    /// Another or an unspecified one, with the device's number for it.
    Other(u8),
}

impl LinkLayer {
    fn from_raw(number: u8) -> Self {
        match number {
            sys::IBV_LINK_LAYER_INFINIBAND => Self::InfiniBand,
            sys::IBV_LINK_LAYER_ETHERNET => Self::Ethernet,
            other => Self::Other(other),
        }
    }
}

/// An entry of a GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// The GID.
    pub bytes: [u8; 16],
    /// RoCE version, if libibverbs reports it.
    pub roce_version: Option<u8>,
}

impl PortAttributes {
    /// Whether the link layer is InfiniBand. All other ports that Ferrite uses are Ethernet.
    pub fn is_infiniband(&self) -> bool {
        self.link_layer == LinkLayer::InfiniBand
    }
}

/// How long a result is reused without an event. No event reports a change of an Ethernet
/// interface's MTU, and some drivers report none at all.
const USE_FOR: Duration = Duration::from_secs(1);

/// The active ports of a device, as last queried. A query is a command to the card, for which the
/// caller waits.
#[derive(Debug, Default)]
pub(super) struct KnownPorts(Mutex<BTreeMap<u8, KnownPort>>);

#[derive(Debug)]
struct KnownPort {
    attributes: PortAttributes,
    /// [`Context::port_changes`] and the time before the query.
    changes: u32,
    asked: Instant,
}

impl KnownPorts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u8, KnownPort>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type QueryPort = unsafe extern "C" fn(*mut sys::ibv_context, u8, *mut ibv_port_attr, usize) -> i32;

impl Context {
    /// Port number `port`, from 1: the latest result if it is recent and no event has been reported
    /// since; otherwise queries it.
    ///
    /// # Errors
    /// The query fails.
    pub fn recent_port(&self, port: u8) -> Result<PortAttributes> {
        let changes = self.port_changes();
        let is_current =
            |known: &&KnownPort| Some(known.changes) == changes && known.asked.elapsed() < USE_FOR;
        let recent = self.ports.lock().get(&port).filter(is_current).map(|known| known.attributes);
        recent.map_or_else(|| self.port(port), Ok)
    }

    /// Makes the next use of port number `port` query it, since it may have changed.
    pub fn forget_port(&self, port: u8) {
        self.ports.lock().remove(&port);
    }

    /// Queries port number `port`, from 1.
    ///
    /// # Errors
    /// The query fails.
    pub fn port(&self, port: u8) -> Result<PortAttributes> {
        let (changes, asked) = (self.port_changes(), Instant::now());
        let attributes = self.query_port(port)?;
        // A port that is down is polled, so it is not cached.
        match changes.filter(|_| attributes.active) {
            Some(changes) => {
                drop(self.ports.lock().insert(port, KnownPort { attributes, changes, asked }))
            }
            None => self.forget_port(port),
        }
        Ok(attributes)
    }

    fn query_port(&self, port: u8) -> Result<PortAttributes> {
        let mut raw = ibv_port_attr::default();
        let rc = match self.sized_query_port() {
            // SAFETY: the context is open, and the size of the struct is passed.
            Some(query) => unsafe {
                query(self.raw(), port, &raw mut raw, size_of::<ibv_port_attr>())
            },
            // This call fills in the old, shorter struct. The rest stays zero. SAFETY: the context
            // is open and the place is larger than the struct that the call fills in.
            None => unsafe { (self.library.ibv_query_port)(self.raw(), port, &raw mut raw) },
        };
        if rc != 0 {
            return Err(Error::of_device(
                format_args!("ibv_query_port({}:{port})", self.name()),
                rc.abs(),
            ));
        }
        Ok(PortAttributes {
            active: raw.state == sys::IBV_PORT_ACTIVE,
            link_layer: LinkLayer::from_raw(raw.link_layer),
            grh_required: raw.flags & sys::IBV_QPF_GRH_REQUIRED != 0,
            lid: raw.lid,
            mtu: raw.active_mtu as u8,
            max_mtu: raw.max_mtu as u8,
            sm_lid: raw.sm_lid,
            gid_count: raw.gid_tbl_len,
            pkey_count: raw.pkey_tbl_len,
            // The older field is too narrow for speeds above NDR.
            speed: if raw.active_speed_ex != 0 {
                raw.active_speed_ex
            } else {
                u32::from(raw.active_speed)
            },
            speed_may_be_higher: raw.active_speed_ex == 0 && raw.active_speed == HIGHEST_OLD_SPEED,
            width: raw.active_width,
        })
    }

    /// The query that takes the size of the struct.
    fn sized_query_port(&self) -> Option<QueryPort> {
        // SAFETY: the context is open, and libibverbs' header declares a function of this type
        // there.
        unsafe { extended_call::find(self.raw(), extended_call::QUERY_PORT) }
    }

    /// Bandwidth of `port` in Mbit/s, as the device reports it, even if the bits of `active_speed`
    /// cannot express it. `None` if libibverbs has no such query.
    pub fn port_speed_mbps(&self, port: u8) -> Option<u32> {
        const UNIT_MBPS: u64 = 100;
        let query = self.library.ibv_query_port_speed?;
        let mut speed = 0;
        // SAFETY: the context is open and `speed` is a valid place.
        let rc = unsafe { query(self.raw(), u32::from(port), &raw mut speed) };
        u32::try_from(speed * UNIT_MBPS).ok().filter(|speed| rc == 0 && *speed != 0)
    }

    /// Entry `index` of the GID table of `port`; `None` if empty or unreadable.
    pub fn gid(&self, port: u8, index: i32) -> Option<Gid> {
        self.query_gid(port, index).ok().flatten()
    }

    /// The errno if one of the first `count` entries of the GID table of `port` is unreadable.
    pub fn gid_errno(&self, port: u8, count: i32) -> Option<i32> {
        (0..count).find_map(|index| self.query_gid(port, index).err())
    }

    /// Entry `index` of the GID table of `port`; `None` if empty.
    ///
    /// # Errors
    /// The errno if it is unreadable.
    fn query_gid(&self, port: u8, index: i32) -> std::result::Result<Option<Gid>, i32> {
        let gid = sys::ibv_gid { raw: [0; 16] };
        let mut entry =
            ibv_gid_entry { gid, gid_index: 0, port_num: 0, gid_type: 0, ndev_ifindex: 0 };
        let rc = match (self.library._ibv_query_gid_ex, u32::try_from(index)) {
            (Some(query), Ok(index)) => {
                let size = size_of::<ibv_gid_entry>();
                // SAFETY: the context is open, and the size of the struct is passed.
                unsafe { query(self.raw(), u32::from(port), index, &raw mut entry, 0, size) }
            }
            _ => libc::EOPNOTSUPP,
        };
        let gid = match rc {
            // SAFETY: as in `untyped_gid`.
            0 => {
                Gid { bytes: unsafe { entry.gid.raw }, roce_version: roce_version(entry.gid_type) }
            }
            libc::ENODATA => return Ok(None),
            _ => Gid { bytes: self.untyped_gid(port, index)?, roce_version: None },
        };
        Ok((gid.bytes != [0; 16]).then_some(gid))
    }

    /// The first entry of the partition key table of `port` with `key`; `None` if there is none.
    /// The highest bit of a key is the kind of membership, and is ignored.
    ///
    /// # Errors
    /// The port cannot be queried.
    pub fn partition_index(&self, port: u8, key: u16) -> Result<Option<u16>> {
        let count = self.port(port)?.pkey_count;
        Ok((0..count).find(|index| {
            self.partition_key(port, *index).is_some_and(|found| (found ^ key) << 1 == 0)
        }))
    }

    /// Entry `index` of the partition key table of `port`; `None` if unreadable.
    fn partition_key(&self, port: u8, index: u16) -> Option<u16> {
        let mut key = 0_u16;
        // SAFETY: the context is open and `key` is a valid place.
        let rc =
            unsafe { (self.library.ibv_query_pkey)(self.raw(), port, index.into(), &raw mut key) };
        (rc == 0).then_some(u16::from_be(key))
    }

    fn untyped_gid(&self, port: u8, index: i32) -> std::result::Result<[u8; 16], i32> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the context is open and `gid` is a valid place.
        let rc = unsafe { (self.library.ibv_query_gid)(self.raw(), port, index, &raw mut gid) };
        match rc {
            // SAFETY: bytes, which were zeros before the call.
            0 => Ok(unsafe { gid.raw }),
            // Some drivers set errno, and some return it.
            -1 => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
            errno => Err(errno),
        }
    }
}

/// The RoCE version of a value of `enum ibv_gid_type`. InfiniBand has none.
fn roce_version(gid_type: u32) -> Option<u8> {
    match gid_type {
        sys::IBV_GID_TYPE_ROCE_V1 => Some(1),
        sys::IBV_GID_TYPE_ROCE_V2 => Some(2),
        _ => None,
    }
}
