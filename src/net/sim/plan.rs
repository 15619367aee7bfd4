//! What a run does: the two ends and what they agree on, the messages and their buffers.

use super::fabric::{DEVICES, IMAGINARY};
use crate::proto::MAX_GROUP;
use crate::proto::random::Random;
use crate::proto::recovery::rail_mask::RailMask;
use std::ops::Range;

/// Message number i of a run is for buffer number i: it is the k-th message of its tag, for the
/// k-th buffer of that tag.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) tag: u32,
    /// Bytes that the sender passes to `isend`.
    pub(super) length: u32,
    /// Bytes of the buffer.
    pub(super) posted: u32,
}

impl Message {
    /// Bytes that are to arrive.
    pub(super) fn arriving(&self) -> u32 {
        self.length.min(self.posted)
    }
}

/// The bytes of message `i`, and the buffer for it.
pub(super) fn source_of(i: usize) -> u64 {
    IMAGINARY + ((i as u64 + 1) << 32)
}

pub(super) fn buffer_of(i: usize) -> u64 {
    2 * IMAGINARY + ((i as u64 + 1) << 32)
}

/// The message or the buffer that has this address, and the offset in it.
pub(super) fn place_of(addr: u64) -> (usize, u32) {
    (((addr % IMAGINARY) >> 32) as usize - 1, addr as u32)
}

/// What the two ends offer each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Rails of each end, and queue pairs on each of them.
    pub(super) ends: [(usize, usize); 2],
    /// Whether messages are cut.
    pub(super) is_split: bool,
    /// Whether the sender's queue pairs are lanes, if messages are cut.
    pub(super) has_lanes: bool,
    /// Whether longer stripes end in a trailing immediate write.
    pub(super) is_adaptive: bool,
    /// Whether several writes on one queue pair are posted in one call.
    pub(super) chains_writes: bool,
    /// How the ends recover; `None`: the first fault ends the connection.
    pub(super) recovers: Option<Recovers>,
}

/// How the ends recover.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovers {
    /// After so many seconds they give up.
    pub(super) give_up_s: u64,
    /// `FERRITE_STALL_MS`.
    pub(super) stall_ms: u64,
    /// The most connections of a process that begin to recover at once: 0, as if many others always
    /// did; 1, as if none did.
    pub(super) most_starting: u32,
    /// The rails that the connection does not begin on, unless they are all.
    pub(super) left_out: RailMask,
}

/// All that is fixed before the first step.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) terms: Terms,
    pub(super) messages: Vec<Message>,
    /// The messages of each grouped receive.
    pub(super) groups: Vec<Range<usize>>,
    /// Whether the sender tries one message until it has a clear-to-send, and none else meanwhile.
    pub(super) one_at_a_time: bool,
    /// Whether the receiver tests rarely, so that many messages arrive before it takes in the
    /// first.
    pub(super) tests_rarely: bool,
    /// In how many of 16 steps each rail delivers.
    pub(super) speeds: [u64; DEVICES],
}

impl Plan {
    /// A plan of at most `most_groups` grouped receives.
    pub(super) fn new(random: &mut Random, most_groups: u64) -> Self {
        let mut end =
            || (if random.one_in(2) { 1 } else { 1 + random.index(DEVICES) }, 1 + random.index(4));
        let ends = [end(), end()];
        let is_split = !random.one_in(3);
        let terms = Terms {
            ends,
            is_split,
            has_lanes: is_split && random.one_in(2),
            is_adaptive: random.one_in(2),
            chains_writes: random.one_in(2),
            recovers: None,
        };
        let is_uneven = random.one_in(2);
        let speeds = std::array::from_fn(|_| if is_uneven { 1 + random.below(16) } else { 16 });
        let one_at_a_time = random.one_in(3);
        let tests_rarely = random.one_in(4);
        let mut messages = Vec::new();
        let groups =
            (0..1 + random.below(most_groups)).map(|_| group(random, &mut messages)).collect();
        Self { terms, messages, groups, one_at_a_time, tests_rarely, speeds }
    }
}

/// Adds the messages of one grouped receive, with consecutive tags.
fn group(random: &mut Random, messages: &mut Vec<Message>) -> Range<usize> {
    let count = if random.one_in(2) { 1 } else { 1 + random.index(MAX_GROUP) };
    let (first, first_tag) = (messages.len(), random.below(3) as u32);
    for tag in first_tag..first_tag + count as u32 {
        let length = length(random);
        let posted = if random.one_in(2) { length } else { self::length(random) };
        messages.push(Message { tag, length, posted });
    }
    first..first + count
}

fn length(random: &mut Random) -> u32 {
    let limit = [1, 200, 9_000, 70_000, 3 << 20, 20 << 20][random.index(6)];
    random.below(limit) as u32
}
