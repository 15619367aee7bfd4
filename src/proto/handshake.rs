//! What the two ends of a connection tell each other, and what they make of it.

use super::frame::{Frame, Kind};
use super::handle::Token;
use super::stripe::Striping;
use super::{MAX_LANES, RING_SLOTS, Violation, violation};

/// One end of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneEnd {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First packet sequence number that this end sends, 24 bits.
    pub psn: u32,
    /// In a hello what the device offers beyond the standard, in a reply what of it the other one takes up.
    pub ece: Option<Ece>,
}

/// Enhanced connection establishment: options of a maker's devices, whose meaning is theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ece {
    /// The maker, never 0.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
    /// Further fields that are set.
    pub comp_mask: u32,
}

/// Where and how one end is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// For messages: device and port, host name, process.
    pub name: String,
    /// Whether the link layer is InfiniBand (addressed by `lid`) or Ethernet (by `gid`).
    pub infiniband: bool,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier.
    pub gid: [u8; 16],
    /// Path MTU as the verbs' enumeration: 1 = 256 … 5 = 4096 bytes.
    pub mtu: u8,
    /// Whether the fabric may reorder packets, so that data and immediate of a large message are posted apart.
    pub adaptive_routing: bool,
    /// Whether this end would cut messages over all lanes.
    pub split: bool,
    /// Its queue pairs.
    pub lanes: Vec<LaneEnd>,
}

/// The ring of clear-to-sends, in the sender's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Its address in the sender's process.
    pub addr: u64,
    /// Key for remote writes.
    pub rkey: u32,
    /// Its number of slots; has to be [`RING_SLOTS`].
    pub slots: u32,
}

/// The sender's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The sender's end.
    pub endpoint: Endpoint,
    /// Where the receiver puts its clear-to-sends.
    pub ring: Ring,
}

/// The receiver's answer. It is the receiver that decides; its end has just the lanes that are to be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The receiver's end.
    pub endpoint: Endpoint,
    /// The terms.
    pub terms: Terms,
}

/// What holds for both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Lanes, and how messages are laid over them.
    pub striping: Striping,
    /// Path MTU as the verbs' enumeration.
    pub mtu: u8,
    /// Whether data and immediate of a large message are posted apart.
    pub adaptive_routing: bool,
}

impl Terms {
    /// The terms that both ends can keep: the fewer lanes, the smaller MTU; split only if both would; careful about
    /// order if either asks for it.
    ///
    /// # Errors
    /// The ends cannot be connected.
    pub fn agree(sender: &Endpoint, receiver: &Endpoint) -> Result<Self, Violation> {
        if sender.infiniband != receiver.infiniband {
            let layer = |e: &Endpoint| if e.infiniband { "InfiniBand" } else { "Ethernet" };
            return Err(violation!(
                "{} is on {}, {} on {}",
                sender.name,
                layer(sender),
                receiver.name,
                layer(receiver)
            ));
        }
        let lanes = sender.lanes.len().min(receiver.lanes.len()).min(MAX_LANES);
        let lanes = u8::try_from(lanes).ok().filter(|n| *n > 0).ok_or_else(|| violation!("no queue pair to use"))?;
        Ok(Self {
            striping: Striping { lanes, split: sender.split && receiver.split },
            mtu: sender.mtu.min(receiver.mtu),
            adaptive_routing: sender.adaptive_routing || receiver.adaptive_routing,
        })
    }
}

impl Hello {
    /// As a frame for the listener that knows `token`.
    pub fn frame(&self, token: Token) -> Frame {
        let mut body = Writer::default();
        body.endpoint(&self.endpoint);
        body.u64(self.ring.addr);
        body.u32(self.ring.rkey);
        body.u32(self.ring.slots);
        Frame { kind: Kind::Hello, token, body: body.0 }
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// It is too short or too long, or says something no Ferrite says.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let endpoint = body.endpoint()?;
        let ring = Ring { addr: body.u64()?, rkey: body.u32()?, slots: body.u32()? };
        body.end()?;
        if ring.slots as usize != RING_SLOTS {
            return Err(violation!("a ring of {} slots; {RING_SLOTS} are expected", ring.slots));
        }
        Ok(Self { endpoint, ring })
    }
}

impl Reply {
    /// As a frame for the sender.
    pub fn frame(&self, token: Token) -> Frame {
        let mut body = Writer::default();
        body.endpoint(&self.endpoint);
        body.u8(self.terms.striping.lanes);
        body.u8(u8::from(self.terms.striping.split));
        body.u8(self.terms.mtu);
        body.u8(u8::from(self.terms.adaptive_routing));
        Frame { kind: Kind::Reply, token, body: body.0 }
    }

    /// Reads a frame's body; `offered` is what this process had said in its hello.
    ///
    /// # Errors
    /// It is too short or too long, or the terms are not within what was offered.
    pub fn parse(body: &[u8], offered: &Endpoint) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let endpoint = body.endpoint()?;
        let terms = Terms {
            striping: Striping { lanes: body.u8()?, split: body.flag()? },
            mtu: body.u8()?,
            adaptive_routing: body.flag()?,
        };
        body.end()?;
        if terms != Terms::agree(offered, &endpoint)? || usize::from(terms.striping.lanes) != endpoint.lanes.len() {
            return Err(violation!(
                "{} answered with terms that do not follow from both ends: {terms:?}",
                endpoint.name
            ));
        }
        Ok(Self { endpoint, terms })
    }
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn endpoint(&mut self, e: &Endpoint) {
        let name = &e.name.as_bytes()[..e.name.len().min(255)];
        self.u8(name.len() as u8);
        self.0.extend_from_slice(name);
        self.u8(u8::from(e.infiniband));
        self.u16(e.lid);
        self.0.extend_from_slice(&e.gid);
        self.u8(e.mtu);
        self.u8(u8::from(e.adaptive_routing));
        self.u8(u8::from(e.split));
        self.u8(e.lanes.len().min(MAX_LANES) as u8);
        for lane in e.lanes.iter().take(MAX_LANES) {
            self.u32(lane.qpn);
            self.u32(lane.psn);
            let none = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
            let Ece { vendor_id, options, comp_mask } = lane.ece.unwrap_or(none);
            [vendor_id, options, comp_mask].into_iter().for_each(|word| self.u32(word));
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Violation> {
        let (head, tail) = self.0.split_first_chunk().ok_or_else(|| violation!("a control message is too short"))?;
        self.0 = tail;
        Ok(*head)
    }
    fn u8(&mut self) -> Result<u8, Violation> {
        self.array().map(|[b]| b)
    }
    fn flag(&mut self) -> Result<bool, Violation> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            n => Err(violation!("a flag of a control message is {n}")),
        }
    }
    fn u16(&mut self) -> Result<u16, Violation> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, Violation> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, Violation> {
        self.array().map(u64::from_le_bytes)
    }
    fn number24(&mut self) -> Result<u32, Violation> {
        match self.u32()? {
            n if n < 1 << 24 => Ok(n),
            n => Err(violation!("{n} is no 24-bit number")),
        }
    }
    fn ece(&mut self) -> Result<Option<Ece>, Violation> {
        let ece = Ece { vendor_id: self.u32()?, options: self.u32()?, comp_mask: self.u32()? };
        Ok(Some(ece).filter(|ece| ece.vendor_id != 0))
    }
    fn endpoint(&mut self) -> Result<Endpoint, Violation> {
        let length = usize::from(self.u8()?);
        let (name, rest) =
            self.0.split_at_checked(length).ok_or_else(|| violation!("a control message is too short"))?;
        self.0 = rest;
        let name = String::from_utf8_lossy(name).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let infiniband = self.flag()?;
        let (lid, gid, mtu) = (self.u16()?, self.array()?, self.u8()?);
        if !(1..=5).contains(&mtu) {
            return Err(violation!("MTU code {mtu}; 1 (256 bytes) to 5 (4096) are possible"));
        }
        let (adaptive_routing, split, count) = (self.flag()?, self.flag()?, self.u8()?);
        if !(1..=MAX_LANES).contains(&usize::from(count)) {
            return Err(violation!("{count} queue pairs; 1 to {MAX_LANES} are possible"));
        }
        let lane = |r: &mut Self| Ok(LaneEnd { qpn: r.number24()?, psn: r.number24()?, ece: r.ece()? });
        let lanes = (0..count).map(|_| lane(self)).collect::<Result<_, Violation>>()?;
        Ok(Endpoint { name, infiniband, lid, gid, mtu, adaptive_routing, split, lanes })
    }
    fn end(&self) -> Result<(), Violation> {
        if self.0.is_empty() { Ok(()) } else { Err(violation!("{} bytes too many in a control message", self.0.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane(i: u32) -> LaneEnd {
        let ece = Ece { vendor_id: 0x15b3, options: 1 << i, comp_mask: 0 };
        LaneEnd { qpn: 100 + i, psn: 7 * i, ece: Some(ece).filter(|_| i % 2 == 1) }
    }

    fn endpoint(lanes: usize, mtu: u8) -> Endpoint {
        let lanes = (0..lanes as u32).map(lane).collect();
        let name = format!("rdma{mtu}/1 host 42");
        Endpoint { name, infiniband: false, lid: 0, gid: [3; 16], mtu, adaptive_routing: mtu == 4, split: true, lanes }
    }

    const RING: Ring = Ring { addr: 0xdead_beef, rkey: 77, slots: RING_SLOTS as u32 };

    #[test]
    fn hello_and_reply_survive_the_wire() {
        let hello = Hello { endpoint: endpoint(4, 5), ring: RING };
        assert_eq!(Hello::parse(&hello.frame([0; 16]).body).as_ref(), Ok(&hello));
        let mut end = endpoint(2, 4);
        let terms = Terms::agree(&hello.endpoint, &end).expect("they fit");
        assert_eq!(terms, Terms { striping: Striping { lanes: 2, split: true }, mtu: 4, adaptive_routing: true });
        let reply = Reply { endpoint: end.clone(), terms };
        assert_eq!(Reply::parse(&reply.frame([0; 16]).body, &hello.endpoint), Ok(reply));
        end.lanes.push(lane(1));
        let wrong = Reply { endpoint: end, terms };
        assert!(Reply::parse(&wrong.frame([0; 16]).body, &hello.endpoint).is_err());
    }

    #[test]
    fn unlike_links_are_refused_by_name() {
        let a = endpoint(1, 5);
        let b = Endpoint { infiniband: true, ..endpoint(1, 5) };
        assert!(Terms::agree(&a, &b).expect_err("refused").text().contains("rdma5/1 host 42 is on Ethernet"));
    }

    #[test]
    fn a_ring_of_another_size_is_refused() {
        let hello = Hello { endpoint: endpoint(1, 5), ring: Ring { slots: 1 << 20, ..RING } };
        assert!(Hello::parse(&hello.frame([0; 16]).body).is_err());
    }

    proptest! {
        #[test]
        fn any_body_parses_or_is_refused(body in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Hello::parse(&body);
            let _ = Reply::parse(&body, &endpoint(1, 5));
        }

        #[test]
        fn every_cut_of_a_hello_is_refused(cut in 0usize..80) {
            let body = Hello { endpoint: endpoint(4, 5), ring: RING }.frame([0; 16]).body;
            prop_assert!(Hello::parse(&body[..body.len() - 1 - cut]).is_err());
        }
    }
}
