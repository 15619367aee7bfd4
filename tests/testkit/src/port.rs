//! TCP ports on the loopback interface: listened at, held, and without an answer.

use crate::wait::wait_until;
use std::fmt::Display;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A socket that listens at a free port of 127.0.0.1, and whose `accept` does not block.
#[must_use]
pub fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.set_nonblocking(true).expect("a socket can be made non-blocking");
    listener
}

/// The next client of `listener`, whose `accept` does not block from now on. Fails with the name
/// `what` if none comes.
#[track_caller]
pub fn accepted(listener: &TcpListener, what: impl Display) -> TcpStream {
    listener.set_nonblocking(true).expect("a socket can be made non-blocking");
    wait_until(what, || match listener.accept() {
        Ok((client, _)) => Some(client),
        Err(problem) if problem.kind() == io::ErrorKind::WouldBlock => None,
        Err(problem) => panic!("no client can be accepted: {problem}"),
    })
}

/// A port of 127.0.0.1 that nobody else can take as long as this is there. It refuses connections
/// while nobody listens at it.
#[derive(Debug)]
pub struct OwnPort {
    _bound: OwnedFd,
    address: SocketAddr,
}

impl OwnPort {
    /// Takes a free one: bound, but not listened at.
    #[must_use]
    pub fn new() -> Self {
        let size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: all zeros is a valid address of IPv4, and each call gets a value and its size;
        // the descriptor is new and ours.
        let (bound, port) = unsafe {
            let socket = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            assert!(socket >= 0, "{}", io::Error::last_os_error());
            let bound = OwnedFd::from_raw_fd(socket);
            // A listener can have the port too, if it names it.
            let (reuse, length): (libc::c_int, _) = (1, size_of::<libc::c_int>());
            let rc = libc::setsockopt(
                bound.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_REUSEADDR,
                (&raw const reuse).cast(),
                length as libc::socklen_t,
            );
            assert_eq!(rc, 0, "{}", io::Error::last_os_error());
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            address.sin_family = libc::AF_INET as libc::sa_family_t;
            address.sin_addr.s_addr = u32::from(Ipv4Addr::LOCALHOST).to_be();
            let rc = libc::bind(bound.as_raw_fd(), (&raw const address).cast(), size);
            assert_eq!(rc, 0, "{}", io::Error::last_os_error());
            let mut filled = size;
            let rc =
                libc::getsockname(bound.as_raw_fd(), (&raw mut address).cast(), &raw mut filled);
            assert_eq!(rc, 0, "{}", io::Error::last_os_error());
            (bound, u16::from_be(address.sin_port))
        };
        Self { _bound: bound, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)) }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Listens at it, until the listener is dropped. Its `accept` blocks.
    #[must_use]
    pub fn listen(&self) -> TcpListener {
        TcpListener::bind(self.address).expect("the port is ours")
    }
}

impl Default for OwnPort {
    fn default() -> Self {
        Self::new()
    }
}

/// A port that answers nobody: the kernel's queue of its connections is full.
#[derive(Debug)]
pub struct SilentPort {
    port: OwnPort,
    _queue: (TcpListener, TcpStream),
}

impl SilentPort {
    /// Takes a free one.
    #[must_use]
    pub fn new() -> Self {
        let port = OwnPort::new();
        let listener = port.listen();
        // The queue has one place more than is said here. SAFETY: an open socket and a number.
        let rc = unsafe { libc::listen(listener.as_raw_fd(), 0) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
        let client = TcpStream::connect(port.address()).expect("the only place");
        Self { port, _queue: (listener, client) }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// From now on it refuses.
    #[must_use]
    pub fn refuse(self) -> OwnPort {
        self.port
    }
}

impl Default for SilentPort {
    fn default() -> Self {
        Self::new()
    }
}
