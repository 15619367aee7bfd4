//! The command line: which fabric it changes, how it ends, and how it finds what a program needs.

use crate::common::gpu::pattern;
use crate::common::prelude::*;
use crate::program::{Folder, control, hold_if_started, softrnic, stat};
use crate::text;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use testkit::process::this_program;

/// This test program, to be started in a session of its own, as from another terminal.
fn in_other_session() -> Command {
    let mut starter = Command::new(this_program());
    // SAFETY: setsid is async-signal-safe.
    unsafe {
        starter.pre_exec(|| {
            if libc::setsid() > 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    };
    starter
}

const CHANGES: [&[&str]; 5] = [
    &["port", "0/1", "down"],
    &["gid", "0/1", "remove", "1"],
    &["fail", "softrnic1"],
    &["inject", "drop"],
    &["inject", "--clear"],
];

#[test]
fn what_is_anothers_is_changed_only_by_its_name() {
    hold_if_started();
    Softrnic::new().alone(change_mine_and_theirs);
}

/// Changes fabrics of this terminal session and of another one. The process leads a session of its
/// own: the session in which the tests run may have no number here, as in a container.
fn change_mine_and_theirs() {
    // SAFETY: no preconditions.
    assert!(unsafe { libc::setsid() } > 0, "a process that leads no group");
    let folder = Folder::new();
    let theirs = folder.hold_by("theirs", in_other_session());
    let run = |args: &[&str]| folder.command(args).output().expect("runs");
    let state = |fabric: &str| {
        let seen =
            [run(&["stat", "--json", "--fabric", fabric]), run(&["inject", "--fabric", fabric])];
        seen.map(|output| text(&output.stdout))
    };
    let before = state("theirs");
    let all_refused = |says: &str| {
        for change in CHANGES {
            let output = run(change);
            let told = text(&output.stderr);
            assert_eq!(
                (output.status.code(), output.stdout.len()),
                (Some(2), 0),
                "{change:?}: {told}"
            );
            assert!(
                told.contains("--fabric")
                    && told.contains("SOFTRNIC_FABRIC")
                    && told.contains(says),
                "{told}"
            );
        }
    };
    all_refused(": theirs\n");
    let mine = folder.hold("mine");
    for (change, says) in CHANGES.iter().zip([
        "fabric mine: softrnic0/1 down\n",
        "fabric mine: softrnic0/1 gid 1 removed\n",
        "fabric mine: softrnic1 failed for good\n",
        "fabric mine: 1 fault rule(s) in force\n  1  drop  applied 0\n",
        "fabric mine: 0 fault rule(s) in force\n",
    ]) {
        let output = run(change);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(0), says),
            "{}",
            text(&output.stderr)
        );
    }
    let also_mine = folder.hold("also-mine");
    all_refused(": also-mine, mine, theirs\n");
    assert_eq!(state("theirs"), before, "untouched");
    let named = run(&["--fabric", "theirs", "port", "0/1", "--mtu", "1024", "--latency-us", "2"]);
    assert_eq!(text(&named.stdout), "fabric theirs: softrnic0/1 latency 2 us, mtu 1024\n");
    assert_ne!(state("theirs"), before);
    [theirs, mine, also_mine].into_iter().for_each(crate::program::Holder::end);
}

#[test]
fn a_wrong_request_ends_with_2() {
    for args in [
        &[][..],
        &["no-such-command"],
        &["port"],
        &["stat", "--no-such-option"],
        &["stat", "--fabric", "no-such-fabric"],
        &["run"],
        &["run", "--no-such-option", "true"],
        &["run", "--library", "/", "--", "true"],
    ] {
        let output = softrnic(args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
    Softrnic::new().alone(|| {
        let _node = Node::new(0, 64);
        for args in [
            &["port", "0/1"][..],
            &["port", "0/2", "down"],
            &["inject", "dorp"],
            &["inject", "--remove", "9"],
        ] {
            assert_eq!(softrnic(args).status.code(), Some(2), "{args:?}");
        }
        control(&["fail", "0"]);
        assert_eq!(softrnic(&["port", "0/1", "up"]).status.code(), Some(1), "tried, and failed");
    });
}

/// As the other programs do.
#[test]
fn output_that_is_lost_ends_with_2() {
    Softrnic::new().alone(|| {
        let _node = Node::new(0, 64);
        for args in [
            &["--help"][..],
            &["run", "--help"],
            &["--version"],
            &["stat"],
            &["stat", "--json"],
            &["port", "0/1", "up"],
            &["gid", "0/1", "remove", "9"],
            &["inject", "drop times=1"],
            &["inject"],
        ] {
            let full =
                std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
            let (reader, closed) = std::io::pipe().expect("a pipe");
            drop(reader);
            for out in [Stdio::from(full), Stdio::from(closed)] {
                let mut command = Command::new(env!("CARGO_BIN_EXE_softrnic"));
                let output =
                    command.args(args).stdout(out).stderr(Stdio::piped()).spawn().expect("start");
                let output = output.wait_with_output().expect("wait");
                let told = text(&output.stderr);
                assert_eq!(output.status.code(), Some(2), "{args:?}: {told}");
                assert!(
                    told.contains("cannot write to standard output") && !told.contains("panicked"),
                    "{told}"
                );
            }
        }
    });
}

/// A folder as an installation has it: the program, and its library beside it. The other flavour is
/// a library of which only the versions are right.
fn install(folder: &Path) {
    for dir in ["bin", "softrnic"] {
        std::fs::create_dir_all(folder.join(dir)).expect("a folder");
    }
    std::fs::copy(env!("CARGO_BIN_EXE_softrnic"), folder.join("bin/softrnic")).expect("copy");
    symlink(library_path(), folder.join("softrnic/libibverbs.so.1")).expect("a link");
}

/// Compiles `source` with these arguments in `folder`.
fn compile(folder: &Path, source: &str, args: &[&str]) {
    std::fs::write(folder.join("source.c"), source).expect("write");
    let mut cc = Command::new("cc");
    let status = cc.current_dir(folder).arg("source.c").args(args).status().expect("a C compiler");
    assert!(status.success(), "{args:?}");
}

fn installed(folder: &Path, args: &[&str]) -> Output {
    Command::new(folder.join("bin/softrnic")).current_dir(folder).args(args).output().expect("runs")
}

/// A program that is linked with drivers wants private symbols: it gets the library that has them.
#[test]
fn a_program_gets_the_library_that_it_needs() {
    let folder = Folder::new();
    let folder = folder.path();
    install(folder);
    std::fs::write(folder.join("map"), "IBVERBS_PRIVATE_77 { global: softrnic_private; };")
        .expect("write");
    std::fs::create_dir_all(folder.join("made")).expect("a folder");
    let library = ["-shared", "-fPIC", "-Wl,--version-script=map", "-Wl,-soname,libibverbs.so.1"];
    compile(
        folder,
        "int softrnic_private(void) { return 5; }",
        &[&library[..], &["-o", "made/libibverbs.so.1"]].concat(),
    );
    let program = "int softrnic_private(void); int main(void) { return softrnic_private(); }";
    compile(folder, program, &["-o", "program", "made/libibverbs.so.1"]);

    let output = installed(folder, &["run", "./program"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(
        told.contains("./program needs IBVERBS_PRIVATE_77") && told.contains("../softrnic-tools"),
        "{told}"
    );
    let output = installed(folder, &["run", "--library", "softrnic", "./program"]);
    let told = text(&output.stderr);
    assert!(
        output.status.code() == Some(2) && told.contains("needs IBVERBS_PRIVATE_77, which"),
        "{told}"
    );

    std::fs::rename(folder.join("made"), folder.join("softrnic-tools")).expect("rename");
    for args in [
        &["run", "./program"][..],
        &["run", "--", "./program"],
        &["run", "--tools", "./program", "--devices"],
    ] {
        let output = installed(folder, args);
        let told = text(&output.stderr);
        assert_eq!(
            (output.status.code(), told.contains("as with --tools")),
            (Some(5), args[1] != "--tools"),
            "{told}"
        );
    }
    let show = [
        "run",
        "--devices",
        "3",
        "sh",
        "-c",
        "echo ${LD_LIBRARY_PATH%%:*} $SOFTRNIC_DEVICES $0",
        "--devices=2",
    ];
    let plain = folder.join("softrnic").canonicalize().expect("the folder");
    assert_eq!(
        text(&installed(folder, &show).stdout),
        format!("{} 3 --devices=2\n", plain.display())
    );
}

#[test]
fn the_help_of_rules_has_whole_lines() {
    let help = control(&["inject", "--help"]);
    for line in [
        "A rule is ACTION[=VALUE] [KEY=VALUE ...]; without keys it applies to every message.\n",
        "  drop, drop-ack, delay=TIME, late=TIME, rnr, corrupt, slow=GB/s\n",
        "  device, peer, flow, opcode, message, every, chance, attempts, times\n",
    ] {
        assert!(help.contains(line), "{help}");
    }
    // Those that the reader of rules knows.
    let known = crate::program::refused(&["inject", "--fabric", "no-such-fabric", "drop"]);
    assert!(known.contains("no process uses a fabric"), "{known}");
}

/// Has the kernel refuse what the default profiles of container runtimes refuse.
fn enter_sandbox() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let skip_unless = |k: u32| libc::sock_filter {
        jf: 1,
        ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k)
    };
    let refuse =
        || statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut filter = [
        // The number of the call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        skip_unless(libc::SYS_process_vm_readv as u32),
        refuse(),
        skip_unless(libc::SYS_process_vm_writev as u32),
        refuse(),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a valid program, which outlives the call.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn bytes_arrive_in_a_sandbox_and_stat_says_how() {
    const MOST: usize = 3_000_001;
    Softrnic::new().pair(|side, mut socket| {
        enter_sandbox();
        let mut node = Node::new(side, MOST);
        let peer = node.connect_over(&mut socket, &TERMS);
        for (round, size) in [0, 1, 8, 4096, 524_288, 524_289, MOST].into_iter().enumerate() {
            let data = pattern(size, round);
            if side == 0 {
                node.memory[..size].copy_from_slice(&data);
                socket.barrier();
                let to = (peer.addr, peer.rkey);
                node.send(Work {
                    opcode: WRITE_IMM,
                    imm: 9,
                    sges: &[node.sge(0, size)],
                    to,
                    ..WORK
                });
                assert_eq!(node.next().status, OK);
                // And back.
                node.memory[..size].fill(0);
                node.send(Work { opcode: READ, sges: &[node.sge(0, size)], to, ..WORK });
                assert_eq!(node.next().status, OK);
                assert!(node.memory[..size] == data, "{size} bytes read");
            } else {
                node.memory.fill(0xee);
                node.recv(1, &[]);
                socket.barrier();
                assert_eq!(
                    (node.next().status, node.memory[..size] == data),
                    (OK, true),
                    "{size} bytes written"
                );
                assert!(node.memory[size..].iter().all(|&byte| byte == 0xee));
            }
            socket.barrier();
        }
        if side == 0 {
            let seen = stat();
            let processes = seen["processes"].as_array().expect("list");
            let me =
                processes.iter().find(|p| p["pid"] == std::process::id()).expect("this process");
            assert_eq!(
                (&me["copies_staged"], &me["copies_directly"]),
                (&true.into(), &false.into())
            );
            assert_eq!(me["obstacle"], libc::EPERM);
            assert!(control(&["stat"]).contains("copies staged (Operation not permitted"));
        }
        socket.barrier();
    });
}

const STAGED: (&str, &str) = ("SOFTRNIC_STAGED", "1");

/// A READ over a queue pair that is connected with itself, as transports use it to flush, is under
/// way.
#[test]
fn a_queue_pair_goes_while_its_message_is_under_way() {
    Softrnic::new().envs(&[STAGED]).alone(|| {
        for round in 0..100 {
            let node = Node::new(0, 4_000_000);
            node.connect(&node.address(), &TERMS);
            let to = (node.memory.as_ptr() as u64, u64::from(node.key()));
            node.send(Work { opcode: READ, sges: &[node.sge(2_000_000, 1_900_000)], to, ..WORK });
            if round % 2 == 0 {
                assert_eq!(to_state(node.qp, RESET), 0);
            }
            node.close();
        }
    });
}

#[test]
fn a_queue_pair_that_drains_still_receives() {
    Softrnic::new().envs(&[STAGED]).alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        assert_eq!(to_state(a.qp, SQD), 0);
        let to = a.at(0);
        b.send(Work { sges: &[b.sge(0, 8)], to, ..WORK });
        assert_eq!(b.next().status, OK);
    });
}

/// The message that is under way does not use the memory that goes.
#[test]
fn another_region_that_goes_disturbs_no_message() {
    Softrnic::new().envs(&[STAGED]).alone(|| {
        const ROUNDS: u64 = 300;
        let (mut a, mut b) = (Node::new(0, 64), Node::new(1, 64));
        for node in [&mut a, &mut b] {
            assert_eq!(ibv_dereg_mr(node.mr), 0);
            node.mr = ibv_reg_mr(node.pd, node.memory.as_mut_ptr().cast(), 64, 15);
        }
        let terms = Terms { access: 15, ..TERMS };
        a.connect(&b.address(), &terms);
        b.connect(&a.address(), &terms);
        let at = [&a, &b].map(|node| node.memory.as_ptr().align_offset(8));
        let other = vec![0u8; 4096];
        for _ in 0..ROUNDS {
            let mr = ibv_reg_mr(a.pd, other.as_ptr() as Ptr, 4096, ALL_ACCESS);
            let mut sge = a.sge(at[0], 8);
            let remote_addr = b.address().addr + at[1] as u64;
            let mut wr = SendWr {
                wr_id: 9,
                next: ptr::null_mut(),
                sg_list: &raw mut sge,
                num_sge: 1,
                opcode: FETCH_ADD,
                flags: SIGNALED,
                imm: 0,
                remote_addr,
                rkey: 1,
                rest: [0, b.address().rkey, 0],
            };
            assert_eq!(post_send(a.qp, &mut wr, &mut ptr::null_mut()), 0);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!(a.next().status, OK);
        }
        // SAFETY: eight aligned bytes inside the node's memory.
        assert_eq!(unsafe { b.memory.as_ptr().add(at[1]).cast::<u64>().read_volatile() }, ROUNDS);
    });
}

/// Stops this process until the other side continues it.
fn stop() {
    // SAFETY: no memory is involved.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Waits until the other side has stopped itself: a signal to go on that comes before would be
/// lost.
fn await_stop(pid: i32) {
    let state = || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
        // Behind the name, which is in brackets.
        text.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next())
    };
    wait_until(format_args!("process {pid} to stop"), || state() == Some('T'));
}

fn go_on(pid: i32) {
    // SAFETY: as above.
    unsafe { libc::kill(pid, libc::SIGCONT) };
}

fn swap_pids(socket: &mut Peer) -> i32 {
    socket.swap(&(std::process::id() as i32))
}

fn sends_and_stops(socket: &mut Peer) {
    let node = Node::new(0, 8 << 20);
    let peer = node.connect_over(socket, &TERMS);
    swap_pids(socket);
    node.send(Work { sges: &[node.sge(0, 8 << 20)], to: (peer.addr, peer.rkey), ..WORK });
    stop();
}

/// False: it could only once the peer had been let go on, after a while.
fn closes_while_the_peer_is_stopped(socket: &mut Peer) -> bool {
    let node = Node::new(1, 8 << 20);
    node.connect_over(socket, &TERMS);
    let pid = swap_pids(socket);
    await_stop(pid);
    let (is_closed, closed) = std::sync::mpsc::channel::<()>();
    let rescue = std::thread::spawn(move || {
        let is_held_up =
            closed.recv_timeout(Duration::from_secs(10)) == Err(RecvTimeoutError::Timeout);
        go_on(pid);
        is_held_up
    });
    node.recv(5, &[]);
    assert_eq!(to_state(node.qp, ERR), 0);
    assert_eq!(node.next().status, FLUSH);
    // While the other side is stopped: it would hang here.
    node.close();
    drop(is_closed);
    !rescue.join().expect("it ends")
}

/// A peer that is stopped in the few instructions in which it changes this side's queue pair does
/// hold it up, so there is more than one attempt.
#[test]
fn a_stopped_requester_holds_nobody_up() {
    Softrnic::new().envs(&[STAGED]).pair(|side, mut socket| {
        for _ in 0..5 {
            let is_held_up = side == 1 && !closes_while_the_peer_is_stopped(&mut socket);
            if side == 0 {
                sends_and_stops(&mut socket);
            }
            if socket.swap(&u8::from(is_held_up)) == 0 && !is_held_up {
                return;
            }
        }
        panic!("a stopped peer has held this side up five times");
    });
}

#[test]
fn a_stopped_target_leaves_room_for_others() {
    Softrnic::new().envs(&[STAGED]).pair(|side, mut socket| {
        let nodes: Vec<Node> = (0..16).map(|_| Node::new(side, 4 << 20)).collect();
        let peers: Vec<Address> =
            nodes.iter().map(|node| node.connect_over(&mut socket, &TERMS)).collect();
        let pid = swap_pids(&mut socket);
        if side == 1 {
            stop();
        } else {
            await_stop(pid);
            let (a, b) = local_pair(64, &TERMS);
            for (node, peer) in nodes.iter().zip(&peers) {
                node.send(Work {
                    sges: &[node.sge(0, 4 << 20)],
                    to: (peer.addr, peer.rkey),
                    ..WORK
                });
            }
            a.send(Work { sges: &[a.sge(0, 8)], to: b.at(0), ..WORK });
            assert_eq!(a.next().status, OK);
            go_on(pid);
        }
        socket.barrier();
    });
}
