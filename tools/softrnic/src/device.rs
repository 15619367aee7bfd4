//! The devices: names, addresses, attributes. The same in every process of a fabric.

use std::ffi::c_char;
use std::sync::OnceLock;

use crate::abi::types::{self, DeviceAttr, Gid, PortAttr};
use crate::fabric::layout::{DEVICES, Table};
use crate::settings::Settings;

/// Entries of the GID table: link-local, IPv4-mapped; both RoCE v2.
pub(crate) const GIDS: u32 = 2;
/// Largest message.
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;
/// Most scatter/gather elements of a work request.
pub(crate) const MAX_SGE: u32 = 16;
/// Most inline bytes of a work request.
pub(crate) const MAX_INLINE: u32 = 1024;
/// Most completions of a CQ.
pub(crate) const MAX_CQE: u32 = (1 << 20) - 1;
/// Most outstanding READs of a QP, either side.
pub(crate) const MAX_READS: u8 = 16;
/// 4096 bytes, as `ibv_mtu`.
pub(crate) const MTU_4096: u32 = 5;

/// `0xf00000`: in no vendor's range.
const VENDOR_ID: u32 = 0x00f0_0000;
const PORT_ACTIVE: u32 = 4;
const PHYS_LINK_UP: u8 = 5;
const LINK_LAYER_ETHERNET: u8 = 2;
const WIDTH_4X: u8 = 2;
const SPEED_NDR: u8 = 128;
const GRH_REQUIRED: u8 = 1;
/// 4 lanes of 100 Gb/s, in units of 100 Mb/s.
pub(crate) const SPEED_100MBPS: u64 = 4000;

/// What the application holds as `ibv_device*`. Never freed.
#[repr(C)]
pub(crate) struct Device {
    abi: types::Device,
    /// Some libraries look just past the public struct.
    _zero: [u64; 8],
    pub(crate) index: usize,
}

/// All devices that could exist; the settings say how many do.
pub(crate) fn all() -> &'static [Device; DEVICES] {
    static ALL: OnceLock<Box<[Device; DEVICES]>> = OnceLock::new();
    ALL.get_or_init(|| Box::new(std::array::from_fn(Device::new)))
}

impl Device {
    fn new(index: usize) -> Self {
        let abi = types::Device {
            ops: [0; 2],
            node_type: 1,
            transport_type: 0,
            name: c_text(&format!("softrnic{index}")),
            dev_name: c_text(&format!("softverbs{index}")),
            dev_path: c_text(""),
            ibdev_path: c_text(""),
        };
        Self { abi, _zero: [0; 8], index }
    }

    /// The device behind an application's pointer.
    ///
    /// # Safety
    /// `device` comes from our device list.
    pub(crate) unsafe fn from_abi<'a>(device: *const types::Device) -> &'a Self {
        // SAFETY: the caller's pointer is one of `all()`, whose first field it is.
        unsafe { &*device.cast::<Self>() }
    }

    pub(crate) fn as_abi(&self) -> *mut types::Device {
        (&raw const self.abi).cast_mut()
    }

    pub(crate) fn name(&self) -> *const c_char {
        self.abi.name.as_ptr()
    }

    /// The node GUID, network order in memory: an EUI-64 of a locally administered address.
    pub(crate) fn guid(&self) -> u64 {
        u64::from_ne_bytes([0x02, 0x50, 0xf7, 0xff, 0xfe, 0x00, 0x00, self.index as u8 + 1])
    }

    /// Entry `index` of the GID table; zero outside of it.
    pub(crate) fn gid(&self, index: u32) -> Gid {
        let mut gid = [0; 16];
        match index {
            0 => {
                gid[..2].copy_from_slice(&[0xfe, 0x80]);
                gid[8..].copy_from_slice(&self.guid().to_ne_bytes());
                // The modified EUI-64 of an interface identifier.
                gid[8] ^= 2;
            }
            1 => gid[10..].copy_from_slice(&[0xff, 0xff, 10, 82, 0, self.index as u8 + 1]),
            _ => {}
        }
        gid
    }

    /// The device that answers to `gid`.
    pub(crate) fn by_gid(gid: &Gid) -> Option<usize> {
        all().iter().find(|d| (0..GIDS).any(|i| d.gid(i) == *gid)).map(|d| d.index)
    }

    pub(crate) fn attributes(&self, settings: &Settings) -> DeviceAttr {
        let capacity = |table: Table| table.capacity() as i32;
        DeviceAttr {
            fw_ver: c_text(env!("CARGO_PKG_VERSION")),
            node_guid: self.guid(),
            sys_image_guid: self.guid(),
            max_mr_size: u64::MAX >> 1,
            page_size_cap: 0xffff_f000,
            vendor_id: VENDOR_ID,
            vendor_part_id: 0,
            hw_ver: 0,
            max_qp: settings.max_qp.min(capacity(Table::Qp) as u32) as i32,
            max_qp_wr: settings.max_qp_wr as i32,
            device_cap_flags: 0,
            max_sge: MAX_SGE as i32,
            max_sge_rd: MAX_SGE as i32,
            max_cq: settings.max_cq as i32,
            max_cqe: MAX_CQE as i32,
            max_mr: settings.max_mr as i32,
            max_pd: 1 << 20,
            max_qp_rd_atom: i32::from(MAX_READS),
            max_ee_rd_atom: 0,
            max_res_rd_atom: i32::from(MAX_READS) * capacity(Table::Qp),
            max_qp_init_rd_atom: i32::from(MAX_READS),
            absent: [0; 16],
            max_pkeys: 1,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
        }
    }

    pub(crate) fn port(&self) -> PortAttr {
        PortAttr {
            state: PORT_ACTIVE,
            max_mtu: MTU_4096,
            active_mtu: MTU_4096,
            gid_tbl_len: GIDS as i32,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            max_vl_num: 1,
            active_width: WIDTH_4X,
            active_speed: SPEED_NDR,
            phys_state: PHYS_LINK_UP,
            link_layer: LINK_LAYER_ETHERNET,
            flags: GRH_REQUIRED,
            active_speed_ex: u32::from(SPEED_NDR),
            ..PortAttr::default()
        }
    }
}

fn c_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from as c_char;
    }
    out
}
