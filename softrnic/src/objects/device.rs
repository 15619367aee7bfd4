//! The devices: names and attributes. The same in every process of a fabric.

use std::ffi::c_char;
use std::sync::OnceLock;

use crate::abi::device_attr::DeviceAttr;
use crate::abi::types;
use crate::drivers::driver::Verb;
use crate::limits::{DEVICES, MAX_CQE, SRQS};
use crate::network::gid;
use crate::network::topology::Topology;
use crate::process::settings::Settings;
use crate::shm::layout::Table;

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

    /// The node GUID, network order in memory.
    pub(crate) fn guid(&self, settings: &Settings) -> u64 {
        gid::guid(if settings.same_guid { 0 } else { self.index }, 0)
    }

    pub(crate) fn attributes(&self, settings: &Settings, topology: &Topology) -> DeviceAttr {
        let capacity = |table: Table| table.capacity() as i32;
        let driver = settings.driver;
        // As the kernel has it: the fewer of both queues.
        let (reads, sges) = (i32::from(driver.max_reads), driver.max_sge.0.min(driver.max_sge.1) as i32);
        let has_srqs = i32::from(driver.require(Verb::CreateSrq).is_ok());
        DeviceAttr {
            fw_ver: c_text(driver.fw_ver),
            node_guid: self.guid(settings),
            sys_image_guid: gid::card_guid(topology.devices_on_card(), self.index),
            max_mr_size: driver.max_mr_size,
            page_size_cap: driver.page_size_cap,
            vendor_id: driver.vendor_id,
            vendor_part_id: driver.vendor_part_id,
            hw_ver: 0,
            max_qp: settings.max_qp.min(capacity(Table::Qp) as u32) as i32,
            max_qp_wr: settings.max_qp_wr as i32,
            device_cap_flags: 0,
            max_sge: sges,
            max_sge_rd: sges,
            max_cq: settings.max_cq as i32,
            max_cqe: MAX_CQE as i32,
            max_mr: settings.max_mr as i32,
            max_pd: driver.max_pd,
            max_qp_rd_atom: reads,
            max_ee_rd_atom: 0,
            max_res_rd_atom: reads * capacity(Table::Qp),
            max_qp_init_rd_atom: reads,
            max_ee_init_rd_atom: 0,
            atomic_cap: i32::from(driver.has_atomics),
            absent: [0; 8],
            max_ah: driver.max_ah,
            absent_too: [0; 2],
            max_srq: SRQS as i32 * has_srqs,
            max_srq_wr: settings.max_qp_wr as i32 * has_srqs,
            max_srq_sge: sges * has_srqs,
            max_pkeys: 1,
            local_ca_ack_delay: driver.local_ca_ack_delay,
            phys_port_cnt: topology.ports() as u8,
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
