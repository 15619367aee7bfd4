//! The two ends of one connection as NCCL's threads use them: what the plugin's `net` does,
//! without queue pairs.

use super::frame_order::FrameOrder;
use crate::control::event::{PeerChange, Received};
use crate::control::plane::ControlPlane;
use crate::control::{StreamId, Time};
use crate::frame::{Frame, Kind};
use crate::handle::{Secret, Token};
use std::net::SocketAddr;

/// What an established end knows of its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    Open,
    Lost,
    Closed,
    Broken,
}

/// An established end.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) stream: StreamId,
    pub(super) secret: Secret,
    pub(super) known: Known,
    /// Since when its control connection is lost, and when it was told that the peer is gone.
    pub(super) lost_at: Option<Time>,
    pub(super) reported_at: Option<Time>,
    /// Whether it asks the peer's device for signs of life.
    pub(super) is_in_doubt: bool,
    pub(super) order: FrameOrder,
}

impl Established {
    fn new(stream: StreamId, secret: Secret) -> Self {
        Self {
            stream,
            secret,
            known: Known::Open,
            lost_at: None,
            reported_at: None,
            is_in_doubt: false,
            order: FrameOrder::default(),
        }
    }

    pub(super) fn handle_change(&mut self, now: Time, change: &PeerChange) {
        match change {
            PeerChange::Lost(_) => self.lost_at = Some(now),
            PeerChange::Back => (self.lost_at, self.is_in_doubt) = (None, false),
            PeerChange::Doubted => self.is_in_doubt = true,
            PeerChange::Closed(_) | PeerChange::Unknown(_) | PeerChange::Broken(_) => {
                self.reported_at.get_or_insert(now);
            }
            PeerChange::Frame(_) | PeerChange::Inquiry(_) => {}
        }
        self.order.handle_change(self.secret, change);
        self.known = match (change, self.known) {
            (_, Known::Broken) => Known::Broken,
            (PeerChange::Broken(_), _) => Known::Broken,
            (_, Known::Closed) | (PeerChange::Closed(_) | PeerChange::Unknown(_), _) => {
                Known::Closed
            }
            (PeerChange::Lost(_), _) => Known::Lost,
            (PeerChange::Back, _) => Known::Open,
            (PeerChange::Frame(_) | PeerChange::Inquiry(_) | PeerChange::Doubted, known) => known,
        };
    }
}

/// The dialling end.
#[derive(Debug)]
pub(super) enum Connector {
    Idle,
    Dialling(StreamId, Secret),
    Greeted(StreamId, Secret),
    Done(Established),
    Closed,
}

/// A frame whose body tells whose it is.
fn body(token: Token, secret: Secret) -> Vec<u8> {
    [token, secret].concat()
}

fn is_own(frame: &Frame, secret: Secret) {
    let of: &[u8] = match frame.kind {
        Kind::Hello => &frame.body[16..32],
        Kind::Reply => &frame.body,
        _ => &frame.secret,
    };
    assert_eq!(of, secret, "a stream hears a frame of another one: {frame:?}");
}

impl Connector {
    /// Goes on. `secret` is for a new attempt.
    pub(super) fn advance(
        &mut self,
        plane: &mut ControlPlane,
        now: Time,
        to: SocketAddr,
        token: Token,
        secret: Secret,
    ) {
        match *self {
            Self::Idle => *self = Self::Dialling(plane.open(now, to, token, secret), secret),
            Self::Dialling(stream, secret) => match plane.poll_connected(stream) {
                Ok(false) => {}
                Ok(true) => {
                    plane.send(stream, Kind::Hello, body(token, secret));
                    *self = Self::Greeted(stream, secret);
                }
                Err(_) => self.begin_anew(plane, now, stream),
            },
            Self::Greeted(stream, secret) => match plane.poll_received(stream) {
                Received::Nothing => {}
                Received::Frame(frame) if frame.kind == Kind::Reply => {
                    is_own(&frame, secret);
                    plane.send(stream, Kind::Commit, Vec::new());
                    plane.establish(now, stream, true);
                    *self = Self::Done(Established::new(stream, secret));
                }
                // Wrong or refused: the port is another program's.
                Received::Frame(_) | Received::End(_) => self.begin_anew(plane, now, stream),
            },
            Self::Done(_) | Self::Closed => {}
        }
    }

    fn begin_anew(&mut self, plane: &mut ControlPlane, now: Time, stream: StreamId) {
        plane.close(now, stream);
        *self = Self::Idle;
    }

    /// NCCL gives up what is not done, and asks for it again later.
    pub(super) fn abandon(&mut self, plane: &mut ControlPlane, now: Time) {
        if let Self::Dialling(stream, _) | Self::Greeted(stream, _) = *self {
            self.begin_anew(plane, now, stream);
        }
    }

    pub(super) fn established(&mut self) -> Option<&mut Established> {
        if let Self::Done(done) = self { Some(done) } else { None }
    }
}

/// The listening end.
#[derive(Debug, Default)]
pub(super) struct Acceptor {
    /// Whether it has replied, and with which secret.
    candidates: Vec<(StreamId, Option<Secret>)>,
    pub(super) done: Option<Established>,
    pub(super) is_closed: bool,
}

impl Acceptor {
    pub(super) fn advance(&mut self, plane: &mut ControlPlane, now: Time, token: Token) {
        if self.done.is_some() || self.is_closed {
            return;
        }
        while let Some((stream, _)) = plane.fetch(&token) {
            self.candidates.push((stream, None));
        }
        let mut i = 0;
        while i < self.candidates.len() {
            let (stream, secret) = self.candidates[i];
            let is_over = match plane.poll_received(stream) {
                Received::Nothing => false,
                Received::Frame(frame) if frame.kind == Kind::Hello => {
                    // What somebody says who is not the peer has another length.
                    let is_peers = frame.body.len() == 32;
                    if is_peers {
                        is_own(&frame, frame.secret);
                    }
                    if !is_peers || plane.is_over(stream) {
                        true
                    } else {
                        plane.send(stream, Kind::Reply, frame.secret.to_vec());
                        self.candidates[i].1 = Some(frame.secret);
                        false
                    }
                }
                Received::Frame(frame) if frame.kind == Kind::Commit => {
                    let secret = secret.expect("a commit comes after the reply");
                    is_own(&frame, secret);
                    plane.establish(now, stream, true);
                    self.candidates.remove(i);
                    self.done = Some(Established::new(stream, secret));
                    break;
                }
                Received::Frame(_) | Received::End(_) => true,
            };
            match is_over {
                true => plane.close(now, self.candidates.remove(i).0),
                false => i += 1,
            }
        }
    }

    /// The listener is closed, and with it all that it had not accepted.
    pub(super) fn close_candidates(&mut self, plane: &mut ControlPlane, now: Time) {
        for (stream, _) in self.candidates.drain(..) {
            plane.close(now, stream);
        }
    }

    /// What a watcher does for a listener that nobody asks.
    pub(super) fn sweep(&mut self, plane: &mut ControlPlane, now: Time) {
        self.candidates.retain(|(stream, _)| {
            let is_over = plane.is_over(*stream);
            if is_over {
                plane.close(now, *stream);
            }
            !is_over
        });
    }
}

/// A connection from process `dialler` to the other one, and who has closed it.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) dialler: usize,
    pub(super) token: Token,
    pub(super) connector: Connector,
    pub(super) acceptor: Acceptor,
    pub(super) has_closed: [bool; 2],
}

impl Pair {
    /// The established end of `process`.
    pub(super) fn end(&mut self, process: usize) -> Option<&mut Established> {
        if self.dialler == process {
            self.connector.established()
        } else {
            self.acceptor.done.as_mut()
        }
    }
}
