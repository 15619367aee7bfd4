//! Registering memory through the C ABI: parts of what is registered, and two threads at once.

use crate::common::prelude::*;
use std::ffi::{c_int, c_void};

/// The calls of a communicator's memory.
#[derive(Clone, Copy)]
struct Calls {
    net: &'static abi::ncclNet_v8_t,
    comm: usize,
}

// SAFETY: a table of functions that is only read, and NCCL's contract has communicators used by two
// threads.
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
fn parts_of_a_registered_buffer_take_no_further_registration() -> Result<()> {
    both(setting_with(&[("SOFTRNIC_FAULTS", "reg-mr=ENOMEM message=9..")]), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        worker.barrier()?;
        let calls =
            Calls { net: plugin_transport()?.vtable(), comm: bench.link.send.raw() as usize };
        let start = bench.out.memory().address(0, 1)? as usize;
        let parts = [(0, 1), (4097, 70_000), (1 << 19, 1 << 19), (4097, 100), (0, 1 << 20)];
        let handles = parts.map(|(offset, bytes)| calls.register(start + offset, bytes));
        for (part, (code, handle)) in parts.iter().zip(handles) {
            assert_eq!((code, handle.is_null()), (abi::ncclSuccess, false), "{part:?}");
        }
        let (code, handle) = calls.register(start + (1 << 20) - 4096, 1 << 16);
        assert_eq!(
            (code, handle.is_null()),
            (abi::ncclSystemError, true),
            "this one is not a part"
        );
        // In an order that leaves parts of parts.
        for i in [4, 1, 0, 3, 2] {
            calls.deregister(handles[i].1);
            bench.exchange(worker, i, 5000, 5000)?;
        }
        worker.barrier()
    })
}

/// A receive of one message takes the fast path, and one of two the slow path.
#[test]
fn a_receive_outside_of_its_memory_is_refused_and_the_connection_resumes() -> Result<()> {
    const BYTES: usize = 1 << 16;
    // The first message, and one that is timed, do not take the fast path.
    both(setting().map(|setting| setting.env("FERRITE_SAMPLE", "0")), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, BYTES)?;
        bench.exchange(worker, 0, 5000, 5000)?;
        let transport = plugin_transport()?;
        let irecv = transport.vtable().irecv.expect("a slot");
        let start = bench.into.memory().address(0, 1)? as usize;
        for (address, bytes) in
            [(start + BYTES, 1), (start + BYTES - 100, 101), (start - 1, 2), (0, 1)]
        {
            for count in [1, 2] {
                let inside = bench.into.memory().address(0, 64)?.cast();
                let (mut data, mut sizes, mut tags) =
                    ([address as *mut c_void, inside], [bytes, 64], [0, 1]);
                let (mut handles, mut request) = ([bench.into.raw(); 2], std::ptr::null_mut());
                let (data, sizes, tags) =
                    (data.as_mut_ptr(), sizes.as_mut_ptr(), tags.as_mut_ptr());
                // SAFETY: a live communicator and its handles; what is outside of the registration
                // is refused.
                let code = unsafe {
                    irecv(
                        bench.link.recv.raw(),
                        count,
                        data,
                        sizes,
                        tags,
                        handles.as_mut_ptr(),
                        &raw mut request,
                    )
                };
                assert_eq!(
                    (code, request.is_null()),
                    (abi::ncclInvalidArgument, true),
                    "{count}: {address:#x}, {bytes}"
                );
            }
        }
        worker.barrier()?;
        bench.exchange(worker, 1, 5000, 5000)
    })
}

/// NCCL hands over addresses behind a buffer with messages of no bytes.
#[test]
fn a_message_of_no_bytes_may_have_any_address() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let transport = plugin_transport()?;
        let net = transport.vtable();
        let (send, recv) = (bench.link.send.raw(), bench.link.recv.raw());
        let start = bench.out.memory().address(0, 1)? as usize;
        let behind =
            [start + (1 << 16), start + (1 << 16) + (32 << 10), start - 4096, 0, usize::MAX];
        for address in behind.map(|address| address as *mut c_void) {
            let null = std::ptr::null_mut::<c_void>();
            // SAFETY: live communicators and handles; what is outside of the registration is
            // refused or of no bytes.
            unsafe {
                let isend = net.isend.expect("a slot");
                for count in [1, 2] {
                    let inside = bench.into.memory().address(0, 64)?.cast();
                    let (mut data, mut sizes, mut tags) = ([address, inside], [0, 64], [0, 1]);
                    let mut handles = [bench.into.raw(); 2];
                    let mut deadline = worker.deadline("messages of no bytes");
                    let mut receive = null;
                    while receive.is_null() {
                        let irecv = net.irecv.expect("a slot");
                        let (data, sizes, tags) =
                            (data.as_mut_ptr(), sizes.as_mut_ptr(), tags.as_mut_ptr());
                        let code = irecv(
                            recv,
                            count,
                            data,
                            sizes,
                            tags,
                            handles.as_mut_ptr(),
                            &raw mut receive,
                        );
                        assert_eq!(code, abi::ncclSuccess, "{address:?}");
                        deadline.idle()?;
                    }
                    // A buffer is looked at when there is a clear-to-send for it.
                    let mut code = abi::ncclSuccess;
                    while code == abi::ncclSuccess {
                        let mut request = null;
                        code = isend(send, address, 1, 0, bench.out.raw(), &raw mut request);
                        assert!(request.is_null(), "{address:?}");
                        deadline.idle()?;
                    }
                    assert_eq!(code, abi::ncclInvalidArgument, "{address:?}");
                    let mut pending = vec![receive];
                    for tag in 0..count {
                        let mut request = null;
                        while request.is_null() {
                            let code =
                                isend(send, address, 0, tag, bench.out.raw(), &raw mut request);
                            assert_eq!(code, abi::ncclSuccess, "{address:?}");
                            deadline.idle()?;
                        }
                        pending.push(request);
                    }
                    for request in pending {
                        let (mut done, mut got) = (0, [7; 2]);
                        while done == 0 {
                            let code =
                                net.test.expect("a slot")(request, &raw mut done, got.as_mut_ptr());
                            assert_eq!(code, abi::ncclSuccess, "{address:?}");
                            deadline.idle()?;
                        }
                        assert_eq!(got[0], 0, "{address:?}");
                    }
                }
            }
        }
        worker.barrier()?;
        bench.exchange(worker, 1, 5000, 5000)
    })
}

/// NCCL takes a flush without a request for one that is complete.
#[test]
fn the_257th_flush_in_flight_is_an_error() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let transport = plugin_transport()?;
        let net = transport.vtable();
        let comm = bench.link.recv.raw();
        let start: *mut c_void = bench.into.memory().address(0, 64)?.cast();
        let mut handle = std::ptr::null_mut();
        // To the software device, memory registered as a GPU's by address is memory like any other.
        // SAFETY: a live communicator, and memory that outlives the registration.
        let code = unsafe {
            net.regMr.expect("a slot")(
                comm,
                start,
                64,
                abi::NCCL_PTR_CUDA as c_int,
                &raw mut handle,
            )
        };
        assert_eq!(code, abi::ncclSuccess);
        let flush = || {
            let (mut data, mut sizes, mut handles, mut request) =
                ([start], [64], [handle], std::ptr::null_mut());
            let iflush = net.iflush.expect("a slot");
            // SAFETY: arrays of one, and a live communicator.
            let code = unsafe {
                iflush(
                    comm,
                    1,
                    data.as_mut_ptr(),
                    sizes.as_mut_ptr(),
                    handles.as_mut_ptr(),
                    &raw mut request,
                )
            };
            (code, request)
        };
        for _ in 0..2 {
            let requests: Vec<_> = (0..256).map(|_| flush()).collect();
            assert!(
                requests
                    .iter()
                    .all(|(code, request)| *code == abi::ncclSuccess && !request.is_null())
            );
            assert_eq!(flush().0, abi::ncclInternalError);
            let mut deadline = worker.deadline("flushes");
            for (_, request) in requests {
                let mut done = 0;
                while done == 0 {
                    // SAFETY: a live request; a flush has no sizes.
                    let code = unsafe {
                        net.test.expect("a slot")(request, &raw mut done, std::ptr::null_mut())
                    };
                    assert_eq!(code, abi::ncclSuccess);
                    deadline.idle()?;
                }
            }
        }
        worker.barrier()?;
        bench.exchange(worker, 1, 5000, 5000)?;
        Calls { net, comm: comm as usize }.deregister(handle);
        worker.barrier()
    })
}

#[test]
fn two_threads_register_and_deregister_at_once() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
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
                        let (offset, bytes) =
                            ((i * 7919 + thread * 4096) % (1 << 19), 1 + i * 131 % (1 << 18));
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
        bench.exchange(worker, 1, 5000, 5000)?;
        worker.barrier()
    })
}
