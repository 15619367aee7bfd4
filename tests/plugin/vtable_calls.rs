//! Calls of the C ABI beside those that carry messages: registration, flush, close, init; and
//! arguments that are impossible.

use crate::common::prelude::*;
use std::ffi::{c_int, c_void};

/// Calls of the vtable that the wrapper does not make.
struct Raw<'a>(&'a Transport);

impl Raw<'_> {
    fn register(&self, comm: *mut c_void, memory: &Buffer, kind: u32) -> (u32, *mut c_void) {
        let mut handle = std::ptr::null_mut();
        let start = memory.address(0, memory.len()).expect("the whole buffer").cast();
        let register = self.0.vtable().regMr.expect("a slot");
        // SAFETY: a live communicator and memory that outlives the registration.
        let code = unsafe { register(comm, start, memory.len(), kind as c_int, &raw mut handle) };
        (code, handle)
    }

    fn deregister(&self, comm: *mut c_void, handle: *mut c_void) -> u32 {
        // SAFETY: a handle that is not used again, or NULL.
        unsafe { self.0.vtable().deregMr.expect("a slot")(comm, handle) }
    }
}

#[test]
fn gpu_memory_is_flushed_by_a_read_and_host_memory_is_not() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 4096)?;
        let place = RecvBuffer { region: &bench.into, offset: 0, len: 64, tag: 0 };
        assert!(bench.link.recv.flush(&[place])?.is_none(), "host memory needs no flush");

        let transport = plugin_transport()?;
        let raw = Raw(&transport);
        let comm = bench.link.recv.raw();
        let memory = Buffer::new(4096)?;
        // To the software device, memory registered as a GPU's by address is memory like any other.
        let (code, handle) = raw.register(comm, &memory, abi::NCCL_PTR_CUDA);
        assert_eq!(code, abi::ncclSuccess);
        let iflush = transport.vtable().iflush.expect("a slot");
        let test = transport.vtable().test.expect("a slot");
        for (sizes, expected) in [([0, 0], false), ([64, 0], true), ([8, 4096], true)] {
            let mut request = std::ptr::null_mut();
            let start: *mut c_void = memory.address(0, 1)?.cast();
            let (mut data, mut handles, mut lengths) = ([start; 2], [handle; 2], sizes);
            // SAFETY: arrays of two, and a live communicator.
            let code = unsafe {
                iflush(
                    comm,
                    2,
                    data.as_mut_ptr(),
                    lengths.as_mut_ptr(),
                    handles.as_mut_ptr(),
                    &raw mut request,
                )
            };
            assert_eq!(code, abi::ncclSuccess);
            assert_eq!(!request.is_null(), expected, "{sizes:?}");
            let mut deadline = worker.deadline("a flush");
            let mut done = c_int::from(request.is_null());
            while done == 0 {
                // SAFETY: a live request; a flush has no sizes.
                let code = unsafe { test(request, &raw mut done, std::ptr::null_mut()) };
                assert_eq!(code, abi::ncclSuccess);
                deadline.idle()?;
            }
        }
        assert_eq!(raw.deregister(comm, handle), abi::ncclSuccess);
        Ok(())
    })
}

#[test]
fn registrations_of_one_buffer_may_be_released_in_any_order() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let transport = plugin_transport()?;
        let raw = Raw(&transport);
        let comms = [bench.link.send.raw(), bench.link.recv.raw()];
        let mut handles: Vec<_> = (0..20)
            .map(|i| {
                let (code, handle) =
                    raw.register(comms[i % 2], bench.out.memory(), abi::NCCL_PTR_HOST);
                assert_eq!((code, handle.is_null()), (abi::ncclSuccess, false));
                handle
            })
            .collect();
        while !handles.is_empty() {
            let handle = handles.swap_remove(handles.len() * 7 / 11);
            assert_eq!(raw.deregister(comms[handles.len() % 2], handle), abi::ncclSuccess);
        }
        worker.barrier()?;
        // The bench's own registrations of the same memory are not touched by that.
        bench.exchange(worker, 1, 5000, 5000)
    })
}

#[test]
fn a_refused_dma_buf_leaves_the_connection_usable() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let transport = plugin_transport()?;
        let start = bench.out.memory().address(0, 4096)?.cast();
        let mut handle = std::ptr::dangling_mut();
        let register = transport.vtable().regMrDmaBuf.expect("a slot");
        // SAFETY: a live communicator; descriptor -1 is nobody's.
        let code = unsafe {
            register(
                bench.link.send.raw(),
                start,
                4096,
                abi::NCCL_PTR_CUDA as c_int,
                0,
                -1,
                &raw mut handle,
            )
        };
        assert_eq!((code, handle.is_null()), (abi::ncclSystemError, true));
        assert_eq!(
            transport.properties(0)?.pointer_support & abi::NCCL_PTR_DMABUF as i32,
            0,
            "and it is not promised"
        );
        worker.barrier()?;
        bench.exchange(worker, 1, 5000, 5000)
    })
}

#[test]
fn impossible_arguments_are_refused_and_the_connection_lives() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let transport = plugin_transport()?;
        let vtable = transport.vtable();
        let (send, recv) = (bench.link.send.raw(), bench.link.recv.raw());
        let (isend, irecv) = (vtable.isend.expect("a slot"), vtable.irecv.expect("a slot"));
        let mut request = std::ptr::dangling_mut();
        let inside: *mut c_void = bench.out.memory().address(0, 1)?.cast();
        let handle = bench.out.raw();
        let is_refused = |code, what: &str| assert_eq!(code, abi::ncclInvalidArgument, "{what}");
        let null = std::ptr::null_mut();
        // SAFETY: live objects or NULL; refused before any memory is touched.
        unsafe {
            for (comm, size, handle, what) in [
                (send, -1, handle, "a negative size"),
                (send, (1 << 30) + 1, handle, "more than 1 GiB"),
                (send, 8, null, "no memory handle"),
                (send, 1 << 20, handle, "past the registration"),
                (recv, 8, handle, "the wrong communicator"),
                (null, 8, handle, "no communicator"),
            ] {
                is_refused(isend(comm, inside, size, 0, handle, &raw mut request), what);
            }
            let (mut data, mut sizes, mut tags, mut handles) =
                ([inside; 9], [8; 9], [0; 9], [handle; 9]);
            let (data, handles) = (data.as_mut_ptr(), handles.as_mut_ptr());
            let (sizes, tags) = (sizes.as_mut_ptr(), tags.as_mut_ptr());
            for n in [-1, 0, 9] {
                let code = irecv(recv, n, data, sizes, tags, handles, &raw mut request);
                is_refused(code, &format!("{n} messages"));
            }
            let mut done = 7;
            is_refused(
                vtable.test.expect("a slot")(null, &raw mut done, null.cast()),
                "no request",
            );
            assert_eq!(done, 0);
            let mut handle = null;
            let register = vtable.regMr.expect("a slot");
            is_refused(register(send, inside, 0, 1, &raw mut handle), "nothing to register");
            is_refused(register(send, inside, 8, 4, &raw mut handle), "a type that is none");
            // NULL after a failed set-up.
            let ok = abi::ncclSuccess;
            assert_eq!(vtable.deregMr.expect("a slot")(send, null), ok);
            for close in [vtable.closeSend, vtable.closeRecv, vtable.closeListen] {
                assert_eq!(close.expect("a slot")(null), ok);
            }
            let mut props = std::mem::zeroed();
            is_refused(vtable.getProperties.expect("a slot")(99, &raw mut props), "no device");
        }
        worker.barrier()?;
        bench.exchange(worker, 1, 5000, 5000)
    })
}

#[test]
fn communicators_close_with_requests_in_flight() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        for i in 0..10 {
            let _never_tested = bench.link.recv.receive(&bench.into, i * 64, 64, 3)?.expect("room");
        }
        worker.barrier()?;
        let mut deadline = worker.deadline("a send");
        for _ in 0..5 {
            let _never_tested =
                posted(&mut deadline, || bench.link.send.send(&bench.out, 0, 64, 3))?;
            if worker.rank() == 0 {
                break;
            }
        }
        // The end that closes first ends the other's sends as well, and is not to be waited for.
        worker.barrier()?;
        let Bench { out, into, link, _transport } = bench;
        drop((out, into));
        link.close()?;
        worker.barrier()?;
        // The device is as good as new.
        Bench::open(worker, plugin_transport()?, 4096)?.exchange(worker, 1, 100, 100)
    })
}

#[test]
fn init_may_be_called_again_and_properties_are_all_written() -> Result<()> {
    both(setting(), |_| {
        let transport = plugin_transport()?;
        let devices = transport.devices()?;
        transport.init()?;
        assert_eq!(transport.devices()?, devices);
        let mut names = Vec::new();
        for device in 0..devices {
            let mut props = std::mem::MaybeUninit::<abi::ncclNetProperties_v8_t>::uninit();
            // SAFETY: NCCL passes memory that it has not set; so does this.
            let props = unsafe {
                props
                    .as_mut_ptr()
                    .cast::<u8>()
                    .write_bytes(0xa5, size_of::<abi::ncclNetProperties_v8_t>());
                let get = transport.vtable().getProperties.expect("a slot");
                assert_eq!(get(device as c_int, props.as_mut_ptr()), abi::ncclSuccess);
                props.assume_init()
            };
            // SAFETY: a C string that lives as long as the process.
            names.push(unsafe { std::ffi::CStr::from_ptr(props.name) }.to_owned());
            assert!(props.pciPath.is_null(), "the software device has no PCI function");
            assert_eq!((props.ptrSupport, props.regIsGlobal, props.speed), (1, 1, 400_000));
            assert_eq!((props.port, props.latency, props.maxRecvs), (1, 0.0, 8));
            assert_eq!((props.netDeviceType, props.netDeviceVersion), (0, 0));
            assert!(props.maxComms > 0 && props.guid != 0);
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "names are unique");
        Ok(())
    })
}

#[test]
fn a_request_that_is_tested_after_its_end_is_refused_and_the_connection_lives() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        let transport = plugin_transport()?;
        let vtable = transport.vtable();
        let (isend, irecv) = (vtable.isend.expect("a slot"), vtable.irecv.expect("a slot"));
        let test = vtable.test.expect("a slot");
        let (send, recv) = (bench.link.send.raw(), bench.link.recv.raw());
        let out: *mut c_void = bench.out.memory().address(0, 8)?.cast();
        let into: *mut c_void = bench.into.memory().address(0, 8)?.cast();
        let mut deadline = worker.deadline("a message and a group");
        for count in [1, 2] {
            let mut requests = [std::ptr::null_mut(); 3];
            let (mut data, mut sizes, mut tags, mut handles) =
                ([into; 2], [8; 2], [5, 6], [bench.into.raw(); 2]);
            let [data, handles] = [data.as_mut_ptr(), handles.as_mut_ptr()];
            // SAFETY: live objects, and arrays of two.
            let code = unsafe {
                irecv(
                    recv,
                    count,
                    data,
                    sizes.as_mut_ptr(),
                    tags.as_mut_ptr(),
                    handles,
                    &raw mut requests[0],
                )
            };
            assert_eq!((code, requests[0].is_null()), (abi::ncclSuccess, false));
            for i in 0..count as usize {
                let place = &raw mut requests[1 + i];
                // SAFETY: live objects.
                while unsafe { (*place).is_null() } {
                    // SAFETY: as above.
                    let code = unsafe { isend(send, out, 8, tags[i], bench.out.raw(), place) };
                    assert_eq!(code, abi::ncclSuccess);
                    deadline.idle()?;
                }
            }
            for request in requests.into_iter().filter(|request| !request.is_null()) {
                let mut done = 0;
                while done == 0 {
                    // SAFETY: a live request.
                    let code = unsafe { test(request, &raw mut done, std::ptr::null_mut()) };
                    assert_eq!(code, abi::ncclSuccess);
                    deadline.idle()?;
                }
                for _ in 0..3 {
                    // SAFETY: it has ended, and its communicator lives.
                    let code = unsafe { test(request, &raw mut done, std::ptr::null_mut()) };
                    assert_eq!((code, done), (abi::ncclInternalError, 0), "{count} messages");
                }
            }
        }
        worker.barrier()?;
        bench.exchange(worker, 1, 5000, 5000)
    })
}
