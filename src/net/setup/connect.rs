//! The connecting side of a connection's set-up.
//!
//! ```text
//! Dialing ──► Awaiting ──► Connecting ──► SendComm
//!    ▲ refused, or the control connection has ended: again
//! ```
//! Only fast steps have a deadline: a TCP connection to the peer's port, and connecting the queue
//! pairs. The peer may take hours to accept: among four ranks that connect in a ring, each may wait
//! for its neighbours' handles first, while one still loads a model. As long as the control
//! connection exists, so does the peer, and its end is noticed.
//!
//! The offer for the peer is created during the first dial: the commands to the card need not wait
//! for the network.
//!
//! A rail that is unusable now is left out, if there are others ([`super::rails`]). Otherwise the
//! set-up waits for a port that is down or has no address, or a device that fails, for as long as
//! the other steps may take; not so without failover. If an address or a device is lost while queue
//! pairs are connected, everything begins anew.
//!
//! A control connection lost after the commit leaves a communicator here that the peer may not
//! know. It is dialled again like any other, and its Resume shows the peer that this end has
//! committed.

use super::dials::{Dials, Failure};
use super::identity;
use super::nccl_comm::NcclComm;
use super::rails::{self, Rails};
use super::summary;
use super::summary::Steps;
use super::waiting::{given_up, wait_out, was_established};
use crate::error::{Error, Result};
use crate::host::random;
use crate::net::control::driver::ControlDriver;
use crate::net::control::fork::process_id;
use crate::net::control::stream::{ControlStream, PeerStream};
use crate::net::data::send::{CtsRing, SENDER_QP_CAPS, SendComm};
use crate::net::device::nic::Nic;
use crate::net::explain::set_up::{Detail, SetUpCall, SetUpWait, WaitsFor};
use crate::net::peer::name::PeerName;
use crate::net::peer::state::PeerState;
use crate::net::qp::connect::{ConnectingQpSet, flow_labels};
use crate::net::qp::init_rail::RailPort;
use crate::net::qp::priority::Priority;
use crate::net::qp::set::InitQpSet;
use crate::proto::RING_SLOTS;
use crate::proto::control::event::{End, Received};
use crate::proto::cts::{Cts, cts_halves};
use crate::proto::frame::Kind;
use crate::proto::handle::Handle;
use crate::proto::handshake::{Hello, Reply, Ring};
use crate::proto::recovery::rail_mask::RailMask;
use crate::stats::record::Direction;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection being set up. Each call of [`Self::advance`] does what is possible without waiting.
#[derive(Debug)]
pub struct Connector {
    nic: Arc<Nic>,
    handle: Handle,
    control: Arc<ControlDriver>,
    /// NCCL's communicator that it is for.
    of: NcclComm,
    /// When the present attempts to dial or to connect the queue pairs end.
    deadline: Instant,
    /// Since when there is a control connection.
    up_since: Option<Instant>,
    /// The time of the last call.
    asked: Instant,
    start: Instant,
    /// The attempts at a control connection.
    dials: Dials,
    /// The rails that it may begin on.
    rails: Rails,
    /// Why a port or its device was unusable at the last check.
    port_trouble: Option<Error>,
    steps: Steps,
    /// What it waits for, for reports.
    pub wait: Arc<SetUpWait>,
    /// Created during the first dial, and not offered yet.
    made: Option<(InitQpSet, CtsRing)>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Dialling, unless there is a control connection; after a refusal, again at the given time.
    Dialing(Dial),
    /// The hello is sent; the peer's reply is due.
    Awaiting(Box<Offer>),
    /// The reply has arrived; the queue pairs are being connected.
    Connecting(Box<Pending>),
    /// Finished or failed.
    Done,
}

#[derive(Debug)]
enum Dial {
    Again(Instant),
    Trying(ControlStream),
    /// There is a control connection, but a port or its device is unusable. It is checked again at
    /// the given time.
    Waiting(ControlStream, Instant),
}

/// The offer sent to the listener.
#[derive(Debug)]
struct Offer {
    stream: ControlStream,
    hello: Hello,
    qps: InitQpSet,
    ring: CtsRing,
}

/// The agreed terms, and the queue pairs being connected.
#[derive(Debug)]
struct Pending {
    stream: ControlStream,
    connecting: ConnectingQpSet,
    ring: CtsRing,
    reply: Reply,
}

const REDIAL_AFTER: Duration = Duration::from_millis(20);
/// Interval between checks of an unusable port.
pub(super) const LOOK_AFTER: Duration = Duration::from_millis(10);

impl Connector {
    /// Begins to connect `nic` to the listener behind `handle`, over a connection of `control`, for
    /// NCCL's communicator `of`.
    pub fn new(nic: Arc<Nic>, handle: Handle, control: Arc<ControlDriver>, of: NcclComm) -> Self {
        let now = Instant::now();
        let deadline = now + Duration::from_secs(nic.config.handshake_timeout_s);
        let wait = SetUpWait::new(SetUpCall::Connect, &nic.name, handle.address);
        let rails = Rails::new(
            RailMask::first(nic.ports.len() as u8),
            nic.config.failover,
            nic.config.retries,
        );
        Self {
            nic,
            handle,
            control,
            of,
            deadline,
            up_since: None,
            asked: now,
            start: now,
            dials: Dials::default(),
            rails,
            port_trouble: None,
            steps: Steps::begin(),
            wait,
            made: None,
            stage: Stage::Dialing(Dial::Again(now)),
        }
    }

    /// Whether NCCL has stopped polling this connection for longer than the handshake timeout. If
    /// it polls again, the connection begins anew.
    pub fn is_abandoned(&self, now: Instant) -> bool {
        now > self.asked + self.handshake_timeout()
    }

    fn handshake_timeout(&self) -> Duration {
        Duration::from_secs(self.nic.config.handshake_timeout_s)
    }

    /// Whether it leads to the listener behind `handle`.
    pub fn leads_to(&self, handle: &Handle) -> bool {
        self.handle == *handle
    }

    fn waits_for(&self) -> WaitsFor {
        match &self.stage {
            Stage::Dialing(Dial::Waiting(..)) => WaitsFor::Port,
            Stage::Dialing(_) => WaitsFor::Dial,
            Stage::Awaiting(_) | Stage::Done => WaitsFor::Accept,
            Stage::Connecting(_) => WaitsFor::QueuePairs,
        }
    }

    fn detail(&self) -> Detail {
        let mut detail = Detail::default();
        match &self.stage {
            Stage::Dialing(Dial::Waiting(..)) => {
                detail.trouble.extend(self.port_trouble.as_ref().map(Error::text))
            }
            Stage::Dialing(_) => detail.trouble = self.dials.trouble(),
            Stage::Awaiting(_) | Stage::Done => {}
            Stage::Connecting(pending) => {
                let Pending { stream, reply, connecting, .. } = &**pending;
                detail.peer =
                    PeerName::new(&reply.identity, &reply.endpoint.name, stream.peer()).to_string();
                connecting.trouble().clone_into(&mut detail.trouble);
            }
        }
        detail
    }

    /// Does what is possible now. Returns the communicator once it exists.
    ///
    /// # Errors
    /// The peer refuses, has died or is unreachable for too long, or the device has no more queues.
    pub fn advance(&mut self) -> Result<Option<SendComm>> {
        self.asked = Instant::now();
        loop {
            let stage = std::mem::replace(&mut self.stage, Stage::Done);
            let (stage, progress) = match stage {
                Stage::Dialing(dial) => self.dial(dial)?,
                Stage::Awaiting(offer) => self.await_reply(offer)?,
                Stage::Connecting(mut pending) => match self.join(&mut pending) {
                    Ok(true) => {
                        self.steps.end("connecting queue pairs");
                        return self.complete(*pending).map(Some);
                    }
                    Ok(false) if !self.leave_out_late(&pending) => {
                        (Stage::Connecting(pending), false)
                    }
                    Ok(false) => self.begin_without(),
                    Err(e) if self.rails.leave_out(&e) => self.begin_without(),
                    Err(e) => wait_out(&self.nic, e, self.deadline).map(|_| redial())?,
                },
                Stage::Done => return Err(Error::internal("connect was called after it failed")),
            };
            if !progress {
                self.check_deadline(&stage)?;
                self.stage = stage;
                self.wait.handle_call(self.waits_for(), || self.detail());
                return Ok(None);
            }
            self.stage = stage;
        }
    }

    /// Whether the queue pairs were not connected in time, and other rails can be tried.
    fn leave_out_late(&mut self, pending: &Pending) -> bool {
        let limit =
            format_args!("FERRITE_HANDSHAKE_TIMEOUT={} s", self.nic.config.handshake_timeout_s);
        Instant::now() >= self.deadline
            && self.rails.leave_out_late(&pending.connecting.too_late(limit))
    }

    /// Begins anew without the rail that has failed, with other queue pairs; the listener hears
    /// that these are no more. The time that the attempts have taken does not count, until all
    /// rails are tried with patience.
    fn begin_without(&mut self) -> (Stage, bool) {
        if !self.rails.is_patient() {
            self.deadline = Instant::now() + self.handshake_timeout();
        }
        redial()
    }

    fn check_deadline(&self, stage: &Stage) -> Result<()> {
        if Instant::now() < self.deadline {
            return Ok(());
        }
        if let (Stage::Dialing(Dial::Waiting(..)), Some(error)) = (stage, &self.port_trouble) {
            return Err(given_up(&self.nic, error.clone()));
        }
        let (waiting, latest) = match stage {
            Stage::Dialing(_) => (self.dials.outcome(), self.dials.latest_failure()),
            Stage::Connecting(_) => ("the queue pairs could not be connected", String::new()),
            Stage::Awaiting(_) | Stage::Done => return Ok(()),
        };
        let (to, seconds) = (self.handle.address, self.nic.config.handshake_timeout_s);
        Err(Error::remote(format!(
            "connecting to {to}: {waiting} within FERRITE_HANDSHAKE_TIMEOUT={seconds} s{latest}"
        )))
    }

    fn dial(&mut self, dial: Dial) -> Result<(Stage, bool)> {
        match dial {
            Dial::Again(when) if Instant::now() < when => {
                Ok((Stage::Dialing(Dial::Again(when)), false))
            }
            Dial::Waiting(stream, when) if Instant::now() < when => {
                Ok((Stage::Dialing(Dial::Waiting(stream, when)), false))
            }
            Dial::Waiting(stream, _) => self.offer(stream),
            Dial::Again(when) => {
                // One for each attempt, so that frames of another attempt are not taken for this
                // one's.
                let stream = ControlStream::open(
                    &self.control,
                    self.handle.address,
                    self.handle.token,
                    random::bytes()?,
                )?;
                if when == self.start {
                    self.make_early();
                }
                Ok((Stage::Dialing(Dial::Trying(stream)), true))
            }
            Dial::Trying(stream) => match stream.poll_connected() {
                Ok(false) => Ok((Stage::Dialing(Dial::Trying(stream)), false)),
                Ok(true) => {
                    self.dials.handle_connected();
                    self.up_since = Some(Instant::now());
                    self.steps.end("dial");
                    self.offer(stream)
                }
                Err(e) => match self.dials.handle_failed_dial(e, self.start.elapsed()) {
                    Failure::Transient => {
                        self.made = None;
                        Ok(redial())
                    }
                    Failure::Permanent => {
                        Err(Error::os(format_args!("connecting to {}", self.handle.address), e))
                    }
                    Failure::Abandoned => Err(self.abandoned()),
                },
            },
        }
    }

    /// Says hello over `stream`, as soon as all ports are usable.
    fn offer(&mut self, stream: ControlStream) -> Result<(Stage, bool)> {
        let (qps, ring) = match self.made.take().map_or_else(|| self.create(), Ok) {
            Ok(made) => made,
            Err(e) => {
                self.port_trouble = Some(wait_out(&self.nic, e, self.deadline)?);
                return Ok((
                    Stage::Dialing(Dial::Waiting(stream, Instant::now() + LOOK_AFTER)),
                    false,
                ));
            }
        };
        self.steps.end("creating queue pairs");
        let halves = cts_halves(self.nic.ports.len());
        let place = Ring {
            addr: ring.addr(),
            slots: RING_SLOTS as u32,
            slot_room: (halves * Cts::BYTES) as u32,
        };
        let hello = Hello {
            token: self.handle.token,
            count: self.nic.ports.len() as u8,
            rails: qps.rail_numbers(),
            left_out: self.rails.describe(),
            endpoint: qps.endpoint.clone(),
            ring: place,
            identity: identity::own(),
        };
        stream.send(Kind::Hello, hello.body());
        Ok((Stage::Awaiting(Box::new(Offer { stream, hello, qps, ring })), true))
    }

    /// Creates the offer during the first dial. If that is impossible now, it is created once the
    /// control connection exists, as after each later dial: the offer to a peer that was
    /// unreachable for a while must not be outdated.
    fn make_early(&mut self) {
        self.made = self.create().ok();
        self.steps.end("creating queue pairs");
    }

    /// Creates the offer on the rails where that is possible.
    fn create(&mut self) -> Result<(InitQpSet, CtsRing)> {
        loop {
            match self.create_on(self.rails.chosen()) {
                Err(e) if self.rails.leave_out(&e) => {}
                done => return done,
            }
        }
    }

    fn create_on(&self, numbers: RailMask) -> Result<(InitQpSet, CtsRing)> {
        let nic = &self.nic;
        let on = |(number, port)| RailPort {
            number,
            port,
            towards: self.handle.known_gids(number.into()),
        };
        let ports: Vec<_> = nic.ports_of(numbers).into_iter().map(on).collect();
        let mut qps = InitQpSet::new(
            nic,
            &ports,
            nic.config.queue_pairs.into(),
            SENDER_QP_CAPS,
            &mut Vec::new(),
        )?;
        let cut_off = rails::cut_off(&qps.endpoint, &self.handle.known_gids(0))
            .filter(|_| ports.len() > 1 && nic.config.failover);
        if let Some(RailPort { number, port, .. }) = cut_off.and_then(|place| ports.get(place)) {
            let why = port.address_trouble().unwrap_or_else(|| {
                format!("{}: the listener's addresses are of another kind", port.name)
            });
            return Err(Error::system(why).on_rail(*number));
        }
        if nic.config.ece {
            qps.offer_ece();
        }
        let among = (&nic.rings, self.handle.address);
        let mut ring = CtsRing::among(among, cts_halves(nic.ports.len()), Cts::empty_last_word)?;
        qps.describe_ring(&mut ring)?;
        Ok((qps, ring))
    }

    fn abandoned(&self) -> Error {
        let text =
            "the listener closed the connection: its process has died, or it took another peer";
        Error::remote(format!("connecting to {}: {text}", self.handle.address))
    }

    /// The control connection has ended before the listener answered. If it existed for a while,
    /// the time for attempts starts again. If it ended at once, the attempt has failed.
    fn ended(&mut self, end: End) -> Result<(Stage, bool)> {
        let to = self.handle.address;
        if self
            .up_since
            .take()
            .is_some_and(|since| was_established(since.elapsed(), self.handshake_timeout()))
        {
            self.deadline = Instant::now() + self.handshake_timeout();
        }
        match end {
            // If the listener's process has ended, the next attempt is refused.
            End::Closed | End::Lost(_) => {
                self.dials.handle_end();
                Ok(redial())
            }
            End::Unreachable(_) => Ok(redial()),
            End::Wrong(why) => Err(Error::remote(format!("connecting to {to}: {why}"))),
            End::Refused(why) => Err(self.refused(&why)),
        }
    }

    fn refused(&self, why: &str) -> Error {
        Error::remote(format!("connecting to {}: the listener refuses: {why}", self.handle.address))
    }

    fn await_reply(&mut self, offer: Box<Offer>) -> Result<(Stage, bool)> {
        let to = self.handle.address;
        let frame = match offer.stream.poll_frame() {
            Received::Nothing => return Ok((Stage::Awaiting(offer), false)),
            Received::Frame(frame) => frame,
            Received::End(end) => return self.ended(end),
        };
        if frame.kind == Kind::Refuse {
            return Err(self.refused(&frame.body_text()));
        }
        if frame.kind == Kind::Goodbye {
            return Err(self.abandoned());
        }
        if frame.kind != Kind::Reply {
            return Err(Error::remote(format!(
                "connecting to {to}: received {} instead of a reply",
                frame.kind
            )));
        }
        // Nothing is committed yet, so it begins anew.
        if offer.stream.is_over() {
            return match offer.stream.poll_frame() {
                Received::End(end) => self.ended(end),
                Received::Frame(_) | Received::Nothing => Err(self.abandoned()),
            };
        }
        let Offer { stream, hello, qps, ring } = *offer;
        let reply = Reply::parse(&frame.body, &hello)
            .map_err(|v| Error::remote(format!("connecting to {to}: {v}")))?;
        self.steps.end("handshake");
        let priority = Priority::of_sender(&self.nic.config, self.of.class);
        self.deadline = Instant::now() + self.handshake_timeout();
        let connecting = qps.connect(
            &self.nic,
            reply.endpoint.clone(),
            &reply.terms,
            priority,
            flow_labels(&self.nic)?,
            self.rails.retries(),
        )?;
        Ok((Stage::Connecting(Box::new(Pending { stream, connecting, ring, reply })), true))
    }

    /// Whether the queue pairs are connected.
    fn join(&self, pending: &mut Pending) -> Result<bool> {
        let done = pending.connecting.advance(&self.nic);
        done.map_err(|e| e.during(format_args!("connecting to {}", self.handle.address)))
    }

    /// Commits. If the commit is lost with the control connection, the peer learns of it over
    /// another one.
    fn complete(&self, pending: Pending) -> Result<SendComm> {
        let Pending { stream, connecting, mut ring, reply } = pending;
        let (mut qps, endpoint) = connecting.finish();
        qps.listened = self.handle.gids;
        let weights = endpoint.rail_weights_with(&reply.endpoint).over(reply.rails);
        ring.lay_out(cts_halves(reply.terms.count.into()), Cts::empty_last_word);
        stream.send(Kind::Commit, Vec::new());
        let name = PeerName::new(&reply.identity, &reply.endpoint.name, stream.peer());
        let begun = (reply.rails, reply.terms.count);
        match self.rails.describe() {
            ours if ours.is_empty() && reply.left_out.is_empty() => {
                rails::warn_of_rails(&self.nic, reply.endpoint.rails.len(), &name);
            }
            ours => rails::warn_of_left_out(&self.nic, &name, begun, &ours, &reply.left_out),
        }
        let peer = PeerState::new(name, stream, reply.terms.failover);
        self.nic.watch(&peer, &self.control)?;
        let number = identity::connection_number(&self.handle.token, ring.addr(), process_id());
        let stats = identity::open_stats(
            &self.nic,
            &self.control,
            Direction::Send,
            &reply.identity,
            &qps,
            number,
        )?;
        log::debug!("{} sends to {}: {}; {}", self.nic.name, peer.peer(), reply.terms, self.steps);
        summary::add(&self.nic, &self.control, Direction::Send, peer.peer(), &self.steps)?;
        let comm =
            SendComm::new(Arc::clone(&self.nic), peer, qps, ring, &reply.terms, weights, stats);
        comm.labels.set_communicator(self.of.id);
        Ok(comm)
    }
}

fn redial() -> (Stage, bool) {
    (Stage::Dialing(Dial::Again(Instant::now() + REDIAL_AFTER)), false)
}
