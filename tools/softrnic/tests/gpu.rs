//! A GPU's memory: how it is registered, and that its bytes arrive. On a CUDA driver without a GPU (`cuda/fake.c`), whose
//! memory no processor can touch.

mod common;

use std::ffi::{CString, c_int};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;

use common::node::{Address, Node, Terms, Work};
use common::process::{alone, pair};
use common::verbs::*;

/// The driver, loaded into this process as an application would have it.
struct Driver {
    handle: Ptr,
}

impl Driver {
    fn load() -> Self {
        let built = Self::build();
        let path = CString::new(built.to_str().expect("UTF-8")).expect("path");
        // SAFETY: a library of ours.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{}", built.display());
        Self { handle }
    }

    /// Compiled for each process that wants it, which is quick and needs no agreement.
    fn build() -> PathBuf {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/fake.c");
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-cuda-{}.so", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"]).arg(&library).arg(source);
        assert!(cc.status().expect("a C compiler").success());
        library
    }

    fn function<F>(&self, name: &str) -> F {
        let name = CString::new(name).expect("name");
        // SAFETY: the callers name functions of fake.c with their types.
        unsafe {
            let found = libc::dlsym(self.handle, name.as_ptr());
            assert!(!found.is_null());
            std::mem::transmute_copy(&found)
        }
    }

    /// Memory of the GPU.
    fn allocate(&self, bytes: usize) -> u64 {
        let allocate: extern "C" fn(usize) -> u64 = self.function("fake_allocate");
        let at = allocate(bytes);
        assert_ne!(at, 0);
        at
    }

    fn shadow(&self, at: u64) -> *mut u8 {
        self.function::<extern "C" fn(u64) -> *mut u8>("fake_shadow")(at)
    }

    /// What is in it.
    fn bytes(&self, at: u64, len: usize) -> &[u8] {
        // SAFETY: inside an allocation, which stays for good.
        unsafe { std::slice::from_raw_parts(self.shadow(at), len) }
    }

    /// Puts `data` there.
    fn put(&self, at: u64, data: &[u8]) {
        // SAFETY: inside an allocation; no slice of it is alive.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.shadow(at), data.len()) };
    }

    fn copies(&self) -> c_int {
        self.function::<extern "C" fn() -> c_int>("fake_copies")()
    }

    fn fail(&self, is_failing: bool) {
        self.function::<extern "C" fn(c_int)>("fake_fail")(is_failing.into());
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-cuda-{}.so", std::process::id())),
        );
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn dmabuf_mr(pd: Ptr, length: usize, iova: u64, fd: c_int) -> *mut Mr {
    let found = symbol("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
    // SAFETY: the verbs interface's type.
    let register: extern "C" fn(Ptr, u64, usize, u64, c_int, c_int) -> *mut Mr = unsafe { std::mem::transmute(found) };
    register(pd, 0, length, iova, fd, ALL_ACCESS)
}

/// A node whose memory region is `bytes` of the GPU.
struct GpuNode {
    node: Node,
    at: u64,
}

impl GpuNode {
    fn new(driver: &Driver, device: usize, bytes: usize) -> Self {
        let mut node = Node::new(device, 4096);
        let at = driver.allocate(bytes);
        assert_eq!(ibv_dereg_mr(node.mr), 0);
        node.mr = ibv_reg_mr(node.pd, at as Ptr, bytes, ALL_ACCESS);
        assert!(!node.mr.is_null(), "reg_mr: {}", std::io::Error::last_os_error());
        Self { node, at }
    }

    fn address(&self) -> Address {
        Address { addr: self.at, ..self.node.address() }
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        Sge { addr: self.at + at as u64, length: length as u32, lkey: self.node.key() }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

/// What a machine with neither, one or both of the ways to register GPU memory answers.
fn ways(test: &str, gpu: &str, by_address: bool, by_dmabuf: bool) {
    alone(test, &[("SOFTRNIC_GPU", gpu)], || {
        let driver = Driver::load();
        let node = Node::new(0, 64);
        let at = driver.allocate(8192);

        assert_eq!(ibv_reg_mr(node.pd, at as Ptr, 8192, ALL_ACCESS).is_null(), !by_address);
        if !by_address {
            assert_eq!(errno(), libc::EFAULT);
        }
        // The probe; its errno is the answer, whatever it was before.
        for stale in [libc::EBADF, libc::EOPNOTSUPP, 0] {
            // SAFETY: this thread's errno.
            unsafe { *libc::__errno_location() = stale };
            assert!(dmabuf_mr(node.pd, 0, 0, -1).is_null());
            assert_eq!(errno(), if by_dmabuf { libc::EBADF } else { libc::EOPNOTSUPP });
        }
        // A descriptor that may be closed at once.
        let (file, _other) = std::os::unix::net::UnixStream::pair().expect("any descriptor");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(dmabuf_mr(node.pd, 4096, at + 4096, fd).is_null(), !by_dmabuf);
        // What is no GPU's.
        assert!(dmabuf_mr(node.pd, 64, node.memory.as_ptr() as u64, fd).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        // The host's memory as ever.
        assert!(!ibv_reg_mr(node.pd, node.memory.as_ptr() as Ptr, 64, ALL_ACCESS).is_null());
    });
}

#[test]
fn a_machine_with_no_way_to_register_gpu_memory() {
    ways("a_machine_with_no_way_to_register_gpu_memory", "none", false, false);
}

#[test]
fn a_machine_with_peermem() {
    ways("a_machine_with_peermem", "peermem", true, false);
}

#[test]
fn a_machine_with_dmabuf() {
    ways("a_machine_with_dmabuf", "dmabuf", false, true);
}

#[test]
fn a_machine_with_both_ways_to_register_gpu_memory() {
    ways("a_machine_with_both_ways_to_register_gpu_memory", "both", true, true);
}

const SIZES: [usize; 9] = [1, 7, 8, 4096, 65_536, 524_287, 524_288, 524_289, 3_000_001];

/// Every byte, in every combination of whose memory it comes from and goes to, between processes.
#[test]
fn bytes_go_between_gpus_and_hosts_of_two_processes() {
    const MOST: usize = 3_000_001;
    pair("bytes_go_between_gpus_and_hosts_of_two_processes", &[("SOFTRNIC_GPU", "peermem")], |side, mut line| {
        let driver = Driver::load();
        let gpu = GpuNode::new(&driver, side, MOST);
        let mut host = vec![0u8; MOST];
        let untouched = vec![0xee; MOST];
        let host_mr = ibv_reg_mr(gpu.node.pd, host.as_mut_ptr().cast(), MOST, ALL_ACCESS);
        // SAFETY: a live region.
        let host_key = unsafe { (*host_mr).lkey };
        let peer = gpu.node.join(&mut line, &Terms::default());
        let mine = [gpu.at, u64::from(gpu.node.key()), host.as_ptr() as u64, u64::from(host_key)];
        let theirs: [u64; 4] = line.swap(&mine);
        assert_eq!(theirs[1], peer.rkey);
        for (round, size) in SIZES.into_iter().enumerate() {
            for (from_gpu, to_gpu) in [(true, true), (true, false), (false, true)] {
                let data = pattern(size, round);
                if side == 0 {
                    let nothing = vec![0; size];
                    driver.put(gpu.at, if from_gpu { &data } else { &nothing });
                    host[..size].copy_from_slice(if from_gpu { &nothing } else { &data });
                    let from = if from_gpu {
                        gpu.sge(0, size)
                    } else {
                        Sge { addr: mine[2], length: size as u32, lkey: host_key }
                    };
                    let to = if to_gpu { (theirs[0], theirs[1]) } else { (theirs[2], theirs[3]) };
                    line.meet();
                    gpu.node.send(Work { opcode: WRITE_IMM, imm: 7, sges: &[from], to, ..Work::default() });
                    assert_eq!(gpu.node.next().status, OK);
                    line.meet();
                } else {
                    driver.put(gpu.at, &untouched);
                    host.copy_from_slice(&untouched);
                    gpu.node.recv(3, &[]);
                    line.meet();
                    let got = gpu.node.next();
                    assert_eq!((got.status, got.imm, got.byte_len), (OK, 7, size as u32));
                    let (full, empty): (&[u8], &[u8]) =
                        if to_gpu { (driver.bytes(gpu.at, MOST), &host) } else { (&host, driver.bytes(gpu.at, MOST)) };
                    assert!(full[..size] == data, "{size} bytes, {from_gpu} to {to_gpu}");
                    assert!(full[size..] == untouched[size..] && empty == untouched, "{size} bytes and no more");
                    line.meet();
                }
            }
        }
    });
}

#[test]
fn reads_and_sends_reach_gpu_memory() {
    alone("reads_and_sends_reach_gpu_memory", &[("SOFTRNIC_GPU", "both")], || {
        let driver = Driver::load();
        let (a, b) = (GpuNode::new(&driver, 0, 8192), GpuNode::new(&driver, 1, 8192));
        a.node.connect(&b.node.address(), &Terms::default());
        b.node.connect(&a.node.address(), &Terms::default());
        let before = driver.copies();

        driver.put(b.at, &pattern(8192, 1));
        let to = (b.address().addr + 100, b.address().rkey);
        a.node.send(Work { opcode: READ, sges: &[a.sge(5, 3000), a.sge(4000, 1)], to, ..Work::default() });
        assert_eq!(a.node.next().status, OK);
        let want = pattern(8192, 1);
        assert!(driver.bytes(a.at + 5, 3000) == &want[100..3100] && driver.bytes(a.at + 4000, 1)[0] == want[3100]);

        b.node.recv(4, &[b.sge(0, 10), b.sge(100, 4000)]);
        driver.put(a.at, &pattern(4000, 9));
        a.node.send(Work { opcode: SEND_IMM, imm: 3, sges: &[a.sge(0, 1000), a.sge(1000, 3000)], ..Work::default() });
        assert_eq!(a.node.next().status, OK);
        let got = b.node.next();
        assert_eq!((got.wr_id, got.byte_len, got.imm), (4, 4000, 3));
        let want = pattern(4000, 9);
        assert!(driver.bytes(b.at, 10) == &want[..10] && driver.bytes(b.at + 100, 3990) == &want[10..]);
        assert!(driver.copies() > before, "it was the GPU that copied");
    });
}

/// What a transport does to have a GPU see what has arrived: it reads a byte of it over a connection with itself.
#[test]
fn a_flush_over_a_queue_pair_connected_with_itself() {
    alone("a_flush_over_a_queue_pair_connected_with_itself", &[("SOFTRNIC_GPU", "dmabuf")], || {
        let driver = Driver::load();
        let mut node = Node::new(0, 64);
        let at = driver.allocate(4096);
        let (file, _other) = std::os::unix::net::UnixStream::pair().expect("any descriptor");
        let mr = dmabuf_mr(node.pd, 4096, at, std::os::fd::AsRawFd::as_raw_fd(&file));
        drop(file);
        assert!(!mr.is_null());
        node.connect(&node.address(), &Terms::default());
        driver.put(at, &[77]);
        node.memory[0] = 0;
        // SAFETY: a live region.
        let key = unsafe { (*mr).rkey };
        node.send(Work { opcode: READ, sges: &[node.sge(0, 1)], to: (at, u64::from(key)), ..Work::default() });
        assert_eq!((node.next().status, node.memory[0]), (OK, 77));
        assert_eq!(ibv_dereg_mr(mr), 0);
        node.close();
    });
}

#[test]
fn a_gpu_that_fails_is_an_operation_error() {
    alone("a_gpu_that_fails_is_an_operation_error", &[("SOFTRNIC_GPU", "peermem")], || {
        let driver = Driver::load();
        let gpu = GpuNode::new(&driver, 1, 4096);
        let host = Node::new(0, 4096);
        host.connect(&gpu.node.address(), &Terms::default());
        gpu.node.connect(&host.address(), &Terms::default());
        driver.fail(true);
        let to = (gpu.address().addr, gpu.address().rkey);
        host.send(Work { sges: &[host.sge(0, 4096)], to, ..Work::default() });
        assert_eq!((host.next().status, gpu.node.state()), (REM_OP, ERR));
    });
}

/// Keys and bounds are checked for GPU memory as for any other; atomics it has none.
#[test]
fn gpu_memory_has_keys_and_bounds() {
    alone("gpu_memory_has_keys_and_bounds", &[("SOFTRNIC_GPU", "peermem")], || {
        let driver = Driver::load();
        for (offset, length, status) in [(0u64, 4096, OK), (1, 4096, REM_ACCESS), (4096, 1, REM_ACCESS)] {
            let gpu = GpuNode::new(&driver, 1, 4096);
            let host = Node::new(0, 8192);
            host.connect(&gpu.node.address(), &Terms::default());
            gpu.node.connect(&host.address(), &Terms::default());
            let to = (gpu.at + offset, gpu.address().rkey);
            host.send(Work { sges: &[host.sge(0, length)], to, ..Work::default() });
            assert_eq!(host.next().status, status, "{offset} + {length}");
        }
        let node = Node::new(0, 64);
        assert!(ibv_reg_mr(node.pd, ptr::null_mut(), 64, ALL_ACCESS).is_null());
    });
}
