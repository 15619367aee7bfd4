//! The listening side of a connection's set-up.
//!
//! The control plane leads clients with a listener's token to it. Each is a candidate; only one
//! that commits becomes a communicator. Connecting our queue pairs to a candidate's has a deadline.
//! Waiting for its commit has none: it lasts as long as the control connection, and NCCL may leave
//! a listener alone for hours. A [watcher](crate::net::background::watcher) removes candidates
//! whose control connection has ended.

use super::connect::LOOK_AFTER;
use super::identity;
use super::nccl_comm::NcclComm;
use super::rails::{self, Rails};
use super::summary;
use super::summary::Steps;
use super::waiting::wait_out;
use crate::error::{Error, Result};
use crate::host::config::Retries;
use crate::host::iface::Interface;
use crate::host::random;
use crate::net::background::periodic::PeriodicTask;
use crate::net::control::driver::ControlDriver;
use crate::net::control::stream::{ControlStream, PeerStream};
use crate::net::data::cts_sender::RECEIVER_QP_CAPS;
use crate::net::data::recv::{PreparedPath, RecvComm};
use crate::net::device::networks::Networks;
use crate::net::device::nic::Nic;
use crate::net::explain::set_up::{Detail, SetUpCall, SetUpWait, WaitsFor};
use crate::net::peer::name::PeerName;
use crate::net::peer::state::PeerState;
use crate::net::qp::connect::{ConnectingQpSet, flow_labels};
use crate::net::qp::priority::Priority;
use crate::net::qp::set::InitQpSet;
use crate::proto::control::event::{End, Received};
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Handle;
use crate::proto::handshake::{Hello, Negotiated, Reply};
use crate::proto::identity::Identity;
use crate::proto::recovery::rail_mask::RailMask;
use crate::stats::record::Direction;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The most candidates at a time; others must wait.
pub(super) const MAX_CANDIDATES: usize = 32;

/// A listener for one peer.
#[derive(Debug)]
pub struct Listener {
    nic: Arc<Nic>,
    /// The devices that a connection may be moved to.
    networks: Option<Arc<Networks>>,
    control: Arc<ControlDriver>,
    handle: Handle,
    candidates: Arc<Candidates>,
    /// NCCL's communicator that it is for.
    of: NcclComm,
    /// What it waits for, for reports.
    wait: Arc<SetUpWait>,
}

/// The candidates of a listener. Their lock is held while NCCL polls the listener, and is taken
/// before any other.
#[derive(Debug, Default)]
pub(super) struct Candidates(pub(super) Mutex<Vec<Candidate>>);

#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) stream: ControlStream,
    /// Its device, process, host and address, after its hello.
    pub(super) name: Option<String>,
    /// The deadline for connecting our queue pairs to its own.
    deadline: Instant,
    /// The rails that the connection may begin on, after its hello.
    rails: Rails,
    /// The device that the connection uses, if it is not the listener's.
    moved_to: Option<Arc<Nic>>,
    /// Why a port of ours was unusable at the last check.
    trouble: String,
    steps: Steps,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Has the token; its hello is due.
    Client,
    /// Has sent its hello. A port of ours is unusable, and is checked again at the given time.
    Waiting(Box<Hello>, Instant),
    /// Has sent its hello; our queue pairs are being connected to its own.
    Connecting(Box<Preparing>),
    /// Has our reply; its commit is due.
    Replied(Box<Prepared>),
}

/// What the reply waits for.
#[derive(Debug)]
struct Preparing {
    /// The device that it uses.
    nic: Arc<Nic>,
    connecting: ConnectingQpSet,
    hello: Hello,
    terms: Negotiated,
}

/// Everything for a communicator except the peer's commit.
#[derive(Debug)]
struct Prepared {
    nic: Arc<Nic>,
    path: PreparedPath,
    endpoint: String,
    identity: Identity,
    terms: Negotiated,
    /// Why rails are left out at this end, and at the peer's.
    left_out: [String; 2],
}

enum Verdict {
    Wait,
    Dismiss(String),
    Take(Box<Prepared>),
}

impl Listener {
    /// Listens for the peer of `nic`, or of another one of `networks`, for NCCL's communicator
    /// `of`. It uses this process's port, which is on `interface`.
    ///
    /// # Errors
    /// The system gives no token or no port, or no watcher can serve it.
    pub fn new(
        nic: Arc<Nic>,
        networks: Option<Arc<Networks>>,
        control: Arc<ControlDriver>,
        interface: &Interface,
        of: NcclComm,
    ) -> Result<Self> {
        let token = random::bytes()?;
        let mut handle = Handle::without_gids(control.listen(interface, token)?, token);
        for (gid, port) in handle.gids.iter_mut().zip(&nic.ports) {
            // A GID that is unknown now is ignored in the choice.
            *gid = port.local_address().map(|address| address.gid.gid).unwrap_or_default();
        }
        let wait = SetUpWait::new(SetUpCall::Accept, &nic.name, handle.address);
        // From here on: the peer may connect, and NCCL may poll much later.
        let watched = nic.explain_set_up(&wait, &control);
        let listener =
            Self { nic, networks, control, handle, of, wait, candidates: Arc::default() };
        watched.map(|()| listener)
    }

    /// The handle for the peer.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Does what is possible now. Returns the communicator once the peer has committed.
    ///
    /// # Errors
    /// The peer could not be served. Clients without the token and peers that vanish are no error.
    pub fn accept(&mut self) -> Result<Option<RecvComm>> {
        self.control.poll()?;
        let candidates = Arc::clone(&self.candidates);
        let mut candidates = candidates.lock();
        fill(&mut candidates, || {
            ControlStream::fetch(&self.control, &self.handle.token).map(Candidate::new)
        });
        let mut i = 0;
        while i < candidates.len() {
            match self.poll_candidate(&mut candidates[i]) {
                Ok(Verdict::Wait) => i += 1,
                Ok(Verdict::Dismiss(why)) => {
                    let candidate = candidates.remove(i);
                    let (at, from) = (self.handle.address, candidate.describe());
                    log::info!("listener {at} for {}: dismissed {from}: {why}", self.nic.name);
                }
                Ok(Verdict::Take(prepared)) => {
                    let Candidate { stream, mut steps, .. } = candidates.remove(i);
                    steps.end("commit");
                    self.wait.handle_end();
                    return self.complete(stream, *prepared, &steps).map(Some);
                }
                // The right peer cannot be served, and gets the reason.
                Err(error) => {
                    let candidate = candidates.remove(i);
                    candidate.refuse(&error.text());
                    let from = candidate.describe();
                    return Err(error.during(format_args!("accepting {from} on {}", self.nic.name)));
                }
            }
        }
        let furthest = candidates.iter().max_by_key(|candidate| candidate.waits_for());
        let stage = furthest.map_or(WaitsFor::Peer, Candidate::waits_for);
        self.wait.handle_call(stage, || furthest.map(Candidate::detail).unwrap_or_default());
        Ok(None)
    }

    fn handshake_timeout(&self) -> Duration {
        Duration::from_secs(self.nic.config.handshake_timeout_s)
    }

    fn poll_candidate(&self, candidate: &mut Candidate) -> Result<Verdict> {
        let frame = match candidate.stream.poll_frame() {
            Received::Frame(frame) => frame,
            Received::Nothing => return self.proceed(candidate),
            Received::End(End::Lost(why)) => {
                return Ok(Verdict::Dismiss(format!("its connection was lost: {why}")));
            }
            Received::End(End::Wrong(why)) => return Ok(Verdict::Dismiss(why)),
            Received::End(_) => return Ok(Verdict::Dismiss("it closed the connection".into())),
        };
        match (frame.kind, std::mem::replace(&mut candidate.stage, Stage::Client)) {
            // No answer: the same peer may have sent another hello on this control connection, and
            // would take it for that one's answer.
            (Kind::Hello, _) if candidate.stream.is_over() => {
                Ok(Verdict::Dismiss("it closed the connection".into()))
            }
            (Kind::Hello, Stage::Client) => self.reply(candidate, &frame),
            (Kind::Commit, Stage::Replied(prepared)) => Ok(Verdict::Take(prepared)),
            (Kind::Goodbye, _) => Ok(Verdict::Dismiss("it closed the connection".into())),
            (kind, _) => {
                candidate.refuse(&format!("an unexpected message ({kind})"));
                Ok(Verdict::Dismiss(format!("it sent an unexpected message ({kind})")))
            }
        }
    }

    /// The right peer has connected: creates our end.
    fn reply(&self, candidate: &mut Candidate, frame: &Frame) -> Result<Verdict> {
        // From here on there are queue pairs, which must go if the peer does while NCCL does not
        // poll the listener.
        let task: Arc<dyn PeriodicTask> = Arc::clone(&self.candidates) as _;
        self.nic.watch_set_up(&self.control, Some(&task))?;
        let hello = Hello::parse(&frame.body)?;
        let name = PeerName::new(&hello.identity, &hello.endpoint.name, candidate.stream.peer());
        candidate.name = Some(name.to_string());
        rails::warn_of_rails(&self.nic, hello.count.into(), &name);
        let may_leave_out = self.nic.config.failover && hello.endpoint.failover;
        candidate.rails = Rails::new(hello.rails, may_leave_out, self.nic.config.retries);
        candidate.steps.end("hello");
        let now = Instant::now();
        candidate.deadline = now + self.handshake_timeout();
        candidate.stage = Stage::Waiting(Box::new(hello), now);
        self.proceed(candidate)
    }

    /// Continues with what does not wait for the peer. Once that is done, sends the reply.
    fn proceed(&self, candidate: &mut Candidate) -> Result<Verdict> {
        if let Stage::Waiting(hello, when) = &candidate.stage
            && *when <= Instant::now()
        {
            let hello = (**hello).clone();
            let nic = self.device_for(&mut candidate.moved_to, &hello);
            match begin(&nic, hello.clone(), &mut candidate.rails, self.of.class) {
                Ok(preparing) => {
                    candidate.steps.end("creating queue pairs");
                    candidate.stage = Stage::Connecting(Box::new(preparing));
                }
                Err(e) => return self.begin_again(candidate, hello, e),
            }
        }
        let Stage::Connecting(preparing) = &mut candidate.stage else { return Ok(Verdict::Wait) };
        match preparing.connecting.advance(&preparing.nic) {
            Ok(true) => {}
            Ok(false) if Instant::now() < candidate.deadline => return Ok(Verdict::Wait),
            Ok(false) => {
                let limit = format_args!(
                    "FERRITE_HANDSHAKE_TIMEOUT={} s",
                    self.nic.config.handshake_timeout_s
                );
                if !candidate.rails.leave_out_late(&preparing.connecting.too_late(limit)) {
                    return Ok(self.too_late(candidate));
                }
                candidate.stage = Stage::Waiting(Box::new(preparing.hello.clone()), Instant::now());
                return Ok(Verdict::Wait);
            }
            Err(e) => {
                let hello = preparing.hello.clone();
                return self.begin_again(candidate, hello, e);
            }
        }
        let Stage::Connecting(preparing) = std::mem::replace(&mut candidate.stage, Stage::Client)
        else {
            return Ok(Verdict::Wait);
        };
        candidate.steps.end("connecting queue pairs");
        let hello = preparing.hello.clone();
        let (prepared, reply) = match preparing.finish(&self.control, &candidate.rails) {
            Ok(finished) => finished,
            Err(e) => return self.begin_again(candidate, hello, e),
        };
        candidate.steps.end("receives");
        candidate.stream.send(Kind::Reply, reply.body());
        candidate.stage = Stage::Replied(Box::new(prepared));
        Ok(Verdict::Wait)
    }

    /// The device for a connection to the peer that sent `hello`: the one that it was `moved_to`,
    /// if any.
    fn device_for(&self, moved_to: &mut Option<Arc<Nic>>, hello: &Hello) -> Arc<Nic> {
        if let (None, Some(networks)) = (&moved_to, &self.networks) {
            let gids: Vec<_> = hello.endpoint.rails.iter().map(|end| end.gid).collect();
            *moved_to = Some(networks.device_towards(&self.nic, &gids))
                .filter(|nic| !Arc::ptr_eq(nic, &self.nic));
        }
        Arc::clone(moved_to.as_ref().unwrap_or(&self.nic))
    }

    /// Discards what was created for `hello` because of `error`. Creates it again without the
    /// failed rail, or after the error has passed.
    ///
    /// # Errors
    /// The error is permanent.
    fn begin_again(
        &self,
        candidate: &mut Candidate,
        hello: Hello,
        error: Error,
    ) -> Result<Verdict> {
        let mut when = Instant::now();
        if !candidate.rails.leave_out(&error) {
            let nic = candidate.moved_to.as_ref().unwrap_or(&self.nic);
            candidate.trouble = wait_out(nic, error, candidate.deadline)?.text();
            when += LOOK_AFTER;
        }
        candidate.stage = Stage::Waiting(Box::new(hello), when);
        Ok(Verdict::Wait)
    }

    /// Our queue pairs were not connected in time.
    fn too_late(&self, candidate: &Candidate) -> Verdict {
        let seconds = self.nic.config.handshake_timeout_s;
        let why = format!(
            "the queue pairs were not connected within {seconds} s (FERRITE_HANDSHAKE_TIMEOUT)"
        );
        candidate.refuse(&why);
        Verdict::Dismiss(why)
    }

    fn complete(
        &self,
        stream: ControlStream,
        prepared: Prepared,
        steps: &Steps,
    ) -> Result<RecvComm> {
        let name = PeerName::new(&prepared.identity, &prepared.endpoint, stream.peer());
        let begun = (prepared.terms.striping.rail_numbers(), prepared.terms.count);
        let [ours, theirs] = &prepared.left_out;
        rails::warn_of_left_out(&prepared.nic, &name, begun, ours, theirs);
        let peer = PeerState::new(name, stream, prepared.terms.failover);
        prepared.nic.watch(&peer, &self.control)?;
        log::debug!("{} receives from {}; {steps}", prepared.nic.name, peer.peer());
        summary::add(&prepared.nic, &self.control, Direction::Receive, peer.peer(), steps)?;
        let comm = RecvComm::new(Arc::clone(&prepared.nic), peer, prepared.path, &prepared.terms);
        comm.labels.set_communicator(self.of.id);
        Ok(comm)
    }
}

impl Candidate {
    pub(super) fn new(stream: ControlStream) -> Self {
        let (deadline, trouble) = (Instant::now(), String::new());
        let rails = Rails::new(RailMask::NONE, false, Retries::NONE);
        let (steps, stage) = (Steps::begin(), Stage::Client);
        Self { stream, name: None, deadline, rails, moved_to: None, trouble, steps, stage }
    }

    fn waits_for(&self) -> WaitsFor {
        match &self.stage {
            Stage::Client => WaitsFor::Peer,
            Stage::Waiting(..) => WaitsFor::Port,
            Stage::Connecting(_) => WaitsFor::QueuePairs,
            Stage::Replied(_) => WaitsFor::Commit,
        }
    }

    fn detail(&self) -> Detail {
        let trouble = match &self.stage {
            Stage::Waiting(..) => &self.trouble,
            Stage::Connecting(preparing) => preparing.connecting.trouble(),
            Stage::Client | Stage::Replied(_) => "",
        };
        Detail { peer: self.describe(), trouble: trouble.to_owned() }
    }

    /// The candidate as far as known, for messages.
    pub(super) fn describe(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.stream.peer().to_string())
    }

    fn refuse(&self, why: &str) {
        self.stream.send(Kind::Refuse, why.as_bytes().to_vec());
    }
}

impl Candidates {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Candidate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops the candidates here and now, as their listener is gone, even if a watcher is checking
    /// them. In a forked child they may be locked for ever by a watcher that does not exist in the
    /// child, so it leaves them alone.
    pub(super) fn end(&self, is_child: bool) {
        if !is_child {
            self.lock().clear();
        }
    }
}

/// Adds candidates from `next` as long as there is room.
pub(super) fn fill<T>(candidates: &mut Vec<T>, next: impl FnMut() -> Option<T>) {
    candidates
        .extend(std::iter::from_fn(next).take(MAX_CANDIDATES.saturating_sub(candidates.len())));
}

impl PeriodicTask for Candidates {
    /// Drops candidates whose peer has gone, unless NCCL is polling the listener right now. Returns
    /// whether any are left.
    fn run(&self) -> bool {
        let mut candidates = match self.0.try_lock() {
            Ok(candidates) => candidates,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return true,
        };
        candidates.retain(|candidate| !candidate.stream.is_over());
        !candidates.is_empty()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.control.deregister(&self.handle.token);
        self.candidates.end(self.control.is_inherited());
    }
}

/// Creates our end for the peer that sent `hello`.
fn begin(nic: &Arc<Nic>, hello: Hello, rails: &mut Rails, class: Option<u8>) -> Result<Preparing> {
    let offered = hello.endpoint.rails.iter().map(|rail| rail.qps.len()).min().unwrap_or(0);
    let count = usize::from(nic.config.queue_pairs).min(offered);
    let ports = rails::pair_with(nic, &hello, rails)?;
    let idle = InitQpSet::new(nic, &ports, count, RECEIVER_QP_CAPS, &mut Vec::new())?;
    let numbers = idle.rail_numbers();
    let far = hello.endpoint.over(hello.rails, numbers);
    let terms = Negotiated::agree(&far, &idle.endpoint)?.over(hello.count, numbers);
    let priority = Priority::of_receiver(&nic.config, class);
    let retries = rails.retries();
    let connecting = idle.connect(nic, far, &terms, priority, flow_labels(nic)?, retries)?;
    Ok(Preparing { nic: Arc::clone(nic), connecting, hello, terms })
}

impl Preparing {
    fn finish(self, control: &Arc<ControlDriver>, rails: &Rails) -> Result<(Prepared, Reply)> {
        let Self { nic, connecting, hello, terms } = self;
        let (qps, endpoint) = connecting.finish();
        let number = identity::connection_number(&hello.token, hello.ring.addr, hello.identity.pid);
        let stats =
            identity::open_stats(&nic, control, Direction::Receive, &hello.identity, &qps, number)?;
        let path = PreparedPath::new(qps, hello.ring, &terms, stats)?;
        let left_out = [rails.describe(), hello.left_out];
        let prepared = Prepared {
            nic,
            path,
            endpoint: hello.endpoint.name,
            identity: hello.identity,
            terms,
            left_out,
        };
        let [left_out, _] = &prepared.left_out;
        let (numbers, left_out) = (terms.striping.rail_numbers(), left_out.clone());
        Ok((
            prepared,
            Reply { rails: numbers, left_out, endpoint, terms, identity: identity::own() },
        ))
    }
}
