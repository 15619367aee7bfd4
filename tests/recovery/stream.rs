//! Messages both ways, several at once, checked to the last byte: also the memory around them, and
//! after they have arrived.

use crate::common::are_all;
use crate::common::prelude::*;
use std::collections::VecDeque;

/// Bytes behind each receive buffer that nobody may write.
const GUARD: usize = 64;
/// What is in a receive buffer, and behind it, before its message comes.
const EMPTY: u8 = 0xee;
/// What is in a receive buffer between the check of its message and its next use: a late write
/// would show.
const USED: u8 = 0xdd;

/// How many messages are under way at once each way, and how long the longest of them are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) depth: usize,
    pub(crate) bytes: usize,
}

/// Eight messages of at most 64 KiB.
pub(crate) const SHORT: Shape = Shape { depth: 8, bytes: 64 << 10 };
/// Eight messages of at most 512 KiB.
pub(crate) const LONG: Shape = Shape { depth: 8, bytes: 512 << 10 };

/// A connection each way, and buffers that are used again and again.
pub(crate) struct Stream {
    // Regions first: they are deregistered before their communicators are closed.
    out: Region,
    into: Region,
    pub(crate) link: PeerConn,
    pub(crate) _transport: Transport,
    shape: Shape,
    /// Messages that have been sent and received in earlier calls.
    before: usize,
}

/// Messages of one direction in one call of `exchange`.
struct Direction<'c> {
    posted: usize,
    /// Whether the buffer of the next message is prepared.
    is_prepared: bool,
    finished: usize,
    requests: VecDeque<Request<'c>>,
}

impl Direction<'_> {
    const NEW: Self =
        Direction { posted: 0, is_prepared: false, finished: 0, requests: VecDeque::new() };
}

impl Stream {
    pub(crate) fn open(worker: &mut WorkerCtx, shape: Shape) -> Result<Self> {
        let transport = plugin_transport()?;
        let device = worker.rank().min(transport.devices()? - 1);
        let link = PeerConn::open(worker, &transport, device)?;
        Self::over(link, transport, shape)
    }

    /// With connections that are there already.
    pub(crate) fn over(link: PeerConn, transport: Transport, shape: Shape) -> Result<Self> {
        let bytes = shape.depth * (shape.bytes + GUARD);
        let (mine, theirs) = (Arc::new(Buffer::new(bytes)?), Arc::new(Buffer::new(bytes)?));
        theirs.set(0, bytes, USED)?;
        let (out, into) = (link.send.register(&mine)?, link.recv.register(&theirs)?);
        Ok(Self { out, into, link, _transport: transport, shape, before: 0 })
    }

    /// `count` messages each way.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn exchange(&mut self, worker: &WorkerCtx, count: usize) -> Result<()> {
        let mut deadline = worker.deadline("messages both ways");
        let (mut out, mut into) = (Direction::NEW, Direction::NEW);
        while out.finished < count || into.finished < count {
            self.advance(worker, count, &mut out, &mut into, &mut deadline)?;
        }
        self.before += count;
        Ok(())
    }

    /// Messages for so long; then those that are under way are forgotten.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn exchange_for(&mut self, worker: &WorkerCtx, time: Duration) -> Result<()> {
        let (begin, mut deadline) =
            (Instant::now(), worker.deadline("messages both ways for a time"));
        let (mut out, mut into) = (Direction::NEW, Direction::NEW);
        while begin.elapsed() < time {
            self.advance(worker, usize::MAX, &mut out, &mut into, &mut deadline)?;
        }
        Ok(())
    }

    /// Messages until this is so; then those that are under way are forgotten.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn exchange_until(
        &self,
        worker: &WorkerCtx,
        mut is_so: impl FnMut() -> bool,
    ) -> Result<()> {
        let mut deadline = worker.deadline("messages both ways until something happens");
        let (mut out, mut into) = (Direction::NEW, Direction::NEW);
        while !is_so() {
            self.advance(worker, usize::MAX, &mut out, &mut into, &mut deadline)?;
        }
        Ok(())
    }

    /// `count` messages each way over each of `streams`, over all of them at once.
    ///
    /// # Errors
    /// Those of the calls.
    pub(crate) fn exchange_over_all(
        streams: &mut [Self],
        worker: &WorkerCtx,
        count: usize,
    ) -> Result<()> {
        let mut deadline = worker.deadline("messages over many connections");
        let mut directions: Vec<_> =
            streams.iter().map(|_| (Direction::NEW, Direction::NEW)).collect();
        let is_open = |(out, into): &(Direction<'_>, Direction<'_>)| {
            out.finished < count || into.finished < count
        };
        while directions.iter().any(is_open) {
            for (stream, (out, into)) in streams.iter().zip(&mut directions) {
                stream.advance(worker, count, out, into, &mut deadline)?;
            }
        }
        drop(directions);
        streams.iter_mut().for_each(|stream| stream.before += count);
        Ok(())
    }

    fn advance<'c>(
        &'c self,
        worker: &WorkerCtx,
        count: usize,
        out: &mut Direction<'c>,
        into: &mut Direction<'c>,
        deadline: &mut Deadline,
    ) -> Result<()> {
        let moved = [
            self.post_receive(count, into)?,
            self.post_send(worker, count, out)?,
            self.test_receive(worker, into)?,
            self.test_send(worker, out)?,
        ];
        if moved.contains(&true) {
            deadline.progress();
            return Ok(());
        }
        deadline.idle()
    }

    fn post_receive<'c>(&'c self, count: usize, into: &mut Direction<'c>) -> Result<bool> {
        if into.posted == count || into.requests.len() == self.shape.depth {
            return Ok(false);
        }
        let at = self.place(into.posted);
        if !into.is_prepared {
            let left = self.into.memory().read(at, self.shape.bytes + GUARD)?;
            assert!(are_all(&left, USED), "a buffer was written after its message was done");
            self.into.memory().set(at, left.len(), EMPTY)?;
            into.is_prepared = true;
        }
        let Some(request) = self.link.recv.receive(&self.into, at, self.shape.bytes, 3)? else {
            return Ok(false);
        };
        into.take(request);
        Ok(true)
    }

    fn post_send<'c>(
        &'c self,
        worker: &WorkerCtx,
        count: usize,
        out: &mut Direction<'c>,
    ) -> Result<bool> {
        if out.posted == count || out.requests.len() == self.shape.depth {
            return Ok(false);
        }
        let (at, bytes) = (self.place(out.posted), self.length(out.posted));
        if !out.is_prepared {
            self.out.memory().write(at, &self.data(worker.rank(), out.posted))?;
            out.is_prepared = true;
        }
        let Some(request) = self.link.send.send(&self.out, at, bytes, 3)? else { return Ok(false) };
        out.take(request);
        Ok(true)
    }

    fn test_receive(&self, worker: &WorkerCtx, into: &mut Direction<'_>) -> Result<bool> {
        let Some(bytes) = into.test()? else { return Ok(false) };
        let index = into.finished;
        into.finished += 1;
        let (at, expected) = (self.place(index), self.data(1 - worker.rank(), index));
        assert_eq!(bytes as usize, expected.len(), "length of message {}", self.before + index);
        let got = self.into.memory().read(at, self.shape.bytes + GUARD)?;
        assert!(
            got[..expected.len()] == expected[..],
            "wrong data in message {}",
            self.before + index
        );
        assert!(
            are_all(&got[expected.len()..], EMPTY),
            "bytes past message {}",
            self.before + index
        );
        self.into.memory().set(at, got.len(), USED)?;
        Ok(true)
    }

    /// The source is overwritten at once: what is read from there later would be wrong.
    fn test_send(&self, worker: &WorkerCtx, out: &mut Direction<'_>) -> Result<bool> {
        let Some(bytes) = out.test()? else { return Ok(false) };
        let index = out.finished;
        out.finished += 1;
        assert_eq!(
            bytes as usize,
            self.length(index),
            "rank {}: length of message {index}",
            worker.rank()
        );
        self.out.memory().set(self.place(index), self.shape.bytes, USED)?;
        Ok(true)
    }

    /// Offset of the buffer of message `index` of this call.
    fn place(&self, index: usize) -> usize {
        (self.before + index) % self.shape.depth * (self.shape.bytes + GUARD)
    }

    /// Most messages are long, some are short, and some empty.
    fn length(&self, index: usize) -> usize {
        let (number, most) = (self.before + index, self.shape.bytes);
        match number % 7 {
            0 => number % 97,
            3 => most / 2 + number % 61,
            5 => most.min(4096 + number % 13),
            _ => most - number % 5,
        }
    }

    fn data(&self, rank: usize, index: usize) -> Vec<u8> {
        pattern(2 * (self.before + index) + rank, self.length(index))
    }

    /// The same over the same connections, with memory that is registered now.
    pub(crate) fn with_new_memory(self) -> Result<Self> {
        let Self { out, into, link, _transport, shape, .. } = self;
        drop((out, into));
        Self::over(link, _transport, shape)
    }

    /// Closes both directions, whatever is under way.
    pub(crate) fn close_at_once(self) -> Result<()> {
        let Self { out, into, link, _transport, .. } = self;
        drop((out, into));
        link.close()
    }

    /// No message is under way: both directions are closed.
    pub(crate) fn close(self) -> Result<()> {
        let Self { out, into, link, _transport, .. } = self;
        let left = into.memory().read(0, into.memory().len())?;
        let used = self.shape.depth * (self.shape.bytes + GUARD);
        assert!(are_all(&left[..used], USED), "a buffer was written after its message was done");
        drop((out, into));
        link.close()
    }
}

impl<'c> Direction<'c> {
    fn take(&mut self, request: Request<'c>) {
        self.requests.push_back(request);
        self.posted += 1;
        self.is_prepared = false;
    }

    /// Tests the oldest request; the length of its message when it is done.
    fn test(&mut self) -> Result<Option<i32>> {
        let mut sizes = [-1];
        let Some(oldest) = self.requests.front_mut() else { return Ok(None) };
        if !oldest.test(&mut sizes)? {
            return Ok(None);
        }
        self.requests.pop_front();
        Ok(Some(sizes[0]))
    }
}
