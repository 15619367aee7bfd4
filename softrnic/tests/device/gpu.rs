//! A GPU's memory: how it is registered, and that its bytes arrive. On a CUDA driver without a GPU
//! (`cuda/fake.c`), whose memory no processor can touch.

use crate::common::gpu::{Driver, GpuNode, helper, pattern};
use crate::common::prelude::*;
use crate::data::{post, terms};
use std::ffi::c_int;
use std::path::PathBuf;
use testkit::side::enter;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn dmabuf_mr(pd: Ptr, length: usize, iova: u64, fd: c_int) -> *mut Mr {
    let found = symbol("ibv_reg_dmabuf_mr", "IBVERBS_1.12");
    // SAFETY: the verbs interface's type.
    let register: extern "C" fn(Ptr, u64, usize, u64, c_int, c_int) -> *mut Mr =
        unsafe { std::mem::transmute(found) };
    register(pd, 0, length, iova, fd, ALL_ACCESS)
}

/// What a machine with neither, one or both of the ways to register GPU memory answers.
fn ways(gpu: &str, by_address: bool, by_dmabuf: bool) {
    Softrnic::new().env("SOFTRNIC_GPU", gpu).alone(|| {
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

cases! { ();
    a_machine_with_no_way_to_register_gpu_memory => ways("none", false, false);
    a_machine_with_peermem => ways("peermem", true, false);
    a_machine_with_dmabuf => ways("dmabuf", false, true);
    a_machine_with_both_ways_to_register_gpu_memory => ways("both", true, true);
}

#[test]
fn what_was_registered_by_which_way_is_told_at_the_end() {
    enter(|_, _| {
        let driver = Driver::load();
        let node = Node::new(0, 64);
        let at = driver.allocate(8192);
        let (file, _other) = std::os::unix::net::UnixStream::pair().expect("any descriptor");
        for _ in 0..2 {
            assert!(
                !dmabuf_mr(node.pd, 8192, at, std::os::fd::AsRawFd::as_raw_fd(&file)).is_null()
            );
        }
        assert!(!ibv_reg_mr(node.pd, at as Ptr, 8192, ALL_ACCESS).is_null());
    });
    let (process, _socket) =
        Softrnic::new().start(0, &[("SOFTRNIC_GPU", "both"), ("SOFTRNIC_STAT", "1")]);
    let ended = process.ended();
    assert!(
        ended.is_body_done() && ended.output.contains("GPU memory 1 by address, 2 by dma-buf"),
        "{ended}"
    );
}

const SIZES: [usize; 9] = [1, 7, 8, 4096, 65_536, 524_287, 524_288, 524_289, 3_000_001];

#[test]
fn bytes_go_between_gpus_and_hosts_of_two_processes() {
    bytes_go_between_gpus_and_hosts(&Softrnic::new().env("SOFTRNIC_GPU", "peermem"), &SIZES);
}

/// Every byte, in every combination of whose memory it comes from and goes to, between processes.
pub(crate) fn bytes_go_between_gpus_and_hosts(softrnic: &Softrnic, sizes: &[usize]) {
    const MOST: usize = 3_000_001;
    softrnic.pair(|side, mut socket| {
        let driver = Driver::load();
        let gpu = GpuNode::new(&driver, side, MOST);
        let mut host = vec![0u8; MOST];
        let untouched = vec![0xee; MOST];
        let host_mr = ibv_reg_mr(gpu.node.pd, host.as_mut_ptr().cast(), MOST, ALL_ACCESS);
        // SAFETY: a live region.
        let host_key = unsafe { (*host_mr).lkey };
        let peer = gpu.node.connect_over(&mut socket, &TERMS);
        let mine = [gpu.at, u64::from(gpu.node.key()), host.as_ptr() as u64, u64::from(host_key)];
        let theirs: [u64; 4] = socket.swap(&mine);
        assert_eq!(theirs[1], peer.rkey);
        for (round, size) in sizes.iter().copied().enumerate() {
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
                    socket.barrier();
                    gpu.node.send(Work { opcode: WRITE_IMM, imm: 7, sges: &[from], to, ..WORK });
                    assert_eq!(gpu.node.next().status, OK);
                    socket.barrier();
                } else {
                    driver.put(gpu.at, &untouched);
                    host.copy_from_slice(&untouched);
                    gpu.node.recv(3, &[]);
                    socket.barrier();
                    let got = gpu.node.next();
                    assert_eq!((got.status, got.imm, got.byte_len), (OK, 7, size as u32));
                    let (full, empty): (&[u8], &[u8]) = if to_gpu {
                        (driver.bytes(gpu.at, MOST), &host)
                    } else {
                        (&host, driver.bytes(gpu.at, MOST))
                    };
                    assert!(full[..size] == data, "{size} bytes, {from_gpu} to {to_gpu}");
                    assert!(
                        full[size..] == untouched[size..] && empty == untouched,
                        "{size} bytes and no more"
                    );
                    socket.barrier();
                }
            }
        }
    });
}

#[test]
fn reads_and_sends_reach_gpu_memory() {
    Softrnic::new().env("SOFTRNIC_GPU", "both").alone(|| {
        let driver = Driver::load();
        let (a, b) = (GpuNode::new(&driver, 0, 8192), GpuNode::new(&driver, 1, 8192));
        a.node.connect(&b.node.address(), &TERMS);
        b.node.connect(&a.node.address(), &TERMS);
        let before = driver.copies();

        driver.put(b.at, &pattern(8192, 1));
        let to = (b.address().addr + 100, b.address().rkey);
        a.node.send(Work { opcode: READ, sges: &[a.sge(5, 3000), a.sge(4000, 1)], to, ..WORK });
        assert_eq!(a.node.next().status, OK);
        let want = pattern(8192, 1);
        assert!(
            driver.bytes(a.at + 5, 3000) == &want[100..3100]
                && driver.bytes(a.at + 4000, 1)[0] == want[3100]
        );

        b.node.recv(4, &[b.sge(0, 10), b.sge(100, 4000)]);
        driver.put(a.at, &pattern(4000, 9));
        a.node.send(Work {
            opcode: SEND_IMM,
            imm: 3,
            sges: &[a.sge(0, 1000), a.sge(1000, 3000)],
            ..WORK
        });
        assert_eq!(a.node.next().status, OK);
        let got = b.node.next();
        assert_eq!((got.wr_id, got.byte_len, got.imm), (4, 4000, 3));
        let want = pattern(4000, 9);
        assert!(
            driver.bytes(b.at, 10) == &want[..10] && driver.bytes(b.at + 100, 3990) == &want[10..]
        );
        assert!(driver.copies() > before, "it was the GPU that copied");
    });
}

/// What a transport does to have a GPU see what has arrived: it reads a byte of it over a
/// connection with itself.
#[test]
fn a_flush_over_a_queue_pair_connected_with_itself() {
    Softrnic::new().env("SOFTRNIC_GPU", "dmabuf").alone(|| {
        let driver = Driver::load();
        let mut node = Node::new(0, 64);
        let at = driver.allocate(4096);
        let (file, _other) = std::os::unix::net::UnixStream::pair().expect("any descriptor");
        let mr = dmabuf_mr(node.pd, 4096, at, std::os::fd::AsRawFd::as_raw_fd(&file));
        drop(file);
        assert!(!mr.is_null());
        node.connect(&node.address(), &TERMS);
        driver.put(at, &[77]);
        node.memory[0] = 0;
        // SAFETY: a live region.
        let key = unsafe { (*mr).rkey };
        node.send(Work { opcode: READ, sges: &[node.sge(0, 1)], to: (at, u64::from(key)), ..WORK });
        assert_eq!((node.next().status, node.memory[0]), (OK, 77));
        assert_eq!(ibv_dereg_mr(mr), 0);
        node.close();
    });
}

#[test]
fn a_gpu_that_fails_is_an_operation_error() {
    Softrnic::new().env("SOFTRNIC_GPU", "peermem").alone(|| {
        let driver = Driver::load();
        let gpu = GpuNode::new(&driver, 1, 4096);
        let host = Node::new(0, 4096);
        host.connect(&gpu.node.address(), &TERMS);
        gpu.node.connect(&host.address(), &TERMS);
        driver.fail(true);
        let to = (gpu.address().addr, gpu.address().rkey);
        host.send(Work { sges: &[host.sge(0, 4096)], to, ..WORK });
        assert_eq!((host.next().status, gpu.node.state()), (REM_OP, ERR));
    });
}

/// A word of side 0's GPU, which host memory of both sides adds to at the same time.
fn atomics_change_the_word_of(softrnic: &Softrnic) {
    const ROUNDS: u64 = 100;
    softrnic.pair(|side, mut socket| {
        let driver = Driver::load();
        let host = Node::new(side, 64);
        let gpu = GpuNode::of(driver.allocate(4096), 0, 4096);
        let peer: Address = socket.swap(&gpu.address());
        driver.put(gpu.at, &[0xee; 64]);
        driver.put(gpu.at + 16, &(u64::MAX - 6).to_ne_bytes());
        let second = GpuNode::of(gpu.at, 0, 4096);
        let to = if side == 0 { second.address() } else { peer };
        let to = (to.addr + 16, to.rkey);
        // Side 1's host talks with the GPU's node of side 0, that of side 0 with the second one.
        let theirs: Address = socket.swap(&if side == 0 { gpu.address() } else { host.address() });
        if side == 0 {
            gpu.node.connect(&theirs, &terms());
            host.connect(&second.address(), &terms());
            second.node.connect(&host.address(), &terms());
        } else {
            host.connect(&theirs, &terms());
        }
        socket.barrier();
        let mut last = 0;
        for _ in 0..ROUNDS {
            assert_eq!(post(&host, FETCH_ADD, 0, to, [3, 0]), 0);
            assert_eq!(host.next().status, OK);
            last = u64::from_ne_bytes(host.memory[..8].try_into().expect("8 bytes"));
        }
        socket.barrier();
        let sum = 6 * ROUNDS - 7;
        if side == 1 {
            for (expected, old) in [(0, sum), (sum, sum), (0, 9)] {
                assert_eq!(post(&host, CMP_SWAP, 0, to, [expected, 9]), 0);
                assert_eq!((host.next().status, &host.memory[..8]), (OK, &old.to_ne_bytes()[..]));
            }
        }
        socket.barrier();
        if side == 0 {
            assert!(last < sum, "{last}");
            let mut want = [0xee; 64];
            want[16..24].copy_from_slice(&9_u64.to_ne_bytes());
            assert_eq!(driver.bytes(gpu.at, 64), want, "and nothing beside it");
        }
        socket.barrier();
    });
}

cases! { ();
    atomics_change_gpu_memory =>
        atomics_change_the_word_of(&Softrnic::new().env("SOFTRNIC_GPU", "peermem"));
    atomics_change_gpu_memory_by_helpers => atomics_change_the_word_of(&with(require!(helper())));
}

/// Keys and bounds are checked for GPU memory as for any other.
#[test]
fn gpu_memory_has_keys_and_bounds() {
    Softrnic::new().env("SOFTRNIC_GPU", "peermem").alone(|| {
        let driver = Driver::load();
        for (offset, length, status) in
            [(0u64, 4096, OK), (1, 4096, REM_ACCESS), (4096, 1, REM_ACCESS)]
        {
            let gpu = GpuNode::new(&driver, 1, 4096);
            let host = Node::new(0, 8192);
            host.connect(&gpu.node.address(), &TERMS);
            gpu.node.connect(&host.address(), &TERMS);
            let to = (gpu.at + offset, gpu.address().rkey);
            host.send(Work { sges: &[host.sge(0, length)], to, ..WORK });
            assert_eq!(host.next().status, status, "{offset} + {length}");
        }
        let node = Node::new(0, 64);
        assert!(ibv_reg_mr(node.pd, ptr::null_mut(), 64, ALL_ACCESS).is_null());
    });
}

/// Side 0 sends 4096 bytes to the GPU of side 1, which does `and_then` once its GPU has begun to
/// copy.
fn while_a_gpu_copies(and_then: impl Fn(&Driver, &GpuNode)) {
    let env = [("SOFTRNIC_GPU", "peermem"), ("FAKE_CUDA_SLOW_US", "3000")];
    Softrnic::new().envs(&env).pair(|side, mut socket| {
        let driver = Driver::load();
        let gpu = GpuNode::new(&driver, side, 4096);
        let peer: Address = socket.swap(&gpu.address());
        gpu.node.connect(&peer, &Terms { timeout: 8, retry_cnt: 1, ..TERMS });
        let before = driver.copies();
        socket.barrier();
        if side == 0 {
            // Not before the other side polls: who polls is not woken.
            socket.barrier();
            let host = vec![1u8; 4096];
            let mr = ibv_reg_mr(gpu.node.pd, host.as_ptr() as Ptr, 4096, ALL_ACCESS);
            // SAFETY: a live region.
            let sge = Sge { addr: host.as_ptr() as u64, length: 4096, lkey: unsafe { (*mr).lkey } };
            gpu.node.send(Work { sges: &[sge], to: (peer.addr, peer.rkey), ..WORK });
            gpu.node.next();
        } else {
            assert!(gpu.node.poll().is_none());
            socket.barrier();
            while driver.copies() == before {
                assert!(gpu.node.poll().is_none());
            }
            and_then(&driver, &gpu);
        }
        socket.barrier();
    });
}

/// The application that took the job goes off to do something else.
#[test]
fn a_copy_ends_although_nobody_polls_any_more() {
    while_a_gpu_copies(|driver, gpu| {
        wait_until("the end of the copy", || driver.bytes(gpu.at, 4096) == [1; 4096]);
    });
}

#[test]
fn nothing_is_written_after_a_reset() {
    while_a_gpu_copies(|driver, gpu| {
        assert_eq!(to_state(gpu.node.qp, RESET), 0);
        driver.put(gpu.at, &[0xaa; 4096]);
        std::thread::sleep(Duration::from_millis(50));
        assert!(driver.bytes(gpu.at, 4096) == [0xaa; 4096]);
    });
}

fn with(settings: [(&'static str, String); 4]) -> Softrnic {
    settings.into_iter().fold(Softrnic::new(), |softrnic, (name, value)| softrnic.env(name, value))
}

#[test]
fn bytes_go_between_gpus_and_hosts_by_helpers() {
    bytes_go_between_gpus_and_hosts(&with(require!(helper())), &[1, 4096, 524_289]);
}

/// Both ways, to and from a GPU whose process is inside a call of the driver meanwhile.
fn while_the_driver_is_held(allocate: fn(&Driver, usize) -> u64) {
    const BYTES: usize = 700_000;
    with(require!(helper())).pair(|side, mut socket| {
        let driver = Driver::load();
        let (node, at) = if side == 0 {
            let node = Node::new(0, BYTES);
            let at = node.address().addr;
            (node, at)
        } else {
            let at = allocate(&driver, BYTES);
            (GpuNode::of(at, 1, BYTES).node, at)
        };
        let peer: Address = socket.swap(&Address { addr: at, ..node.address() });
        node.connect(&peer, &TERMS);
        driver.hold(side == 1);
        socket.barrier();
        if side == 0 {
            let mut node = node;
            node.memory.copy_from_slice(&pattern(BYTES, 1));
            let to = (peer.addr, peer.rkey);
            node.send(Work { sges: &[node.sge(0, BYTES)], to, ..WORK });
            assert_eq!(node.next().status, OK);
            node.memory.fill(0);
            node.send(Work { opcode: READ, sges: &[node.sge(0, BYTES)], to, ..WORK });
            assert_eq!(node.next().status, OK);
            assert!(node.memory[..] == pattern(BYTES, 1)[..]);
        }
        socket.barrier();
        driver.hold(false);
        if side == 1 {
            assert!(driver.bytes(at, BYTES) == pattern(BYTES, 1));
            assert_eq!(driver.copies(), 0, "this process does not copy");
        }
        socket.barrier();
    });
}

cases! { ();
    memory_of_cuda_malloc_is_copied_while_the_driver_is_held =>
        while_the_driver_is_held(Driver::allocate);
    memory_of_cu_mem_create_is_copied_while_the_driver_is_held =>
        while_the_driver_is_held(Driver::allocate_exportable);
}

/// A region over two allocations that lie side by side, as a framework maps them that lets a buffer
/// grow.
#[test]
fn a_region_may_lie_in_several_allocations() {
    const BYTES: usize = 1 << 20;
    with(require!(helper())).alone(|| {
        let driver = Driver::load();
        let split = driver.function::<extern "C" fn(usize) -> u64>("fake_allocate_two");
        let at = split(BYTES / 2);
        let (gpu, host) = (GpuNode::of(at, 1, BYTES), Node::new(0, BYTES));
        host.connect(&Address { addr: at, ..gpu.node.address() }, &TERMS);
        gpu.node.connect(&host.address(), &TERMS);
        let mut host = host;
        host.memory.copy_from_slice(&pattern(BYTES, 4));
        let to = (at, u64::from(gpu.node.key()));
        host.send(Work { sges: &[host.sge(0, BYTES)], to, ..WORK });
        assert_eq!(host.next().status, OK);
        let want = pattern(BYTES, 4);
        let half = BYTES / 2;
        assert!(
            driver.bytes(at, half) == &want[..half]
                && driver.bytes(at + half as u64, half) == &want[half..]
        );
    });
}

/// What an application has freed and got again at the same address is other memory, also where the
/// old region goes after the new one has come.
#[test]
fn an_address_that_is_registered_again_is_the_new_memory() {
    with(require!(helper())).alone(|| {
        let driver = Driver::load();
        let at = driver.allocate(4096);
        let mut old = Vec::new();
        for round in 0..3 {
            let (gpu, mut host) = (GpuNode::of(at, 1, 4096), Node::new(0, 4096));
            if round == 1 {
                old.clear();
            }
            host.connect(&Address { addr: at, ..gpu.node.address() }, &TERMS);
            gpu.node.connect(&host.address(), &TERMS);
            host.memory.copy_from_slice(&pattern(4096, round));
            let to = (at, u64::from(gpu.node.key()));
            host.send(Work { sges: &[host.sge(0, 4096)], to, ..WORK });
            assert_eq!(host.next().status, OK);
            assert!(driver.bytes(at, 4096) == pattern(4096, round), "round {round}");
            if round == 0 {
                old.push(Region(gpu.node.mr));
            } else {
                gpu.node.close();
            }
            assert_eq!(driver.function::<extern "C" fn(u64) -> c_int>("fake_replace")(at), 0);
        }
    });
}

/// Numbered by the driver or not.
#[test]
fn an_allocation_stays_as_long_as_a_region_lies_in_it() {
    with(require!(helper())).alone(|| {
        let driver = Driver::load();
        for at in [driver.allocate(8192), driver.allocate_exportable(8192)] {
            let (first, second, mut host) =
                (GpuNode::of(at, 1, 4096), GpuNode::of(at, 1, 8192), Node::new(0, 4096));
            first.node.close();
            host.connect(&second.address(), &TERMS);
            second.node.connect(&host.address(), &TERMS);
            host.memory.copy_from_slice(&pattern(4096, 7));
            let to = (at, u64::from(second.node.key()));
            host.send(Work { sges: &[host.sge(0, 4096)], to, ..WORK });
            assert_eq!(host.next().status, OK);
            assert!(driver.bytes(at, 4096) == pattern(4096, 7));
        }
    });
}

/// Deregisters it when it is dropped.
struct Region(*mut Mr);

impl Drop for Region {
    fn drop(&mut self) {
        assert_eq!(ibv_dereg_mr(self.0), 0);
    }
}

/// Whose other end would not hear of its end, if the helper had it as well.
#[test]
fn a_helper_keeps_no_descriptor_of_the_application_open() {
    with(require!(helper())).alone(|| {
        let driver = Driver::load();
        let mut ends = [0; 2];
        // SAFETY: writes two integers. What a program starts inherits them.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        let _gpu = GpuNode::new(&driver, 1, 4096);
        let _helper = helper_of_this_process();
        let mut byte = 0u8;
        // SAFETY: ends of the pipe, and one byte.
        let read = unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], (&raw mut byte).cast(), 1)
        };
        assert_eq!(read, 0, "the pipe has no writer any more");
    });
}

/// A copy fails, and so does what is registered afterwards.
#[test]
fn a_helper_that_has_ended_is_told() {
    with(require!(helper())).alone(|| {
        let driver = Driver::load();
        let (gpu, host) = (GpuNode::new(&driver, 1, 4096), Node::new(0, 4096));
        host.connect(&Address { addr: gpu.at, ..gpu.node.address() }, &TERMS);
        gpu.node.connect(&host.address(), &TERMS);
        // SAFETY: the process that this one has had started.
        assert_eq!(unsafe { libc::kill(helper_of_this_process(), libc::SIGKILL) }, 0);
        let to = (gpu.at, u64::from(gpu.node.key()));
        host.send(Work { sges: &[host.sge(0, 4096)], to, ..WORK });
        assert_eq!(host.next().status, REM_OP);
        for at in [driver.allocate(4096), gpu.at] {
            assert!(ibv_reg_mr(gpu.node.pd, at as Ptr, 4096, ALL_ACCESS).is_null());
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        }
    });
}

/// Its command line has the fabric's file, which no other process of this fabric's name has.
fn helper_of_this_process() -> c_int {
    let fabric = std::env::var("SOFTRNIC_FABRIC").expect("set by the harness");
    let is_helper = |path: &PathBuf| {
        let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        words.iter().any(|word| word == "gpu-helper")
            && words.iter().any(|word| word.ends_with(&fabric))
    };
    let mut processes =
        std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| Some(entry.ok()?.path()));
    let found = processes.find(is_helper).expect("a helper");
    found.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a process id")
}
