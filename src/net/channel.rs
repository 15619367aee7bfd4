//! One connection's share of a [`Line`].

use super::line::{End, Line, News, tell};
use super::link::Link;
use crate::error::{Error, Result};
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::net::SocketAddr;
use std::sync::Arc;

/// The way to the peer of one connection. When it is dropped, the peer is told.
#[derive(Debug)]
pub struct Channel {
    line: Arc<Line>,
    token: Token,
    id: u64,
}

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A frame.
    Frame(Frame),
    /// Nothing yet.
    Nothing,
    /// The line has ended; no more will come.
    End(End),
}

impl Channel {
    pub(super) fn new(line: Arc<Line>, token: Token, id: u64) -> Self {
        Self { line, token, id }
    }

    /// The line it is on.
    pub fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// The other end's address.
    pub fn peer(&self) -> SocketAddr {
        self.line.peer()
    }

    /// Whether the line is there.
    ///
    /// # Errors
    /// The attempt to connect failed with this errno; `Ok(false)` while it is under way.
    pub fn poll_connected(&self) -> std::result::Result<bool, i32> {
        self.line.poll_connected()
    }

    /// Puts a frame in line. After a refusal the peer expects no other.
    pub fn send(&self, kind: Kind, body: Vec<u8>) {
        if self.line.is_inherited() {
            return;
        }
        let mut wire = self.line.lock();
        if wire.end.is_some() {
            return;
        }
        if let Some(route) = wire.routes.get_mut(&self.id) {
            route.spoken = kind != Kind::Refuse;
        }
        wire.socket.send(&Frame { kind, token: self.token, body });
        wire.flush();
    }

    /// Hands over what is in line; whether all of it has gone.
    ///
    /// # Errors
    /// The line has ended.
    pub fn poll_sent(&self) -> Result<bool> {
        let broken = || Error::remote(format!("the connection to {} broke", self.peer()));
        if self.line.is_inherited() {
            return Err(broken());
        }
        let mut news = Vec::new();
        let mut wire = self.line.lock();
        let sent = wire.flush();
        if !sent {
            self.line.read_into(&mut wire, &mut news);
        }
        let has_ended = wire.end.is_some();
        drop(wire);
        tell(news);
        match has_ended && !sent {
            true => Err(broken()),
            false => Ok(sent),
        }
    }

    /// The next frame.
    pub fn poll_frame(&self) -> Heard {
        let mut news = Vec::new();
        let mut wire = self.line.lock();
        let mut next = wire.routes.get_mut(&self.id).and_then(|route| route.inbox.pop_front());
        if next.is_none() && !self.line.is_inherited() {
            self.line.read_into(&mut wire, &mut news);
            next = wire.routes.get_mut(&self.id).and_then(|route| route.inbox.pop_front());
        }
        let end = wire.end.clone();
        drop(wire);
        tell(news);
        match (next, end) {
            (Some(frame), _) => Heard::Frame(frame),
            (None, Some(end)) => Heard::End(end),
            (None, None) => Heard::Nothing,
        }
    }

    /// From now on `link` is told what comes. What has come before is told now.
    pub(super) fn attach(&self, link: &Arc<Link>) {
        let mut news = Vec::new();
        let mut wire = self.line.lock();
        let end = wire.end.clone();
        let Some(route) = wire.routes.get_mut(&self.id) else { return };
        match (route.inbox.pop_front(), end) {
            (Some(frame), _) => {
                wire.close(self.token, self.id);
                news.push(News::Frame(Arc::clone(link), frame));
            }
            (None, Some(end)) => news.push(News::End(Arc::clone(link), end)),
            (None, None) => route.link = Some(Arc::downgrade(link)),
        }
        drop(wire);
        tell(news);
    }

    /// Tells the peer, unless it was first, that this side ends, and why. Nothing more is heard after that.
    pub fn goodbye(&self, reason: &str) {
        if self.line.is_inherited() {
            return;
        }
        let mut wire = self.line.lock();
        let spoken = wire.routes.get(&self.id).is_some_and(|route| route.spoken);
        // Best effort: if the socket takes no more, its closing says the rest.
        if wire.close(self.token, self.id) && spoken {
            wire.socket.send(&Frame::text(Kind::Goodbye, self.token, reason));
            wire.flush();
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.goodbye("");
        if !self.line.is_inherited() {
            let route = self.line.lock().routes.remove(&self.id);
            drop(route);
        }
    }
}
