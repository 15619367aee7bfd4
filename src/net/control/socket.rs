//! The control connection's socket: frames over TCP, never blocking.

use super::fork::Unshared;
use crate::error::{Error, Result, errno};
use crate::proto::frame::{Assembler, Frame};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A control connection.
#[derive(Debug)]
pub struct ControlSocket {
    // Declared first: it goes before the descriptor is closed.
    _unshared: Unshared,
    stream: TcpStream,
    peer: SocketAddr,
    assembler: Assembler,
    outgoing: Vec<u8>,
    connecting: bool,
    /// The errno of an attempt to connect that has failed at once.
    refusal: Option<i32>,
    /// What writing has told of the network: the system says it once.
    lost: Option<String>,
}

/// How reading ended for now.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A whole frame.
    Frame(Frame),
    /// Nothing yet.
    Nothing,
    /// The peer has closed the connection, or its process has ended.
    Closed,
    /// The network between the hosts has failed, or the connection was reset, for this reason. The peer may well live.
    Lost(String),
}

const KEEPALIVE_IDLE_S: i32 = 20;
const KEEPALIVE_INTERVAL_S: i32 = 5;
const KEEPALIVE_PROBES: i32 = 4;

impl ControlSocket {
    /// Begins to connect to `address`. If that fails at once, [`Self::poll_connected`] tells.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn dial(address: SocketAddr) -> Result<Self> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain numbers.
        let fd = unsafe { libc::socket(family, kind, 0) };
        if fd < 0 {
            return Err(Error::os("socket", errno()));
        }
        // SAFETY: just made, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let errno = start_connect(fd.as_raw_fd(), address);
        let mut socket = Self::with(TcpStream::from(fd), address, true);
        socket.refusal = Some(errno).filter(|errno| ![0, libc::EINPROGRESS].contains(errno));
        Ok(socket)
    }

    /// Takes over an accepted connection.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn accepted(stream: TcpStream, peer: SocketAddr) -> Result<Self> {
        stream.set_nonblocking(true).map_err(|e| Error::io("set_nonblocking", &e))?;
        let socket = Self::with(stream, peer, false);
        socket.tune();
        Ok(socket)
    }

    fn with(stream: TcpStream, peer: SocketAddr, connecting: bool) -> Self {
        let _unshared = Unshared::new(stream.as_raw_fd());
        let (assembler, outgoing) = (Assembler::default(), Vec::new());
        Self { _unshared, stream, peer, assembler, outgoing, connecting, refusal: None, lost: None }
    }

    /// The other end's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The descriptor, for waiting on.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Whether [`Self::dial`] has come through.
    ///
    /// # Errors
    /// The connection failed; `Ok(false)` while it is under way. The errno is that of the failure.
    pub fn poll_connected(&mut self) -> std::result::Result<bool, i32> {
        if !self.connecting {
            return Ok(true);
        }
        if let Some(errno) = self.refusal {
            return Err(errno);
        }
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid entry; no waiting.
        if unsafe { libc::poll(&raw mut poll, 1, 0) } != 1 {
            return Ok(false);
        }
        match self.stream.take_error() {
            Ok(None) => {}
            Ok(Some(e)) | Err(e) => return Err(e.raw_os_error().unwrap_or(libc::EIO)),
        }
        self.connecting = false;
        self.tune();
        Ok(true)
    }

    /// Small messages go out at once, and the kernel asks for the peer's host while nothing is said. If that does not answer for
    /// 40 s, the connection is lost. While something said is unanswered, the kernel repeats that instead, and gives up in its
    /// own time (`tcp_retries2`, some 15 minutes).
    fn tune(&self) {
        let _ = self.stream.set_nodelay(true);
        for (level, option, value) in [
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, KEEPALIVE_PROBES),
        ] {
            let size = size_of::<i32>() as libc::socklen_t;
            // SAFETY: an open socket and a value of the size told. Without these options things only get slower.
            unsafe { libc::setsockopt(self.fd(), level, option, (&raw const value).cast(), size) };
        }
    }

    /// Puts a frame in line.
    pub fn send(&mut self, frame: &Frame) {
        self.outgoing.extend_from_slice(&frame.emit());
    }

    /// Whether the peer has said a part of a frame only.
    pub fn has_begun(&self) -> bool {
        self.assembler.has_begun()
    }

    /// Bytes that are in line.
    pub fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// Tells the peer that nothing more will come, even if a forked child of this process still has the socket.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Hands over what is in line; whether all of it has gone.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn poll_sent(&mut self) -> Result<bool> {
        while !self.outgoing.is_empty() {
            match self.stream.write(&self.outgoing) {
                Ok(n) => drop(self.outgoing.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => {
                    if is_of_the_network(&e) {
                        self.lost = Some(e.to_string());
                    }
                    return Err(Error::remote(format!("the connection to {} broke: {e}", self.peer)));
                }
            }
        }
        Ok(true)
    }

    /// Reads at most up to the end of one frame.
    ///
    /// # Errors
    /// These are not Ferrite's bytes.
    pub fn poll_frame(&mut self) -> std::result::Result<Incoming, crate::proto::Violation> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.assembler.poll_frame()? {
                return Ok(Incoming::Frame(frame));
            }
            let wanted = self.assembler.wanted()?.min(buffer.len());
            match self.stream.read(&mut buffer[..wanted]) {
                Ok(0) => return Ok(self.lost.take().map_or(Incoming::Closed, Incoming::Lost)),
                Ok(n) => self.assembler.handle_bytes(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Incoming::Nothing),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if is_of_the_network(&e) => return Ok(Incoming::Lost(e.to_string())),
                Err(_) => return Ok(Incoming::Closed),
            }
        }
    }
}

/// Has as many callers wait as the system allows, and not the 128 that are usual: all peers of a process may call at once.
pub fn lengthen_queue(listener: &TcpListener) {
    // SAFETY: plain numbers, and a descriptor that the borrowed listener keeps open; if this fails, the queue stays as it is.
    unsafe { libc::listen(listener.as_raw_fd(), i32::from(i16::MAX)) };
}

/// Ends a port for good, also where a forked child of this process still has it.
pub fn shut(listener: &TcpListener) {
    // SAFETY: plain numbers, and a descriptor that the borrowed listener keeps open; if this fails, closing it is what is left.
    unsafe { libc::shutdown(listener.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Whether an error does not tell that the peer's process has ended. A reset may come of a process that was killed with
/// something unread, but so it does of a peer's kernel that had given the connection up while the network was away.
fn is_of_the_network(error: &std::io::Error) -> bool {
    let network =
        [libc::ECONNRESET, libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENETDOWN, libc::EHOSTDOWN];
    error.raw_os_error().is_some_and(|errno| network.contains(&errno))
}

fn start_connect(fd: RawFd, address: SocketAddr) -> i32 {
    let rc = match address {
        SocketAddr::V4(a) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*a.ip()).to_be() },
                sin_zero: [0; 8],
            };
            // SAFETY: a whole socket address of its family, and its size.
            unsafe { libc::connect(fd, (&raw const raw).cast(), size_of_val(&raw) as libc::socklen_t) }
        }
        SocketAddr::V6(a) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { libc::connect(fd, (&raw const raw).cast(), size_of_val(&raw) as libc::socklen_t) }
        }
    };
    if rc == 0 { 0 } else { errno() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As while an interface is down: whoever waits for the peer tries again.
    #[test]
    fn a_network_that_is_not_there_is_told_like_any_other_failure() {
        let group = SocketAddr::from(([224, 0, 0, 1], 9));
        let mut socket = ControlSocket::dial(group).expect("a socket");
        assert_eq!([socket.poll_connected(), socket.poll_connected()], [Err(libc::ENETUNREACH); 2]);
    }
}
