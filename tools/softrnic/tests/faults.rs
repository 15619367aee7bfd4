//! Settings, shared memory, death and fork.

mod common;

use std::ffi::CString;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::node::{Address, Node, Terms, Work, open, to_state};
use common::process::{alone, assert_clean, fabric_name, finish, is_side, line, start};
use common::verbs::*;

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

/// A fabric for one probe: tests that run side by side in this process have devices of different kinds.
fn probe_fabric() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    fabric_name(&format!("probe-{}", NEXT.fetch_add(1, SeqCst)))
}

/// Runs this test program again as a probe that prints the device count; `prepare` runs in it before the start.
fn probe(env: &[(&str, &str)], prepare: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["probe_for_others", "--exact", "--nocapture"]).env("SOFTRNIC_TEST_PROBE", "1");
    command.env("SOFTRNIC_FABRIC", probe_fabric()).envs(env.iter().copied()).stdin(Stdio::null());
    // SAFETY: only async-signal-safe calls (unshare, mount) happen between fork and exec.
    unsafe { command.pre_exec(prepare) };
    command.output().expect("run")
}

#[test]
fn probe_for_others() {
    if std::env::var_os("SOFTRNIC_TEST_PROBE").is_some() {
        println!("\ndevices: {:?}", device_count());
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_bad_setting_is_named_and_there_is_no_device() {
    let long = "x".repeat(65);
    let bad = [
        ("SOFTRNIC_DEVICES", "0", "1 to 8"),
        ("SOFTRNIC_DEVICES", "9", "1 to 8"),
        ("SOFTRNIC_DEVICES", "two", "1 to 8"),
        ("SOFTRNIC_PORTS", "3", "1 to 2"),
        ("SOFTRNIC_CARD", "0", "1 to 2"),
        ("SOFTRNIC_LINK", "opa", "roce, ib or unspecified"),
        ("SOFTRNIC_GIDS", "many", "plain or rich"),
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
    ];
    for (name, value, allowed) in bad {
        let output = probe(&[(name, value)], || Ok(()));
        let told = stderr(&output);
        assert!(stdout(&output).contains("devices: Err(22)"), "{name}={value}: {}", stdout(&output));
        assert!(told.contains(name) && told.contains(value) && told.contains(allowed), "{name}={value}: {told:?}");
    }
}

#[test]
fn the_banner_is_one_line_and_can_be_silenced() {
    let output = probe(&[("SOFTRNIC_DEVICES", "3")], || Ok(()));
    assert!(stdout(&output).contains("devices: Ok(3)"), "{}", stdout(&output));
    assert_eq!(stderr(&output).lines().filter(|l| l.contains("not for production")).count(), 1);
    let output = probe(&[("SOFTRNIC_QUIET", "1")], || Ok(()));
    assert!(stdout(&output).contains("devices: Ok(2)"));
    assert!(!stderr(&output).contains("softrnic:"));
}

#[test]
fn a_directory_that_is_not_there() {
    let output = probe(&[("SOFTRNIC_SHM_DIR", "/no/such/dir")], || Ok(()));
    assert!(stdout(&output).contains("devices: Err(2)"), "{}", stdout(&output));
    let told = stderr(&output);
    assert!(told.contains("/no/such/dir/") && told.contains("No such file"), "{told}");
    assert!(told.contains("SOFTRNIC_SHM_DIR"), "what to do: {told}");
}

/// A directory for a mount in a private namespace, or `None` (told) where that is not allowed.
fn mount_point(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("softrnic-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("directory");
    path
}

/// In the child: a tmpfs of `options` on `path`, in a mount namespace of its own.
fn mount(path: &Path, options: &str, flags: u64) -> impl FnMut() -> std::io::Result<()> + Send + Sync + 'static {
    let path = CString::new(path.to_str().expect("UTF-8")).expect("path");
    let options = CString::new(options).expect("options");
    move || {
        // SAFETY: plain system calls with valid strings.
        let rc = unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let root = c"/".as_ptr();
            libc::mount(std::ptr::null(), root, std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
            let tmpfs = c"tmpfs".as_ptr();
            libc::mount(tmpfs, path.as_ptr(), tmpfs, flags, options.as_ptr().cast())
        };
        if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }
}

fn may_mount() -> bool {
    // SAFETY: no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    if !is_root {
        let _ = writeln!(std::io::stderr(), "skipped: root, to mount a folder");
    }
    is_root
}

#[test]
fn no_room_for_the_file() {
    if !may_mount() {
        return;
    }
    let dir = mount_point("full");
    let shm = dir.to_str().expect("UTF-8");
    let output = probe(&[("SOFTRNIC_SHM_DIR", shm)], mount(&dir, "size=4k", 0));
    assert!(stdout(&output).contains("devices: Err(28)"), "{} {}", stdout(&output), stderr(&output));
    let told = stderr(&output);
    assert!(told.contains(shm) && told.contains("No space left") && told.contains("free some space"), "{told}");
    std::fs::remove_dir(&dir).expect("nothing in it");
}

#[test]
fn a_directory_that_is_read_only() {
    if !may_mount() {
        return;
    }
    let dir = mount_point("read-only");
    let shm = dir.to_str().expect("UTF-8");
    let output = probe(&[("SOFTRNIC_SHM_DIR", shm)], mount(&dir, "size=1m", libc::MS_RDONLY));
    assert!(stdout(&output).contains("devices: Err(30)"), "{} {}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("Read-only"), "{}", stderr(&output));
    std::fs::remove_dir(&dir).expect("nothing in it");
}

#[test]
fn memory_that_runs_out_later_is_enomem() {
    const NAME: &str = "memory_that_runs_out_later_is_enomem";
    if std::env::var_os("SOFTRNIC_TEST_PROBE").is_some() {
        // 512 KiB: the tables fit, some rings of 36 KiB too.
        let node = Node::new(0, 64);
        let cap = Cap { max_recv_wr: 512, ..common::node::CAP };
        let made = (0..64).take_while(|_| !common::node::create_qp(node.pd, node.cq, node.cq, cap).is_null()).count();
        let errno = std::io::Error::last_os_error().raw_os_error();
        println!("\nmade {made} then {errno:?}");
        return;
    }
    if !may_mount() {
        return;
    }
    let dir = mount_point("small");
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args([NAME, "--exact", "--nocapture"]).env("SOFTRNIC_TEST_PROBE", "1").env("SOFTRNIC_SHM_DIR", &dir);
    // SAFETY: only async-signal-safe calls happen between fork and exec.
    unsafe { command.pre_exec(mount(&dir, "size=512k", 0)) };
    let output = command.output().expect("run");
    let said = stdout(&output);
    assert!(output.status.success() && said.contains("then Some(12)"), "{said} {}", stderr(&output));
    assert!(!said.contains("made 0 ") && !said.contains("made 64 "), "{said}");
    assert!(stderr(&output).contains("no room for more shared memory"), "{}", stderr(&output));
    std::fs::remove_dir(&dir).expect("nothing in it");
}

#[test]
fn a_stale_file_is_replaced_and_a_foreign_one_in_use_is_not() {
    let fabric = fabric_name("stale");
    let path = format!("/dev/shm/{fabric}");
    std::fs::write(&path, b"left behind by somebody").expect("write");
    let output = probe(&[("SOFTRNIC_FABRIC", &fabric)], || Ok(()));
    assert!(stdout(&output).contains("devices: Ok(2)"), "{}", stderr(&output));
    assert_clean(&fabric);

    std::fs::write(&path, vec![7u8; 4096]).expect("write");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
    // SAFETY: all zeros is a valid flock; one like those of the users of a fabric.
    let rc = unsafe {
        let mut range: libc::flock = std::mem::zeroed();
        (range.l_type, range.l_start, range.l_len) = (libc::F_WRLCK as i16, (1 << 40) + 5, 1);
        libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLK, &range)
    };
    assert_eq!(rc, 0);
    let output = probe(&[("SOFTRNIC_FABRIC", &fabric)], || Ok(()));
    assert!(stdout(&output).contains("devices: Err(71)"), "{}", stdout(&output));
    assert!(stderr(&output).contains("another version"), "{}", stderr(&output));
    assert!(stderr(&output).contains("SOFTRNIC_FABRIC"), "what to do: {}", stderr(&output));
    assert_eq!(std::fs::read(&path).expect("untouched").len(), 4096);
    std::fs::remove_file(&path).expect("remove");
}

#[test]
fn the_file_is_private() {
    alone("the_file_is_private", &[], || {
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
    alone("fork_leaves_the_parent_alone", &[], || {
        let node = Node::new(0, 64);
        node.connect(&node.address(), &Terms::default());
        // SAFETY: the child only uses the library and _exit.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let mut bad = std::ptr::null_mut();
            let mut wr = RecvWr { wr_id: 1, next: std::ptr::null_mut(), sg_list: std::ptr::null_mut(), num_sge: 0 };
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
        node.send(Work { opcode: SEND, sges: &[node.sge(0, 0)], ..Work::default() });
        assert!((0..2).all(|_| node.next().status == OK));
        node.close();
    });
}

/// Fifty rounds: a process is killed in the middle of whatever it does. The survivor is told by its own retries after
/// the modelled time, can be connected again, and the fabric is clean in the end.
#[test]
fn killed_peers_are_survived() {
    const NAME: &str = "killed_peers_are_survived";
    const ROUNDS: u64 = 50;
    // 4.096 us x 2^10 x 4 = 16.7 ms.
    let terms = Terms { timeout: 10, retry_cnt: 3, ..Terms::default() };
    let body = |side, mut line: common::process::Line| {
        if side == 1 {
            // The victim: connects and streams until it dies.
            let node = Node::new(1, 1 << 20);
            node.join(&mut line, &terms);
            let peer = line_peer(&node, &mut line);
            let failed = stream(&node, &peer, Duration::from_secs(60), || line.send(&1u8));
            panic!("not killed, but {failed:?}");
        }
        // One QP for all rounds, so that whatever a dead peer left in it gets in the way.
        let node = Node::new(0, 1 << 20);
        for _ in 0..ROUNDS {
            node.join(&mut line, &terms);
            let peer = line_peer(&node, &mut line);
            let failed_after = stream(&node, &peer, Duration::from_secs(60), || {}).expect("a failure");
            line.send(&failed_after);
            assert_eq!(to_state(node.qp, RESET), 0);
            assert!(node.poll().is_none());
        }
        node.close();
    };
    if is_side(NAME, body) {
        return;
    }
    let fabric = fabric_name("kill");
    let env = [("SOFTRNIC_FABRIC", fabric.as_str())];
    let (mine, theirs) = UnixStream::pair().expect("socket pair");
    let survivor = start(NAME, 0, theirs, &env);
    let mut to_survivor = line(mine);
    let mut seed = 12345u64;
    for round in 0..ROUNDS {
        let (mine, theirs) = UnixStream::pair().expect("socket pair");
        let mut victim = start(NAME, 1, theirs, &env);
        let mut to_victim = line(mine);
        // Introduce the two to each other: addresses, "ready", addresses again.
        let (a, b): (Address, Address) = (to_survivor.recv(), to_victim.recv());
        to_survivor.send(&b);
        to_victim.send(&a);
        let (_, _): (u8, u8) = (to_survivor.recv(), to_victim.recv());
        to_survivor.send(&77u8);
        to_victim.send(&77u8);
        let (a, b): (Address, Address) = (to_survivor.recv(), to_victim.recv());
        to_survivor.send(&b);
        to_victim.send(&a);
        // The victim gets through, whatever its forerunners left behind.
        assert_eq!(to_victim.recv::<u8>(), 1, "round {round}");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((seed >> 33) % 8000));
        victim.kill().expect("kill");
        victim.wait().expect("wait");
        let killed = Instant::now();
        let failed_after_us: u64 = to_survivor.recv();
        let total = killed.elapsed();
        assert!(failed_after_us >= 16_000, "round {round}: told after {failed_after_us} us, not after its retries");
        assert!(total < Duration::from_secs(60), "round {round}: {total:?}");
    }
    finish(survivor);
    assert_clean(&fabric);
}

fn line_peer(node: &Node, line: &mut common::process::Line) -> Address {
    line.swap(&node.address())
}

/// Writes and sends of mixed sizes, with receives posted for the other side's, until something fails. Returns how
/// long the failed request took, in microseconds. `started` is called after the first success.
fn stream(node: &Node, peer: &Address, limit: Duration, started: impl FnOnce()) -> Option<u64> {
    let mut started = Some(started);
    let end = Instant::now() + limit;
    let mut x = 1u32;
    for id in 0..16 {
        node.recv(1000 + id, &[]);
    }
    while Instant::now() < end {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = [8, 64, 4096, 300_000][x as usize >> 16 & 3];
        let opcode = if x >> 20 & 1 == 0 { WRITE } else { WRITE_IMM };
        let posted = Instant::now();
        node.send(Work { id: 1, opcode, sges: &[node.sge(0, len)], to: (peer.addr, peer.rkey), ..Work::default() });
        loop {
            let wc = node.next();
            if wc.wr_id >= 1000 && wc.status == OK {
                node.recv(wc.wr_id, &[]);
            } else if wc.wr_id == 1 && wc.status == OK {
                if let Some(started) = started.take() {
                    started();
                }
                break;
            } else {
                assert_eq!(wc.status, RETRY_EXC, "wr {}", wc.wr_id);
                return Some(posted.elapsed().as_micros() as u64);
            }
        }
    }
    None
}
