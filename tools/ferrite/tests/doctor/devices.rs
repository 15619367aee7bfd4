//! From libibverbs to open devices.

use std::path::{Path, PathBuf};

use testkit::{Scratch, require};

use crate::common::shared_object;
use crate::visit;

/// A folder with a libibverbs of 2008, whose only device cannot be opened.
fn old_library() -> (Scratch, PathBuf) {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/old_verbs.map");
    let library = shared_object("old_verbs", &[&format!("-Wl,--version-script={}", map.display())]);
    let folder = Scratch::new();
    let path = folder.join("libibverbs.so.1");
    std::fs::copy(library, &path).expect("copied");
    (folder, path)
}

#[test]
fn libibverbs_fails_if_it_cannot_be_loaded_and_warns_if_it_is_old() {
    require!(visit("libibverbs")).look().is("ok", &["softrnic/libibverbs.so.1"]);
    let folder = Scratch::new();
    folder.write("libibverbs.so.1", "");
    folder.write("libibverbs.so", "");
    let empty = require!(visit("libibverbs")).env("LD_LIBRARY_PATH", folder.display()).look();
    empty.is("FAIL", &["no libibverbs", "file too short", "install libibverbs1"]);
    let missing = require!(visit("libibverbs")).env("NCCL_IBVERBS_LIB", "/no/such/library.so").look();
    missing.is("FAIL", &["/no/such/library.so"]);
    let (_folder, old) = old_library();
    let old = require!(visit("libibverbs")).env("NCCL_IBVERBS_LIB", old.display()).look();
    old.is("warn", &["GPU memory by dma-buf (from IBVERBS_1.12 on)", "rdma-core 34"]);
}

#[test]
fn providers_fails_for_a_device_that_libibverbs_does_not_list() {
    let with = |name: &str| {
        visit("providers")
            .map(|visit| visit.link(&format!("/sys/class/infiniband/{name}/device/driver"), "/x/mlx5_core"))
    };
    require!(with("mlx5_7")).look().is("FAIL", &["mlx5_7", "kernel driver mlx5_core", "ibverbs-providers"]);
    require!(with("softrnic0")).look().is("ok", &["lists 2 devices, the kernel 1"]);
}

#[test]
fn device_nodes_fails_for_a_file_that_is_missing_or_cannot_be_opened() {
    let kernel =
        || visit("device-nodes").map(|visit| visit.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"));
    require!(kernel()).look().is("FAIL", &["/dev/infiniband/uverbs0", "No such file", "--device=/dev/infiniband"]);
    require!(kernel()).file("/dev/infiniband/uverbs0/x", "").look().is("FAIL", &["Is a directory"]);
    require!(kernel()).file("/dev/infiniband/uverbs0", "").look().is("ok", &["can be opened"]);
}

#[test]
fn device_nodes_fails_where_neither_the_kernel_nor_libibverbs_has_a_device() {
    require!(visit("device-nodes")).look().is("ok", &["need none"]);
    let none = require!(visit("device-nodes")).env("NCCL_IBVERBS_LIB", "/no/such/library.so").look();
    none.is("FAIL", &["modprobe ib_uverbs"]);
}

#[test]
fn open_fails_for_a_device_that_cannot_be_opened() {
    require!(visit("open")).look().is("ok", &["softrnic0", "softrnic1", "firmware"]);
    let (_folder, old) = old_library();
    let refused = require!(visit("open")).env("NCCL_IBVERBS_LIB", old.display()).look();
    refused.is("FAIL", &["ibv_open_device(old0)", "Permission denied", "NCCL_IB_HCA"]);
}
