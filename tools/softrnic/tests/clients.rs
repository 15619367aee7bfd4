//! Programs and test suites that others have written for RDMA devices, unmodified. docs/clients.md lists them.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::tools::{Bench, PORT};
use testkit::{Missing, Scratch, require};

const UCX: (&str, &str) = ("ucx_perftest", "ucx-utils");
const LIBFABRIC: (&str, &str) = ("fi_pingpong", "libfabric-bin");
/// As the package python3-pyverbs has its tests.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The Python that has pyverbs.
const PYTHON: &str = "/usr/bin/python3";

/// UCX with these transports of softrnic0.
fn ucx(transports: &str) -> Result<Bench, Missing> {
    Bench::of(UCX, &[("UCX_TLS", transports), ("UCX_NET_DEVICES", "softrnic0:1")])?.faithful()
}

#[test]
fn ucx_finds_its_transports() {
    let bench = require!(ucx("all"));
    let text = bench.run("ucx_info", &["-d"]).well();
    for transport in ["rc_verbs", "ud_verbs"] {
        let count = text.lines().filter(|line| line.ends_with(&format!("Transport: {transport}"))).count();
        assert_eq!(count, 2, "{transport} of both devices: {text}");
    }
}

/// UCX sends its messages by `operation`; what it has measured.
fn ucx_test(bench: &Bench, operation: &[&str]) {
    let server = ["-p", PORT];
    let client = [&server[..], &["-n", "200", "-w", "20", "-t"], operation, &["127.0.0.1"]].concat();
    let [server, client] = bench.serve("ucx_perftest", &server, &client);
    server.well();
    let text = client.well();
    let last = text.lines().find(|line| line.starts_with("Final:")).unwrap_or_else(|| panic!("no result: {text}"));
    assert_eq!(last.split_whitespace().nth(1), Some("200"), "{text}");
}

#[test]
fn ucx_over_rc() {
    // Its connections are made over UD.
    let bench = require!(ucx("rc_verbs,ud_verbs"));
    for operation in [["tag_lat", "-s", "8"], ["tag_bw", "-s", "65536"], ["stream_bw", "-s", "4096"]] {
        ucx_test(&bench, &operation);
    }
    for operation in [["ucp_put_lat", "-s", "64"], ["ucp_get", "-s", "1048576"], ["ucp_fadd", "-s", "8"]] {
        ucx_test(&bench, &operation);
    }
}

#[test]
fn ucx_over_ud() {
    let bench = require!(ucx("ud_verbs"));
    for operation in [["tag_lat", "-s", "8"], ["tag_bw", "-s", "65536"]] {
        ucx_test(&bench, &operation);
    }
}

#[test]
fn libfabric_lists_its_endpoints() {
    let bench = require!(Bench::of(LIBFABRIC, &[]));
    let text = bench.run("fi_info", &["-p", "verbs"]).well();
    // Connected endpoints are of the device that has the addresses of the host.
    for domain in ["domain: softrnic0", "domain: softrnic0-dgram", "domain: softrnic1-dgram"] {
        assert!(text.lines().any(|line| line.trim() == domain), "{domain}: {text}");
    }
}

#[test]
fn libfabric_over_ud() {
    let bench = require!(Bench::of(LIBFABRIC, &[]));
    let common = ["-p", "verbs;ofi_rxd", "-e", "rdm", "-I", "10", "-c"];
    let (server, client) = ([&common[..], &["-B", PORT]].concat(), [&common[..], &["-P", PORT, "127.0.0.1"]].concat());
    let [server, client] = bench.serve("fi_pingpong", &server, &client);
    server.well();
    let text = client.well();
    assert!(text.lines().filter(|line| line.contains("=10")).count() >= 5, "a line for each size: {text}");
}

/// Connected endpoints of libfabric are made by librdmacm.
#[test]
fn libfabric_over_connections() {
    let bench = require!(Bench::of(LIBFABRIC, &[]));
    let text = bench.run("fi_info", &["-p", "verbs", "-t", "FI_EP_MSG", "-s", "127.0.0.1"]).well();
    assert!(text.contains("FI_PROTO_RDMA_CM_IB_RC"), "{text}");
    let common = ["-p", "verbs", "-e", "msg", "-I", "10", "-S", "4096", "-c"];
    let (server, client) = ([&common[..], &["-B", PORT]].concat(), [&common[..], &["-P", PORT, "127.0.0.1"]].concat());
    let [server, client] = bench.serve("fi_pingpong", &server, &client);
    server.well();
    let text = client.well();
    assert!(text.lines().any(|line| line.starts_with("4k") && line.contains("=10")), "{text}");
}

const RPING: (&str, &str) = ("rping", "rdmacm-utils");

#[test]
fn rping_by_addresses() {
    let bench = require!(Bench::of(RPING, &[]));
    // The host's, and those that the GIDs of devices are.
    for address in ["127.0.0.1", "::1", "10.82.1.2"] {
        let common = ["-C", "5", "-v", "-p", PORT];
        let (server, client) = ([&["-s"], &common[..]].concat(), [&["-c", "-a", address], &common[..]].concat());
        let [server, client] = bench.serve("rping", &server, &client);
        assert!(server.well().contains("server ping data: rdma-ping-4"));
        let text = client.well();
        assert_eq!(text.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count(), 5, "{text}");
    }
}

#[test]
fn many_connections_by_addresses() {
    let bench = require!(Bench::of(("ucmatose", "rdmacm-utils"), &[]));
    let common = ["-c", "10", "-p", PORT];
    let [server, client] = bench.serve("ucmatose", &common, &[&["-s", "127.0.0.1"], &common[..]].concat());
    assert!(server.well().contains("disconnected"));
    assert!(client.well().contains("data transfers complete"));
}

#[test]
fn calls_of_librdmacm_that_wait() {
    let bench = require!(Bench::of(("rdma_server", "rdmacm-utils"), &[]));
    let [server, client] =
        bench.serve_by(["rdma_server", "rdma_client"], &["-p", PORT], &["-s", "127.0.0.1", "-p", PORT]);
    assert!(server.well().contains("rdma_server: end 0"));
    assert!(client.well().contains("rdma_client: end 0"));
}

#[test]
fn connections_that_cannot_be_made() {
    let bench = require!(Bench::of(RPING, &[]));
    let fails = |arguments: &[&str], words: &str| {
        let outcome = bench.run("rping", arguments);
        assert!(outcome.code.is_some_and(|code| code != 0) && outcome.text.contains(words), "{outcome:?}");
    };
    // One of those that are for documents: no device has a way there.
    fails(&["-c", "-C", "1", "-a", "192.0.2.1"], "RDMA_CM_EVENT_ADDR_ERROR, error -19");
    fails(&["-c", "-C", "1", "-a", "127.0.0.1"], "RDMA_CM_EVENT_REJECTED, error 8");
    fails(&["-s", "-C", "1", "-a", "192.0.2.1"], "rdma_bind_addr: Cannot assign requested address");
    assert_ne!(bench.run("udaddy", &["-s", "127.0.0.1"]).code, Some(0), "datagrams");
    // A server with room for one connection refuses the second.
    let (server, client) = (["-c", "1", "-p", PORT], ["-c", "2", "-s", "127.0.0.1", "-p", PORT]);
    let [_, client] = bench.serve("ucmatose", &server, &client);
    assert!(client.code != Some(0) && client.text.contains("RDMA_CM_EVENT_REJECTED, error: 28"), "{client:?}");
}

#[test]
fn a_peer_that_dies_disconnects() {
    let bench = require!(Bench::of(RPING, &[]));
    let (server, client) = (["-s", "-p", PORT], ["-c", "-v", "-a", "127.0.0.1", "-p", PORT]);
    let outcome = bench.kill_the_server("rping", &server, &client, "rdma-ping-3");
    assert!(outcome.code.is_some() && outcome.text.contains("DISCONNECT EVENT"), "{outcome:?}");
}

/// The tests of pyverbs, in a folder of this test's own.
fn suite() -> Result<Scratch, Missing> {
    let is_there = Command::new(PYTHON).args(["-c", "import pyverbs"]).output().is_ok_and(|it| it.status.success());
    if !is_there || !Path::new(SUITE).is_dir() {
        return Err(Missing(format!("pyverbs with its tests in {SUITE} (package python3-pyverbs)")));
    }
    // The names of its tests are those of this release.
    let version = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "python3-pyverbs"]).output();
    let version = version.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with("44.") {
        return Err(Missing(format!("pyverbs 44 (there is {version})")));
    }
    let folder = Scratch::new();
    for entry in fs::read_dir(SUITE).expect("it is readable") {
        let path = entry.expect("it is readable").path();
        if path.is_dir() {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = if name.ends_with(".gz") {
            Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip").stdout
        } else {
            fs::read(&path).expect("it is readable")
        };
        fs::write(folder.join(name.trim_end_matches(".gz")), text).expect("it can be written");
    }
    Ok(folder)
}

/// What the suite must find to work: one name a line. It skips the tests of what a device says that it has not.
const PASSED: &str = include_str!("clients/pyverbs.txt");

#[test]
fn the_suite_of_rdma_core() {
    let folder = require!(suite());
    let bench = require!(Bench::of(("ibv_devinfo", "ibverbs-utils"), &[("PYTHONDONTWRITEBYTECODE", "1")]));
    let bench = require!(bench.faithful());
    let program = folder.join("run_tests.py");
    let program = program.to_str().expect("UTF-8");
    let text = bench.run(PYTHON, &[program, "--dev", "softrnic0", "--gid", "1", "-v"]).well();
    // Behind the name, or at the end of the line that describes the test.
    let lines: Vec<_> = text.lines().collect();
    let verdict = |name: &str| {
        let at = lines.iter().position(|line| line.contains(&format!("({name})")));
        let found = at.map_or(&[][..], |at| &lines[at..(at + 2).min(lines.len())]);
        found.iter().find(|line| line.contains(" ... ")).copied().unwrap_or_default()
    };
    let names: Vec<_> = PASSED.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(names.len() > 40, "{} names: too few to believe", names.len());
    let wrong: Vec<_> =
        names.into_iter().map(|name| (name, verdict(name))).filter(|it| !it.1.ends_with(" ok")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
