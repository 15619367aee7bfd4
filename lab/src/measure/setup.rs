//! How long connections take, from `listen` to both ends ready.

use std::time::Instant;

use crate::error::Result;
use crate::measure::direction::Direction;
use crate::measure::estimate;
use crate::measure::metric::Metric;
use crate::measure::sample::{Key, Sample};
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::comm::{RecvComm, SendComm};
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};

const HANDLE: usize = size_of::<Handle>();

/// Makes `connections` from rank 0 to rank 1, `at_once` pending at a time, and keeps them open
/// until the last is ready. The carrying of the handles, which NCCL's bootstrap does, is not
/// counted. The sample is on rank 0.
///
/// # Errors
/// Those of the transport; [`crate::error::Error::Stalled`].
pub(crate) fn measure(
    worker: &mut WorkerCtx,
    transport: &Transport,
    device: usize,
    connections: u32,
    at_once: u32,
) -> Result<Option<Sample>> {
    let mut open = Ends::default();
    let mut batches_ms = Vec::new();
    let mut left = connections;
    while left > 0 {
        let count = left.min(at_once.max(1));
        let mine = batch(worker, transport, device, count as usize, &mut open)?;
        let theirs = f64::from_bits(worker.swap(mine.slower_ms.to_bits())?);
        let listening = f64::from_bits(worker.swap(mine.listening_ms.to_bits())?);
        batches_ms.push(mine.slower_ms.max(theirs) + mine.listening_ms + listening);
        left -= count;
    }
    worker.barrier()?;
    let closing = Instant::now();
    open.close()?;
    let closing_ms = closing.elapsed().as_secs_f64() * 1e3;
    let closing_ms = closing_ms.max(f64::from_bits(worker.swap(closing_ms.to_bits())?));
    if worker.rank() != 0 {
        return Ok(None);
    }
    Ok(Some(sample(&mut batches_ms, connections, at_once, closing_ms)))
}

fn sample(batches_ms: &mut [f64], connections: u32, at_once: u32, closing_ms: f64) -> Sample {
    let total: f64 = batches_ms.iter().sum();
    batches_ms.sort_by(f64::total_cmp);
    let at = |fraction| estimate::quantile_of_sorted(batches_ms, fraction).unwrap_or(f64::NAN);
    let key = Key {
        metric: if at_once > 1 { Metric::SetupMany } else { Metric::SetupOne },
        bytes: 0,
        direction: Direction::Forward,
        depth: at_once,
    };
    let mut values = vec![("total", total), ("close_total", closing_ms), ("connections", f64::from(connections))];
    if at_once <= 1 {
        values.extend([("min", at(0.0)), ("typ", at(0.5)), ("p99", at(0.99))]);
    }
    Sample::new(key, &values)
}

/// The ends that this process holds: sending ones on rank 0, receiving ones on rank 1.
#[derive(Default)]
struct Ends {
    sending: Vec<SendComm>,
    receiving: Vec<RecvComm>,
}

impl Ends {
    fn close(self) -> Result<()> {
        self.sending.into_iter().try_for_each(SendComm::close)?;
        self.receiving.into_iter().try_for_each(RecvComm::close)
    }
}

/// What one side of one batch took.
struct Batch {
    listening_ms: f64,
    slower_ms: f64,
}

fn batch(worker: &mut WorkerCtx, transport: &Transport, device: usize, count: usize, open: &mut Ends) -> Result<Batch> {
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    if worker.rank() == 0 {
        let mut handles: Vec<Option<Handle>> = worker
            .receive_bytes(count * HANDLE)?
            .chunks_exact(HANDLE)
            .map(|bytes| {
                let mut handle = Handle([0; _]);
                handle.0.copy_from_slice(bytes);
                Some(handle)
            })
            .collect();
        worker.barrier()?;
        let start = Instant::now();
        connect_all(worker, transport, device, &mut handles, open)?;
        return Ok(Batch { listening_ms: 0.0, slower_ms: milliseconds(start) });
    }
    let start = Instant::now();
    let (mut handles, mut listeners) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (handle, listener) = transport.listen(device)?;
        handles.extend(handle.0);
        listeners.push(Some(listener));
    }
    let listening_ms = milliseconds(start);
    worker.send_bytes(&handles)?;
    worker.barrier()?;
    let start = Instant::now();
    accept_all(worker, &mut listeners, open)?;
    Ok(Batch { listening_ms, slower_ms: milliseconds(start) })
}

/// Polls every pending connection in turn, as NCCL's service thread does.
fn connect_all(
    worker: &WorkerCtx,
    transport: &Transport,
    device: usize,
    handles: &mut [Option<Handle>],
    open: &mut Ends,
) -> Result<()> {
    let mut deadline = worker.deadline("connecting");
    let goal = open.sending.len() + handles.len();
    while open.sending.len() < goal {
        let before = open.sending.len();
        for slot in handles.iter_mut() {
            let Some(handle) = slot else { continue };
            if let Some(comm) = transport.connect(device, handle)? {
                open.sending.push(comm);
                *slot = None;
            }
        }
        match open.sending.len() == before {
            true => deadline.idle()?,
            false => deadline.progress(),
        }
    }
    Ok(())
}

fn accept_all(worker: &WorkerCtx, listeners: &mut [Option<Listener>], open: &mut Ends) -> Result<()> {
    let mut deadline = worker.deadline("accepting");
    let goal = open.receiving.len() + listeners.len();
    while open.receiving.len() < goal {
        let before = open.receiving.len();
        for slot in listeners.iter_mut() {
            let Some(listener) = slot else { continue };
            let Some(comm) = listener.accept()? else { continue };
            open.receiving.push(comm);
            if let Some(listener) = slot.take() {
                listener.close()?;
            }
        }
        match open.receiving.len() == before {
            true => deadline.idle()?,
            false => deadline.progress(),
        }
    }
    Ok(())
}
