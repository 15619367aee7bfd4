//! A TCP relay between the two ends of a connection: finds the port in a listener's handle, and
//! puts another one there.
//!
//! The contents of a handle are the transport's choice, but for one thing: somewhere in it is the
//! number of the port where its listener waits, and the kernel lists this port as well.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};

/// The ports on which this process listens.
///
/// # Errors
/// [`Error::Io`] if the system does not say.
fn ports() -> Result<HashSet<u16>> {
    let mine = sockets()?;
    let mut ports = HashSet::new();
    for table in ["/proc/self/net/tcp", "/proc/self/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        ports.extend(text.lines().skip(1).filter_map(|line| listening(line, &mine)));
    }
    Ok(ports)
}

/// The inodes of this process's sockets.
fn sockets() -> Result<HashSet<String>> {
    let entries = std::fs::read_dir("/proc/self/fd")
        .map_err(|e| Error::io("cannot read /proc/self/fd", e))?;
    let links = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inode = |link: std::path::PathBuf| {
        Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    };
    Ok(links.filter_map(inode).collect())
}

/// The local port in a line of the table, if the socket listens and is one of `mine`.
fn listening(line: &str, mine: &HashSet<String>) -> Option<u16> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
    if *state != "0A" || !mine.contains(*inode) {
        return None;
    }
    u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
}

/// How many listeners are made until there is one place in the handle that may be the port's.
const MAX_LISTENERS: usize = 8;

/// Where a listener's handle leads to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandlePort {
    /// The port.
    pub(crate) port: u16,
    /// Where in the handle it is, as two bytes.
    place: usize,
    big_endian: bool,
}

impl HandlePort {
    /// The places where it may be: the port is in the handle, and this process listens on it, if it
    /// can be only since `before` was read. There are several if other bytes of the handle, which
    /// may be random, are by chance the same.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if there is none: the transport does not listen on TCP, or hides the
    /// port.
    fn find(handle: &Handle, before: &HashSet<u16>) -> Result<Vec<Self>> {
        let now = ports()?;
        // A transport may have one port for all of its listeners.
        let (old, new): (Vec<u16>, Vec<u16>) =
            now.into_iter().partition(|port| before.contains(port));
        let found = [new, old]
            .iter()
            .map(|ports| Self::all_of(handle, ports))
            .find(|found| !found.is_empty());
        found.ok_or_else(|| {
            Error::Unreadable("the port that the listener waits on is not in its handle".into())
        })
    }

    /// All places of one of the ports in the handle. Those in network order if there are such, as a
    /// socket's address has it: the bytes of one port may be those of another in the other order.
    fn all_of(handle: &Handle, ports: &[u16]) -> Vec<Self> {
        let of_order = |big_endian: bool| -> Vec<Self> {
            let bytes =
                |port: u16| if big_endian { port.to_be_bytes() } else { port.to_le_bytes() };
            let places = handle.0.windows(2).enumerate();
            let found = places.flat_map(|(place, pair)| {
                ports.iter().filter(move |port| pair == bytes(**port)).map(move |port| Self {
                    port: *port,
                    place,
                    big_endian,
                })
            });
            found.collect()
        };
        let found = of_order(true);
        if found.is_empty() { of_order(false) } else { found }
    }

    /// The handle, leading to another port.
    pub(crate) fn with_port(self, handle: &Handle, port: u16) -> Handle {
        let bytes = if self.big_endian { port.to_be_bytes() } else { port.to_le_bytes() };
        let mut other = *handle;
        other.0[self.place..self.place + 2].copy_from_slice(&bytes);
        other
    }

    /// The port's two bytes are the same, so that nothing tells in which order the handle has them.
    fn is_of_any_order(self) -> bool {
        self.port.swap_bytes() == self.port
    }

    /// A port of this host that takes clients, to be put in the place of this one.
    ///
    /// # Errors
    /// [`Error::Io`] if there is none.
    pub(crate) fn listen_instead(self) -> Result<(TcpListener, u16)> {
        if !self.is_of_any_order() {
            return listen_on_loopback(&[0]);
        }
        // The other one has to be the same in both orders, too.
        let alike: Vec<u16> = (0x80..=0xff).map(|byte: u8| u16::from_be_bytes([byte; 2])).collect();
        listen_on_loopback(&alike)
    }

    /// A TCP connection to the listener, without the transport.
    ///
    /// # Errors
    /// [`Error::Io`] if the port does not listen.
    pub(crate) fn connect_to_port(self) -> Result<TcpStream> {
        connect_to_port(self.port)
    }
}

/// A listener on `device`, its handle, and the port in the handle.
///
/// # Errors
/// The transport does not listen, or [`Error::Unreadable`].
pub(crate) fn listen(
    transport: &Transport,
    device: usize,
) -> Result<(Handle, Listener, HandlePort)> {
    let mut attempts = 1;
    loop {
        let before = ports()?;
        let (handle, listener) = transport.listen(device)?;
        let found = HandlePort::find(&handle, &before)?;
        match found[..] {
            // Random bytes of a handle are others in the next one; so is the port, if each listener
            // has its own.
            [first, ref more @ ..]
                if (!more.is_empty() || first.is_of_any_order()) && attempts < MAX_LISTENERS =>
            {
                attempts += 1;
            }
            _ => return Ok((handle, listener, found[0])),
        }
        listener.close()?;
    }
}

/// A connection to `port` of this host, where nothing waits for long.
pub(crate) fn connect_to_port(port: u16) -> Result<TcpStream> {
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let stream =
        TcpStream::connect(to).map_err(|e| Error::io(format!("cannot connect to {to}"), e))?;
    timeout_s(&stream)?;
    Ok(stream)
}

fn timeout_s(stream: &TcpStream) -> Result<()> {
    stream
        .set_read_timeout(Some(Duration::from_millis(2)))
        .map_err(|e| Error::io("cannot set a timeout", e))
}

/// The first of these ports of this host that is free; 0 is any.
fn listen_on_loopback(ports: &[u16]) -> Result<(TcpListener, u16)> {
    let failed = |e| Error::io("cannot listen on 127.0.0.1", e);
    let addresses: Vec<SocketAddr> =
        ports.iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, *port))).collect();
    let socket = TcpListener::bind(&addresses[..]).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    let port = socket.local_addr().map_err(failed)?.port();
    Ok((socket, port))
}

/// The next client, if there is one.
pub(crate) fn accept_one(socket: &TcpListener) -> Option<TcpStream> {
    let (stream, _) = socket.accept().ok()?;
    stream.set_nonblocking(false).ok()?;
    timeout_s(&stream).ok()?;
    Some(stream)
}

/// What has come so far; `None` when the other end has closed.
pub(crate) fn read_available(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = [0; 8192];
    match stream.read(&mut bytes) {
        Ok(0) => None,
        Ok(count) => Some(bytes[..count].to_vec()),
        Err(problem)
            if matches!(
                problem.kind(),
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
            ) =>
        {
            Some(Vec::new())
        }
        Err(_) => None,
    }
}

/// Passes bytes on between a caller and a listener, and inverts one byte of the caller's.
#[derive(Debug)]
pub(crate) struct Relay {
    client: TcpStream,
    listener: TcpStream,
    /// Which of the caller's bytes is to be wrong.
    wrong: Option<usize>,
    passed: usize,
}

impl Relay {
    pub(crate) fn new(client: TcpStream, port: u16, wrong: Option<usize>) -> Result<Self> {
        Ok(Self { client, listener: connect_to_port(port)?, wrong, passed: 0 })
    }

    /// Passes on what there is; false when one of the two has gone.
    pub(crate) fn pass(&mut self) -> bool {
        let Some(mut forth) = read_available(&mut self.client) else {
            return false;
        };
        if let Some(byte) =
            self.wrong.and_then(|at| at.checked_sub(self.passed)).and_then(|at| forth.get_mut(at))
        {
            *byte ^= 0xff;
        }
        self.passed += forth.len();
        let Some(back) = read_available(&mut self.listener) else {
            return false;
        };
        self.listener.write_all(&forth).is_ok() && self.client.write_all(&back).is_ok()
    }

    /// Ends both connections as a network does that loses them: each side sees a reset.
    pub(crate) fn reset(self) {
        for stream in [&self.client, &self.listener] {
            let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
            let size = size_of::<libc::linger>() as libc::socklen_t;
            // SAFETY: an open socket, and a structure of the size that is told.
            unsafe {
                libc::setsockopt(
                    stream.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_LINGER,
                    (&raw const at_once).cast(),
                    size,
                )
            };
        }
    }

    /// How many bytes the client has said.
    pub(crate) fn passed(&self) -> usize {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_of_this_process_is_known() {
        let before = ports().expect("readable");
        let (_socket, port) = listen_on_loopback(&[0]).expect("a port");
        assert!(!before.contains(&port) && ports().expect("readable").contains(&port));
    }

    /// With port numbers of no socket, so that other sockets of this process do not matter.
    #[test]
    fn a_listener_is_found_and_diverted() {
        let mut handle = Handle([0xee; _]);
        handle.0[30..32].copy_from_slice(&[0x12, 0x43]);
        for ports in [&[0x1243][..], &[0x4312, 0x1243], &[9, 0x1243, 0x4312]] {
            let found = HandlePort::all_of(&handle, ports);
            assert_eq!(
                found.iter().map(|found| found.port).collect::<Vec<_>>(),
                [0x1243],
                "{ports:?}"
            );
            assert_eq!(found[0].with_port(&handle, 0x5678).0[29..33], [0xee, 0x56, 0x78, 0xee]);
        }
        let in_this_machines_order = HandlePort::all_of(&handle, &[0x4312]);
        assert_eq!(
            in_this_machines_order[0].with_port(&handle, 0x5678).0[29..33],
            [0xee, 0x78, 0x56, 0xee]
        );
        assert!(HandlePort::all_of(&handle, &[7, 0x1234]).is_empty());
    }

    #[test]
    fn a_port_of_two_like_bytes_is_replaced_by_another_one_of_these() {
        for (port, alike) in [(0x8989, true), (0x8998, false)] {
            let (_socket, other) = HandlePort { port, place: 0, big_endian: true }
                .listen_instead()
                .expect("one of 128 is free");
            assert!(!alike || other.swap_bytes() == other, "{other:#x} instead of {port:#x}");
        }
    }

    #[test]
    fn all_places_are_found_that_may_be_the_port() {
        let mut handle = Handle([0xee; _]);
        for place in [4, 30] {
            handle.0[place..place + 2].copy_from_slice(&[0x12, 0x43]);
        }
        let places: Vec<usize> =
            HandlePort::all_of(&handle, &[0x1243]).iter().map(|found| found.place).collect();
        assert_eq!(places, [4, 30]);
    }
}
