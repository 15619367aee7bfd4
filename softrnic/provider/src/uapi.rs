//! The commands of the kernel's RDMA devices: numbers, structures, and how a call carries them.

use std::mem::{size_of, zeroed};
use std::{ptr, slice};

use ibverbs::calls::types::QpCap;

/// The one request of `ioctl` that carries commands.
pub(crate) const COMMAND: libc::c_ulong = 0xc018_1b01;

/// Structures that may hold any bytes, and have no padding.
///
/// # Safety
/// The type is such a structure.
pub(crate) unsafe trait Plain: Copy {}

/// `bytes` as a structure; what is missing at the end is zero, as an older library leaves it out.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> T {
    // SAFETY: `T` may hold any bytes, and gets no more than it has.
    unsafe {
        let mut value: T = zeroed();
        let count = bytes.len().min(size_of::<T>());
        ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast(), count);
        value
    }
}

/// The bytes of a structure.
pub(crate) fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `T` has no padding.
    unsafe { slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}

/// The header before the attributes of a call.
#[repr(C)]
pub(crate) struct Header {
    length: u16,
    object: u16,
    method: u16,
    count: u16,
    reserved: u64,
    driver: u32,
    reserved2: u32,
}

#[repr(C)]
pub(crate) struct Attribute {
    id: u16,
    /// Of the input, or of the room for the output.
    len: u16,
    flags: u16,
    reserved: u16,
    /// A handle, a file descriptor, input of up to 8 bytes, or where input or output are.
    data: u64,
}

const _: () = assert!(size_of::<Header>() == 24 && size_of::<Attribute>() == 16);

/// The kernel has written the output.
const IS_WRITTEN: u16 = 2;

/// A command, as the library passes it.
pub(crate) struct Call<'a> {
    /// Object and method.
    pub(crate) what: (u16, u16),
    /// The driver that the library takes the device for.
    pub(crate) driver: u32,
    attributes: &'a mut [Attribute],
}

impl Call<'_> {
    /// # Safety
    /// `header` is what the library passes to `ioctl`, and stays as long as this.
    pub(crate) unsafe fn new(header: *mut Header) -> Self {
        // SAFETY: by the caller; the attributes follow the header.
        unsafe {
            let Header { object, method, count, driver, .. } = header.read();
            let attributes = slice::from_raw_parts_mut(header.add(1).cast(), count.into());
            Self { what: (object, method), driver, attributes }
        }
    }

    fn find(&self, id: u16) -> Result<&Attribute, i32> {
        self.attributes.iter().find(|one| one.id == id).ok_or(libc::EINVAL)
    }

    pub(crate) fn has(&self, id: u16) -> bool {
        self.find(id).is_ok()
    }

    /// A handle, a file descriptor, or a number of up to 64 bits.
    pub(crate) fn number(&self, id: u16) -> Result<u64, i32> {
        self.find(id).map(|one| one.data)
    }

    /// The same, where it has 32 bits.
    pub(crate) fn word(&self, id: u16) -> Result<u32, i32> {
        self.number(id).map(|data| data as u32)
    }

    /// Input of any length.
    pub(crate) fn input(&self, id: u16) -> Result<&[u8], i32> {
        let one = self.find(id)?;
        let len = usize::from(one.len);
        let at = if len <= size_of::<u64>() {
            (&raw const one.data).cast()
        } else {
            ptr::with_exposed_provenance::<u8>(one.data as usize)
        };
        // SAFETY: the library's input, which it keeps during the call.
        Ok(unsafe { slice::from_raw_parts(at, len) })
    }

    /// Room for an output, in bytes; 0 if the library wants none.
    pub(crate) fn room(&self, id: u16) -> usize {
        self.find(id).map_or(0, |one| one.len.into())
    }

    /// Writes as much of an output as the library has room for, and zeros behind it. One that it
    /// does not want is left out.
    pub(crate) fn output(&mut self, id: u16, bytes: &[u8]) {
        let Some(one) = self.attributes.iter_mut().find(|one| one.id == id) else { return };
        let (room, out) = (usize::from(one.len), one.data as usize);
        let out = ptr::with_exposed_provenance_mut::<u8>(out);
        let count = bytes.len().min(room);
        // SAFETY: the library's room for the output.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), out, count);
            ptr::write_bytes(out.add(count), 0, room - count);
        }
        one.flags |= IS_WRITTEN;
    }

    /// Writes the handle, or the descriptor, of the new object.
    pub(crate) fn set(&mut self, id: u16, value: u64) {
        if let Some(one) = self.attributes.iter_mut().find(|one| one.id == id) {
            one.data = value;
        }
    }
}

/// Objects, and their methods by number.
pub(crate) mod object {
    pub(crate) const DEVICE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const CQ: u16 = 3;
    pub(crate) const QP: u16 = 4;
    pub(crate) const SRQ: u16 = 5;
    pub(crate) const MR: u16 = 7;
    pub(crate) const EVENTS: u16 = 16;
}
pub(crate) mod device {
    pub(crate) const WRITE: u16 = 0;
    pub(crate) const QUERY_PORT: u16 = 2;
    pub(crate) const GET_CONTEXT: u16 = 3;
    pub(crate) const QUERY_GID_TABLE: u16 = 5;
    pub(crate) const QUERY_GID_ENTRY: u16 = 6;
}
pub(crate) const CREATE: u16 = 0;
pub(crate) const DESTROY: u16 = 1;
pub(crate) const REG_DMABUF_MR: u16 = 4;

/// Commands of the older kind, without objects.
pub(crate) mod write {
    pub(crate) const IN: u16 = 0;
    pub(crate) const OUT: u16 = 1;
    pub(crate) const NUMBER: u16 = 2;

    /// The bit of extended commands.
    pub(crate) const EXTENDED: u32 = 1 << 31;
    pub(crate) const QUERY_DEVICE: u32 = 1;
    pub(crate) const ALLOC_PD: u32 = 3;
    pub(crate) const CREATE_AH: u32 = 5;
    pub(crate) const REG_MR: u32 = 9;
    pub(crate) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(crate) const QUERY_QP: u32 = 25;
    pub(crate) const MODIFY_QP: u32 = 26;
}

/// The provider's own part of a command.
pub(crate) const DRIVER_IN: u16 = 0x1000;
pub(crate) const DRIVER_OUT: u16 = 0x1001;

/// Numbers of the attributes.
pub(crate) mod get_context {
    pub(crate) const COMP_VECTORS: u16 = 0;
    pub(crate) const CORE_SUPPORT: u16 = 1;
}
pub(crate) mod query_port {
    pub(crate) const PORT: u16 = 0;
    pub(crate) const OUT: u16 = 1;
}
pub(crate) mod query_gid_table {
    pub(crate) const ENTRY_SIZE: u16 = 0;
    pub(crate) const ENTRIES: u16 = 2;
    pub(crate) const COUNT: u16 = 3;
}
pub(crate) mod query_gid_entry {
    pub(crate) const PORT: u16 = 0;
    pub(crate) const INDEX: u16 = 1;
    pub(crate) const OUT: u16 = 3;
}
pub(crate) mod create_cq {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const CQE: u16 = 1;
    pub(crate) const USER_HANDLE: u16 = 2;
    pub(crate) const CHANNEL: u16 = 3;
    pub(crate) const VECTOR: u16 = 4;
    pub(crate) const OUT_CQE: u16 = 6;
}
pub(crate) mod create_qp {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const PD: u16 = 2;
    pub(crate) const SRQ: u16 = 3;
    pub(crate) const SEND_CQ: u16 = 4;
    pub(crate) const RECV_CQ: u16 = 5;
    pub(crate) const USER_HANDLE: u16 = 7;
    pub(crate) const CAP: u16 = 8;
    pub(crate) const TYPE: u16 = 9;
    pub(crate) const OUT_CAP: u16 = 13;
    pub(crate) const OUT_NUMBER: u16 = 14;
}
pub(crate) mod destroy {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const OUT: u16 = 1;
}
pub(crate) mod reg_dmabuf {
    pub(crate) const HANDLE: u16 = 0;
    pub(crate) const PD: u16 = 1;
    pub(crate) const OFFSET: u16 = 2;
    pub(crate) const LENGTH: u16 = 3;
    pub(crate) const IOVA: u16 = 4;
    pub(crate) const FD: u16 = 5;
    pub(crate) const ACCESS: u16 = 6;
    pub(crate) const OUT_LKEY: u16 = 7;
    pub(crate) const OUT_RKEY: u16 = 8;
}

/// What the kernel can do for the library: it ignores access flags that it does not know, among
/// those that are hints.
pub(crate) const OPTIONAL_ACCESS: u64 = 1;

/// Of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DeviceAnswer {
    pub(crate) fw_ver: u64,
    pub(crate) node_guid: u64,
    pub(crate) sys_image_guid: u64,
    pub(crate) max_mr_size: u64,
    pub(crate) page_size_cap: u64,
    pub(crate) vendor_id: u32,
    pub(crate) vendor_part_id: u32,
    pub(crate) hw_ver: u32,
    pub(crate) max_qp: u32,
    pub(crate) max_qp_wr: u32,
    pub(crate) device_cap_flags: u32,
    pub(crate) max_sge: u32,
    pub(crate) max_sge_rd: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_cqe: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_pd: u32,
    /// Of READs and atomics: of a queue pair, of an EE context, of all, begun by a queue pair, by
    /// an EE context.
    pub(crate) max_reads: [u32; 5],
    pub(crate) atomic_cap: u32,
    /// `max_ee` up to `max_total_mcast_qp_attach`: softrnic has none of these.
    pub(crate) absent: [u32; 8],
    pub(crate) max_ah: u32,
    pub(crate) max_fmr: [u32; 2],
    pub(crate) max_srq: u32,
    pub(crate) max_srq_wr: u32,
    pub(crate) max_srq_sge: u32,
    pub(crate) max_pkeys: u16,
    pub(crate) local_ca_ack_delay: u8,
    pub(crate) phys_port_cnt: u8,
    pub(crate) reserved: u32,
    pub(crate) comp_mask: u32,
    pub(crate) response_length: u32,
    /// On-demand paging, time stamps, raw packets, tag matching, device memory: none.
    pub(crate) more: [u64; 15],
}

/// Of a port.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PortAnswer {
    pub(crate) port_cap_flags: u32,
    pub(crate) max_msg_sz: u32,
    pub(crate) bad_pkey_cntr: u32,
    pub(crate) qkey_viol_cntr: u32,
    pub(crate) gid_tbl_len: u32,
    pub(crate) pkey_tbl_len: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) state: u8,
    pub(crate) max_mtu: u8,
    pub(crate) active_mtu: u8,
    pub(crate) lmc: u8,
    pub(crate) max_vl_num: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type_reply: u8,
    pub(crate) active_width: u8,
    pub(crate) active_speed: u8,
    pub(crate) phys_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) reserved: u8,
    pub(crate) port_cap_flags2: u16,
    pub(crate) reserved2: [u16; 3],
}

/// Registers memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RegMr {
    /// Where the answer is to be: the attribute says it as well.
    response: u64,
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) iova: u64,
    pub(crate) pd: u32,
    pub(crate) access: u32,
}

/// The address that packets of a queue pair go to.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Destination {
    pub(crate) gid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) lid: u16,
    pub(crate) reserved: u16,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port: u8,
}

/// Changes a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ModifyQp {
    pub(crate) to: Destination,
    pub(crate) alternative: Destination,
    pub(crate) qp: u32,
    pub(crate) mask: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) access: u32,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) state: u8,
    pub(crate) cur_state: u8,
    pub(crate) path_mtu: u8,
    pub(crate) path_mig_state: u8,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) reserved: u16,
}

/// Asks for the attributes of a queue pair.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QueryQp {
    response: u64,
    pub(crate) qp: u32,
    pub(crate) mask: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct QpAnswer {
    pub(crate) to: Destination,
    pub(crate) alternative: Destination,
    pub(crate) cap: QpCap,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) access: u32,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) state: u8,
    pub(crate) cur_state: u8,
    pub(crate) path_mtu: u8,
    pub(crate) path_mig_state: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) sq_sig_all: u8,
    pub(crate) reserved: [u8; 5],
}

/// An asynchronous event, as the library reads it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct EventRecord {
    /// The application's word for the queue pair or completion queue, or the number of a port.
    pub(crate) element: u64,
    pub(crate) kind: u32,
    pub(crate) reserved: u32,
}

/// A notification of a completion channel, as the library reads it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CompletionRecord {
    /// The application's word for the completion queue.
    pub(crate) element: u64,
}

// SAFETY: whole numbers only, and no padding: the sizes below are the sums of the fields.
unsafe impl Plain for DeviceAnswer {}
// SAFETY: as above.
unsafe impl Plain for PortAnswer {}
// SAFETY: as above.
unsafe impl Plain for RegMr {}
// SAFETY: as above.
unsafe impl Plain for ModifyQp {}
// SAFETY: as above.
unsafe impl Plain for QueryQp {}
// SAFETY: as above.
unsafe impl Plain for QpAnswer {}
// SAFETY: as above.
unsafe impl Plain for QpCap {}
// SAFETY: as above.
unsafe impl Plain for EventRecord {}
// SAFETY: as above.
unsafe impl Plain for CompletionRecord {}

const _: () = {
    assert!(size_of::<DeviceAnswer>() == 304 && size_of::<PortAnswer>() == 48);
    assert!(size_of::<RegMr>() == 40 && size_of::<Destination>() == 32);
    assert!(size_of::<ModifyQp>() == 112 && size_of::<QueryQp>() == 16);
    assert!(size_of::<QpAnswer>() == 128 && size_of::<QpCap>() == 20);
    assert!(size_of::<EventRecord>() == 16 && size_of::<CompletionRecord>() == 8);
};
