//! How much this process has had at most, printed at its end when `SOFTRNIC_STAT=1` asks for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::host::stderr;
use crate::shm::layout::Table;

/// A number and the highest it has been.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    const fn new() -> Self {
        Self { now: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    fn add(&self, count: u64) {
        let now = self.now.fetch_add(count, Relaxed) + count;
        self.peak.fetch_max(now, Relaxed);
    }

    fn take(&self, count: u64) {
        self.now.fetch_sub(count, Relaxed);
    }
}

/// By [`Table`].
static OBJECTS: [Gauge; 4] = [const { Gauge::new() }; 4];
static REGISTERED_BYTES: Gauge = Gauge::new();
/// By [`RegKind`].
static REGIONS: [Gauge; 3] = [const { Gauge::new() }; 3];

/// How memory was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegKind {
    Host,
    GpuByAddress,
    GpuByDmabuf,
}

/// An object of `table` came to be.
pub(crate) fn created(table: Table) {
    OBJECTS[table as usize].add(1);
}

/// An object of `table` is gone.
pub(crate) fn destroyed(table: Table) {
    OBJECTS[table as usize].take(1);
}

/// So many bytes have been registered.
pub(crate) fn registered(bytes: usize, way: RegKind) {
    REGISTERED_BYTES.add(bytes as u64);
    REGIONS[way as usize].add(1);
}

/// So many bytes have been deregistered.
pub(crate) fn deregistered(bytes: usize, way: RegKind) {
    REGISTERED_BYTES.take(bytes as u64);
    REGIONS[way as usize].take(1);
}

/// Prints it.
pub(crate) fn print() {
    let peak = |table: Table| OBJECTS[table as usize].peak.load(Relaxed);
    let regions = |way: RegKind| REGIONS[way as usize].peak.load(Relaxed);
    stderr::say(format_args!(
        "at most {} queue pairs, {} completion queues, {} memory regions of {} bytes; GPU memory {} by address, {} by dma-buf",
        peak(Table::Qp),
        peak(Table::Cq),
        peak(Table::Mr),
        REGISTERED_BYTES.peak.load(Relaxed),
        regions(RegKind::GpuByAddress),
        regions(RegKind::GpuByDmabuf)
    ));
}
