//! The TCP port where a process is called, for all of its listeners.

use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::net::control::fork::Unshared;
use crate::net::control::fork::process_id;
use socket2::SockRef;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// A TCP port that accepts clients.
#[derive(Debug)]
pub struct Port {
    // Declared first: it goes before the descriptor is closed.
    _unshared: Unshared,
    /// The process that opened it.
    owner: u32,
    socket: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Opens one on `interface`.
    ///
    /// # Errors
    /// None can be had.
    pub fn open(interface: &Interface) -> Result<Self> {
        let what = || format!("listening on {} ({})", interface.name, interface.address.ip());
        let socket = TcpListener::bind(interface.address).map_err(|e| Error::io(what(), &e))?;
        socket.set_nonblocking(true).map_err(|e| Error::io(what(), &e))?;
        // As many clients wait as the system allows, and not the 128 that are usual: all peers of a process may connect at once. If
        // this fails, the queue stays as it is.
        let _ = SockRef::from(&socket).listen(i32::from(i16::MAX));
        let mut address = socket.local_addr().map_err(|e| Error::io(what(), &e))?;
        address.set_ip(interface.address.ip());
        let (_unshared, owner) = (Unshared::new(socket.as_raw_fd()), process_id());
        Ok(Self { _unshared, owner, socket, address })
    }

    /// Where to call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next client.
    ///
    /// # Errors
    /// No more can be accepted by this process.
    pub fn accept(&self) -> Result<Option<(TcpStream, SocketAddr)>> {
        loop {
            match self.socket.accept() {
                Ok(accepted) => return Ok(Some(accepted)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if is_of_this_process(&e) => {
                    return Err(Error::io(format_args!("accepting on {}", self.address), &e));
                }
                // That client is gone already.
                Err(_) => {}
            }
        }
    }

    /// Closes as many as `most` of the clients in the system's queue.
    pub fn clear_queue(&self, most: usize) {
        let clients = std::iter::from_fn(|| self.socket.accept().ok());
        clients.take(most).for_each(|(stream, _)| drop(stream.shutdown(Shutdown::Both)));
    }
}

impl Drop for Port {
    /// A forked child may have the port as well: nobody is to call there without success.
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

/// Whether an error of `accept` concerns one incoming connection only, which may have failed in many ways by then.
fn is_of_this_process(error: &std::io::Error) -> bool {
    let ours = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EBADF, libc::EINVAL, libc::ENOTSOCK];
    error.raw_os_error().is_none_or(|errno| ours.contains(&errno))
}
