//! Messages from this process to itself, in rounds of a fixed order: all receives, all sends, the
//! tests of the sends, the tests of the receives. Before the receives and behind them, calls in vain if
//! they are wanted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::measure::conn::TAG;
use crate::measure::pattern;
use crate::solo::endpoints::Endpoints;
use crate::solo::in_vain::InVain;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{Region, Request};
use crate::transport::deadline::{Deadline, finished, posted};
use crate::transport::local_conn::LocalConn;

/// Sends `count` messages of `bytes` bytes, `depth` to a round, with calls in vain, and checks the messages of the last round.
pub(super) fn run(endpoints: &Endpoints, bytes: usize, count: u64, depth: usize, in_vain: InVain) -> Result<String> {
    let conn = endpoints.connect()?;
    let mut path = Path { in_vain, ..Path::new(endpoints, &conn, bytes, depth)? };
    let last = ((count - 1) % depth as u64) as usize + 1;
    let rounds = (count - last as u64) / depth as u64;
    path.fill(0)?;
    let start = Instant::now();
    for _ in 0..rounds {
        path.round(depth)?;
    }
    let mut spent = start.elapsed();
    path.fill(1)?;
    let start = Instant::now();
    path.round(last)?;
    spent += start.elapsed();
    path.check(1, last)?;
    let [sends, tests] = path.least;
    drop(path);
    conn.close()?;
    let us = spent.as_secs_f64() * 1e6 / count as f64;
    let mut line = format!("{count} messages of {bytes} B, {depth} in flight, {us:.3} us per message");
    for (what, calls, least) in [("isend", in_vain.sends, sends), ("test", in_vain.tests, tests)] {
        if calls > 0 {
            line += &format!(", {:.2} ns per {what} in vain", least.as_secs_f64() * 1e9 / f64::from(calls));
        }
    }
    Ok(line)
}

/// A connection with registered memory at both ends.
pub(crate) struct Path<'w> {
    conn: &'w LocalConn,
    out: Region,
    into: Region,
    bytes: usize,
    /// Between the places of two messages in flight; bytes.
    stride: usize,
    depth: usize,
    in_vain: InVain,
    /// The least time that the sends and the tests in vain of a round have taken.
    least: [Duration; 2],
    deadline: Deadline,
}

impl<'w> Path<'w> {
    /// For messages of `bytes` bytes, of which `depth` are in flight.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Io`] if there is no memory.
    pub(crate) fn new(endpoints: &Endpoints, conn: &'w LocalConn, bytes: usize, depth: usize) -> Result<Self> {
        let stride = bytes.next_multiple_of(4096);
        Ok(Self {
            conn,
            out: conn.send.register(&Arc::new(Buffer::new(depth * stride)?))?,
            into: conn.recv.register(&Arc::new(Buffer::new(depth * stride)?))?,
            bytes,
            stride,
            depth,
            in_vain: InVain::default(),
            least: [Duration::MAX; 2],
            deadline: endpoints.deadline("a message to itself"),
        })
    }

    /// Writes what the messages of the next rounds contain.
    pub(crate) fn fill(&self, test: u64) -> Result<()> {
        (0..self.depth).try_for_each(|index| {
            pattern::fill(self.out.memory(), index * self.stride, self.bytes, pattern::seed(test, 0, index as u64))
        })
    }

    /// Compares what the first `count` messages of the last round brought.
    pub(crate) fn check(&self, test: u64, count: usize) -> Result<()> {
        for index in 0..count {
            let seed = pattern::seed(test, 0, index as u64);
            if let Some(wrong) = pattern::check(self.into.memory(), index * self.stride, self.bytes, seed)? {
                return Err(Error::Data(format!(
                    "message {index} of the last {count}, offset {}: expected {:#04x}, got {:#04x}",
                    wrong.offset, wrong.expected, wrong.got
                )));
            }
        }
        Ok(())
    }

    /// The calls of `isend` that there is no receive for.
    fn send_in_vain(&mut self) -> Result<()> {
        let start = Instant::now();
        for _ in 0..self.in_vain.sends {
            if self.conn.send.send(&self.out, 0, self.bytes, TAG)?.is_some() {
                return Err(Error::Data("a message was accepted that there is no receive for".into()));
            }
        }
        self.least[0] = self.least[0].min(start.elapsed());
        Ok(())
    }

    /// One round of `count` messages.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Data`] if a message has another length; [`Error::Stalled`].
    pub(crate) fn round(&mut self, count: usize) -> Result<()> {
        self.send_in_vain()?;
        let Self { conn, ref out, ref into, bytes, stride, ref mut deadline, ref mut least, .. } = *self;
        let mut receives = Receives::new(bytes);
        for index in 0..count {
            receives.push(posted(deadline, || conn.recv.receive(into, index * stride, bytes, TAG))?);
        }
        let tests = self.in_vain.tests;
        let start = Instant::now();
        for _ in 0..tests {
            if receives.test_oldest()? {
                return Err(Error::Data("a receive was complete before anything was sent".into()));
            }
        }
        least[1] = least[1].min(start.elapsed());
        let mut sends = Vec::with_capacity(count);
        for index in 0..count {
            let send = || conn.send.send(out, index * stride, bytes, TAG);
            sends.push(loop {
                if let Some(request) = send()? {
                    break request;
                }
                // A transport may announce receives in batches: testing one announces them.
                receives.test_oldest()?;
                deadline.idle()?;
            });
        }
        for request in sends {
            finished(deadline, request, &mut [0])?;
        }
        while !receives.is_empty() {
            if !receives.test_oldest()? {
                deadline.idle()?;
            }
        }
        deadline.progress();
        Ok(())
    }
}

/// The receives of a round, oldest first.
struct Receives<'c> {
    requests: std::collections::VecDeque<Request<'c>>,
    bytes: usize,
}

impl<'c> Receives<'c> {
    fn new(bytes: usize) -> Self {
        Self { requests: std::collections::VecDeque::new(), bytes }
    }

    fn push(&mut self, request: Request<'c>) {
        self.requests.push_back(request);
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Tests the oldest one once; whether it is done.
    fn test_oldest(&mut self) -> Result<bool> {
        let mut size = [0];
        let Some(request) = self.requests.front_mut() else { return Ok(false) };
        if !request.test(&mut size)? {
            return Ok(false);
        }
        self.requests.pop_front();
        if size[0] as usize == self.bytes {
            return Ok(true);
        }
        Err(Error::Data(format!("a message of {} B came with {} B", self.bytes, size[0])))
    }
}
