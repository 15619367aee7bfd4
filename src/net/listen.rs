//! The listening side of a connection's set-up.
//!
//! Anybody may come to the port. Each caller is a candidate with a deadline of its own; only one that shows the
//! listener's token costs more than a socket, and only one that commits becomes a communicator.

use super::joining::Joining;
use super::lanes::IdleLanes;
use super::link::Link;
use super::nic::Nic;
use super::receiver::{RECEIVER_DEPTHS, RecvComm, RecvPath};
use super::socket::{ControlSocket, Incoming};
use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::host::random;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Handle;
use crate::proto::handshake::{Hello, Reply, Terms};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Callers that are heard at once; one more, and the oldest that has been heard and has shown nothing has to go.
const MAX_CANDIDATES: usize = 32;

/// A listener for one peer.
#[derive(Debug)]
pub struct Listener {
    nic: Arc<Nic>,
    socket: TcpListener,
    handle: Handle,
    candidates: Vec<Candidate>,
}

#[derive(Debug)]
struct Candidate {
    socket: ControlSocket,
    deadline: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Has not shown the token.
    Stranger,
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
    /// Listens on `interface` for the peer of `nic`.
    ///
    /// # Errors
    /// No port can be had.
    pub fn new(nic: Arc<Nic>, interface: &Interface) -> Result<Self> {
        let what = || format!("listening on {} ({})", interface.name, interface.address.ip());
        let socket = TcpListener::bind(interface.address).map_err(|e| Error::io(what(), &e))?;
        socket.set_nonblocking(true).map_err(|e| Error::io(what(), &e))?;
        let mut address = socket.local_addr().map_err(|e| Error::io(what(), &e))?;
        address.set_ip(interface.address.ip());
        let handle = Handle { address, token: random::bytes()? };
        Ok(Self { nic, socket, handle, candidates: Vec::new() })
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
        self.admit()?;
        let mut i = 0;
        while i < self.candidates.len() {
            match self.hear(i)? {
                Verdict::Wait => i += 1,
                Verdict::Dismiss(why) => {
                    let candidate = self.candidates.remove(i);
                    let (at, from) = (self.handle.address, candidate.socket.peer());
                    log::info!("listener {at} for {}: dismissed {from}: {why}", self.nic.name);
                }
                Verdict::Take(prepared) => {
                    let Candidate { socket, .. } = self.candidates.remove(i);
                    return self.complete(socket, *prepared).map(Some);
                }
            }
        }
        Ok(None)
    }

    fn admit(&mut self) -> Result<()> {
        // Bounded, so that a flood of callers cannot hold NCCL's thread.
        for _ in 0..MAX_CANDIDATES {
            let (stream, peer) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(e) => return Err(Error::io(format_args!("accepting on {}", self.handle.address), &e)),
            };
            let evicting = self.candidates.len() == MAX_CANDIDATES;
            if evicting {
                let oldest = self.candidates.iter().position(|c| matches!(c.stage, Stage::Stranger));
                self.candidates.remove(oldest.unwrap_or(0));
            }
            let deadline = Instant::now() + Duration::from_secs(self.nic.config.handshake_timeout_s);
            let socket = ControlSocket::accepted(stream, peer)?;
            self.candidates.push(Candidate { socket, deadline, stage: Stage::Stranger });
            // Everybody is heard once before anybody else has to go.
            if evicting {
                break;
            }
        }
        Ok(())
    }

    fn hear(&mut self, index: usize) -> Result<Verdict> {
        let candidate = &mut self.candidates[index];
        if candidate.socket.poll_sent().is_err() {
            return Ok(Verdict::Dismiss("it closed the connection".into()));
        }
        let frame = match candidate.socket.poll_frame() {
            Ok(Incoming::Frame(frame)) => frame,
            Ok(Incoming::Nothing) if Instant::now() < candidate.deadline => return self.proceed(index),
            Ok(Incoming::Nothing) => return Ok(Verdict::Dismiss("it stayed silent".into())),
            Ok(Incoming::Closed) => return Ok(Verdict::Dismiss("it closed the connection".into())),
            Ok(Incoming::Lost(why)) => return Ok(Verdict::Dismiss(format!("its connection was lost: {why}"))),
            Err(violation) => {
                candidate.refuse(&self.handle, violation.text());
                return Ok(Verdict::Dismiss(violation.to_string()));
            }
        };
        if frame.token != self.handle.token {
            candidate.refuse(&self.handle, "this listener waits for another peer (wrong token)");
            return Ok(Verdict::Dismiss("it does not know this listener's token: another job, or a port scan".into()));
        }
        match (frame.kind, std::mem::replace(&mut candidate.stage, Stage::Stranger)) {
            (Kind::Hello, Stage::Stranger) => self.reply(index, &frame),
            (Kind::Commit, Stage::Replied(prepared)) => Ok(Verdict::Take(prepared)),
            (kind, _) => {
                candidate.refuse(&self.handle, &format!("an unexpected {kind:?}"));
                Ok(Verdict::Dismiss(format!("it sent an unexpected {kind:?}")))
            }
        }
    }

    /// The right peer has come: make our end.
    fn reply(&mut self, index: usize, frame: &Frame) -> Result<Verdict> {
        let begun = Hello::parse(&frame.body).map_err(Error::from).and_then(|hello| begin(&self.nic, hello));
        let preparing = begun.map_err(|e| self.turn_down(index, e))?;
        let candidate = &mut self.candidates[index];
        candidate.deadline = Instant::now() + Duration::from_secs(self.nic.config.handshake_timeout_s);
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
        let Stage::Joining(preparing) = std::mem::replace(&mut candidate.stage, Stage::Stranger) else {
            return Ok(Verdict::Wait);
        };
        let (prepared, reply) = preparing.finish().map_err(|e| self.turn_down(index, e))?;
        let candidate = &mut self.candidates[index];
        candidate.socket.send(&reply.frame(self.handle.token));
        candidate.deadline = Instant::now() + Duration::from_secs(self.nic.config.handshake_timeout_s);
        candidate.stage = Stage::Replied(Box::new(prepared));
        if candidate.socket.poll_sent().is_err() {
            return Ok(Verdict::Dismiss("it closed the connection".into()));
        }
        Ok(Verdict::Wait)
    }

    /// The right peer cannot be served, and is told why.
    fn turn_down(&mut self, index: usize, error: Error) -> Error {
        let mut candidate = self.candidates.remove(index);
        candidate.refuse(&self.handle, &error.text);
        error.during(format_args!("accepting {} on {}", candidate.socket.peer(), self.nic.name))
    }

    fn complete(&self, socket: ControlSocket, prepared: Prepared) -> Result<RecvComm> {
        let peer = format!("{} ({})", prepared.peer, socket.peer());
        let link = Arc::new(Link::new(peer, self.handle.token, socket));
        self.nic.watch(&link)?;
        log::debug!("{} receives from {}", self.nic.name, link.peer());
        Ok(RecvComm::new(Arc::clone(&self.nic), link, prepared.path))
    }
}

impl Candidate {
    fn refuse(&mut self, handle: &Handle, why: &str) {
        // A stranger is not told the token.
        let token = if matches!(self.stage, Stage::Stranger) { [0; 16] } else { handle.token };
        self.socket.send(&Frame::text(Kind::Refuse, token, why));
        let _ = self.socket.poll_sent();
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
