//! What is known of the peer of one connection: its name, whether it still lives, and the control connection to it.

use super::socket::{ControlSocket, Incoming};
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Both sides are there.
const OPEN: u8 = 0;
/// The peer has closed, as one does when all is done. What is under way may still be acknowledged by its device.
const CLOSED: u8 = 1;
/// The peer has died or given up, or the device is lost. Nothing will come of what is under way.
const BROKEN: u8 = 2;

/// The control side of a connection. The watcher listens to it; the data path looks at one number.
#[derive(Debug)]
pub struct Link {
    peer: String,
    token: Token,
    state: AtomicU8,
    control: Mutex<Control>,
}

#[derive(Debug)]
struct Control {
    socket: ControlSocket,
    /// Why the connection cannot go on; empty while it can.
    reason: String,
    said_goodbye: bool,
}

impl Link {
    /// A link to the peer called `peer`.
    pub fn new(peer: String, token: Token, socket: ControlSocket) -> Self {
        let control = Control { socket, reason: String::new(), said_goodbye: false };
        Self { peer, token, state: AtomicU8::new(OPEN), control: Mutex::new(control) }
    }

    /// The peer's device, host and process, and its address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether the peer has closed, died or given up, or the device is lost: nothing new will come of it.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.state() != OPEN
    }

    /// Whether there is no hope for what is under way either.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.state() == BROKEN
    }

    #[inline]
    fn state(&self) -> u8 {
        // Acquire pairs with the Release in `end`: the reason is there.
        self.state.load(Ordering::Acquire)
    }

    /// Why; empty while all is well.
    pub fn reason(&self) -> String {
        self.lock().reason.clone()
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.lock().socket.fd()
    }

    /// Ends the connection from this side for `reason`, which the peer is told as well.
    pub fn fail(&self, reason: &str) {
        let mut control = self.lock();
        control.goodbye(self.token, reason);
        self.end(&mut control, BROKEN, reason);
    }

    /// The descriptor is readable; whether it is worth waiting for more.
    pub fn handle_readable(&self) -> bool {
        let mut control = self.lock();
        // Every card of a device has a watcher, and one of them was first.
        if !control.reason.is_empty() {
            return false;
        }
        let (state, reason) = match control.socket.poll_frame() {
            Ok(Incoming::Nothing) => return true,
            Ok(Incoming::Frame(f)) if f.kind == Kind::Goodbye && f.token == self.token => match f.body_text() {
                text if text.is_empty() => (CLOSED, "the peer has closed the connection".into()),
                text => (BROKEN, format!("the peer gave up: {text}")),
            },
            Ok(Incoming::Frame(f)) => (BROKEN, format!("the peer sent an unexpected {:?}", f.kind)),
            // The data goes another way: as long as that holds, nobody is harmed.
            Ok(Incoming::Lost(why)) => {
                log::warn!("the control connection to {} is lost ({why}); data goes on over RDMA", self.peer);
                (OPEN, format!("the control connection was lost before ({why})"))
            }
            Ok(Incoming::Closed) => (BROKEN, "the peer's process has died".into()),
            Err(violation) => (BROKEN, violation.to_string()),
        };
        self.end(&mut control, state, &reason);
        false
    }

    fn end(&self, control: &mut Control, state: u8, reason: &str) {
        if control.reason.is_empty() {
            reason.clone_into(&mut control.reason);
        }
        self.state.fetch_max(state, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Control {
    fn goodbye(&mut self, token: Token, reason: &str) {
        if !self.said_goodbye {
            self.said_goodbye = true;
            self.socket.send(&Frame::text(Kind::Goodbye, token, reason));
            // Best effort: if the socket takes no more, its closing says the rest.
            let _ = self.socket.poll_sent();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let token = self.token;
        let mut control = self.lock();
        control.goodbye(token, "");
        control.socket.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    fn pair() -> (Link, Link) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
        let (far, _) = listener.accept().expect("a caller");
        let link = |stream: TcpStream| {
            stream.set_nonblocking(true).expect("non-blocking");
            let peer = stream.peer_addr().expect("an address");
            Link::new("peer".into(), [7; 16], ControlSocket::accepted(stream, peer).expect("a socket"))
        };
        (link(near), link(far))
    }

    /// Where there are several watchers, the second one finds the end of the connection behind the goodbye: that is no death.
    #[test]
    fn a_goodbye_is_the_last_word() {
        let (near, far) = pair();
        drop(far);
        while near.handle_readable() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(near.is_gone() && !near.is_broken());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!near.handle_readable() && !near.is_broken(), "{}", near.reason());
    }
}
