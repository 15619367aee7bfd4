//! Somebody who finds a port, and knows no more than a token.

use super::world::{World, address};
use crate::proto::control::ConnId;
use crate::proto::control::event::End;
use crate::proto::frame::{Frame, Kind};

impl World {
    pub(super) fn hostile_comes(&mut self, process: usize) {
        if !self.network.is_dead[process]
            && self.planes[process].is_port_needed()
            && self.planes[process].make_room(self.now).is_ok()
        {
            let conn = self.planes[process].handle_client(self.now, address(9));
            self.hostile.push((process, conn));
        }
    }

    /// Somebody who knows a token says what comes to mind.
    pub(super) fn hostile_sends(&mut self) {
        if self.hostile.is_empty() {
            return;
        }
        let (process, conn) = self.hostile[self.random.below(self.hostile.len() as u64) as usize];
        (0..1 + self.random.below(4)).for_each(|_| self.hostile_says(process, conn));
    }

    fn hostile_says(&mut self, process: usize, conn: ConnId) {
        let secret = [self.random.below(3) as u8; 16];
        let token = [self.random.below(6) as u8; 16];
        let body = [token.as_slice(), &secret, &[0; 4]].concat();
        let cut = [16, 20, 36, 5][self.random.below(4) as usize];
        let frame = Frame {
            kind: Kind::ALL[self.random.below(Kind::ALL.len() as u64) as usize],
            secret,
            body: body[..cut].to_vec(),
        };
        let mut bytes = frame.emit();
        if self.random.one_in(4) {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] = self.random.below(256) as u8;
        }
        self.planes[process].handle_bytes(self.now, conn, &bytes);
    }

    pub(super) fn hostile_goes(&mut self) {
        for (process, conn) in std::mem::take(&mut self.hostile) {
            self.planes[process].handle_end(self.now, conn, End::Closed);
        }
    }
}
