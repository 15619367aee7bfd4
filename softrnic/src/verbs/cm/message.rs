//! What the two ends of a connection say to each other.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::abi::types::Gid;

/// Kinds of messages, by the names of the InfiniBand connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for a connection.
    Req = 1,
    /// Accepts it.
    Rep = 2,
    /// Ready to use.
    Rtu = 3,
    /// Refuses it.
    Rej = 4,
    /// Ends it, and answers that.
    Dreq = 5,
}

/// Most private data of each kind over RDMA_PS_TCP; events have so many bytes of them, filled up with zeros.
pub(super) const PRIVATE_OF_REQ: usize = 56;
pub(super) const PRIVATE_OF_REP: usize = 196;
pub(super) const PRIVATE_OF_REJ: usize = 148;

/// Changes with the layout of messages.
const VERSION: u8 = 1;

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Of a REJ: why (`ib_cm_rej_reason`).
    pub(super) reason: u8,
    /// Responder resources, initiator depth, flow control, retry count, RNR retry count, SRQ; as the application says it.
    pub(super) terms: [u8; 6],
    /// `ibv_mtu` of the port.
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) qp_num: u32,
    pub(super) psn: u32,
    pub(super) gid: Gid,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) private: Vec<u8>,
}

fn address_bytes(address: SocketAddr) -> [u8; 19] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 19];
    bytes[0] = u8::from(address.is_ipv4());
    bytes[1..17].copy_from_slice(&ip.octets());
    bytes[17..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

fn address_of(bytes: [u8; 19]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[1..17]);
    let ip = Ipv6Addr::from(octets);
    let port = u16::from_be_bytes([bytes[17], bytes[18]]);
    let mapped = ip.to_ipv4_mapped().filter(|_| bytes[0] == 1);
    SocketAddr::new(mapped.map_or(IpAddr::V6(ip), IpAddr::V4), port)
}

impl Message {
    /// One that says nothing but its kind.
    pub(super) fn bare(kind: Kind) -> Self {
        let nowhere = SocketAddr::from(([0; 4], 0));
        Self {
            kind,
            reason: 0,
            terms: [0; 6],
            mtu: 0,
            lid: 0,
            qp_num: 0,
            psn: 0,
            gid: [0; 16],
            source: nowhere,
            target: nowhere,
            private: Vec::new(),
        }
    }

    /// A refusal.
    pub(super) fn refusal(reason: u8, private: Vec<u8>) -> Self {
        Self { reason, private, ..Self::bare(Kind::Rej) }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.kind as u8, self.reason, self.mtu];
        bytes.extend(self.terms);
        bytes.extend(self.lid.to_be_bytes());
        bytes.extend(self.qp_num.to_be_bytes());
        bytes.extend(self.psn.to_be_bytes());
        bytes.extend(self.gid);
        bytes.extend(address_bytes(self.source));
        bytes.extend(address_bytes(self.target));
        bytes.extend(&self.private);
        bytes
    }

    /// `None`: it is none of this version.
    pub(super) fn of_bytes(mut bytes: &[u8]) -> Option<Self> {
        let [version, kind, reason, mtu] = take(&mut bytes)?;
        let known = [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Rej, Kind::Dreq];
        let kind = known.into_iter().find(|one| *one as u8 == kind && version == VERSION)?;
        Some(Self {
            kind,
            reason,
            mtu,
            terms: take(&mut bytes)?,
            lid: u16::from_be_bytes(take(&mut bytes)?),
            qp_num: u32::from_be_bytes(take(&mut bytes)?),
            psn: u32::from_be_bytes(take(&mut bytes)?),
            gid: take(&mut bytes)?,
            source: address_of(take(&mut bytes)?),
            target: address_of(take(&mut bytes)?),
            private: bytes.to_vec(),
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let said = Message {
            reason: 28,
            terms: [1, 2, 3, 4, 5, 6],
            mtu: 5,
            lid: 7,
            qp_num: 0x12_3456,
            psn: 0x65_4321,
            gid: [9; 16],
            source: "127.0.0.1:7174".parse().expect("an address"),
            target: "[fe80::1]:80".parse().expect("an address"),
            private: vec![1, 2, 3],
            ..Message::bare(Kind::Rej)
        };
        let heard = Message::of_bytes(&said.to_bytes()).expect("it is understood");
        assert_eq!(format!("{heard:?}"), format!("{said:?}"));
        assert!(Message::of_bytes(&said.to_bytes()[..60]).is_none(), "a part");
        assert!(Message::of_bytes(&[VERSION + 1; 100]).is_none(), "of another version");
    }

    /// Each beginning of a message, and each with one byte changed: it is none, or one that can be said as it was heard.
    #[test]
    fn any_bytes_are_a_message_or_none() {
        let source = "[::ffff:10.0.0.1]:7".parse().expect("an address");
        let good = Message { source, private: vec![1, 2, 3], ..Message::bare(Kind::Req) }.to_bytes();
        let check = |bytes: &[u8]| {
            let Some(heard) = Message::of_bytes(bytes) else { return false };
            let again = Message::of_bytes(&heard.to_bytes()).expect("it is understood");
            assert_eq!(format!("{again:?}"), format!("{heard:?}"));
            assert!(heard.private.len() < bytes.len());
            true
        };
        let lengths: Vec<usize> = (0..=good.len()).filter(|length| check(&good[..*length])).collect();
        assert_eq!(lengths, [good.len() - 3, good.len() - 2, good.len() - 1, good.len()], "all but private data");
        for at in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = byte;
                check(&bytes);
            }
        }
    }
}
