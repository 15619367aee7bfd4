//! What the kernel keeps for us: objects that are given back, and memory that may not be locked.

use crate::common::bench::Bench;
use crate::common::log::{log, said};
use crate::common::process::pair;
use crate::data::carries;
use crate::guest::{Case, is_worker, shell};
use lab::error::Result;
use lab::transport::buffer::Buffer;
use std::sync::Arc;

/// Objects of all processes on both devices, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    contexts: u64,
    domains: u64,
    completion_queues: u64,
    queue_pairs: u64,
    regions: u64,
}

impl Counts {
    fn now() -> Self {
        let devices: serde_json::Value =
            serde_json::from_str(&shell("rdma -j resource show")).expect("JSON");
        let sum = |kind: &str| {
            devices
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|device| device[kind].as_u64())
                .sum()
        };
        Self {
            contexts: sum("ctx"),
            domains: sum("pd"),
            completion_queues: sum("cq"),
            queue_pairs: sum("qp"),
            regions: sum("mr"),
        }
    }
}

/// When connections are closed nothing of them is left; when the processes have ended, nothing at
/// all.
pub(crate) fn everything_is_given_back(case: &Case) -> Result<()> {
    let at_first = Counts::now();
    pair(&case.setting(), |worker| {
        let transport = case.transport()?;
        let mut seen = Vec::new();
        for _ in 0..2 {
            worker.barrier()?;
            seen.push(Counts::now());
            worker.barrier()?;
            let bench = Bench::open(worker, transport.clone(), 1 << 20)?;
            carries(worker, &bench)?;
            seen.push(Counts::now());
            worker.barrier()?;
            let Bench { out, into, link, .. } = bench;
            drop((out, into));
            link.close()?;
        }
        worker.barrier()?;
        let (before, open, after) = (seen[0], seen[1], Counts::now());
        assert!(
            open.queue_pairs > before.queue_pairs && open.regions > before.regions,
            "{before:?}, {open:?}"
        );
        assert_eq!(seen[2], after, "what is kept does not grow");
        assert!(case.is_stock() || before == after, "{before:?} before, {after:?} after");
        worker.barrier()
    })?;
    if !is_worker() {
        shell(
            "for try in {1..50}; do rdma resource show | grep -vq 'ctx 0' || exit 0; sleep 0.1; done; exit 1",
        );
        assert_eq!(Counts::now(), at_first);
    }
    Ok(())
}

/// Registrations beyond the limit are refused with the limit and what to do; existing ones still
/// work.
pub(crate) fn locked_memory_is_limited(case: &Case) -> Result<()> {
    const LIMIT: u64 = 1 << 20;
    pair(&case.setting(), |worker| {
        obey_limits();
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        // SAFETY: a valid limit.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
        let bench = Bench::open(worker, case.transport()?, 1 << 16)?;
        let too_much = Arc::new(Buffer::new(4 << 20)?);
        assert!(bench.link.send.register(&too_much).is_err(), "4 MiB were locked");
        assert!(
            case.is_stock()
                || said(&["WARN", "ibv_reg_mr", "RLIMIT_MEMLOCK, 1024 KiB here", "ulimit -l"]),
            "{}",
            log()
        );
        bench.exchange(worker, 1, 30_000, 40_000)?;
        worker.barrier()
    })?;
    Ok(())
}

/// Takes the capability from this process by which the kernel lets root lock what it likes.
fn obey_limits() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: the header and the two sets of version 3 are what the call reads and fills in.
    let rc = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    assert_eq!(rc, 0);
    sets[0][0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) }, 0);
}
