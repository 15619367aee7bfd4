//! The control connections that this process has dialled, by the peer's address: for its own
//! streams, and to ask others to dial.

use super::redial::{DIAL_LIMIT, Redial, Refusals, Silence};
use super::{ConnId, StreamId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// The state of one address.
#[derive(Debug, Default)]
pub struct Peer {
    /// The latest control connection to it.
    pub conn: Option<ConnId>,
    /// Since when it is being dialled, or is established.
    pub since: Time,
    /// Whether the kernel is still connecting.
    pub is_dialling: bool,
    /// The attempts to dial another one.
    pub redial: Redial,
    /// Refusals by a closed port.
    pub refusals: Refusals,
    /// Streams that need another one, or whose peer must be asked to dial one.
    pub waiting: BTreeSet<StreamId>,
    /// Since when the owners of all of them suspect the peer to be dead.
    pub doubted: Option<Time>,
    /// Looks since then without an acknowledgement of any of their devices.
    pub silence: Silence,
    /// Streams that this end has requested to continue over this one, without an answer so far.
    pub resuming: usize,
    /// Streams that were resumed over it.
    pub resumed: usize,
    timer: Option<Time>,
}

/// Dialled control connections: at most one in use for each address.
#[derive(Debug, Default)]
pub struct ControlPool {
    peers: BTreeMap<SocketAddr, Peer>,
    /// When something is due for a peer: at most one entry each.
    timers: BTreeSet<(Time, SocketAddr)>,
}

impl ControlPool {
    /// The state of `address`.
    pub fn get(&self, address: &SocketAddr) -> Option<&Peer> {
        self.peers.get(address)
    }

    /// Changes the state of `address`. Removes it if it is no longer needed.
    pub fn update<T>(&mut self, address: SocketAddr, change: impl FnOnce(&mut Peer) -> T) -> T {
        let peer = self.peers.entry(address).or_default();
        let result = change(peer);
        if peer.waiting.is_empty() {
            peer.redial.stop();
        }
        let limit = peer.is_dialling.then(|| peer.since + DIAL_LIMIT);
        let due = peer.redial.due().into_iter().chain(limit).min();
        let before = std::mem::replace(&mut peer.timer, due);
        let is_idle = peer.conn.is_none() && peer.waiting.is_empty();
        if let Some(before) = before {
            self.timers.remove(&(before, address));
        }
        self.timers.extend(due.map(|due| (due, address)));
        if is_idle {
            self.peers.remove(&address);
        }
        result
    }

    /// The network has changed: dials at `now` all peers that wait for it.
    pub fn handle_network_change(&mut self, now: Time) {
        let addresses: Vec<_> = self.peers.keys().copied().collect();
        for address in addresses {
            self.update(address, |peer| peer.redial.handle_network_change(now));
        }
    }

    /// The next time at which something is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// An address for which something is due at `now`.
    pub fn poll_due(&self, now: Time) -> Option<SocketAddr> {
        self.timers.first().filter(|(due, _)| *due <= now).map(|(_, address)| *address)
    }

    /// The known addresses.
    #[cfg(any(test, feature = "simulator"))]
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }
}
