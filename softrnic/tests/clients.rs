//! Programs and test suites that others have written for RDMA devices, unmodified. docs/clients.md
//! lists them.

mod common;
#[path = "clients/pyverbs.rs"]
mod pyverbs;

use common::prelude::*;
use common::tools::{Bench, PORT, compiled};

const UCX: (&str, &str) = ("ucx_perftest", "ucx-utils");
const LIBFABRIC: (&str, &str) = ("fi_pingpong", "libfabric-bin");
const QPERF: (&str, &str) = ("qperf", "qperf");
const OPEN_MPI: (&str, &str) = ("mpirun", "openmpi-bin");

/// UCX with these transports of softrnic0.
fn ucx(transports: &str) -> Result<Bench, Missing> {
    Bench::of(UCX, &[("UCX_TLS", transports), ("UCX_NET_DEVICES", "softrnic0:1")])?.faithful()
}

#[test]
fn ucx_finds_its_transports() {
    let bench = require!(ucx("all"));
    let text = bench.run("ucx_info", &["-d"]).well();
    for transport in ["rc_verbs", "ud_verbs"] {
        let count =
            text.lines().filter(|line| line.ends_with(&format!("Transport: {transport}"))).count();
        assert_eq!(count, 2, "{transport} of both devices: {text}");
    }
}

/// UCX sends its messages by `operation`; what it has measured.
fn ucx_test(bench: &Bench, operation: &[&str]) {
    let server = ["-p", PORT];
    let client =
        [&server[..], &["-n", "200", "-w", "20", "-t"], operation, &["127.0.0.1"]].concat();
    let [server, client] = bench.serve("ucx_perftest", &server, &client);
    server.well();
    let text = client.well();
    let last = text
        .lines()
        .find(|line| line.starts_with("Final:"))
        .unwrap_or_else(|| panic!("no result: {text}"));
    assert_eq!(last.split_whitespace().nth(1), Some("200"), "{text}");
}

#[test]
fn ucx_over_rc() {
    // Its connections are made over UD.
    let bench = require!(ucx("rc_verbs,ud_verbs"));
    for operation in
        [["tag_lat", "-s", "8"], ["tag_bw", "-s", "65536"], ["stream_bw", "-s", "4096"]]
    {
        ucx_test(&bench, &operation);
    }
    for operation in
        [["ucp_put_lat", "-s", "64"], ["ucp_get", "-s", "1048576"], ["ucp_fadd", "-s", "8"]]
    {
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
    // Connected endpoints are of the device that has the addresses of the host; a libfabric may
    // leave out those of the loopback.
    let connected = has_interface().then_some("domain: softrnic0");
    for domain in
        ["domain: softrnic0-dgram", "domain: softrnic1-dgram"].into_iter().chain(connected)
    {
        assert!(text.lines().any(|line| line.trim() == domain), "{domain}: {text}");
    }
}

/// Whether an interface other than the loopback is up and has an address.
fn has_interface() -> bool {
    let mut list = ptr::null_mut();
    // SAFETY: the list is freed below.
    assert_eq!(unsafe { libc::getifaddrs(&raw mut list) }, 0);
    let (mut at, mut found) = (list, false);
    while !at.is_null() {
        // SAFETY: entries of the list, until it is freed; their addresses are NULL or whole.
        unsafe {
            let flags = (*at).ifa_flags as i32;
            let is_ip = |of: &libc::sockaddr| {
                [libc::AF_INET, libc::AF_INET6].contains(&i32::from(of.sa_family))
            };
            let has_address = (*at).ifa_addr.as_ref().is_some_and(is_ip);
            found |= has_address && flags & libc::IFF_UP != 0 && flags & libc::IFF_LOOPBACK == 0;
            at = (*at).ifa_next;
        }
    }
    // SAFETY: made above.
    unsafe { libc::freeifaddrs(list) };
    found
}

#[test]
fn libfabric_over_ud() {
    let bench = require!(Bench::of(LIBFABRIC, &[]));
    let common = ["-p", "verbs;ofi_rxd", "-e", "rdm", "-I", "10", "-c"];
    let (server, client) =
        ([&common[..], &["-B", PORT]].concat(), [&common[..], &["-P", PORT, "127.0.0.1"]].concat());
    let [server, client] = bench.serve("fi_pingpong", &server, &client);
    server.well();
    let text = client.well();
    assert!(
        text.lines().filter(|line| line.contains("=10")).count() >= 5,
        "a line for each size: {text}"
    );
}

/// Connected endpoints of libfabric are made by librdmacm.
#[test]
fn libfabric_over_connections() {
    let bench = require!(Bench::of(LIBFABRIC, &[]));
    let text = bench.run("fi_info", &["-p", "verbs", "-t", "FI_EP_MSG", "-s", "127.0.0.1"]).well();
    assert!(text.contains("FI_PROTO_RDMA_CM_IB_RC"), "{text}");
    let common = ["-p", "verbs", "-e", "msg", "-I", "10", "-S", "4096", "-c"];
    let (server, client) =
        ([&common[..], &["-B", PORT]].concat(), [&common[..], &["-P", PORT, "127.0.0.1"]].concat());
    let [server, client] = bench.serve("fi_pingpong", &server, &client);
    server.well();
    let text = client.well();
    assert!(text.lines().any(|line| line.starts_with("4k") && line.contains("=10")), "{text}");
}

#[test]
fn memory_windows_are_refused() {
    let (_folder, program) =
        require!(compiled("cc", "memory_windows", &["-libverbs"], "libibverbs-dev"));
    let bench = require!(Bench::of(("cc", "gcc"), &[]));
    let refused = "Operation not supported";
    let said = bench.run(&program, &[]).well();
    assert_eq!(said, format!("max_mw 0, flags 0\ntype 1: {refused}\ntype 2: {refused}\n"));
}

/// Open MPI over UCX, whose connections are made over UD: no other transport may carry anything
/// between the ranks.
fn open_mpi(transports: &str) -> Result<(Bench, Scratch, String), Missing> {
    let (folder, program) = compiled("mpicc", "messages", &[], "libopenmpi-dev")?;
    let as_root = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    let device = [("UCX_TLS", transports), ("UCX_NET_DEVICES", "softrnic0:1")];
    let bench = Bench::of(OPEN_MPI, &[as_root, device].concat())?.faithful()?;
    Ok((bench, folder, program))
}

const TWO_RANKS: [&str; 6] = ["--oversubscribe", "-n", "2", "--mca", "pml", "ucx"];

#[test]
fn open_mpi_over_ucx() {
    let (bench, _folder, program) = require!(open_mpi("rc_verbs,ud_verbs"));
    let said = bench.run("mpirun", &[&TWO_RANKS, &[program.as_str()][..]].concat()).well();
    let mut lines: Vec<_> = said.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 2: 0 bytes are wrong", "rank 1 of 2: 0 bytes are wrong"]);
}

/// qperf measures for a second each of these, by one server.
fn qperf(bench: &Bench, options: &[&str], tests: &[&str]) {
    let client = [&["-lp", PORT, "127.0.0.1", "-t", "1"], options, tests, &["quit"]].concat();
    let [server, client] = bench.serve("qperf", &["-lp", PORT], &client);
    server.well();
    let text = client.well();
    // A line with its name, then what it has measured, which is nothing where other programs keep
    // all processors busy.
    for test in tests {
        let mut lines = text.lines().skip_while(|line| line.trim_end() != format!("{test}:"));
        assert!(
            lines.nth(1).is_some_and(|line| line.starts_with(' ') && line.contains('=')),
            "{test}: {text}"
        );
    }
}

cases! { ();
    /// It addresses queue pairs by LIDs, as those of InfiniBand have them; over RoCE by librdmacm.
    qperf_over_rc_and_ud =>
        qperf(&require!(Bench::of(QPERF, &[("SOFTRNIC_LINK", "ib")])), &[], &["rc_lat", "ud_lat"]);
    qperf_over_roce => qperf(&require!(Bench::of(QPERF, &[])), &["-cm", "1"], &["rc_lat"]);
}

#[test]
fn every_test_of_qperf() {
    let bench = require!(Bench::of(QPERF, &[("SOFTRNIC_LINK", "ib")]));
    qperf(
        &bench,
        &[],
        &["rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_read_lat", "rc_rdma_write_bw"],
    );
    qperf(
        &bench,
        &[],
        &["rc_rdma_write_lat", "rc_rdma_write_poll_lat", "rc_compare_swap_mr", "rc_fetch_add_mr"],
    );
    qperf(
        &bench,
        &[],
        &[
            "ver_rc_compare_swap", "ver_rc_fetch_add", "uc_bw", "uc_bi_bw", "uc_lat",
            "uc_rdma_write_bw",
        ],
    );
    qperf(&bench, &[], &["uc_rdma_write_lat", "uc_rdma_write_poll_lat", "ud_bw", "ud_bi_bw"]);
    let over_roce = require!(Bench::of(QPERF, &[]));
    qperf(&over_roce, &["-cm", "1"], &["rc_bw", "rc_lat", "rc_rdma_write_lat"]);
}

const RPING: (&str, &str) = ("rping", "rdmacm-utils");

#[test]
fn rping_by_addresses() {
    let bench = require!(Bench::of(RPING, &[]));
    // The host's, and those that the GIDs of devices are.
    for address in ["127.0.0.1", "::1", "10.82.1.2"] {
        let common = ["-C", "5", "-v", "-p", PORT];
        let (server, client) =
            ([&["-s"], &common[..]].concat(), [&["-c", "-a", address], &common[..]].concat());
        let [server, client] = bench.serve("rping", &server, &client);
        assert!(server.well().contains("server ping data: rdma-ping-4"));
        let text = client.well();
        assert_eq!(
            text.lines().filter(|line| line.starts_with("ping data: rdma-ping-")).count(),
            5,
            "{text}"
        );
    }
}

#[test]
fn many_connections_by_addresses() {
    let bench = require!(Bench::of(("ucmatose", "rdmacm-utils"), &[]));
    let common = ["-c", "10", "-p", PORT];
    let [server, client] =
        bench.serve("ucmatose", &common, &[&["-s", "127.0.0.1"], &common[..]].concat());
    assert!(server.well().contains("disconnected"));
    assert!(client.well().contains("data transfers complete"));
}

#[test]
fn calls_of_librdmacm_that_wait() {
    let bench = require!(Bench::of(("rdma_server", "rdmacm-utils"), &[]));
    let [server, client] = bench.serve_by(
        ["rdma_server", "rdma_client"],
        &["-p", PORT],
        &["-s", "127.0.0.1", "-p", PORT],
    );
    assert!(server.well().contains("rdma_server: end 0"));
    assert!(client.well().contains("rdma_client: end 0"));
}

#[test]
fn connections_that_cannot_be_made() {
    let bench = require!(Bench::of(RPING, &[]));
    let fails = |arguments: &[&str], words: &str| {
        let outcome = bench.run("rping", arguments);
        assert!(
            outcome.code.is_some_and(|code| code != 0) && outcome.text.contains(words),
            "{outcome:?}"
        );
    };
    // One of those that are for documents: no device has a way there.
    fails(&["-c", "-C", "1", "-a", "192.0.2.1"], "RDMA_CM_EVENT_ADDR_ERROR, error -19");
    fails(&["-c", "-C", "1", "-a", "127.0.0.1"], "RDMA_CM_EVENT_REJECTED, error 8");
    fails(&["-s", "-C", "1", "-a", "192.0.2.1"], "rdma_bind_addr: Cannot assign requested address");
    assert_ne!(bench.run("udaddy", &["-s", "127.0.0.1"]).code, Some(0), "datagrams");
}

/// Calls of librdmacm by a program of this test's own, `clients/connections.py`.
fn connections(name: &str) -> Result<(), Missing> {
    let bench = Bench::of(("python3", "python3"), &[("SOFTRNIC_INLINE_EXCESS", "silent")])?;
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/connections.py");
    bench.run("python3", &[program, name]).well();
    Ok(())
}

cases! { ();
    an_application_refuses_a_connection => require!(connections("refuses"));
    calls_that_wait_take_events_of_their_own_identifier => require!(connections("two_at_once"));
    a_second_disconnect_does_not_wait => require!(connections("disconnects_twice"));
    a_connection_ends_though_a_forked_child_holds_its_socket =>
        require!(connections("ends_beside_a_fork"));
    a_forked_child_makes_connections_of_its_own => require!(connections("begins_anew_in_a_fork"));
    a_process_without_descriptors_connects_later => require!(connections("has_no_descriptors"));
    a_queue_pair_that_cannot_be_made_leaves_nothing => require!(connections("makes_no_queue_pair"));
}

#[test]
fn a_peer_that_dies_disconnects() {
    let bench = require!(Bench::of(RPING, &[]));
    let (server, client) = (["-s", "-p", PORT], ["-c", "-v", "-a", "127.0.0.1", "-p", PORT]);
    let outcome = bench.kill_the_server("rping", &server, &client, "rdma-ping-3");
    assert!(outcome.code.is_some() && outcome.text.contains("DISCONNECT EVENT"), "{outcome:?}");
}
