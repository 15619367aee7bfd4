//! The driver of all control connections of this process: it moves bytes between sockets and the
//! [`ControlPlane`], under one lock.
//!
//! Connection set-up polls it, and so does the [watcher](crate::net::background::watcher) that
//! serves it. Its epoll is ready while there is something to do, deadlines included.
//!
//! A forked child has a copy, whose lock may be held by a thread that does not exist in the child.
//! Every use goes through [`ControlDriver::enter`], which fails in the child.

use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::host::random;
use crate::net::control::epoll::{Epoll, Trigger};
use crate::net::control::fork::CloseOnFork;
use crate::net::control::fork::process_id;
use crate::net::control::observers::PeerObserver;
use crate::net::control::port::Port;
use crate::net::control::sockets::{Sockets, TIMER};
use crate::proto::control::plane::ControlPlane;
use crate::proto::control::{StreamId, Time};
use crate::proto::handle::{Secret, Token};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The most clients that may have queued while no listener existed; the system keeps about as many.
const MAX_QUEUE: usize = 4096;
/// The most queued clients to close when the last listener closes.
const MAX_TOLD: usize = 128;

/// All control connections of this process, and its port.
#[derive(Debug)]
pub struct ControlDriver {
    /// The process that created it.
    owner: u32,
    start: Instant,
    /// Where to open its port when it first dials.
    interface: Option<Interface>,
    is_served: AtomicBool,
    epoll: Arc<Epoll>,
    timer: Timer,
    state: Mutex<State>,
}

/// State under the lock.
#[derive(Debug)]
struct State {
    plane: ControlPlane,
    sockets: Sockets,
}

impl ControlDriver {
    /// A driver without connections. A client has `first_frame_limit` for its first frame. If
    /// `interface` is given, a process that dials also listens there, for peers that have lost
    /// their control connections.
    ///
    /// # Errors
    /// There are no descriptors left, or no random numbers.
    pub fn new(first_frame_limit: Duration, interface: Option<Interface>) -> Result<Arc<Self>> {
        let (epoll, timer) = (Arc::new(Epoll::new()?), Timer::new()?);
        epoll.add(&timer.fd, TIMER, Trigger::Level)?;
        let plane = ControlPlane::new(first_frame_limit, u64::from_le_bytes(random::bytes()?));
        let state = Mutex::new(State { plane, sockets: Sockets::new(Arc::clone(&epoll)) });
        let (owner, start) = (process_id(), Instant::now());
        Ok(Arc::new(Self {
            owner,
            start,
            interface,
            is_served: AtomicBool::new(false),
            epoll,
            timer,
            state,
        }))
    }

    /// Whether it belongs to the parent of this forked process.
    pub fn is_inherited(&self) -> bool {
        self.owner != process_id()
    }

    /// Claims the task of serving it; false if it is claimed already.
    pub fn begin_to_serve(&self) -> bool {
        !self.is_served.swap(true, Ordering::Relaxed)
    }

    /// Gives the task of serving it back.
    pub fn end_to_serve(&self) {
        self.is_served.store(false, Ordering::Relaxed);
    }

    /// Returns the address for clients of the listener with `token`. Opens this process's port on
    /// `interface` if there is none.
    ///
    /// # Errors
    /// No port can be had.
    pub fn listen(&self, interface: &Interface, token: Token) -> Result<SocketAddr> {
        let listen = |state: &mut State| {
            let port = state.sockets.open_port(interface)?;
            if !state.plane.has_listeners() {
                // No peer can know this listener yet, so clients that queued before it are
                // strangers.
                port.clear_queue(MAX_QUEUE);
            }
            let address = port.address();
            state.plane.set_port(Some(address));
            state.plane.register(token);
            Ok(address)
        };
        self.enter(|state, _| listen(state)).unwrap_or_else(|| Err(inherited()))
    }

    /// A stream to the listener with `token` at `address`; `None` in a forked child.
    pub(super) fn open(
        &self,
        address: SocketAddr,
        token: Token,
        secret: Secret,
    ) -> Option<StreamId> {
        self.enter(|state, now| {
            if let Some(interface) =
                self.interface.as_ref().filter(|_| state.sockets.port().is_none())
            {
                match state.sockets.open_port(interface).map(Port::address) {
                    Ok(address) => state.plane.set_port(Some(address)),
                    Err(e) => log::debug!(
                        "peers that lose their control connections cannot call this process: {e}"
                    ),
                }
            }
            state.plane.open(now, address, token, secret)
        })
    }

    /// Removes the listener with `token`.
    pub fn deregister(&self, token: &Token) {
        self.enter(|state, _| {
            state.plane.deregister(token);
            if let Some(port) = state.sockets.port().filter(|_| !state.plane.has_listeners()) {
                port.clear_queue(MAX_TOLD);
            }
        });
    }

    /// Does everything that needs no waiting: reads, writes, accepts clients, and handles timeouts.
    ///
    /// # Errors
    /// No more clients can be accepted.
    pub fn poll(&self) -> Result<()> {
        self.enter(|State { plane, sockets }, now| {
            // Input first: this process may have been stopped beyond a deadline.
            let polled = sockets.poll(plane, now);
            plane.handle_timeout(now);
            polled
        })
        .unwrap_or(Ok(()))
    }

    /// A port of this machine has come up: redials lost control connections at once.
    pub fn handle_network_change(&self) {
        self.with(ControlPlane::handle_network_change);
    }

    /// Reports changes at the other end of `stream` to `peer` from now on.
    pub(super) fn establish(
        &self,
        stream: StreamId,
        peer: &Arc<dyn PeerObserver>,
        receives_recovery: bool,
    ) {
        self.enter(|state, now| {
            state.sockets.add_peer(stream, peer);
            state.plane.establish(now, stream, receives_recovery);
        });
    }

    /// `stream` has no owner any more.
    pub(super) fn close(&self, stream: StreamId) {
        self.enter(|state, now| {
            state.sockets.remove_peer(stream);
            state.plane.close(now, stream);
        });
    }

    /// Runs `body` on the control plane. `None` in a forked child.
    pub(super) fn with<T>(&self, body: impl FnOnce(&mut ControlPlane, Time) -> T) -> Option<T> {
        self.enter(|state, now| body(&mut state.plane, now))
    }

    fn enter<T>(&self, body: impl FnOnce(&mut State, Time) -> T) -> Option<T> {
        if self.is_inherited() {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.start.elapsed();
        let result = body(&mut state, now);
        let State { plane, sockets } = &mut *state;
        let settled = sockets.settle(plane, now);
        let due = if sockets.has_unread() { Some(now) } else { plane.poll_timeout() };
        self.timer.set(now, due, sockets.armed());
        drop(state);
        // This may call back into the driver.
        settled.finish();
        Some(result)
    }
}

impl AsFd for ControlDriver {
    /// Ready to read while [`Self::poll`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Makes the epoll ready at a deadline.
#[derive(Debug)]
struct Timer {
    // Declared first, to be dropped before the descriptor is closed.
    _unshared: CloseOnFork,
    fd: OwnedFd,
}

impl Timer {
    fn new() -> Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags);
        let fd = fd.map_err(|e| Error::os("timerfd_create", e.raw_os_error()))?;
        Ok(Self { _unshared: CloseOnFork::new(fd.as_raw_fd()), fd })
    }

    /// Sets the timer to `due`, unless it is `armed` for that already.
    fn set(&self, now: Time, due: Option<Time>, armed: &mut Option<Time>) {
        if due == *armed {
            return;
        }
        *armed = due;
        // All zero disarms the timer, so a past moment becomes the shortest pause.
        let pause =
            due.map_or(Duration::ZERO, |due| due.saturating_sub(now).max(Duration::from_nanos(1)));
        let it_value =
            Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = rustix::time::timerfd_settime(
            &self.fd,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval, it_value },
        );
    }
}

pub(super) fn inherited() -> Error {
    Error::internal("the control connections belong to the parent of this forked process")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::frame::{Frame, Kind};
    use std::io::{Read, Write};
    use std::net::TcpStream;

    /// The kernel has no memory for one client, and then for one with a known token. Each is
    /// closed, and another listener that polls gets no error.
    #[test]
    fn a_client_that_cannot_be_served_is_closed_and_no_other() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let driver = ControlDriver::new(Duration::from_secs(20), None).expect("descriptors");
        let address =
            driver.listen(&Interface { name: "lo".into(), address }, [1; 16]).expect("a port");
        let hello = Frame { kind: Kind::Hello, secret: [2; 16], body: vec![1; 16] }.emit();
        let until = |what: &str, is_done: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !is_done() {
                driver.poll().expect("no error of this process's");
                assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            }
        };
        for words in [&[] as &[u8], &hello] {
            let mut client = TcpStream::connect(address).expect("it listens");
            client.write_all(words).expect("sent");
            driver.epoll.refuses.store(1, Ordering::Relaxed);
            until("no client is accepted", &|| driver.epoll.refuses.load(Ordering::Relaxed) == 0);
            client.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
            // Closed or reset.
            assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
            assert!(driver.with(|plane, _| plane.fetch(&[1; 16])).flatten().is_none());
        }
        let mut client = TcpStream::connect(address).expect("it listens");
        client.write_all(&hello).expect("sent");
        until("the next one is served", &|| {
            driver.with(|plane, _| plane.fetch(&[1; 16])).flatten().is_some()
        });
    }
}
