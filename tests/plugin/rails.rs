//! Ports of one card as one device of several rails, on software devices that look like functions
//! of cards.

use crate::common::bench::SIZES;
use crate::common::flushes::Flushes;
use crate::common::prelude::*;
use crate::common::setting::mount_namespaces;
use lab::pair::PairPermit;
use std::process::Command;
use testkit::dist::{built, softrnic_program};
use testkit::wait::LIMIT;

fn names(transport: &Transport) -> Result<Vec<String>> {
    (0..transport.devices()?).map(|device| Ok(transport.properties(device)?.name)).collect()
}

/// Every size, whole, short and truncated, between devices of these names.
fn exchange_all(worker: &mut WorkerCtx, expected: [&str; 2]) -> Result<()> {
    let transport = plugin_transport()?;
    let names = names(&transport)?;
    let device = worker.rank().min(names.len() - 1);
    assert_eq!(names[device], expected[worker.rank()]);
    let bench = Bench::open(worker, transport, 8 << 20)?;
    for (i, &size) in SIZES.iter().enumerate() {
        // Twice: messages begin on one rail after the other.
        for round in 0..2 {
            bench.exchange(worker, 2 * i + round, size, size)?;
        }
        bench.exchange(worker, i, size, size + 37)?;
        bench.exchange(worker, i, size + 37, size)?;
    }
    bench.exchange(worker, 99, (4 << 20) + 70_001, 6 << 20)
}

const PAIRS: [&str; 2] = ["softrnic0+softrnic1", "softrnic2+softrnic3"];
const FOURS: [&str; 2] = [
    "softrnic0/1+softrnic0/2+softrnic1/1+softrnic1/2",
    "softrnic2/1+softrnic2/2+softrnic3/1+softrnic3/2",
];

cases! { Result<()>;
    every_size_arrives_over_two_rails =>
        faithful::run(&["--devices", "4"], |s| s, |worker| exchange_all(worker, PAIRS));
    /// Slots of clear-to-sends are twice as long then.
    every_size_arrives_over_four_rails =>
        faithful::run(&["--devices", "4", "--ports", "2"], |s| s, |worker| exchange_all(worker, FOURS));
}

#[test]
fn messages_are_split_over_all_queue_pairs_of_all_rails() -> Result<()> {
    let adapt =
        |s: Setting| s.env("NCCL_IB_QPS_PER_CONNECTION", "3").env("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
    faithful::run(&["--devices", "4", "--ports", "2"], adapt, |worker| exchange_all(worker, FOURS))
}

#[test]
fn messages_are_split_over_all_lanes_of_all_rails() -> Result<()> {
    let adapt = |s: Setting| s.env("FERRITE_LANES", "3");
    faithful::run(&["--devices", "4", "--ports", "2"], adapt, |worker| exchange_all(worker, FOURS))
}

#[test]
fn data_and_immediate_are_separate_writes_on_every_rail_of_infiniband() -> Result<()> {
    faithful::run(&["--devices", "4", "--link", "ib"], |s| s, |worker| exchange_all(worker, PAIRS))
}

/// `NCCL_IB_HCA` decides which ports there are before any are fused.
#[test]
fn every_size_arrives_from_four_rails_at_one_port() -> Result<()> {
    let body = |worker: &mut WorkerCtx| {
        if worker.rank() == 1 {
            set("NCCL_IB_HCA", "softrnic3:1");
            set("NCCL_IB_QPS_PER_CONNECTION", "5");
        }
        exchange_all(worker, [FOURS[0], "softrnic3/1"])
    };
    faithful::run(&["--devices", "4", "--ports", "2"], |s| s, body)
}

#[test]
fn every_size_arrives_from_two_rails_at_three() -> Result<()> {
    let body = |worker: &mut WorkerCtx| {
        set(
            "NCCL_IB_HCA",
            if worker.rank() == 0 { "softrnic0" } else { "^softrnic0,softrnic1,softrnic2:1" },
        );
        set("NCCL_IB_QPS_PER_CONNECTION", if worker.rank() == 0 { "2" } else { "9" });
        exchange_all(worker, ["softrnic0/1+softrnic0/2", "softrnic2/2+softrnic3/1+softrnic3/2"])
    };
    faithful::run(&["--devices", "4", "--ports", "2"], |s| s, body)
}

/// The names of all devices, as the plugin sees them with these settings.
fn shown(arguments: &[&str], env: (&str, &str), expected: &[&str]) -> Result<()> {
    let adapt = |setting: Setting| setting.env(env.0, env.1);
    faithful::run(arguments, adapt, |_| {
        assert_eq!(names(&plugin_transport()?)?, expected);
        Ok(())
    })
}

#[test]
fn unlike_ports_are_not_fused() -> Result<()> {
    let arguments =
        ["--devices", "4", "--speed", "400,softrnic1/1=200", "--link", "roce,softrnic3/1=ib"];
    let all = ["softrnic0", "softrnic1", "softrnic2", "softrnic3"];
    shown(&arguments, ("NCCL_IB_TC", "0"), &all)
}

#[test]
fn nothing_is_fused_if_merging_is_switched_off() -> Result<()> {
    let all = ["softrnic0", "softrnic1"];
    shown(&[], ("NCCL_IB_MERGE_NICS", "0"), &all)
}

/// NCCL takes a colon in that list for the end of a name, and compares whole names.
#[test]
fn nccl_net_force_merge_can_name_each_port() -> Result<()> {
    let all = ["softrnic0/1", "softrnic0/2", "softrnic1/1", "softrnic1/2"];
    shown(&["--ports", "2"], ("NCCL_IB_MERGE_NICS", "0"), &all)
}

/// They share a port with the physical function: together they are not faster.
#[test]
fn virtual_functions_are_not_fused() -> Result<()> {
    faithful::run(
        &["--devices", "4"],
        |s| s,
        |worker| {
            if worker.rank() == 0 {
                let physical = "/sys/class/infiniband/softrnic1/device/physfn";
                std::fs::create_dir(physical).expect("a /sys/class of its own");
                assert_eq!(
                    names(&plugin_transport()?)?,
                    ["softrnic0", "softrnic1", "softrnic2+softrnic3"]
                );
            }
            Ok(())
        },
    )
}

/// Without a place on the PCI bus nobody knows which ports belong together.
#[test]
fn nothing_is_fused_without_sysfs() -> Result<()> {
    both(setting_with(&[("NCCL_IB_MERGE_NICS", "1"), ("SOFTRNIC_CARD", "2")]), |_| {
        assert_eq!(names(&plugin_transport()?)?, ["softrnic0", "softrnic1"]);
        Ok(())
    })
}

/// Unlike ports between them are no obstacle.
#[test]
fn like_ports_are_fused_and_logged() -> Result<()> {
    let arguments =
        ["--devices", "4", "--ports", "2", "--speed", "400,softrnic0/2=200,softrnic1/2=200"];
    faithful::run(
        &arguments,
        |s| s,
        |_| {
            let transport = plugin_transport()?;
            let fused = ["softrnic0/1+softrnic1/1", "softrnic0/2+softrnic1/2", FOURS[1]];
            assert_eq!(names(&transport)?, fused);
            let told: Vec<_> =
                (0..3).map(|i| Ok(transport.properties(i)?.speed_mbps)).collect::<Result<_>>()?;
            assert_eq!(told, [800_000, 400_000, 1_600_000]);
            let lines = lab::nccl::debug_log::lines();
            for (name, rails) in fused.iter().zip([2, 2, 4]) {
                let name = name.replace('/', ":");
                let words = format!("the {rails} rails of {name} are ports of one card");
                assert!(lines.iter().any(|line| line.contains(&words)), "{words}: {lines:#?}");
            }
            Ok(())
        },
    )
}

/// `ferrite verify` over fused devices, with a fault: exit code, stdout, stderr.
fn verified(
    arguments: &[&str],
    more: &[&str],
    fault: &str,
    env: &[(&str, &str)],
) -> std::result::Result<(i32, String, String), Missing> {
    setting()?;
    softrnic_program()?;
    mount_namespaces()?;
    let (plugin, ferrite) = (plugin()?, built("bin/ferrite")?);
    let _turn = PairPermit::wait();
    let mut command = faithful::softrnic_run(arguments);
    command.arg(ferrite).args(["verify", "--over", "fused", "--plugin"]).arg(plugin).args(more);
    command.env("SOFTRNIC_FAULTS", fault).env("RUST_LOG", "debug").envs(env.iter().copied());
    Ok(program::run(&mut command).into_parts())
}

/// Messages, streams, groups and truncated sends, all of them right.
#[test]
fn all_checks_pass_over_fused_devices() -> Result<()> {
    for (arguments, devices) in
        [(&["--devices", "4"][..], PAIRS), (&["--devices", "4", "--ports", "2"], FOURS)]
    {
        let (code, stdout, stderr) = require!(verified(arguments, &[], "", &[]));
        assert_eq!(code, 0, "{stdout}\n{stderr}");
        let headline = stdout.lines().next().unwrap_or_default();
        assert!(
            headline.starts_with(concat!("fused: Ferrite ", env!("CARGO_PKG_VERSION"), "+")),
            "{stdout}"
        );
        assert!(
            headline.ends_with(&format!(" (interface v8) on {} and {}", devices[0], devices[1])),
            "{stdout}"
        );
        assert_eq!(
            stdout.lines().filter(|line| line.starts_with("  right  ")).count(),
            43,
            "{stdout}"
        );
    }
    Ok(())
}

/// Both rails carry data: a device of the card that turns one bit is found out, whichever it is.
#[test]
fn a_flipped_bit_on_any_rail_is_found() -> Result<()> {
    for device in ["softrnic0", "softrnic1"] {
        let fault = format!("corrupt opcode=write-imm every=5 device={device}");
        let (code, stdout, stderr) = require!(verified(&["--devices", "4"], &[], &fault, &[]));
        assert_eq!(code, 1, "{stdout}\n{stderr}");
        assert!(
            stdout.contains("\n  WRONG  single") && stdout.contains("\n  WRONG  stream"),
            "{stdout}\n{stderr}"
        );
    }
    Ok(())
}

/// A wire that is slower than its port says: it gets less, and the data is right all the same.
#[test]
fn a_slow_rail_is_given_fewer_bytes() -> Result<()> {
    let adapt = |s: Setting| s.env("SOFTRNIC_FAULTS", "slow=0.05 device=softrnic1 message=1");
    faithful::run(&["--devices", "4"], adapt, |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        let rounds = |worker: &mut WorkerCtx, count: usize| {
            let before = (sent("softrnic0/1")?, sent("softrnic1/1")?);
            (0..count).try_for_each(|round| bench.exchange(worker, round, 100_000, 100_000))?;
            worker.barrier()?;
            Ok::<_, Error>((sent("softrnic0/1")? - before.0, sent("softrnic1/1")? - before.1))
        };
        // What the wires take is measured: on a busy machine that takes longer.
        let begun = Instant::now();
        loop {
            worker.begin("messages over a slow rail and a fast one")?;
            let (fast, slow) = rounds(worker, 50)?;
            let is_right = slow > 0 && 4 * slow < fast;
            if worker.agree(u64::from(is_right))? == 1 {
                return Ok(());
            }
            assert!(begun.elapsed() < LIMIT, "{fast} and {slow} bytes");
        }
    })
}

/// Bytes that a port has sent so far.
fn sent(port: &str) -> Result<u64> {
    let text = program::stdout_of(Command::new(dist().join("bin/softrnic")).arg("stat"));
    let line =
        text.lines().find(|line| line.trim_start().starts_with(port)).expect("a line for the port");
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "bytes,").expect("a number of bytes");
    Ok(words[at - 1].parse().expect("a number"))
}

/// Rail 1 of rank 0 fails: its device, or its port.
const DEAD_RAIL: [&str; 2] = [
    "device-fatal device=softrnic1 message=100 times=1",
    "port-down device=softrnic1 message=100 times=1",
];

#[test]
fn a_dead_rail_leaves_all_messages_to_the_other() -> Result<()> {
    for fault in DEAD_RAIL {
        let (code, stdout, stderr) =
            require!(verified(&["--devices", "4"], &["--long", "4000"], fault, &[]));
        assert_eq!(code, 0, "{stdout}\n{stderr}");
        assert!(stderr.lines().any(|line| line.contains(" is recovering: ")), "{stderr}");
    }
    Ok(())
}

/// Without recovery the connection ends, and says on which rail.
#[test]
fn a_dead_rail_ends_the_connection_and_is_named_if_failover_is_switched_off() -> Result<()> {
    // Of a port both ends may be the first to hear: the sender by its data, the receiver by its
    // clear-to-sends.
    let ends = [
        "on softrnic1 (rail 1 of softrnic0+softrnic1)",
        "on softrnic3 (rail 1 of softrnic2+softrnic3)",
    ];
    for (fault, words) in DEAD_RAIL.into_iter().zip([["softrnic1"; 2], ends]) {
        let quick =
            [("NCCL_IB_TIMEOUT", "8"), ("NCCL_IB_RETRY_CNT", "2"), ("FERRITE_FAILOVER", "0")];
        let (code, stdout, stderr) =
            require!(verified(&["--devices", "4"], &["--long", "4000"], fault, &quick));
        assert_eq!(code, 2, "{stdout}\n{stderr}");
        let told = stderr
            .lines()
            .any(|line| line.contains("Ferrite") && words.iter().any(|w| line.contains(w)));
        assert!(told, "{words:?} is not told: {stderr}");
    }
    Ok(())
}

/// Memory that one card of two refuses is not left registered with the other.
#[test]
fn memory_is_registered_on_all_cards_or_on_none() -> Result<()> {
    let adapt = |s: Setting| {
        // The first four are the rings of the connections, one each way, and what each process
        // tests paths with; of the next forty every other one is refused.
        s.env("SOFTRNIC_FAULTS", "reg-mr=ENOMEM message=5..44 every=2 device=softrnic1")
            .env("SOFTRNIC_MAX_MR", "40")
    };
    faithful::run(&["--devices", "2"], adapt, |worker| {
        let transport = plugin_transport()?;
        let link = PeerConn::open(worker, &transport, 0)?;
        let attempts = if worker.rank() == 0 { 40_usize } else { 0 };
        let mut kept = Vec::new();
        let buffers =
            (0..attempts).map(|_| Buffer::new(4096).map(Arc::new)).collect::<Result<Vec<_>>>()?;
        for (attempt, buffer) in buffers.iter().enumerate() {
            match link.send.register(buffer) {
                Ok(region) => kept.push(region),
                Err(Error::Call { code: abi::ncclSystemError, .. }) => {}
                Err(other) => return Err(other),
            }
            // Were what the first card has registered left there, it would be full before this is
            // over.
            assert_eq!(kept.len(), attempt.div_ceil(2), "attempt {attempt}");
        }
        drop(kept);
        worker.barrier()?;
        // From here on the two cards give out different keys, also for the rings: none passes for
        // the other.
        let bench = Bench::open(worker, transport, 1 << 20)?;
        for round in 0..10 {
            bench.exchange(worker, round, 20_000, 20_000)?;
            bench.exchange(worker, round, 64, 64)?;
        }
        Ok(())
    })
}

/// One read for each rail that has carried the message; the last one of them ends the flush.
#[test]
fn a_flush_reads_over_the_rails_that_have_carried_the_message() -> Result<()> {
    faithful::run(
        &["--devices", "4", "--ports", "2"],
        |s| s,
        |worker| {
            let flushes = Flushes::open(worker, 1 << 17)?;
            for bytes in [64, 100_000, 64, 64, 0, 20_000, 64] {
                assert_eq!(flush_one(&flushes, worker, bytes)?, Ok(()), "{bytes} bytes");
            }
            Ok(())
        },
    )
}

/// A read over the second port fails here: a flush notices that only if the message has come that
/// way.
#[test]
fn a_flush_leaves_rails_alone_that_have_carried_nothing() -> Result<()> {
    let adapt =
        |s: Setting| s.env("SOFTRNIC_FAULTS", "operation-error opcode=read device=softrnic1");
    faithful::run(&["--devices", "4"], adapt, |worker| {
        let flushes = Flushes::open(worker, 1 << 17)?;
        assert_eq!(flush_one(&flushes, worker, 64)?, Ok(()), "a small message on the first rail");
        worker.barrier()?;
        let outcome = flush_one(&flushes, worker, 100_000)?;
        if worker.rank() == 0 {
            assert_eq!(outcome, Err(abi::ncclRemoteError));
            assert_logged("flushing GPU memory on softrnic1: ");
        }
        worker.barrier()
    })
}

/// One message each way and a flush of it, which there is unless it is empty; what `test` says of
/// the flush.
fn flush_one(
    flushes: &Flushes,
    worker: &WorkerCtx,
    bytes: usize,
) -> Result<std::result::Result<(), abi::ncclResult_t>> {
    flushes.exchange(worker, bytes)?;
    // The end that fails here ends the other one's connection as well: both have got their message
    // by then.
    let (code, request) = flushes.flush(bytes)?;
    assert_eq!((code, request.is_null()), (abi::ncclSuccess, bytes == 0));
    let mut deadline = worker.deadline("a flush");
    while !request.is_null() {
        match flushes.test(request) {
            Ok(true) => break,
            Ok(false) => deadline.idle()?,
            Err(code) => return Ok(Err(code)),
        }
    }
    Ok(Ok(()))
}
