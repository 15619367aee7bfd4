//! The connecting side of a connection's set-up.
//!
//! ```text
//! Dialing ──► Greeting ──► Awaiting ──► Joining ──► Committing ──► SendComm
//!    ▲ refused: again, until the deadline
//! ```

use super::channel::{Channel, Heard};
use super::joining::Joining;
use super::lanes::{IdleLanes, Lanes};
use super::line::End;
use super::lines::{Lines, Reach};
use super::link::Link;
use super::nic::Nic;
use super::sender::{SENDER_DEPTHS, SendComm, SlotRing};
use crate::error::{Error, Result};
use crate::proto::RING_SLOTS;
use crate::proto::frame::Kind;
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
    lines: Arc<Lines>,
    deadline: Instant,
    /// Whether the line was there before.
    is_shared: bool,
    /// Whether the listener's process has closed a line without a word: it may have had too many callers, or no more
    /// connections on that one, or it is dead, in which case its port is closed as well.
    turned_away: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The line is being made, unless there is one; after a refusal, again at the given time.
    Dialing(Dial),
    /// There is a line; the hello is going out.
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
    Trying(Channel),
}

/// What has been put on the table.
#[derive(Debug)]
struct Offer {
    channel: Channel,
    lanes: IdleLanes,
    ring: SlotRing,
}

/// What is agreed, and on its way.
#[derive(Debug)]
struct Pending {
    channel: Channel,
    joining: Joining,
    ring: SlotRing,
    reply: Reply,
}

/// All that makes a communicator but the last word.
#[derive(Debug)]
struct Agreed {
    channel: Channel,
    lanes: Lanes,
    shares: Shares,
    ring: SlotRing,
    reply: Reply,
}

const REDIAL_AFTER: Duration = Duration::from_millis(20);

impl Connector {
    /// Begins to connect `nic` to the listener behind `handle`, over one of `lines`.
    pub fn new(nic: Arc<Nic>, handle: Handle, lines: Arc<Lines>) -> Self {
        let deadline = Instant::now() + Duration::from_secs(nic.config.handshake_timeout_s);
        let stage = Stage::Dialing(Dial::Again(Instant::now()));
        Self { nic, handle, lines, deadline, is_shared: false, turned_away: false, stage }
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
                Stage::Greeting(offer) => greet(offer),
                Stage::Awaiting(offer) => self.await_reply(offer)?,
                Stage::Joining(pending) => self.join(pending)?,
                Stage::Committing(agreed) => {
                    if agreed.channel.poll_sent()? {
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
            Stage::Dialing(_) if self.turned_away => "the listener took connections and closed them without a word",
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
            Dial::Again(_) => {
                let Reach { channel, is_shared } = self.lines.reach(&self.handle)?;
                self.is_shared = is_shared;
                Ok((Stage::Dialing(Dial::Trying(channel)), true))
            }
            Dial::Trying(channel) => match channel.poll_connected() {
                Ok(false) => Ok((Stage::Dialing(Dial::Trying(channel)), false)),
                Ok(true) => Ok((Stage::Greeting(Box::new(self.offer(channel)?)), true)),
                Err(libc::ECONNREFUSED) if self.turned_away => Err(self.abandoned()),
                Err(libc::ECONNREFUSED | libc::ETIMEDOUT | libc::ECONNRESET | libc::EAGAIN) => Ok(redial()),
                Err(e) => Err(Error::os(format_args!("connecting to {}", self.handle.address), e)),
            },
        }
    }

    fn offer(&self, channel: Channel) -> Result<Offer> {
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
        channel.send(Kind::Hello, hello.frame(self.handle.token).body);
        Ok(Offer { channel, lanes, ring })
    }

    fn abandoned(&self) -> Error {
        let text = "the listener closed the connection: its process has died, or it took another peer";
        Error::remote(format!("connecting to {}: {text}", self.handle.address))
    }

    /// The line has ended before the listener has answered.
    fn ended(&mut self, end: End) -> Result<(Stage, bool)> {
        let to = self.handle.address;
        match end {
            // It had been used before, and its loss has been noticed only now: that says nothing of the listener.
            End::Lost(_) if self.is_shared => Ok(redial()),
            // If its process is no more, that will be refused.
            End::Closed => {
                self.turned_away = true;
                Ok(redial())
            }
            End::Unreachable(_) => Ok(redial()),
            End::Lost(why) => Err(Error::remote(format!("connecting to {to}: connection lost: {why}"))),
            End::Wrong(why) => Err(Error::remote(format!("connecting to {to}: {why}"))),
            End::Refused(why) => Err(self.refused(&why)),
        }
    }

    fn refused(&self, why: &str) -> Error {
        Error::remote(format!("connecting to {}: the listener refuses: {why}", self.handle.address))
    }

    fn await_reply(&mut self, offer: Box<Offer>) -> Result<(Stage, bool)> {
        let to = self.handle.address;
        let frame = match offer.channel.poll_frame() {
            Heard::Nothing => return Ok((Stage::Awaiting(offer), false)),
            Heard::Frame(frame) => frame,
            Heard::End(end) => return self.ended(end),
        };
        if frame.kind == Kind::Refuse {
            return Err(self.refused(&frame.body_text()));
        }
        if frame.kind == Kind::Goodbye {
            return Err(self.abandoned());
        }
        if frame.kind != Kind::Reply {
            return Err(Error::remote(format!("connecting to {to}: a {:?} came instead of a reply", frame.kind)));
        }
        let Offer { channel, lanes, ring } = *offer;
        let reply = Reply::parse(&frame.body, &lanes.endpoint)
            .map_err(|v| Error::remote(format!("connecting to {to}: {v}")))?;
        let traffic_class = self.nic.config.traffic_class;
        let joining = lanes.join(&self.nic, reply.endpoint.clone(), &reply.terms, traffic_class)?;
        Ok((Stage::Joining(Box::new(Pending { channel, joining, ring, reply })), true))
    }

    fn join(&self, mut pending: Box<Pending>) -> Result<(Stage, bool)> {
        let done = pending.joining.advance(&self.nic);
        if !done.map_err(|e| e.during(format_args!("connecting to {}", self.handle.address)))? {
            return Ok((Stage::Joining(pending), false));
        }
        let Pending { channel, joining, mut ring, reply } = *pending;
        let (lanes, endpoint) = joining.finish();
        let shares = endpoint.shares_with(&reply.endpoint);
        ring.lay_out(slot_halves(reply.terms.striping.rails().into()));
        channel.send(Kind::Commit, Vec::new());
        Ok((Stage::Committing(Box::new(Agreed { channel, lanes, shares, ring, reply })), true))
    }

    fn complete(&self, agreed: Agreed) -> Result<SendComm> {
        let Agreed { channel, lanes, shares, ring, reply } = agreed;
        let peer = format!("{} ({})", reply.endpoint.name, channel.peer());
        let link = Link::open(peer, channel);
        self.nic.watch(&link)?;
        log::debug!("{} sends to {}: {:?}", self.nic.name, link.peer(), reply.terms);
        Ok(SendComm::new(Arc::clone(&self.nic), link, lanes, ring, &reply.terms, shares))
    }
}

fn greet(offer: Box<Offer>) -> (Stage, bool) {
    match offer.channel.poll_sent() {
        Ok(false) => (Stage::Greeting(offer), false),
        // If the line has ended, awaiting the reply will tell.
        Ok(true) | Err(_) => (Stage::Awaiting(offer), true),
    }
}

fn redial() -> (Stage, bool) {
    (Stage::Dialing(Dial::Again(Instant::now() + REDIAL_AFTER)), false)
}
