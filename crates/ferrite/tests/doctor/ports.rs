//! Ports, their addresses, and what can be made on their devices.

use testkit::require;

use crate::setup;

#[test]
fn ports_fails_if_no_port_is_left_to_use() {
    require!(setup("ports")).look().is("ok", &["softrnic1:1"]);
    let one = require!(setup("ports")).env("NCCL_IB_HCA", "softrnic0").look();
    one.is("ok", &["active, not used: NCCL_IB_HCA=softrnic0 excludes it"]);
    let none = require!(setup("ports")).env("NCCL_IB_HCA", "mlx5").look();
    none.is("FAIL", &["would use no port: NCCL_IB_HCA=mlx5 excludes all of them", "correct NCCL_IB_HCA"]);
    assert!(!none.text.contains("cable"), "{}", none.text);
}

#[test]
fn ports_warns_of_entries_of_the_list_that_name_nothing() {
    let with = |list: &str| setup("ports").map(|setup| setup.env("NCCL_IB_HCA", list));
    let there = "there are: softrnic0, softrnic1";
    require!(with("softrnic0,softrnic7")).look().is("warn", &["begins with softrnic7", there]);
    require!(with("=softrnic0,rocep1s0f0")).look().is("warn", &["no device is called rocep1s0f0", there]);
    require!(with("softrnic0:2,softrnic1")).look().is("warn", &["softrnic0 has no port 2; its last one is 1"]);
    require!(with("^=softrnic0,^=softrnic1")).look().is("warn", &["^=softrnic1 is taken for a name"]);
    require!(with("softrnic0, softrnic1")).look().is("warn", &["built-in transport takes the blanks"]);
    require!(with("^mlx5_bond")).look().is("ok", &["begins with mlx5_bond"]);
    require!(with("softrnic0::2,softrnic1:")).look().is("ok", &["softrnic1:1"]);
}

#[test]
fn link_layer_fails_for_one_that_is_neither_infiniband_nor_ethernet() {
    require!(setup("link-layer")).softrnic("SOFTRNIC_LINK", "ib").look().is("ok", &["InfiniBand"]);
    require!(setup("link-layer"))
        .softrnic("SOFTRNIC_LINK", "unspecified")
        .look()
        .is("FAIL", &["neither", "NCCL plugin"]);
}

#[test]
fn lid_is_looked_at_on_infiniband() {
    require!(setup("lid")).softrnic("SOFTRNIC_LINK", "ib").look().is("ok", &["subnet manager at LID 1"]);
    require!(setup("lid")).look().is("ok", &["no active InfiniBand port"]);
}

#[test]
fn speed_warns_of_a_port_that_is_slower_than_another() {
    require!(setup("speed")).look().is("ok", &["400 Gb/s"]);
    let slow = require!(setup("speed")).softrnic("SOFTRNIC_SPEED", "400,softrnic1/1=100").look();
    slow.is("warn", &["100 Gb/s, and another port has 400 Gb/s", "reseat"]);
}

#[test]
fn mtu_warns_below_the_largest_and_names_the_interface() {
    require!(setup("mtu")).look().is("ok", &["4096 of 4096"]);
    let small = require!(setup("mtu")).softrnic("SOFTRNIC_MTU", "1024").look();
    small.is("warn", &["1024 of 4096", "mtu 9000"]);
    let named = require!(setup("mtu")).softrnic("SOFTRNIC_MTU", "1024");
    let named = named.file("/sys/class/infiniband/softrnic0/ports/1/gid_attrs/ndevs/0", "rdma7\n");
    named
        .file("/sys/class/net/rdma7/mtu", "1500\n")
        .look()
        .is("warn", &["rdma7 has 1500", "ip link set rdma7 mtu 9000"]);
}

#[test]
fn gid_fails_at_an_empty_index_and_warns_of_addresses_that_are_not_routed() {
    require!(setup("gid")).look().is("ok", &["GID 1 10.82.1.1 (routable, RoCE v2)"]);
    require!(setup("gid"))
        .env("NCCL_IB_GID_INDEX", "9")
        .look()
        .is("FAIL", &["NCCL_IB_GID_INDEX=9", "1: 10.82.1.1 (RoCE v2)"]);
    require!(setup("gid")).env("NCCL_IB_GID_INDEX", "0").look().is("warn", &["link-local only"]);
    let old = require!(setup("gid")).softrnic("SOFTRNIC_GIDS", "rich").env("NCCL_IB_ROCE_VERSION_NUM", "1").look();
    old.is("warn", &["RoCE v1"]);
    let outside = require!(setup("gid")).env("NCCL_IB_ADDR_RANGE", "192.168.0.0/24").look();
    outside.is("warn", &["none found in NCCL_IB_ADDR_RANGE"]);
    require!(setup("gid")).env("NCCL_IB_ADDR_RANGE", "10.0.0.0/8").look().is("ok", &["10.82.1.1"]);
}

#[test]
fn pkey_fails_at_an_index_beyond_the_table() {
    let named = require!(setup("pkey")).file("/sys/class/infiniband/softrnic0/ports/1/pkeys/0", "0xffff\n").look();
    named.is("ok", &["entry 0 of 1, 0xffff"]);
    require!(setup("pkey")).env("NCCL_IB_PKEY", "5").look().is("FAIL", &["INIT", "NCCL_IB_PKEY"]);
    let by_value = require!(setup("pkey")).env("NCCL_IB_PKEY", "5").env("NCCL_IB_PKEY_VALUE", "0x7fff").look();
    by_value.is("ok", &["entry 0 of 1"]);
    let other = require!(setup("pkey")).env("NCCL_IB_PKEY_VALUE", "0x8001").look();
    other.is("FAIL", &["NCCL_IB_PKEY_VALUE=0x8001", "has no such partition key"]);
}

#[test]
fn memlock_fails_if_the_trial_fails_and_warns_of_a_limit_below_the_memory() {
    let with = |kib: &str| {
        setup("memlock")
            .map(|setup| setup.file("/proc/meminfo", format!("MemTotal:  {kib} kB\n")).shell("ulimit -l 64"))
    };
    require!(with("32")).look().is("ok", &["limit 64 KiB", "256 MiB were registered"]);
    let exempt = require!(with("1048576")).file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n").look();
    exempt.is("ok", &["does not bind this process"]);
    let other = require!(with("1048576")).file("/proc/self/status", "Name:\tx\nCapEff:\t0000000000003fff\n").look();
    other.is("warn", &["limit 64 KiB"]);
    require!(with("1048576")).look().is("warn", &["limit 64 KiB, and the machine has 1 GiB", "ulimit -l unlimited"]);
    require!(with("32")).softrnic("SOFTRNIC_FAULTS", "reg-mr=ENOMEM").look().is("FAIL", &["Cannot allocate memory"]);
}

#[test]
fn queue_pairs_fails_if_none_can_be_made_and_warns_without_inline_data() {
    require!(setup("queue-pairs")).look().is("ok", &["192 bytes"]);
    require!(setup("queue-pairs")).softrnic("SOFTRNIC_MAX_INLINE", "0").look().is("warn", &["0 bytes of inline data"]);
    require!(setup("queue-pairs")).softrnic("SOFTRNIC_MAX_QP_WR", "1").look().is("FAIL", &["ibv_create_qp"]);
}

#[test]
fn limits_warns_of_too_few_queue_pairs_for_the_processes() {
    let with = |pairs: u32| setup("limits").map(|setup| setup.softrnic("SOFTRNIC_MAX_QP", pairs));
    require!(with(300)).look().is("ok", &["1 processes are counted with 256"]);
    require!(with(300)).word("--ranks").word("8").look().is("warn", &["300 queue pairs", "counted with 2048"]);
    let gpus = require!(with(300)).file("/proc/driver/nvidia/gpus/0000:17:00.0/information", "");
    gpus.file("/proc/driver/nvidia/gpus/0000:18:00.0/information", "").look().is("warn", &["counted with 512"]);
}
