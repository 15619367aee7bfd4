//! Settings, shared memory, processes that are killed, and fork.

use crate::common::prelude::*;
use std::ffi::CString;
use std::mem::transmute_copy;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use testkit::process::{Ended, Process, this_program};
use testkit::side::enter;
use testkit::unique::unique_name;

/// The number of devices, or the errno.
fn device_count() -> Result<i32, i32> {
    let mut count = -1;
    let list = ibv_get_device_list(&mut count);
    if list.is_null() {
        assert_eq!(count, 0);
        return Err(std::io::Error::last_os_error().raw_os_error().expect("errno"));
    }
    ibv_free_device_list(list);
    Ok(count)
}

/// What the other process of [`probe`] does.
fn print_device_count(_side: usize, _socket: Peer) {
    println!("\ndevices: {:?}", device_count());
}

/// Runs the body that the calling test has given to [`enter`] in a process on a fabric of its own,
/// unless `env` names another one; `prepare` runs in that process before the program.
fn probe(
    env: &[(&str, &str)],
    prepare: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
) -> Ended {
    let fabric = unique_name("probe");
    let mut starter = Command::new(this_program());
    // SAFETY: only async-signal-safe calls (unshare, mount) happen between fork and exec.
    unsafe { starter.pre_exec(prepare) };
    let all = [&[("SOFTRNIC_FABRIC", fabric.as_str())], env].concat();
    Process::start_by(starter, 0, &all).0.ended()
}

#[test]
fn a_bad_setting_is_named_and_there_is_no_device() {
    enter(print_device_count);
    let long = "x".repeat(65);
    let bad = [
        ("SOFTRNIC_DEVICES", "0", "1 to 8"),
        ("SOFTRNIC_DEVICES", "9", "1 to 8"),
        ("SOFTRNIC_DEVICES", "two", "1 to 8"),
        (
            "SOFTRNIC_DRIVER",
            "mlx4",
            "must be one of bnxt_re, efa, erdma, hns, ionic, irdma, mana, mlx5, mlx5-cx4, mlx5-cx5, mlx5-cx6, mlx5-cx6dx, mlx5-cx7, mlx5-cx8, rxe",
        ),
        ("SOFTRNIC_PORTS", "3", "1 to 2"),
        ("SOFTRNIC_CARD", "0", "1 to 2"),
        ("SOFTRNIC_LINK", "opa", "roce, ib or unspecified"),
        ("SOFTRNIC_GIDS", "many", "plain, rich or vlan"),
        ("SOFTRNIC_SPEED", "300", "200, 400 or 800"),
        ("SOFTRNIC_SPEED", "400,softrnic0/3=100", "200, 400 or 800"),
        ("SOFTRNIC_SPEED", "400,softrnic1/2=100", "no softrnic1/2"),
        ("SOFTRNIC_MTU", "1500", "1024, 2048 or 4096"),
        ("SOFTRNIC_MTU", "softrnic0/1=1024,", "1024, 2048 or 4096"),
        ("SOFTRNIC_FABRIC", "a/b", "A-Z"),
        ("SOFTRNIC_FABRIC", "..", "A-Z"),
        ("SOFTRNIC_FABRIC", long.as_str(), "64"),
        ("SOFTRNIC_SHM_DIR", "relative", "absolute"),
        ("SOFTRNIC_TIME_SCALE", "-1", "number from"),
        ("SOFTRNIC_TIME_SCALE", "NaN", "number from"),
        ("SOFTRNIC_MAX_QP", "0", "1 to 4096"),
        ("SOFTRNIC_MAX_QP_WR", "100000", "1 to 16384"),
        ("SOFTRNIC_MAX_INLINE", "1025", "0 to 1024"),
        ("SOFTRNIC_INLINE_EXCESS", "shrug", "refuse, silent or grant"),
        ("SOFTRNIC_STRICT", "yes", "0 or 1"),
        ("SOFTRNIC_QUIET", "2", "0 or 1"),
        ("SOFTRNIC_RNR_PLACES", "yes", "0 or 1"),
        ("SOFTRNIC_STALE_COMPLETIONS", "2", "0 or 1"),
        ("SOFTRNIC_RESOLVE_MS", "20000", "0 to 10000"),
        ("SOFTRNIC_OWN_PORT_DOWN", "lost", "retried or fails"),
        ("SOFTRNIC_FLUSH_ONLY", "-1", "0 or 1"),
        ("SOFTRNIC_GRANT_MORE", "all", "0 or 1"),
    ];
    for (name, value, allowed) in bad {
        let Ended { output, .. } = probe(&[(name, value)], || Ok(()));
        assert!(output.contains("devices: Err(22)"), "{name}={value}: {output}");
        let is_told = |line: &str| [name, value, allowed].iter().all(|word| line.contains(word));
        assert!(output.lines().any(is_told), "{name}={value}: {output}");
    }
}

#[test]
fn the_banner_is_one_line_and_can_be_silenced() {
    enter(print_device_count);
    let Ended { output, .. } = probe(&[("SOFTRNIC_DEVICES", "3")], || Ok(()));
    assert!(output.contains("devices: Ok(3)"), "{output}");
    assert_eq!(output.lines().filter(|l| l.contains("not for production")).count(), 1, "{output}");
    let Ended { output, .. } = probe(&[("SOFTRNIC_QUIET", "1")], || Ok(()));
    assert!(output.contains("devices: Ok(2)"), "{output}");
    assert!(!output.contains("softrnic:"), "{output}");
}

#[test]
fn a_directory_that_is_not_there() {
    enter(print_device_count);
    let Ended { output, .. } = probe(&[("SOFTRNIC_SHM_DIR", "/no/such/dir")], || Ok(()));
    assert!(output.contains("devices: Err(2)"), "{output}");
    assert!(output.contains("/no/such/dir/") && output.contains("No such file"), "{output}");
    assert!(output.contains("SOFTRNIC_SHM_DIR"), "what to do: {output}");
}

/// What [`probe`] gives where the folder for shared memory is a tmpfs with these options and flags,
/// and the path of the folder.
fn probe_in_tmpfs(options: &str, flags: u64) -> (Ended, String) {
    let folder = Scratch::new();
    let path = folder.to_str().expect("UTF-8");
    let ended = probe(&[("SOFTRNIC_SHM_DIR", path)], mount(&folder, options, flags));
    assert_eq!(
        std::fs::read_dir(&folder).expect("the folder").count(),
        0,
        "it was used outside of the mount"
    );
    (ended, path.to_owned())
}

/// In the child: a tmpfs of `options` on `path`, in a mount namespace of its own.
fn mount(
    path: &Path,
    options: &str,
    flags: u64,
) -> impl FnMut() -> std::io::Result<()> + Send + Sync + 'static {
    let path = CString::new(path.to_str().expect("UTF-8")).expect("path");
    let options = CString::new(options).expect("options");
    move || {
        // SAFETY: plain system calls with valid strings.
        let rc = unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let root = c"/".as_ptr();
            libc::mount(
                ptr::null(),
                root,
                ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                ptr::null(),
            );
            let tmpfs = c"tmpfs".as_ptr();
            libc::mount(tmpfs, path.as_ptr(), tmpfs, flags, options.as_ptr().cast())
        };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

fn is_root() -> Result<(), Missing> {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        Ok(())
    } else {
        Err(Missing::new("root, to mount a folder"))
    }
}

#[test]
fn no_room_for_the_file() {
    enter(print_device_count);
    require!(is_root());
    let (Ended { output, .. }, folder) = probe_in_tmpfs("size=4k", 0);
    assert!(output.contains("devices: Err(28)"), "{output}");
    assert!(output.contains(&folder) && output.contains("No space left"), "{output}");
    assert!(output.contains("free some space"), "{output}");
}

#[test]
fn a_directory_that_is_read_only() {
    enter(print_device_count);
    require!(is_root());
    let (Ended { output, .. }, _) = probe_in_tmpfs("size=1m", libc::MS_RDONLY);
    assert!(output.contains("devices: Err(30)"), "{output}");
    assert!(output.contains("Read-only"), "{output}");
}

#[test]
fn memory_that_runs_out_later_is_enomem() {
    enter(|_, _| {
        // 512 KiB: the tables fit, some rings of 36 KiB too.
        let node = Node::new(0, 64);
        let cap = Cap { max_recv_wr: 512, ..CAP };
        let made =
            (0..64).take_while(|_| !create_qp(node.pd, node.cq, node.cq, cap).is_null()).count();
        let errno = std::io::Error::last_os_error().raw_os_error();
        println!("\nmade {made} then {errno:?}");
    });
    require!(is_root());
    let (ended, _) = probe_in_tmpfs("size=512k", 0);
    assert!(ended.is_body_done() && ended.output.contains("then Some(12)"), "{ended}");
    assert!(!ended.output.contains("made 0 ") && !ended.output.contains("made 64 "), "{ended}");
    assert!(ended.output.contains("no room for more shared memory"), "{ended}");
}

#[test]
fn a_stale_file_is_replaced_and_a_foreign_one_in_use_is_not() {
    enter(print_device_count);
    let softrnic = Softrnic::new();
    let fabric = softrnic.fabric();
    let path = format!("/dev/shm/{fabric}");
    std::fs::write(&path, b"left behind by another program").expect("write");
    let Ended { output, .. } = probe(&[("SOFTRNIC_FABRIC", fabric)], || Ok(()));
    assert!(output.contains("devices: Ok(2)"), "{output}");
    softrnic.assert_clean();

    std::fs::write(&path, vec![7u8; 4096]).expect("write");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    // SAFETY: all zeros is a valid flock; one like those of the users of a fabric.
    let rc = unsafe {
        let mut range: libc::flock = std::mem::zeroed();
        (range.l_type, range.l_start, range.l_len) = (libc::F_WRLCK as i16, (1 << 40) + 5, 1);
        libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLK, &range)
    };
    assert_eq!(rc, 0);
    let Ended { output, .. } = probe(&[("SOFTRNIC_FABRIC", fabric)], || Ok(()));
    assert!(output.contains("devices: Err(71)"), "{output}");
    assert!(output.contains("another version"), "{output}");
    assert!(output.contains("SOFTRNIC_FABRIC"), "what to do: {output}");
    assert_eq!(std::fs::read(&path).expect("untouched").len(), 4096);
    std::fs::remove_file(&path).expect("remove");
}

#[test]
fn the_file_is_private() {
    Softrnic::new().alone(|| {
        assert_eq!(device_count(), Ok(2));
        let name = std::env::var("SOFTRNIC_FABRIC").expect("set");
        let meta = std::fs::metadata(format!("/dev/shm/{name}")).expect("file");
        use std::os::unix::fs::MetadataExt;
        assert_eq!(meta.mode() & 0o777, 0o600);
        open(0);
        assert!(meta.blocks() * 512 <= 4 << 20, "{} KiB", meta.blocks() / 2);
    });
}

/// Fork: the child cannot harm its parent, and can have devices of its own.
#[test]
fn fork_leaves_the_parent_alone() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        node.connect(&node.address(), &TERMS);
        // SAFETY: the child only uses the library and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut bad = ptr::null_mut();
            let mut wr =
                RecvWr { wr_id: 1, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
            let dead = post_recv(node.qp, &raw mut wr, &mut bad) == libc::ENODEV
                && poll_cq(node.cq, 1, &mut Wc::default()) < 0
                && ibv_alloc_pd(node.context).is_null()
                && ibv_destroy_qp(node.qp) == 0
                && ibv_dereg_mr(node.mr) == 0;
            let fresh = device_count() == Ok(2) && !ibv_alloc_pd(open(0)).is_null();
            // SAFETY: ends the child without its inherited handlers.
            unsafe { libc::_exit(if dead && fresh { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: waits for our child.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(status, 0, "in the child");
        // The parent's QP, region and place in the fabric are as before.
        node.recv(2, &[]);
        node.send(Work { opcode: SEND, sges: &[node.sge(0, 0)], ..WORK });
        assert!((0..2).all(|_| node.next().status == OK));
        node.close();
    });
}

/// Whether no process takes part in the fabric `path`: nobody holds a lock there.
fn is_free(path: &str) -> bool {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("the fabric");
    // SAFETY: all zeros is a valid flock, which outlives the call on an open file.
    unsafe {
        let mut range: libc::flock = std::mem::zeroed();
        (range.l_type, range.l_start) = (libc::F_WRLCK as i16, 1 << 40);
        libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_OFD_SETLK, &raw const range)
            == 0
    }
}

/// A worker that a process has forked, as data loaders are, outlives it: it does not pass for the
/// process.
#[test]
fn a_process_that_dies_before_its_forked_worker_has_left_the_fabric() {
    enter(|_, mut socket| {
        open(0);
        // SAFETY: the child sends its number and waits; its alarm ends it at the latest.
        if unsafe { libc::fork() } == 0 {
            socket.send(&std::process::id());
            // SAFETY: a plain number; no arguments.
            unsafe {
                libc::alarm(60);
                libc::pause();
            }
        }
        std::thread::park();
    });
    let softrnic = Softrnic::new();
    let (mut process, mut socket) = softrnic.start(0, &[]);
    let worker: u32 = socket.recv();
    let path = format!("/dev/shm/{}", softrnic.fabric());
    assert!(!is_free(&path));
    process.signal(libc::SIGKILL);
    assert!(process.ended().is_killed_by(libc::SIGKILL));
    assert!(is_free(&path));
    // SAFETY: plain numbers; it has been forked above, and waits.
    unsafe { libc::kill(worker as i32, libc::SIGKILL) };
    std::fs::remove_file(&path).expect("remove");
}

const QUICK: Terms = Terms { timeout: 8, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };

/// What a request from `a` to `b` comes to.
fn send(a: &Node, b: &Node) -> u32 {
    b.recv(1, &[]);
    a.send(Work { opcode: SEND, ..WORK });
    a.next().status
}

#[test]
fn attributes_say_what_was_asked_for() {
    let env = [
        ("SOFTRNIC_DEVICES", "3"),
        ("SOFTRNIC_PORTS", "2"),
        ("SOFTRNIC_CARD", "2"),
        ("SOFTRNIC_SPEED", "400,softrnic0/2=100,softrnic1/1=800,softrnic1/2=56,2/1=25"),
        ("SOFTRNIC_MTU", "softrnic1/1=1024"),
        ("SOFTRNIC_LINK", "roce,softrnic2/2=ib"),
    ];
    Softrnic::new().envs(&env).alone(|| {
        // SAFETY: the function's type in the verbs interface.
        let speed: unsafe extern "C" fn(Ptr, u32, *mut u64) -> i32 =
            unsafe { transmute_copy(&symbol("ibv_query_port_speed", "IBVERBS_1.16")) };
        // Device, port; width, speed code, extended code; 100 Mb/s; MTU code; link layer.
        let expected = [
            (0, 1, 2, 128, 128, 4000, 5, 2),
            (0, 2, 2, 32, 32, 1000, 5, 2),
            (1, 1, 2, 128, 256, 8000, 3, 2),
            (1, 2, 2, 16, 16, 560, 5, 2),
            (2, 1, 1, 32, 32, 250, 5, 2),
            (2, 2, 2, 128, 128, 4000, 5, 1),
        ];
        for (device, port, width, code, code_ex, hundreds, mtu, layer) in expected {
            let context = open(device);
            let attr = port_attr(context, port).expect("port");
            assert_eq!(
                (attr.active_width, attr.active_speed, attr.active_speed_ex),
                (width, code, code_ex)
            );
            assert_eq!(
                (attr.active_mtu, attr.link_layer, attr.state, attr.phys_state),
                (mtu, layer, 4, 5)
            );
            assert_eq!(
                (attr.lid != 0, attr.sm_lid != 0, attr.flags),
                (layer == 1, layer == 1, u8::from(layer == 2))
            );
            let mut value = 0;
            // SAFETY: an open context.
            assert_eq!(unsafe { speed(context, u32::from(port), &mut value) }, 0);
            assert_eq!(value, hundreds);
            assert_eq!(port_attr(context, 0), Err(libc::EINVAL));
            assert_eq!(port_attr(context, 3), Err(libc::EINVAL));
            let mut gid = [0; 16];
            assert_eq!(ibv_query_gid(context, 3, 0, &mut gid), -1);
        }
        assert_eq!(cards(3), [0, 0, 2], "devices 0 and 1 are one card");
    });
}

/// For each device the first one with the same system image GUID; checks GUID and port count on the
/// way.
fn cards(devices: usize) -> Vec<usize> {
    let mut seen: Vec<[u8; 8]> = Vec::new();
    let image = |device: usize| {
        let mut attr = [0u8; 232];
        assert_eq!(ibv_query_device(open(device), attr.as_mut_ptr().cast()), 0);
        assert_eq!(attr[227], 2, "ports");
        seen.push(attr[64..72].try_into().expect("8 bytes"));
        <[u8; 8]>::try_from(&attr[72..80]).expect("8 bytes")
    };
    let images: Vec<_> = (0..devices).map(image).collect();
    seen.dedup();
    assert_eq!(seen.len(), devices, "every device has its own GUID");
    images
        .iter()
        .map(|image| images.iter().position(|other| other == image).expect("itself"))
        .collect()
}

#[test]
fn both_ports_carry_data() {
    Softrnic::new().ports(2).alone(|| {
        for (from, to) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            connect_ports((&a, from), (&b, to), 1, &QUICK);
            assert_eq!(send(&a, &b), OK, "{from} -> {to}");
            assert_eq!(b.next().status, OK);
            a.close();
            b.close();
        }
        let a = Node::new(0, 64);
        let init = QpAttr { state: INIT, port: 3, access: 7, ..ATTR };
        assert_eq!(modify(a.qp, &init, INIT_MASK), libc::EINVAL, "no port 3");
        assert_eq!(modify(a.qp, &QpAttr { port: 2, ..init }, INIT_MASK), 0);
        assert_eq!(
            a.to_rtr(&a.address(), &QUICK),
            libc::EINVAL,
            "an address vector of another port"
        );
    });
}

#[test]
fn a_queue_pair_is_found_at_its_own_port_only() {
    Softrnic::new().ports(2).alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        // B sits at port 2, and A looks for it at port 1.
        a.connect_by(&rtr(&b.address(), &QUICK), &QUICK).expect("connect");
        let vector = QpAttr { ah_port: 2, ..rtr(&a.address(), &QUICK) };
        b.connect_by(&vector, &QUICK).expect("connect");
        assert_eq!(send(&a, &b), RETRY_EXC);
        // B's packets come from a port that A is not connected to.
        assert_eq!(send(&b, &a), RETRY_EXC);
    });
}

#[test]
fn infiniband_goes_by_lid() {
    Softrnic::new().link("ib").ports(2).pair(|side, mut socket| {
        let node = Node::new(side, 64);
        let attr = port_attr(node.context, 2).expect("port");
        let (lid, peer) = (attr.lid, socket.swap(&node.address()));
        let peer_lid: u16 = socket.swap(&lid);
        assert!(lid != 0 && peer_lid != 0 && lid != peer_lid);
        assert_eq!(node.gid_of(2, 0)[0], u64::from_ne_bytes([0xfe, 0x80, 0, 0, 0, 0, 0, 0]));
        assert_eq!(node.gid_of(2, 1), [0, 0], "one GID");
        let gid: [u64; 2] = socket.swap(&node.gid_of(2, 0));
        let local = QpAttr { is_global: 0, dlid: peer_lid, ah_port: 2, ..rtr(&peer, &QUICK) };
        let global = QpAttr { is_global: 1, sgid_index: 0, dgid: gid, ..local };
        let no_source = QpAttr { sgid_index: 1, ..global };
        let astray = QpAttr { dlid: 999, ..local };
        let wrong_gid = QpAttr { dgid: [gid[0], 1], ..global };
        for (vector, status) in
            [(local, OK), (global, OK), (astray, RETRY_EXC), (wrong_gid, RETRY_EXC)]
        {
            assert_eq!(node.connect_by(&vector, &QUICK), Ok(()));
            socket.barrier();
            node.recv(5, &[]);
            socket.barrier();
            node.send(Work { opcode: SEND, ..WORK });
            let first = node.next();
            let sent = if first.wr_id == 5 && status == OK { node.next() } else { first };
            assert_eq!(sent.status, status, "{vector:?}");
            socket.barrier();
            assert_eq!(modify(node.qp, &ATTR, 1), 0, "reset");
            socket.barrier();
        }
        assert_eq!(node.connect_by(&no_source, &QUICK), Err(libc::ENODATA), "an empty GID entry");
    });
}

#[test]
fn rich_tables_have_both_kinds_of_every_address() {
    Softrnic::new().gids("rich").alone(|| {
        type All = unsafe extern "C" fn(Ptr, Ptr, usize, u32, usize) -> isize;
        // SAFETY: the function's type in the verbs interface.
        let all: All = unsafe { transmute_copy(&symbol("_ibv_query_gid_table", "IBVERBS_1.11")) };
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let mut table = [[0u8; 32]; 16];
        // SAFETY: sixteen entries of 32 bytes.
        assert_eq!(unsafe { all(a.context, table.as_mut_ptr().cast(), 16, 0, 32) }, 6);
        for (index, entry) in table[..6].iter().enumerate() {
            assert_eq!(
                (entry[16], entry[24]),
                (index as u8, 1 + index as u8 % 2),
                "index and type"
            );
            assert_eq!(entry[..16], table[index & !1][..16], "pairs of one address");
        }
        let starts = [[0xfe, 0x80, 0], [0, 0, 0], [0xfd, 0x52, 0x4e]];
        assert!(starts.iter().enumerate().all(|(i, start)| table[2 * i][..3] == *start));
        for index in 0..6 {
            let (a, b) = (Node::new(0, 64), Node::new(1, 64));
            connect_ports((&a, 1), (&b, 1), index, &QUICK);
            assert_eq!(send(&a, &b), OK, "entry {index}");
        }
        // Source and target of different families, and targets that nobody has.
        let vector = |dgid, sgid_index| QpAttr { dgid, sgid_index, ..rtr(&b.address(), &QUICK) };
        let (local, mapped, global) = (b.gid_of(1, 1), b.gid_of(1, 3), b.gid_of(1, 5));
        let nobody =
            |gid: [u64; 2]| [gid[0], gid[1] ^ u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 0x40])];
        assert_eq!(a.connect_by(&vector(global, 3), &QUICK), Err(libc::EINVAL), "IPv4 to IPv6");
        assert_eq!(modify(a.qp, &vector(mapped, 1), RTR_MASK), libc::EINVAL, "link-local to IPv4");
        assert_eq!(modify(a.qp, &vector(mapped, 5), RTR_MASK), libc::EINVAL, "IPv6 to IPv4");
        for (gid, index) in [(local, 1), (mapped, 3), (global, 5)] {
            assert_eq!(
                modify(a.qp, &vector(nobody(gid), index), RTR_MASK),
                libc::ETIMEDOUT,
                "{gid:x?}"
            );
        }
        assert_eq!(modify(a.qp, &vector(global, 1), RTR_MASK), 0, "IPv6 to IPv6");
    });
}

/// Ports 1 and 2 are in `10.82.1.…` and `10.82.2.…`. What the step to RTR from one to the other
/// gives where so many bits make a network.
fn to_the_other_port(bits: &str, expected: i32) {
    Softrnic::new().ports(2).env("SOFTRNIC_NETWORK_BITS", bits).alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        assert_eq!(a.to_init(7), 0);
        let to =
            |port| QpAttr { dgid: b.gid_of(port, 1), sgid_index: 1, ..rtr(&b.address(), &QUICK) };
        assert_eq!(modify(a.qp, &to(2), RTR_MASK), expected);
        if expected != 0 {
            assert_eq!(modify(a.qp, &to(1), RTR_MASK), 0, "the own network");
        }
    });
}

cases! { ();
    an_address_of_another_network_cannot_be_resolved_where_no_router_joins_the_two =>
        to_the_other_port("24", libc::ETIMEDOUT);
    an_address_of_the_same_network_is_resolved => to_the_other_port("16", 0);
}

#[test]
fn large_messages_vanish_where_the_mtu_is_too_small() {
    let env = [("SOFTRNIC_MTU", "4096,softrnic1/1=1024")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = (Node::new(0, 4096), Node::new(1, 4096));
        connect_ports((&a, 1), (&b, 1), 1, &QUICK);
        let to = b.at(0);
        a.send(Work { sges: &[a.sge(0, 1024)], to, ..WORK });
        assert_eq!(a.next().status, OK);
        a.send(Work { sges: &[a.sge(0, 1025)], to, ..WORK });
        assert_eq!(a.next().status, RETRY_EXC);
    });
}

#[test]
fn a_port_may_have_no_link_layer() {
    Softrnic::new().link("roce,softrnic1/1=unspecified").alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let layers = [&a, &b].map(|node| port_attr(node.context, 1).expect("port").link_layer);
        assert_eq!(layers, [2, 0]);
        connect_ports((&a, 1), (&b, 1), 1, &QUICK);
        assert_eq!(send(&a, &b), OK);
    });
}

#[test]
fn the_first_process_decides_the_shape() {
    enter(|_, mut socket| {
        let mut count = 0;
        let list = ibv_get_device_list(&mut count);
        let ports = if list.is_null() { 0 } else { u8::from(port_attr(open(0), 2).is_ok()) + 1 };
        socket.send(&(if list.is_null() { -1 } else { count }, ports));
        let _: u8 = socket.recv();
    });
    let softrnic = Softrnic::new();
    let start = |env: &[(&str, &str)]| {
        let (process, mut socket) = softrnic.start(0, env);
        let found: (i32, u8) = socket.recv();
        (process, socket, found)
    };
    let (first, mut to_first, found) = start(&[("SOFTRNIC_DEVICES", "3"), ("SOFTRNIC_PORTS", "2")]);
    assert_eq!(found, (3, 2));
    for (env, expected) in [
        (&[][..], (3, 2)),
        (&[("SOFTRNIC_DEVICES", "3"), ("SOFTRNIC_SPEED", "400")][..], (3, 2)),
        (&[("SOFTRNIC_DEVICES", "2")][..], (-1, 0)),
        (&[("SOFTRNIC_SPEED", "400,softrnic2/2=100")][..], (-1, 0)),
        (&[("SOFTRNIC_GIDS", "rich")][..], (-1, 0)),
    ] {
        let (process, mut socket, found) = start(env);
        assert_eq!(found, expected, "{env:?}");
        socket.send(&1u8);
        let ended = process.ended();
        if expected.0 < 0 {
            let (name, value) = env[0];
            let says = |what: &str| ended.output.contains(what);
            assert!(
                says(name) && says(value) && says("unset it") && says("SOFTRNIC_FABRIC"),
                "{ended}"
            );
        }
    }
    to_first.send(&1u8);
    first.finish();
    softrnic.assert_clean();
    // No process is left in the fabric, so the next one decides anew.
    let (next, mut socket, found) = start(&[("SOFTRNIC_DEVICES", "2")]);
    assert_eq!(found, (2, 1));
    socket.send(&1u8);
    next.finish();
}
