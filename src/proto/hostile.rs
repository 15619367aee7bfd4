//! A peer that says anything: whatever the bytes, they mean something that is within bounds, or they are refused. Nothing
//! panics, and nobody is told of bytes that there was no room for.

use super::endpoint::Endpoint;
use super::frame::{Assembler, Frame, Kind};
use super::handle::Token;
use super::handshake::{Hello, Reply, Resume, Ring, Terms};
use super::recv::{Buffer, RecvFlow};
use super::requests::RequestId;
use super::send::SendFlow;
use super::shares::Shares;
use super::sim::endpoint;
use super::stripe::Striping;
use super::wire::{Extent, Imm, Place, SlotWords};
use super::{Lane, MAX_GROUP, MAX_LANES, MAX_MESSAGE, MAX_RAILS, RING_SLOTS, Violation};
use proptest::collection::vec;
use proptest::prelude::*;

const TOKEN: Token = [0; 16];

/// A change of a good message's bytes.
#[derive(Debug, Clone)]
enum Change {
    Set(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        1 => any::<prop::sample::Index>().prop_map(Change::Remove),
    ]
}

fn changed(mut bytes: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        match change {
            Change::Set(at, byte) => *at.get_mut(&mut bytes) = *byte,
            Change::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Change::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
        }
    }
    bytes
}

fn hello(rails: usize, lanes: usize) -> Hello {
    let ring = Ring { addr: 1 << 40, rkeys: [1, 2, 3, 4], slots: RING_SLOTS as u32, slot_room: 64 };
    Hello { endpoint: endpoint(rails, lanes, true), ring, token: [9; 16] }
}

fn within_bounds(end: &Endpoint) -> bool {
    let lanes = |n: usize| (1..=MAX_LANES).contains(&n);
    (1..=MAX_RAILS).contains(&end.rails.len())
        && end.rails.iter().all(|rail| lanes(rail.lanes.len()) && rail.lanes.iter().all(|lane| lane.qpn < 1 << 24))
}

/// What a receiver may be told.
#[derive(Debug, Clone)]
enum Told {
    Anything(u8, u32),
    /// Something about one of the latest slots.
    Likely(u8, u8, Extent),
}

fn told() -> impl Strategy<Value = Told> {
    let extent = prop_oneof![
        (0..3000_u32).prop_map(Extent::Bytes),
        any::<u16>().prop_map(Extent::Low),
        (0..3_u16).prop_map(Extent::High),
        Just(Extent::Full),
        Just(Extent::Stripe),
    ];
    prop_oneof![
        1 => (any::<u8>(), any::<u32>()).prop_map(|(lane, bits)| Told::Anything(lane, bits)),
        9 => (any::<u8>(), 0..12_u8, extent).prop_map(|(lane, back, extent)| Told::Likely(lane, back, extent)),
    ]
}

/// The room for each message of a group: often one message, and little room.
fn group() -> impl Strategy<Value = Vec<u32>> {
    let room = || prop_oneof![3 => 0..2000_u32, 1 => 0..200_000_u32];
    prop_oneof![2 => vec(room(), 1), 1 => vec(room(), 1..=MAX_GROUP)]
}

/// A receiver with groups of buffers out, in front of a peer that says all of `told`; what it was told before the violation.
fn receive(striping: Striping, groups: &[Vec<u32>], told: Vec<Told>) -> Result<(), Violation> {
    let mut flow = RecvFlow::new(striping);
    let mut out = Vec::new();
    let mut last = 0;
    let mut latest = RequestId::from_bits(0);
    for group in groups {
        let buffer = |i| Ok::<_, Violation>(Buffer { addr: 4096, length: group[i], rkeys: &[1; MAX_RAILS], tag: 0 });
        let posted = flow.post(group.len(), buffer)?;
        latest = posted.unwrap_or(latest);
        out.extend(posted.map(|id| (id, group)));
        last += group.len() as u32;
    }
    while flow.poll_announcement(MAX_GROUP as u32).is_some() {}
    let mut violation = Ok(());
    for one in told {
        let (lane, imm) = match one {
            Told::Anything(lane, bits) => (lane, Imm::from_bits(bits)),
            Told::Likely(lane, back, extent) => {
                (lane, Imm::new(Place::of(last.saturating_sub(back.into()).max(1)), extent))
            }
        };
        // The lane is this side's own knowledge: the queue pair that the notice came over.
        violation = flow.handle_immediate(Lane(lane % striping.lanes()), imm);
        if violation.is_err() {
            break;
        }
        flow.handle_fruitless_poll(latest);
    }
    for (id, group) in out {
        let lengths = flow.poll_done(id)?.map(<[u32]>::to_vec).unwrap_or_default();
        assert!(lengths.is_empty() || lengths.len() == group.len());
        assert!(lengths.iter().zip(group).all(|(length, room)| length <= room), "{lengths:?} for {group:?}");
    }
    violation
}

proptest! {
    #[test]
    fn a_changed_hello_is_within_bounds_or_refused(rails in 1usize..=4, lanes in 1usize..=8, changes in vec(change(), 1..6)) {
        let good = hello(rails, lanes);
        if let Ok(hello) = Hello::parse(&changed(good.frame(TOKEN).body, &changes)) {
            prop_assert!(within_bounds(&hello.endpoint));
            prop_assert_eq!(hello.ring.slots, RING_SLOTS as u32);
            let own = endpoint(2, 2, true);
            if let Ok(terms) = Terms::agree(&hello.endpoint, &own) {
                prop_assert!(usize::from(terms.striping.lanes()) <= MAX_LANES);
                let _ = own.shares_with(&hello.endpoint);
            }
        }
    }

    #[test]
    fn a_changed_reply_is_what_was_offered_or_refused(rails in 1usize..=4, lanes in 1usize..=8, changes in vec(change(), 1..6)) {
        let offer = hello(rails, lanes).endpoint;
        let mut end = endpoint(rails, lanes, true);
        let terms = Terms::agree(&offer, &end).expect("they fit");
        end.truncate(terms.striping.rails().into(), terms.lanes_per_rail());
        let good = Reply { endpoint: end, terms };
        if let Ok(reply) = Reply::parse(&changed(good.frame(TOKEN).body, &changes), &offer) {
            prop_assert!(within_bounds(&reply.endpoint));
            let striping = reply.terms.striping;
            prop_assert!(usize::from(striping.rails()) <= rails && usize::from(striping.lanes()) <= rails * lanes);
            prop_assert_eq!(reply.endpoint.rails.len(), usize::from(striping.rails()));
            let _ = offer.shares_with(&reply.endpoint);
        }
    }

    #[test]
    fn a_changed_resumption_is_another_one_or_refused(attempt: u32, changes in vec(change(), 1..6)) {
        let good = Resume { token: [9; 16], attempt };
        let body = changed(good.frame(TOKEN).body, &changes);
        match Resume::parse(&body) {
            Ok(resume) => prop_assert_eq!(resume.frame(TOKEN).body, body),
            Err(_) => prop_assert_ne!(body.len(), 20),
        }
    }

    #[test]
    fn a_frame_with_changed_bytes_is_of_a_known_kind_or_refused(bits: u16, changes in vec(change(), 0..3)) {
        let mut bytes = Frame { kind: Kind::Resume, secret: TOKEN, body: vec![3; 20] }.emit();
        bytes[10..12].copy_from_slice(&bits.to_le_bytes());
        let mut assembler = Assembler::default();
        assembler.handle_bytes(&changed(bytes, &changes));
        if let Ok(Some(frame)) = assembler.poll_frame() {
            let known = [Kind::Hello, Kind::Reply, Kind::Commit, Kind::Refuse, Kind::Goodbye, Kind::Resume];
            prop_assert!(known.contains(&frame.kind));
        }
    }

    #[test]
    fn a_receiver_is_not_told_of_more_than_there_is_room_for(rails in 1u8..=4, lanes in 1u8..=4, split: bool,
                                                             groups in vec(group(), 1..6),
                                                             told in vec(told(), 0..40)) {
        let _ = receive(Striping::new(rails, lanes, split), &groups, told);
    }

    #[test]
    fn a_sender_sends_no_more_than_it_was_asked_to(slots in vec(any::<SlotWords>(), 1..20), lengths in vec(0..=MAX_MESSAGE, 1..20),
                                                   rails in 1u8..=4) {
        let mut flow = SendFlow::new(Striping::new(rails, 1, false), Shares::by_speed([1; 4]));
        for length in lengths {
            let read = |seq: u32| slots.get(seq as usize - 1).map(|words| {
                let mut words = *words;
                // The number is what the ring is looked at for; groups, lengths and tags are made likely ones.
                words[3] = (words[3] & 0x0000_0000_ffff_0000 | 0x0100 | u64::from(seq) << 32).to_le();
                words[1] &= 0xffff_ffff_3fff_ffff;
                words[2] &= 0xffff_ffff;
                words
            });
            match flow.submit(0, length, read) {
                Ok(Some(transfer)) => {
                    prop_assert!(transfer.length <= length);
                    let sum: u32 = transfer.stripes(flow.shares()).map(|(stripe, _)| stripe.length).sum();
                    prop_assert_eq!(sum, transfer.length);
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
    }
}
