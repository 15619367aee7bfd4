//! Who has come to this process's port: callers that have not shown yet that they have any business there, listeners with the
//! callers that wait for them, and the streams that a peer may go on with over another control connection.

use super::{ConnId, StreamId, Time};
use crate::proto::handle::{Secret, Token};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Unauthenticated callers that are heard at once; one more, and the oldest has to go.
pub const MAX_CALLERS: usize = 128;
/// What each has to say its first words, however many come after it; these wait in the system's queue until then.
pub const GRACE: Duration = Duration::from_millis(50);
/// Callers that one listener may leave waiting.
pub const MAX_PENDING: usize = 32;

/// What a caller is told that knows no listener's token.
pub const WRONG_TOKEN: &str = "no such listener: it has closed, or is another job's (wrong token)";
/// What a peer is told that would go on with a connection that there is not.
pub const NO_CONNECTION: &str = "no such connection: it has been closed, or is another process's";

/// An unauthenticated caller.
#[derive(Debug, Clone, Copy)]
struct Caller {
    conn: ConnId,
    came: Time,
    deadline: Time,
}

/// The table of a port.
#[derive(Debug, Default)]
pub struct ControlAcceptor {
    /// The oldest first.
    callers: Vec<Caller>,
    listeners: BTreeMap<Token, VecDeque<StreamId>>,
    by_secret: BTreeMap<Secret, StreamId>,
}

impl ControlAcceptor {
    /// From now on there is a listener that knows `token`.
    pub fn register(&mut self, token: Token) {
        self.listeners.entry(token).or_default();
    }

    /// There is none any more; those who wait for it.
    pub fn deregister(&mut self, token: &Token) -> VecDeque<StreamId> {
        self.listeners.remove(token).unwrap_or_default()
    }

    /// Whether anybody listens.
    pub fn has_listeners(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// Whether a peer with this hello may wait.
    ///
    /// # Errors
    /// It may not, for this reason.
    pub fn check(&self, token: &Token, secret: &Secret) -> Result<(), &'static str> {
        match self.listeners.get(token) {
            None => Err(WRONG_TOKEN),
            Some(pending) if pending.len() >= MAX_PENDING => Err("too many callers wait for this listener"),
            Some(_) if self.by_secret.contains_key(secret) => Err("this hello has been said before"),
            Some(_) => Ok(()),
        }
    }

    /// A stream waits for the listener that knows `token`, and is known by `secret`.
    pub fn admit(&mut self, token: &Token, secret: Secret, stream: StreamId) {
        if let Some(pending) = self.listeners.get_mut(token) {
            pending.push_back(stream);
        }
        self.by_secret.insert(secret, stream);
    }

    /// The next one that waits for the listener that knows `token`.
    pub fn fetch(&mut self, token: &Token) -> Option<StreamId> {
        self.listeners.get_mut(token)?.pop_front()
    }

    /// Whether `stream` still waits for its listener; it does not any more.
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

    /// `stream` is no more.
    pub fn forget(&mut self, token: &Token, secret: &Secret, stream: StreamId) {
        self.withdraw(token, stream);
        if self.by_secret.get(secret) == Some(&stream) {
            self.by_secret.remove(secret);
        }
    }

    /// Somebody has come, and has to say its first words by `deadline`.
    pub fn add_caller(&mut self, conn: ConnId, came: Time, deadline: Time) {
        self.callers.push(Caller { conn, came, deadline });
    }

    /// `conn` is no unauthenticated caller any more.
    pub fn remove_caller(&mut self, conn: ConnId) {
        self.callers.retain(|caller| caller.conn != conn);
    }

    /// The caller that has to go if another one is to be heard. `None`: nobody has to.
    ///
    /// # Errors
    /// Nobody may be sent away before this time.
    pub fn poll_surplus(&self, now: Time) -> Result<Option<ConnId>, Time> {
        match self.callers.first().filter(|_| self.callers.len() >= MAX_CALLERS) {
            None => Ok(None),
            Some(oldest) if now < oldest.came + GRACE => Err(oldest.came + GRACE),
            Some(oldest) => Ok(Some(oldest.conn)),
        }
    }

    /// A caller that has not said its first words in time.
    pub fn poll_late(&self, now: Time) -> Option<ConnId> {
        self.callers.iter().find(|caller| caller.deadline <= now).map(|caller| caller.conn)
    }

    /// When the next one is late.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.callers.iter().map(|caller| caller.deadline).min()
    }

    /// All unauthenticated callers.
    pub fn callers(&self) -> Vec<ConnId> {
        self.callers.iter().map(|caller| caller.conn).collect()
    }

    /// Whether the port is needed: somebody listens, or a peer may have to come back.
    pub fn is_needed(&self) -> bool {
        self.has_listeners() || !self.by_secret.is_empty()
    }

    /// The most streams that wait for any listener.
    #[cfg(test)]
    pub fn most_pending(&self) -> usize {
        self.listeners.values().map(VecDeque::len).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_caller_goes_for_a_new_one_and_not_before_its_grace_is_over() {
        let mut acceptor = ControlAcceptor::default();
        let at = Duration::from_millis;
        for n in 0..MAX_CALLERS as u64 {
            assert_eq!(acceptor.poll_surplus(at(n)), Ok(None));
            acceptor.add_caller(ConnId(n), at(n), at(5000 + n));
        }
        assert_eq!(acceptor.poll_surplus(at(49)), Err(GRACE));
        assert_eq!(acceptor.poll_surplus(at(50)), Ok(Some(ConnId(0))));
        assert_eq!((acceptor.poll_timeout(), acceptor.poll_late(at(4999))), (Some(at(5000)), None));
        assert_eq!(acceptor.poll_late(at(5000)), Some(ConnId(0)));
        acceptor.remove_caller(ConnId(0));
        assert_eq!(acceptor.poll_surplus(at(50)), Ok(None));
    }

    #[test]
    fn a_stream_that_has_ended_makes_room_for_another_caller() {
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
        assert_eq!(acceptor.check(&[2; 16], &[99; 16]), Err(WRONG_TOKEN));
        let fetched: Vec<_> = std::iter::from_fn(|| acceptor.fetch(&token)).collect();
        assert_eq!(fetched.len(), MAX_PENDING - 1);
        assert!(acceptor.stream(&[4; 16]).is_some() && acceptor.stream(&[5; 16]).is_none());
    }
}
