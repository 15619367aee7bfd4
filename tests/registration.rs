//! Registering memory through the C ABI: parts of what is registered, and two threads at once.

mod common;

use common::bench::Bench;
use common::{plugin_transport, setting};
use ferrite::abi;
use ferrite::error::Result;
use ferrite::pair;
use std::ffi::{c_int, c_void};

/// The calls of a communicator's memory.
#[derive(Clone, Copy)]
struct Calls {
    net: &'static abi::ncclNet_v8_t,
    comm: usize,
}

// SAFETY: a table of functions that is only read, and NCCL's contract has communicators used by two threads.
unsafe impl Send for Calls {}

impl Calls {
    fn register(self, at: usize, bytes: usize) -> (u32, *mut c_void) {
        let mut handle = std::ptr::null_mut();
        let regmr = self.net.regMr.expect("a slot");
        let (comm, kind) = (self.comm as *mut c_void, abi::NCCL_PTR_HOST as c_int);
        // SAFETY: a live communicator; memory that the test keeps.
        let code = unsafe { regmr(comm, at as *mut c_void, bytes, kind, &raw mut handle) };
        (code, handle)
    }

    fn deregister(self, handle: *mut c_void) {
        // SAFETY: a handle that is not used again.
        let code = unsafe { self.net.deregMr.expect("a slot")(self.comm as *mut c_void, handle) };
        assert_eq!(code, abi::ncclSuccess);
    }
}

/// Two rings of clear-to-sends and four buffers: any further call of the device fails.
#[test]
fn parts_of_a_registration_need_no_other() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    let setting = setting.env("SOFTRNIC_FAULTS", "reg-mr=ENOMEM message=7..");
    pair::run("parts_of_a_registration_need_no_other", &setting, |seat| {
        let bench = Bench::open(seat, plugin_transport()?, 1 << 20)?;
        seat.barrier()?;
        let calls = Calls { net: plugin_transport()?.vtable(), comm: bench.link.send.raw() as usize };
        let start = bench.out.memory().address(0, 1)? as usize;
        let parts = [(0, 1), (4097, 70_000), (1 << 19, 1 << 19), (4097, 100), (0, 1 << 20)];
        let handles = parts.map(|(offset, bytes)| calls.register(start + offset, bytes));
        for (part, (code, handle)) in parts.iter().zip(handles) {
            assert_eq!((code, handle.is_null()), (abi::ncclSuccess, false), "{part:?}");
        }
        let (code, handle) = calls.register(start + (1 << 20) - 4096, 1 << 16);
        assert_eq!((code, handle.is_null()), (abi::ncclSystemError, true), "this one is not a part");
        // In an order that leaves parts of parts.
        for i in [4, 1, 0, 3, 2] {
            calls.deregister(handles[i].1);
            bench.exchange(seat, i, 5000, 5000)?;
        }
        seat.barrier()
    })?;
    Ok(())
}

#[test]
fn two_threads_register_and_deregister_at_once() -> Result<()> {
    let Some(setting) = setting() else { return Ok(()) };
    pair::run("two_threads_register_and_deregister_at_once", &setting, |seat| {
        let bench = Bench::open(seat, plugin_transport()?, 1 << 20)?;
        let net = plugin_transport()?.vtable();
        let mut memory = vec![0u8; 1 << 20];
        let start = memory.as_mut_ptr() as usize;
        let comms = [bench.link.send.raw() as usize, bench.link.recv.raw() as usize];
        std::thread::scope(|scope| {
            for (thread, comm) in comms.into_iter().enumerate() {
                let calls = Calls { net, comm };
                scope.spawn(move || {
                    let calls: Calls = calls;
                    let mut held = Vec::new();
                    for i in 0..600 {
                        let (offset, bytes) = ((i * 7919 + thread * 4096) % (1 << 19), 1 + i * 131 % (1 << 18));
                        let (code, handle) = calls.register(start + offset, bytes);
                        assert_eq!(code, abi::ncclSuccess);
                        held.push(handle);
                        if held.len() > 9 {
                            calls.deregister(held.swap_remove(i % held.len()));
                        }
                    }
                    held.into_iter().for_each(|handle| calls.deregister(handle));
                });
            }
        });
        bench.exchange(seat, 1, 5000, 5000)?;
        seat.barrier()
    })?;
    Ok(())
}
