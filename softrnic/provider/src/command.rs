//! The kernel's answers to the commands of libibverbs.

use std::ffi::c_void;
use std::sync::Arc;

use ibverbs::calls;
use ibverbs::calls::types;
use ibverbs::calls::types::{AhAttr, PortAttr, QpAttr, QpCap, QpInitAttr, qp_type};

use crate::objects::{Card, Context, Cq, Qp};
use crate::uapi::{
    CREATE, Call, DESTROY, DRIVER_IN, DRIVER_OUT, Destination, DeviceAnswer, ModifyQp,
    OPTIONAL_ACCESS, PortAnswer, QpAnswer, QueryQp, REG_DMABUF_MR, RegMr, bytes, create_cq,
    create_qp, destroy, device, get_context, object, query_gid_entry, query_gid_table, query_port,
    read, reg_dmabuf, write,
};
use crate::{check, made, say};

/// Whether a command opens the device. All other commands need the context that it makes.
pub(crate) fn opens(call: &Call<'_>) -> bool {
    call.what == (object::DEVICE, device::GET_CONTEXT)
}

/// Answers the command that opens a device.
pub(crate) fn describe(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    let answer = context.provider.context(&context.attributes()?);
    call.output(get_context::COMP_VECTORS, &1_u32.to_ne_bytes());
    call.output(get_context::CORE_SUPPORT, &OPTIONAL_ACCESS.to_ne_bytes());
    call.output(DRIVER_OUT, &answer);
    Ok(())
}

/// Whether libibverbs only asks whether the kernel has `ioctl` commands. Any error but two means
/// yes.
pub(crate) fn is_probe(call: &Call<'_>) -> bool {
    call.what == (object::DEVICE, device::WRITE) && !call.has(write::IN)
}

/// Carries a command out. Unknown commands are refused with EOPNOTSUPP: other values make the
/// library try older interfaces.
pub(crate) fn execute(context: &'static Context, call: &mut Call<'_>) -> Result<(), i32> {
    match call.what {
        (object::DEVICE, device::WRITE) => old(context, call),
        (object::DEVICE, device::QUERY_PORT) => port(context, call),
        (object::DEVICE, device::QUERY_GID_ENTRY) => gid_entry(context, call),
        (object::DEVICE, device::QUERY_GID_TABLE) => gid_table(context, call),
        (object::EVENTS, CREATE) => {
            let fd = context.begin_events()?;
            call.set(0, fd as u64);
            Ok(())
        }
        (object::PD, 0) => context.dealloc_pd(call.word(destroy::HANDLE)?),
        (object::MR, DESTROY) => context.dereg_mr(call.word(destroy::HANDLE)?),
        (object::MR, REG_DMABUF_MR) => reg_dmabuf_mr(context, call),
        (object::CQ, CREATE) => new_cq(context, call),
        (object::CQ, DESTROY) => {
            let reported = context.destroy_cq(call.word(destroy::HANDLE)?)?;
            call.output(destroy::OUT, &reported.map(u32::to_ne_bytes).concat());
            Ok(())
        }
        (object::SRQ, CREATE) => Err(absent("shared receive queues")),
        (object::QP, CREATE) => new_qp(context, call),
        (object::QP, DESTROY) => {
            let events = context.destroy_qp(call.word(destroy::HANDLE)?)?;
            call.output(destroy::OUT, &events.to_ne_bytes());
            Ok(())
        }
        _ => context.provider.command(&context.pages, call),
    }
}

/// The queue pair that this command, which has been carried out, has created or changed, if it may
/// be an extended one. A library has entered the functions of the completion queues by the former,
/// and those of the queue pair by the latter.
pub(crate) fn queue_pair(context: &Context, call: &Call<'_>) -> Option<Arc<Qp>> {
    let handle = match call.what {
        (object::QP, CREATE) => call.word(create_qp::HANDLE),
        (object::DEVICE, device::WRITE) if is_modify(call) => {
            call.input(write::IN).map(|input| read::<ModifyQp>(input).qp)
        }
        _ => return None,
    };
    context.provider.has_extended().then(|| context.qps.get(handle.ok()?).ok())?
}

fn is_modify(call: &Call<'_>) -> bool {
    call.word(write::NUMBER).is_ok_and(|number| number & !write::EXTENDED == write::MODIFY_QP)
}

/// Commands of the older kind, without objects.
fn old(context: &'static Context, call: &mut Call<'_>) -> Result<(), i32> {
    const QUERY_DEVICE: u32 = write::QUERY_DEVICE | write::EXTENDED;
    const MODIFY_QP: u32 = write::MODIFY_QP | write::EXTENDED;
    match call.word(write::NUMBER)? {
        write::QUERY_DEVICE | QUERY_DEVICE => {
            let answer = attributes(context)?;
            call.output(write::OUT, bytes(&answer));
            call.output(DRIVER_OUT, &context.provider.device());
            Ok(())
        }
        write::ALLOC_PD => {
            // SAFETY: softrnic's handle.
            let pd = made(unsafe { calls::alloc_pd(context.card.0) })?;
            let handle = context.pds.handle();
            context.pds.add(handle, Card(pd));
            call.output(write::OUT, &handle.to_ne_bytes());
            call.output(DRIVER_OUT, &handle.to_ne_bytes());
            Ok(())
        }
        write::REG_MR => {
            let RegMr { start, length, iova, pd, access, .. } = read(call.input(write::IN)?);
            let at = std::ptr::with_exposed_provenance_mut::<c_void>(start as usize);
            let pd = context.pds.get(pd)?;
            // SAFETY: softrnic's handle; softrnic checks the memory when it is used.
            let [handle, lkey, rkey] = register(context, || unsafe {
                calls::reg_mr_iova2(pd.0, at, length as usize, iova, access)
            })?;
            call.output(write::OUT, &[handle, lkey, rkey].map(u32::to_ne_bytes).concat());
            Ok(())
        }
        write::MODIFY_QP | MODIFY_QP => {
            let wanted: ModifyQp = read(call.input(write::IN)?);
            let qp = context.qps.get(wanted.qp)?;
            qp.modify(&attr_of(&wanted), wanted.mask as i32)?;
            // The mask and the length of an extended answer.
            let length = call.room(write::OUT) as u32;
            call.output(write::OUT, &[0, length].map(u32::to_ne_bytes).concat());
            let answer = context.provider.modify_answer(call.input(DRIVER_IN).unwrap_or_default());
            call.output(DRIVER_OUT, &answer);
            Ok(())
        }
        write::QUERY_QP => {
            let QueryQp { qp, mask, .. } = read(call.input(write::IN)?);
            let answer = query_qp(&*context.qps.get(qp)?, mask as i32)?;
            call.output(write::OUT, bytes(&answer));
            Ok(())
        }
        write::CREATE_COMP_CHANNEL => {
            let fd = context.new_channel()?;
            call.output(write::OUT, &fd.to_ne_bytes());
            Ok(())
        }
        write::CREATE_AH => Err(absent("address handles")),
        _ => Err(libc::EOPNOTSUPP),
    }
}

/// A request of the program that is not supported here.
fn absent(what: &str) -> i32 {
    say(format_args!(
        "{what} are not modelled beneath a provider (EOPNOTSUPP); softrnic run without --provider \
         has them"
    ));
    libc::EOPNOTSUPP
}

/// The numbers of `a.b.c.d`.
fn parts(text: &[std::ffi::c_char]) -> [u16; 4] {
    let text: String =
        text.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char).collect();
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| parts.next().unwrap_or(0))
}

fn attributes(context: &Context) -> Result<DeviceAnswer, i32> {
    let known = context.attributes()?;
    Ok(DeviceAnswer {
        fw_ver: context.provider.firmware(parts(&known.fw_ver)),
        node_guid: known.node_guid,
        sys_image_guid: known.sys_image_guid,
        max_mr_size: known.max_mr_size,
        page_size_cap: known.page_size_cap,
        vendor_id: known.vendor_id,
        vendor_part_id: known.vendor_part_id,
        hw_ver: known.hw_ver,
        max_qp: known.max_qp as u32,
        max_qp_wr: known.max_qp_wr as u32,
        device_cap_flags: known.device_cap_flags,
        max_sge: known.max_sge as u32,
        max_sge_rd: known.max_sge_rd as u32,
        max_cq: known.max_cq as u32,
        max_cqe: known.max_cqe as u32,
        max_mr: known.max_mr as u32,
        max_pd: known.max_pd as u32,
        max_reads: [
            known.max_qp_rd_atom, known.max_ee_rd_atom, known.max_res_rd_atom,
            known.max_qp_init_rd_atom, known.max_ee_init_rd_atom,
        ]
        .map(|count| count as u32),
        atomic_cap: known.atomic_cap as u32,
        absent: [0; 8],
        max_ah: 0,
        max_fmr: [0; 2],
        max_srq: 0,
        max_srq_wr: 0,
        max_srq_sge: 0,
        max_pkeys: known.max_pkeys,
        local_ca_ack_delay: known.local_ca_ack_delay,
        phys_port_cnt: known.phys_port_cnt,
        reserved: 0,
        comp_mask: 0,
        response_length: size_of::<DeviceAnswer>() as u32,
        more: [0; 15],
    })
}

fn port(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    let mut known = PortAttr::default();
    let number = call.number(query_port::PORT)? as u8;
    let room = size_of::<PortAttr>();
    // SAFETY: softrnic's handle, and a structure of that size.
    check(unsafe { calls::query_port_ex(context.card.0, number, (&raw mut known).cast(), room) })?;
    let answer = PortAnswer {
        port_cap_flags: known.port_cap_flags,
        max_msg_sz: known.max_msg_sz,
        bad_pkey_cntr: known.bad_pkey_cntr,
        qkey_viol_cntr: known.qkey_viol_cntr,
        gid_tbl_len: known.gid_tbl_len as u32,
        pkey_tbl_len: known.pkey_tbl_len,
        lid: known.lid,
        sm_lid: known.sm_lid,
        state: known.state as u8,
        max_mtu: known.max_mtu as u8,
        active_mtu: known.active_mtu as u8,
        lmc: known.lmc,
        max_vl_num: known.max_vl_num,
        sm_sl: known.sm_sl,
        subnet_timeout: known.subnet_timeout,
        init_type_reply: known.init_type_reply,
        active_width: known.active_width,
        active_speed: known.active_speed,
        phys_state: known.phys_state,
        link_layer: known.link_layer,
        flags: known.flags,
        reserved: 0,
        port_cap_flags2: known.port_cap_flags2,
        reserved2: [0; 3],
    };
    call.output(query_port::OUT, bytes(&answer));
    Ok(())
}

/// Bytes of an entry of a GID table, in softrnic and in the kernel.
const GID_ENTRY: usize = size_of::<types::GidEntry>();

fn gid_entry(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    let mut entry = [0_u8; GID_ENTRY];
    let (port, index) = (call.word(query_gid_entry::PORT)?, call.word(query_gid_entry::INDEX)?);
    // SAFETY: softrnic's handle, and a structure of that size.
    check(unsafe {
        calls::query_gid_ex(context.card.0, port, index, entry.as_mut_ptr(), 0, GID_ENTRY)
    })?;
    call.output(query_gid_entry::OUT, &entry);
    Ok(())
}

fn gid_table(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    let size = call.number(query_gid_table::ENTRY_SIZE)? as usize;
    if size == 0 {
        return Err(libc::EINVAL);
    }
    let count = call.room(query_gid_table::ENTRIES) / size;
    let mut entries = vec![0_u8; count * size];
    // SAFETY: softrnic's handle, and an array of that size.
    let found =
        unsafe { calls::query_gid_table(context.card.0, entries.as_mut_ptr(), count, 0, size) };
    let found = u64::try_from(found).map_err(|_| (-found) as i32)?;
    call.output(query_gid_table::ENTRIES, &entries);
    call.output(query_gid_table::COUNT, &found.to_ne_bytes());
    Ok(())
}

/// The handle and the keys of a region that `register` makes. If its key is the one that ends lists
/// of elements, another region is registered instead.
fn register(context: &Context, register: impl Fn() -> *mut types::Mr) -> Result<[u32; 3], i32> {
    const END: u32 = 0x100;
    let mut mr = made(register())?;
    // SAFETY: softrnic's handles.
    unsafe {
        if (*mr).lkey == END {
            let other = made(register());
            calls::dereg_mr(mr);
            mr = other?;
        }
        let handle = context.mrs.handle();
        let keys = [handle, (*mr).lkey, (*mr).rkey];
        context.mrs.add(handle, Card(mr));
        Ok(keys)
    }
}

fn reg_dmabuf_mr(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    let pd = context.pds.get(call.word(reg_dmabuf::PD)?)?;
    let (offset, length) = (call.number(reg_dmabuf::OFFSET)?, call.number(reg_dmabuf::LENGTH)?);
    let (iova, fd) = (call.number(reg_dmabuf::IOVA)?, call.number(reg_dmabuf::FD)? as i32);
    let access = call.word(reg_dmabuf::ACCESS)? as i32;
    // SAFETY: softrnic's handle.
    let [handle, lkey, rkey] = register(context, || unsafe {
        calls::reg_dmabuf_mr(pd.0, offset, length as usize, iova, fd, access)
    })?;
    call.set(reg_dmabuf::HANDLE, handle.into());
    call.output(reg_dmabuf::OUT_LKEY, &lkey.to_ne_bytes());
    call.output(reg_dmabuf::OUT_RKEY, &rkey.to_ne_bytes());
    Ok(())
}

/// A handle as a word that softrnic keeps for an object.
fn as_word(handle: u32) -> *mut c_void {
    std::ptr::without_provenance_mut(handle as usize)
}

fn new_cq(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    let (cqe, vector) = (call.word(create_cq::CQE)?, call.word(create_cq::VECTOR)?);
    let channel = match call.number(create_cq::CHANNEL) {
        Ok(fd) => Some(context.channel(fd as i32)?),
        Err(_) => None,
    };
    let memory = context.provider.cq(call.input(DRIVER_IN)?, cqe)?;
    let handle = context.cqs.handle();
    let theirs = channel.as_ref().map_or(std::ptr::null_mut(), |channel| channel.card.0);
    let word = as_word(handle);
    // SAFETY: softrnic's handles.
    let card =
        made(unsafe { calls::create_cq(context.card.0, cqe as i32, word, theirs, vector as i32) })?;
    let user = call.number(create_cq::USER_HANDLE)?;
    let (answer, entries) = (memory.answer(handle), memory.entries(cqe));
    context.cqs.add(handle, Cq::new(card, memory, user, channel));
    call.set(create_cq::HANDLE, handle.into());
    call.output(create_cq::OUT_CQE, &entries.to_ne_bytes());
    call.output(DRIVER_OUT, &answer);
    Ok(())
}

fn new_qp(context: &Context, call: &mut Call<'_>) -> Result<(), i32> {
    if call.has(create_qp::SRQ) {
        return Err(absent("shared receive queues"));
    }
    let kind = call.word(create_qp::TYPE)? as i32;
    if kind != qp_type::RC && kind != qp_type::UC {
        return Err(absent("queue pairs of types other than RC and UC"));
    }
    let pd = context.pds.get(call.word(create_qp::PD)?)?;
    let send_cq = context.cqs.get(call.word(create_qp::SEND_CQ)?)?;
    let recv_cq = context.cqs.get(call.word(create_qp::RECV_CQ)?)?;
    let asked: QpCap = read(call.input(create_qp::CAP)?);
    let memory = context.provider.qp(call.input(DRIVER_IN)?, asked)?;
    let handle = context.qps.handle();
    let inline = match asked.max_inline_data {
        // libmlx5 asks for -4 where sends have no elements; its driver does not look at it.
        0x8000_0000.. => 0,
        bytes => bytes,
    };
    let mut init = QpInitAttr {
        qp_context: as_word(handle),
        send_cq: send_cq.card.0,
        recv_cq: recv_cq.card.0,
        srq: std::ptr::null_mut(),
        cap: QpCap { max_inline_data: inline, ..asked },
        qp_type: kind,
        // Each send says whether it is signaled.
        sq_sig_all: 0,
    };
    // SAFETY: softrnic's handles.
    let card = made(unsafe { calls::create_sized_qp(pd.0, &mut init, memory.cap()) })?;
    let user = call.number(create_qp::USER_HANDLE)?;
    let qp = Qp::create(context, card, (handle, user), memory, [send_cq, recv_cq]);
    call.set(create_qp::HANDLE, handle.into());
    call.output(create_qp::OUT_CAP, bytes(&asked));
    call.output(create_qp::OUT_NUMBER, &qp.number().to_ne_bytes());
    call.output(DRIVER_OUT, &qp.memory.answer(qp.number()));
    Ok(())
}

fn vector_of(to: &Destination) -> AhAttr {
    let (low, high) = to.gid.split_at(8);
    let word = |half: &[u8]| u64::from_ne_bytes(std::array::from_fn(|at| half[at]));
    AhAttr {
        dgid: [word(low), word(high)],
        flow_label: to.flow_label,
        sgid_index: to.sgid_index,
        hop_limit: to.hop_limit,
        traffic_class: to.traffic_class,
        dlid: to.lid,
        sl: to.sl,
        src_path_bits: to.src_path_bits,
        static_rate: to.static_rate,
        is_global: to.is_global,
        port_num: to.port,
    }
}

fn destination_of(vector: &AhAttr) -> Destination {
    let halves = vector.dgid.map(u64::to_ne_bytes);
    Destination {
        gid: std::array::from_fn(|at| halves[at / 8][at % 8]),
        flow_label: vector.flow_label,
        lid: vector.dlid,
        reserved: 0,
        sgid_index: vector.sgid_index,
        hop_limit: vector.hop_limit,
        traffic_class: vector.traffic_class,
        sl: vector.sl,
        src_path_bits: vector.src_path_bits,
        static_rate: vector.static_rate,
        is_global: vector.is_global,
        port: vector.port_num,
    }
}

fn attr_of(wanted: &ModifyQp) -> QpAttr {
    QpAttr {
        qp_state: wanted.state.into(),
        cur_qp_state: wanted.cur_state.into(),
        path_mtu: wanted.path_mtu.into(),
        path_mig_state: wanted.path_mig_state.into(),
        qkey: wanted.qkey,
        rq_psn: wanted.rq_psn,
        sq_psn: wanted.sq_psn,
        dest_qp_num: wanted.dest_qp_num,
        qp_access_flags: wanted.access,
        cap: QpCap::default(),
        ah_attr: vector_of(&wanted.to),
        alt_ah_attr: vector_of(&wanted.alternative),
        pkey_index: wanted.pkey_index,
        alt_pkey_index: wanted.alt_pkey_index,
        en_sqd_async_notify: wanted.en_sqd_async_notify,
        sq_draining: 0,
        max_rd_atomic: wanted.max_rd_atomic,
        max_dest_rd_atomic: wanted.max_dest_rd_atomic,
        min_rnr_timer: wanted.min_rnr_timer,
        port_num: wanted.port,
        timeout: wanted.timeout,
        retry_cnt: wanted.retry_cnt,
        rnr_retry: wanted.rnr_retry,
        alt_port_num: wanted.alt_port,
        alt_timeout: wanted.alt_timeout,
    }
}

fn query_qp(qp: &Qp, mask: i32) -> Result<QpAnswer, i32> {
    let mut attr = QpAttr::default();
    // SAFETY: whole numbers and pointers, for which 0 is a value.
    let mut init: QpInitAttr = unsafe { std::mem::zeroed() };
    // SAFETY: softrnic's handle.
    check(unsafe { calls::query_qp(qp.card.0, &raw mut attr, mask, &raw mut init) })?;
    Ok(QpAnswer {
        to: destination_of(&attr.ah_attr),
        alternative: destination_of(&attr.alt_ah_attr),
        cap: attr.cap,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        access: attr.qp_access_flags,
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        state: attr.qp_state as u8,
        cur_state: attr.cur_qp_state as u8,
        path_mtu: attr.path_mtu as u8,
        path_mig_state: attr.path_mig_state as u8,
        sq_draining: attr.sq_draining,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        sq_sig_all: 0,
        reserved: [0; 5],
    })
}
