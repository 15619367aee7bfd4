//! Structures of address handles and shared receive queues.

use super::Ptr;

/// The way to a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub pad: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
    pub end: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SrqAttr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SrqInit {
    pub user: Ptr,
    pub attr: SrqAttr,
}

const _: () = {
    assert!(
        size_of::<AhAttr>() == 32
            && std::mem::offset_of!(AhAttr, port) == 30
            && size_of::<SrqInit>() == 24
    );
};
