//! The sockets of a control plane, and the receivers of its events. Everything here runs under the
//! driver's lock.

use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::net::control::epoll::{Epoll, Trigger};
use crate::net::control::fork::process_id;
use crate::net::control::observers::PeerObserver;
use crate::net::control::observers::RecoveryEvents;
use crate::net::control::port::Port;
use crate::net::control::socket::{ControlSocket, Incoming};
use crate::proto::control::event::{End, Event, Level};
use crate::proto::control::plane::ControlPlane;
use crate::proto::control::{ConnId, StreamId, Time};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Keys of the epoll; all others are control connections.
pub(super) const TIMER: u64 = u64::MAX;
const PORT: u64 = u64::MAX - 1;

/// Reads of 4 KiB from one socket at a time, so that a flood cannot monopolise the thread.
const MAX_READS: usize = 16;
/// Batches of the epoll at a time.
const MAX_BATCHES: usize = 8;
/// Clients accepted at a time.
const MAX_ACCEPTS: usize = 32;

/// Descriptors, and the observers of the peers.
#[derive(Debug)]
pub(super) struct Sockets {
    /// The process that created them.
    owner: u32,
    epoll: Arc<Epoll>,
    by_conn: HashMap<ConnId, ControlSocket>,
    port: Option<Port>,
    peers: HashMap<StreamId, Weak<dyn PeerObserver>>,
    /// Connections that may have more to read.
    unread: Vec<ConnId>,
    /// When the timer is due.
    armed: Option<Time>,
}

/// Work to be done without the driver's lock.
#[derive(Debug, Default)]
pub(super) struct DeferredWork {
    /// Notified observers, to be dropped: each may hold the last reference to its stream.
    notified: Vec<Arc<dyn PeerObserver>>,
    /// The handlers that they passed the change to, to be dropped too.
    recovery: Vec<Arc<dyn RecoveryEvents>>,
    /// Log lines, whose reader may be slow.
    lines: Vec<(Level, String)>,
}

impl DeferredWork {
    /// Does the work.
    pub(super) fn finish(self) {
        for (level, text) in self.lines {
            match level {
                Level::Warn => log::warn!("{text}"),
                Level::Info => log::info!("{text}"),
                Level::Debug => log::debug!("{text}"),
            }
        }
    }
}

impl Sockets {
    pub(super) fn new(epoll: Arc<Epoll>) -> Self {
        let owner = process_id();
        Self {
            owner,
            epoll,
            by_conn: HashMap::new(),
            port: None,
            peers: HashMap::new(),
            unread: Vec::new(),
            armed: None,
        }
    }

    /// The port; opens it on `interface` if there is none.
    pub(super) fn open_port(&mut self, interface: &Interface) -> Result<&Port> {
        let port = match self.port.take() {
            Some(port) => port,
            None => {
                let port = Port::open(interface)?;
                self.epoll.add(&port, PORT, Trigger::Level)?;
                port
            }
        };
        Ok(self.port.insert(port))
    }

    pub(super) fn port(&self) -> Option<&Port> {
        self.port.as_ref()
    }

    pub(super) fn add_peer(&mut self, stream: StreamId, peer: &Arc<dyn PeerObserver>) {
        self.peers.insert(stream, Arc::downgrade(peer));
    }

    pub(super) fn remove_peer(&mut self, stream: StreamId) {
        self.peers.remove(&stream);
    }

    pub(super) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(super) fn armed(&mut self) -> &mut Option<Time> {
        &mut self.armed
    }

    /// Reads what is available, and accepts clients.
    pub(super) fn poll(&mut self, plane: &mut ControlPlane, now: Time) -> Result<()> {
        let mut is_called = false;
        for conn in std::mem::take(&mut self.unread) {
            self.handle_ready(plane, now, conn);
        }
        for _ in 0..MAX_BATCHES {
            let mut is_empty = true;
            for key in self.epoll.wait(0).map_err(|e| Error::os("epoll_wait", e))? {
                match key {
                    // It stays ready until it is set again, to any time.
                    TIMER => self.armed = Some(Time::MAX),
                    PORT => is_called = true,
                    conn => {
                        is_empty = false;
                        self.handle_ready(plane, now, ConnId(conn));
                    }
                }
            }
            if is_empty {
                break;
            }
        }
        // Last, so that existing clients are read first.
        if is_called { self.accept_clients(plane, now) } else { Ok(()) }
    }

    fn handle_ready(&mut self, plane: &mut ControlPlane, now: Time, conn: ConnId) {
        let Some(socket) = self.by_conn.get_mut(&conn) else { return };
        match socket.poll_connected() {
            Ok(true) => plane.handle_connected(now, conn),
            Ok(false) if socket.is_connecting() => return,
            Ok(false) => {}
            Err(errno) => return plane.handle_end(now, conn, End::Unreachable(errno)),
        }
        self.write(plane, conn);
        self.read(plane, now, conn);
    }

    fn read(&mut self, plane: &mut ControlPlane, now: Time, conn: ConnId) {
        let mut buffer = [0; 4096];
        for _ in 0..MAX_READS {
            let Some(socket) = self.by_conn.get_mut(&conn) else { return };
            match socket.read(&mut buffer) {
                Incoming::Bytes(count) => plane.handle_bytes(now, conn, &buffer[..count]),
                Incoming::Nothing => return,
                Incoming::End(end) => return plane.handle_end(now, conn, end),
            }
            // A peer that does not read its answers is not read either, until the kernel has room
            // for them.
            self.write(plane, conn);
            let has_room_later = self.by_conn.get(&conn).is_some_and(ControlSocket::can_write);
            if has_room_later && plane.is_backlogged(conn) {
                return;
            }
        }
        if !self.unread.contains(&conn) {
            self.unread.push(conn);
        }
    }

    fn write(&mut self, plane: &mut ControlPlane, conn: ConnId) {
        let Some(socket) = self.by_conn.get_mut(&conn) else { return };
        let bytes = plane.poll_transmit(conn);
        if !bytes.is_empty() && !socket.is_connecting() {
            let written = socket.write(bytes);
            plane.handle_transmitted(conn, written);
        }
    }

    fn accept_clients(&mut self, plane: &mut ControlPlane, now: Time) -> Result<()> {
        for _ in 0..MAX_ACCEPTS {
            let Some(port) = &self.port else { return Ok(()) };
            if plane.make_room(now).is_err() {
                return Ok(());
            }
            let Some((stream, peer)) = port.accept()? else { return Ok(()) };
            let conn = plane.handle_client(now, peer);
            // This client cannot be served. The listener that polled is not at fault.
            let taken = ControlSocket::accepted(stream)
                .and_then(|socket| self.epoll.add(&socket, conn.0, Trigger::Room).map(|()| socket));
            match taken {
                Ok(socket) => drop(self.by_conn.insert(conn, socket)),
                Err(e) => plane.handle_end(now, conn, End::Lost(e.to_string())),
            }
            self.read(plane, now, conn);
        }
        Ok(())
    }

    /// Executes the actions of the control plane, except for those in [`DeferredWork`].
    pub(super) fn settle(&mut self, plane: &mut ControlPlane, now: Time) -> DeferredWork {
        let mut settled = DeferredWork::default();
        loop {
            while let Some(event) = plane.poll_event() {
                self.handle_event(plane, now, event, &mut settled);
            }
            match plane.poll_dirty() {
                Some(conn) => self.write(plane, conn),
                None => break,
            }
        }
        if let Some(port) = self.port.take_if(|_| !plane.is_port_needed()) {
            plane.set_port(None);
            self.epoll.remove(&port);
        }
        settled
    }

    fn handle_event(
        &mut self,
        plane: &mut ControlPlane,
        now: Time,
        event: Event,
        settled: &mut DeferredWork,
    ) {
        match event {
            Event::Dial { conn, address } => match ControlSocket::dial(address) {
                Ok(socket) => match self.epoll.add(&socket, conn.0, Trigger::Room) {
                    Ok(()) => drop(self.by_conn.insert(conn, socket)),
                    Err(_) => plane.handle_end(now, conn, End::Unreachable(libc::ENOMEM)),
                },
                Err(errno) => plane.handle_end(now, conn, End::Unreachable(errno)),
            },
            Event::Close { conn, last } => {
                if let Some(mut socket) = self.by_conn.remove(&conn) {
                    self.epoll.remove(&socket);
                    if !socket.is_connecting() {
                        socket.finish(&last);
                    }
                }
            }
            Event::Peer { stream, change } => {
                if let Some(peer) = self.peers.get(&stream).and_then(Weak::upgrade) {
                    settled.recovery.extend(peer.handle_change(change));
                    settled.notified.push(peer);
                }
            }
            Event::Log { level, text } => settled.lines.push((level, text)),
        }
    }
}

impl Drop for Sockets {
    /// Only the owner sends its last frames: in a forked child the numbers refer to inert files by
    /// now.
    fn drop(&mut self) {
        // Asked of the kernel: what is done below must not happen in a child, however it was made.
        if self.owner != std::process::id() {
            return;
        }
        for socket in self.by_conn.values_mut().filter(|socket| !socket.is_connecting()) {
            socket.finish(&[]);
        }
    }
}
