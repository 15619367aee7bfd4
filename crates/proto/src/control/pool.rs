//! The control connections that this process has dialled, by the peer's address: for streams that it dials for, and to ask others to dial.

use super::redial::{DIAL_LIMIT, Redial, Refusals, Silence};
use super::{ConnId, StreamId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What is known of one address.
#[derive(Debug, Default)]
pub struct Peer {
    /// The latest control connection to it.
    pub conn: Option<ConnId>,
    /// Since when that is dialled, or stands.
    pub since: Time,
    /// Whether the kernel still connects.
    pub is_dialling: bool,
    /// The attempts at another one.
    pub redial: Redial,
    /// Answers of a closed port.
    pub refusals: Refusals,
    /// Streams that need another one, or whose peer is to be asked to dial another one.
    pub waiting: BTreeSet<StreamId>,
    /// Since when the owners of all of those know that it is doubted whether the peer lives.
    pub doubted: Option<Time>,
    /// Looks since then without an acknowledgement of any of their devices.
    pub silence: Silence,
    /// Streams for which the peer has been asked whether they go on over this one, and has not answered.
    pub resuming: usize,
    /// Those for which it has answered so, since it was asked.
    pub resumed: usize,
    timer: Option<Time>,
}

/// Dialled control connections: at most one that is in use to each address.
#[derive(Debug, Default)]
pub struct ControlPool {
    peers: BTreeMap<SocketAddr, Peer>,
    /// When something is to be done about a peer: one entry each at most.
    timers: BTreeSet<(Time, SocketAddr)>,
}

impl ControlPool {
    /// What is known of `address`.
    pub fn get(&self, address: &SocketAddr) -> Option<&Peer> {
        self.peers.get(address)
    }

    /// Changes what is known of `address`. Nothing is kept of one that nobody needs.
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

    /// The network has changed: peers that wait to be dialled again are dialled at `now`.
    pub fn handle_network_change(&mut self, now: Time) {
        let addresses: Vec<_> = self.peers.keys().copied().collect();
        for address in addresses {
            self.update(address, |peer| peer.redial.handle_network_change(now));
        }
    }

    /// When something has to be done.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(due, _)| *due)
    }

    /// An address about which something has to be done by `now`.
    pub fn poll_due(&self, now: Time) -> Option<SocketAddr> {
        self.timers.first().filter(|(due, _)| *due <= now).map(|(_, address)| *address)
    }

    /// Addresses that something is known of.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }
}
