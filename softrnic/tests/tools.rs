//! The system's RDMA tools, unmodified, between two processes. What they measure is not judged:
//! only that they come to an end, and that what they report can be true.

mod common;

use common::tools::{Bench, Outcome};
use testkit::require;

/// Iterations of a test.
const FEW: &[&str] = &["-n", "50"];

/// The table at the end of a report: lines that begin with a number of bytes.
fn rows(text: &str) -> Vec<Vec<f64>> {
    let numbers = |line: &str| {
        line.split_whitespace().map(|field| field.parse().ok()).collect::<Option<Vec<f64>>>()
    };
    text.lines().filter_map(numbers).filter(|row| row.len() >= 5).collect()
}

/// Runs a tool of perftest; the client's table, of which `columns` of each row must be more than
/// nothing.
fn measure(bench: &Bench, tool: &str, arguments: &[&str], columns: usize) -> Vec<Vec<f64>> {
    let arguments = [FEW, arguments].concat();
    let [mut server, mut client] = bench.pair(tool, &arguments);
    // Of perftest's own TCP connection, whose end the client may reset before the server has read
    // all.
    for _ in 0..2 {
        if server.text.contains("Failed to exchange data between server and clients") {
            [server, client] = bench.pair(tool, &arguments);
        }
    }
    server.well();
    let text = client.well();
    let table = rows(&text);
    assert!(!table.is_empty(), "{text}");
    for row in &table {
        assert!(row.iter().take(columns).all(|&value| value > 0.0), "{text}");
    }
    table
}

/// Bytes and iterations; then peak, average and messages in a time, which a few small messages may
/// leave at 0.00.
fn bandwidth(bench: &Bench, tool: &str, arguments: &[&str]) -> Vec<Vec<f64>> {
    let table = measure(bench, tool, arguments, 2);
    for row in table.iter().filter(|row| row[0] >= 4096.0) {
        assert!(row[2] > 0.0 && row[3] > 0.0, "{row:?}");
    }
    table
}

/// Bytes, iterations, least, most, typical, average; then what may read 0.
fn latency(bench: &Bench, tool: &str, arguments: &[&str]) -> Vec<Vec<f64>> {
    let table = measure(bench, tool, arguments, 6);
    for row in &table {
        let (least, most, typical) = (row[2], row[3], row[4]);
        assert!(least <= typical && typical <= most, "{row:?}");
    }
    table
}

#[test]
fn devices_are_listed() {
    let bench = require!(Bench::new());
    let text = bench.run("ibv_devices", &[]).well();
    for line in [["softrnic0", "0250f7fffe000001"], ["softrnic1", "0250f7fffe000002"]] {
        assert!(text.lines().any(|l| l.split_whitespace().eq(line)), "{text}");
    }
}

#[test]
fn devices_are_described() {
    let bench = require!(Bench::new());
    let text = bench.run("ibv_devinfo", &["-d", "softrnic1", "-v"]).well();
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for fact in [
        "hca_id: softrnic1",
        "state: PORT_ACTIVE (4)",
        "active_mtu: 4096 (5)",
        "link_layer: Ethernet",
        "active_width: 4X (2)",
        "active_speed: 100.0 Gbps (128)",
        "GID[ 0]: fe80::50:f7ff:fe00:102, RoCE v2",
        "GID[ 1]: ::ffff:10.82.1.2, RoCE v2",
    ] {
        assert!(squeezed.contains(fact), "{fact}: {text}");
    }
    assert!(!text.contains("softrnic0"), "{text}");
}

#[test]
fn ping_pong() {
    let bench = require!(Bench::new());
    for (tool, more) in
        [("ibv_rc_pingpong", [].as_slice()), ("ibv_rc_pingpong", &["-e"]), ("ibv_uc_pingpong", &[])]
    {
        // With a check of what arrived.
        let [server, client] = bench.pair(tool, &[FEW, &["-g", "1", "-c"], more].concat());
        for text in [server.well(), client.well()] {
            assert!(text.contains("50 iters in "), "{text}");
            assert!(!text.contains("invalid data"), "{text}");
        }
    }
}

#[test]
fn bandwidth_of_each_operation() {
    let bench = require!(Bench::new());
    for tool in ["ib_write_bw", "ib_send_bw", "ib_read_bw"] {
        assert_eq!(bandwidth(&bench, tool, &[])[0][..2], [65536.0, 50.0], "{tool}");
        // Both directions, over several QPs.
        assert_eq!(bandwidth(&bench, tool, &["-b", "-q", "4"])[0][1], 200.0, "{tool}");
    }
}

#[test]
fn latency_of_each_operation() {
    let bench = require!(Bench::new());
    for tool in ["ib_write_lat", "ib_send_lat", "ib_read_lat"] {
        assert_eq!(latency(&bench, tool, &[])[0][0], 2.0, "{tool}");
    }
}

#[test]
fn all_sizes() {
    let bench = require!(Bench::new());
    // 2 bytes to 8 MiB.
    let sizes: Vec<f64> = (1..=23).map(|bits| f64::from(1 << bits)).collect();
    let table = bandwidth(&bench, "ib_write_bw", &["-a", "-n", "10"]);
    assert_eq!(table.iter().map(|row| row[0]).collect::<Vec<_>>(), sizes);
    // Each size takes the tool a while: of sends the two ends.
    for size in [2.0, f64::from(1 << 23)] {
        let table = bandwidth(&bench, "ib_send_bw", &["-s", &size.to_string(), "-n", "10"]);
        assert_eq!(table.iter().map(|row| row[0]).collect::<Vec<_>>(), [size]);
    }
}

#[test]
fn completion_events() {
    let bench = require!(Bench::new());
    bandwidth(&bench, "ib_send_bw", &["-e"]);
    bandwidth(&bench, "ib_read_bw", &["-e"]);
    latency(&bench, "ib_send_lat", &["-e"]);
}

#[test]
fn atomics() {
    let bench = require!(Bench::new());
    bandwidth(&bench, "ib_atomic_bw", &["-A", "FETCH_AND_ADD"]);
    latency(&bench, "ib_atomic_lat", &["-A", "CMP_AND_SWAP"]);
}

#[test]
fn other_transports_and_shapes() {
    let bench = require!(Bench::new());
    bandwidth(&bench, "ib_write_bw", &["-c", "UC"]);
    bandwidth(&bench, "ib_send_bw", &["-c", "UC"]);
    // Lists of work requests, few completions, a short queue.
    bandwidth(&bench, "ib_write_bw", &["-l", "5"]);
    bandwidth(&bench, "ib_write_bw", &["-Q", "10", "-t", "20"]);
    latency(&bench, "ib_send_lat", &["-s", "64", "-I", "64"]);
}

/// Both ends say in the heads of their reports that a setting has this value.
fn has_setting(reports: &[String; 2], name: &str, value: &str) {
    for text in reports {
        let found = text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name);
        assert_eq!(found.map(|(_, found)| found.trim()), Some(value), "{text}");
    }
}

#[test]
fn gid_indices_of_perftest() {
    let bench = require!(Bench::new());
    for index in ["0", "1"] {
        has_setting(
            &bench.pair("ib_write_bw", &[FEW, &["-x", index]].concat()).map(Outcome::well),
            "GID index",
            index,
        );
    }
    // An entry of the table that is empty.
    for Outcome { code, text, .. } in bench.pair("ib_write_bw", &[FEW, &["-x", "9"]].concat()) {
        assert!(code == Some(1) && text.contains("Failed to modify QP"), "{text}");
    }
}

/// It inlines on the cards whose numbers it knows, and says so on others.
#[test]
fn inline_sends_of_perftest() {
    let arguments = [FEW, &["-s", "64", "-I", "64"]].concat();
    let reports = require!(Bench::new()).pair("ib_write_lat", &arguments).map(Outcome::well);
    has_setting(&reports, "Max inline data", "0[B]");
    assert!(
        reports[1].contains("Device not recognized to implement inline feature"),
        "{reports:?}"
    );
    let mlx5 = require!(Bench::of(("ib_write_lat", "perftest"), &[("SOFTRNIC_DRIVER", "mlx5")]));
    has_setting(
        &mlx5.pair("ib_write_lat", &arguments).map(Outcome::well),
        "Max inline data",
        "64[B]",
    );
    let refused = mlx5.run("ib_write_lat", &["-I", "4096"]);
    assert!(
        refused.code == Some(1) && refused.text.contains("Max inline should be between 0 and"),
        "{refused:?}"
    );
}

/// iproute2's `rdma` asks the kernel's RDMA core over netlink, which knows none of these devices.
#[test]
fn netlink_is_not_answered() {
    let bench = require!(require!(Bench::of(("rdma", "iproute2"), &[])).faithful());
    for what in ["link", "dev", "resource", "statistic"] {
        let Outcome { code, text, .. } = bench.run("rdma", &[what]);
        // Without the kernel's RDMA core it has nobody to ask.
        let is_refused = code == Some(1) && text.contains("Failed to open NETLINK_RDMA socket");
        assert!(is_refused || !text.contains("softrnic"), "{code:?}: {text}");
    }
}

#[test]
fn datagrams() {
    let bench = require!(Bench::new());
    for more in [[].as_slice(), &["-e"], &["-g", "0"]] {
        let [server, client] =
            bench.pair("ibv_ud_pingpong", &[FEW, &["-g", "1", "-c"], more].concat());
        for text in [server.well(), client.well()] {
            assert!(text.contains("50 iters in ") && !text.contains("invalid data"), "{text}");
        }
    }
    assert_eq!(bandwidth(&bench, "ib_send_bw", &["-c", "UD"])[0][..2], [4096.0, 50.0]);
    assert_eq!(bandwidth(&bench, "ib_send_bw", &["-c", "UD", "-b", "-q", "4"])[0][1], 200.0);
    bandwidth(&bench, "ib_send_bw", &["-c", "UD", "-e"]);
    assert_eq!(latency(&bench, "ib_send_lat", &["-c", "UD"])[0][0], 2.0);
}

#[test]
fn shared_receive_queues() {
    let bench = require!(Bench::new());
    for more in [[].as_slice(), &["-e"], &["-q", "3"]] {
        let [server, client] =
            bench.pair("ibv_srq_pingpong", &[FEW, &["-g", "1", "-c"], more].concat());
        for text in [server.well(), client.well()] {
            assert!(text.contains("50 iters in ") && !text.contains("invalid data"), "{text}");
        }
    }
    assert_eq!(
        bandwidth(&bench, "ib_send_bw", &["--use-srq", "-q", "4"])[0][..2],
        [65536.0, 200.0]
    );
    bandwidth(&bench, "ib_send_bw", &["--use-srq", "-c", "UD"]);
    latency(&bench, "ib_send_lat", &["--use-srq"]);
}

#[test]
fn from_one_device_to_the_other() {
    let bench = require!(Bench::new());
    let (server, client) = ([FEW, &["-d", "softrnic1"]], [FEW, &["-d", "softrnic0"]]);
    let [server, client] = bench.pair_of("ib_write_bw", &server, &client);
    assert!(server.well().contains("softrnic1"));
    let text = client.well();
    assert_eq!(rows(&text).len(), 1, "{text}");
}

/// Connections that are made by IP addresses.
#[test]
fn connections_by_addresses() {
    // A receiver that is not ready yet is tried again after 655 ms, as connections of the kernel's
    // connection manager have it.
    let bench =
        require!(Bench::of(("ib_write_bw", "perftest"), &[("SOFTRNIC_TIME_SCALE", "0.01")]));
    assert_eq!(bandwidth(&bench, "ib_write_bw", &["-R"])[0][..2], [65536.0, 50.0]);
    assert_eq!(bandwidth(&bench, "ib_send_bw", &["-R", "-q", "4"])[0][..2], [65536.0, 200.0]);
}

/// It ended by itself, as a failure, with these words.
fn refused(outcome: &Outcome, words: &str) {
    assert!(
        outcome.code.is_some_and(|code| code != 0) && outcome.text.contains(words),
        "{outcome:?}"
    );
}

#[test]
fn what_is_absent_is_refused() {
    let bench = require!(Bench::new());
    refused(&bench.run("ibv_xsrq_pingpong", &["-g", "1"]), "Couldn't Open the XRC Domain");
}
