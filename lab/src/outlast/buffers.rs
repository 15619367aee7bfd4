//! The receive buffers: every byte is looked at when a message arrives, and again before its buffer is used next.
//!
//! When a message has arrived and was compared, its buffer is filled with a guard pattern of its own. No write may land
//! there until the next receive is posted for it: a byte that differs by then was written late.

use crate::error::Result;
use crate::measure::pattern::{self, seed};
use crate::outlast::outcome::Received;
use crate::outlast::plan::BUFFERS;
use crate::transport::buffer::Buffer;

/// Bytes after each message where nothing may be written.
const TAIL: usize = 4096;
/// What they hold.
const UNTOUCHED: u8 = 0xee;
/// Seeds of messages and of guards are of different tests.
const MESSAGES: u64 = 1;
const GUARDS: u64 = 2;
/// Notes that are kept.
const NOTES: usize = 8;

/// The seed of message `index`.
pub(super) fn message_seed(index: u64) -> u64 {
    seed(MESSAGES, 0, index)
}

/// The receive buffers of a stream.
#[derive(Debug)]
pub(super) struct RecvBuffers<'r> {
    memory: &'r Buffer,
    bytes: usize,
    /// How often each buffer has been filled with a guard.
    uses: [u64; BUFFERS],
    /// Buffers that no receive is posted for.
    is_guarded: [bool; BUFFERS],
}

impl<'r> RecvBuffers<'r> {
    /// Bytes of memory for messages of `bytes`.
    pub(super) fn memory_needed(bytes: usize) -> usize {
        BUFFERS * Self::stride(bytes)
    }

    fn stride(bytes: usize) -> usize {
        bytes.next_multiple_of(4096) + TAIL
    }

    /// All of them guarded.
    pub(super) fn new(memory: &'r Buffer, bytes: usize) -> Result<Self> {
        let mut buffers = Self { memory, bytes, uses: [0; BUFFERS], is_guarded: [false; BUFFERS] };
        for buffer in 0..BUFFERS {
            memory.set(buffer * Self::stride(bytes), Self::stride(bytes), UNTOUCHED)?;
            buffers.guard(buffer)?;
        }
        Ok(buffers)
    }

    /// Where message `index` goes.
    pub(super) fn place(&self, index: u64) -> usize {
        Self::buffer(index) * Self::stride(self.bytes)
    }

    fn buffer(index: u64) -> usize {
        (index % BUFFERS as u64) as usize
    }

    fn guard_seed(&self, buffer: usize) -> u64 {
        seed(GUARDS, buffer % 2, self.uses[buffer] * BUFFERS as u64 + buffer as u64)
    }

    fn guard(&mut self, buffer: usize) -> Result<()> {
        self.uses[buffer] += 1;
        self.is_guarded[buffer] = true;
        let place = buffer * Self::stride(self.bytes);
        pattern::fill(self.memory, place, self.bytes, self.guard_seed(buffer))
    }

    /// A receive for message `index` is about to be posted: its buffer is looked at, once.
    pub(super) fn before_post(&mut self, index: u64, received: &mut Received) -> Result<()> {
        self.look_again(Self::buffer(index), &format!("before message {index} was posted"), received)
    }

    /// All buffers that no receive is posted for are looked at.
    pub(super) fn look_at_all(&mut self, received: &mut Received) -> Result<()> {
        (0..BUFFERS).try_for_each(|buffer| self.look_again(buffer, "at the end", received))
    }

    fn look_again(&mut self, buffer: usize, when: &str, received: &mut Received) -> Result<()> {
        if !std::mem::take(&mut self.is_guarded[buffer]) {
            return Ok(());
        }
        let (memory, place) = (self.memory, buffer * Self::stride(self.bytes));
        let guard = self.guard_seed(buffer);
        let wrong = pattern::wrong_bytes(memory, place, self.bytes, guard)? + self.wrong_tail(place)?;
        if wrong > 0 {
            received.wrong_later += wrong;
            let found = pattern::check(memory, place, self.bytes, guard)?.map_or(0, |difference| difference.offset);
            let what = self.contents(place + found, found, received.messages)?;
            note(received, format!("buffer {buffer}, {when}: {wrong} B changed after its message was complete{what}"));
        }
        Ok(())
    }

    /// Message `index` is complete, with `size` bytes.
    pub(super) fn arrived(&mut self, index: u64, size: i32, received: &mut Received) -> Result<()> {
        let (memory, place) = (self.memory, self.place(index));
        if size as usize != self.bytes {
            received.wrong_sizes += 1;
            note(received, format!("message {index} came with {size} B, not {}", self.bytes));
        }
        let expected = message_seed(index);
        let in_message = pattern::wrong_bytes(memory, place, self.bytes, expected)?;
        if in_message > 0 {
            let found = pattern::check(memory, place, self.bytes, expected)?.map_or(0, |difference| difference.offset);
            let what = self.contents(place + found, found, index)?;
            note(
                received,
                format!("message {index}: {in_message} of {} B wrong, from byte {found} on{what}", self.bytes),
            );
        }
        let beside = self.wrong_tail(place)?;
        if beside > 0 {
            note(received, format!("message {index}: {beside} B written past its end"));
        }
        received.wrong_on_arrival += in_message + beside;
        self.guard(Self::buffer(index))
    }

    /// Wrong bytes after the message at `place`, which are put right.
    fn wrong_tail(&self, place: usize) -> Result<u64> {
        let (start, len) = (place + self.bytes, Self::stride(self.bytes) - self.bytes);
        let memory = self.memory;
        if pattern::untouched(memory, start, len, UNTOUCHED)?.is_none() {
            return Ok(0);
        }
        let wrong = memory.read(start, len)?.iter().filter(|byte| **byte != UNTOUCHED).count();
        memory.set(start, len, UNTOUCHED)?;
        Ok(wrong as u64)
    }

    /// Which message or guard the word at `place` is of, in words; `offset`: where in a message that is.
    fn contents(&self, place: usize, offset: usize, near: u64) -> Result<String> {
        let word = offset - offset % 8;
        let Ok(bytes) = self.memory.read(place - offset % 8, 8) else { return Ok(String::new()) };
        let index = (word / 8) as u64;
        let is = |seed: u64| pattern::word(seed, index).to_le_bytes()[..] == bytes[..];
        let messages = near.saturating_sub(8 * BUFFERS as u64)..near + 2 * BUFFERS as u64;
        if let Some(other) = messages.into_iter().find(|message| is(message_seed(*message))) {
            return Ok(format!(" (there are bytes of message {other})"));
        }
        let buffer = place / Self::stride(self.bytes);
        if is(self.guard_seed(buffer)) {
            return Ok(" (nothing was written there)".into());
        }
        Ok(String::new())
    }
}

fn note(received: &mut Received, text: String) {
    if received.notes.len() < NOTES {
        received.notes.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 100;

    /// Three messages have arrived right; what was written afterwards is in the result.
    fn after(write: impl FnOnce(&Buffer, &RecvBuffers<'_>)) -> Received {
        let memory = Buffer::new(RecvBuffers::memory_needed(BYTES)).expect("memory");
        let (mut buffers, mut received) = (RecvBuffers::new(&memory, BYTES).expect("inside"), Received::default());
        for index in 0..3 {
            buffers.before_post(index, &mut received).expect("inside");
            pattern::fill(&memory, buffers.place(index), BYTES, message_seed(index)).expect("inside");
            buffers.arrived(index, BYTES as i32, &mut received).expect("inside");
        }
        assert_eq!(received, Received::default());
        write(&memory, &buffers);
        buffers.look_at_all(&mut received).expect("inside");
        received
    }

    #[test]
    fn a_late_write_is_seen_with_the_message_it_is_of() {
        assert_eq!(after(|_, _| {}), Received::default());
        let received = after(|memory, buffers| {
            pattern::fill(memory, buffers.place(2), BYTES, message_seed(2)).expect("inside");
        });
        assert!(received.wrong_later > 90 && received.wrong_later <= 100, "{received:?}");
        assert!(received.notes[0].ends_with(" (there are bytes of message 2)"), "{received:?}");
        // Two bytes past the end, and one of a buffer that has not had a message yet.
        let received = after(|memory, buffers| {
            memory.write(buffers.place(1) + BYTES, b"xy").expect("inside");
            memory.write(buffers.place(19), b"\x00").expect("inside");
        });
        assert_eq!(received.wrong_later, 3, "{received:?}");
    }

    #[test]
    fn a_message_that_was_not_written_is_told_apart_from_another_message() {
        let memory = Buffer::new(RecvBuffers::memory_needed(BYTES)).expect("memory");
        let (mut buffers, mut received) = (RecvBuffers::new(&memory, BYTES).expect("inside"), Received::default());
        buffers.before_post(0, &mut received).expect("inside");
        buffers.arrived(0, BYTES as i32, &mut received).expect("inside");
        buffers.before_post(1, &mut received).expect("inside");
        pattern::fill(&memory, buffers.place(1), BYTES, message_seed(4)).expect("inside");
        buffers.arrived(1, 99, &mut received).expect("inside");
        assert!(received.notes[0].ends_with(" (nothing was written there)"), "{received:?}");
        assert_eq!(received.notes[1], "message 1 came with 99 B, not 100");
        assert!(received.notes[2].ends_with(" (there are bytes of message 4)"), "{received:?}");
        assert_eq!((received.wrong_sizes, received.wrong_later), (1, 0));
    }
}
