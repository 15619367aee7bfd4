//! Whether a peer that does not answer is dead.
//!
//! The end of a control connection does not tell: a process that is killed ends it by a close, or by a reset if it had not read all; and so does
//! whatever is between two processes that live. So the peer is dialled, whichever end has dialled before. A port that refuses is that of a dead
//! process, unless the peer's device acknowledges. While that acknowledges, the peer lives. Nobody refuses where the peer's address has gone with its process, as that of a pod does:
//! there a control connection that was closed tells, when neither port nor device have answered since.

use super::{ControlPlane, PeerChange, Phase, StreamId, Time};
use crate::control::redial::{DOUBT_LIMIT, FRESH, Signs};
use std::net::SocketAddr;

const DEAD: &str = "the peer's process has died";

impl ControlPlane {
    /// The peer's device has acknowledged something, or sent something, while the peer of `id` was in doubt.
    pub fn handle_acknowledged(&mut self, now: Time, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.acknowledged = Some(now);
        }
    }

    /// An attempt at the port at `address` has failed: if its process is dead, the streams that wait for it have no peer any more.
    pub(super) fn give_up_dead(&mut self, now: Time, address: SocketAddr) {
        let Some(peer) = self.pool.get(&address) else { return };
        let streams = || peer.waiting.iter().filter_map(|id| self.streams.get(id));
        let signs = Signs {
            refusals: peer.refusals,
            closed: streams().filter_map(|stream| stream.closed).min(),
            acknowledged: streams().filter_map(|stream| stream.acknowledged).max(),
            doubted: peer.doubted,
        };
        if signs.tell_of_death(now) {
            let dead = self.pool.update(address, |peer| std::mem::take(&mut peer.waiting));
            return dead.into_iter().for_each(|id| self.end_dead(id));
        }
        if signs.are_of_doubt() && peer.doubted.is_none() {
            let waiting: Vec<_> = peer.waiting.iter().copied().collect();
            self.pool.update(address, |peer| peer.doubted = Some(now));
            waiting.into_iter().for_each(|id| self.doubt(now, id));
        }
    }

    /// A stream is lost whose peer dials, and has not told where it is called itself. If its control connection was closed, it is judged in time.
    pub(super) fn keep_closed(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Some(closed) = stream.closed {
            let until = closed + DOUBT_LIMIT;
            stream.kept_until = Some(until);
            self.expiring.insert((until, id));
            self.doubt(now, id);
        }
    }

    /// That time has come.
    pub(super) fn judge_closed(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let signs = Signs { closed: stream.closed, acknowledged: stream.acknowledged, ..Signs::default() };
        let signs = Signs { doubted: signs.closed, ..signs };
        if signs.tell_of_death(now) {
            return self.end_dead(id);
        }
        stream.kept_until = Some(now + FRESH);
        self.expiring.insert((now + FRESH, id));
    }

    /// The owner of a stream has its device ask the peer's, which takes some time.
    pub(super) fn doubt(&mut self, now: Time, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| stream.phase == Phase::Established) else {
            return;
        };
        let (was_doubted, address) = (std::mem::replace(&mut stream.is_doubted, true), stream.address());
        if let Some(address) = address.filter(|_| !was_doubted) {
            self.pool.update(address, |peer| peer.doubted = Some(now));
        }
        self.notify(id, PeerChange::Doubted);
    }

    /// The peer of a stream is dead.
    fn end_dead(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if matches!(stream.phase, Phase::Closing(_)) {
            return self.forget(id);
        }
        stream.phase = Phase::Over;
        self.notify(id, PeerChange::Broken(DEAD.into()));
    }
}
