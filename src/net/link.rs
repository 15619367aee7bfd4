//! What is known of the peer of one connection: its name, whether it still lives, and the control connection to it.

use super::socket::{ControlSocket, Incoming};
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The control side of a connection. The watcher listens to it; the data path looks at one flag.
#[derive(Debug)]
pub struct Link {
    peer: String,
    token: Token,
    gone: AtomicBool,
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
        Self { peer, token, gone: AtomicBool::new(false), control: Mutex::new(control) }
    }

    /// The peer's device, host and process, and its address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Whether the peer has closed, died or given up, or the device is lost.
    #[inline]
    pub fn is_gone(&self) -> bool {
        // Acquire pairs with the Release in `end`: the reason is there.
        self.gone.load(Ordering::Acquire)
    }

    /// Why.
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
        self.end(&mut control, reason);
    }

    /// The descriptor is readable; whether it is worth waiting for more.
    pub fn handle_readable(&self) -> bool {
        let mut control = self.lock();
        let reason = match control.socket.poll_frame() {
            Ok(Incoming::Nothing) => return true,
            Ok(Incoming::Frame(f)) if f.kind == Kind::Goodbye && f.token == self.token => match f.body_text() {
                text if text.is_empty() => "the peer has closed the connection".into(),
                text => format!("the peer gave up: {text}"),
            },
            Ok(Incoming::Frame(f)) => format!("the peer sent an unexpected {:?}", f.kind),
            Ok(Incoming::Closed) => "the peer's process has died, or the network to its host is down".into(),
            Err(violation) => violation.0,
        };
        self.end(&mut control, &reason);
        false
    }

    fn end(&self, control: &mut Control, reason: &str) {
        if control.reason.is_empty() {
            reason.clone_into(&mut control.reason);
        }
        self.gone.store(true, Ordering::Release);
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
        self.lock().goodbye(token, "");
    }
}
