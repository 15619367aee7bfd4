//! Compares what arrived with what was sent, and counts.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::measure::conn::Bench;
use crate::measure::pattern::{self, Difference};

/// What memory holds before a receive.
pub(super) const UNTOUCHED: u8 = 0xee;
/// One kind of check at one size, in one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The rank that received.
    pub rank: usize,
    /// `single`, `stream`, `group`, `truncate`, `parallel` or `long`.
    pub kind: String,
    /// The size of the messages; of a group, how many.
    pub bytes: u64,
    /// Messages received.
    pub messages: u64,
    /// Messages with a wrong byte or size.
    pub wrong: u64,
    /// A description of the first fault.
    pub fault: Option<String>,
}

impl Check {
    pub(super) fn new(rank: usize, kind: &str, bytes: usize) -> Self {
        Self { rank, kind: kind.into(), bytes: bytes as u64, messages: 0, wrong: 0, fault: None }
    }

    /// Counts a message whose size should be `len`, and its fault if it has one.
    pub(super) fn count(&mut self, bench: &Bench, expected: &Expected, got: i32) -> Result<()> {
        self.messages += 1;
        if let Some(fault) = expected.fault(bench, got)? {
            let index = self.messages - 1;
            self.wrong(&format!("message {index}, {fault}"));
        }
        Ok(())
    }

    /// Counts a send that reports another size than `len`.
    pub(super) fn sent(&mut self, got: i32, len: usize) {
        if got as usize != len {
            self.wrong(&format!("the size of the send is {got}, not {len}"));
        }
    }

    fn wrong(&mut self, fault: &str) {
        self.wrong += 1;
        let Self { rank, kind, bytes, .. } = self;
        let what = if kind == "group" {
            format!("rank {rank}, group of {bytes}: {fault}")
        } else {
            format!("rank {rank}, {kind} of {} B: {fault}", *bytes)
        };
        self.fault.get_or_insert(what);
    }
}

/// What should be found in the receiving memory.
pub(super) struct Expected {
    pub(super) place: usize,
    pub(super) len: usize,
    pub(super) seed: u64,
    /// Bytes after the message that nothing may have touched.
    pub(super) guard: usize,
}

impl Expected {
    fn fault(&self, bench: &Bench, got: i32) -> Result<Option<String>> {
        if got as usize != self.len {
            return Ok(Some(format!("the size is {got}, not {}", self.len)));
        }
        let memory = bench.into.memory();
        if let Some(at) = pattern::check(memory, self.place, self.len, self.seed)? {
            return Ok(Some(words("", at)));
        }
        let after = self.place + self.len;
        let at = pattern::untouched(memory, after, self.guard, UNTOUCHED)?;
        Ok(at.map(|at| words("past the end, ", at)))
    }
}

fn words(place: &str, at: Difference) -> String {
    let Difference { offset, expected, got } = at;
    format!("{place}offset {offset}: expected {expected:#04x}, got {got:#04x}")
}

/// The checks of both ranks, one per kind and size, in the order they ran.
pub fn merged(checks: &[Check]) -> Vec<Check> {
    let mut merged: Vec<Check> = Vec::new();
    for check in checks {
        let same = |other: &&mut Check| other.kind == check.kind && other.bytes == check.bytes;
        match merged.iter_mut().find(same) {
            None => merged.push(check.clone()),
            Some(other) => {
                other.messages += check.messages;
                other.wrong += check.wrong;
                other.fault = other.fault.take().or_else(|| check.fault.clone());
            }
        }
    }
    merged
}
