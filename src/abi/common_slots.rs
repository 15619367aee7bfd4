//! The slots that all tables from version 9 on share. They use the functions of version 8.

use super::nccl::{ncclNetDeviceHandle_v8_t, ncclResult_t};
use super::v8;
use std::ffi::{c_int, c_void};

/// The slots from `accept` to `deregMr`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Memory {
    accept: unsafe extern "C" fn(
        *mut c_void,
        *mut *mut c_void,
        *mut *mut ncclNetDeviceHandle_v8_t,
    ) -> ncclResult_t,
    reg_mr: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        usize,
        c_int,
        *mut *mut c_void,
    ) -> ncclResult_t,
    reg_mr_dma_buf: unsafe extern "C" fn(
        *mut c_void,
        *mut c_void,
        usize,
        c_int,
        u64,
        c_int,
        *mut *mut c_void,
    ) -> ncclResult_t,
    dereg_mr: unsafe extern "C" fn(*mut c_void, *mut c_void) -> ncclResult_t,
}

/// These slots, in every table.
pub(super) const MEMORY: Memory = Memory {
    accept: v8::accept,
    reg_mr: v8::reg_mr,
    reg_mr_dma_buf: v8::reg_mr_dma_buf,
    dereg_mr: v8::dereg_mr,
};

type Close = unsafe extern "C" fn(*mut c_void) -> ncclResult_t;

/// The slots from `iflush` to `irecvConsumed`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct TailSlots {
    iflush: unsafe extern "C" fn(
        *mut c_void,
        c_int,
        *mut *mut c_void,
        *mut c_int,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> ncclResult_t,
    test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> ncclResult_t,
    close_send: Close,
    close_recv: Close,
    close_listen: Close,
    /// For networks that run on GPUs.
    get_device_mr: *const c_void,
    /// As [`Self::get_device_mr`].
    irecv_consumed: *const c_void,
}

/// These slots, in every table.
pub(super) const TAIL: TailSlots = TailSlots {
    iflush: v8::iflush,
    test: v8::test,
    close_send: v8::close_send,
    close_recv: v8::close_recv,
    close_listen: v8::close_listen,
    get_device_mr: std::ptr::null(),
    irecv_consumed: std::ptr::null(),
};
