//! Encoding of control messages, little-endian.

use super::{Violation, violation};

/// Appends values.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub(super) fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    pub(super) fn bytes(&mut self, v: &[u8]) {
        self.0.extend_from_slice(v);
    }
    /// At most 255 bytes of it.
    pub(super) fn name(&mut self, name: &str) {
        let name = &name.as_bytes()[..name.len().min(255)];
        self.u8(name.len() as u8);
        self.bytes(name);
    }
}

/// Removes values from the front of a peer's message.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (head, tail) = self.0.split_first_chunk().ok_or_else(too_short)?;
        self.0 = tail;
        Ok(*head)
    }
    pub(super) fn u8(&mut self) -> Result<u8, Violation> {
        self.array().map(|[b]| b)
    }
    pub(super) fn u16(&mut self) -> Result<u16, Violation> {
        self.array().map(u16::from_le_bytes)
    }
    pub(super) fn u32(&mut self) -> Result<u32, Violation> {
        self.array().map(u32::from_le_bytes)
    }
    pub(super) fn u64(&mut self) -> Result<u64, Violation> {
        self.array().map(u64::from_le_bytes)
    }
    pub(super) fn flag(&mut self) -> Result<bool, Violation> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(violation!("a flag of a control message is {n}")),
        }
    }
    pub(super) fn number24(&mut self) -> Result<u32, Violation> {
        match self.u32()? {
            n if n < 1 << 24 => Ok(n),
            n => Err(violation!("{n} is no 24-bit number")),
        }
    }
    /// A count from 1 to `most`.
    pub(super) fn count(&mut self, most: usize, what: &'static str) -> Result<u8, Violation> {
        match self.u8()? {
            n if (1..=most).contains(&usize::from(n)) => Ok(n),
            n => Err(violation!("{n} {what}; 1 to {most} are possible")),
        }
    }
    /// Without characters that would spoil a log.
    pub(super) fn name(&mut self) -> Result<String, Violation> {
        let length = usize::from(self.u8()?);
        let (name, rest) = self.0.split_at_checked(length).ok_or_else(too_short)?;
        self.0 = rest;
        Ok(String::from_utf8_lossy(name)
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect())
    }
    pub(super) fn end(&self) -> Result<(), Violation> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(violation!("{} bytes too many in a control message", self.0.len()))
        }
    }
}

fn too_short() -> Violation {
    violation!("a control message is too short")
}
