//! A process of its own copies GPU memory (`SOFTRNIC_GPU_HELPER`). On a CUDA driver without a GPU (`cuda/fake.c`).

use std::ffi::c_int;
use std::path::PathBuf;

use crate::common::gpu::{Driver, GpuNode, helper, pattern};
use crate::common::node::{Address, Node, Terms, Work};
use crate::common::verbs::*;
use crate::gpu::bytes_go_between_gpus_and_hosts;
use testkit::require;
use testkit::softrnic::Softrnic;

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
        node.connect(&peer, &Terms::default());
        driver.hold(side == 1);
        socket.barrier();
        if side == 0 {
            let mut node = node;
            node.memory.copy_from_slice(&pattern(BYTES, 1));
            let to = (peer.addr, peer.rkey);
            node.send(Work { sges: &[node.sge(0, BYTES)], to, ..Work::default() });
            assert_eq!(node.next().status, OK);
            node.memory.fill(0);
            node.send(Work { opcode: READ, sges: &[node.sge(0, BYTES)], to, ..Work::default() });
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

#[test]
fn memory_of_cuda_malloc_is_copied_while_the_driver_is_held() {
    while_the_driver_is_held(Driver::allocate);
}

#[test]
fn memory_of_cu_mem_create_is_copied_while_the_driver_is_held() {
    while_the_driver_is_held(Driver::allocate_exportable);
}

/// A region over two allocations that lie side by side, as a framework maps them that lets a buffer grow.
#[test]
fn a_region_may_lie_in_several_allocations() {
    const BYTES: usize = 1 << 20;
    with(require!(helper())).alone(|| {
        let driver = Driver::load();
        let split = driver.function::<extern "C" fn(usize) -> u64>("fake_allocate_two");
        let at = split(BYTES / 2);
        let (gpu, host) = (GpuNode::of(at, 1, BYTES), Node::new(0, BYTES));
        host.connect(&Address { addr: at, ..gpu.node.address() }, &Terms::default());
        gpu.node.connect(&host.address(), &Terms::default());
        let mut host = host;
        host.memory.copy_from_slice(&pattern(BYTES, 4));
        let to = (at, u64::from(gpu.node.key()));
        host.send(Work { sges: &[host.sge(0, BYTES)], to, ..Work::default() });
        assert_eq!(host.next().status, OK);
        let want = pattern(BYTES, 4);
        let half = BYTES / 2;
        assert!(driver.bytes(at, half) == &want[..half] && driver.bytes(at + half as u64, half) == &want[half..]);
    });
}

/// What an application has freed and got again at the same address is other memory, also where the old region goes after the new one has come.
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
            host.connect(&Address { addr: at, ..gpu.node.address() }, &Terms::default());
            gpu.node.connect(&host.address(), &Terms::default());
            host.memory.copy_from_slice(&pattern(4096, round));
            let to = (at, u64::from(gpu.node.key()));
            host.send(Work { sges: &[host.sge(0, 4096)], to, ..Work::default() });
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
            let (first, second, mut host) = (GpuNode::of(at, 1, 4096), GpuNode::of(at, 1, 8192), Node::new(0, 4096));
            first.node.close();
            host.connect(&second.address(), &Terms::default());
            second.node.connect(&host.address(), &Terms::default());
            host.memory.copy_from_slice(&pattern(4096, 7));
            let to = (at, u64::from(second.node.key()));
            host.send(Work { sges: &[host.sge(0, 4096)], to, ..Work::default() });
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
        host.connect(&Address { addr: gpu.at, ..gpu.node.address() }, &Terms::default());
        gpu.node.connect(&host.address(), &Terms::default());
        // SAFETY: the process that this one has had started.
        assert_eq!(unsafe { libc::kill(helper_of_this_process(), libc::SIGKILL) }, 0);
        let to = (gpu.at, u64::from(gpu.node.key()));
        host.send(Work { sges: &[host.sge(0, 4096)], to, ..Work::default() });
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
        words.iter().any(|word| word == "gpu-helper") && words.iter().any(|word| word.ends_with(&fabric))
    };
    let mut processes = std::fs::read_dir("/proc").expect("Linux").filter_map(|entry| Some(entry.ok()?.path()));
    let found = processes.find(is_helper).expect("a helper");
    found.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a process id")
}
