//! PCIe, GPUs, and the counters of ports, on machines that are made of files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{Missing, require};

use crate::{Setup, setup};

const ROOT_PORT: &str = "/sys/devices/pci0000:16/0000:16:01.0";

/// A machine with a card `x0` below a switch, whose link is as given.
fn card(row: &str, speed: &str, width: &str) -> Result<Setup, Missing> {
    let nic = format!("{ROOT_PORT}/0000:17:00.0/0000:18:00.0");
    let setup = setup(row)?;
    let setup =
        setup.file(&format!("{nic}/current_link_speed"), speed).file(&format!("{nic}/current_link_width"), width);
    let setup =
        setup.file(&format!("{nic}/max_link_speed"), "32.0 GT/s PCIe").file(&format!("{nic}/max_link_width"), "16");
    let setup = setup
        .file("/sys/class/infiniband/x0/ports/1/rate", "400 Gb/sec (4X NDR)")
        .file(&format!("{nic}/numa_node"), "0");
    Ok(setup
        .link("/sys/class/infiniband/x0/device", "../../../devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0"))
}

/// A GPU at `path` below /sys/devices.
fn gpu(setup: Setup, path: &str) -> Setup {
    let folder = format!("/sys/devices/{path}");
    let name = path.rsplit('/').next().expect("a name").to_owned();
    let setup = setup.file(&format!("{folder}/class"), "0x030200\n").file(&format!("{folder}/vendor"), "0x10de\n");
    setup.link(&format!("/sys/bus/pci/devices/{name}"), &format!("../../../devices/{path}"))
}

const NEAR: &str = "pci0000:16/0000:16:01.0/0000:17:00.0/0000:19:00.0";
const FAR: &str = "pci0000:80/0000:80:01.0/0000:81:00.0";

#[test]
fn pcie_warns_of_a_link_below_what_the_card_can_and_fails_below_half_of_its_ports() {
    require!(card("pcie", "32.0 GT/s PCIe", "16")).look().is("ok", &["x0", "504 Gb/s of PCIe for ports of 400 Gb/s"]);
    require!(card("pcie", "16.0 GT/s PCIe", "16"))
        .look()
        .is("warn", &["252 Gb/s", "it can have 32 GT/s x16", "reseat"]);
    require!(card("pcie", "16.0 GT/s PCIe", "4")).look().is("FAIL", &["63 Gb/s"]);
    require!(card("pcie", "Unknown", "0")).look().is("unknown", &["virtual function"]);
}

#[test]
fn gpu_distance_warns_of_a_gpu_without_a_card_below_its_switch() {
    let fast = || card("gpu-distance", "32.0 GT/s PCIe", "16");
    require!(fast().map(|setup| gpu(setup, NEAR))).look().is("ok", &["GPU 0000:19:00.0", "shares a bridge with x0"]);
    require!(fast().map(|setup| gpu(setup, FAR)))
        .look()
        .is("warn", &["no RDMA device shares a bridge", "NCCL_NET_GDR_LEVEL"]);
    require!(fast()).look().is("unknown", &["0 GPUs"]);
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
        let setup = card("acs", "32.0 GT/s PCIe", "16").map(|setup| gpu(setup, NEAR))?;
        let setup = setup.file(&format!("{ROOT_PORT}/config"), bytes);
        Ok::<Setup, Missing>(setup.file(&format!("{ROOT_PORT}/0000:17:00.0/config"), config(0xd, 0)))
    };
    require!(with(&config(0xd, 0))).look().is("ok", &["none of 2 bridges"]);
    require!(with(&config(0xd, 0x5d))).look().is("warn", &["0000:16:01.0", "0x005d", "setpci"]);
    require!(with(&[0; 64])).look().is("unknown", &["only root"]);
    require!(card("acs", "", "")).look().is("ok", &["no NVIDIA GPU"]);
}

#[test]
fn iommu_warns_of_translation_without_ats_where_there_are_gpus() {
    let nic = format!("{ROOT_PORT}/0000:17:00.0/0000:18:00.0");
    let with = |kind: &str, ats: u16| {
        let setup = card("iommu", "32.0 GT/s PCIe", "16").map(|setup| gpu(setup, NEAR))?;
        let setup = setup.file(&format!("{nic}/iommu_group/type"), kind);
        Ok::<Setup, Missing>(setup.file(&format!("{nic}/config"), config(0xf, ats)))
    };
    require!(with("identity", 0)).look().is("ok", &["identity"]);
    require!(with("DMA-FQ", 0)).look().is("warn", &["without ATS", "iommu=pt"]);
    require!(with("DMA-FQ", 0x8000)).look().is("ok", &["with ATS"]);
}

#[test]
fn gpu_warns_of_a_driver_files_or_a_library_that_are_missing() {
    let bus = || setup("gpu").map(|setup| gpu(setup, FAR));
    let driver = || bus().map(|setup| setup.file("/proc/driver/nvidia/gpus/0000:81:00.0/information", ""));
    let nodes = || driver().map(|setup| setup.file("/dev/nvidia0", ""));
    require!(setup("gpu")).look().is("unknown", &["no NVIDIA GPU"]);
    require!(bus()).look().is("warn", &["no driver"]);
    require!(driver()).look().is("warn", &["no /dev/nvidia0", "--gpus all"]);
    require!(nodes()).look().is("warn", &["no libcuda.so.1"]);
    require!(nodes()).file("/usr/lib/libcuda.so.1", "").look().is("ok", &["1 of the 1 GPUs"]);
}

#[test]
fn gpu_memory_warns_if_neither_way_is_there() {
    let with = |kernel: &str, driver: &str| {
        let setup = setup("gpu-memory").map(|setup| gpu(setup, FAR))?;
        Ok::<Setup, Missing>(
            setup.file("/proc/sys/kernel/osrelease", kernel).file("/proc/driver/nvidia/version", driver),
        )
    };
    let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.1";
    let neither = require!(with("5.4.0-100-generic", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.1")).look();
    neither.is(
        "warn",
        &["by address: no", "older than 5.12", "not the open one", "no RDMA device takes", "modprobe nvidia-peermem"],
    );
    let module = require!(with("5.4.0", "x")).file("/sys/module/nvidia_peermem/version", "1").look();
    module.is("ok", &["by address: yes"]);
    require!(with("6.1.0-13-amd64", open)).softrnic("SOFTRNIC_GPU", "dmabuf").look().is("ok", &["by dma-buf: yes"]);
    require!(with("6.1.0-13-amd64", open))
        .softrnic("SOFTRNIC_GPU", "none")
        .look()
        .is("warn", &["no RDMA device takes"]);
}

#[test]
fn errors_warns_of_errors_and_of_a_link_that_comes_and_goes() {
    let port = "/sys/class/infiniband/x0/ports/1";
    let with = |errors: &str, changes: &str| {
        let setup = setup("errors")?.file(&format!("{port}/counters/symbol_error"), errors);
        let setup = setup.file(&format!("{port}/gid_attrs/ndevs/0"), "rdma7\n");
        Ok::<Setup, Missing>(setup.file("/sys/class/net/rdma7/carrier_changes", changes))
    };
    require!(with("0\n", "2\n")).look().is("ok", &["x0:1", "2 counters, no errors"]);
    require!(with("17\n", "2\n")).look().is("warn", &["symbol_error 17"]);
    require!(with("0\n", "40\n")).look().is("warn", &["carrier_changes 40"]);
    require!(setup("errors")).look().is("unknown", &["no counters"]);
}

#[test]
fn retries_warns_of_a_counter_that_moves() {
    let counter = "/sys/class/infiniband/x0/ports/1/hw_counters/local_ack_timeout_err";
    require!(setup("retries")).file(counter, "7\n").look().is("ok", &["1 counters, none moved"]);
    let moving = require!(setup("retries")).file(counter, "7\n");
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
