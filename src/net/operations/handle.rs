//! The handles that NCCL gets for its communicators and events: numbers that encode everything, not
//! addresses.
//!
//! NCCL only compares them with NULL. It passes some on to other processes, and uses some after the
//! communicator has ended. So a handle means the same everywhere, and a wrong or old one has no
//! effect.

use crate::proto::explain::operation::Call;

/// The upper four bits, which distinguish the kinds. No address has them set.
const CONTEXT: u64 = 0b1010;
const CALL: u64 = 0b1100;
const LIVE: u64 = 0b1110;

/// The call of an operation that NCCL does not count.
pub(super) const UNCOUNTED: u64 = 0b1011 << 60;

/// The stored bits of a communicator's number.
const ID: u64 = (1 << 48) - 1;
const PLACE_BITS: u32 = 12;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

/// The stored bits of a communicator's number.
pub(super) fn id_of(communicator: u64) -> u64 {
    communicator & ID
}

/// A communicator: its slot in the table of the process that made the handle, and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) place: usize,
    pub(super) id: u64,
}

impl Context {
    pub(super) fn to_bits(self) -> u64 {
        (CONTEXT << 60) | ((self.place as u64 & PLACE) << 48) | id_of(self.id)
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits >> 60 == CONTEXT)
            .then(|| Self { place: ((bits >> 48) & PLACE) as usize, id: id_of(bits) })
    }
}

/// A collective operation, or a send or receive, as the parent of its network operations.
pub(super) fn of_call(call: Call) -> u64 {
    (CALL << 60) | call.to_bits()
}

/// The call of a handle from [`of_call`].
pub(super) fn call_of(bits: u64) -> Option<Call> {
    (bits >> 60 == CALL).then(|| Call::from_bits(bits & ((1 << 60) - 1)))?
}

/// A network operation: its slot in the table, and its number among all operations so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OperationId {
    pub(super) place: usize,
    pub(super) ordinal: u64,
}

impl OperationId {
    /// The stored bits of a number.
    pub(super) const ORDINAL: u64 = ID;

    pub(super) fn to_bits(self) -> u64 {
        (LIVE << 60) | ((self.place as u64 & PLACE) << 48) | (self.ordinal & Self::ORDINAL)
    }

    pub(super) fn from_bits(bits: u64) -> Option<Self> {
        (bits >> 60 == LIVE).then_some(Self {
            place: ((bits >> 48) & PLACE) as usize,
            ordinal: bits & Self::ORDINAL,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::explain::operation::Function;

    #[test]
    fn each_handle_is_read_as_what_it_is_and_as_nothing_else() {
        let context = Context { place: 0xfff, id: 0x1234_5678_9abc };
        let call = Call { function: Function::Reduce, number: Some(9) };
        let live = OperationId { place: 4095, ordinal: OperationId::ORDINAL };
        let handles =
            [context.to_bits(), of_call(call), live.to_bits(), UNCOUNTED, 0x7fff_1234_5678];
        assert_eq!(handles.map(Context::from_bits), [Some(context), None, None, None, None]);
        assert_eq!(handles.map(call_of), [None, Some(call), None, None, None]);
        assert_eq!(handles.map(OperationId::from_bits), [None, None, Some(live), None, None]);
    }
}
