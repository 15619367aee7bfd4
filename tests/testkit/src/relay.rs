//! A TCP relay: passes the bytes of connections on, and can end them.

use crate::port::OwnPort;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

/// Listens at a port of its own and passes on what clients and the listener behind it say, whenever
/// [`Relay::forward`] is called.
#[derive(Debug)]
pub struct Relay {
    /// `None`: its port refuses.
    listener: Option<TcpListener>,
    port: OwnPort,
    /// Clients whose way on has ended, and who do not know.
    pub cut_off: Vec<TcpStream>,
    to: SocketAddr,
    /// From each client to the relay, and from there to the listener behind it.
    connections: Vec<(TcpStream, TcpStream)>,
    /// How many clients it has connected so far.
    pub clients: usize,
    /// How many further clients it will hang up on, without a word.
    pub turned_away: usize,
    /// How many times it has passed something on.
    pub passed: usize,
}

impl Relay {
    /// A relay to the listener at `to`.
    #[must_use]
    pub fn new(to: SocketAddr) -> Self {
        let mut relay = Self {
            listener: None,
            port: OwnPort::new(),
            cut_off: Vec::new(),
            to,
            connections: Vec::new(),
            clients: 0,
            turned_away: 0,
            passed: 0,
        };
        relay.listen_again();
        relay
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// From now on its port refuses.
    pub fn refuse(&mut self) {
        self.listener = None;
    }

    /// It listens again where it did.
    pub fn listen_again(&mut self) {
        let listener = self.port.listen();
        listener.set_nonblocking(true).expect("a socket can be made non-blocking");
        self.listener = Some(listener);
    }

    /// Accepts one client, if there is one, and passes on what there is; does not block.
    pub fn forward(&mut self) {
        if let Some(Ok((near, _))) = self.listener.as_ref().map(TcpListener::accept) {
            if self.turned_away > 0 {
                self.turned_away -= 1;
                return;
            }
            let far = TcpStream::connect(self.to).expect("somebody listens behind the relay");
            for stream in [&near, &far] {
                stream.set_nonblocking(true).expect("a socket can be made non-blocking");
            }
            self.connections.push((near, far));
            self.clients += 1;
        }
        let passed = &mut self.passed;
        self.connections
            .retain_mut(|(near, far)| copy(near, far, passed) && copy(far, near, passed));
    }

    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Whether all that clients have sent was read: the kernel has taken what was passed on.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let is_read = |near: &TcpStream| {
            near.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        self.connections.iter().all(|(near, _)| is_read(near))
    }

    /// Closes all connections.
    pub fn close(&mut self) {
        self.connections.clear();
    }

    /// Closes them to the listener behind it; the clients are not told.
    pub fn close_far(&mut self) {
        self.cut_off.extend(self.connections.drain(..).map(|(near, _)| near));
    }

    /// Resets them to the listener behind it; the clients are not told.
    pub fn reset_far(&mut self) {
        self.connections.iter().for_each(|(_, far)| reset_on_close(far));
        self.close_far();
    }

    /// Resets all connections, as a network does that comes back when one end has given up.
    pub fn reset(&mut self) {
        for (near, far) in self.connections.drain(..) {
            reset_on_close(&near);
            reset_on_close(&far);
        }
    }
}

/// Has the kernel send a reset when the socket is closed.
fn reset_on_close(stream: &TcpStream) {
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    let (value, size) = ((&raw const at_once).cast(), size_of_val(&at_once) as libc::socklen_t);
    // SAFETY: an open socket and a value of the given size.
    let rc = unsafe {
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size)
    };
    assert_eq!(rc, 0);
}

/// Passes on what there is, and counts it; false if the connection has ended.
fn copy(from: &mut TcpStream, to: &mut TcpStream, passed: &mut usize) -> bool {
    let mut bytes = [0; 4096];
    match from.read(&mut bytes) {
        Ok(0) => false,
        Ok(count) => {
            *passed += 1;
            to.write_all(&bytes[..count]).is_ok()
        }
        Err(e) => e.kind() == ErrorKind::WouldBlock,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port;
    use crate::wait::wait_until;

    /// A connection through a relay: the relay, the caller's end and the listener's.
    fn connected() -> (Relay, TcpStream, TcpStream) {
        let listener = port::listener();
        let mut relay = Relay::new(listener.local_addr().expect("it is bound"));
        let client = TcpStream::connect(relay.address()).expect("the relay listens");
        let (far, _) = wait_until("the relay's call", || {
            relay.forward();
            listener.accept().ok()
        });
        for stream in [&client, &far] {
            stream.set_nonblocking(true).expect("a socket can be made non-blocking");
        }
        (relay, client, far)
    }

    /// What the next attempt to read ends with, other than that there is nothing yet.
    fn read(relay: &mut Relay, stream: &mut TcpStream) -> Result<Vec<u8>, ErrorKind> {
        wait_until("bytes or an end", || {
            relay.forward();
            let mut bytes = [0; 16];
            match stream.read(&mut bytes) {
                Ok(count) => Some(Ok(bytes[..count].to_vec())),
                Err(error) => {
                    Some(Err(error.kind())).filter(|kind| *kind != Err(ErrorKind::WouldBlock))
                }
            }
        })
    }

    #[test]
    fn a_closed_connection_ends_and_a_reset_one_is_reset() {
        let (mut relay, mut client, mut far) = connected();
        relay.close();
        assert_eq!(read(&mut relay, &mut client), Ok(Vec::new()));
        assert_eq!(read(&mut relay, &mut far), Ok(Vec::new()));
        let (mut relay, mut client, mut far) = connected();
        relay.reset();
        assert_eq!(read(&mut relay, &mut client), Err(ErrorKind::ConnectionReset));
        assert_eq!(read(&mut relay, &mut far), Err(ErrorKind::ConnectionReset));
    }

    #[test]
    fn one_end_of_a_connection_may_be_closed_or_reset_and_the_other_one_stands() {
        for (end, expected) in [
            (Relay::close_far as fn(&mut Relay), Ok(Vec::new())),
            (Relay::reset_far, Err(ErrorKind::ConnectionReset)),
        ] {
            let (mut relay, mut client, mut far) = connected();
            end(&mut relay);
            assert_eq!(read(&mut relay, &mut far), expected);
            assert_eq!(client.read(&mut [0]).expect_err("nothing").kind(), ErrorKind::WouldBlock);
        }
    }
}
