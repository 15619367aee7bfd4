//! Every byte over one device and two, whatever the number of queue pairs and connections and the
//! size of packets.

use crate::common::bench::Bench;
use crate::common::process::pair;
use crate::guest::{Case, is_worker, shell};
use lab::error::Result;
use lab::pair::WorkerCtx;

/// Below, at and above the sizes of packets, and one that takes hundreds of them.
const SIZES: [usize; 9] = [0, 1, 129, 1023, 1025, 4096, 4097, 65_537, 700_001];

/// All sizes over one connection each way, with room behind them, and some that there is not enough
/// room for.
pub(crate) fn carries(worker: &mut WorkerCtx, bench: &Bench) -> Result<()> {
    for (i, size) in SIZES.into_iter().enumerate() {
        bench.exchange(worker, i, size, size + 37)?;
    }
    for size in [129, 65_537] {
        bench.exchange(worker, size, size, size - 37)?;
    }
    worker.barrier()
}

/// The same over a new connection.
pub(crate) fn works(case: &Case, worker: &mut WorkerCtx) -> Result<()> {
    let bench = Bench::open(worker, case.transport()?, 1 << 20)?;
    carries(worker, &bench)
}

fn verified(case: &Case, over: &str, hca: &str, on: &str) -> Result<()> {
    let printed = case.ferrite("verify", &["--over", over], &[("NCCL_IB_HCA", hca)])?;
    assert!(printed.contains(on) && printed.contains("valid run, data right"), "{printed}");
    Ok(())
}

/// From a device to itself.
pub(crate) fn one_device(case: &Case) -> Result<()> {
    verified(case, "single", "=rxe0", " on rxe0 and rxe0\n")
}

/// Over the cable.
pub(crate) fn two_devices(case: &Case) -> Result<()> {
    verified(case, "single", "", " on rxe0 and rxe1\n")
}

/// A connection each way on each of them, which one thread drives.
pub(crate) fn two_devices_at_once(case: &Case) -> Result<()> {
    pair(&case.setting(), |worker| {
        let transport = case.transport()?;
        let open = |worker: &mut WorkerCtx, device| {
            Bench::open_on(worker, transport.clone(), device, 1 << 20)
        };
        let (zero, one) = (open(worker, 0)?, open(worker, 1)?);
        for round in 0..4 {
            zero.exchange(worker, round, 200_000 + round, 200_000 + round)?;
            one.exchange(worker, 50 + round, 100_000 + round, 100_000 + round)?;
        }
        worker.barrier()
    })?;
    Ok(())
}

/// The counters of the kernel's device are the proof that the bytes went through it.
pub(crate) fn measured(case: &Case) -> Result<()> {
    let before = packets_sent("rxe0");
    let short = ["--seconds", "5", "--connections", "2", "--sizes", "64K"];
    let printed = case.ferrite("bench", &short, &[])?;
    assert!(printed.contains("rxe0 to rxe1"), "{printed}");
    assert!(packets_sent("rxe0") > before + 1000, "the device has sent nothing");
    Ok(())
}

/// Messages that take turns on four queue pairs, and such that are cut over them.
pub(crate) fn four_queue_pairs(case: &Case) -> Result<()> {
    for split in ["0", "1"] {
        let setting = case
            .setting()
            .env("NCCL_IB_QPS_PER_CONNECTION", "4")
            .env("NCCL_IB_SPLIT_DATA_ON_QPS", split);
        // The program starts its processes by the name of the test alone: each of them comes by
        // here.
        if std::env::var("NCCL_IB_SPLIT_DATA_ON_QPS").is_ok_and(|mine| mine != split) {
            continue;
        }
        pair(&setting, |worker| {
            let bench = Bench::open(worker, case.transport()?, 1 << 20)?;
            assert!(
                case.is_stock() || connected_queue_pairs(&format!("rxe{}", worker.rank())) == 8,
                "there are not 4 of them each way"
            );
            carries(worker, &bench)
        })?;
    }
    Ok(())
}

/// The port says that a message may have 8 MiB.
pub(crate) fn longer_than_the_port_allows(case: &Case) -> Result<()> {
    pair(&case.setting(), |worker| {
        const BYTES: usize = (8 << 20) + 4097;
        let bench = Bench::open(worker, case.transport()?, BYTES + 4096)?;
        bench.exchange(worker, 1, BYTES, BYTES)?;
        worker.barrier()
    })?;
    Ok(())
}

/// How many queue pairs of a device are ready to send, as the kernel has it.
fn connected_queue_pairs(device: &str) -> usize {
    let all: serde_json::Value =
        serde_json::from_str(&shell("rdma -j resource show qp")).expect("JSON");
    let counts = |qp: &&serde_json::Value| {
        qp["ifname"] == device && qp["type"] == "RC" && qp["state"] == "RTS"
    };
    all.as_array().into_iter().flatten().filter(counts).count()
}

/// One end of the cable takes packets of 4096 bytes, the other one such of 1024. (The transport of
/// NCCL 2.21.5 does not come to terms there: its queue pairs fail.)
pub(crate) fn unequal_packets(case: &Case) -> Result<()> {
    if !is_worker() {
        shell("ip link set veth1 mtu 1500");
        let ports = shell("ibv_devinfo");
        assert!(
            ports.contains("active_mtu:\t\t4096 (5)") && ports.contains("active_mtu:\t\t1024 (3)"),
            "{ports}"
        );
    }
    let before = packets_sent("rxe0");
    pair(&case.setting(), |worker| works(case, worker))?;
    let (sent, bytes) = (packets_sent("rxe0") - before, SIZES.iter().sum::<usize>() as u64);
    assert!(sent > bytes / 1024, "{bytes} bytes in {sent} packets");
    Ok(())
}

/// How many packets a device has sent, as the kernel has it.
pub(crate) fn packets_sent(device: &str) -> u64 {
    let counter =
        shell(&format!("cat /sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts"));
    counter.trim().parse().expect("a number")
}

/// All of them are open at once. Each carries a message, and every tenth another one at the end.
pub(crate) fn two_hundred_connections(case: &Case) -> Result<()> {
    pair(&case.setting(), |worker| {
        let transport = case.transport()?;
        let mut benches = Vec::new();
        for i in 0..100 {
            let bench = Bench::open(worker, transport.clone(), 1 << 16)?;
            bench.exchange(worker, i, 5000 + i, 5000 + i)?;
            benches.push(bench);
            worker.begin(format!("{} connections are open", 2 * benches.len()))?;
        }
        for (i, bench) in benches.iter().enumerate().step_by(10) {
            bench.exchange(worker, i, 40_000 + i, 50_000)?;
        }
        worker.barrier()
    })?;
    Ok(())
}
