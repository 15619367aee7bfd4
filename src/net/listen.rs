//! The listening side of a connection's set-up.
//!
//! The reception leads those to a listener who know its token. Each is a candidate with a deadline of its own; only one that
//! commits becomes a communicator.

use super::channel::{Channel, Heard};
use super::joining::Joining;
use super::lanes::IdleLanes;
use super::line::End;
use super::link::Link;
use super::nic::Nic;
use super::receiver::{RECEIVER_DEPTHS, RecvComm, RecvPath};
use super::reception::Reception;
use crate::error::{Error, Result};
use crate::host::random;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Handle;
use crate::proto::handshake::{Hello, Reply, Terms};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Candidates that are heard at once; others have to wait.
const MAX_CANDIDATES: usize = 32;

/// A listener for one peer.
#[derive(Debug)]
pub struct Listener {
    nic: Arc<Nic>,
    reception: Arc<Reception>,
    handle: Handle,
    candidates: Vec<Candidate>,
}

#[derive(Debug)]
struct Candidate {
    channel: Channel,
    deadline: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Is led here, since it knows the token.
    Caller,
    /// Has said hello; our queue pairs are being connected to its.
    Joining(Box<Preparing>),
    /// Has got our reply; its commit is due.
    Replied(Box<Prepared>),
}

/// What the reply waits for.
#[derive(Debug)]
struct Preparing {
    joining: Joining,
    hello: Hello,
    terms: Terms,
}

/// All that makes a communicator but the peer's commit.
#[derive(Debug)]
struct Prepared {
    path: RecvPath,
    peer: String,
}

enum Verdict {
    Wait,
    Dismiss(String),
    Take(Box<Prepared>),
}

impl Listener {
    /// Listens at `reception` for the peer of `nic`.
    ///
    /// # Errors
    /// The system gives no token.
    pub fn new(nic: Arc<Nic>, reception: Arc<Reception>) -> Result<Self> {
        let handle = Handle { address: reception.address(), token: random::bytes()? };
        reception.register(handle.token);
        Ok(Self { nic, reception, handle, candidates: Vec::new() })
    }

    /// What the peer has to be given.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Does what can be done now; the communicator, once the peer has committed.
    ///
    /// # Errors
    /// The peer came, and could not be served. Strangers and peers that vanish are no error.
    pub fn accept(&mut self) -> Result<Option<RecvComm>> {
        self.reception.poll(self.patience())?;
        self.admit();
        let mut i = 0;
        while i < self.candidates.len() {
            match self.hear(i)? {
                Verdict::Wait => i += 1,
                Verdict::Dismiss(why) => {
                    let candidate = self.candidates.remove(i);
                    let (at, from) = (self.handle.address, candidate.channel.peer());
                    log::info!("listener {at} for {}: dismissed {from}: {why}", self.nic.name);
                }
                Verdict::Take(prepared) => {
                    let Candidate { channel, .. } = self.candidates.remove(i);
                    return self.complete(channel, *prepared).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.nic.config.handshake_timeout_s)
    }

    fn admit(&mut self) {
        while self.candidates.len() < MAX_CANDIDATES
            && let Some(channel) = self.reception.fetch(&self.handle.token)
        {
            let deadline = Instant::now() + self.patience();
            self.candidates.push(Candidate { channel, deadline, stage: Stage::Caller });
        }
    }

    fn hear(&mut self, index: usize) -> Result<Verdict> {
        let candidate = &mut self.candidates[index];
        let frame = match candidate.channel.poll_frame() {
            Heard::Frame(frame) => frame,
            Heard::Nothing if Instant::now() < candidate.deadline => return self.proceed(index),
            Heard::Nothing => return Ok(self.too_late(index)),
            Heard::End(End::Lost(why)) => return Ok(Verdict::Dismiss(format!("its connection was lost: {why}"))),
            Heard::End(End::Wrong(why)) => return Ok(Verdict::Dismiss(why)),
            Heard::End(_) => return Ok(Verdict::Dismiss("it closed the connection".into())),
        };
        match (frame.kind, std::mem::replace(&mut candidate.stage, Stage::Caller)) {
            (Kind::Hello, Stage::Caller) => self.reply(index, &frame),
            (Kind::Commit, Stage::Replied(prepared)) => Ok(Verdict::Take(prepared)),
            (Kind::Goodbye, _) => Ok(Verdict::Dismiss("it closed the connection".into())),
            (kind, _) => {
                candidate.refuse(&format!("an unexpected {kind:?}"));
                Ok(Verdict::Dismiss(format!("it sent an unexpected {kind:?}")))
            }
        }
    }

    /// The deadline of a candidate has passed; who is to blame, it or this end.
    fn too_late(&self, index: usize) -> Verdict {
        let candidate = &self.candidates[index];
        if !matches!(candidate.stage, Stage::Joining(_)) {
            return Verdict::Dismiss("it stayed silent".into());
        }
        let seconds = self.nic.config.handshake_timeout_s;
        let why = format!("the queue pairs could not be connected within FERRITE_HANDSHAKE_TIMEOUT={seconds} s");
        candidate.refuse(&why);
        Verdict::Dismiss(why)
    }

    /// The right peer has come: make our end.
    fn reply(&mut self, index: usize, frame: &Frame) -> Result<Verdict> {
        let begun = Hello::parse(&frame.body).map_err(Error::from).and_then(|hello| begin(&self.nic, hello));
        let preparing = begun.map_err(|e| self.turn_down(index, e))?;
        let patience = self.patience();
        let candidate = &mut self.candidates[index];
        candidate.deadline = Instant::now() + patience;
        candidate.stage = Stage::Joining(Box::new(preparing));
        self.proceed(index)
    }

    /// Goes on with what does not wait for the peer; once it is done, the peer is told.
    fn proceed(&mut self, index: usize) -> Result<Verdict> {
        let Stage::Joining(preparing) = &mut self.candidates[index].stage else { return Ok(Verdict::Wait) };
        match preparing.joining.advance(&self.nic) {
            Ok(true) => {}
            Ok(false) => return Ok(Verdict::Wait),
            Err(e) => return Err(self.turn_down(index, e)),
        }
        let candidate = &mut self.candidates[index];
        let Stage::Joining(preparing) = std::mem::replace(&mut candidate.stage, Stage::Caller) else {
            return Ok(Verdict::Wait);
        };
        let (prepared, reply) = preparing.finish().map_err(|e| self.turn_down(index, e))?;
        let patience = self.patience();
        let candidate = &mut self.candidates[index];
        candidate.channel.send(Kind::Reply, reply.frame(self.handle.token).body);
        candidate.deadline = Instant::now() + patience;
        candidate.stage = Stage::Replied(Box::new(prepared));
        Ok(Verdict::Wait)
    }

    /// The right peer cannot be served, and is told why.
    fn turn_down(&mut self, index: usize, error: Error) -> Error {
        let candidate = self.candidates.remove(index);
        candidate.refuse(&error.text);
        error.during(format_args!("accepting {} on {}", candidate.channel.peer(), self.nic.name))
    }

    fn complete(&self, channel: Channel, prepared: Prepared) -> Result<RecvComm> {
        let peer = format!("{} ({})", prepared.peer, channel.peer());
        let link = Link::open(peer, channel);
        self.nic.watch(&link)?;
        log::debug!("{} receives from {}", self.nic.name, link.peer());
        Ok(RecvComm::new(Arc::clone(&self.nic), link, prepared.path))
    }
}

impl Candidate {
    fn refuse(&self, why: &str) {
        self.channel.send(Kind::Refuse, why.as_bytes().to_vec());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.reception.deregister(&self.handle.token);
    }
}

/// Makes our end for the peer that said `hello`.
fn begin(nic: &Nic, hello: Hello) -> Result<Preparing> {
    let offered = hello.endpoint.rails.iter().map(|rail| rail.lanes.len()).min().unwrap_or(0);
    let count = usize::from(nic.config.lanes).min(offered);
    let idle = IdleLanes::new(nic, count, RECEIVER_DEPTHS, Some(&hello.endpoint))?;
    let terms = Terms::agree(&hello.endpoint, &idle.endpoint)?;
    let joining = idle.join(nic, hello.endpoint.clone(), &terms, nic.config.announce_traffic_class)?;
    Ok(Preparing { joining, hello, terms })
}

impl Preparing {
    fn finish(self) -> Result<(Prepared, Reply)> {
        let Self { joining, hello, terms } = self;
        let (lanes, endpoint) = joining.finish();
        let path = RecvPath::new(lanes, hello.ring, &terms)?;
        Ok((Prepared { path, peer: hello.endpoint.name }, Reply { endpoint, terms }))
    }
}
