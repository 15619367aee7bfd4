//! What a host does with the plugin when the server asks: listen, connect, accept, transfer, close.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::error::{Error, Result};
use lab::measure::plan;
use lab::nccl::debug_log;
use lab::transport::buffer::Buffer;
use lab::transport::comm::{RecvComm, Request as Operation, SendComm};
use lab::transport::deadline::Deadline;
use lab::transport::instance::Transport;
use lab::transport::listener::{Handle, Listener};

use crate::doctor::peers::message::{Measured, Reply, Request, Transfer, from_hex, to_hex};

/// A step that finds nothing for so long has failed. Less than the server waits for a reply.
const STEP: Duration = Duration::from_secs(10);
/// What a server may ask for at most.
const MOST_BYTES: usize = 4 << 20;
const MOST_COUNT: u32 = 1 << 20;
const MOST_WINDOW: usize = 8;

/// The plugin of a host, and the connection that is being tried.
pub(super) struct Trial {
    transport: Transport,
    listener: Option<Listener>,
    send: Option<SendComm>,
    recv: Option<RecvComm>,
}

impl Trial {
    pub(super) fn new(transport: Transport) -> Self {
        Self { transport, listener: None, send: None, recv: None }
    }

    /// Does what is asked.
    pub(super) fn answer(&mut self, request: &Request) -> Reply {
        let done = match request {
            Request::Listen(device) => self.listen(*device).map(Reply::Handle),
            Request::Accept => self.accept().map(|()| Reply::Done),
            Request::Connect(device, handle) => self.connect(*device, handle).map(|()| Reply::Done),
            Request::Transfer(transfer) => self.transfer(*transfer).map(Reply::Measured),
            Request::Close => self.close().map(|()| Reply::Done),
            Request::Welcome(_) | Request::Refused(_) | Request::Ping | Request::End { .. } => {
                Ok(Reply::Done)
            }
        };
        done.unwrap_or_else(|problem| {
            // What is half open is no use to what comes next.
            drop((self.listener.take(), self.send.take(), self.recv.take()));
            Reply::Failed(debug_log::with_warnings(&problem))
        })
    }

    fn listen(&mut self, device: usize) -> Result<String> {
        let (handle, listener) = self.transport.listen(device)?;
        self.listener = Some(listener);
        Ok(to_hex(&handle.0))
    }

    fn accept(&mut self) -> Result<()> {
        let mut listener =
            self.listener.take().ok_or(Error::Misuse("accept without a listener"))?;
        let mut deadline = Deadline::new("accepting the peer's connection", STEP);
        let recv = loop {
            match listener.accept()? {
                Some(recv) => break recv,
                None => deadline.idle()?,
            }
        };
        self.recv = Some(recv);
        listener.close()
    }

    fn connect(&mut self, device: usize, handle: &str) -> Result<()> {
        let bytes = from_hex(handle)
            .ok_or_else(|| Error::Unreadable("the peer's handle is not understood".into()))?;
        let (mut handle, mut deadline) =
            (Handle(bytes), Deadline::new("connecting to the peer", STEP));
        self.send = loop {
            match self.transport.connect(device, &mut handle)? {
                Some(send) => break Some(send),
                None => deadline.idle()?,
            }
        };
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        drop(self.listener.take());
        self.send.take().map_or(Ok(()), SendComm::close)?;
        self.recv.take().map_or(Ok(()), RecvComm::close)
    }

    fn transfer(&mut self, transfer: Transfer) -> Result<Measured> {
        let Transfer { bytes, count, window, .. } = transfer;
        let is_bounded = (1..=MOST_BYTES).contains(&bytes)
            && count <= MOST_COUNT
            && (1..=MOST_WINDOW).contains(&window);
        if !is_bounded {
            return Err(Error::Unreadable(format!("the server asks for too much: {transfer:?}")));
        }
        match (&self.send, &self.recv) {
            (Some(send), _) => send_all(send, transfer),
            (None, Some(recv)) => receive_all(recv, transfer),
            (None, None) => Err(Error::Misuse("a transfer without a connection")),
        }
    }
}

/// The contents of every message, by its size.
fn contents(memory: &Buffer, transfer: Transfer) -> Result<()> {
    (0..transfer.window).try_for_each(|place| {
        plan::fill(memory, place * stride(transfer), transfer.bytes, seed(transfer))
    })
}

fn seed(transfer: Transfer) -> u64 {
    plan::seed(1, 0, transfer.bytes as u64)
}

/// Bytes from one message's place to the next.
fn stride(transfer: Transfer) -> usize {
    transfer.bytes.next_multiple_of(4096)
}

fn send_all(send: &SendComm, transfer: Transfer) -> Result<Measured> {
    let memory = Arc::new(Buffer::new(transfer.window * stride(transfer))?);
    contents(&memory, transfer)?;
    let region = send.register(&memory)?;
    let mut took = Vec::with_capacity(transfer.count as usize);
    let seconds = all(
        transfer,
        |place| send.send(&region, place * stride(transfer), transfer.bytes, 0),
        |_, time| {
            took.push(time.as_secs_f64() * 1e6);
            Ok(())
        },
    )?;
    took.sort_by(f64::total_cmp);
    let of = |share: usize| took.get(took.len() * share / 100).copied().unwrap_or(0.0);
    Ok(Measured { seconds, p50_us: of(50), p99_us: of(99) })
}

fn receive_all(recv: &RecvComm, transfer: Transfer) -> Result<Measured> {
    let memory = Arc::new(Buffer::new(transfer.window * stride(transfer))?);
    let region = recv.register(&memory)?;
    // Each place once: what was seen in it before does not count as seen again.
    let mut unchecked = vec![transfer.is_checked; transfer.window];
    let seconds = all(
        transfer,
        |place| recv.receive(&region, place * stride(transfer), transfer.bytes, 0),
        |place, _| {
            if !std::mem::take(&mut unchecked[place]) {
                return Ok(());
            }
            match plan::check(&memory, place * stride(transfer), transfer.bytes, seed(transfer))? {
                None => Ok(()),
                Some(at) => Err(Error::Data(format!(
                    "byte {} of a message of {} bytes is wrong",
                    at.offset, transfer.bytes
                ))),
            }
        },
    )?;
    Ok(Measured { seconds, ..Measured::default() })
}

/// Posts and tests until all messages are done, with as many in flight as the window has places.
/// Seconds.
fn all<'c>(
    transfer: Transfer,
    mut post: impl FnMut(usize) -> Result<Option<Operation<'c>>>,
    mut done: impl FnMut(usize, Duration) -> Result<()>,
) -> Result<f64> {
    let mut deadline = Deadline::new("messages between the hosts", STEP);
    let mut places: Vec<Option<(Operation<'c>, Instant)>> =
        (0..transfer.window).map(|_| None).collect();
    let (mut posted, mut finished, start) = (0, 0, Instant::now());
    let mut sizes = [0; 1];
    while finished < transfer.count {
        for (place, slot) in places.iter_mut().enumerate() {
            let is_done = match slot {
                Some((operation, _)) => operation.test(&mut sizes)?,
                None => false,
            };
            if let Some((_, since)) = slot.take_if(|_| is_done) {
                done(place, since.elapsed())?;
                finished += 1;
                deadline.progress();
            } else if slot.is_none() && posted < transfer.count {
                let since = Instant::now();
                if let Some(operation) = post(place)? {
                    *slot = Some((operation, since));
                    posted += 1;
                }
            }
        }
        deadline.idle()?;
    }
    Ok(start.elapsed().as_secs_f64())
}
