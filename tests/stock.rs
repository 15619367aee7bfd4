//! Stock NCCL: the loaders of seven releases take the plugin, each the table that it should, and
//! the IB transports of three releases run on the software RDMA device, which is thereby judged by
//! code that was not written here.

mod common;

use common::bench::{Bench, SIZES};
use common::process::{alone, pair};
use common::setting::{default_nccl, mount_namespaces, setting, stock_nccl};
use lab::error::Result;
use lab::measure::metric::Metric;
use lab::nccl::debug_log;
use lab::nccl::library::{Source, profiler_events};
use lab::pair::PairPermit;
use lab::pair::Setting;
use lab::results::record::{Record, Side};
use lab::transport::Transport;
use std::process::Command;
use testkit::cases;
use testkit::dist::{built, dist, plugin, softrnic_program};
use testkit::{Missing, Scratch, program, require};

/// Every size through the transport that `source` names, in two processes that know `library_path`
/// beside the device.
fn carries_everything(source: &Source, name: &str, setting: &Setting) -> Result<()> {
    pair(setting, |worker| {
        let transport = Transport::open(source)?;
        assert_eq!(transport.name(), name);
        let bench = Bench::open(worker, transport, 8 << 20)?;
        for (i, &size) in SIZES.iter().enumerate() {
            bench.exchange(worker, i, size, size)?;
            bench.exchange(worker, i, size, size + 37)?;
            bench.exchange(worker, i, size + 37, size)?;
        }
        Ok(())
    })?;
    Ok(())
}

fn loaded_as(value: &str) -> Result<()> {
    let mut setting = require!(setting());
    let nccl = require!(default_nccl());
    let source = Source::Loader { nccl, plugin: value.into() };
    source.net_plugin().clone_into(&mut setting.net_plugin);
    let path = format!("{}:{}", dist().join("softrnic").display(), dist().join("lib").display());
    carries_everything(&source, "Ferrite", &setting.env("LD_LIBRARY_PATH", path))
}

#[test]
fn nccls_loader_takes_the_plugin_by_absolute_path() -> Result<()> {
    let path = require!(plugin()).canonicalize().unwrap_or_default();
    loaded_as(&path.to_string_lossy())
}

#[test]
fn nccls_loader_takes_the_plugin_by_name() -> Result<()> {
    loaded_as("ferrite")
}

/// The loader of `release` takes the plugin's table of `version`, over which messages go.
fn takes_version(release: &str, version: u32) -> Result<()> {
    let mut setting = require!(setting());
    let nccl = require!(stock_nccl(release));
    let plugin =
        require!(plugin()).canonicalize().unwrap_or_default().to_string_lossy().into_owned();
    let source = Source::Loader { nccl, plugin };
    source.net_plugin().clone_into(&mut setting.net_plugin);
    pair(&setting, |worker| {
        let transport = Transport::open(&source)?;
        let identity = transport.identity();
        assert_eq!((identity.name.as_str(), identity.interface), ("Ferrite", version));
        assert_eq!(identity.symbol, format!("ncclNetPlugin_v{version}"));
        Bench::open(worker, transport, 1 << 20)?.exchange(worker, 1, 70_001, 70_001)
    })?;
    Ok(())
}

cases! { Result<()>;
    the_loader_of_nccl_2_25_takes_version_9 => takes_version("2.25.1", 9);
    the_loader_of_nccl_2_27_takes_version_10 => takes_version("2.27.5", 10);
    the_loader_of_nccl_2_28_takes_version_11 => takes_version("2.28.9", 11);
    the_loader_of_nccl_2_30_takes_version_12 => takes_version("2.30.7", 12);
    the_loader_of_nccl_2_32_takes_version_12 => takes_version("2.32.3", 12);
}

/// The loader of `release`, which has taken the plugin's network, looks for a profiler with
/// `environment`, and is asked for the events of `mask`.
fn asked_for(release: &str, environment: &[(&str, &str)], mask: i32) -> Result<()> {
    let setting = require!(setting());
    let nccl = require!(stock_nccl(release));
    let plugin =
        require!(plugin()).canonicalize().unwrap_or_default().to_string_lossy().into_owned();
    let mut setting =
        environment.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
    setting.net_plugin.clone_from(&plugin);
    alone(Ok(setting), |_| {
        assert_eq!(profiler_events(&nccl, &plugin)?, mask, "NCCL {release} with {environment:?}");
        Ok(())
    })
}

/// What proxies do for operations.
const PROXY_EVENTS: i32 = 8;

/// The loader of `release` finds the profiler in the network plugin: with no setting, and where
/// there is no file of the name.
fn finds_profiler(release: &str) -> Result<()> {
    asked_for(release, &[], PROXY_EVENTS)?;
    asked_for(release, &[("NCCL_PROFILER_PLUGIN", "ferrite")], PROXY_EVENTS)?;
    asked_for(release, &[("NCCL_PROFILER_PLUGIN", "/missing/profiler.so")], PROXY_EVENTS)
}

cases! { Result<()>;
    the_loader_of_nccl_2_28_finds_the_profiler => finds_profiler("2.28.9");
    the_loader_of_nccl_2_30_finds_the_profiler => finds_profiler("2.30.7");
    the_loader_of_nccl_2_32_finds_the_profiler => finds_profiler("2.32.3");
}

#[test]
fn nccl_is_asked_for_no_events_where_the_user_wants_none() -> Result<()> {
    asked_for("2.28.9", &[("NCCL_PROFILER_PLUGIN", "none")], 0)?;
    asked_for("2.28.9", &[("FERRITE_PROFILER", "0")], 0)
}

#[test]
fn nccls_own_ib_transport_runs_on_the_software_device() -> Result<()> {
    let setting = require!(setting());
    let source = Source::stock(require!(default_nccl()));
    carries_everything(&source, "IB", &setting)
}

/// `ferrite verify` of a release's own transport, run by `wrapper` if there is one: exit code,
/// stdout and stderr.
fn verified(
    release: &str,
    wrapper: &[&str],
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> std::result::Result<(i32, String, String), Missing> {
    stock_nccl(release)?;
    setting()?;
    built("bin/ferrite")?;
    let _turn = PairPermit::wait();
    let bin = dist().join("bin");
    let ferrite = bin.join("ferrite");
    let mut command = match wrapper {
        [] => Command::new(&ferrite),
        [program, more @ ..] => {
            let mut command = Command::new(bin.join(program));
            command.args(more).arg(&ferrite);
            command
        }
    };
    command.args(["verify", "--stock", release]).args(arguments).env("SOFTRNIC_STRICT", "1");
    Ok(program::run(command.envs(environment.iter().copied())).into_parts())
}

/// Everything that is checked is right, and all of it is checked.
fn all_right((code, stdout, stderr): (i32, String, String), headline: &str, checks: usize) {
    assert_eq!(code, 0, "{stdout}\n{stderr}");
    assert!(stdout.starts_with(headline), "{stdout}");
    let right = stdout.lines().filter(|line| line.starts_with("  right  ")).count();
    assert_eq!(right, checks, "{stdout}");
}

fn is_right(
    release: &str,
    over: &str,
    headline: &str,
    checks: usize,
    environment: &[(&str, &str)],
) -> Result<()> {
    all_right(require!(verified(release, &[], &["--over", over], environment)), headline, checks);
    Ok(())
}

/// Single messages of 20 sizes, streams of 10, groups of 1 to 8, 5 that are cut.
const ALL_CHECKS: usize = 43;
/// Streams of 10 sizes.
const STREAMS: usize = 10;

/// All checks over one connection, with this version of the table.
fn over_one(release: &str, version: u32) -> Result<()> {
    let on = "softrnic0 and softrnic1";
    let headline = format!("single: IB {release} (interface v{version}) on {on}\n");
    is_right(release, "single", &headline, ALL_CHECKS, &[])
}

fn over_fused(release: &str, version: u32) -> Result<()> {
    let on = "softrnic0+softrnic1 and softrnic2+softrnic3";
    let headline = format!("fused: IB {release} (interface v{version}) on {on}\n");
    is_right(release, "fused", &headline, ALL_CHECKS, &[("SOFTRNIC_DEVICES", "4")])
}

cases! { Result<()>;
    ib_of_2_21_5_is_right_over_one_connection => over_one("2.21.5", 8);
    ib_of_2_28_9_is_right_over_one_connection => over_one("2.28.9", 11);
    ib_of_2_30_7_is_right_over_one_connection => over_one("2.30.7", 12);
    ib_of_2_28_9_is_right_over_fused_devices => over_fused("2.28.9", 11);
    ib_of_2_30_7_is_right_over_fused_devices => over_fused("2.30.7", 12);
}

#[test]
fn ib_is_right_over_two_devices_at_once() -> Result<()> {
    for release in ["2.21.5", "2.28.9", "2.30.7"] {
        is_right(release, "parallel", &format!("parallel: IB {release} "), STREAMS, &[])?;
    }
    Ok(())
}

/// This release fuses devices by itself, if their links in /sys/class/infiniband lead to one PCI
/// device and they have one system image GUID.
#[test]
fn ib_of_2_21_5_is_right_over_fused_devices() -> Result<()> {
    require!(mount_namespaces());
    require!(softrnic_program());
    let wrapper = ["softrnic", "run", "--faithful", "--same-card", "--devices", "4", "--"];
    let headline =
        "fused: IB 2.21.5 (interface v8) on softrnic0+softrnic1 and softrnic2+softrnic3\n";
    all_right(
        require!(verified("2.21.5", &wrapper, &["--over", "fused"], &[])),
        headline,
        ALL_CHECKS,
    );
    Ok(())
}

/// Every seventh message of each connection has to be sent again, or its acknowledgement does.
#[test]
fn ib_is_right_over_a_network_that_loses_messages() -> Result<()> {
    for (release, fault) in
        [("2.21.5", "drop every=7"), ("2.28.9", "drop-ack every=7"), ("2.30.7", "drop every=7")]
    {
        let environment = [
            ("SOFTRNIC_FAULTS", fault),
            ("SOFTRNIC_TIME_SCALE", "0.01"),
            ("NCCL_IB_TIMEOUT", "14"),
        ];
        is_right(release, "single", &format!("single: IB {release} "), ALL_CHECKS, &environment)?;
    }
    Ok(())
}

/// The checks themselves are checked: a device that turns one bit does not pass.
#[test]
fn a_flipped_bit_is_found_in_what_ib_carries() -> Result<()> {
    let fault = [("SOFTRNIC_FAULTS", "corrupt opcode=write-imm every=5")];
    let (code, stdout, stderr) = require!(verified("2.28.9", &[], &["--over", "single"], &fault));
    assert_eq!(code, 1, "{stdout}\n{stderr}");
    assert!(
        stdout.contains("\n  WRONG  ") && stderr.contains("of them wrong"),
        "{stdout}\n{stderr}"
    );
    Ok(())
}

/// A long stream of 2.30.7 over two fused devices on each side, with a fault in it on rank 0's
/// side. Messages of 64 KiB: where messages are not cut into equal stripes, this release sends too
/// much when it sends a stripe again.
fn despite(
    fault: &str,
    messages: &str,
    settings: &[(&str, &str)],
) -> std::result::Result<(i32, String, String), Missing> {
    let mut environment =
        vec![("SOFTRNIC_DEVICES", "4"), ("SOFTRNIC_FAULTS", fault), ("RUST_LOG", "debug")];
    // For some tens of milliseconds a device tries again; the default is 34 s.
    environment.extend([("NCCL_IB_TIMEOUT", "10"), debug_log::ALL_INFO]);
    environment.extend(settings);
    verified("2.30.7", &[], &["--over", "fused", "--long", messages], &environment)
}

/// It came to its end with all data right, and both ranks said `words`.
fn survived((code, stdout, stderr): &(i32, String, String), words: &str) {
    assert_eq!(*code, 0, "{stdout}\n{stderr}");
    assert!(stdout.contains("  right  long         65536 B"), "{stdout}");
    for rank in ["rank 0", "rank 1"] {
        let said = |line: &str| line.contains(rank) && line.contains(words);
        assert!(stderr.lines().any(said), "{rank} does not say {words:?}: {stderr}");
    }
}

const DEVICE_DIES: &str = "device-fatal device=softrnic1 message=1000";
/// The event that goes with a dead device would end the communicator, failover or not.
const NO_EVENTS: (&str, &str) = ("NCCL_IB_RETURN_ASYNC_EVENTS", "0");
const FAILOVER: (&str, &str) = ("NCCL_IB_RESILIENCY_PORT_FAILOVER", "1");

#[test]
fn ib_of_2_30_7_survives_the_death_of_a_device() -> Result<()> {
    survived(
        &require!(despite(DEVICE_DIES, "4000", &[FAILOVER, NO_EVENTS])),
        "Device 1 marked as failed",
    );
    Ok(())
}

#[test]
fn ib_of_2_30_7_without_failover_ends_at_the_death_of_a_device() -> Result<()> {
    let (code, stdout, stderr) = require!(despite(DEVICE_DIES, "4000", &[NO_EVENTS]));
    assert_eq!(code, 2, "{stdout}\n{stderr}");
    assert!(stderr.contains("IB: test returned 6 (ncclRemoteError"), "{stderr}");
    Ok(())
}

#[test]
fn ib_of_2_30_7_survives_a_port_that_stays_down() -> Result<()> {
    survived(
        &require!(despite("port-down device=softrnic1 message=1000", "4000", &[FAILOVER])),
        "Device 1 marked as failed",
    );
    Ok(())
}

/// Its queue pairs go through reset and all states again, after messages over others of the UC type
/// have told that the way is free.
#[test]
fn ib_of_2_30_7_uses_a_port_again_that_has_recovered() -> Result<()> {
    let quick = [
        FAILOVER,
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY", "1"),
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", "20"),
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", "20"),
        // One at a time: 2.30.7 asserts that none of them comes when it has heard enough, which the
        // rest of a batch does.
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", "1"),
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", "1"),
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", "200"),
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", "200"),
        ("NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", "100"),
    ];
    survived(
        &require!(despite(
            "port-down=200ms device=softrnic1 message=1000 times=1",
            "20000",
            &quick
        )),
        "Device 1 has been recovered",
    );
    Ok(())
}

/// What a user does first, in short: both transports right, and a report.
#[test]
fn the_comparison_is_valid_and_its_data_right() {
    require!(setting());
    require!(default_nccl());
    let report = Scratch::new();
    let mut command = Command::new(require!(built("bin/ferrite")));
    let short = ["compare", "--seconds", "6", "--sizes", "8,1M", "--connections", "8", "--report"];
    let printed = program::run(command.args(short).arg(report.path()));
    // Six seconds say little of the times. Another code says that nothing was compared.
    assert!(matches!(printed.status.code(), Some(0 | 1 | 3)), "{printed}");
    assert!(printed.stdout.contains("messages right; "), "{printed}");
    for file in ["report.html", "report.md", "report.svg"] {
        assert!(report.join(file).exists(), "{file}");
    }
    let raw = std::fs::read(report.join("raw.json")).expect("it was written");
    let record: Record = serde_json::from_slice(&raw).expect("it is a record");
    let is_set_up = record.rows.iter().any(|row| row.key.metric == Metric::SetupMany);
    assert!(is_set_up, "{printed}");
    let names: Vec<&str> = record.sides.iter().map(|side| side.identity.name.as_str()).collect();
    assert_eq!(names, ["IB", "Ferrite"]);
    let device = std::fs::canonicalize(dist().join("softrnic")).expect("it is there");
    let verbs = |side: &Side| side.verbs.first().is_some_and(|file| file.starts_with(&device));
    assert!(record.sides.iter().all(verbs), "{:?}", record.sides);
}
