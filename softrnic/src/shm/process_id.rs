//! Identities of processes: a slot number and a generation.

use crate::limits::PROCS;

const SLOT_BITS: u32 = 8;
const _: () = assert!(PROCS == 1 << SLOT_BITS);

/// Slot number of a process id.
pub(crate) fn slot_of(id: u32) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

/// The id of generation `generation` of slot `index`; never 0.
pub(crate) fn id_of(index: usize, generation: u32) -> u32 {
    ((generation & 0x7f_ffff).max(1) << SLOT_BITS) | index as u32
}
