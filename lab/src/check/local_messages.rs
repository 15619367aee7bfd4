//! Messages within one process: connect, send, receive, compare.

use std::sync::Arc;

use crate::check::ensure;
use crate::check::wait::SOON;
use crate::error::{Error, Result};
use crate::measure::conn::TAG;
use crate::measure::pattern;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvComm, Region, Request, SendComm};
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::listener::{self, Handle, Listener};
use crate::transport::local_conn::LocalConn;

/// Connects device `from` to a new listener on device `to`, in this process and thread.
pub(crate) fn connect_locally(transport: &Transport, from: usize, to: usize) -> Result<LocalConn> {
    LocalConn::open(transport, from, to, &mut Deadline::new("a connection within one process", SOON))
}

/// Connects device `from` to `listener`, whose handle is given, in this process and thread.
pub(crate) fn connect_and_accept(
    transport: &Transport,
    from: usize,
    handle: &mut Handle,
    listener: &mut Listener,
) -> Result<LocalConn> {
    let mut deadline = Deadline::new("a connection within one process", SOON);
    let (send, recv) = listener::connect_and_accept(transport, from, handle, listener, &mut deadline, || ())?;
    Ok(LocalConn { send, recv })
}

impl LocalConn {
    /// Sends messages of these sizes, one after the other, and checks every byte.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Stalled`]; [`Error::Contract`] for wrong data.
    pub(crate) fn carries(&self, sizes: &[usize]) -> Result<()> {
        let most = sizes.iter().copied().max().unwrap_or(0).next_multiple_of(4096);
        let (mine, theirs) = (Arc::new(Buffer::new(most)?), Arc::new(Buffer::new(most + 4096)?));
        let (out, into) = (self.send.register(&mine)?, self.recv.register(&theirs)?);
        sizes.iter().enumerate().try_for_each(|(i, size)| self.message(&out, &into, *size, i as u64))
    }

    /// Sends one message from the start of `out` to the start of `into`.
    ///
    /// # Errors
    /// As [`LocalConn::carries`].
    pub(crate) fn message(&self, out: &Region, into: &Region, size: usize, seed: u64) -> Result<()> {
        pattern::fill(out.memory(), 0, size, seed)?;
        let (went, came) = exchange((&self.send, out, 0, size), (&self.recv, into, 0, size))?;
        arrived(into, 0, size, seed, came)?;
        ensure!(went as usize == size, "a send of {size} bytes says that it sent {went}");
        Ok(())
    }
}

/// Where a message comes from, or goes: communicator, memory, offset, size.
type Side<'a, C> = (&'a C, &'a Region, usize, usize);

/// Sends one message and receives one, and tests both in turn, as NCCL's progress thread does: a transport may
/// need to be called at either end for the other to get on. The sizes that the send and the receive report.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub(super) fn exchange(
    (sender, out, from, size): Side<'_, SendComm>,
    (receiver, into, to, room): Side<'_, RecvComm>,
) -> Result<(i32, i32)> {
    let mut deadline = Deadline::new("a message each way", SOON);
    let (mut send, mut receive) = (None, None);
    let (mut went, mut came) = ([-1], [-1]);
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        match &mut receive {
            None => receive = receiver.receive(into, to, room, TAG)?,
            Some(request) => received = received || request.test(&mut came)?,
        }
        match &mut send {
            None => send = sender.send(out, from, size, TAG)?,
            Some(request) => sent = sent || request.test(&mut went)?,
        }
        deadline.idle()?;
    }
    Ok((went[0], came[0]))
}

/// Posts a send for the receive that was posted last, and tests that one meanwhile.
///
/// # Errors
/// Those of `post` and of the transport; [`Error::Stalled`]; [`Error::Contract`] if the receive is done before it.
pub(super) fn sent_meanwhile<'c>(
    deadline: &mut Deadline,
    receive: &mut Request<'_>,
    mut post: impl FnMut() -> Result<Option<Request<'c>>>,
) -> Result<Request<'c>> {
    loop {
        if let Some(send) = post()? {
            deadline.progress();
            return Ok(send);
        }
        ensure!(!receive.test(&mut [0; 8])?, "a receive is done before its message was sent");
        deadline.idle()?;
    }
}

/// A message of `size` bytes at `offset` is what was sent.
///
/// # Errors
/// [`Error::Contract`] with the first wrong byte.
pub(super) fn arrived(into: &Region, offset: usize, size: usize, seed: u64, told: i32) -> Result<()> {
    ensure!(told as usize == size, "a receive of {size} bytes says that {told} came");
    if let Some(at) = pattern::check(into.memory(), offset, size, seed)? {
        let words = format!("byte {} of {size} is {:#04x}, not {:#04x}", at.offset, at.got, at.expected);
        return Err(Error::Contract(words));
    }
    Ok(())
}
