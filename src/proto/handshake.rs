//! What the two ends of a connection tell each other, and what they make of it.

use super::codec::{Reader, Writer};
use super::frame::{Frame, Kind};
use super::handle::Token;
use super::shares::Shares;
use super::stripe::Striping;
use super::wire::{Slot, slot_halves};
use super::{Lane, MAX_LANES, MAX_RAILS, RING_SLOTS, Violation, violation};

/// One end of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneEnd {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First packet sequence number that this end sends, 24 bits.
    pub psn: u32,
}

/// One end of a rail: a port, how it is reached, and its queue pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailEnd {
    /// For messages: device and port.
    pub name: String,
    /// Whether the link layer is InfiniBand (addressed by `lid`) or Ethernet (by `gid`).
    pub infiniband: bool,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier.
    pub gid: [u8; 16],
    /// Path MTU as the verbs' enumeration: 1 = 256 … 5 = 4096 bytes.
    pub mtu: u8,
    /// What the port promises, in Mbit/s.
    pub speed_mbps: u32,
    /// Its queue pairs.
    pub lanes: Vec<LaneEnd>,
}

/// One end of a connection. Rails are numbered alike on both ends: rail 0 of one is connected to rail 0 of the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// For messages: device, host name, process.
    pub name: String,
    /// Whether the fabric may reorder packets, so that data and immediate of a large message are posted apart.
    pub adaptive_routing: bool,
    /// Whether this end would cut messages over all lanes.
    pub split: bool,
    /// Its rails, 1 to [`MAX_RAILS`], with as many queue pairs each.
    pub rails: Vec<RailEnd>,
}

impl Endpoint {
    /// The queue pair behind `lane` of a connection that is striped so; this end may have more than that uses.
    pub fn lane(&self, lane: Lane, striping: Striping) -> Option<LaneEnd> {
        let rail = self.rails.get(usize::from(striping.rail_of(lane)))?;
        rail.lanes.get(usize::from(lane.0 / striping.rails())).copied()
    }

    /// What is left of it on `terms`.
    pub fn truncate(&mut self, terms: &Terms) {
        self.rails.truncate(terms.striping.rails().into());
        for rail in &mut self.rails {
            rail.lanes.truncate(terms.lanes_per_rail());
        }
    }

    /// The shares with which rails begin that this end and `peer` have in common.
    pub fn shares_with(&self, peer: &Self) -> Shares {
        Shares::by_speed(
            self.rails.iter().zip(&peer.rails).map(|(mine, theirs)| mine.speed_mbps.min(theirs.speed_mbps)),
        )
    }
}

/// The ring of clear-to-sends, in the sender's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Its address in the sender's process.
    pub addr: u64,
    /// Keys for remote writes, one per rail.
    pub rkeys: [u32; MAX_RAILS],
    /// Its number of slots; has to be [`RING_SLOTS`].
    pub slots: u32,
    /// The bytes there are for each. How many a slot has follows from the terms; it begins where the one before ends.
    pub slot_room: u32,
}

/// The sender's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The sender's end.
    pub endpoint: Endpoint,
    /// Where the receiver puts its clear-to-sends.
    pub ring: Ring,
}

/// The receiver's answer. It is the receiver that decides; its end has just the rails and lanes that are to be used.
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
    /// Rails and lanes, and how messages are laid over them.
    pub striping: Striping,
    /// Whether data and immediate of a large message are posted apart.
    pub adaptive_routing: bool,
}

impl Terms {
    /// The terms that both ends can keep: the fewer rails, the fewer lanes on each; split only if both would; careful about
    /// order if either asks for it.
    ///
    /// # Errors
    /// The ends cannot be connected.
    pub fn agree(sender: &Endpoint, receiver: &Endpoint) -> Result<Self, Violation> {
        let rails: Vec<_> = sender.rails.iter().zip(&receiver.rails).take(MAX_RAILS).collect();
        for (theirs, ours) in &rails {
            if theirs.infiniband != ours.infiniband {
                let layer = |e: &RailEnd| if e.infiniband { "InfiniBand" } else { "Ethernet" };
                let (a, b) = (
                    format!("{} is on {}", sender.name, layer(theirs)),
                    format!("{} on {}", receiver.name, layer(ours)),
                );
                return Err(violation!("{a}, {b}"));
            }
        }
        let lanes = rails.iter().map(|(theirs, ours)| theirs.lanes.len().min(ours.lanes.len())).min().unwrap_or(0);
        let lanes = lanes.min(MAX_LANES / rails.len().max(1));
        if lanes == 0 {
            return Err(violation!("no queue pair to use"));
        }
        Ok(Self {
            striping: Striping::new(rails.len() as u8, lanes as u8, sender.split && receiver.split),
            adaptive_routing: sender.adaptive_routing || receiver.adaptive_routing,
        })
    }

    /// Queue pairs on each rail.
    pub fn lanes_per_rail(&self) -> usize {
        usize::from(self.striping.lanes() / self.striping.rails())
    }

    /// Bytes of a clear-to-send.
    pub fn slot_bytes(&self) -> usize {
        slot_halves(self.striping.rails().into()) * Slot::BYTES
    }
}

impl Hello {
    /// As a frame for the listener that knows `token`.
    pub fn frame(&self, token: Token) -> Frame {
        let mut body = Writer::default();
        self.endpoint.emit(&mut body);
        body.u64(self.ring.addr);
        self.ring.rkeys.iter().for_each(|key| body.u32(*key));
        body.u32(self.ring.slots);
        body.u32(self.ring.slot_room);
        Frame { kind: Kind::Hello, token, body: body.0 }
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// It is too short or too long, or says something no Ferrite says.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let endpoint = Endpoint::parse(&mut body)?;
        let addr = body.u64()?;
        let mut rkeys = [0; MAX_RAILS];
        for key in &mut rkeys {
            *key = body.u32()?;
        }
        let ring = Ring { addr, rkeys, slots: body.u32()?, slot_room: body.u32()? };
        body.end()?;
        if ring.slots as usize != RING_SLOTS {
            return Err(violation!("a ring of {} slots; {RING_SLOTS} are expected", ring.slots));
        }
        let needed = slot_halves(endpoint.rails.len()) * Slot::BYTES;
        if (ring.slot_room as usize) < needed {
            return Err(violation!("a ring with {} bytes for a slot; {needed} are needed", ring.slot_room));
        }
        Ok(Self { endpoint, ring })
    }
}

impl Reply {
    /// As a frame for the sender.
    pub fn frame(&self, token: Token) -> Frame {
        let Terms { striping, adaptive_routing } = self.terms;
        let mut body = Writer::default();
        self.endpoint.emit(&mut body);
        body.u8(striping.rails());
        body.u8(striping.lanes());
        body.u8(u8::from(striping.is_split()));
        body.u8(u8::from(adaptive_routing));
        Frame { kind: Kind::Reply, token, body: body.0 }
    }

    /// Reads a frame's body; `offered` is what this process had said in its hello.
    ///
    /// # Errors
    /// It is too short or too long, or the terms are not within what was offered.
    pub fn parse(body: &[u8], offered: &Endpoint) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let endpoint = Endpoint::parse(&mut body)?;
        let (rails, lanes) = (body.count(MAX_RAILS, "rails")?, body.count(MAX_LANES, "queue pairs")?);
        let (split, adaptive_routing) = (body.flag()?, body.flag()?);
        body.end()?;
        let terms = Terms { striping: Striping::new(rails, lanes / rails, split), adaptive_routing };
        let mut rest = endpoint.clone();
        rest.truncate(&terms);
        if terms != Terms::agree(offered, &endpoint)? || rest != endpoint || terms.striping.lanes() != lanes {
            return Err(violation!(
                "{} answered with terms that do not follow from both ends: {terms:?}",
                endpoint.name
            ));
        }
        Ok(Self { endpoint, terms })
    }
}

impl Endpoint {
    fn emit(&self, to: &mut Writer) {
        to.name(&self.name);
        to.u8(u8::from(self.adaptive_routing));
        to.u8(u8::from(self.split));
        to.u8(self.rails.len().min(MAX_RAILS) as u8);
        self.rails.iter().take(MAX_RAILS).for_each(|rail| rail.emit(to));
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let (name, adaptive_routing, split) = (from.name()?, from.flag()?, from.flag()?);
        let count = from.count(MAX_RAILS, "rails")?;
        let rails = (0..count).map(|_| RailEnd::parse(from)).collect::<Result<_, _>>()?;
        Ok(Self { name, adaptive_routing, split, rails })
    }
}

impl RailEnd {
    fn emit(&self, to: &mut Writer) {
        to.name(&self.name);
        to.u8(u8::from(self.infiniband));
        to.u16(self.lid);
        to.bytes(&self.gid);
        to.u8(self.mtu);
        to.u32(self.speed_mbps);
        to.u8(self.lanes.len().min(MAX_LANES) as u8);
        for lane in self.lanes.iter().take(MAX_LANES) {
            to.u32(lane.qpn);
            to.u32(lane.psn);
        }
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let (name, infiniband) = (from.name()?, from.flag()?);
        let (lid, gid, mtu) = (from.u16()?, from.array()?, from.u8()?);
        if !(1..=5).contains(&mtu) {
            return Err(violation!("MTU code {mtu}; 1 (256 bytes) to 5 (4096) are possible"));
        }
        let speed_mbps = from.u32()?;
        let count = from.count(MAX_LANES, "queue pairs")?;
        let lane = |from: &mut Reader<'_>| Ok(LaneEnd { qpn: from.number24()?, psn: from.number24()? });
        let lanes = (0..count).map(|_| lane(from)).collect::<Result<_, Violation>>()?;
        Ok(Self { name, infiniband, lid, gid, mtu, speed_mbps, lanes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::sim::endpoint;
    use proptest::prelude::*;

    const RING: Ring = Ring { addr: 0xdead_beef, rkeys: [77, 78, 79, 80], slots: RING_SLOTS as u32, slot_room: 64 };

    #[test]
    fn hello_and_reply_survive_the_wire() {
        for (ours, theirs, rails, lanes) in
            [((1, 4), (1, 2), 1, 2), ((2, 4), (1, 32), 1, 4), ((4, 9), (3, 2), 3, 2), ((4, 8), (4, 9), 4, 8)]
        {
            let hello = Hello { endpoint: endpoint(ours.0, ours.1, true), ring: RING };
            assert_eq!(Hello::parse(&hello.frame([0; 16]).body).as_ref(), Ok(&hello));
            let mut end = endpoint(theirs.0, theirs.1, true);
            let terms = Terms::agree(&hello.endpoint, &end).expect("they fit");
            assert_eq!(
                terms,
                Terms { striping: Striping::new(rails, lanes, true), adaptive_routing: ours.1 == 2 || theirs.1 == 2 }
            );
            end.truncate(&terms);
            let reply = Reply { endpoint: end.clone(), terms };
            assert_eq!(Reply::parse(&reply.frame([0; 16]).body, &hello.endpoint), Ok(reply));
            end.rails[0].lanes.push(LaneEnd { qpn: 1, psn: 1 });
            let wrong = Reply { endpoint: end, terms };
            assert!(Reply::parse(&wrong.frame([0; 16]).body, &hello.endpoint).is_err());
        }
    }

    #[test]
    fn the_longest_hello_fits_a_frame() {
        let mut hello = Hello { endpoint: endpoint(4, 8, true), ring: RING };
        hello.endpoint.name = "x".repeat(300);
        hello.endpoint.rails.iter_mut().for_each(|rail| rail.name = "y".repeat(300));
        assert!(hello.frame([0; 16]).body.len() <= crate::proto::frame::MAX_BODY_BYTES);
    }

    #[test]
    fn lanes_are_dealt_out_to_rails_in_turn() {
        let striping = Striping::new(3, 2, false);
        for end in [endpoint(3, 2, false), endpoint(4, 2, false), endpoint(3, 5, false)] {
            let number = |lane| end.lane(Lane(lane), striping).map(|lane| lane.qpn);
            let numbers: Vec<_> = (0..6).filter_map(number).collect();
            assert_eq!(numbers, [0, 100, 200, 1, 101, 201]);
        }
        assert_eq!(endpoint(3, 2, false).lane(Lane(6), striping), None);
    }

    #[test]
    fn unlike_links_are_refused_by_name() {
        let a = endpoint(2, 1, false);
        let mut b = endpoint(2, 1, false);
        b.rails[1].infiniband = true;
        assert!(
            Terms::agree(&a, &b).expect_err("refused").text().contains("rdma of process 42 on host is on Ethernet")
        );
        b.rails.truncate(1);
        assert!(Terms::agree(&a, &b).is_ok(), "that rail is not used");
    }

    #[test]
    fn a_ring_of_another_size_is_refused() {
        let refused = |rails, ring| {
            Hello::parse(&Hello { endpoint: endpoint(rails, 1, false), ring }.frame([0; 16]).body).is_err()
        };
        assert!(refused(1, Ring { slots: 1 << 20, ..RING }));
        assert!(refused(3, Ring { slot_room: 32, ..RING }), "three keys do not fit");
        assert!(!refused(2, Ring { slot_room: 32, ..RING }));
    }

    proptest! {
        #[test]
        fn any_body_parses_or_is_refused(body in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Hello::parse(&body);
            let _ = Reply::parse(&body, &endpoint(2, 5, true));
        }

        #[test]
        fn every_cut_of_a_hello_is_refused(cut in 0usize..150) {
            let body = Hello { endpoint: endpoint(2, 4, true), ring: RING }.frame([0; 16]).body;
            prop_assert!(Hello::parse(&body[..body.len() - 1 - cut]).is_err());
        }

        #[test]
        fn terms_suit_both_ends(a in (1usize..=4, 1usize..=32, any::<bool>()), b in (1usize..=4, 1usize..=32, any::<bool>())) {
            let (sender, receiver) = (endpoint(a.0, a.1, a.2), endpoint(b.0, b.1, b.2));
            let terms = Terms::agree(&sender, &receiver).expect("they fit");
            let rails = usize::from(terms.striping.rails());
            prop_assert_eq!(rails, a.0.min(b.0));
            prop_assert_eq!(terms.lanes_per_rail(), a.1.min(b.1).min(MAX_LANES / rails));
            prop_assert!(usize::from(terms.striping.lanes()) <= MAX_LANES);
            prop_assert_eq!(terms, Terms::agree(&receiver, &sender).expect("they fit"));
        }
    }
}
