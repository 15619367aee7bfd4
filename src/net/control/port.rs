//! The TCP port where a process accepts clients for all of its listeners.

use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::net::control::fork::CloseOnFork;
use crate::net::control::fork::process_id;
use socket2::SockRef;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A TCP port that accepts clients.
#[derive(Debug)]
pub struct Port {
    // Declared first, to be dropped before the descriptor is closed.
    _unshared: CloseOnFork,
    /// The process that opened it.
    owner: u32,
    socket: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Opens a port on `interface`.
    ///
    /// # Errors
    /// No port is available.
    pub fn open(interface: &Interface) -> Result<Self> {
        let what = || format!("listening on {} ({})", interface.name, interface.address.ip());
        let socket = TcpListener::bind(interface.address).map_err(|e| Error::io(what(), &e))?;
        socket.set_nonblocking(true).map_err(|e| Error::io(what(), &e))?;
        // Queues as many clients as the system allows, instead of the default 128: all peers of a
        // process may connect at once. If this fails, the queue keeps its size.
        let _ = SockRef::from(&socket).listen(i32::from(i16::MAX));
        let mut address = socket.local_addr().map_err(|e| Error::io(what(), &e))?;
        address.set_ip(interface.address.ip());
        let (_unshared, owner) = (CloseOnFork::new(socket.as_raw_fd()), process_id());
        Ok(Self { _unshared, owner, socket, address })
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next client.
    ///
    /// # Errors
    /// This process can accept no more.
    pub fn accept(&self) -> Result<Option<(TcpStream, SocketAddr)>> {
        loop {
            match self.socket.accept() {
                Ok(accepted) => return Ok(Some(accepted)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if is_of_this_process(&e) => {
                    return Err(Error::io(format_args!("accepting on {}", self.address), &e));
                }
                // That client has already gone.
                Err(_) => {}
            }
        }
    }

    /// Closes at most `most` of the clients in the system's queue.
    pub fn clear_queue(&self, most: usize) {
        let clients = std::iter::from_fn(|| self.socket.accept().ok());
        clients.take(most).for_each(|(stream, _)| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Drop for Port {
    /// A forked child may also have the port; stops it from accepting clients there.
    fn drop(&mut self) {
        // Asked of the kernel: what is done below must not happen in a child, however it was made.
        if self.owner != std::process::id() {
            return;
        }
        let _ = SockRef::from(&self.socket).shutdown(Shutdown::Both);
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether an error of `accept` is one of this process. Others concern one client, which may have
/// failed in many ways by then.
fn is_of_this_process(error: &std::io::Error) -> bool {
    let ours = [
        libc::EMFILE,
        libc::ENFILE,
        libc::ENOBUFS,
        libc::ENOMEM,
        libc::EBADF,
        libc::EINVAL,
        libc::ENOTSOCK,
    ];
    error.raw_os_error().is_none_or(|errno| ours.contains(&errno))
}
