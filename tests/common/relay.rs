//! What passes the bytes of control connections on, and can end them.

use super::alone::address;
use ferrite::comm::{RecvComm, SendComm};
use ferrite::error::Result;
use ferrite::seat::Seat;
use ferrite::transport::{Handle, Listener, Transport};
use nccl_net::testing::proto::handle::Handle as Address;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// Passes bytes on, one caller at a time, until it is told to hang up; counts callers.
pub(crate) struct Relay {
    socket: TcpListener,
    to: SocketAddr,
    pub(crate) lines: Vec<(TcpStream, TcpStream)>,
    pub(crate) callers: usize,
    /// Callers that it hangs up on without a word.
    pub(crate) turned_away: usize,
}

impl Relay {
    pub(crate) fn new(to: SocketAddr) -> Self {
        let socket = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        socket.set_nonblocking(true).expect("non-blocking");
        Self { socket, to, lines: Vec::new(), callers: 0, turned_away: 0 }
    }

    /// The same listener, by way of this relay.
    pub(crate) fn divert(&self, handle: &Handle) -> Handle {
        let here = self.socket.local_addr().expect("an address");
        Handle(Address { address: here, ..address(handle) }.emit())
    }

    /// Whether the kernel has taken all that was passed on: nothing is left to read.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.lines.iter().all(|(near, _)| near.peek(&mut [0]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock))
    }

    /// Resets all connections, as a network does that comes back when one end has given up.
    pub(crate) fn reset(&mut self) {
        for (near, far) in self.lines.drain(..) {
            for stream in [near, far] {
                let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
                let (value, size) = ((&raw const at_once).cast(), size_of_val(&at_once) as libc::socklen_t);
                // SAFETY: an open socket and a value of the size told.
                let rc =
                    unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size) };
                assert_eq!(rc, 0);
            }
        }
    }

    pub(crate) fn pass(&mut self) {
        if let Ok((near, _)) = self.socket.accept() {
            if self.turned_away > 0 {
                self.turned_away -= 1;
                return;
            }
            let far = TcpStream::connect(self.to).expect("it listens");
            near.set_nonblocking(true).expect("non-blocking");
            far.set_nonblocking(true).expect("non-blocking");
            self.lines.push((near, far));
            self.callers += 1;
        }
        self.lines.retain_mut(|(near, far)| copy(near, far) && copy(far, near));
    }
}

fn copy(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    match from.read(&mut bytes) {
        Ok(0) => false,
        Ok(count) => to.write_all(&bytes[..count]).is_ok(),
        Err(e) => e.kind() == ErrorKind::WouldBlock,
    }
}

pub(crate) fn connect_through(
    seat: &Seat,
    transport: &Transport,
    relay: &mut Relay,
) -> Result<(SendComm, RecvComm, Listener)> {
    let (handle, mut listener) = transport.listen(0)?;
    let mut diverted = relay.divert(&handle);
    let mut deadline = seat.deadline("a connection through a relay");
    let (mut send, mut recv) = (None, None);
    loop {
        relay.pass();
        if send.is_none() {
            send = transport.connect(1, &mut diverted)?;
        }
        recv = recv.or(listener.accept()?);
        match (send, recv) {
            (Some(send), Some(recv)) => return Ok((send, recv, listener)),
            pending => (send, recv) = pending,
        }
        deadline.idle()?;
    }
}
