//! Somebody who finds a port, and knows no more than a token.

use super::world::{World, address};
use crate::control::ConnId;
use crate::control::event::End;
use crate::frame::{Frame, Kind};

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
        let [secret, token] = [3, 6].map(|most| [self.random.below(most) as u8; 16]);
        let mut kind = self.random.one_in(2).then_some(Kind::Hello);
        for _ in 0..1 + self.random.below(4) {
            let any = Kind::ALL[self.random.below(Kind::ALL.len() as u64) as usize];
            self.hostile_says(
                process,
                conn,
                Frame { kind: kind.take().unwrap_or(any), secret, body: token.to_vec() },
            );
        }
    }

    fn hostile_says(&mut self, process: usize, conn: ConnId, frame: Frame) {
        let body = [frame.body.as_slice(), &frame.secret, &[0; 4]].concat();
        let cut = [16, 20, 36, 5][self.random.below(4) as usize];
        let frame = Frame { body: body[..cut].to_vec(), ..frame };
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
