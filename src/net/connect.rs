//! The connecting side of a connection's set-up.
//!
//! ```text
//! Dialing ──► Greeting ──► Awaiting ──► Joining ──► Committing ──► SendComm
//!    ▲ refused: again, until the deadline
//! ```

use super::joining::Joining;
use super::lanes::{IdleLanes, Lanes};
use super::link::Link;
use super::nic::Nic;
use super::sender::{SENDER_DEPTHS, SendComm, SlotRing};
use super::socket::{ControlSocket, Incoming};
use crate::error::{Error, Result};
use crate::proto::RING_SLOTS;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Handle;
use crate::proto::handshake::{Hello, Reply, Ring};
use crate::proto::shares::Shares;
use crate::proto::wire::{Slot, slot_halves};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection on its way. Every call of [`Self::advance`] does what can be done without waiting.
#[derive(Debug)]
pub struct Connector {
    nic: Arc<Nic>,
    handle: Handle,
    deadline: Instant,
    /// Whether a listener has taken a connection and closed it without a word: it may have had too many callers.
    turned_away: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The TCP connection is being made; after a refusal, again at the given time.
    Dialing(Dial),
    /// Connected; the hello is going out.
    Greeting(Box<Offer>),
    /// The hello is out; the peer's reply is due.
    Awaiting(Box<Offer>),
    /// The reply is there; the queue pairs are being connected.
    Joining(Box<Pending>),
    /// The queue pairs are connected; the commit is going out.
    Committing(Box<Agreed>),
    /// Over, one way or the other.
    Done,
}

#[derive(Debug)]
enum Dial {
    Again(Instant),
    Trying(ControlSocket),
}

/// What has been put on the table.
#[derive(Debug)]
struct Offer {
    socket: ControlSocket,
    lanes: IdleLanes,
    ring: SlotRing,
}

/// What is agreed, and on its way.
#[derive(Debug)]
struct Pending {
    socket: ControlSocket,
    joining: Joining,
    ring: SlotRing,
    reply: Reply,
}

/// All that makes a communicator but the last word.
#[derive(Debug)]
struct Agreed {
    socket: ControlSocket,
    lanes: Lanes,
    shares: Shares,
    ring: SlotRing,
    reply: Reply,
}

const REDIAL_AFTER: Duration = Duration::from_millis(20);

impl Connector {
    /// Begins to connect `nic` to the listener behind `handle`.
    pub fn new(nic: Arc<Nic>, handle: Handle) -> Self {
        let deadline = Instant::now() + Duration::from_secs(nic.config.handshake_timeout_s);
        Self { nic, handle, deadline, turned_away: false, stage: Stage::Dialing(Dial::Again(Instant::now())) }
    }

    /// Whether nobody can be waiting for it any more.
    pub fn is_abandoned(&self, now: Instant) -> bool {
        now > self.deadline + Duration::from_secs(self.nic.config.handshake_timeout_s)
    }

    /// Whether it leads to the listener behind `handle`.
    pub fn leads_to(&self, handle: &Handle) -> bool {
        self.handle == *handle
    }

    /// Does what can be done now; the communicator, once there is one.
    ///
    /// # Errors
    /// The peer refuses, has died or does not answer in time; or the device has no more queues.
    pub fn advance(&mut self) -> Result<Option<SendComm>> {
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Done);
            let (stage, progress) = match stage {
                Stage::Dialing(dial) => self.dial(dial)?,
                Stage::Greeting(offer) => greet(offer)?,
                Stage::Awaiting(offer) => self.await_reply(offer)?,
                Stage::Joining(pending) => self.join(pending)?,
                Stage::Committing(mut agreed) => {
                    if agreed.socket.poll_sent()? {
                        return self.complete(*agreed).map(Some);
                    }
                    (Stage::Committing(agreed), false)
                }
                Stage::Done => return Err(Error::internal("connect was called after it had failed")),
            };
            if !progress {
                self.check_deadline(&stage)?;
                self.stage = stage;
                return Ok(None);
            }
            self.stage = stage;
        }
    }

    fn check_deadline(&self, stage: &Stage) -> Result<()> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        let waiting = match stage {
            Stage::Dialing(_) => "no TCP connection came about (is the peer's process alive, and its port reachable?)",
            Stage::Greeting(_) | Stage::Awaiting(_) => "the listener took the connection but did not answer",
            Stage::Joining(_) => "the queue pairs could not be connected",
            Stage::Committing(_) | Stage::Done => "the listener stopped reading",
        };
        let seconds = self.nic.config.handshake_timeout_s;
        let to = self.handle.address;
        Err(Error::remote(format!("connecting to {to}: {waiting} within FERRITE_HANDSHAKE_TIMEOUT={seconds} s")))
    }

    fn dial(&mut self, dial: Dial) -> Result<(Stage, bool)> {
        match dial {
            Dial::Again(when) if Instant::now() < when => Ok((Stage::Dialing(Dial::Again(when)), false)),
            Dial::Again(_) => Ok((Stage::Dialing(Dial::Trying(ControlSocket::dial(self.handle.address)?)), true)),
            Dial::Trying(mut socket) => match socket.poll_connected() {
                Ok(false) => Ok((Stage::Dialing(Dial::Trying(socket)), false)),
                Ok(true) => Ok((Stage::Greeting(Box::new(self.offer(socket)?)), true)),
                Err(libc::ECONNREFUSED) if self.turned_away => Err(self.abandoned()),
                Err(libc::ECONNREFUSED | libc::ETIMEDOUT | libc::ECONNRESET | libc::EAGAIN) => {
                    Ok((Stage::Dialing(Dial::Again(Instant::now() + REDIAL_AFTER)), false))
                }
                Err(e) => Err(Error::os(format_args!("connecting to {}", self.handle.address), e)),
            },
        }
    }

    fn offer(&self, mut socket: ControlSocket) -> Result<Offer> {
        let nic = &self.nic;
        let mut lanes = IdleLanes::new(nic, nic.config.lanes.into(), SENDER_DEPTHS, None)?;
        if nic.config.ece {
            lanes.offer_ece();
        }
        let halves = slot_halves(nic.rails.len());
        let ring = SlotRing::new(nic.cards.iter().map(|card| &card.domain), halves)?;
        let place = Ring {
            addr: ring.addr(),
            rkeys: std::array::from_fn(|rail| ring.rkey(nic.card_of(rail))),
            slots: RING_SLOTS as u32,
            slot_room: (halves * Slot::BYTES) as u32,
        };
        let hello = Hello { endpoint: lanes.endpoint.clone(), ring: place };
        socket.send(&hello.frame(self.handle.token));
        Ok(Offer { socket, lanes, ring })
    }

    fn abandoned(&self) -> Error {
        let text = "the listener closed the connection: its process has died, or it took another peer";
        Error::remote(format!("connecting to {}: {text}", self.handle.address))
    }

    fn await_reply(&mut self, mut offer: Box<Offer>) -> Result<(Stage, bool)> {
        let to = self.handle.address;
        let frame = match offer.socket.poll_frame() {
            Ok(Incoming::Nothing) => return Ok((Stage::Awaiting(offer), false)),
            Ok(Incoming::Frame(frame)) => frame,
            Ok(Incoming::Closed) if !self.turned_away => {
                self.turned_away = true;
                return Ok((Stage::Dialing(Dial::Again(Instant::now() + REDIAL_AFTER)), false));
            }
            Ok(Incoming::Closed) => return Err(self.abandoned()),
            Ok(Incoming::Lost(why)) => {
                return Err(Error::remote(format!("connecting to {to}: connection lost: {why}")));
            }
            Err(violation) => return Err(Error::remote(format!("connecting to {to}: {violation}"))),
        };
        if frame.kind == Kind::Refuse {
            return Err(Error::remote(format!("connecting to {to}: the listener refuses: {}", frame.body_text())));
        }
        if frame.kind != Kind::Reply || frame.token != self.handle.token {
            return Err(Error::remote(format!("connecting to {to}: a {:?} came instead of a reply", frame.kind)));
        }
        let Offer { socket, lanes, ring } = *offer;
        let reply = Reply::parse(&frame.body, &lanes.endpoint)
            .map_err(|v| Error::remote(format!("connecting to {to}: {v}")))?;
        let traffic_class = self.nic.config.traffic_class;
        let joining = lanes.join(&self.nic, reply.endpoint.clone(), &reply.terms, traffic_class)?;
        Ok((Stage::Joining(Box::new(Pending { socket, joining, ring, reply })), true))
    }

    fn join(&self, mut pending: Box<Pending>) -> Result<(Stage, bool)> {
        let done = pending.joining.advance(&self.nic);
        if !done.map_err(|e| e.during(format_args!("connecting to {}", self.handle.address)))? {
            return Ok((Stage::Joining(pending), false));
        }
        let Pending { mut socket, joining, mut ring, reply } = *pending;
        let (lanes, endpoint) = joining.finish();
        let shares = endpoint.shares_with(&reply.endpoint);
        ring.lay_out(slot_halves(reply.terms.striping.rails().into()));
        socket.send(&Frame { kind: Kind::Commit, token: self.handle.token, body: Vec::new() });
        Ok((Stage::Committing(Box::new(Agreed { socket, lanes, shares, ring, reply })), true))
    }

    fn complete(&self, agreed: Agreed) -> Result<SendComm> {
        let Agreed { socket, lanes, shares, ring, reply } = agreed;
        let peer = format!("{} ({})", reply.endpoint.name, socket.peer());
        let link = Arc::new(Link::new(peer, self.handle.token, socket));
        self.nic.watch(&link)?;
        log::debug!("{} sends to {}: {:?}", self.nic.name, link.peer(), reply.terms);
        Ok(SendComm::new(Arc::clone(&self.nic), link, lanes, ring, &reply.terms, shares))
    }
}

fn greet(mut offer: Box<Offer>) -> Result<(Stage, bool)> {
    if offer.socket.poll_sent()? { Ok((Stage::Awaiting(offer), true)) } else { Ok((Stage::Greeting(offer), false)) }
}
