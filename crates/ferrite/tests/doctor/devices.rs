//! From libibverbs to open devices.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::cases;

use testkit::{Missing, Scratch, program, require};

use crate::common::{cached_nccl, shared_object};
use crate::{Setup, setup};

/// A folder with a libibverbs of 2008, whose only device cannot be opened.
fn old_library(flags: &[&str]) -> (Scratch, PathBuf) {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/old_verbs.map");
    let library = shared_object(
        "old_verbs",
        &[&[format!("-Wl,--version-script={}", map.display()).as_str()], flags].concat(),
    );
    let folder = Scratch::new();
    let path = folder.join("libibverbs.so.1");
    std::fs::copy(library, &path).expect("copied");
    (folder, path)
}

#[test]
fn libibverbs_fails_if_it_cannot_be_loaded_and_warns_if_it_is_old() {
    setup("libibverbs").look().is("ok", &["softrnic/libibverbs.so.1"]);
    let folder = Scratch::new();
    folder.write("libibverbs.so.1", "");
    folder.write("libibverbs.so", "");
    let empty = setup("libibverbs").env("LD_LIBRARY_PATH", folder.display()).look();
    empty.is("FAIL", &["no libibverbs", "file too short", "install libibverbs1"]);
    let missing = setup("libibverbs").env("NCCL_IBVERBS_LIB", "/no/such/library.so").look();
    missing.is("FAIL", &["/no/such/library.so"]);
    let (_folder, old) = old_library(&[]);
    let old = setup("libibverbs").env("NCCL_IBVERBS_LIB", old.display()).look();
    old.is("warn", &["GPU memory by dma-buf (from IBVERBS_1.12 on)", "rdma-core 34"]);
}

#[test]
fn providers_fails_for_a_device_that_libibverbs_does_not_list() {
    let with = |name: &str| {
        setup("providers")
            .link(&format!("/sys/class/infiniband/{name}/device/driver"), "/x/mlx5_core")
    };
    with("mlx5_7").look().is("FAIL", &["mlx5_7", "kernel driver mlx5_core", "ibverbs-providers"]);
    with("softrnic0").look().is("ok", &["lists 2 devices, the kernel 1"]);
}

#[test]
fn device_nodes_fails_for_a_file_that_is_missing_or_cannot_be_opened() {
    let kernel =
        || setup("device-nodes").file("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    kernel()
        .look()
        .is("FAIL", &["/dev/infiniband/uverbs0", "No such file", "--device=/dev/infiniband"]);
    kernel().file("/dev/infiniband/uverbs0/x", "").look().is("FAIL", &["Is a directory"]);
    kernel().file("/dev/infiniband/uverbs0", "").look().is("ok", &["can be opened"]);
}

#[test]
fn device_nodes_fails_where_neither_the_kernel_nor_libibverbs_has_a_device() {
    setup("device-nodes").look().is("ok", &["need none"]);
    let none = setup("device-nodes").env("NCCL_IBVERBS_LIB", "/no/such/library.so").look();
    none.is("FAIL", &["modprobe ib_uverbs"]);
}

#[test]
fn open_fails_for_a_device_that_cannot_be_opened() {
    setup("open").look().is("ok", &["softrnic0", "softrnic1", "firmware"]);
    let (_folder, old) = old_library(&[]);
    let refused = setup("open").env("NCCL_IBVERBS_LIB", old.display()).look();
    refused.is("FAIL", &["ibv_open_device(old0)", "Permission denied", "NCCL_IB_HCA"]);
}

#[test]
fn a_library_that_crashes_is_reported_and_does_not_end_the_doctor() {
    let (_folder, crashing) = old_library(&["-DCRASH"]);
    let crashed = setup("libibverbs").env("NCCL_IBVERBS_LIB", crashing.display()).look();
    crashed.is("FAIL", &["looking at the devices failed: signal 6"]);
}

#[test]
fn ports_fails_if_no_port_is_left_to_use() {
    setup("ports").look().is("ok", &["softrnic1:1"]);
    let one = setup("ports").env("NCCL_IB_HCA", "softrnic0").look();
    one.is("ok", &["active, not used: NCCL_IB_HCA=softrnic0 excludes it"]);
    let none = setup("ports").env("NCCL_IB_HCA", "mlx5").look();
    none.is(
        "FAIL",
        &["would use no port: NCCL_IB_HCA=mlx5 excludes all of them", "correct NCCL_IB_HCA"],
    );
    assert!(!none.text.contains("cable"), "{}", none.text);
}

#[test]
fn ports_warns_of_entries_of_the_list_that_name_nothing() {
    let with = |list: &str| setup("ports").env("NCCL_IB_HCA", list);
    let there = "there are: softrnic0, softrnic1";
    with("softrnic0,softrnic7").look().is("warn", &["begins with softrnic7", there]);
    with("=softrnic0,rocep1s0f0").look().is("warn", &["no device has the name rocep1s0f0", there]);
    with("softrnic0:2,softrnic1")
        .look()
        .is("warn", &["softrnic0 has no port 2; its last one is 1"]);
    with("^=softrnic0,^=softrnic1").look().is("warn", &["^=softrnic1 counts as a name"]);
    with("softrnic0, softrnic1").look().is("warn", &["built-in transport takes blanks"]);
    with("^mlx5_bond").look().is("ok", &["begins with mlx5_bond"]);
    with("softrnic0::2,softrnic1:").look().is("ok", &["softrnic1:1"]);
}

#[test]
fn link_layer_fails_for_one_that_is_neither_infiniband_nor_ethernet() {
    setup("link-layer").softrnic("SOFTRNIC_LINK", "ib").look().is("ok", &["InfiniBand"]);
    setup("link-layer")
        .softrnic("SOFTRNIC_LINK", "unspecified")
        .look()
        .is("FAIL", &["neither", "NCCL plugin"]);
}

#[test]
fn lid_is_looked_at_on_infiniband() {
    setup("lid").softrnic("SOFTRNIC_LINK", "ib").look().is("ok", &["subnet manager at LID 1"]);
    setup("lid").look().is("ok", &["no active InfiniBand port"]);
}

#[test]
fn speed_warns_of_a_port_that_is_slower_than_another() {
    setup("speed").look().is("ok", &["400 Gb/s"]);
    let slow = setup("speed").softrnic("SOFTRNIC_SPEED", "400,softrnic1/1=100").look();
    slow.is("warn", &["100 Gb/s, and another port has 400 Gb/s", "reseat"]);
}

#[test]
fn mtu_warns_below_the_largest_and_names_the_interface() {
    setup("mtu").look().is("ok", &["4096 of 4096"]);
    let small = setup("mtu").softrnic("SOFTRNIC_MTU", "1024").look();
    small.is("warn", &["1024 of 4096", "mtu 9000"]);
    let named = setup("mtu").softrnic("SOFTRNIC_MTU", "1024");
    let named = named.file("/sys/class/infiniband/softrnic0/ports/1/gid_attrs/ndevs/0", "rdma7\n");
    named
        .file("/sys/class/net/rdma7/mtu", "1500\n")
        .look()
        .is("warn", &["rdma7 has 1500", "ip link set rdma7 mtu 9000"]);
}

#[test]
fn gid_fails_at_an_empty_index_and_warns_of_addresses_that_are_not_routed() {
    setup("gid").look().is("ok", &["GID 10.82.1.1 (index 1; routable, RoCE v2)"]);
    setup("gid")
        .env("NCCL_IB_GID_INDEX", "9")
        .look()
        .is("FAIL", &["NCCL_IB_GID_INDEX=9", "1: 10.82.1.1 (RoCE v2)"]);
    setup("gid").env("NCCL_IB_GID_INDEX", "0").look().is("warn", &["link-local only"]);
    let old =
        setup("gid").softrnic("SOFTRNIC_GIDS", "rich").env("NCCL_IB_ROCE_VERSION_NUM", "1").look();
    old.is("warn", &["RoCE v1"]);
    let outside = setup("gid").env("NCCL_IB_ADDR_RANGE", "192.168.0.0/24").look();
    outside.is("warn", &["none found in NCCL_IB_ADDR_RANGE"]);
    setup("gid").env("NCCL_IB_ADDR_RANGE", "10.0.0.0/8").look().is("ok", &["10.82.1.1"]);
}

#[test]
fn pkey_fails_at_an_index_beyond_the_table() {
    let named =
        setup("pkey").file("/sys/class/infiniband/softrnic0/ports/1/pkeys/0", "0xffff\n").look();
    named.is("ok", &["entry 0 of 1, 0xffff"]);
    setup("pkey").env("NCCL_IB_PKEY", "5").look().is("FAIL", &["INIT", "NCCL_IB_PKEY"]);
    let by_value =
        setup("pkey").env("NCCL_IB_PKEY", "5").env("NCCL_IB_PKEY_VALUE", "0x7fff").look();
    by_value.is("ok", &["entry 0 of 1"]);
    let other = setup("pkey").env("NCCL_IB_PKEY_VALUE", "0x8001").look();
    other.is("FAIL", &["NCCL_IB_PKEY_VALUE=0x8001", "has no such partition key"]);
}

#[test]
fn memlock_fails_if_the_trial_fails_and_warns_of_a_limit_below_the_memory() {
    let with = |kib: &str| {
        setup("memlock")
            .file("/proc/meminfo", format!("MemTotal:  {kib} kB\n"))
            .shell("ulimit -l 64")
    };
    with("32").look().is("ok", &["limit 64 KiB", "256 MiB were registered"]);
    let exempt =
        with("1048576").file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n").look();
    exempt.is("ok", &["exempts this process"]);
    let other =
        with("1048576").file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000003fff\n").look();
    other.is("warn", &["limit 64 KiB"]);
    with("1048576")
        .look()
        .is("warn", &["limit 64 KiB, and the machine has 1 GiB", "ulimit -l unlimited"]);
    with("32")
        .softrnic("SOFTRNIC_FAULTS", "reg-mr=ENOMEM")
        .look()
        .is("FAIL", &["Cannot allocate memory"]);
}

#[test]
fn queue_pairs_fails_if_none_can_be_made_and_warns_without_inline_data() {
    setup("queue-pairs").look().is("ok", &["192 bytes"]);
    setup("queue-pairs")
        .softrnic("SOFTRNIC_MAX_INLINE", "0")
        .look()
        .is("warn", &["0 bytes of inline data"]);
    setup("queue-pairs").softrnic("SOFTRNIC_MAX_QP_WR", "1").look().is("FAIL", &["ibv_create_qp"]);
}

#[test]
fn limits_warns_of_too_few_queue_pairs_for_the_processes() {
    let with = |pairs: u32| setup("limits").softrnic("SOFTRNIC_MAX_QP", pairs);
    with(300).look().is("ok", &["1 processes are counted with 256"]);
    with(300)
        .word("--ranks")
        .word("8")
        .look()
        .is("warn", &["300 queue pairs", "counted with 2048"]);
    let gpus = with(300).file("/proc/driver/nvidia/gpus/0000:17:00.0/information", "");
    gpus.file("/proc/driver/nvidia/gpus/0000:18:00.0/information", "")
        .look()
        .is("warn", &["counted with 512"]);
}

const ROOT_PORT: &str = "/sys/devices/pci0000:16/0000:16:01.0";

/// A machine with a card `x0` below a switch, whose link is as given.
fn card(row: &str, speed: &str, width: &str) -> Setup {
    let nic = format!("{ROOT_PORT}/0000:17:00.0/0000:18:00.0");
    let setup = setup(row);
    let setup = setup
        .file(&format!("{nic}/current_link_speed"), speed)
        .file(&format!("{nic}/current_link_width"), width);
    let setup = setup
        .file(&format!("{nic}/max_link_speed"), "32.0 GT/s PCIe")
        .file(&format!("{nic}/max_link_width"), "16");
    let setup = setup
        .file("/sys/class/infiniband/x0/ports/1/rate", "400 Gb/sec (4X NDR)")
        .file(&format!("{nic}/numa_node"), "0");
    setup.link(
        "/sys/class/infiniband/x0/device",
        "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0",
    )
}

/// A GPU at `path` below /sys/devices.
fn gpu(setup: Setup, path: &str) -> Setup {
    let folder = format!("/sys/devices/{path}");
    let name = path.rsplit('/').next().expect("a name").to_owned();
    let setup = setup
        .file(&format!("{folder}/class"), "0x030200\n")
        .file(&format!("{folder}/vendor"), "0x10de\n");
    setup.link(&format!("/sys/bus/pci/devices/{name}"), &format!("../../../devices/{path}"))
}

const NEAR: &str = "pci0000:16/0000:16:01.0/0000:17:00.0/0000:19:00.0";
const FAR: &str = "pci0000:80/0000:80:01.0/0000:81:00.0";

#[test]
fn pcie_warns_of_a_link_below_what_the_card_can_and_fails_below_half_of_its_ports() {
    card("pcie", "32.0 GT/s PCIe", "16")
        .look()
        .is("ok", &["x0", "504 Gb/s of PCIe for ports of 400 Gb/s"]);
    card("pcie", "16.0 GT/s PCIe", "16")
        .look()
        .is("warn", &["252 Gb/s", "it can have 32 GT/s x16", "reseat"]);
    card("pcie", "16.0 GT/s PCIe", "4").look().is("FAIL", &["63 Gb/s"]);
    card("pcie", "Unknown", "0").look().is("unknown", &["virtual function"]);
}

#[test]
fn gpu_distance_warns_of_a_gpu_without_a_card_below_its_switch() {
    let fast = || card("gpu-distance", "32.0 GT/s PCIe", "16");
    gpu(fast(), NEAR).look().is("ok", &["GPU 0000:19:00.0", "shares a bridge with x0"]);
    gpu(fast(), FAR).look().is("warn", &["no RDMA device shares a bridge", "NCCL_NET_GDR_LEVEL"]);
    fast().look().is("unknown", &["0 GPUs"]);
}

/// Configuration space with one extended capability, whose control register is `control`.
fn config(id: u16, control: u16) -> Vec<u8> {
    let mut bytes = vec![0_u8; 4096];
    // At the start of the extended space an empty entry that leads to the capability.
    bytes[0x102..0x104].copy_from_slice(&(0x140_u16 << 4).to_le_bytes());
    bytes[0x140..0x142].copy_from_slice(&id.to_le_bytes());
    bytes[0x146..0x148].copy_from_slice(&control.to_le_bytes());
    bytes
}

#[test]
fn acs_warns_of_a_bridge_that_redirects_requests_and_is_unknown_without_root() {
    let with = |bytes: &[u8]| {
        let setup = gpu(card("acs", "32.0 GT/s PCIe", "16"), NEAR);
        let setup = setup.file(&format!("{ROOT_PORT}/config"), bytes);
        setup.file(&format!("{ROOT_PORT}/0000:17:00.0/config"), config(0xd, 0))
    };
    with(&config(0xd, 0)).look().is("ok", &["none of 2 bridges"]);
    with(&config(0xd, 0x5d)).look().is("warn", &["0000:16:01.0", "0x005d", "setpci"]);
    with(&[0; 64]).look().is("unknown", &["only root"]);
    card("acs", "", "").look().is("ok", &["no NVIDIA GPU"]);
}

#[test]
fn iommu_warns_of_translation_without_ats_where_there_are_gpus() {
    let nic = format!("{ROOT_PORT}/0000:17:00.0/0000:18:00.0");
    let with = |kind: &str, ats: u16| {
        let setup = gpu(card("iommu", "32.0 GT/s PCIe", "16"), NEAR);
        let setup = setup.file(&format!("{nic}/iommu_group/type"), kind);
        setup.file(&format!("{nic}/config"), config(0xf, ats))
    };
    with("identity", 0).look().is("ok", &["identity"]);
    with("DMA-FQ", 0).look().is("warn", &["without ATS", "iommu=pt"]);
    with("DMA-FQ", 0x8000).look().is("ok", &["with ATS"]);
}

#[test]
fn gpu_warns_of_a_driver_files_or_a_library_that_are_missing() {
    let bus = || gpu(setup("gpu"), FAR);
    let driver = || bus().file("/proc/driver/nvidia/gpus/0000:81:00.0/information", "");
    let nodes = || driver().file("/dev/nvidia0", "");
    setup("gpu").look().is("unknown", &["no NVIDIA GPU"]);
    bus().look().is("warn", &["no driver"]);
    driver().look().is("warn", &["no /dev/nvidia0", "--gpus all"]);
    nodes().look().is("warn", &["no libcuda.so.1"]);
    nodes().file("/usr/lib/libcuda.so.1", "").look().is("ok", &["1 of the 1 GPUs"]);
}

#[test]
fn gpu_memory_warns_if_neither_way_is_there() {
    let with = |kernel: &str, driver: &str| {
        let setup = gpu(setup("gpu-memory"), FAR);
        setup.file("/proc/sys/kernel/osrelease", kernel).file("/proc/driver/nvidia/version", driver)
    };
    let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1";
    let neither =
        with("5.4.0-100-generic", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.1").look();
    neither.is(
        "warn",
        &[
            "by address: no", "older than 5.12", "not the open one", "no RDMA device takes",
            "modprobe nvidia-peermem",
        ],
    );
    let module = with("5.4.0", "x").file("/sys/module/nvidia_peermem/version", "1").look();
    module.is("ok", &["by address: yes"]);
    with("6.1.0-13-amd64", open)
        .softrnic("SOFTRNIC_GPU", "dmabuf")
        .look()
        .is("ok", &["by dma-buf: yes"]);
    with("6.1.0-13-amd64", open)
        .softrnic("SOFTRNIC_GPU", "none")
        .look()
        .is("warn", &["no RDMA device takes"]);
}

#[test]
fn errors_warns_of_errors_and_of_a_link_that_comes_and_goes() {
    let port = "/sys/class/infiniband/x0/ports/1";
    let with = |errors: &str, changes: &str| {
        let setup = setup("errors").file(&format!("{port}/counters/symbol_error"), errors);
        let setup = setup.file(&format!("{port}/gid_attrs/ndevs/0"), "rdma7\n");
        setup.file("/sys/class/net/rdma7/carrier_changes", changes)
    };
    with("0\n", "2\n").look().is("ok", &["x0:1", "2 counters, no errors"]);
    with("17\n", "2\n").look().is("warn", &["symbol_error 17"]);
    with("0\n", "40\n").look().is("warn", &["carrier_changes 40"]);
    setup("errors").look().is("unknown", &["no counters"]);
}

#[test]
fn retries_warns_of_a_counter_that_moves() {
    let counter = "/sys/class/infiniband/x0/ports/1/hw_counters/local_ack_timeout_err";
    setup("retries").file(counter, "7\n").look().is("ok", &["1 counters, none moved"]);
    let moving = setup("retries").file(counter, "7\n");
    let (path, is_done) = (moving.root.join(&counter[1..]), Arc::new(AtomicBool::new(false)));
    let stop = Arc::clone(&is_done);
    let writer = std::thread::spawn(move || {
        let mut value = 7_u64;
        while !stop.load(Ordering::Relaxed) {
            value += 1;
            // By rename: a reader sees one number or the other.
            let next = path.with_extension("next");
            std::fs::write(&next, format!("{value}\n")).expect("written");
            std::fs::rename(&next, &path).expect("renamed");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let report = moving.look();
    is_done.store(true, Ordering::Relaxed);
    let _ = writer.join();
    report.is("warn", &["local_ack_timeout_err grew by"]);
}

// The interface for connection set-up is the one that stock NCCL takes for its bootstrap: on a host
// of its own, a network namespace with interfaces of all kinds.

/// Makes the interfaces that `$1` names, runs NCCL and the doctor with each setting behind it, and
/// prints what each takes: a name, or nothing.
const SCRIPT: &str = r#"
ip link set lo up
for one in $1; do
    name=${one%%=*}
    ip link add name $name type veth peer name z$name || exit 9
    # A peer that is up makes it run; its own address is of no use.
    echo 1 > /proc/sys/net/ipv6/conf/z$name/disable_ipv6
    ip link set z$name up
    ip link set $name up
    ip address add ${one#*=} dev $name
done
shift
[ "$1" != cut ] || { shift; ip link set zetha down; }
id='import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))'
for setting; do
    nccl=$(env $setting NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL python3 -c "$id" "$LIBNCCL" | sed -n 's/.*Bootstrap *: Using \([a-z0-9]*\):.*/\1/p')
    doctor=$(env $setting "$FERRITE" doctor --only control | sed -n 's/^[okwarn]* *control *\([a-z0-9]*\) (.*/\1/p')
    echo "$setting|$nccl|$doctor"
done
"#;

const ALL: &str = "etha=10.0.1.1/24 docker0=172.17.0.1/16 virbr0=192.168.122.1/24 ethb=10.0.2.1/24 ib0=10.8.0.1/24 ethc=10.0.3.1/24";

/// What both take, on a host with these interfaces, with each setting.
fn taken(nccl: &Path, interfaces: &str, settings: &[&str]) -> Vec<(String, String, String)> {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", SCRIPT, "sh", interfaces]).args(settings);
    command.env("LIBNCCL", nccl).env("FERRITE", env!("CARGO_BIN_EXE_ferrite"));
    for name in ["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID"] {
        command.env_remove(name);
    }
    let printed = program::run(&mut command);
    let split = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
    let lines = printed.stdout.lines().map(split).filter(|parts| parts.len() == 3);
    let found: Vec<_> =
        lines.map(|parts| (parts[0].clone(), parts[1].clone(), parts[2].clone())).collect();
    assert_eq!(
        found.len(),
        settings.iter().filter(|setting| **setting != "cut").count(),
        "{printed}"
    );
    found
}

/// Whether this process may make a host of its own.
fn hosts() -> Result<(), Missing> {
    let made = Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link add name eth0 type veth peer name zeth0"])
        .output();
    let is_made = made.is_ok_and(|output| output.status.success());
    if is_made {
        Ok(())
    } else {
        Err(Missing("a network namespace with interfaces of its own (root, iproute2)".into()))
    }
}

/// Before 2.28 NCCL also takes interfaces that do not run, and takes `virbr` as any other: over
/// these it reaches no other host.
fn agrees_with(release: &str, is_old: bool) {
    let nccl = require!(cached_nccl(release));
    require!(hosts());
    let agree = |interfaces: &str, cases: &[(&str, &str)]| {
        let settings: Vec<&str> = cases.iter().map(|(setting, _)| *setting).collect();
        let found = taken(&nccl, interfaces, &settings);
        let cases = cases.iter().filter(|(setting, _)| *setting != "cut");
        for ((setting, expected), (_, theirs, ours)) in cases.zip(found) {
            assert_eq!(
                (theirs.as_str(), ours.as_str()),
                (*expected, *expected),
                "NCCL {release}, {setting}"
            );
        }
    };
    let family = "NCCL_SOCKET_FAMILY=AF_INET";
    agree(
        ALL,
        &[
            (family, "ib0"),
            ("NCCL_SOCKET_IFNAME=^docker,lo", "etha"),
            ("NCCL_SOCKET_IFNAME=^ib", "lo"),
            ("NCCL_SOCKET_IFNAME=ethb,etha", "etha"),
            ("NCCL_SOCKET_IFNAME==ethc", "ethc"),
            ("NCCL_SOCKET_IFNAME==eth", ""),
            ("NCCL_SOCKET_IFNAME=ethb:1", "ethb"),
            ("NCCL_SOCKET_IFNAME=e", "ib0"),
            ("NCCL_SOCKET_IFNAME=^=etha,=ethb", "lo"),
            ("NCCL_SOCKET_IFNAME=lo", "lo"),
            ("NCCL_COMM_ID=10.0.2.77:5000", "ethb"),
            ("NCCL_COMM_ID=10.0.2.77:70000", "ethb"),
        ],
    );
    agree(
        "etha=10.0.1.1/24 docker0=172.17.0.1/16",
        &[(family, "etha"), ("NCCL_SOCKET_IFNAME=^eth,lo", "docker0")],
    );
    if !is_old {
        agree("docker0=172.17.0.1/16 virbr0=192.168.122.1/24", &[(family, "docker0")]);
        agree("virbr0=192.168.122.1/24", &[(family, "lo")]);
        agree("etha=10.0.1.1/24 ethb=10.0.2.1/24", &[("cut", ""), (family, "ethb")]);
    }
}

cases! { ();
    control_agrees_with_nccl_2_21 => agrees_with("2.21.5", true);
    control_agrees_with_nccl_2_28 => agrees_with("2.28.9", false);
    control_agrees_with_nccl_2_32 => agrees_with("2.32.3", false);
}
