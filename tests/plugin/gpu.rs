//! GPU memory: what is promised of it is what works, and its bytes arrive. On the CUDA driver
//! without a GPU that softrnic's own tests have.

use crate::common::prelude::*;
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::process::Command;
use testkit::c_library;
use testkit::dist::softrnic_program;

/// The driver, loaded into this process as an application would have it.
struct Driver(*mut c_void);

impl Driver {
    fn load() -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/softrnic/tests/cuda/fake.c");
        let flags = ["-O1", "-pthread", "-Wl,-soname,libcuda.so.1"];
        let library =
            c_library::shared_object(env!("CARGO_TARGET_TMPDIR"), Path::new(source), &flags);
        let path = CString::new(library.to_str().expect("UTF-8")).expect("a path");
        // SAFETY: a library of ours.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", library.display());
        Self(handle)
    }

    fn function<F>(&self, name: &CStr) -> F {
        // SAFETY: callers name functions of fake.c with their types.
        unsafe {
            let found = libc::dlsym(self.0, name.as_ptr());
            assert!(!found.is_null(), "{name:?}");
            std::mem::transmute_copy(&found)
        }
    }

    fn switch(&self, name: &CStr) {
        self.function::<extern "C" fn(c_int)>(name)(1);
    }

    fn allocations(&self) -> c_int {
        self.function::<extern "C" fn() -> c_int>(c"fake_allocations")()
    }

    /// `BYTES` of the GPU's memory, and where a copy of it reads and writes.
    fn allocate(&self) -> (u64, *mut u8) {
        let at = self.function::<extern "C" fn(usize) -> u64>(c"fake_allocate")(BYTES);
        (at, self.function::<extern "C" fn(u64) -> *mut u8>(c"fake_shadow")(at))
    }
}

const HOST: i32 = abi::NCCL_PTR_HOST as i32;
const CUDA: i32 = abi::NCCL_PTR_CUDA as i32;
const DMABUF: i32 = abi::NCCL_PTR_DMABUF as i32;
const WARNING: &str = "WARN";

/// Whether this machine has no GPUs: these tests cannot do with one.
fn no_gpu() -> std::result::Result<(), Missing> {
    let has = Path::new("/proc/driver/nvidia").exists();
    if has { Err(Missing::new("a machine without GPUs: this one has some")) } else { Ok(()) }
}

/// What is promised where the machine can do `gpu`, in a process with a driver that is `prepare`d:
/// and the words of the warning, or none if there is to be none.
fn promised(gpu: &str, prepare: impl FnOnce(&Driver), expected: i32, words: &[&str]) -> Result<()> {
    let setting = require!(setting());
    require!(no_gpu());
    pair(&setting.env("SOFTRNIC_GPU", gpu), |_| {
        let driver = Driver::load();
        prepare(&driver);
        let transport = plugin_transport()?;
        for device in 0..transport.devices()? {
            assert_eq!(transport.properties(device)?.pointer_support, expected, "device {device}");
        }
        let lines = lab::nccl::debug_log::lines();
        let warnings: Vec<_> = lines.iter().filter(|line| line.starts_with(WARNING)).collect();
        assert_eq!(warnings.len(), usize::from(!words.is_empty()), "{lines:#?}");
        assert!(words.iter().all(|word| warnings[0].contains(word)), "{warnings:?}");
        let asleep = expected == HOST && words.is_empty();
        // One piece of memory to try with, for all devices; the software device takes one as well
        // where it works.
        let allowed = if asleep { 0..=0 } else { 1..=2 };
        assert!(allowed.contains(&driver.allocations()), "{} allocations", driver.allocations());
        Ok(())
    })?;
    Ok(())
}

cases! { Result<()>;
    gpu_memory_by_address_is_promised_if_a_registration_works =>
        promised("peermem", |_| {}, HOST | CUDA, &[]);
    gpu_memory_by_dmabuf_is_promised_if_the_device_takes_it =>
        promised("dmabuf", |_| {}, HOST | DMABUF, &[]);
}

#[test]
fn without_gpudirect_rdma_the_missing_parts_are_named() -> Result<()> {
    let words = ["no GPUDirect RDMA", "modprobe nvidia-peermem", "Linux 5.12 or newer"];
    promised("none", |_| {}, HOST, &words)
}

#[test]
fn a_gpu_driver_without_dmabuf_is_named() -> Result<()> {
    let prepare = |driver: &Driver| driver.switch(c"fake_keep_dmabuf");
    promised("dmabuf", prepare, HOST | DMABUF, &["no GPUDirect RDMA", "open kernel modules"])
}

#[test]
fn a_gpu_driver_that_is_not_initialised_is_not_called() -> Result<()> {
    promised("peermem", |driver| driver.switch(c"fake_sleep"), HOST, &[])
}

/// A fused device reaches GPU memory if all its cards do: here one of the first device's refuses.
#[test]
fn a_fused_device_promises_gpu_memory_if_all_its_cards_take_it() -> Result<()> {
    require!(no_gpu());
    let adapt = |setting: Setting| {
        setting
            .env("SOFTRNIC_GPU", "peermem")
            .env("SOFTRNIC_FAULTS", "reg-mr=EFAULT message=1 device=softrnic1")
    };
    faithful::run(&["--devices", "4"], adapt, |worker| {
        if worker.rank() == 0 {
            let _driver = Driver::load();
            let transport = plugin_transport()?;
            let promised = |device| Ok::<_, Error>(transport.properties(device)?.pointer_support);
            assert_eq!((promised(0)?, promised(1)?), (HOST, HOST | CUDA));
        }
        worker.barrier()
    })
}

const BYTES: usize = 256 << 10;

/// Registers `BYTES` at `at` for a communicator: by a dma-buf, or by address.
fn register(transport: &Transport, comm: *mut c_void, at: u64, fd: Option<c_int>) -> *mut c_void {
    let (net, mut handle) = (transport.vtable(), std::ptr::null_mut());
    // SAFETY: a live communicator, and memory that stays.
    let code = unsafe {
        match fd {
            None => {
                net.regMr.expect("a slot")(comm, at as *mut c_void, BYTES, CUDA, &raw mut handle)
            }
            Some(fd) => net.regMrDmaBuf.expect("a slot")(
                comm, at as *mut c_void, BYTES, CUDA, 0, fd, &raw mut handle,
            ),
        }
    };
    assert_eq!(code, abi::ncclSuccess);
    handle
}

/// `length` bytes, from one GPU's memory into another's, under these fault rules.
fn arrives(length: usize, gpu: &str, by_dmabuf: bool, faults: &str) -> Result<()> {
    let setting = require!(setting());
    pair(&setting.env("SOFTRNIC_GPU", gpu).env("SOFTRNIC_FAULTS", faults), |worker| {
        let driver = Driver::load();
        let transport = plugin_transport()?;
        let link = PeerConn::open(worker, &transport, worker.rank())?;
        let (from, out) = driver.allocate();
        let (into, came) = driver.allocate();
        // SAFETY: as many bytes, which nobody else uses yet.
        unsafe { out.copy_from_nonoverlapping(pattern(worker.rank(), BYTES).as_ptr(), BYTES) };
        // SAFETY: a descriptor of no meaning: the software device goes by the address.
        let fd = by_dmabuf.then(|| unsafe { libc::memfd_create(c"dma-buf".as_ptr(), 0) });
        let handles = [(link.send.raw(), from), (link.recv.raw(), into)]
            .map(|(comm, at)| (comm, register(&transport, comm, at, fd)));
        let [(send, source), (recv, target)] = handles;
        if let Some(fd) = fd {
            // SAFETY: ours; the plugin must not need it any more.
            assert_eq!(unsafe { libc::close(fd) }, 0);
        }
        let (net, mut deadline) = (transport.vtable(), worker.deadline("a message between GPUs"));
        let [mut receive, mut sending] = [std::ptr::null_mut::<c_void>(); 2];
        let (mut data, mut sizes, mut tags, mut memory) =
            (into as *mut c_void, BYTES as c_int, 7, target);
        while receive.is_null() {
            let irecv = net.irecv.expect("a slot");
            // SAFETY: a group of one; the handles are live.
            let code = unsafe {
                irecv(
                    recv, 1, &raw mut data, &raw mut sizes, &raw mut tags, &raw mut memory,
                    &raw mut receive,
                )
            };
            assert_eq!(code, abi::ncclSuccess);
            deadline.idle()?;
        }
        while sending.is_null() {
            let isend = net.isend.expect("a slot");
            // SAFETY: as above.
            let code = unsafe {
                isend(send, from as *mut c_void, length as c_int, 7, source, &raw mut sending)
            };
            assert_eq!(code, abi::ncclSuccess);
            deadline.idle()?;
        }
        for request in [sending, receive] {
            let (mut done, mut size) = (0, 0);
            while done == 0 {
                // SAFETY: a live request.
                let code =
                    unsafe { net.test.expect("a slot")(request, &raw mut done, &raw mut size) };
                assert_eq!(code, abi::ncclSuccess);
                deadline.idle()?;
            }
            assert_eq!(size, length as c_int);
        }
        // SAFETY: the message is complete, and nothing writes there any more.
        let came = unsafe { std::slice::from_raw_parts(came, length) };
        assert!(*came == pattern(1 - worker.rank(), BYTES)[..length], "wrong data");
        for (comm, handle) in handles {
            // SAFETY: not used again.
            assert_eq!(unsafe { net.deregMr.expect("a slot")(comm, handle) }, abi::ncclSuccess);
        }
        worker.barrier()?;
        link.close()
    })?;
    Ok(())
}

cases! { Result<()>;
    gpu_memory_by_address_arrives => arrives(BYTES, "peermem", false, "");
    /// The processor cannot read it, so it is not sent inline.
    a_short_message_of_gpu_memory_arrives => arrives(20, "peermem", false, "");
    gpu_memory_by_dmabuf_arrives => arrives(BYTES, "dmabuf", true, "");
}

/// NCCL has closed the descriptor by which the memory was registered.
#[test]
fn gpu_memory_by_dmabuf_is_registered_again_on_a_device_that_is_back() -> Result<()> {
    require!(no_gpu());
    arrives(BYTES, "dmabuf", true, "device-fatal=100ms device=softrnic0 times=1")
}

/// Runs `body` while this process has half of the descriptors that it may have.
fn with_half_of_the_descriptors<T>(body: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain numbers; the descriptor is the next one that is free, and ours.
    let before = unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        let next = libc::dup(0);
        libc::close(next);
        let before = limit;
        limit.rlim_cur = 2 * next as u64;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        before
    };
    let outcome = body();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) }, 0);
    outcome
}

/// The device never comes back: it is not waited for.
#[test]
fn memory_by_a_dmabuf_that_cannot_be_kept_ends_the_connection_when_its_only_device_fails()
-> Result<()> {
    let setting = require!(setting());
    let softrnic = require!(softrnic_program());
    require!(no_gpu());
    pair(&setting.env("SOFTRNIC_GPU", "dmabuf"), |worker| {
        let driver = Driver::load();
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        (0..20).try_for_each(|round| bench.exchange(worker, round, 5000, 5000))?;
        if worker.rank() == 0 {
            let (transport, send) = (plugin_transport()?, bench.link.send.raw());
            let ([first, at], net) =
                ([driver.allocate().0, driver.allocate().0], transport.vtable());
            // SAFETY: a descriptor of no meaning: the software device goes by the address.
            let fd = unsafe { libc::memfd_create(c"dma-buf".as_ptr(), 0) };
            // Kept.
            let other = register(&transport, send, first, Some(fd));
            let handle = with_half_of_the_descriptors(|| register(&transport, send, at, Some(fd)));
            // SAFETY: ours.
            assert_eq!(unsafe { libc::close(fd) }, 0);
            program::stdout_of(Command::new(&softrnic).args(["fail", "softrnic0"]));
            let (mut code, mut deadline) =
                (abi::ncclSuccess, worker.deadline("the end of the connection"));
            while code == abi::ncclSuccess {
                let (isend, mut request) = (net.isend.expect("a slot"), std::ptr::null_mut());
                // SAFETY: the handle is live. The peer expects no message, so none is sent.
                code = unsafe { isend(send, at as *mut c_void, 8, 7, handle, &raw mut request) };
                deadline.idle()?;
            }
            let warned = [
                "cannot keep the dma-buf of registered GPU memory",
                "the process has half of the",
                "ulimit -n",
            ];
            let words = [
                "softrnic0 was lost by a fatal error, and memory cannot be registered there again",
                "to a dma-buf that could not be kept",
            ];
            assert!(
                code == abi::ncclRemoteError && said(&warned) && said(&words),
                "{code} {}",
                log()
            );
            for handle in [handle, other] {
                // SAFETY: not used again.
                assert_eq!(unsafe { net.deregMr.expect("a slot")(send, handle) }, abi::ncclSuccess);
            }
        }
        worker.barrier()
    })?;
    Ok(())
}

/// Its read of GPU memory is lost, again and again.
#[test]
fn a_flush_that_does_not_end_is_reported() -> Result<()> {
    let setting = require!(setting());
    require!(no_gpu());
    let folder = Scratch::new();
    let env = [
        ("SOFTRNIC_GPU", "peermem"),
        ("SOFTRNIC_FAULTS", "drop attempts=all opcode=read"),
        ("FERRITE_HANG_SECONDS", "1"),
    ];
    let setting = env.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
    pair(&setting.env("FERRITE_REPORT_DIR", folder.path().as_os_str()), |worker| {
        let driver = Driver::load();
        let transport = plugin_transport()?;
        let link = PeerConn::open(worker, &transport, worker.rank())?;
        if worker.rank() == 0 {
            let (into, _) = driver.allocate();
            let (net, recv) = (transport.vtable(), link.recv.raw());
            let mut memory = register(&transport, recv, into, None);
            let (mut data, mut size, mut request) =
                (into as *mut c_void, BYTES as c_int, std::ptr::null_mut::<c_void>());
            // SAFETY: a group of one; the handles are live.
            let code = unsafe {
                net.iflush.expect("a slot")(
                    recv, 1, &raw mut data, &raw mut size, &raw mut memory, &raw mut request,
                )
            };
            assert_eq!((code, request.is_null()), (abi::ncclSuccess, false));
            let mut deadline = worker.deadline("a report");
            while !said(&[
                "has been waiting for",
                "for a flush of data of",
                "the read that flushes it to GPU memory does not complete",
            ]) {
                let mut done = 0;
                // SAFETY: a live request.
                let code =
                    unsafe { net.test.expect("a slot")(request, &raw mut done, &raw mut size) };
                assert_eq!((code, done), (abi::ncclSuccess, 0));
                std::thread::sleep(Duration::from_millis(1));
                deadline.idle()?;
            }
            // SAFETY: not used again.
            assert_eq!(unsafe { net.deregMr.expect("a slot")(recv, memory) }, abi::ncclSuccess);
        }
        worker.barrier()?;
        link.close()
    })?;
    Ok(())
}
