//! The command line.

use crate::common::extended_cqs::{CqInit, INIT};
use crate::common::prelude::*;
use crate::common::{domains, extended_cqs};
use crate::program::{
    FORKS, Folder, Holder, LibraryDir, control, hold_if_started, in_other_namespace, refused,
    softrnic, stat,
};
use crate::text;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read};
use std::os::unix::fs::{chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use testkit::process::this_program;

/// `softrnic run`, with the library that is tested.
fn run(args: &[&str]) -> Output {
    let library = LibraryDir::new();
    let folder = library.path().to_str().expect("UTF-8").to_owned();
    let all = [&["run", "--library", &folder], args].concat();
    softrnic(&all)
}

#[test]
fn what_it_says_of_a_wrong_request() {
    assert!(
        refused(&["stat", "--fabric", "no-such-fabric"])
            .contains("no process uses a fabric /dev/shm/no-such-fabric")
    );
    Softrnic::new().alone(|| {
        let _node = Node::new(0, 64);
        for (args, says) in [
            (
                &["port", "0/2", "down"][..],
                "there is no softrnic0/2 among 2 device(s) with 1 port(s) each",
            ),
            (&["port", "eth0", "down"][..], "must be a name such as softrnic0/1"),
            (&["port", "0/1", "--mtu", "1500"][..], "must be 256, 512, 1024, 2048 or 4096"),
            (&["port", "0/1", "--speed", "300"][..], "must be 5, 10"),
            (&["port", "0/1", "--lid", "9"][..], "of an InfiniBand port"),
            (&["gid", "0/1", "remove", "16"][..], "must be 0 to 15"),
            (&["gid", "0/1", "add", "3", "10.0.0.1"][..], "IPv6"),
            (&["fail", "softrnic2"][..], "there is no softrnic2 among 2 device(s)"),
        ] {
            let told = refused(args);
            assert!(told.contains(says), "{args:?}: {told}");
        }
    });
}

#[test]
fn stat_shows_what_there_is() {
    Softrnic::new().ports(2).alone(|| {
        let (a, b) = local_pair(4096, &TERMS);
        let seen = stat();
        let me = std::process::id();
        assert_eq!(seen["processes"][0]["pid"], me);
        assert_eq!(seen["processes"][0]["alive"], true);
        let device = &seen["devices"][0];
        assert_eq!(
            (device["memory_regions"].as_u64(), device["registered_bytes"].as_u64()),
            (Some(1), Some(4096))
        );
        let qp = &device["queue_pairs"][0];
        assert_eq!(
            (qp["number"].as_u64(), qp["pid"].as_u64()),
            (Some(a.qpn().into()), Some(me.into()))
        );
        assert_eq!(
            (qp["state"].as_str(), qp["peer"]["port"].as_str()),
            (Some("RTS"), Some("softrnic1/1"))
        );
        assert_eq!(qp["peer"]["number"], b.qpn());
        assert_eq!(device["ports"][1]["gids"][1]["gid"], "::ffff:10.82.2.1");
        let shown = control(&["stat"]);
        let line = format!(
            "qp {} RC RTS port 1 of process {me} to softrnic1/1 qp {} flow 0",
            a.qpn(),
            b.qpn()
        );
        assert!(
            shown.contains(&line) && shown.contains("softrnic0/2 up roce 400 Gb/s mtu 4096"),
            "{shown}"
        );
    });
}

#[test]
fn stat_counts_what_drivers_and_cards_do_for_each_queue() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(8192, &TERMS);
        let to = b.at(0);
        b.recv(1, &[]);
        b.recv(2, &[]);
        a.send(Work { sges: &[a.sge(0, 5000)], to, opcode: WRITE_IMM, ..WORK });
        a.send(Work { sges: &[a.sge(0, 8)], to, flags: SIGNALED | INLINE, ..WORK });
        assert!(a.poll().is_some() && a.poll().is_some() && a.poll().is_none());
        let seen = stat();
        let of = |device: usize| &seen["devices"][device]["queue_pairs"][0]["work"];
        let sender = of(0);
        let names = [
            "requests", "doorbells", "inline", "gathered", "gathered_bytes", "fetched",
            "pushed_bytes",
        ];
        assert_eq!(
            names.map(|name| sender[name].as_u64().expect(name)),
            [2, 2, 1, 1, 5000, 0, 128]
        );
        assert_eq!(
            (sender["packets"].as_u64(), sender["immediates"].as_u64()),
            (Some(3), Some(1)),
            "5000 bytes are two packets"
        );
        assert_eq!(
            (of(1)["receives"].as_u64(), of(1)["receive_posts"].as_u64()),
            (Some(2), Some(2))
        );
        let queue = &seen["devices"][0]["completion_queues"][0];
        let names = ["polls", "fruitful_polls", "completions", "locks"];
        assert_eq!(names.map(|name| queue[name].as_u64().expect(name)), [3, 2, 2, 3]);
        assert_eq!((sender["locks"].as_u64(), of(1)["locks"].as_u64()), (Some(2), Some(2)));
        let commands = &seen["processes"][0]["commands"];
        let names = ["create_qp", "modify_qp", "create_cq", "register_mr", "alloc_pd"];
        assert_eq!(names.map(|name| commands[name].as_u64().expect(name)), [2, 6, 2, 2, 2]);
    });
}

#[test]
fn a_command_takes_as_long_as_the_setting_says() {
    const US: u64 = 3000;
    Softrnic::new().env("SOFTRNIC_COMMAND_US", US).alone(|| {
        let start = Instant::now();
        let _pair = local_pair(8192, &TERMS);
        let took = start.elapsed();
        let seen = stat();
        let commands = seen["processes"][0]["commands"].as_object().expect("by kind");
        let count: u64 = commands.values().map(|count| count.as_u64().expect("a number")).sum();
        assert!(count >= 14, "{commands:?}");
        assert!(took >= Duration::from_micros(count * US), "{count} commands in {took:?}");
    });
}

#[test]
fn commands_of_two_processes_to_one_card_are_carried_out_one_after_the_other() {
    // Longer than the two take to open the device, or commands side by side would not be noticed.
    const US: u64 = 25_000;
    Softrnic::new().env("SOFTRNIC_COMMAND_US", US).pair(|_, mut peer| {
        let start = Instant::now();
        peer.barrier();
        let _node = Node::new(0, 64);
        peer.barrier();
        let took = start.elapsed();
        let seen = stat();
        let processes = seen["processes"].as_array().expect("both");
        let commands = processes.iter().flat_map(|process| process["commands"].as_object());
        let count: u64 = commands.flat_map(|all| all.values()).filter_map(|one| one.as_u64()).sum();
        assert!(count >= 8 && processes.len() == 2, "{processes:?}");
        assert!(took >= Duration::from_micros(count * US), "{count} commands in {took:?}");
        peer.barrier();
    });
}

#[test]
fn two_thread_domains_take_one_command_and_one_that_is_gone_leaves_its_place() {
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let allocate = || domains::thread_domain(node.context, 0).expect("a thread domain");
        let commands = || {
            let seen = stat();
            seen["processes"][0]["commands"]["alloc_td"].as_u64()
        };
        let [first, ..] = [(); 3].map(|()| allocate());
        assert_eq!(commands(), Some(2));
        assert_eq!(domains::free_thread_domain(node.context, first), 0);
        let _ = [allocate(), allocate()];
        assert_eq!(commands(), Some(2));
        let _ = allocate();
        assert_eq!(commands(), Some(3));
    });
}

#[test]
fn stat_counts_no_locks_where_one_thread_is_promised() {
    Softrnic::new().alone(|| {
        let (mut a, b) = (Node::new(0, 64), Node::new(1, 64));
        assert_eq!((ibv_destroy_qp(a.qp), ibv_destroy_cq(a.cq)), (0, 0));
        let (_, parent) = domains::of(&a);
        a.cq = extended_cqs::create(a.context, &CqInit { fields: 1, flags: 1, ..INIT })
            .expect("for a single thread");
        a.qp = create_qp(parent, a.cq, a.cq, CAP);
        a.connect(&b.address(), &TERMS);
        b.connect(&a.address(), &TERMS);
        a.recv(1, &[]);
        a.send(WORK);
        a.send(WORK);
        assert_eq!(extended_cqs::start_poll(a.cq), 0);
        assert_eq!(extended_cqs::next_poll(a.cq), 0);
        extended_cqs::end_poll(a.cq);
        assert_eq!(extended_cqs::start_poll(a.cq), libc::ENOENT);
        let queues = || {
            let seen = stat();
            let device = &seen["devices"][0];
            assert_eq!(seen["processes"][0]["commands"]["alloc_td"], 1);
            (device["queue_pairs"][0].clone(), device["completion_queues"][0].clone())
        };
        let (pair, queue) = queues();
        assert_eq!(
            (&pair["capacities"]["thread_domain"], &queue["single_threaded"]),
            (&true.into(), &true.into())
        );
        assert_eq!((&pair["work"]["doorbells"], &pair["work"]["locks"]), (&2.into(), &0.into()));
        let names = ["polls", "fruitful_polls", "completions", "locks"];
        assert_eq!(
            names.map(|name| queue[name].as_u64().expect(name)),
            [2, 1, 2, 0],
            "one poll from start to end"
        );
        assert!(a.poll().is_none());
        assert_eq!(queues().1["locks"], 1, "ibv_poll_cq takes the lock of mlx5 all the same");
    });
}

/// The driver of mlx5 grants more than is asked for; what is told is what was asked.
#[test]
fn stat_tells_what_queue_pairs_were_asked_to_have() {
    Softrnic::new().env("SOFTRNIC_DRIVER", "mlx5").alone(|| {
        let node = Node::new(0, 64);
        let asked = Cap { max_send_wr: 100, max_recv_wr: 50, max_inline_data: 32, ..CAP };
        let qp = create_qp(node.pd, node.cq, node.cq, asked);
        let seen = stat();
        let of = |pair: &serde_json::Value| {
            ["sends", "receives", "inline"]
                .map(|name| pair["capacities"][name].as_u64().expect(name))
        };
        let pairs = seen["devices"][0]["queue_pairs"].as_array().expect("queue pairs");
        assert!(pairs.iter().any(|pair| of(pair) == [100, 50, 32]), "{pairs:?}");
        assert_eq!(ibv_destroy_qp(qp), 0);
    });
}

#[test]
fn a_port_remembers_what_went_through_it() {
    Softrnic::new().alone(|| {
        let sent = || {
            let seen = stat();
            let device = &seen["devices"][0];
            let counters = &device["ports"][0]["counters"];
            let qps = device["queue_pairs"].as_array().expect("array").len();
            (qps, counters["messages"].as_u64(), counters["bytes"].as_u64())
        };
        for round in 1..=2 {
            let (a, b) = local_pair(64, &TERMS);
            let to = b.at(0);
            for _ in 0..3 {
                a.send(Work { sges: &[a.sge(0, 10)], to, ..WORK });
                assert_eq!(a.next().status, OK);
            }
            assert_eq!(sent(), (1, Some(3 * round), Some(30 * round)));
            a.close();
            b.close();
            assert_eq!(sent(), (0, Some(3 * round), Some(30 * round)), "their queue pair is gone");
        }
    });
}

#[test]
fn flows_are_numbered_by_their_ports() {
    Softrnic::new().alone(|| {
        let nodes: Vec<_> = (0..3).map(|_| local_pair(64, &TERMS)).collect();
        let seen = stat();
        for (flow, (a, b)) in nodes.iter().enumerate() {
            for (device, node) in [a, b].into_iter().enumerate() {
                let qps = seen["devices"][device]["queue_pairs"].as_array().expect("array");
                let qp = qps.iter().find(|qp| qp["number"] == node.qpn()).expect("the QP");
                assert_eq!(qp["flow"], flow);
            }
        }
    });
}

#[test]
fn run_sets_the_stage_and_becomes_the_program() {
    let show = "echo $SOFTRNIC_DEVICES,$SOFTRNIC_PORTS,$SOFTRNIC_LINK,$SOFTRNIC_STRICT; \
                echo $SOFTRNIC_FABRIC; ls ${LD_LIBRARY_PATH%%:*} $NCCL_IBVERBS_LIB >&2 || exit 1; exit 7";
    let args =
        ["--devices", "3", "--ports", "2", "--link", "ib", "--strict", "--", "sh", "-c", show];
    let outputs = [(); 2].map(|()| run(&args));
    let fabrics = outputs.map(|output| {
        assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        let (settings, fabric) = shown.split_once('\n').expect("two lines");
        assert_eq!(settings, "3,2,ib,1");
        fabric.to_owned()
    });
    assert_ne!(fabrics[0], fabrics[1], "two runs do not meet");
    let output = run(&["--fabric", "mine", "--verbose", "--", "true"]);
    assert!(
        text(&output.stderr).contains("softrnic: SOFTRNIC_FABRIC=mine"),
        "{}",
        text(&output.stderr)
    );
    let output = run(&["--", "/no/such/program"]);
    assert!(
        text(&output.stderr).contains("cannot run /no/such/program"),
        "{}",
        text(&output.stderr)
    );
    let output = run(&["--devices", "9", "--", "true"]);
    assert!(text(&output.stderr).contains("SOFTRNIC_DEVICES=\"9\""), "{}", text(&output.stderr));
}

#[test]
fn the_only_fabric_is_shown_by_default() {
    hold_if_started();
    let folder = Folder::new();
    let stat = || folder.command(&["stat"]).output().expect("runs");
    assert!(text(&stat().stderr).contains("no fabric is in use"));
    let one = folder.hold("one");
    assert!(text(&stat().stdout).starts_with("fabric one\n"));
    let two = folder.hold("two");
    let told = text(&stat().stderr);
    assert!(told.contains("--fabric or SOFTRNIC_FABRIC") && told.contains(": one, two"), "{told}");
    one.end();
    two.end();
    assert_eq!(folder.names(), [""; 0], "nothing is left");
}

/// What a faithful run needs.
fn mount_namespaces() -> Result<(), Missing> {
    if has_namespaces(false) || has_namespaces(true) {
        Ok(())
    } else {
        Err(Missing::new("mount namespaces"))
    }
}

/// Whether a namespace with a mount of its own can be had.
fn has_namespaces(as_nobody: bool) -> bool {
    let mut probe = Command::new("unshare");
    let flags = if as_nobody { "-Urm" } else { "-m" };
    probe.args([flags, "mount", "-t", "tmpfs", "none", "/sys/class"]);
    // SAFETY: no preconditions.
    if as_nobody && unsafe { libc::geteuid() } == 0 {
        probe.uid(65534).gid(65534);
    }
    probe.output().is_ok_and(|output| output.status.success())
}

/// What a program sees of sysfs.
const LOOK: &str = "cd /sys/class/infiniband && for d in *; do echo $d $(cat $d/node_guid) $(cat $d/sys_image_guid) \
                    $(realpath $d/device) $(cat $d/device/class); done; cd softrnic1/ports/2; cat rate state link_layer \
                    gids/2 gid_attrs/types/2 gid_attrs/types/3; ls gids | wc -l; test -e /sys/class/net/lo && echo net";

fn check_look(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    let rest = [
        "100 Gb/sec (4X EDR)",
        "4: ACTIVE",
        "Ethernet",
        "0000:0000:0000:0000:0000:ffff:0a52:0202",
        "IB/RoCE v1",
        "RoCE v2",
        "16",
        "net",
    ];
    assert_eq!(lines[2..], rest, "{shown}");
    assert!(
        lines[0].starts_with("softrnic0 0250:f7ff:fe00:0001 0250:f7ff:fe00:0001 /sys/"),
        "{shown}"
    );
    lines[..2].iter().map(|line| (*line).to_owned()).collect()
}

const SHAPE: [&str; 7] =
    ["--ports", "2", "--gids", "rich", "--speed", "400,softrnic1/2=100", "--faithful"];

#[test]
fn a_faithful_run_has_a_sysfs() {
    require!(mount_namespaces());
    let look =
        |more: &[&str]| check_look(&run(&[&SHAPE, more, &["--", "sh", "-c", LOOK]].concat()));
    let path = |line: &str| line.split(' ').nth(3).expect("path").to_owned();
    let apart = look(&[]);
    assert!(
        apart[1].starts_with("softrnic1 0250:f7ff:fe00:0002 0250:f7ff:fe00:0002 /sys/"),
        "{apart:?}"
    );
    assert_ne!(path(&apart[0]), path(&apart[1]));
    let paired = look(&["--same-card"]);
    assert!(
        paired[1].starts_with("softrnic1 0250:f7ff:fe00:0002 0250:f7ff:fe00:0001 /sys/"),
        "{paired:?}"
    );
    let card = |line: &str| path(line).rsplit_once('.').expect("a function").0.to_owned();
    assert_eq!(card(&paired[0]), card(&paired[1]));
    assert_ne!(path(&paired[0]), path(&paired[1]), "two functions");
    assert!(!Path::new("/sys/class/infiniband/softrnic0").exists(), "outside of it");
    let told = run(&["--faithful", "--pci", "softrnic0=/sys/class", "--", "true"]);
    assert!(text(&told.stderr).contains("no PCI device"), "{}", text(&told.stderr));
}

/// What counters there are, `stat` tells; files that never change would be taken for a link without
/// traffic.
#[test]
fn a_faithful_run_has_no_counters() {
    require!(mount_namespaces());
    let look = "cd /sys/class/infiniband/softrnic0 && ls ports/1 && ls -d counters hw_counters ports/1/counters ports/1/hw_counters";
    let output = run(&["--faithful", "--", "sh", "-c", look]);
    let (names, refused) = (text(&output.stdout), text(&output.stderr));
    assert!(names.contains("gid_attrs") && !names.contains("counters"), "{names}");
    assert_eq!(refused.matches("No such file or directory").count(), 4, "{refused}");
}

#[test]
fn a_faithful_run_has_device_nodes() {
    require!(mount_namespaces());
    let look = "for node in /dev/infiniband/*; do test -c $node && echo $node; done; echo >/dev/null && test -d /dev/shm && echo rest";
    let output = run(&["--devices", "3", "--faithful", "--", "sh", "-c", look]);
    let nodes = "/dev/infiniband/softverbs0\n/dev/infiniband/softverbs1\n/dev/infiniband/softverbs2\nrest\n";
    assert_eq!(text(&output.stdout), nodes, "{}", text(&output.stderr));
    assert!(!Path::new("/dev/infiniband/softverbs0").exists(), "outside of it");
}

#[test]
fn a_faithful_run_shows_the_fabric_that_is_there() {
    Softrnic::new().devices(3).alone(|| {
        require!(mount_namespaces());
        let _node = Node::new(0, 64);
        control(&["port", "2/1", "down"]);
        let library = LibraryDir::new();
        let mut command = Command::new(env!("CARGO_BIN_EXE_softrnic"));
        command.args(["run", "--faithful", "--library"]).arg(library.path());
        command.args(["--", "cat", "/sys/class/infiniband/softrnic2/ports/1/state"]);
        let output = command.env_remove("SOFTRNIC_DEVICES").output().expect("start");
        assert_eq!(text(&output.stdout), "1: DOWN\n", "{}", text(&output.stderr));
    });
}

#[test]
fn a_faithful_run_needs_no_root() {
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 || !has_namespaces(true) {
        return skipped("root, to become another user, and user namespaces");
    }
    let library = LibraryDir::new();
    // The build folder may be out of that user's reach: copies are not.
    let program = library.path().join("softrnic");
    fs::copy(env!("CARGO_BIN_EXE_softrnic"), &program).expect("copy");
    let real = library.path().join("libibverbs.so.1");
    fs::remove_file(&real).expect("the link");
    fs::copy(library_path(), &real).expect("copy");
    let mut command = Command::new(&program);
    command
        .arg("run")
        .arg("--library")
        .arg(library.path())
        .args(SHAPE)
        .args(["--", "sh", "-c", LOOK]);
    check_look(&command.uid(65534).gid(65534).current_dir("/").output().expect("start"));
}

#[test]
fn two_processes_exchange_data() {
    Softrnic::new().pair(|side, mut socket| {
        let mut node = Node::new(side, 4096);
        node.memory.fill(side as u8 + 1);
        let peer = node.connect_over(&mut socket, &TERMS);
        let sges = [node.sge(0, 2048)];
        node.send(Work { sges: &sges, to: (peer.addr + 2048, peer.rkey), ..WORK });
        assert_eq!(node.next().status, OK);
        socket.barrier();
        let expected = [side as u8 + 1, 2 - side as u8];
        assert!(node.memory[..2048].iter().all(|&byte| byte == expected[0]));
        assert!(node.memory[2048..].iter().all(|&byte| byte == expected[1]));
    });
}

#[test]
fn processes_in_a_faithful_run_reach_each_other() {
    require!(mount_namespaces());
    let me = this_program();
    let args = [
        "--faithful",
        "--",
        me.to_str().expect("UTF-8"),
        "cli::two_processes_exchange_data",
        "--exact",
    ];
    let output = run(&args);
    assert!(
        output.status.success() && text(&output.stdout).contains("1 passed"),
        "{}",
        text(&output.stdout)
    );
}

/// What `softrnic clean` says; it must succeed.
fn clean(folder: &Folder, args: &[&str]) -> String {
    let output = folder.command(&[&["clean"], args].concat()).output().expect("runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn clean_removes_the_dead_and_tells_of_the_living() {
    hold_if_started();
    let folder = Folder::new();
    assert!(clean(&folder, &[]).contains("there is no fabric"));
    let (killed, running) = (folder.hold("killed"), folder.hold("running"));
    fs::write(folder.path().join("other"), "no fabric").expect("a file");
    assert_eq!(clean(&folder, &[]), "killed: in use\nrunning: in use\n");
    drop(killed.kill());
    assert_eq!(folder.names(), ["killed", "other", "running"]);
    assert_eq!(clean(&folder, &["--fabric", "running"]), "running: in use\n");
    for dry in [&[][..], &["--dry-run"], &["--fabric", "killed", "--dry-run"]] {
        let printed = clean(&folder, dry);
        assert!(printed.starts_with("killed: dead, ") && printed.contains(" KiB\n"), "{printed}");
        assert!(
            printed.ends_with(
                "softrnic clean --all removes the dead ones, --fabric NAME one of them\n"
            ),
            "{printed}"
        );
        assert_eq!(folder.names(), ["killed", "other", "running"]);
    }
    let printed = clean(&folder, &["--all"]);
    assert!(
        printed.starts_with("killed: removed, ") && printed.ends_with(" KiB\nrunning: in use\n"),
        "{printed}"
    );
    assert_eq!(folder.names(), ["other", "running"]);
    running.end();
    assert_eq!(folder.names(), ["other"]);
}

/// A process id says nothing in another namespace.
#[test]
fn a_fabric_in_another_process_id_namespace_lives() {
    hold_if_started();
    let starter = require!(in_other_namespace(&this_program()));
    let folder = Folder::new();
    let (there, here) = (folder.hold_by("there", starter), folder.hold("here"));
    assert_eq!(clean(&folder, &[]), "here: in use\nthere: in use\n");
    let mut command =
        in_other_namespace(Path::new(env!("CARGO_BIN_EXE_softrnic"))).expect("as before");
    let output =
        command.arg("clean").env("SOFTRNIC_SHM_DIR", folder.path()).output().expect("runs");
    assert_eq!(text(&output.stdout), "here: in use\nthere: in use\n", "{}", text(&output.stderr));
    there.end();
    here.end();
    assert_eq!(folder.names(), [""; 0]);
}

/// Another user's fabric is left alone, though nobody is seen to use it.
#[test]
fn a_fabric_of_another_user_stays() {
    hold_if_started();
    // SAFETY: no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("root, to give a file to another user");
    }
    let folder = Folder::new();
    drop(folder.hold("theirs").kill());
    chown(folder.path().join("theirs"), Some(65534), None).expect("root may");
    assert!(clean(&folder, &["--all"]).starts_with("there is no fabric in "));
    assert_eq!(folder.names(), ["theirs"]);
    chown(folder.path().join("theirs"), Some(0), None).expect("root may");
    assert!(clean(&folder, &["--fabric", "theirs"]).starts_with("theirs: removed, "));
}

/// A forked child takes no part in the fabric of its parent: once the parent is killed, nobody uses
/// the fabric.
#[test]
fn a_forked_child_keeps_no_fabric() {
    hold_if_started();
    let folder = Folder::new();
    let holder =
        folder.hold_as(Command::new(this_program()), &[("SOFTRNIC_FABRIC", "one"), (FORKS, "1")]);
    assert_eq!(clean(&folder, &[]), "one: in use\n");
    let _child_waits = holder.kill();
    let printed = clean(&folder, &["--all"]);
    assert!(printed.starts_with("one: removed"), "{printed}");
}

/// This test, started again by `softrnic run`, which gives it a fabric.
fn clean_run(folder: &Folder, library: &LibraryDir) -> Holder {
    let mut starter = folder.command(&["run", "--library"]);
    starter.arg(library.path()).arg(this_program());
    folder.hold_as(starter, &[])
}

#[test]
fn a_run_removes_what_killed_runs_have_left() {
    hold_if_started();
    let (folder, library) = (Folder::new(), LibraryDir::new());
    let (killed, running) = (clean_run(&folder, &library), clean_run(&folder, &library));
    let named = folder.hold("named");
    let names = folder.names();
    assert!(
        names.len() == 3 && names[1..].iter().all(|name| name.starts_with("softrnic-run-")),
        "{names:?}"
    );
    drop(killed.kill());
    drop(named.kill());
    assert_eq!(folder.names().len(), 3);
    let next = folder
        .command(&["run", "--library"])
        .arg(library.path())
        .args(["--", "true"])
        .output()
        .expect("runs");
    assert!(next.status.success(), "{}", text(&next.stderr));
    // The file of a fabric with a given name stays, for the user to look at.
    let pid = format!("softrnic-run-{}-", running.pid());
    let left = folder.names();
    assert!(left.len() == 2 && left[0] == "named" && left[1].starts_with(&pid), "{left:?}");
    running.end();
    assert_eq!(folder.names(), ["named"]);
}

/// `softrnic` as it is installed, with both flavours of the library; goes when dropped.
struct Installed(Scratch);

impl Installed {
    fn new() -> Self {
        let folder = Scratch::new();
        for flavour in ["softrnic", "softrnic-tools"] {
            fs::create_dir(folder.join(flavour)).expect("a folder");
            symlink(library_path(), folder.join(flavour).join("libibverbs.so.1")).expect("a link");
        }
        fs::create_dir(folder.join("bin")).expect("a folder");
        fs::copy(env!("CARGO_BIN_EXE_softrnic"), folder.join("bin/softrnic")).expect("a copy");
        Self(folder)
    }

    /// A script in which `softrnic` is a command, and which knows none of the device's variables.
    fn script(&self, text: &str) -> Output {
        let mut command = Command::new("sh");
        let path =
            format!("{}:{}", self.0.join("bin").display(), std::env::var("PATH").expect("PATH"));
        command
            .args(["-uc", text])
            .env("PATH", path)
            .env_remove("LD_LIBRARY_PATH")
            .env("SOFTRNIC_SHM_DIR", &*self.0);
        for name in ["SOFTRNIC_FABRIC", "SOFTRNIC_FAULTS", "SOFTRNIC_DEVICES", "NCCL_GIN_TYPE"] {
            command.env_remove(name);
        }
        command.output().expect("a shell")
    }

    /// What a script prints, which must succeed.
    fn prints(&self, text: &str) -> String {
        let output = self.script(text);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

#[test]
fn a_shell_has_the_device_after_one_line() {
    let installed = Installed::new();
    let shown = installed.prints(
        "eval \"$(softrnic env --devices 3 --faults 'drop chance=0.5; drop chance=0.25')\"
         echo \"$SOFTRNIC_DEVICES,$SOFTRNIC_FAULTS,$NCCL_IBVERBS_LIB,$LD_LIBRARY_PATH\"
         echo \"$SOFTRNIC_FABRIC\"; eval \"$(softrnic env)\"; echo \"$SOFTRNIC_FABRIC\"
         unset SOFTRNIC_FABRIC; eval \"$(softrnic env --tools)\"; echo \"$SOFTRNIC_FABRIC\"; echo \"${LD_LIBRARY_PATH%%:*}\"
         eval \"$(softrnic env --fabric mine)\"; echo \"$SOFTRNIC_FABRIC\"",
    );
    let lines: Vec<_> = shown.lines().collect();
    let root = installed.0.canonicalize().expect("it is there");
    let plain = root.join("softrnic").display().to_string();
    assert_eq!(
        lines[0],
        format!("3,drop chance=0.5; drop chance=0.25,{plain}/libibverbs.so.1,{plain}")
    );
    assert!(lines[1].starts_with("softrnic-run-"), "{shown}");
    assert_eq!(lines[2], lines[1], "the fabric that the shell has stays");
    assert_ne!(lines[3], lines[1], "shells that begin anew do not meet");
    assert_eq!(lines[4..], [root.join("softrnic-tools").display().to_string(), "mine".to_owned()]);
}

/// A program that is started with it takes part in the fabric, which the shell's `softrnic` shows
/// without naming it.
#[test]
fn a_program_of_that_shell_takes_part() {
    hold_if_started();
    let (folder, library) = (Folder::new(), LibraryDir::new());
    let (softrnic, library) = (env!("CARGO_BIN_EXE_softrnic"), library.path().display());
    let set = format!("eval \"$({softrnic} env --library {library})\"; exec \"$0\" \"$@\"");
    let mut starter = Command::new("sh");
    starter.args(["-c", &set]).arg(this_program()).env_remove("SOFTRNIC_FABRIC");
    let holder = folder.hold_as(starter, &[]);
    let [name] = &folder.names()[..] else { panic!("{:?}", folder.names()) };
    assert!(name.starts_with("softrnic-run-"), "{name}");
    let shown = folder.command(&["stat"]).output().expect("runs");
    assert!(
        String::from_utf8_lossy(&shown.stdout).contains(&format!("process {}", holder.pid())),
        "{shown:?}"
    );
    holder.end();
}

#[test]
fn other_programs_read_it_too() {
    let installed = Installed::new();
    let of_json = installed.prints("softrnic env --json --fabric mine --ports 2");
    let seen: serde_json::Value = serde_json::from_str(&of_json).expect("JSON");
    assert_eq!(
        (seen["SOFTRNIC_FABRIC"].as_str(), seen["SOFTRNIC_PORTS"].as_str()),
        (Some("mine"), Some("2"))
    );
    let of_file = installed.prints("softrnic env --env-file --fabric mine --ports 2");
    let mut names: Vec<_> =
        of_file.lines().map(|line| line.split_once('=').expect("NAME=value")).collect();
    names.sort_unstable();
    let seen = seen.as_object().expect("an object");
    assert_eq!(
        names,
        seen.iter()
            .map(|(name, value)| (&name[..], value.as_str().expect("text")))
            .collect::<Vec<_>>()
    );
}

#[test]
fn what_is_wrong_is_told_and_not_evaluated() {
    let installed = Installed::new();
    for (arguments, words) in [
        ("--devices 9", "SOFTRNIC_DEVICES=\"9\""),
        ("--faults nonsense", "SOFTRNIC_FAULTS: "),
        ("--faults 'port-down=1s device=softrnic7/1'", "SOFTRNIC_FAULTS: "),
        ("--json --env-file", "cannot be used with"),
        ("--env-file --faults 'drop chance=0.5\ndrop'", "several lines"),
        ("--library /no/such/folder", "/no/such/folder"),
        ("--faithful", "unexpected argument"),
    ] {
        let output = installed.script(&format!("softrnic env {arguments}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(2), 0),
            "{arguments}: {said}"
        );
        assert!(said.contains(words), "{arguments}: {said}");
    }
    fs::remove_dir_all(installed.0.join("softrnic-tools")).expect("it was there");
    let said = installed.script("settings=$(softrnic env --tools) || exit 7");
    assert_eq!(said.status.code(), Some(7), "{said:?}");
}

/// `softrnic run` with this provider, with a shell's words before it, in a mount namespace of its
/// own.
#[cfg(target_arch = "x86_64")]
fn beneath(provider: &str, before: &str, options: &str) -> (Option<i32>, String) {
    let softrnic = env!("CARGO_BIN_EXE_softrnic");
    let script = format!("{before} exec {softrnic} run --provider {provider} {options} -- true");
    let mut command = Command::new("unshare");
    // SAFETY: no preconditions.
    let needed = if unsafe { libc::geteuid() } == 0 { "-m" } else { "-Urm" };
    command.args([needed, "sh", "-c", &script]).env_remove("LD_LIBRARY_PATH");
    let output = command.output().expect("a shell");
    (output.status.code(), text(&output.stderr))
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_provider_that_cannot_be_is_refused_in_a_sentence() {
    require!(mount_namespaces());
    let library =
        require!(system_mlx5().ok_or_else(|| Missing::new("libmlx5 (package ibverbs-providers)")));
    let folder = library.parent().expect("in a folder");
    let hide = format!("mount -t tmpfs none {};", folder.display());
    let newer = format!("{hide} touch {}/libmlx5-rdmav99.so;", folder.display());
    let other = format!("{hide} touch {}/libionic-rdmav99.so;", folder.display());
    let ours = library_path();
    let own = format!("export LD_LIBRARY_PATH={};", ours.parent().expect("a folder").display());
    let named = format!("export NCCL_IBVERBS_LIB={};", ours.display());
    let absent = "Debian and Ubuntu have it in the package ibverbs-providers";
    let unknown = "-rdmav99.so is of a version of rdma-core that is not known; known are";
    for (provider, before, options, words) in [
        ("mlx5", &hide[..], "", &format!("{absent}\n")[..]),
        ("ionic", &hide, "", &format!("{absent} of rdma-core 61 and newer\n")),
        ("mlx5", &newer, "", unknown),
        ("ionic", &other, "", unknown),
        ("mlx5", &own, "", "LD_LIBRARY_PATH leads the program to "),
        ("mlx5", &named, "", "NCCL_IBVERBS_LIB leads the program to "),
        ("mlx5", "", "--tools", "cannot be used with"),
        ("mlx5", "", "", "no ../softrnic-provider/libsoftrnic-provider.so beside "),
    ] {
        let (code, said) = beneath(provider, before, options);
        assert_eq!(code, Some(2), "{provider} {before} {options}: {said}");
        assert!(said.contains(words), "{provider} {before} {options}: {said}");
    }
}

/// The system's libmlx5, as libibverbs finds it.
#[cfg(target_arch = "x86_64")]
fn system_mlx5() -> Option<PathBuf> {
    let folder = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs");
    let mut files = fs::read_dir(folder).ok()?.flatten().map(|file| file.path());
    files.find(|path: &PathBuf| path.to_string_lossy().contains("libmlx5-rdmav"))
}

/// `softrnic stat --watch` on the fabrics of `folder`, and the lines that it prints.
fn start(folder: &Folder, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = folder.command(&[&["stat", "--watch"], arguments].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

/// How it ended, and what it said in the end.
fn end(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    (child.wait().expect("ends").code(), said)
}

#[test]
fn reports_follow_each_other_until_nobody_is_left() {
    hold_if_started();
    let folder = Folder::new();
    let holder = folder.hold("one");
    let (child, mut lines) = start(&folder, &["0.01", "--json"]);
    for _ in 0..3 {
        let line = lines.next().expect("a line").expect("text");
        let seen: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(
            (&seen["fabric"], &seen["processes"][0]["pid"]),
            (&"one".into(), &holder.pid().into())
        );
    }
    let (other, mut text) = start(&folder, &["0.01"]);
    assert_eq!(text.next().expect("a line").expect("text"), "fabric one");
    assert!(text.any(|line| line.expect("text").is_empty()), "between two reports");
    assert_eq!(text.next().expect("a line").expect("text"), "fabric one");
    holder.end();
    // Both read on, so that neither waits for a full pipe.
    assert!(lines.all(|line| line.is_ok()) && text.all(|line| line.is_ok()));
    for child in [child, other] {
        assert_eq!(end(child), (Some(0), "softrnic: no process uses one any more\n".to_owned()));
    }
}

#[test]
fn a_reader_that_goes_ends_it() {
    hold_if_started();
    let folder = Folder::new();
    let holder = folder.hold("one");
    let (child, mut lines) = start(&folder, &["0.01"]);
    assert!(lines.next().is_some());
    drop(lines);
    let (code, said) = end(child);
    assert!(
        code == Some(2) && said.contains("cannot write to standard output"),
        "{code:?}: {said}"
    );
    holder.end();
}

#[test]
fn a_period_that_cannot_be_is_refused() {
    assert!(refused(&["stat", "--watch", "soon"]).contains("must be seconds, from 0.01 to 86400"));
}
