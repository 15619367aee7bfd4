//! The host, its limits, and what is installed on it.

use testkit::require;

use crate::setup;

#[test]
fn traffic_class_warns_where_ecn_is_off_for_the_priority() {
    let port = "/sys/class/infiniband/softrnic0/ports/1/gid_attrs/ndevs/0";
    let with = |value: &str| {
        let setup = setup("traffic-class").map(|setup| setup.file(port, "rdma7\n").env("NCCL_IB_HCA", "softrnic0"));
        setup.map(|setup| setup.file("/sys/class/net/rdma7/ecn/roce_np/enable/3", value).env("NCCL_IB_TC", "106"))
    };
    require!(with("1\n")).look().is("ok", &["traffic class 106, DSCP 26, priority 3", "ECN is on"]);
    require!(with("0\n")).look().is("warn", &["ECN is off (roce_np)", "roce_np/enable"]);
    require!(setup("traffic-class")).look().is("unknown", &["traffic class 0", "does not show ECN"]);
    require!(setup("traffic-class")).softrnic("SOFTRNIC_LINK", "ib").look().is("ok", &["no RoCE port"]);
}

#[test]
fn numa_warns_if_no_cpu_near_the_device_may_be_used() {
    let with = |cpus: &str| {
        let setup = setup("numa").map(|setup| setup.file("/sys/devices/pci0000:00/0000:00:01.0/numa_node", "1\n"));
        let setup = setup
            .map(|setup| setup.link("/sys/class/infiniband/x0/device", "../../../devices/pci0000:00/0000:00:01.0"));
        setup.map(|setup| setup.file("/sys/devices/system/node/node1/cpulist", cpus))
    };
    require!(with("0-1023\n")).look().is("ok", &["NUMA node 1"]);
    require!(with("5000\n")).look().is("warn", &["0 of its 1 CPUs", "taskset"]);
    require!(setup("numa")).look().is("ok", &["names a NUMA node"]);
}

#[test]
fn cpus_warns_of_too_few_and_of_a_quota() {
    let with = |ranks: &str, quota: &str| {
        let setup = setup("cpus").map(|setup| setup.word("--ranks").word(ranks).file("/sys/fs/cgroup/cpu.max", quota));
        setup.map(|setup| setup.shell("true"))
    };
    require!(with("1024", "max 100000\n")).look().is("warn", &["for 1024 processes", "--cpus-per-task"]);
    require!(with("1", "100000 100000\n")).look().is("warn", &["quota is 1 CPUs"]);
}

#[test]
fn descriptors_and_threads_warn_of_low_limits() {
    require!(setup("descriptors")).shell("ulimit -n 256").look().is("warn", &["256 open files", "ulimit -n 65536"]);
    require!(setup("descriptors")).shell("ulimit -n 4096").look().is("ok", &["4096 open files"]);
    require!(setup("threads"))
        .shell("ulimit -u 63 2>/dev/null || ulimit -p 63")
        .look()
        .is("warn", &["63 threads", "ulimit -u unlimited"]);
}

#[test]
fn shm_fails_if_no_file_can_be_made() {
    require!(setup("shm")).look().is("FAIL", &["no file can be made in /dev/shm", "--shm-size"]);
    require!(setup("shm")).file("/dev/shm", "").look().is("FAIL", &["Not a directory"]);
    let there = require!(setup("shm")).file("/dev/shm/x", "").look();
    assert_ne!(there.verdict, "FAIL", "{}", there.text);
}

#[test]
fn clock_warns_of_a_slow_source() {
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    require!(setup("clock")).file(source, "tsc\n").look().is("ok", &["tsc"]);
    require!(setup("clock")).file(source, "hpet\n").look().is("warn", &["hpet", "clocksource=tsc"]);
    require!(setup("clock")).look().is("unknown", &["/sys does not tell"]);
}

#[test]
fn nccl_warns_of_old_versions_and_of_several() {
    let library = |version: &str| format!("\0NCCL version {version}+cuda12.4\0");
    let python = "/usr/local/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2";
    let with = |version: &str| setup("nccl").map(|setup| setup.file("/usr/lib/libnccl.so.2", library(version)));
    require!(with("2.21.5")).look().is("ok", &["/usr/lib/libnccl.so.2: 2.21.5"]);
    require!(with("2.18.3")).look().is("warn", &["2.18.3", "one version in the image"]);
    for version in ["2.26.2", "2.27.7"] {
        require!(with(version)).look().is("warn", &[version, "not told of errors of the network"]);
    }
    for version in ["2.23.4", "2.25.1"] {
        require!(with(version)).look().is("warn", &[version, "ncclCommAbort does not return"]);
    }
    for version in ["2.22.3", "2.28.3"] {
        require!(with(version)).look().is("ok", &[version]);
    }
    let two = require!(with("2.21.5")).file(python, library("2.28.9")).look();
    two.is("warn", &["site-packages/nvidia/nccl/lib/libnccl.so.2: 2.28.9", "2 different versions"]);
    require!(setup("nccl")).look().is("unknown", &["no libnccl.so.2"]);
}

#[test]
fn nccl_names_the_library_that_pytorch_takes_and_what_goes_beside_the_plugin() {
    let library = |version: &str| format!("\0NCCL version {version}+cuda12.4\0");
    let packages = "/home/u/env/lib/python3.12/site-packages";
    let with = |system: &str, own: &str| {
        let setup = setup("nccl").map(|setup| setup.file("/usr/lib/libnccl.so.2", library(system)));
        setup.map(|setup| {
            // A virtual environment that is in PATH alone.
            let setup = setup.file("/home/u/env/bin/python3", "").env("PATH", "/home/u/env/bin:/usr/bin:/bin");
            setup.file(&format!("{packages}/nvidia/nccl/lib/libnccl.so.2"), library(own))
        })
    };
    let without = require!(with("2.28.3", "2.28.9")).look();
    without.is("warn", &[&format!("{packages}/nvidia/nccl/lib/libnccl.so.2: 2.28.9"), "2 different versions"]);
    let torch =
        |system, own| with(system, own).map(|setup| setup.file(&format!("{packages}/torch/lib/libtorch.so"), ""));
    let own = require!(torch("2.28.3", "2.28.9")).look();
    own.is("ok", &["2.28.9, which PyTorch takes", "/usr/lib/libnccl.so.2: 2.28.3"]);
    assert!(!own.text.contains("one-sided"), "{}", own.text);
    require!(torch("2.28.3", "2.29.7")).look().is("ok", &["NCCL 2.29.7 sends one-sided operations"]);
    let later = require!(torch("2.28.3", "2.32.3")).look();
    later.is("ok", &["NCCL 2.32.3 sends one-sided operations", "opens every RDMA device itself"]);
    let older = require!(torch("2.32.3", "2.21.5")).look();
    assert!(!older.text.contains("one-sided"), "PyTorch takes another release: {}", older.text);
}

#[test]
fn firmware_warns_of_devices_of_one_kind_that_differ() {
    let with = |one: &str, other: &str| {
        [("x0", one), ("x1", other)].into_iter().fold(setup("firmware"), |setup, (name, version)| {
            let class = format!("/sys/class/infiniband/{name}");
            setup.map(|v| v.file(&format!("{class}/hca_type"), "MT4129\n").file(&format!("{class}/fw_ver"), version))
        })
    };
    require!(with("28.40.1000", "28.40.1000")).look().is("ok", &["MT4129, firmware 28.40.1000"]);
    require!(with("28.40.1000", "28.36.2050")).look().is("warn", &["and x1 has 28.36.2050", "mlxfwmanager"]);
}

#[test]
fn kernel_log_warns_of_faults_of_hardware() {
    let log = |lines: &str| setup("kernel-log").map(|setup| setup.file("/var/log/dmesg", lines));
    require!(log("[1.0] eth0: link up\n[2.0] mlx5_core 0000:17:00.0: firmware version: 28.40\n"))
        .look()
        .is("ok", &["2 lines"]);
    let lines = "[1.0] x\n[9.1] NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.\n[9.2] pcieport: AER: Corrected error\n";
    require!(log(lines)).look().is("warn", &["Xid", "AER", "NVIDIA's documentation"]);
    require!(setup("kernel-log")).look().is("unknown", &["dmesg_restrict"]);
}

#[test]
fn control_port_reaches_itself() {
    require!(setup("control-port")).env("NCCL_SOCKET_IFNAME", "lo").look().is("ok", &["was reached"]);
    require!(setup("control-port")).env("NCCL_SOCKET_IFNAME", "none9").look().is("unknown", &["no interface"]);
}
