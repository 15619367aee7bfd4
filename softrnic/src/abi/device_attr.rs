//! Attributes of a device in the verbs interface.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};

/// `struct ibv_device_attr`.
#[repr(C)]
pub(crate) struct DeviceAttr {
    pub(crate) fw_ver: [c_char; 64],
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: c_int,
    pub(crate) max_qp_wr: c_int,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: c_int,
    pub(crate) max_sge_rd: c_int,
    pub(crate) max_cq: c_int,
    pub(crate) max_cqe: c_int,
    pub(crate) max_mr: c_int,
    pub(crate) max_pd: c_int,
    pub(crate) max_qp_rd_atom: c_int,
    pub(crate) max_ee_rd_atom: c_int,
    pub(crate) max_res_rd_atom: c_int,
    pub(crate) max_qp_init_rd_atom: c_int,
    pub(crate) max_ee_init_rd_atom: c_int,
    /// 1: atomic as other atomics of the same device see it.
    pub(crate) atomic_cap: c_int,
    /// `max_ee` up to `max_total_mcast_qp_attach`: features this device does not have.
    pub(crate) absent: [c_int; 8],
    pub(crate) max_ah: c_int,
    /// `max_fmr`, `max_map_per_fmr`: as `absent`.
    pub(crate) absent_too: [c_int; 2],
    pub(crate) max_srq: c_int,
    pub(crate) max_srq_wr: c_int,
    pub(crate) max_srq_sge: c_int,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
}

/// Offset of the number of ports, `uint32_t`, in `struct ibv_device_attr_ex`, which begins with a [`DeviceAttr`].
pub(crate) const DEVICE_ATTR_EX_PORTS: usize = 396;

const _: () = {
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_qp) == 108);
    assert!(
        offset_of!(DeviceAttr, max_qp_rd_atom) == 144
            && offset_of!(DeviceAttr, atomic_cap) == 164
            && offset_of!(DeviceAttr, max_ah) == 200
            && offset_of!(DeviceAttr, phys_port_cnt) == 227
    );
};
