//! The set-up messages of the two ends of a connection, and the terms that follow from them.

use super::codec::{Reader, Writer};
use super::cts::{Cts, cts_halves};
use super::endpoint::{Endpoint, RailEnd};
use super::frame::{ALL_CONNECTIONS, Frame, Kind};
use super::handle::{HANDLE_BYTES, Handle, Secret, Token};
use super::identity::Identity;
use super::recovery::message::rails_of_end;
use super::recovery::rail_mask::RailMask;
use super::stripe::Striping;
use super::{MAX_QPS, MAX_RAILS, RING_SLOTS, Violation, violation};
use std::fmt;
use std::net::SocketAddr;

/// The ring of clear-to-sends, in the sender's memory. Its keys are those of the sender's rails:
/// [`RailEnd::ring_key`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Its address in the sender's process.
    pub addr: u64,
    /// Its number of slots, which must be [`RING_SLOTS`].
    pub slots: u32,
    /// The bytes available for each slot. The terms define how many are used; slots are contiguous.
    pub slot_room: u32,
}

/// The sender's first message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The token of the listener.
    pub token: Token,
    /// The sender's number of rails: the connection uses their numbers.
    pub count: u8,
    /// The rails that it can use now.
    pub rails: RailMask,
    /// Why it cannot use the others, for people; empty if it can use all.
    pub left_out: String,
    /// The sender's end, with these rails in ascending order of their numbers.
    pub endpoint: Endpoint,
    /// Where the receiver puts its clear-to-sends.
    pub ring: Ring,
    /// The sender's process.
    pub identity: Identity,
}

/// The address where the process that dialled a control connection accepts connections itself. It
/// is sent before its first hello or resumption there, in a commit of no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialerAddress {
    /// The address of its port.
    pub address: SocketAddr,
}

/// The sender's resumption on another control connection, and the receiver's request to dial one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// As in the connection's hello.
    pub token: Token,
    /// How often the sender has asked for it, from 1 on: if two cross, the greater one counts.
    pub attempt: u32,
}

/// The receiver's answer. The receiver decides; its end has exactly the rails and queue pairs to be
/// used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The rails that the connection begins on, a subset of those that the sender can use.
    pub rails: RailMask,
    /// Why it does not begin on the others, for people.
    pub left_out: String,
    /// The receiver's end, with these rails in ascending order of their numbers.
    pub endpoint: Endpoint,
    /// The terms.
    pub terms: Negotiated,
    /// The receiver's process.
    pub identity: Identity,
}

/// The terms of a connection, for both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Negotiated {
    /// The number of rails of the connection. It may begin on some of them.
    pub count: u8,
    /// The rails that it begins on, their queue pairs, and the distribution of messages over them.
    pub striping: Striping,
    /// Whether data and immediate of a large message are posted separately.
    pub adaptive_routing: bool,
    /// Whether the connection recovers from a failed queue pair.
    pub failover: bool,
}

/// For the log.
impl fmt::Display for Negotiated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, striping, adaptive_routing, failover } = *self;
        write!(
            f,
            "{} rail(s) with {} queue pair(s) each",
            striping.rails(),
            striping.qps_per_rail()
        )?;
        if count != striping.rails() {
            write!(f, " (numbers {} of {count})", striping.rail_numbers())?;
        }
        if striping.is_split() {
            f.write_str(", messages are split")?;
        }
        if adaptive_routing {
            f.write_str(", packets may be reordered")?;
        }
        f.write_str(if failover { ", with failover" } else { ", without failover" })
    }
}

impl Negotiated {
    /// The terms that both ends can keep: the smaller number of rails, and of queue pairs on each;
    /// split and recovery only if both support it; out-of-order precautions if either asks for
    /// them.
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
        let qps = rails
            .iter()
            .map(|(theirs, ours)| theirs.qps.len().min(ours.qps.len()))
            .min()
            .unwrap_or(0);
        let qps = qps.min(MAX_QPS / rails.len().max(1));
        if qps == 0 {
            return Err(violation!("no queue pair to use"));
        }
        Ok(Self {
            count: rails.len() as u8,
            striping: Striping::new(rails.len() as u8, qps as u8, sender.split && receiver.split),
            adaptive_routing: sender.adaptive_routing || receiver.adaptive_routing,
            failover: sender.failover && receiver.failover,
        })
    }

    /// The terms for a connection of `count` rails that begins on those with these `numbers`, as
    /// many as agreed.
    #[must_use]
    pub fn over(self, count: u8, numbers: RailMask) -> Self {
        Self { count, striping: self.striping.over(numbers), ..self }
    }

    /// Queue pairs on each rail.
    pub fn qps_per_rail(&self) -> usize {
        self.striping.qps_per_rail().into()
    }

    /// Bytes of a clear-to-send.
    pub fn slot_bytes(&self) -> usize {
        cts_halves(self.count.into()) * Cts::BYTES
    }
}

impl Hello {
    /// A frame of the connection, which `secret` identifies from now on.
    pub fn frame(&self, secret: Secret) -> Frame {
        Frame { kind: Kind::Hello, secret, body: self.body() }
    }

    /// The body of that frame.
    pub fn body(&self) -> Vec<u8> {
        let mut body = Writer::default();
        body.bytes(&self.token);
        body.u8(self.count);
        body.u8(self.rails.0);
        body.name(&self.left_out);
        self.endpoint.emit(&mut body);
        body.u64(self.ring.addr);
        body.u32(self.ring.slots);
        body.u32(self.ring.slot_room);
        self.identity.emit(&mut body);
        body.0
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// It is too short, too long or invalid.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let token = body.array()?;
        let count = body.count(MAX_RAILS, "rails")?;
        let numbers = body.u8()?;
        let left_out = body.name()?;
        let endpoint = Endpoint::parse(&mut body)?;
        let rails = rails_of_end(numbers, RailMask::first(count), &endpoint)?;
        let ring = Ring { addr: body.u64()?, slots: body.u32()?, slot_room: body.u32()? };
        let identity = Identity::parse(&mut body)?;
        body.end()?;
        if ring.slots as usize != RING_SLOTS {
            return Err(violation!("a ring of {} slots; {RING_SLOTS} are expected", ring.slots));
        }
        let needed = cts_halves(count.into()) * Cts::BYTES;
        if (ring.slot_room as usize) < needed {
            return Err(violation!(
                "a ring with {} bytes for a slot; {needed} are needed",
                ring.slot_room
            ));
        }
        Ok(Self { token, count, rails, left_out, endpoint, ring, identity })
    }

    /// The token of the listener that a hello with this body is for; reads nothing else.
    ///
    /// # Errors
    /// It is too short.
    pub fn token_of(body: &[u8]) -> Result<Token, Violation> {
        Reader(body).array()
    }
}

impl DialerAddress {
    /// A frame with the handle of no listener.
    pub fn frame(&self) -> Frame {
        let handle = Handle::without_gids(self.address, Token::default());
        Frame { kind: Kind::Commit, secret: ALL_CONNECTIONS, body: handle.emit().to_vec() }
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// It is not a handle.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let bytes: &[u8; HANDLE_BYTES] = body.try_into().map_err(|_| {
            violation!("an address of {} bytes; {HANDLE_BYTES} are expected", body.len())
        })?;
        Handle::parse(bytes).map(|handle| Self { address: handle.address })
    }
}

impl Resume {
    /// A frame of the connection identified by `secret`: the sender's, or the receiver's request
    /// for it.
    pub fn frame(&self, kind: Kind, secret: Secret) -> Frame {
        let mut body = Writer::default();
        body.bytes(&self.token);
        body.u32(self.attempt);
        Frame { kind, secret, body: body.0 }
    }

    /// Reads a frame's body.
    ///
    /// # Errors
    /// It is too short or too long.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let resume = Self { token: body.array()?, attempt: body.u32()? };
        body.end()?;
        Ok(resume)
    }
}

impl Reply {
    /// A frame of the connection whose hello had this `secret`.
    pub fn frame(&self, secret: Secret) -> Frame {
        Frame { kind: Kind::Reply, secret, body: self.body() }
    }

    /// The body of that frame.
    pub fn body(&self) -> Vec<u8> {
        let Negotiated { count: _, striping, adaptive_routing, failover } = self.terms;
        let mut body = Writer::default();
        body.u8(self.rails.0);
        body.name(&self.left_out);
        self.endpoint.emit(&mut body);
        body.u8(striping.qp_count());
        body.u8(u8::from(striping.is_split()));
        body.u8(u8::from(adaptive_routing));
        body.u8(u8::from(failover));
        self.identity.emit(&mut body);
        body.0
    }

    /// Parses a frame's body; `hello` is what this process has sent.
    ///
    /// # Errors
    /// It is too short or too long, or the terms exceed the offer.
    pub fn parse(body: &[u8], hello: &Hello) -> Result<Self, Violation> {
        let mut body = Reader(body);
        let numbers = body.u8()?;
        let left_out = body.name()?;
        let endpoint = Endpoint::parse(&mut body)?;
        let numbers = rails_of_end(numbers, hello.rails, &endpoint)?;
        let rails = numbers.count();
        let qps = body.count(MAX_QPS, "queue pairs")?;
        let (split, adaptive_routing, failover) = (body.flag()?, body.flag()?, body.flag()?);
        let identity = Identity::parse(&mut body)?;
        body.end()?;
        let striping = Striping::new(rails, qps / rails, split).over(numbers);
        let terms = Negotiated { count: hello.count, striping, adaptive_routing, failover };
        let mut rest = endpoint.clone();
        rest.truncate(rails.into(), terms.qps_per_rail());
        let offered = hello.endpoint.over(hello.rails, numbers);
        let due = Negotiated::agree(&offered, &endpoint)?.over(hello.count, numbers);
        if terms != due || rest != endpoint || terms.striping.qp_count() != qps {
            return Err(violation!(
                "{} answered with terms that do not match both ends: {terms}",
                endpoint.name
            ));
        }
        Ok(Self { rails: numbers, left_out, endpoint, terms, identity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QpIndex;
    use crate::endpoint::QpEnd;
    use crate::sample::{endpoint, hello, reply};
    use proptest::prelude::*;

    const RING: Ring = Ring { addr: 0xdead_beef, slots: RING_SLOTS as u32, slot_room: 64 };

    #[test]
    fn hello_and_reply_survive_the_wire() {
        for (ours, theirs, rails, qps) in [
            ((1, 4), (1, 2), 1, 2),
            ((2, 4), (1, 32), 1, 4),
            ((4, 9), (3, 2), 3, 2),
            ((4, 8), (4, 9), 4, 8),
        ] {
            let said = hello(endpoint(ours.0, ours.1, true), RING);
            assert_eq!(Hello::parse(&said.frame([0; 16]).body).as_ref(), Ok(&said));
            let mut end = endpoint(theirs.0, theirs.1, true);
            let terms = Negotiated::agree(&said.endpoint, &end).expect("they fit");
            assert_eq!(
                terms,
                Negotiated {
                    count: rails,
                    striping: Striping::new(rails, qps, true),
                    adaptive_routing: ours.1 == 2 || theirs.1 == 2,
                    failover: true,
                }
            );
            end.truncate(terms.striping.rails().into(), terms.qps_per_rail());
            let answer = reply(&said, RailMask::first(terms.striping.rails()), end.clone());
            assert_eq!(Reply::parse(&answer.frame([0; 16]).body, &said).as_ref(), Ok(&answer));
            end.rails[0].qps.push(QpEnd { qpn: 1, psn: 1, ece: None });
            let wrong = Reply { endpoint: end, ..answer };
            assert!(Reply::parse(&wrong.frame([0; 16]).body, &said).is_err());
        }
    }

    #[test]
    fn a_connection_may_begin_on_some_of_its_rails() {
        let mut said = hello(endpoint(3, 2, true), RING);
        said.endpoint.rails.remove(1);
        (said.rails, said.left_out) = (RailMask(0b101), "rail 1: its port is down".into());
        assert_eq!(Hello::parse(&said.body()).as_ref(), Ok(&said));
        let mut answer = reply(&said, RailMask(0b100), endpoint(1, 2, true));
        answer.left_out = "rail 0: no port".into();
        assert_eq!(Reply::parse(&answer.body(), &said).as_ref(), Ok(&answer));
        assert_eq!(
            (answer.terms.count, answer.terms.slot_bytes()),
            (3, 64),
            "room for all of its rails"
        );
        assert_eq!(answer.terms.striping.rail_of(QpIndex(1)), 2);
        for rails in [RailMask(0b010), RailMask(0b1000), RailMask(0b101), RailMask::NONE] {
            let wrong = Reply { rails, ..answer.clone() };
            assert!(Reply::parse(&wrong.body(), &said).is_err(), "{rails}");
        }
        let more = Hello { rails: RailMask(0b111), ..said.clone() };
        assert!(Hello::parse(&more.body()).is_err(), "there are queue pairs on two");
        assert!(Hello::parse(&Hello { count: 2, ..said }.body()).is_err(), "rail 2 of two");
    }

    #[test]
    fn a_connection_is_recovered_only_if_both_ends_would() {
        for (sender, receiver) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut said = hello(endpoint(2, 1, true), RING);
            said.endpoint.failover = sender;
            assert_eq!(Hello::parse(&said.body()).as_ref(), Ok(&said));
            let mut end = endpoint(2, 1, true);
            end.failover = receiver;
            let terms = Negotiated::agree(&said.endpoint, &end).expect("they fit");
            assert_eq!(terms.failover, sender && receiver, "{sender} {receiver}");
            let answer = reply(&said, said.rails, end);
            assert_eq!(Reply::parse(&answer.body(), &said).as_ref(), Ok(&answer));
            let other =
                Reply { terms: Negotiated { failover: !terms.failover, ..terms }, ..answer };
            assert!(
                Reply::parse(&other.body(), &said).is_err(),
                "that does not follow from both ends"
            );
        }
    }

    #[test]
    fn a_resumption_survives_the_wire() {
        let resume = Resume { token: std::array::from_fn(|i| i as u8), attempt: 0x0102_0304 };
        assert_eq!(resume.frame(Kind::Redial, [7; 16]).kind, Kind::Redial);
        let frame = resume.frame(Kind::Resume, [7; 16]);
        assert_eq!(
            (frame.kind, frame.secret, Resume::parse(&frame.body)),
            (Kind::Resume, [7; 16], Ok(resume))
        );
        assert!(
            Resume::parse(&frame.body[1..]).is_err()
                && Resume::parse(&[frame.body, vec![0]].concat()).is_err()
        );
    }

    #[test]
    fn where_a_process_is_called_survives_the_wire() {
        for address in ["10.0.0.7:4711", "[fe80::1]:9"] {
            let caller = DialerAddress { address: address.parse().expect("an address") };
            let frame = caller.frame();
            assert_eq!(
                (frame.kind, frame.secret, DialerAddress::parse(&frame.body)),
                (Kind::Commit, ALL_CONNECTIONS, Ok(caller))
            );
            assert!(DialerAddress::parse(&frame.body[1..]).is_err(), "one byte too few");
        }
    }

    #[test]
    fn the_longest_hello_fits_a_frame() {
        let mut said = hello(endpoint(4, 8, true), RING);
        said.left_out = "w".repeat(300);
        said.endpoint.name = "x".repeat(300);
        said.identity.host = "z".repeat(300);
        said.endpoint.rails.iter_mut().for_each(|rail| rail.name = "y".repeat(300));
        assert!(said.frame([0; 16]).body.len() <= crate::frame::MAX_BODY_BYTES);
    }

    #[test]
    fn unlike_links_are_refused_by_name() {
        let a = endpoint(2, 1, false);
        let mut b = endpoint(2, 1, false);
        b.rails[1].infiniband = true;
        assert!(
            Negotiated::agree(&a, &b)
                .expect_err("refused")
                .text()
                .contains("rdma of process 42 on host is on Ethernet")
        );
        b.rails.truncate(1);
        assert!(Negotiated::agree(&a, &b).is_ok(), "that rail is not used");
    }

    #[test]
    fn a_ring_of_another_size_is_refused() {
        let refused = |rails, ring| {
            let said = hello(endpoint(rails, 1, false), ring);
            Hello::parse(&said.frame([0; 16]).body).is_err()
        };
        assert!(refused(1, Ring { slots: 1 << 20, ..RING }));
        assert!(refused(3, Ring { slot_room: 32, ..RING }), "three keys do not fit");
        assert!(!refused(2, Ring { slot_room: 32, ..RING }));
    }

    proptest! {
        #[test]
        fn every_cut_of_a_hello_is_refused(cut in 0usize..150) {
            let body = hello(endpoint(2, 4, true), RING).frame([0; 16]).body;
            prop_assert!(Hello::parse(&body[..body.len() - 1 - cut]).is_err());
        }

        #[test]
        fn terms_suit_both_ends(a in (1usize..=4, 1usize..=32, any::<bool>()), b in (1usize..=4, 1usize..=32, any::<bool>())) {
            let (sender, receiver) = (endpoint(a.0, a.1, a.2), endpoint(b.0, b.1, b.2));
            let terms = Negotiated::agree(&sender, &receiver).expect("they fit");
            let rails = usize::from(terms.striping.rails());
            prop_assert_eq!(rails, a.0.min(b.0));
            prop_assert_eq!(terms.qps_per_rail(), a.1.min(b.1).min(MAX_QPS / rails));
            prop_assert!(usize::from(terms.striping.qp_count()) <= MAX_QPS);
            prop_assert_eq!(terms, Negotiated::agree(&receiver, &sender).expect("they fit"));
        }
    }

    #[test]
    fn the_clear_to_sends_of_three_rails_have_64_bytes() {
        let bytes = |rails| {
            let striping = Striping::new(rails, 2, false);
            Negotiated { count: rails, striping, adaptive_routing: false, failover: false }
                .slot_bytes()
        };
        assert_eq!([1, 2, 3, 4].map(bytes), [32, 32, 64, 64]);
    }

    #[test]
    fn messages_are_split_only_if_both_ends_would() {
        for (sender, receiver) in [(true, true), (true, false), (false, true), (false, false)] {
            let terms = Negotiated::agree(&endpoint(1, 2, sender), &endpoint(1, 2, receiver))
                .expect("they fit");
            assert_eq!(terms.striping.is_split(), sender && receiver);
        }
    }
}
