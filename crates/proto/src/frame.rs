//! Framing of the control connection: a preamble that every version understands, then a body.

use super::handle::Secret;
use super::{PROTOCOL_VERSION, Violation, violation};
use std::fmt;

/// The longest body of a frame, except [`Kind::MissingList`].
pub const MAX_BODY_BYTES: usize = 4096;
/// The longest text of a peer that is shown. The error of a recovery has some 1,000 bytes.
const MAX_TEXT_BYTES: usize = 2048;
/// Longest body of a [`Kind::MissingList`].
pub const MAX_MISSING_LIST_BYTES: usize = 24 << 10;
/// In a refusal: it is for all connections of the addressed process, not for one. In a commit: see
/// [`super::handshake::DialerAddress`].
pub const ALL_CONNECTIONS: Secret = [0; 16];
const PREAMBLE_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"FerrCtl\0";
/// The position of the checksum.
const CHECKSUM: std::ops::Range<usize> = 14..16;

/// FNV-1a over kind, length, secret and body of a frame, folded to 16 bits.
fn checksum(frame: &[u8]) -> u16 {
    let bytes = frame[10..CHECKSUM.start].iter().chain(&frame[CHECKSUM.end..]);
    let hash = bytes
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as u16 ^ hash as u16
}

/// The kind of a frame. Its number on the wire is its place here: new kinds go to the end, and raise
/// [`super::PROTOCOL_VERSION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sender to receiver, first: identity and offer.
    Hello,
    /// Receiver to sender: its answer and the terms.
    Reply,
    /// Sender to receiver: commit; only now does `accept` complete.
    Commit,
    /// Either way, instead of the next step: refusal, with the reason as text.
    Refuse,
    /// Either way, at any later time: close, with the reason as text; empty when all is well.
    Goodbye,
    /// Sender to receiver, on a new control connection after a loss: this connection resumes here.
    /// Receiver to sender, without a body: confirmed.
    Resume,
    /// Either way: this end has begun to recover the connection. For this kind and the next ones,
    /// see [`super::recovery::message`].
    Halt,
    /// Either way: which rails this end can use.
    Ports,
    /// Sender to receiver: new queue pairs.
    Offer,
    /// Receiver to sender: new queue pairs, which are connected to those of the offer.
    Answer,
    /// Sender to receiver: the queue pairs of the offer are connected too.
    Ready,
    /// Either way: this end wants to change its queue pairs, which still work. Does the other end
    /// receive this?
    Ask,
    /// Either way: it does.
    Heard,
    /// Receiver to sender: the messages that have not arrived.
    MissingList,
    /// Either way, at any time: this end waits; what is the other end's state? For this kind and
    /// the next one, see [`super::explain::message`].
    WaitQuestion,
    /// Either way: the state.
    WaitAnswer,
    /// Receiver to sender, on a control connection that the receiver has dialled: it has lost the
    /// one that carries this connection, and asks the sender to dial another one. Sender to
    /// receiver, without a body: it does; with a text: it does not, and why. Only a sender that has
    /// announced its address is asked.
    Redial,
}

impl Kind {
    pub(super) const ALL: [Self; 17] = [
        Self::Hello,
        Self::Reply,
        Self::Commit,
        Self::Refuse,
        Self::Goodbye,
        Self::Resume,
        Self::Halt,
        Self::Ports,
        Self::Offer,
        Self::Answer,
        Self::Ready,
        Self::Ask,
        Self::Heard,
        Self::MissingList,
        Self::WaitQuestion,
        Self::WaitAnswer,
        Self::Redial,
    ];

    /// Whether it is about the recovery of an established connection, and has no meaning during
    /// set-up.
    pub fn is_of_recovery(self) -> bool {
        (Self::Halt as u16..=Self::MissingList as u16).contains(&(self as u16))
    }

    /// Whether it asks or reports what an established connection waits for. It changes nothing at
    /// the peer.
    pub fn is_of_inquiry(self) -> bool {
        matches!(self, Self::WaitQuestion | Self::WaitAnswer)
    }

    /// The longest body, in bytes.
    pub fn max_body_bytes(self) -> usize {
        if self == Self::MissingList { MAX_MISSING_LIST_BYTES } else { MAX_BODY_BYTES }
    }

    fn to_bits(self) -> u16 {
        self as u16 + 1
    }

    fn from_bits(bits: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.to_bits() == bits)
    }
}

/// For the log.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hello => "hello",
            Self::Reply => "reply",
            Self::Commit => "commit",
            Self::Refuse => "refusal",
            Self::Goodbye => "goodbye",
            Self::Resume => "resumption",
            Self::Halt => "halt",
            Self::Ports => "ports",
            Self::Offer => "offer of queue pairs",
            Self::Answer => "queue pairs for an offer",
            Self::Ready => "ready",
            Self::Ask => "question whether it arrives",
            Self::Heard => "answer that it arrives",
            Self::MissingList => "list of missing messages",
            Self::WaitQuestion => "question about a wait",
            Self::WaitAnswer => "answer about a wait",
            Self::Redial => "request to dial",
        })
    }
}

/// One message of the control connection.
///
/// ```text
/// byte 0      8        10    12        14        16       32
///      magic  version  kind  body u16  checksum  secret   body…
/// ```
///
/// The checksum covers everything after the version. A wrong one ends the control connection: with
/// a wrong secret the frame would belong to no connection, and both ends would wait for each other.
///
/// The secret identifies the connection, among those that share a control connection. The sender
/// generates it for each hello, so frames of different attempts cannot be confused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its kind.
    pub kind: Kind,
    /// The connection's secret; [`ALL_CONNECTIONS`] in a refusal that is for the whole process.
    pub secret: Secret,
    /// Content, by kind.
    pub body: Vec<u8>,
}

impl Frame {
    /// The bytes for the socket. A body longer than [`Kind::max_body_bytes`] is truncated.
    pub fn emit(&self) -> Vec<u8> {
        let body = &self.body[..self.body.len().min(self.kind.max_body_bytes())];
        let mut b = Vec::with_capacity(PREAMBLE_BYTES + body.len());
        b.extend_from_slice(MAGIC);
        b.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        b.extend_from_slice(&self.kind.to_bits().to_le_bytes());
        b.extend_from_slice(&(body.len() as u16).to_le_bytes());
        b.extend_from_slice(&[0; 2]);
        b.extend_from_slice(&self.secret);
        b.extend_from_slice(body);
        let sum = checksum(&b);
        b[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// A frame whose body is a text.
    pub fn text(kind: Kind, secret: Secret, text: &str) -> Self {
        Self { kind, secret, body: text.as_bytes().to_vec() }
    }

    /// The body as text for people: printable characters of the first [`MAX_TEXT_BYTES`].
    pub fn body_text(&self) -> String {
        let cut = &self.body[..self.body.len().min(MAX_TEXT_BYTES)];
        String::from_utf8_lossy(cut).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// Assembles frames from the pieces that a socket delivers.
#[derive(Debug, Default)]
pub struct Assembler {
    bytes: Vec<u8>,
    /// Whether a body of more than [`MAX_BODY_BYTES`] is allowed.
    allows_missing_lists: bool,
}

impl Assembler {
    /// Allows frames of any length of their kind from now on. Until then none has more than
    /// [`MAX_BODY_BYTES`], the limit for an unknown peer.
    pub fn allow_missing_lists(&mut self) {
        self.allows_missing_lists = true;
    }

    /// Adds bytes that have arrived.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether a frame has begun and is not complete.
    pub fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Bytes of incomplete frames.
    #[cfg(any(test, feature = "simulator"))]
    pub fn pending_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The next complete frame, if any.
    ///
    /// # Errors
    /// These are not the bytes of this Ferrite version. A wrong first byte is detected at once.
    pub fn poll_frame(&mut self) -> Result<Option<Frame>, Violation> {
        let have = self.bytes.len();
        let prefix = have.min(MAGIC.len());
        if self.bytes[..prefix] != MAGIC[..prefix] {
            return Err(violation!(
                "these bytes are not Ferrite's: {:02x?}",
                &self.bytes[..prefix]
            ));
        }
        if have < PREAMBLE_BYTES {
            return Ok(None);
        }
        let version = u16::from_le_bytes([self.bytes[8], self.bytes[9]]);
        if version != PROTOCOL_VERSION {
            return Err(violation!(
                "the peer speaks protocol {version}, this Ferrite {PROTOCOL_VERSION}"
            ));
        }
        let bits = u16::from_le_bytes([self.bytes[10], self.bytes[11]]);
        let kind = Kind::from_bits(bits)
            .ok_or_else(|| violation!("a control message of unknown kind {bits}"))?;
        let end = PREAMBLE_BYTES + self.body_bytes(kind)?;
        if have < end {
            return Ok(None);
        }
        if self.bytes[CHECKSUM] != checksum(&self.bytes[..end]).to_le_bytes() {
            return Err(violation!("a message ({kind}) with a wrong checksum"));
        }
        let mut secret = Secret::default();
        secret.copy_from_slice(&self.bytes[16..32]);
        let body = self.bytes[PREAMBLE_BYTES..end].to_vec();
        self.bytes.drain(..end);
        Ok(Some(Frame { kind, secret, body }))
    }

    fn body_bytes(&self, kind: Kind) -> Result<usize, Violation> {
        let claimed = usize::from(u16::from_le_bytes([self.bytes[12], self.bytes[13]]));
        let most = if self.allows_missing_lists { kind.max_body_bytes() } else { MAX_BODY_BYTES };
        if claimed > most {
            return Err(violation!("a control message of {claimed} bytes; {most} are allowed"));
        }
        Ok(claimed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_fragmentation(bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 1..16),
                                            piece in 1usize..70) {
            let frames: Vec<_> = bodies.into_iter().enumerate()
                .map(|(i, body)| Frame { kind: Kind::ALL[i % Kind::ALL.len()], secret: [i as u8; 16], body }).collect();
            let bytes: Vec<u8> = frames.iter().flat_map(Frame::emit).collect();
            let mut assembler = Assembler::default();
            let mut got = Vec::new();
            for chunk in bytes.chunks(piece) {
                assembler.handle_bytes(chunk);
                while let Some(frame) = assembler.poll_frame().expect("valid") {
                    got.push(frame);
                }
            }
            prop_assert_eq!(got, frames);
        }

        #[test]
        fn any_bytes_are_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..200), lead in 0usize..=8) {
            let mut assembler = Assembler::default();
            assembler.handle_bytes(&MAGIC[..lead]);
            assembler.handle_bytes(&bytes);
            if let Ok(None) = assembler.poll_frame() {
                prop_assert!(assembler.pending_bytes() < PREAMBLE_BYTES + MAX_BODY_BYTES);
            }
        }
    }

    #[test]
    fn a_changed_byte_behind_the_version_is_refused_or_waited_for() {
        let good = Frame { kind: Kind::Hello, secret: [7; 16], body: vec![0; 100] }.emit();
        for at in 10..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 0xff;
            let mut assembler = Assembler::default();
            assembler.handle_bytes(&bytes);
            let found = assembler.poll_frame();
            // A greater length is that of a frame that has not arrived whole.
            assert!(found.is_err() || at == 12 && found == Ok(None), "byte {at}: {found:?}");
        }
    }

    /// What is made of a frame of this kind with a body of so many bytes.
    fn received(kind: Kind, length: usize, allows_missing_lists: bool) -> Result<usize, String> {
        let mut assembler = Assembler { allows_missing_lists, ..Assembler::default() };
        let mut bytes = Frame { kind, secret: [7; 16], body: vec![1; length] }.emit();
        // One that is too long is not emitted: its length is announced.
        bytes[12..14].copy_from_slice(&(length as u16).to_le_bytes());
        assembler.handle_bytes(&bytes);
        let frame = assembler.poll_frame().map_err(|violation| violation.text().to_owned())?;
        Ok(frame.expect("it is whole").body.len())
    }

    #[test]
    fn only_a_missing_list_of_an_established_connection_may_be_longer_than_4096_bytes() {
        for kind in Kind::ALL {
            for allowed in [false, true] {
                let most = if allowed && kind == Kind::MissingList { 24 << 10 } else { 4096 };
                assert_eq!(received(kind, most, allowed), Ok(most), "{kind:?}");
                let refusal =
                    format!("a control message of {} bytes; {most} are allowed", most + 1);
                assert_eq!(received(kind, most + 1, allowed), Err(refusal), "{kind:?}");
            }
        }
    }

    #[test]
    fn a_longer_body_is_cut_to_what_its_kind_allows() {
        for kind in Kind::ALL {
            let frame = Frame { kind, secret: [7; 16], body: vec![1; 30_000] };
            assert_eq!(frame.emit().len(), PREAMBLE_BYTES + kind.max_body_bytes(), "{kind:?}");
        }
    }

    #[test]
    fn a_text_is_shown_whole_up_to_2048_bytes_without_what_spoils_a_log() {
        let text = |length: usize| format!("\n{}", "x".repeat(length - 1));
        let shown = |length| Frame::text(Kind::Goodbye, [7; 16], &text(length)).body_text();
        assert_eq!(shown(1500), format!(" {}", "x".repeat(1499)));
        assert_eq!(shown(4000).len(), 2048);
    }

    #[test]
    fn the_first_wrong_byte_is_enough() {
        let mut assembler = Assembler::default();
        assembler.handle_bytes(b"GET / HTTP/1.1\r\n");
        assert!(assembler.poll_frame().is_err());
    }

    /// FNV-1a of the bytes between, its two halves one upon the other.
    #[test]
    fn the_checksum_is_that_of_every_release() {
        assert_eq!(checksum(&[0; 32]), 0x5dab);
        let frame = Frame { kind: Kind::Hello, secret: [7; 16], body: b"abc".to_vec() }.emit();
        assert_eq!(frame[CHECKSUM], 0xb049_u16.to_le_bytes());
        assert_eq!(frame[10..12], [1, 0]);
    }

    #[test]
    fn kinds_have_the_numbers_of_every_release() {
        let numbers = Kind::ALL.map(Kind::to_bits);
        assert_eq!(numbers, std::array::from_fn(|place| place as u16 + 1));
        let some = [Kind::Hello, Kind::Goodbye, Kind::Halt, Kind::MissingList, Kind::Redial];
        assert_eq!(some.map(Kind::to_bits), [1, 5, 7, 14, 17]);
    }

    #[test]
    fn a_frame_has_begun_until_it_is_whole() {
        let mut assembler = Assembler::default();
        assert!(!assembler.has_begun());
        let bytes = Frame { kind: Kind::Commit, secret: [7; 16], body: Vec::new() }.emit();
        assembler.handle_bytes(&bytes[..1]);
        assert!(assembler.has_begun());
        assembler.handle_bytes(&bytes[1..]);
        assert!(assembler.poll_frame().expect("valid").is_some() && !assembler.has_begun());
    }
}
