//! A TCP in memory.

use crate::control::event::End;
use crate::control::{ConnId, Time};
use crate::random::Random;
use std::collections::VecDeque;
use std::time::Duration;

/// What one end of a connection knows.
#[derive(Debug, Default)]
pub(super) struct Side {
    /// Its number there; none before it has been accepted, or after it has been closed.
    pub(super) conn: Option<ConnId>,
    /// Bytes on their way to it.
    pub(super) incoming: VecDeque<u8>,
    /// Whether the other end has closed: the end comes after the bytes.
    pub(super) is_finished: bool,
    /// When it gets the loss of the connection reported.
    pub(super) lost_at: Option<Time>,
    /// Whether that comes as a close: something between the two has closed the connection.
    pub(super) is_closed_between: bool,
}

/// A TCP connection from process `dialler` to the other one.
#[derive(Debug)]
pub(super) struct Wire {
    /// From 1 on, in the order in which they are dialled.
    pub(super) number: u64,
    pub(super) dialler: usize,
    /// By process.
    pub(super) sides: [Side; 2],
    pub(super) is_up: bool,
    /// Whether nothing comes through any more.
    pub(super) is_cut: bool,
}

/// The connections, and which ports refuse.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) wires: Vec<Wire>,
    /// How many of the next attempts at the port of each process are refused by mistake.
    pub(super) refuses: [u32; 2],
    /// Until when a firewall refuses in the place of each process.
    pub(super) rejects_until: [Time; 2],
    pub(super) is_dead: [bool; 2],
    /// Until when a child of a process that has died keeps its device open.
    pub(super) heir_until: [Time; 2],
    /// When a control connection of each process ended last that had come about.
    pub(super) ended: [Time; 2],
    dialled: u64,
}

/// `ECONNREFUSED`.
pub(super) const REFUSED: i32 = 111;

impl Network {
    /// Process `dialler` dials.
    pub(super) fn dial(&mut self, dialler: usize, conn: ConnId) {
        self.dialled += 1;
        let mut wire = Wire {
            number: self.dialled,
            dialler,
            sides: Default::default(),
            is_up: false,
            is_cut: false,
        };
        wire.sides[dialler].conn = Some(conn);
        self.wires.push(wire);
    }

    pub(super) fn of(&mut self, process: usize, conn: ConnId) -> Option<&mut Wire> {
        self.wires.iter_mut().find(|wire| wire.sides[process].conn == Some(conn))
    }

    /// The end of `process` closes, after `last`.
    pub(super) fn close(&mut self, process: usize, conn: ConnId, last: Vec<u8>) {
        let Some(wire) = self.of(process, conn) else { return };
        wire.sides[process].conn = None;
        wire.sides[process].incoming.clear();
        if !wire.is_cut {
            wire.sides[1 - process].incoming.extend(last);
            wire.sides[1 - process].is_finished = true;
        }
    }

    /// A connection is reset, closed by something between, or its network is away: each end that is
    /// there hears of it, sooner or later.
    pub(super) fn lose(&mut self, index: usize, now: Time, random: &mut Random) {
        let wire = &mut self.wires[index];
        if !wire.is_up || wire.is_cut {
            return;
        }
        wire.is_cut = true;
        let (sudden, late) = (random.one_in(2), random.below(8));
        for (number, side) in wire.sides.iter_mut().enumerate() {
            if sudden {
                side.incoming.clear();
            } else {
                let kept = random.below(side.incoming.len() as u64 + 1) as usize;
                side.incoming.truncate(kept);
            }
            if !side.is_finished {
                // Often at once; or when its kernel has asked the other one without success.
                let pause = if late == number as u64 {
                    10_000
                } else {
                    random.below(2000) * random.below(2)
                };
                side.lost_at = Some(now + Duration::from_millis(pause));
                side.is_closed_between = random.one_in(3);
            }
        }
    }

    /// Another program has the port of a process that has died. It takes the connection, says
    /// `bytes`, and closes it.
    pub(super) fn let_a_stranger_in(&mut self, index: usize, bytes: &[u8]) {
        let wire = &mut self.wires[index];
        let near = &mut wire.sides[wire.dialler];
        near.incoming.extend(bytes);
        near.is_finished = true;
        wire.is_up = true;
    }

    /// A firewall before these processes is loaded anew: it ends all connections, and refuses new
    /// ones for some time.
    pub(super) fn reload_firewall(&mut self, processes: &[usize], now: Time, random: &mut Random) {
        let most = if random.one_in(4) { 100_000 } else { 3000 };
        let until = now + Duration::from_millis(random.below(most));
        processes.iter().for_each(|process| self.rejects_until[*process] = until);
        (0..self.wires.len()).for_each(|index| self.lose(index, now, random));
    }

    /// A process has died: its kernel closes everything, or resets what has something to read.
    pub(super) fn kill(&mut self, process: usize, now: Time, random: &mut Random) {
        self.is_dead[process] = true;
        if random.one_in(4) {
            self.heir_until[process] = now + Duration::from_millis(random.below(100_000));
        }
        for wire in &mut self.wires {
            let has_unread = !wire.sides[process].incoming.is_empty() || random.one_in(2);
            if wire.sides[process].conn.take().is_some() && !wire.is_cut {
                let other = &mut wire.sides[1 - process];
                match has_unread && !other.is_finished {
                    true => other.lost_at = Some(now),
                    false => other.is_finished = true,
                }
            }
        }
    }

    /// What an end hears next that has no bytes to read.
    pub(super) fn end_of(&self, index: usize, process: usize, now: Time) -> Option<End> {
        let side = &self.wires[index].sides[process];
        if !side.incoming.is_empty() {
            return None;
        }
        match side.lost_at {
            Some(at) if at <= now && side.is_closed_between => Some(End::Closed),
            Some(at) if at <= now => Some(End::Lost("by the dice".into())),
            None if side.is_finished => Some(End::Closed),
            _ => None,
        }
    }

    /// Forgets connections that neither end has.
    pub(super) fn sweep(&mut self) {
        self.wires
            .retain(|wire| wire.is_waiting() || wire.sides.iter().any(|side| side.conn.is_some()));
    }
}

impl Wire {
    /// Whether the far end has not accepted it yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_up && self.sides[self.dialler].conn.is_some()
    }
}
