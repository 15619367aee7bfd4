//! Who closes what: ends of connections, and listeners.

use super::app::Connector;
use super::world::World;
use std::time::Duration;

impl World {
    /// A listener that has accepted nobody closes.
    pub(super) fn close_listener(&mut self, pair: usize) {
        let pair = &mut self.pairs[pair];
        let far = 1 - pair.dialler;
        if !self.network.is_dead[far] && pair.acceptor.done.is_none() && !pair.acceptor.is_closed {
            pair.acceptor.close_candidates(&mut self.planes[far], self.now);
            pair.acceptor.is_closed = true;
            pair.has_closed[far] = true;
            self.planes[far].deregister(&pair.token);
        }
    }

    /// One end of an established connection closes it, or fails and closes it.
    pub(super) fn close(&mut self, pair: usize, process: usize) {
        if self.network.is_dead[process] {
            return;
        }
        let Some(stream) = self.pairs[pair].end(process).map(|end| end.stream) else { return };
        self.pairs[pair].has_closed[process] = true;
        if self.random.one_in(2) {
            self.planes[process].fail(stream, "by the dice");
            // That may be lost.
            if !self.network.wires.is_empty() && self.random.one_in(4) {
                let wire = self.random.below(self.network.wires.len() as u64) as usize;
                self.network.lose(wire, self.now, &mut self.random);
            }
            // Some time goes by before NCCL closes it.
            let steps = if self.random.one_in(4) { 300 } else { 30 };
            for _ in 0..self.random.below(steps) {
                match self.random.below(3) {
                    0 => self.advance(Duration::from_millis(10)),
                    _ => self.deliver(),
                }
                self.settle();
            }
        }
        self.planes[process].close(self.now, stream);
        let pair = &mut self.pairs[pair];
        match pair.dialler == process {
            true => pair.connector = Connector::Closed,
            false => {
                pair.acceptor.done = None;
                pair.acceptor.is_closed = true;
            }
        }
    }

    /// A firewall before `process`, or before both, is loaded anew. Or before the one that a
    /// connection's other end dials: that end closes the connection then, and time goes by in which
    /// it cannot say so.
    pub(super) fn reload_firewall(&mut self, pair: usize, process: usize) {
        let dialler = self.pairs[pair].dialler;
        if self.random.one_in(2) {
            self.network.reload_firewall(&[1 - dialler], self.now, &mut self.random);
            (0..20).for_each(|_| self.deliver_and_settle());
            self.close(pair, dialler);
            for _ in 0..self.random.below(8) {
                self.advance(Duration::from_millis(100));
                (0..5).for_each(|_| self.deliver_and_settle());
            }
            return;
        }
        let both = [process, 1 - process];
        let count = if self.random.one_in(2) { 2 } else { 1 };
        self.network.reload_firewall(&both[..count], self.now, &mut self.random);
    }

    fn deliver_and_settle(&mut self) {
        self.deliver();
        self.settle();
    }

    pub(super) fn close_all(&mut self) {
        for pair in 0..self.pairs.len() {
            self.close(pair, 0);
            self.close(pair, 1);
            let (pair, now) = (&mut self.pairs[pair], self.now);
            let (near, far) = (pair.dialler, 1 - pair.dialler);
            if !self.network.is_dead[near] {
                pair.connector.abandon(&mut self.planes[near], now);
                pair.connector = Connector::Closed;
            }
            if !self.network.is_dead[far] {
                pair.acceptor.close_candidates(&mut self.planes[far], now);
                pair.acceptor.is_closed = true;
                self.planes[far].deregister(&pair.token);
            }
        }
    }
}
