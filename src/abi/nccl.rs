//! NCCL's types, as bindgen makes them of `include/nccl/net_v8.h`. Result codes, logger and
//! constants are common to all versions. After a change of the header
//! `FERRITE_UPDATE=1 cargo test -p layouts` writes this file again.

#![allow(
    missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case,
    non_upper_case_globals
)]
#![allow(unreachable_pub, clippy::all, dead_code)]

pub const NCCL_NET_HANDLE_MAXSIZE: u32 = 128;
pub const NCCL_PTR_HOST: u32 = 1;
pub const NCCL_PTR_CUDA: u32 = 2;
pub const NCCL_PTR_DMABUF: u32 = 4;
pub const NCCL_NET_MAX_REQUESTS: u32 = 32;
pub const NCCL_SUBSYS_INIT: u32 = 1;
pub const NCCL_SUBSYS_NET: u32 = 16;
pub const NCCL_SUBSYS_ENV: u32 = 128;
pub const NCCL_NET_DEVICE_INVALID_VERSION: u32 = 0;
pub type __uint64_t = ::std::os::raw::c_ulong;
pub const ncclSuccess: ncclResult_t = 0;
pub const ncclUnhandledCudaError: ncclResult_t = 1;
pub const ncclSystemError: ncclResult_t = 2;
pub const ncclInternalError: ncclResult_t = 3;
pub const ncclInvalidArgument: ncclResult_t = 4;
pub const ncclInvalidUsage: ncclResult_t = 5;
pub const ncclRemoteError: ncclResult_t = 6;
pub const ncclInProgress: ncclResult_t = 7;
pub type ncclResult_t = ::std::os::raw::c_uint;
pub const NCCL_LOG_NONE: ncclDebugLogLevel = 0;
pub const NCCL_LOG_VERSION: ncclDebugLogLevel = 1;
pub const NCCL_LOG_WARN: ncclDebugLogLevel = 2;
pub const NCCL_LOG_INFO: ncclDebugLogLevel = 3;
pub const NCCL_LOG_ABORT: ncclDebugLogLevel = 4;
pub const NCCL_LOG_TRACE: ncclDebugLogLevel = 5;
pub type ncclDebugLogLevel = ::std::os::raw::c_uint;
pub type ncclDebugLogger_t = ::std::option::Option<
    unsafe extern "C" fn(
        level: ncclDebugLogLevel,
        flags: ::std::os::raw::c_ulong,
        file: *const ::std::os::raw::c_char,
        line: ::std::os::raw::c_int,
        fmt: *const ::std::os::raw::c_char,
        ...
    ),
>;
pub const NCCL_NET_DEVICE_HOST: ncclNetDeviceType = 0;
pub const NCCL_NET_DEVICE_UNPACK: ncclNetDeviceType = 1;
pub type ncclNetDeviceType = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclNetDeviceHandle_v8_t {
    pub netDeviceType: ncclNetDeviceType,
    pub netDeviceVersion: ::std::os::raw::c_int,
    pub handle: *mut ::std::os::raw::c_void,
    pub size: usize,
    pub needsProxyProgress: ::std::os::raw::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclNetProperties_v8_t {
    pub name: *mut ::std::os::raw::c_char,
    pub pciPath: *mut ::std::os::raw::c_char,
    pub guid: u64,
    pub ptrSupport: ::std::os::raw::c_int,
    pub regIsGlobal: ::std::os::raw::c_int,
    pub speed: ::std::os::raw::c_int,
    pub port: ::std::os::raw::c_int,
    pub latency: f32,
    pub maxComms: ::std::os::raw::c_int,
    pub maxRecvs: ::std::os::raw::c_int,
    pub netDeviceType: ncclNetDeviceType,
    pub netDeviceVersion: ::std::os::raw::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct ncclNet_v8_t {
    pub name: *const ::std::os::raw::c_char,
    pub init:
        ::std::option::Option<unsafe extern "C" fn(logger: ncclDebugLogger_t) -> ncclResult_t>,
    pub devices: ::std::option::Option<
        unsafe extern "C" fn(count: *mut ::std::os::raw::c_int) -> ncclResult_t,
    >,
    pub getProperties: ::std::option::Option<
        unsafe extern "C" fn(
            dev: ::std::os::raw::c_int,
            props: *mut ncclNetProperties_v8_t,
        ) -> ncclResult_t,
    >,
    pub listen: ::std::option::Option<
        unsafe extern "C" fn(
            dev: ::std::os::raw::c_int,
            handle: *mut ::std::os::raw::c_void,
            listenComm: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub connect: ::std::option::Option<
        unsafe extern "C" fn(
            dev: ::std::os::raw::c_int,
            handle: *mut ::std::os::raw::c_void,
            sendComm: *mut *mut ::std::os::raw::c_void,
            sendDevComm: *mut *mut ncclNetDeviceHandle_v8_t,
        ) -> ncclResult_t,
    >,
    pub accept: ::std::option::Option<
        unsafe extern "C" fn(
            listenComm: *mut ::std::os::raw::c_void,
            recvComm: *mut *mut ::std::os::raw::c_void,
            recvDevComm: *mut *mut ncclNetDeviceHandle_v8_t,
        ) -> ncclResult_t,
    >,
    pub regMr: ::std::option::Option<
        unsafe extern "C" fn(
            comm: *mut ::std::os::raw::c_void,
            data: *mut ::std::os::raw::c_void,
            size: usize,
            type_: ::std::os::raw::c_int,
            mhandle: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub regMrDmaBuf: ::std::option::Option<
        unsafe extern "C" fn(
            comm: *mut ::std::os::raw::c_void,
            data: *mut ::std::os::raw::c_void,
            size: usize,
            type_: ::std::os::raw::c_int,
            offset: u64,
            fd: ::std::os::raw::c_int,
            mhandle: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub deregMr: ::std::option::Option<
        unsafe extern "C" fn(
            comm: *mut ::std::os::raw::c_void,
            mhandle: *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub isend: ::std::option::Option<
        unsafe extern "C" fn(
            sendComm: *mut ::std::os::raw::c_void,
            data: *mut ::std::os::raw::c_void,
            size: ::std::os::raw::c_int,
            tag: ::std::os::raw::c_int,
            mhandle: *mut ::std::os::raw::c_void,
            request: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub irecv: ::std::option::Option<
        unsafe extern "C" fn(
            recvComm: *mut ::std::os::raw::c_void,
            n: ::std::os::raw::c_int,
            data: *mut *mut ::std::os::raw::c_void,
            sizes: *mut ::std::os::raw::c_int,
            tags: *mut ::std::os::raw::c_int,
            mhandles: *mut *mut ::std::os::raw::c_void,
            request: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub iflush: ::std::option::Option<
        unsafe extern "C" fn(
            recvComm: *mut ::std::os::raw::c_void,
            n: ::std::os::raw::c_int,
            data: *mut *mut ::std::os::raw::c_void,
            sizes: *mut ::std::os::raw::c_int,
            mhandles: *mut *mut ::std::os::raw::c_void,
            request: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub test: ::std::option::Option<
        unsafe extern "C" fn(
            request: *mut ::std::os::raw::c_void,
            done: *mut ::std::os::raw::c_int,
            sizes: *mut ::std::os::raw::c_int,
        ) -> ncclResult_t,
    >,
    pub closeSend: ::std::option::Option<
        unsafe extern "C" fn(sendComm: *mut ::std::os::raw::c_void) -> ncclResult_t,
    >,
    pub closeRecv: ::std::option::Option<
        unsafe extern "C" fn(recvComm: *mut ::std::os::raw::c_void) -> ncclResult_t,
    >,
    pub closeListen: ::std::option::Option<
        unsafe extern "C" fn(listenComm: *mut ::std::os::raw::c_void) -> ncclResult_t,
    >,
    pub getDeviceMr: ::std::option::Option<
        unsafe extern "C" fn(
            comm: *mut ::std::os::raw::c_void,
            mhandle: *mut ::std::os::raw::c_void,
            dptr_mhandle: *mut *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
    pub irecvConsumed: ::std::option::Option<
        unsafe extern "C" fn(
            recvComm: *mut ::std::os::raw::c_void,
            n: ::std::os::raw::c_int,
            request: *mut ::std::os::raw::c_void,
        ) -> ncclResult_t,
    >,
}
