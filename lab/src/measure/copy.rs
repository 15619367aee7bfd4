//! Plain memcpy over the memory that a stream uses: what one core of this machine can do at most for a transport that
//! copies.
//!
//! Rank 0 copies from the places of its messages in flight to those of its receives, in turn, as a stream of the same
//! size walks through them; rank 1 sleeps meanwhile. Then it copies to those of rank 1's receives, with the kernel's call
//! for that (`process_vm_writev`): what a transport between two processes can do at most with one copy.

use std::hint::black_box;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::measure::conn::Bench;
use crate::measure::direction::Direction;
use crate::measure::metric::Metric;
use crate::measure::plan::DEPTH;
use crate::measure::sample::{Key, Sample};
use crate::measure::stream::{Flow, PARTS};
use crate::pair::worker_ctx::WorkerCtx;

/// Name of the value for copies between the two processes.
pub(crate) const BETWEEN: &str = "between";
/// Copies that find out how long one takes.
const WARM_UP: u64 = 32;

/// Measures copies of `bytes`; the sample is on rank 0.
///
/// # Errors
/// [`Error::Misuse`] if the memory is too small for the messages in flight, [`Error::Io`] if the kernel does not let one
/// process write to the other.
pub(crate) fn measure(worker: &mut WorkerCtx, bench: &Bench, bytes: usize, slice_ms: u64) -> Result<Option<Sample>> {
    let pid = worker.swap(std::process::id().into())?;
    let theirs = worker.swap(bench.into.memory().address(0, 0)? as u64)?;
    let sample = if worker.rank() == 0 {
        let flow = Flow::new(bytes, 0, Direction::Forward, 0);
        let within = rates(bytes, slice_ms, |index| within(bench, flow, index))?;
        let between = rates(bytes, slice_ms, |index| between(bench, flow, index, pid as i32, theirs))?;
        let key = Key { metric: Metric::Copy, bytes: bytes as u64, direction: Direction::Forward, depth: DEPTH };
        Some(Sample::new(key, &[("peak", within.1), ("typ", within.0), (BETWEEN, between.0)]))
    } else {
        None
    };
    worker.barrier()?;
    Ok(sample)
}

/// Median and highest rate of the parts of a measurement of `copy`; GB/s.
fn rates(bytes: usize, slice_ms: u64, mut copy: impl FnMut(u64) -> Result<()>) -> Result<(f64, f64)> {
    let mut timed = |count: u64| -> Result<f64> {
        let start = Instant::now();
        (0..count).try_for_each(&mut copy)?;
        Ok(start.elapsed().as_secs_f64())
    };
    timed(WARM_UP)?;
    let each = timed(WARM_UP)? / WARM_UP as f64;
    let count = (slice_ms as f64 / 1e3 / each.max(1e-9) / PARTS as f64).max(16.0) as u64;
    let mut seconds = (0..PARTS).map(|_| timed(count)).collect::<Result<Vec<_>>>()?;
    seconds.sort_by(f64::total_cmp);
    let rate = |seconds: f64| count as f64 * bytes as f64 / seconds / 1e9;
    Ok((rate(seconds[PARTS / 2]), rate(seconds[0])))
}

fn within(bench: &Bench, flow: Flow, index: u64) -> Result<()> {
    let place = flow.place(index);
    let from = bench.out.memory().address(place, flow.bytes)?;
    let to = bench.into.memory().address(place, flow.bytes)?;
    // SAFETY: both ranges were checked and lie in different mappings; no request is outstanding.
    unsafe { black_box(to).copy_from_nonoverlapping(black_box(from), flow.bytes) };
    Ok(())
}

fn between(bench: &Bench, flow: Flow, index: u64, pid: i32, theirs: u64) -> Result<()> {
    let place = flow.place(index);
    let from = bench.out.memory().address(place, flow.bytes)?;
    let ours = libc::iovec { iov_base: from.cast(), iov_len: flow.bytes };
    let to = libc::iovec { iov_base: (theirs + place as u64) as *mut _, iov_len: flow.bytes };
    // SAFETY: reads a range that was checked; the kernel checks what it writes in the other process, which has a buffer of
    // the same size there and waits.
    let moved = unsafe { libc::process_vm_writev(pid, &raw const ours, 1, &raw const to, 1, 0) };
    if moved == flow.bytes as isize { Ok(()) } else { Err(Error::last_os("process_vm_writev")) }
}
