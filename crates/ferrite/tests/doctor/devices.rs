//! From libibverbs to open devices.

use std::path::{Path, PathBuf};

use testkit::{Scratch, require};

use crate::common::shared_object;
use crate::setup;

/// A folder with a libibverbs of 2008, whose only device cannot be opened.
fn old_library(flags: &[&str]) -> (Scratch, PathBuf) {
    let map = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/old_verbs.map");
    let library =
        shared_object("old_verbs", &[&[format!("-Wl,--version-script={}", map.display()).as_str()], flags].concat());
    let folder = Scratch::new();
    let path = folder.join("libibverbs.so.1");
    std::fs::copy(library, &path).expect("copied");
    (folder, path)
}

#[test]
fn libibverbs_fails_if_it_cannot_be_loaded_and_warns_if_it_is_old() {
    require!(setup("libibverbs")).look().is("ok", &["softrnic/libibverbs.so.1"]);
    let folder = Scratch::new();
    folder.write("libibverbs.so.1", "");
    folder.write("libibverbs.so", "");
    let empty = require!(setup("libibverbs")).env("LD_LIBRARY_PATH", folder.display()).look();
    empty.is("FAIL", &["no libibverbs", "file too short", "install libibverbs1"]);
    let missing = require!(setup("libibverbs")).env("NCCL_IBVERBS_LIB", "/no/such/library.so").look();
    missing.is("FAIL", &["/no/such/library.so"]);
    let (_folder, old) = old_library(&[]);
    let old = require!(setup("libibverbs")).env("NCCL_IBVERBS_LIB", old.display()).look();
    old.is("warn", &["GPU memory by dma-buf (from IBVERBS_1.12 on)", "rdma-core 34"]);
}

#[test]
fn providers_fails_for_a_device_that_libibverbs_does_not_list() {
    let with = |name: &str| {
        setup("providers")
            .map(|setup| setup.link(&format!("/sys/class/infiniband/{name}/device/driver"), "/x/mlx5_core"))
    };
    require!(with("mlx5_7")).look().is("FAIL", &["mlx5_7", "kernel driver mlx5_core", "ibverbs-providers"]);
    require!(with("softrnic0")).look().is("ok", &["lists 2 devices, the kernel 1"]);
}

#[test]
fn device_nodes_fails_for_a_file_that_is_missing_or_cannot_be_opened() {
    let kernel =
        || setup("device-nodes").map(|setup| setup.file("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"));
    require!(kernel()).look().is("FAIL", &["/dev/infiniband/uverbs0", "No such file", "--device=/dev/infiniband"]);
    require!(kernel()).file("/dev/infiniband/uverbs0/x", "").look().is("FAIL", &["Is a directory"]);
    require!(kernel()).file("/dev/infiniband/uverbs0", "").look().is("ok", &["can be opened"]);
}

#[test]
fn device_nodes_fails_where_neither_the_kernel_nor_libibverbs_has_a_device() {
    require!(setup("device-nodes")).look().is("ok", &["need none"]);
    let none = require!(setup("device-nodes")).env("NCCL_IBVERBS_LIB", "/no/such/library.so").look();
    none.is("FAIL", &["modprobe ib_uverbs"]);
}

#[test]
fn open_fails_for_a_device_that_cannot_be_opened() {
    require!(setup("open")).look().is("ok", &["softrnic0", "softrnic1", "firmware"]);
    let (_folder, old) = old_library(&[]);
    let refused = require!(setup("open")).env("NCCL_IBVERBS_LIB", old.display()).look();
    refused.is("FAIL", &["ibv_open_device(old0)", "Permission denied", "NCCL_IB_HCA"]);
}

#[test]
fn a_library_that_crashes_is_reported_and_does_not_end_the_doctor() {
    let (_folder, crashing) = old_library(&["-DCRASH"]);
    let crashed = require!(setup("libibverbs")).env("NCCL_IBVERBS_LIB", crashing.display()).look();
    crashed.is("FAIL", &["looking at the devices failed: signal 6"]);
}
