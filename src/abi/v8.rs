//! ncclNet version 8: the table `ncclNetPlugin_v8`, and a function for each slot, which passes its
//! arguments on in neutral types. Later versions share most of the functions.
//!
//! A function is `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

use super::calls::{self, Properties};
use super::nccl::{self, ncclNetDeviceHandle_v8_t, ncclNetProperties_v8_t, ncclResult_t};
use super::table::{Exported, slots};
use super::{datapath, process};
use crate::net::setup::nccl_comm::NcclComm;
use std::ffi::{c_int, c_void};

/// The symbol that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclNetPlugin_v8: Exported<nccl::ncclNet_v8_t> = Exported(nccl::ncclNet_v8_t {
    name: process::NAME.as_ptr(),
    init: Some(init::<8>),
    devices: Some(devices::<8>),
    getProperties: Some(get_properties),
    listen: Some(listen::<8>),
    connect: Some(connect::<8>),
    accept: Some(accept),
    regMr: Some(reg_mr),
    regMrDmaBuf: Some(reg_mr_dma_buf),
    deregMr: Some(dereg_mr),
    isend: Some(isend),
    irecv: Some(irecv),
    iflush: Some(iflush),
    test: Some(test),
    closeSend: Some(close_send),
    closeRecv: Some(close_recv),
    closeListen: Some(close_listen),
    getDeviceMr: None,
    irecvConsumed: None,
});

fn properties(of: Properties<'_>) -> ncclNetProperties_v8_t {
    ncclNetProperties_v8_t {
        name: of.name.cast_mut(),
        pciPath: of.pci_path.cast_mut(),
        guid: of.guid,
        ptrSupport: of.ptr_support,
        regIsGlobal: 1,
        speed: of.speed_mbps,
        port: of.port,
        latency: 0.0,
        maxComms: of.max_comms,
        maxRecvs: of.max_recvs,
        netDeviceType: nccl::NCCL_NET_DEVICE_HOST,
        netDeviceVersion: nccl::NCCL_NET_DEVICE_INVALID_VERSION as c_int,
    }
}

slots! {
    init<VERSION>(log_function: nccl::ncclDebugLogger_t) => calls::init(VERSION, log_function);
    devices<VERSION>(count: *mut c_int) => calls::devices(VERSION, count);
    get_properties(dev: c_int, props: *mut ncclNetProperties_v8_t) => calls::get_properties(8, dev, props, properties);
    listen<VERSION>(dev: c_int, handle: *mut c_void, listen_comm: *mut *mut c_void)
        => calls::listen(VERSION, || Ok(NcclComm::default()), dev, handle, listen_comm);
    connect<VERSION>(
        dev: c_int, handle: *mut c_void, send_comm: *mut *mut c_void, _device: *mut *mut ncclNetDeviceHandle_v8_t,
    ) => calls::connect(VERSION, || Ok(NcclComm::default()), dev, handle, send_comm);
    accept(listen_comm: *mut c_void, recv_comm: *mut *mut c_void, _device: *mut *mut ncclNetDeviceHandle_v8_t)
        => calls::accept(listen_comm, recv_comm);
    reg_mr(comm: *mut c_void, data: *mut c_void, size: usize, kind: c_int, mhandle: *mut *mut c_void)
        => calls::register("regMr", comm, data, size, kind, None, mhandle);
    reg_mr_dma_buf(
        comm: *mut c_void, data: *mut c_void, size: usize, kind: c_int, offset: u64, fd: c_int,
        mhandle: *mut *mut c_void,
    ) => calls::register("regMrDmaBuf", comm, data, size, kind, Some((fd, offset)), mhandle);
    dereg_mr(_comm: *mut c_void, mhandle: *mut c_void) => calls::deregister(mhandle);
    isend(
        send_comm: *mut c_void, data: *mut c_void, size: c_int, tag: c_int, mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) => datapath::isend(send_comm, data, size, tag, mhandle, request);
    irecv(
        recv_comm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut c_int, tags: *mut c_int,
        mhandles: *mut *mut c_void, request: *mut *mut c_void,
    ) => datapath::irecv(recv_comm, n, data, sizes, tags, mhandles, request);
    iflush(
        recv_comm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut c_int, mhandles: *mut *mut c_void,
        request: *mut *mut c_void,
    ) => datapath::iflush(recv_comm, n, data, sizes, mhandles, request);
    test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) => datapath::test(request, done, sizes);
    close_send(comm: *mut c_void) => calls::close_send(comm);
    close_recv(comm: *mut c_void) => calls::close_recv(comm);
    close_listen(comm: *mut c_void) => calls::close_listen(comm);
}
