//! Programs on the system's own libibverbs and its driver libraries, with softrnic as kernel and card beneath.

mod common;

use common::tools::{Bench, compiled};
use testkit::{Missing, require};

#[test]
fn devices_are_those_of_a_connectx() {
    let bench = require!(Bench::beneath("mlx5", &[("SOFTRNIC_PORTS", "2")]));
    let text = bench.run("ibv_devinfo", &["-v"]).well();
    let squeezed = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for fact in [
        "hca_id: mlx5_0", "hca_id: mlx5_1", "fw_ver: 28.42.1000", "node_guid: 0250:f7ff:fe00:0001",
        "vendor_id: 0x02c9", "vendor_part_id: 4129", "phys_port_cnt: 2", "state: PORT_ACTIVE (4)",
        "active_mtu: 4096 (5)", "link_layer: Ethernet", "active_speed: 100.0 Gbps (128)",
        "GID[ 3]: ::ffff:10.82.1.1, RoCE v2",
    ] {
        assert!(squeezed.contains(fact), "{fact}: {text}");
    }
    // A generation is what the card says, and what sysfs says.
    let bench = require!(Bench::beneath("mlx5", &[("SOFTRNIC_DRIVER", "mlx5-cx6dx")]));
    let text = bench.run("ibv_devinfo", &["-d", "mlx5_1"]).well();
    assert!(text.contains("\t4125\n"), "{text}");
    let told = bench.run("cat", &["/sys/class/infiniband/mlx5_0/device/modalias"]).well();
    assert!(told.starts_with("pci:v000015B3d0000101Dsv"), "{told}");
}

#[test]
fn ping_pong() {
    let bench = require!(Bench::beneath("mlx5", &[]));
    for (tool, more) in
        [("ibv_rc_pingpong", "-c"), ("ibv_uc_pingpong", "-c"), ("ibv_rc_pingpong", "-ce")]
    {
        // With a check of what arrived; with notifications.
        let [server, client] = bench.pair(tool, &["-n", "50", "-g", "1", more]);
        for text in [server.well(), client.well()] {
            assert!(text.contains("50 iters in ") && !text.contains("invalid data"), "{text}");
        }
    }
}

/// perftest posts by `ibv_wr_start` and `ibv_wr_complete`.
#[test]
fn perftest_measures_each_operation() {
    let bench = require!(Bench::beneath("mlx5", &[]));
    for (tool, more) in [
        ("ib_write_bw", ["-q", "8"].as_slice()),
        ("ib_write_lat", &[]),
        ("ib_send_bw", &[]),
        // Waits for notifications.
        ("ib_send_bw", &["-e"]),
        ("ib_read_bw", &[]),
        ("ib_atomic_bw", &[]),
    ] {
        let [server, client] = bench.pair(tool, &[&["-n", "50"], more].concat());
        server.well();
        let text = client.well();
        let last = text.lines().rev().find(|line| line.starts_with(" "));
        let values = last.unwrap_or_default().split_whitespace().map(str::parse::<f64>);
        let values: Vec<f64> = values.collect::<Result<_, _>>().unwrap_or_default();
        assert!(values.len() > 3 && values[1] >= 50.0 && values[3] > 0.0, "{tool}: {text}");
    }
}

/// What libmlx5 makes of requests is read right, and it reads completions right: of all kinds, of
/// all shapes, anywhere in its rings. softrnic by itself does the same with the same requests.
#[test]
fn random_requests_do_the_same_as_on_softrnic_alone() {
    let (_folder, program) = require!(compiled("cc", "requests", &["-libverbs"], "libibverbs-dev"));
    let benches = [require!(Bench::beneath("mlx5", &[])), require!(Bench::of(("cc", "gcc"), &[]))];
    for bench in &benches {
        for seed in ["1", "2", "3"] {
            let said = bench.run(&program, &[seed, "1000"]).well();
            assert_eq!(said, "1000 chains are right\n");
        }
        let said = bench.run(&program, &["4", "1000", "extended"]).well();
        assert_eq!(said, "1000 chains are right\n");
    }
}

/// What the program prints on the library that drives such cards, and on softrnic alone with devices
/// of that driver.
fn printed(
    provider: &'static str,
    program: &str,
    variables: &[(&str, &str)],
    arguments: &[&[&str]],
) -> Result<Vec<[String; 2]>, Missing> {
    let real = Bench::beneath(provider, variables)?;
    let own = [variables, &[("SOFTRNIC_DRIVER", provider)]].concat();
    let own = Bench::of(("cc", "gcc"), &own)?;
    let run = |words: &&[&str]| [&real, &own].map(|bench| bench.run(program, words).well());
    Ok(arguments.iter().map(run).collect())
}

/// Fails with the first line in which they differ, and those around it.
fn same([real, own]: &[String; 2]) {
    let differs = real.lines().zip(own.lines()).position(|(one, other)| one != other);
    if let Some(at) = differs {
        let part = |text: &str| {
            text.lines().skip(at.saturating_sub(12)).take(16).collect::<Vec<_>>().join("\n")
        };
        panic!("line {at}\n{}\n\nsoftrnic alone\n{}", part(real), part(own));
    }
    assert_eq!(real, own);
    assert!(real.ends_with("end\n"), "{real}");
}

/// The same calls and requests: sizes, refusals, and every field of every completion are the same.
fn twins(provider: &'static str, more: &[&str]) {
    let (_folder, program) = require!(compiled("cc", "truths", &["-libverbs"], "libibverbs-dev"));
    let soon = [("SOFTRNIC_TIME_SCALE", "0.05")];
    let seeds = ["1", "2"].map(|seed| [&[seed, "40"], more].concat());
    let seeds: Vec<&[&str]> = seeds.iter().map(Vec::as_slice).collect();
    require!(printed(provider, &program, &soon, &seeds)).iter().for_each(same);
}

#[test]
fn the_driver_mlx5_does_what_libmlx5_does() {
    twins("mlx5", &[]);
}

#[test]
fn the_driver_erdma_does_what_liberdma_does() {
    twins("erdma", &[]);
}

/// Leaves out what the library gets wrong.
#[test]
fn the_driver_bnxt_re_does_what_libbnxt_re_does() {
    twins("bnxt_re", &["careful"]);
}

/// Completion channels; events of queue pairs, of ports, of a device.
#[test]
fn notifications_and_events_arrive_as_on_softrnic_alone() {
    let (_folder, program) = require!(compiled("cc", "notices", &["-libverbs"], "libibverbs-dev"));
    let rules = "qp-error message=5 times=1; port-down=50ms message=6 times=1; device-fatal message=7 times=1";
    let variables = [("SOFTRNIC_TIME_SCALE", "0.05"), ("SOFTRNIC_FAULTS", rules)];
    for provider in ["mlx5", "bnxt_re", "erdma"] {
        for both in require!(printed(provider, &program, &variables, &[&[]])) {
            same(&both);
            for line in [
                "notified: of sends, word 1",
                "destroyed: 0 0 0",
                "event: local work queue catastrophic error, queue pair 0",
                "event: port error, port 1",
                "event: port active, port 1",
                "event: local catastrophic error",
                "another queue: refused",
            ] {
                assert!(both[0].contains(&format!("\n{line}\n")), "{line}: {}", both[0]);
            }
        }
    }
}

/// Checks the names and numbers of devices, and their modalias, and runs two ping-pongs.
fn devices_of(provider: &'static str, facts: [&str; 3], alias: &str) {
    let bench = require!(Bench::beneath(provider, &[]));
    let text = bench.run("ibv_devinfo", &[]).well();
    for fact in facts {
        assert!(text.contains(fact), "{fact}: {text}");
    }
    for more in [&["-n", "50", "-g", "1", "-c"][..], &["-n", "50", "-g", "1", "-c", "-e"]] {
        let [server, client] = bench.pair("ibv_rc_pingpong", more);
        for text in [server.well(), client.well()] {
            assert!(text.contains("50 iters in ") && !text.contains("invalid data"), "{text}");
        }
    }
    let name = facts[0].split_whitespace().last().expect("a name");
    let path = format!("/sys/class/infiniband/{name}/device/modalias");
    let told = bench.run("cat", &[&path]).well();
    assert!(told.starts_with(alias), "{told}");
}

#[test]
fn devices_of_erdma() {
    let facts = ["hca_id:\terdma_0\n", "vendor_id:\t\t\t0x1ded\n", "vendor_part_id:\t\t\t4223\n"];
    devices_of("erdma", facts, "pci:v00001DEDd0000107Fsv");
}

#[test]
fn devices_of_bnxt_re() {
    let facts = ["hca_id:\tbnxt_re0\n", "vendor_id:\t\t\t0x14e4\n", "vendor_part_id:\t\t\t5968\n"];
    devices_of("bnxt_re", facts, "pci:v000014E4d00001750sv");
}

#[test]
fn other_cards_are_refused_in_a_sentence() {
    let bench = require!(Bench::beneath("mlx5", &[("SOFTRNIC_DRIVER", "erdma")]));
    let outcome = bench.run("true", &[]);
    assert_eq!(outcome.code, Some(2), "{outcome:?}");
    let sentence = "--provider mlx5 needs devices with the limits of its cards, not of erdma: ";
    assert!(outcome.text.contains(sentence), "{outcome:?}");
}

#[test]
fn what_is_not_modelled_is_refused_in_a_sentence() {
    let bench = require!(Bench::beneath("mlx5", &[]));
    for (tool, more, what) in [
        ("ibv_ud_pingpong", "-n1", "queue pairs of types other than RC and UC"),
        ("ibv_srq_pingpong", "-n1", "shared receive queues"),
    ] {
        let outcome = bench.run(tool, &["-g", "1", more]);
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        let sentence = format!("softrnic: {what} are not modelled beneath a provider (EOPNOTSUPP)");
        assert!(outcome.text.contains(&sentence), "{outcome:?}");
    }
}
