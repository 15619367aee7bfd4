//! Incoming control connections of this process's port: clients that have not presented a
//! listener's token yet, listeners with their waiting clients, and streams that a peer may resume
//! over another control connection.

use super::refusal::Refusal;
use super::{ConnId, StreamId, Time};
use crate::handle::{Secret, Token};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The most unauthenticated clients at a time. If another one arrives, the oldest is closed.
pub const MAX_CLIENTS: usize = 128;
/// The least time that each has for its first frame. Until then further clients wait in the
/// system's queue.
pub const GRACE: Duration = Duration::from_millis(50);
/// The most clients that may wait for one listener.
pub const MAX_PENDING: usize = 32;

/// An unauthenticated client.
#[derive(Debug, Clone, Copy)]
struct Client {
    conn: ConnId,
    came: Time,
    deadline: Time,
}

/// The table of a port.
#[derive(Debug, Default)]
pub struct ControlAcceptor {
    /// The oldest first.
    clients: Vec<Client>,
    listeners: BTreeMap<Token, VecDeque<StreamId>>,
    by_secret: BTreeMap<Secret, StreamId>,
}

impl ControlAcceptor {
    /// Adds a listener with `token`.
    pub fn register(&mut self, token: Token) {
        self.listeners.entry(token).or_default();
    }

    /// Removes a listener. Returns the clients that wait for it.
    pub fn deregister(&mut self, token: &Token) -> VecDeque<StreamId> {
        self.listeners.remove(token).unwrap_or_default()
    }

    /// Whether there is a listener.
    pub fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Whether a peer with this hello may wait.
    ///
    /// # Errors
    /// It may not, for this reason.
    pub fn check(&self, token: &Token, secret: &Secret) -> Result<(), Refusal> {
        match self.listeners.get(token) {
            None => Err(Refusal::UnknownToken),
            Some(pending) if pending.len() >= MAX_PENDING => Err(Refusal::TooManyPending),
            Some(_) if self.by_secret.contains_key(secret) => Err(Refusal::KnownSecret),
            Some(_) => Ok(()),
        }
    }

    /// Lets `stream`, identified by `secret`, wait for the listener with `token`.
    pub fn admit(&mut self, token: &Token, secret: Secret, stream: StreamId) {
        if let Some(pending) = self.listeners.get_mut(token) {
            pending.push_back(stream);
        }
        self.by_secret.insert(secret, stream);
    }

    /// The next client for the listener with `token`.
    pub fn fetch(&mut self, token: &Token) -> Option<StreamId> {
        self.listeners.get_mut(token)?.pop_front()
    }

    /// Whether `stream` was waiting for its listener; it no longer does.
    pub fn withdraw(&mut self, token: &Token, stream: StreamId) -> bool {
        let Some(pending) = self.listeners.get_mut(token) else { return false };
        let before = pending.len();
        pending.retain(|one| *one != stream);
        pending.len() < before
    }

    /// The stream with `secret`.
    pub fn stream(&self, secret: &Secret) -> Option<StreamId> {
        self.by_secret.get(secret).copied()
    }

    /// Removes `stream`.
    pub fn forget(&mut self, token: &Token, secret: &Secret, stream: StreamId) {
        self.withdraw(token, stream);
        if self.by_secret.get(secret) == Some(&stream) {
            self.by_secret.remove(secret);
        }
    }

    /// Adds a client that has connected, and must send its first frame by `deadline`.
    pub fn add_client(&mut self, conn: ConnId, came: Time, deadline: Time) {
        self.clients.push(Client { conn, came, deadline });
    }

    /// Removes `conn` from the unauthenticated clients.
    pub fn remove_client(&mut self, conn: ConnId) {
        self.clients.retain(|client| client.conn != conn);
    }

    /// The client that must be closed before another one is accepted, if any.
    ///
    /// # Errors
    /// No client may be closed before this time.
    pub fn poll_surplus(&self, now: Time) -> Result<Option<ConnId>, Time> {
        match self.clients.first().filter(|_| self.clients.len() >= MAX_CLIENTS) {
            None => Ok(None),
            Some(oldest) if now < oldest.came + GRACE => Err(oldest.came + GRACE),
            Some(oldest) => Ok(Some(oldest.conn)),
        }
    }

    /// A client that has missed its deadline.
    pub fn poll_late(&self, now: Time) -> Option<ConnId> {
        self.clients.iter().find(|client| client.deadline <= now).map(|client| client.conn)
    }

    /// The next deadline.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.clients.iter().map(|client| client.deadline).min()
    }

    /// All unauthenticated clients.
    pub fn clients(&self) -> Vec<ConnId> {
        self.clients.iter().map(|client| client.conn).collect()
    }

    /// The most streams that wait for any one listener.
    #[cfg(any(test, feature = "simulator"))]
    pub fn most_pending(&self) -> usize {
        self.listeners.values().map(VecDeque::len).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_client_goes_for_a_new_one_and_not_before_its_grace_is_over() {
        let mut acceptor = ControlAcceptor::default();
        let at = Duration::from_millis;
        for n in 0..MAX_CLIENTS as u64 {
            assert_eq!(acceptor.poll_surplus(at(n)), Ok(None));
            acceptor.add_client(ConnId(n), at(n), at(5000 + n));
        }
        assert_eq!(acceptor.poll_surplus(at(49)), Err(GRACE));
        assert_eq!(acceptor.poll_surplus(at(50)), Ok(Some(ConnId(0))));
        assert_eq!((acceptor.poll_timeout(), acceptor.poll_late(at(4999))), (Some(at(5000)), None));
        assert_eq!(acceptor.poll_late(at(5000)), Some(ConnId(0)));
        acceptor.remove_client(ConnId(0));
        assert_eq!(acceptor.poll_surplus(at(50)), Ok(None));
    }

    #[test]
    fn a_stream_that_has_ended_makes_room_for_another_client() {
        let (mut acceptor, token) = (ControlAcceptor::default(), [1; 16]);
        acceptor.register(token);
        for n in 0..MAX_PENDING as u8 {
            assert_eq!(acceptor.check(&token, &[n; 16]), Ok(()));
            acceptor.admit(&token, [n; 16], StreamId(n.into()));
        }
        assert!(acceptor.check(&token, &[99; 16]).is_err());
        acceptor.forget(&token, &[5; 16], StreamId(5));
        assert_eq!(acceptor.check(&token, &[99; 16]), Ok(()));
        assert!(acceptor.check(&token, &[4; 16]).is_err(), "a secret names one stream");
        assert_eq!(acceptor.check(&[2; 16], &[99; 16]), Err(Refusal::UnknownToken));
        let fetched: Vec<_> = std::iter::from_fn(|| acceptor.fetch(&token)).collect();
        assert_eq!(fetched.len(), MAX_PENDING - 1);
        assert!(acceptor.stream(&[4; 16]).is_some() && acceptor.stream(&[5; 16]).is_none());
    }
}
