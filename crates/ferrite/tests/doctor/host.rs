//! The host, its limits, and what is installed on it.

use std::path::Path;

use testkit::{Scratch, dist, require};

use crate::common::{ferrite, loopback};
use crate::setup;

#[test]
fn traffic_class_warns_where_ecn_is_off_for_the_priority() {
    let port = "/sys/class/infiniband/softrnic0/ports/1/gid_attrs/ndevs/0";
    let with = |value: &str| {
        let setup = setup("traffic-class").file(port, "rdma7\n").env("NCCL_IB_HCA", "softrnic0");
        setup.file("/sys/class/net/rdma7/ecn/roce_np/enable/3", value).env("NCCL_IB_TC", "106")
    };
    with("1\n").look().is("ok", &["traffic class 106, DSCP 26, priority 3", "ECN is on"]);
    with("0\n").look().is("warn", &["ECN is off (roce_np)", "roce_np and roce_rp"]);
    setup("traffic-class").look().is("unknown", &["traffic class 0", "does not show ECN"]);
    setup("traffic-class").softrnic("SOFTRNIC_LINK", "ib").look().is("ok", &["no RoCE port"]);
}

#[test]
fn numa_warns_if_no_cpu_near_the_device_may_be_used() {
    let with = |cpus: &str| {
        let setup = setup("numa").file("/sys/devices/pci0000:00/0000:00:01.0/numa_node", "1\n");
        let setup = setup
            .link("/sys/class/infiniband/x0/device", "../../../devices/pci0000:00/0000:00:01.0");
        setup.file("/sys/devices/system/node/node1/cpulist", cpus)
    };
    with("0-1023\n").look().is("ok", &["NUMA node 1"]);
    with("5000\n").look().is("warn", &["0 of its 1 CPUs", "taskset"]);
    setup("numa").look().is("ok", &["names a NUMA node"]);
}

#[test]
fn cpus_warns_of_too_few_and_of_a_quota() {
    let with = |ranks: &str, quota: &str| {
        let setup = setup("cpus").word("--ranks").word(ranks).file("/sys/fs/cgroup/cpu.max", quota);
        setup.shell("true")
    };
    with("1024", "max 100000\n").look().is("warn", &["for 1024 processes", "--cpus-per-task"]);
    with("1", "100000 100000\n").look().is("warn", &["quota is 1 CPUs"]);
}

#[test]
fn descriptors_and_threads_warn_of_low_limits() {
    setup("descriptors")
        .shell("ulimit -n 256")
        .look()
        .is("warn", &["256 open files", "ulimit -n 65536"]);
    setup("descriptors").shell("ulimit -n 4096").look().is("ok", &["4096 open files"]);
    setup("threads")
        .shell("ulimit -u 63 2>/dev/null || ulimit -p 63")
        .look()
        .is("warn", &["63 threads", "ulimit -u unlimited"]);
}

#[test]
fn shm_fails_if_no_file_can_be_made() {
    setup("shm").look().is("FAIL", &["no file can be made in /dev/shm", "--shm-size"]);
    setup("shm").file("/dev/shm", "").look().is("FAIL", &["Not a directory"]);
    let there = setup("shm").file("/dev/shm/x", "").look();
    assert_ne!(there.verdict, "FAIL", "{}", there.text);
}

#[test]
fn clock_warns_of_a_slow_source() {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    setup("clock").file(source, "tsc\n").look().is("ok", &["tsc"]);
    setup("clock").file(source, "hpet\n").look().is("warn", &["hpet", "clocksource=tsc"]);
    setup("clock").look().is("unknown", &["/sys does not tell"]);
}

#[test]
fn nccl_warns_of_old_versions_and_of_several() {
    let library = |version: &str| format!("\0NCCL version {version}+cuda12.4\0");
    let python = "/usr/local/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";
    let with = |version: &str| setup("nccl").file("/usr/lib/libnccl.so.2", library(version));
    with("2.21.5").look().is("ok", &["/usr/lib/libnccl.so.2: 2.21.5"]);
    with("2.18.3").look().is("warn", &["2.18.3", "keep one version"]);
    for version in ["2.26.2", "2.27.7"] {
        with(version).look().is("warn", &[version, "network errors do not reach"]);
    }
    for version in ["2.23.4", "2.25.1"] {
        with(version).look().is("warn", &[version, "ncclCommAbort does not return"]);
    }
    for version in ["2.22.3", "2.28.3"] {
        with(version).look().is("ok", &[version]);
    }
    let two = with("2.21.5").file(python, library("2.28.9")).look();
    two.is("warn", &["site-packages/nvidia/nccl/lib/libnccl.so.2: 2.28.9", "2 different versions"]);
    setup("nccl").look().is("unknown", &["no libnccl.so.2"]);
}

#[test]
fn nccl_names_the_library_that_pytorch_takes_and_what_goes_beside_the_plugin() {
    let library = |version: &str| format!("\0NCCL version {version}+cuda12.4\0");
    let packages = "/home/u/env/lib/python3.12/site-packages";
    let with = |system: &str, own: &str| {
        let setup = setup("nccl").file("/usr/lib/libnccl.so.2", library(system));
        // A virtual environment that is in PATH alone.
        let setup =
            setup.file("/home/u/env/bin/python3", "").env("PATH", "/home/u/env/bin:/usr/bin:/bin");
        setup.file(&format!("{packages}/nvidia/nccl/lib/libnccl.so.2"), library(own))
    };
    let without = with("2.28.3", "2.28.9").look();
    without.is(
        "warn",
        &[&format!("{packages}/nvidia/nccl/lib/libnccl.so.2: 2.28.9"), "2 different versions"],
    );
    let torch =
        |system, own| with(system, own).file(&format!("{packages}/torch/lib/libtorch.so"), "");
    let own = torch("2.28.3", "2.28.9").look();
    own.is("ok", &["2.28.9, which PyTorch takes", "/usr/lib/libnccl.so.2: 2.28.3"]);
    assert!(!own.text.contains("one-sided"), "{}", own.text);
    torch("2.28.3", "2.29.7").look().is("ok", &["NCCL 2.29.7 sends one-sided operations"]);
    let later = torch("2.28.3", "2.32.3").look();
    later.is("ok", &["NCCL 2.32.3 sends one-sided operations", "opens every RDMA device itself"]);
    let older = torch("2.32.3", "2.21.5").look();
    assert!(!older.text.contains("one-sided"), "PyTorch takes another release: {}", older.text);
}

#[test]
fn nccl_warns_of_wheels_that_overwrote_each_other() {
    let packages = "/usr/local/lib/python3.11/site-packages";
    let library = format!("{packages}/nvidia/nccl/lib/libnccl.so.2");
    let with = |wheels: &[&str]| {
        let setup = setup("nccl").file(&library, "\0NCCL version 2.28.9+cuda13.0\0");
        wheels.iter().fold(setup, |setup, wheel| {
            setup.file(&format!("{packages}/{wheel}.dist-info/METADATA"), "")
        })
    };
    let (cu12, cu13) = ("nvidia_nccl_cu12-2.21.5", "nvidia_nccl_cu13-2.28.9");
    let both = with(&[cu12, cu13]).look();
    both.is(
        "warn",
        &[
            &format!("{library} is a file of nvidia-nccl-cu12 2.21.5 and nvidia-nccl-cu13 2.28.9"),
            "pip uninstall nvidia-nccl-cu12 nvidia-nccl-cu13;",
        ],
    );
    with(&[cu13, "nvidia_nvshmem_cu12-3.3.9", "nvidia_nccl_cu12"]).look().is("ok", &["2.28.9"]);
}

#[test]
fn firmware_warns_of_devices_of_one_kind_that_differ() {
    let with = |one: &str, other: &str| {
        [("x0", one), ("x1", other)].into_iter().fold(
            setup("firmware"),
            |setup, (name, version)| {
                let class = format!("/sys/class/infiniband/{name}");
                setup
                    .file(&format!("{class}/hca_type"), "MT4129\n")
                    .file(&format!("{class}/fw_ver"), version)
            },
        )
    };
    with("28.40.1000", "28.40.1000").look().is("ok", &["MT4129, firmware 28.40.1000"]);
    with("28.40.1000", "28.36.2050").look().is("warn", &["and x1 has 28.36.2050", "mlxfwmanager"]);
}

#[test]
fn kernel_log_warns_of_faults_of_hardware() {
    let log = |lines: &str| setup("kernel-log").file("/var/log/dmesg", lines);
    log("[1.0] eth0: link up\n[2.0] mlx5_core 0000:17:00.0: firmware version: 28.40\n")
        .look()
        .is("ok", &["2 lines"]);
    let lines = "[1.0] x\n[9.1] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n[9.2] pcieport: AER: Corrected error\n";
    log(lines).look().is("warn", &["Xid", "AER", "NVIDIA documents Xid"]);
    setup("kernel-log").look().is("unknown", &["dmesg_restrict"]);
}

#[test]
fn control_port_reaches_itself() {
    setup("control-port").env("NCCL_SOCKET_IFNAME", "lo").look().is("ok", &["was reached"]);
    setup("control-port")
        .env("NCCL_SOCKET_IFNAME", "none9")
        .look()
        .is("unknown", &["no interface"]);
}

#[test]
fn a_warning_is_no_failure_unless_it_is_to_be_one() {
    require!(dist::plugin());
    let warned = || setup("control").env("NCCL_SOCKET_IFNAME", "lo");
    let report = warned().look();
    assert_eq!((report.code, report.verdict.as_str()), (0, "warn"));
    assert_eq!(warned().word("--fail-on-warn").look().code, 1);
}

#[test]
fn wrong_command_lines_are_invalid_and_name_what_there_is() {
    let (code, _, stderr) = ferrite(&["doctor", "--only", "nothing"], &[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("there is no such row") && stderr.contains("memlock"), "{stderr}");
    assert_eq!(ferrite(&["doctor", "--sysroot", "/no/such/folder"], &[]).0, 2);
}

#[test]
fn lines_have_verdict_row_fact_and_cure() {
    let root = Scratch::new();
    let words = ["doctor", "--only", "settings", "--sysroot", root.to_str().expect("text")];
    let (code, stdout, stderr) =
        ferrite(&words, &[("NCCL_IB_TIMEOUT", "32"), ("HOME", "/home/user")]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("FAIL     settings        NCCL_IB_TIMEOUT=32: "), "{stdout}");
    assert!(lines[1].trim_start().starts_with("-> correct or unset the variable"), "{stdout}");
    assert_eq!(
        lines[2],
        format!(
            "1 FAIL, 0 warn, 0 unknown, 0 ok; by ferrite {}",
            nccl_net::inspect::version::text()
        )
    );
}

#[test]
fn all_rows_are_looked_at_and_no_file_is_left() {
    let (library, plugin) = (require!(dist::softrnic_library_folder()), require!(dist::plugin()));
    let dist = plugin.parent().and_then(Path::parent).expect("dist/lib");
    let folders = [Scratch::new(), Scratch::new(), Scratch::new()];
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let names = ["SOFTRNIC_SHM_DIR", "FERRITE_STATS_DIR", "FERRITE_REPORT_DIR"];
    let mut env: Vec<(&str, String)> =
        names.into_iter().zip(folders.iter().map(|folder| text(folder))).collect();
    env.extend([
        ("LD_LIBRARY_PATH", text(&library)),
        ("FERRITE_DIST", text(dist)),
        ("SOFTRNIC_QUIET", "1".into()),
    ]);
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let (code, stdout, stderr) = ferrite(&["doctor"], &env);
    assert!([0, 1].contains(&code), "{stdout}{stderr}");
    assert!(stdout.contains("softrnic1:1: 1 MiB arrived right"), "{stdout}");
    let (_, listed, _) = ferrite(&["doctor", "--list"], &[]);
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let has_row = |line: &str| line.split_whitespace().nth(1) == Some(name);
        assert!(stdout.lines().any(has_row), "{name} is missing: {stdout}");
    }
    for (folder, name) in folders.iter().zip(names) {
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "{name}");
    }
}

#[test]
fn loopback_fails_if_the_message_does_not_arrive_or_arrives_wrong() {
    setup("loopback").look().is("ok", &["softrnic0:1", "1 MiB arrived right"]);
    let faults = [
        ("drop attempts=all", "status 12"),
        ("corrupt", "is wrong"),
        ("qp-error opcode=write-imm", "status 2"),
    ];
    for (rule, words) in faults {
        setup("loopback")
            .softrnic("SOFTRNIC_FAULTS", rule)
            .look()
            .is("FAIL", &["softrnic0:1", words]);
    }
}

#[test]
fn loopback_fails_with_the_plugins_words_if_queue_pairs_cannot_be_connected() {
    let unresolved = setup("loopback").softrnic("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT");
    unresolved
        .env("NCCL_IB_MQP_RETRY_CNT", "0")
        .look()
        .is("FAIL", &["Connection timed out", "neighbour"]);
}

#[test]
fn loopback_fails_if_the_file_is_no_plugin_and_is_unknown_without_one() {
    let file = require!(dist::softrnic_library_folder()).join("libibverbs.so.1");
    let other = setup("loopback").word("--plugin").word(file.to_str().expect("text"));
    other.look().is("FAIL", &["not an NCCL network plugin"]);
    setup("loopback")
        .env("FERRITE_DIST", "/no/such/folder")
        .look()
        .is("unknown", &["no plugin at"]);
}

#[test]
fn control_fails_if_no_interface_fits_and_warns_of_loopback() {
    require!(dist::plugin());
    setup("control")
        .env("NCCL_SOCKET_IFNAME", "lo")
        .look()
        .is("warn", &["no other host", "NCCL_SOCKET_IFNAME=DEV"]);
    let some = setup("control").env("NCCL_SOCKET_IFNAME", "lo,none9").look();
    some.is(
        "warn",
        &["NCCL_SOCKET_IFNAME=lo,none9: no interface that is up has a name that begins with none9"],
    );
    let excluded = setup("control").env("NCCL_SOCKET_IFNAME", "^none9").look();
    assert!(
        excluded.text.contains("\"ok\" \"\" \"NCCL_SOCKET_IFNAME=^none9: no interface"),
        "{}",
        excluded.text
    );
    setup("control")
        .env("NCCL_SOCKET_IFNAME", "none9")
        .look()
        .is("FAIL", &["NCCL_SOCKET_IFNAME=none9"]);
}

#[test]
fn plugins_tells_which_file_nccl_takes() {
    let ours = std::fs::read(require!(dist::plugin())).expect("the plugin");
    let theirs = std::fs::read(loopback()).expect("the other plugin");
    let with = |files: &[(&str, &[u8])]| {
        files.iter().fold(setup("plugins"), |setup, (path, bytes)| setup.file(path, bytes))
    };
    with(&[])
        .look()
        .is("warn", &["takes no plugin", "NCCL_NET_PLUGIN is not set", "export NCCL_NET_PLUGIN"]);
    with(&[("/usr/lib/libnccl-net.so", &ours)])
        .look()
        .is("ok", &["NCCL 2.20 and later", "takes /usr/lib/libnccl-net.so: Ferrite", "v8 to v12"]);
    let both = [
        ("/opt/x/libnccl-net.so", &*theirs),
        ("/usr/lib/libnccl-net.so", &*ours),
        ("/etc/ld.so.conf.d/x.conf", b"/opt/x\n"),
    ];
    let both = with(&both).look();
    both.is(
        "warn",
        &[
            "takes /opt/x/libnccl-net.so, which is not Ferrite",
            "/usr/lib/libnccl-net.so is there as well",
        ],
    );
    let two = [
        ("/usr/lib/libnccl-net.so", &*ours),
        ("/lib64/libnccl-net.so", &[&ours[..], b"x"].concat()),
    ];
    let twice = with(&two).look();
    twice.is("warn", &["another copy of Ferrite (0.1.0+", "remove the copy that is not meant"]);
    let after =
        with(&[("/usr/lib/libnccl-net-ferrite.so", &ours), ("/usr/lib/libnccl-net.so", &theirs)]);
    let after = after.env("NCCL_NET_PLUGIN", "ferrite").look();
    after.is(
        "ok",
        &["Ferrite 0.1.0+", "/usr/lib/libnccl-net.so is there as well, and is not taken"],
    );
    let named = with(&[("/opt/f.so", &ours), ("/usr/lib/libnccl-net.so", &ours)]);
    named.env("NCCL_NET_PLUGIN", "/opt/f.so").look().is("ok", &["takes /opt/f.so: Ferrite"]);
    with(&[]).env("NCCL_NET_PLUGIN", "/opt/f.so").look().is("FAIL", &["/opt/f.so not found"]);
    with(&[])
        .env("NCCL_NET_PLUGIN", "none")
        .look()
        .is("warn", &["takes no plugin", "NCCL_NET_PLUGIN=none"]);
    let image = with(&[("/usr/lib/libnccl-net.so", &ours)]).env("NCCL_NET_PLUGIN", "spcx").look();
    image.is(
        "FAIL",
        &[
            "takes no plugin", "spcx, libnccl-net-spcx.so not found",
            "libnccl-net.so is there as well",
        ],
    );
    let mut other_processor = ours.clone();
    other_processor[18..20].copy_from_slice(&21_u16.to_le_bytes());
    let other = with(&[("/usr/lib/libnccl-net.so", &other_processor)]).look();
    other.is("warn", &["it is for another processor (ELF machine 21): install the package for "]);
    let empty = with(&[("/usr/lib/libnccl-net.so", b"text")]).look();
    empty.is("warn", &["takes no plugin", "cannot be loaded"]);
    let list = || with(&[("/opt/f.so", &ours)]).env("NCCL_NET_PLUGIN", "spcx,/opt/f.so");
    list()
        .look()
        .is("warn", &["NCCL 2.20 to 2.26", "NCCL 2.27 and later", "takes /opt/f.so: Ferrite"]);
    let library = |version: &str| format!("NCCL version {version}+cuda12.4");
    list()
        .file("/lib/libnccl.so.2", library("2.28.9"))
        .look()
        .is("ok", &["NCCL 2.28.9", "takes /opt/f.so: Ferrite"]);
    list()
        .file("/lib/libnccl.so.2", library("2.21.5"))
        .look()
        .is("FAIL", &["NCCL 2.21.5", "takes no plugin"]);
}

#[test]
fn settings_fails_out_of_range_and_warns_of_names_without_effect() {
    setup("settings").env("NCCL_IB_TIMEOUT", "22").look().is("ok", &["each in range"]);
    setup("settings")
        .env("NCCL_IB_TIMEOUT", "32")
        .look()
        .is("FAIL", &["NCCL_IB_TIMEOUT=32", "from 0 to 31"]);
    setup("settings").env("NCCL_IB_TIMOUT", "20").look().is("warn", &["NCCL_IB_TIMEOUT is meant?"]);
    setup("settings")
        .file("/etc/nccl.conf", "NCCL_IB_TC=300\n")
        .look()
        .is("FAIL", &["NCCL_IB_TC=300"]);
    let precedes =
        setup("settings").file("/etc/nccl.conf", "NCCL_IB_TC=300\n").env("NCCL_IB_TC", "3");
    precedes.look().is("ok", &["each in range", "from the environment: NCCL_IB_TC=3"]);
}

#[test]
fn settings_names_the_file_and_the_line_of_each_value() {
    let with = |text: &str| setup("settings").file("/etc/nccl.conf", text);
    with("# site\nNCCL_IB_TC=106\n")
        .look()
        .is("ok", &["NCCL_IB_TC=106, from /etc/nccl.conf, line 2"]);
    with("NCCL_IB_TC=300\n")
        .look()
        .is("FAIL", &["NCCL_IB_TC=300", "(from /etc/nccl.conf, line 1)"]);
    let misspelt = with("\nNCCL_IB_TIMOUT=22\n").look();
    misspelt.is("warn", &["NCCL_IB_TIMOUT=22 has no effect", "(from /etc/nccl.conf, line 2)"]);
    let own = with("NCCL_IB_TC=1\n").file("/home/user/.nccl.conf", "NCCL_IB_TC=2\n");
    own.look().is("ok", &["NCCL_IB_TC=2, from /home/user/.nccl.conf, line 1"]);
    let named = || {
        let named = with("NCCL_IB_SL=1\n").file("/site.conf", "NCCL_IB_TC=3\n");
        named.env("NCCL_CONF_FILE", "/site.conf")
    };
    named()
        .look()
        .is("ok", &["NCCL_IB_TC=3, from /site.conf, line 1", "NCCL_IB_SL=1, from /etc/nccl.conf"]);
    let absent =
        with("").file("/home/user/.nccl.conf", "NCCL_IB_TC=300\n").env("NCCL_CONF_FILE", "/absent");
    absent.look().is("ok", &["each in range"]);
    let library = |version: &str| format!("NCCL version {version}+cuda12.4");
    let old = || named().file("/usr/lib/libnccl.so.2", library("2.21.5"));
    let alone = old().look();
    assert!(
        !alone.text.contains("NCCL_IB_TC=3"),
        "2.21.5 does not know the variable: {}",
        alone.text
    );
    let packages = "/usr/lib/python3.12/site-packages";
    let both =
        || old().file(&format!("{packages}/nvidia/nccl/lib/libnccl.so.2"), library("2.30.7"));
    both()
        .look()
        .is("warn", &["NCCL_IB_TC: NCCL 2.30.7, which is here too", "3 (from /site.conf, line 1)"]);
    let torch = both().file(&format!("{packages}/torch/lib/libtorch.so"), "").look();
    torch.is(
        "warn",
        &["NCCL_IB_TC=3, from /site.conf", "NCCL_IB_TC: NCCL 2.21.5, which is here too", "not set"],
    );
}

#[test]
fn settings_warns_of_what_belongs_to_a_name_or_a_value() {
    require!(dist::plugin());
    let file = |text: &str| setup("settings").file("/etc/nccl.conf", text);
    for (line, words) in [
        ("NCCL_IB_TC = 106", "the blank belongs to the name, and NCCL_IB_TC is not set by it"),
        (
            "export NCCL_IB_TC=106",
            "the word `export` belongs to the name, and NCCL_IB_TC is not set by it",
        ),
        ("NCCL_NET=Ferrite ", "the blank at the end or the beginning belongs to the value"),
        ("NCCL_IB_HCA=softrnic0 # both", "the comment belongs to the value"),
        ("NCCL_IB_HCA=\"softrnic0\"", "the quotation marks belong to the value"),
    ] {
        let report = file(line).look();
        report.is("warn", &[words, "/etc/nccl.conf, line 1", "write NAME=VALUE"]);
        assert_eq!(report.text.matches("\"warn\"").count(), 1, "{}", report.text);
    }
    setup("settings")
        .env("NCCL_ENV_PLUGIN", "site")
        .look()
        .is("unknown", &["NCCL_ENV_PLUGIN=site", "NCCL_DEBUG=INFO"]);
}
