//! NCCL's interface of version 8, against `include/nccl/net_v8.h`.

use crate::c::Expressions;
use crate::layout;
use nccl_net::inspect::nccl;
use std::mem::{offset_of, size_of};
use std::process::Command;
use testkit::Scratch;

const BINDINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/abi/nccl.rs");

/// What the bindings begin with.
const HEAD: &str = "\
//! NCCL's types, as bindgen makes them of `include/nccl/net_v8.h`. Result codes, logger and
//! constants are common to all versions. After a change of the header
//! `FERRITE_UPDATE=1 cargo test -p layouts` writes this file again.

#![allow(missing_docs, missing_debug_implementations, non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(unreachable_pub, clippy::all, dead_code)]
";

/// What bindgen makes (`build.rs`).
const MADE: &str = include_str!(concat!(env!("OUT_DIR"), "/nccl.rs"));

/// As the other files are, by whatever rustfmt is here.
fn formatted(text: &str) -> String {
    let dir = Scratch::new();
    let file = dir.join("nccl.rs");
    std::fs::write(&file, text).expect("written");
    let mut rustfmt = Command::new("rustfmt");
    rustfmt
        .args(["--edition", "2024", "--config-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")])
        .arg(&file);
    assert!(rustfmt.status().expect("rustfmt runs").success());
    std::fs::read_to_string(&file).expect("readable")
}

#[test]
fn the_bindings_are_what_bindgen_makes_of_the_header() {
    let made = formatted(&format!("{HEAD}\n{MADE}"));
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(BINDINGS, &made).expect("written");
    }
    let found = formatted(&std::fs::read_to_string(BINDINGS).expect("readable"));
    assert_eq!(
        found, made,
        "src/abi/nccl.rs is not what bindgen makes: FERRITE_UPDATE=1 writes it again"
    );
}

#[test]
fn the_v8_structs_have_the_layout_of_c() {
    let mut all = Expressions::default();
    layout!(
        all,
        whole "ncclNetProperties_v8_t",
        nccl::ncclNetProperties_v8_t {
            name,
            pciPath,
            guid,
            ptrSupport,
            regIsGlobal,
            speed,
            port,
            latency,
            maxComms,
            maxRecvs,
            netDeviceType,
            netDeviceVersion
        }
    );
    layout!(
        all,
        whole "ncclNetDeviceHandle_v8_t",
        nccl::ncclNetDeviceHandle_v8_t { netDeviceType, netDeviceVersion, handle, size, needsProxyProgress }
    );
    layout!(
        all,
        whole "ncclNet_v8_t",
        nccl::ncclNet_v8_t {
            name,
            init,
            devices,
            getProperties,
            listen,
            connect,
            accept,
            regMr,
            regMrDmaBuf,
            deregMr,
            isend,
            irecv,
            iflush,
            test,
            closeSend,
            closeRecv,
            closeListen,
            getDeviceMr,
            irecvConsumed
        }
    );
    all.compare("#include \"nccl/net_v8.h\"");
    // What NCCL itself has been seen to use.
    assert_eq!(
        (size_of::<nccl::ncclNetProperties_v8_t>(), size_of::<nccl::ncclNet_v8_t>()),
        (64, 152)
    );
    assert_eq!(offset_of!(nccl::ncclNetProperties_v8_t, latency), 40);
    assert_eq!(offset_of!(nccl::ncclNet_v8_t, test), 13 * 8);
}
