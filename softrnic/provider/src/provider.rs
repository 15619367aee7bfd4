//! The interface to a provider: the layout of its queues in memory, and its own part of the
//! kernel's answers.

use std::ptr;

use ibverbs::calls::NO_OPERATION;
use ibverbs::calls::types::{SendWr, Sge, Wc};

use crate::mlx5::Mlx5;
use crate::objects::Context;
use crate::uapi::{Call, Cap};

/// The provider for a driver, by its number in the kernel's interface.
pub(crate) fn by_driver(number: u32) -> Option<&'static dyn Provider> {
    match number {
        1 => Some(&Mlx5),
        _ => None,
    }
}

pub(crate) trait Provider: Sync {
    /// Its part of the answer when a device with this number of ports is opened.
    fn context(&self, ports: u32) -> Vec<u8>;

    /// Its part of the attributes of a device.
    fn device(&self) -> Vec<u8>;

    /// A completion queue for this number of completions, as the provider describes it.
    fn cq(&self, input: &[u8], cqe: u32) -> Result<Box<dyn CqMemory>, i32>;

    /// Its part of the answer for a completion queue of this number.
    fn cq_answer(&self, number: u32) -> Vec<u8>;

    /// A queue pair, as the provider describes it.
    fn qp(&self, input: &[u8]) -> Result<Box<dyn QpMemory>, i32>;

    /// Whether each of its queue pairs has the functions of an extended one, or zeros.
    fn has_extended_qps(&self) -> bool {
        false
    }

    /// Its part of the answer for a queue pair.
    fn qp_answer(&self, input: &[u8]) -> Vec<u8>;

    /// Its part of the answer for a queue pair that has been changed.
    fn modify_answer(&self, input: &[u8]) -> Vec<u8>;

    /// A command to an object that only this provider has.
    fn command(&self, context: &Context, call: &mut Call<'_>) -> Result<(), i32>;
}

/// The memory of a queue pair, which the provider fills. Indices count without end and wrap.
pub(crate) trait QpMemory: Send + Sync {
    /// The capacities of the queue pair, if the program has requested `asked`.
    fn cap(&self, asked: Cap) -> Cap;

    /// The number by which the provider identifies it in completions.
    fn user(&self) -> u64;

    /// Reads the send at `at` into `request`, and returns the index of the next one. `None`: no
    /// other has been posted.
    fn send(&self, at: u32, request: &mut Request) -> Option<u32>;

    /// The same for a receive: its elements.
    fn receive(&self, at: u32, elements: &mut Vec<Sge>) -> Option<u32>;
}

/// The memory of a completion queue, which the provider reads.
pub(crate) trait CqMemory: Send + Sync {
    /// How many more completions fit after this number of them.
    fn room(&self, written: u32) -> u32;

    /// Writes the next one, after this number of them.
    fn write(&self, written: u32, done: &Done);
}

/// A send, as softrnic takes it.
pub(crate) struct Request {
    pub(crate) wr: SendWr,
    /// Data, unless it is inline.
    pub(crate) elements: Vec<Sge>,
    pub(crate) inline: Vec<u8>,
    /// It does nothing, and has no completion.
    pub(crate) is_nothing: bool,
    pub(crate) label: Label,
}

// SAFETY: the pointers in it are set for the time of a call.
unsafe impl Send for Request {}

impl Request {
    /// softrnic has no such operation: it fails.
    pub(crate) fn fails(&mut self) {
        self.elements.clear();
        self.inline.clear();
        self.wr.opcode = NO_OPERATION;
    }
}

impl Default for Request {
    fn default() -> Self {
        Self {
            wr: EMPTY,
            elements: Vec::new(),
            inline: Vec::new(),
            is_nothing: false,
            label: Label::default(),
        }
    }
}

/// A request without any flags or data.
pub(crate) const EMPTY: SendWr = SendWr {
    wr_id: 0,
    next: ptr::null_mut(),
    sg_list: ptr::null(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    rest: [0; 7],
};

/// The most that softrnic can do: entries of a queue, elements and inline bytes of a request.
pub(crate) const MOST: Cap =
    Cap { send_wr: 16384, recv_wr: 16384, send_sge: 16, recv_sge: 16, inline_data: 1024 };

/// The parts of a request that its completion has to repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Label {
    /// Where the request lay in its queue.
    pub(crate) index: u16,
    /// The provider's number of the operation.
    pub(crate) opcode: u8,
    pub(crate) is_receive: bool,
}

impl Label {
    /// Together with the number of a queue pair, as softrnic keeps it for a request.
    pub(crate) fn wr_id(self, qp: u32) -> u64 {
        let place = u64::from(self.index) | u64::from(self.opcode) << 16;
        place | u64::from(self.is_receive) << 31 | u64::from(qp) << 32
    }

    /// The reverse.
    pub(crate) fn of(wr_id: u64) -> (u32, Self) {
        let label = Self {
            index: wr_id as u16,
            opcode: (wr_id >> 16) as u8,
            is_receive: wr_id & 1 << 31 != 0,
        };
        ((wr_id >> 32) as u32, label)
    }
}

/// A completion on its way to the provider.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// See [`QpMemory::user`].
    pub(crate) user: u64,
    pub(crate) label: Label,
    pub(crate) wc: Wc,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Label;

    proptest! {
        #[test]
        fn a_label_comes_back(index: u16, opcode: u8, is_receive: bool, qp: u32) {
            let label = Label { index, opcode, is_receive };
            prop_assert_eq!(Label::of(label.wr_id(qp)), (qp, label));
        }
    }
}
