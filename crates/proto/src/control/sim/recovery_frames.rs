//! When established ends send frames of recovery and of inquiry, and which.

use super::world::World;
use crate::frame::Kind;

/// Frames that a dialler may send before its peer has been accepted: so many are kept.
const MAX_EARLY: u64 = 5;
/// Bytes that may wait to be sent before an end sends more.
const MAX_WAITING: usize = 1 << 16;

impl World {
    /// One end sends a frame, if it is established. Without a control connection it is lost.
    pub(super) fn send_recovery_frame(&mut self, pair: usize, process: usize) {
        let is_receiver = self.pairs[pair].dialler != process;
        let is_accepted = self.pairs[pair].acceptor.done.is_some();
        let Some(end) = self.pairs[pair].end(process).filter(|_| !self.network.is_dead[process])
        else {
            return;
        };
        let Some(conn) = self.planes[process].conn_of(end.stream) else {
            return self.planes[process].send(end.stream, Kind::Halt, Vec::new());
        };
        if self.random.one_in(8) {
            let kind = if self.random.one_in(2) { Kind::WaitQuestion } else { Kind::WaitAnswer };
            return self.planes[process].send(end.stream, kind, Vec::new());
        }
        let Some(wire) = self.network.of(process, conn).map(|wire| wire.number) else { return };
        if !is_accepted && end.order.sent_in_all >= MAX_EARLY
            || self.planes[process].poll_transmit(conn).len() > MAX_WAITING
        {
            return;
        }
        let kinds = [Kind::Halt, Kind::Ports, Kind::Offer, Kind::Answer, Kind::Ready];
        let (kind, padding) = match is_receiver && self.random.one_in(4) {
            true => (Kind::MissingList, self.random.below(20_000)),
            false => (kinds[self.random.below(5) as usize], self.random.below(300)),
        };
        let body = end.order.next_body(end.secret, wire, padding as usize);
        self.planes[process].send(end.stream, kind, body);
    }
}
