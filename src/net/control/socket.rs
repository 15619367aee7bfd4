//! The non-blocking TCP socket of a control connection.

use crate::error::{Error, Result};
use crate::net::control::fork::CloseOnFork;
use crate::proto::control::event::End;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

/// A TCP connection, or an attempt at one.
#[derive(Debug)]
pub struct ControlSocket {
    // Declared first, to be dropped before the descriptor is closed.
    _unshared: CloseOnFork,
    stream: TcpStream,
    is_connecting: bool,
    /// The error of a failed write; the system reports it once.
    lost: Option<String>,
    /// Whether a write has failed: the kernel accepts no more, and reading returns the error.
    has_failed: bool,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// This many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The connection has ended, and how.
    End(End),
}

const KEEPALIVE_IDLE: Duration = Duration::from_secs(20);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 4;
/// The most pieces of 4 KiB that are discarded at the end.
const MAX_DRAINED: usize = 64;

impl ControlSocket {
    /// Begins to connect to `address`.
    ///
    /// # Errors
    /// The errno of an attempt that fails at once.
    pub fn dial(address: SocketAddr) -> std::result::Result<Self, i32> {
        let errno = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)
            .map_err(errno)?;
        match socket.connect(&address.into()).map_err(errno) {
            Ok(()) | Err(libc::EINPROGRESS) => Ok(Self::with(socket.into(), true)),
            Err(errno) => Err(errno),
        }
    }

    /// Takes over an accepted connection.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn accepted(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|e| Error::io("set_nonblocking", &e))?;
        let socket = Self::with(stream, false);
        socket.tune();
        Ok(socket)
    }

    fn with(stream: TcpStream, is_connecting: bool) -> Self {
        Self {
            _unshared: CloseOnFork::new(stream.as_raw_fd()),
            stream,
            is_connecting,
            lost: None,
            has_failed: false,
        }
    }

    /// Whether [`Self::dial`] has just connected.
    ///
    /// # Errors
    /// It has failed, with this errno.
    pub fn poll_connected(&mut self) -> std::result::Result<bool, i32> {
        if !self.is_connecting {
            return Ok(false);
        }
        match self.stream.take_error() {
            Ok(None) if self.stream.peer_addr().is_err() => return Ok(false),
            Ok(None) => {}
            Ok(Some(e)) | Err(e) => return Err(e.raw_os_error().unwrap_or(libc::EIO)),
        }
        self.is_connecting = false;
        self.tune();
        Ok(true)
    }

    /// Whether the kernel is still connecting.
    pub fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Sends small messages at once, and enables keep-alive packets. The connection is lost if the
    /// peer's host acknowledges neither these nor data for 40 s. Without these options things are
    /// only slower: the kernel retransmits for some 15 minutes (`tcp_retries2`).
    fn tune(&self) {
        let _ = self.stream.set_nodelay(true);
        let keepalive =
            TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL);
        let socket = SockRef::from(&self.stream);
        let _ = socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES));
        let _ = socket
            .set_tcp_user_timeout(Some(KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES));
    }

    /// Whether it may have room for more bytes later.
    pub fn can_write(&self) -> bool {
        !self.has_failed
    }

    /// Writes as much of `bytes` as the kernel accepts now, and returns how much. Leaves errors to
    /// the reader, which must first see what arrived before.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.write(&bytes[written..]) {
                Ok(n) => written += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    self.has_failed |= e.kind() != ErrorKind::WouldBlock;
                    // After the original error the system reports EPIPE.
                    if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::BrokenPipe) {
                        self.lost = Some(e.to_string());
                    }
                    break;
                }
            }
        }
        written
    }

    /// Reads what is available and fits.
    pub fn read(&mut self, buffer: &mut [u8]) -> Incoming {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Incoming::End(self.lost.take().map_or(End::Closed, End::Lost)),
                Ok(n) => return Incoming::Bytes(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Incoming::Nothing,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Incoming::End(End::Lost(e.to_string())),
            }
        }
    }

    /// Writes `last`, as far as the kernel accepts it, and ends the stream even if a forked child
    /// still has the socket.
    pub fn finish(&mut self, last: &[u8]) {
        self.write(last);
        let _ = self.stream.shutdown(Shutdown::Write);
        // Closing a socket with unread input resets the connection, and a lost last frame would not
        // be retransmitted.
        let mut buffer = [0; 4096];
        for _ in 0..MAX_DRAINED {
            if !matches!(self.read(&mut buffer), Incoming::Bytes(_)) {
                break;
            }
        }
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As while an interface is down.
    #[test]
    fn a_network_that_is_not_there_is_reported_by_its_errno() {
        let group = SocketAddr::from(([224, 0, 0, 1], 9));
        assert_eq!(ControlSocket::dial(group).map(|_| ()), Err(libc::ENETUNREACH));
    }

    #[test]
    fn a_peer_whose_host_acknowledges_nothing_for_40_s_is_lost() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let _dialled =
            ControlSocket::dial(listener.local_addr().expect("its address")).expect("dialled");
        let accepted =
            ControlSocket::accepted(listener.accept().expect("a client").0).expect("accepted");
        let socket = SockRef::from(&accepted.stream);
        assert_eq!(socket.tcp_user_timeout().expect("the option"), Some(Duration::from_secs(40)));
        assert!(socket.keepalive().expect("the option"));
    }

    #[test]
    fn a_socket_that_cannot_be_written_is_still_read() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let _dialled =
            ControlSocket::dial(listener.local_addr().expect("its address")).expect("dialled");
        let mut accepted =
            ControlSocket::accepted(listener.accept().expect("a client").0).expect("accepted");
        assert!(accepted.write(b"all is well") > 0 && accepted.can_write());
        accepted.stream.shutdown(Shutdown::Write).expect("it is connected");
        assert_eq!((accepted.write(b"too late"), accepted.can_write()), (0, false));
    }
}
