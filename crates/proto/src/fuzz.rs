//! What a fuzzer chooses the input of: messages, clear-to-sends and immediates of a peer that says
//! anything, and schedules of the simulator of the control connection.
//!
//! Each target takes any bytes, and panics if what has to hold does not. `scripts/fuzz.py` has
//! libFuzzer choose the bytes; a test runs the inputs that are kept in `tests/fuzz/corpus`.

#![allow(clippy::expect_used, clippy::panic)]

use super::control;
use super::cts::{Cts, CtsWords, SlotIndex};
use super::endpoint::Endpoint;
use super::explain::message::{Answer, Question};
use super::frame::{Assembler, Kind};
use super::handle::{HANDLE_BYTES, Handle};
use super::handshake::{Hello, Negotiated, Reply, Resume, Ring};
use super::imm::{Imm, LengthCode};
use super::rail_weights::RailWeights;
use super::random::Random;
use super::recovery::message::Message;
use super::recovery::missing_list::{MissingList, MissingMessage};
use super::recovery::rail_mask::RailMask;
use super::recv::{Buffer, RecvFlow};
use super::requests::RequestId;
use super::sample::{self, endpoint};
use super::send::{SendFlow, Transfer};
use super::stripe::Striping;
use super::{MAX_GROUP, MAX_QPS, MAX_RAILS, QpIndex, RING_SLOTS, Violation};

/// A target: it takes any bytes, and panics if what has to hold does not.
pub type Target = fn(&[u8]);

/// The targets, by name.
pub const TARGETS: [(&str, Target); 5] = [
    ("frames", frames),
    ("bodies", bodies),
    ("sender", sender),
    ("receiver", receiver),
    ("control", |bytes| control::sim::check(Random::from_bytes(bytes))),
];

/// A stream of bytes on a control connection, which come in pieces.
fn frames(bytes: &[u8]) {
    let mut assembler = Assembler::default();
    for piece in bytes.chunks(11) {
        assembler.handle_bytes(piece);
        while let Ok(Some(frame)) = assembler.poll_frame() {
            assert!(frame.body.len() <= frame.kind.max_body_bytes());
            let mut again = Assembler::default();
            again.allow_missing_lists();
            again.handle_bytes(&frame.emit());
            assert_eq!(
                again.poll_frame().map(|read| read.map(|frame| frame.body)),
                Ok(Some(frame.body))
            );
        }
    }
}

/// One message's body: that of a good message with some changes, or any bytes.
fn bodies(bytes: &[u8]) {
    let Some(([what, rails, qps, is_changed], rest)) = bytes.split_first_chunk() else { return };
    let (rails, qps) = (1 + rails % 4, 1 + qps % 8);
    let body =
        |good: Vec<u8>| if is_changed % 4 == 0 { rest.to_vec() } else { changed(good, rest) };
    let hello = hello(rails.into(), qps.into());
    let offer = hello.endpoint.clone();
    let mask = RailMask::first(rails);
    match what % 9 {
        0 => check_hello(&body(hello.body())),
        1 => check_reply(&body(reply(&hello, rails, qps).body()), &hello),
        2 => {
            let resume = Resume { token: [9; 16], attempt: 7 };
            let body = body(resume.frame(Kind::Resume, [9; 16]).body);
            match Resume::parse(&body) {
                Ok(resume) => assert_eq!(resume.frame(Kind::Resume, [9; 16]).body, body),
                Err(_) => assert_ne!(body.len(), 20),
            }
        }
        3 => {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
            let body = body(Handle::without_gids(address, [0; 16]).emit().to_vec());
            if let Some(Ok(handle)) = body.first_chunk::<HANDLE_BYTES>().map(Handle::parse) {
                assert_eq!(Handle::parse(&handle.emit()), Ok(handle));
            }
        }
        4 => check_recovery(
            &Message::Halt { attempt: 7, usable: mask, cause: "why".into() },
            body,
            rails,
        ),
        5 => check_recovery(
            &Message::Offer { attempt: 7, rails: mask, endpoint: offer },
            body,
            rails,
        ),
        6 => check_recovery(
            &Message::MissingList { attempt: 7, missing_list: missing_list(&mut Random::new(7)) },
            body,
            rails,
        ),
        7 => drop(
            Question::parse(rest)
                .map(|question| Question::parse(&question.body()).expect("it was read")),
        ),
        _ => drop(Answer::parse(rest)),
    }
}

/// `bytes` with changes, each of three bytes: where (two), and to what.
pub(super) fn changed(mut bytes: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        match at.checked_rem(bytes.len()) {
            Some(place) if at >> 14 == 3 => drop(bytes.remove(place)),
            Some(place) if at >> 14 == 2 => bytes.insert(place, change[2]),
            Some(place) => bytes[place] = change[2],
            None => bytes.push(change[2]),
        }
    }
    bytes
}

/// A good first message of a sender with so many rails and queue pairs.
pub(super) fn hello(rails: usize, qps: usize) -> Hello {
    let ring = Ring { addr: 1 << 40, slots: RING_SLOTS as u32, slot_room: 64 };
    Hello { token: [9; 16], ..sample::hello(endpoint(rails, qps, true), ring) }
}

/// A good reply to that.
fn reply(hello: &Hello, rails: u8, qps: u8) -> Reply {
    sample::reply(
        hello,
        hello.rails & RailMask::first(rails),
        endpoint(rails.into(), qps.into(), true),
    )
}

fn is_within_bounds(end: &Endpoint) -> bool {
    let is_count = |n: usize| (1..=MAX_QPS).contains(&n);
    (1..=MAX_RAILS).contains(&end.rails.len())
        && end
            .rails
            .iter()
            .all(|rail| is_count(rail.qps.len()) && rail.qps.iter().all(|qp| qp.qpn < 1 << 24))
}

/// Whether no name is longer than what a message carries of it: characters that are not valid UTF-8
/// take more bytes once read.
fn has_short_names(end: &Endpoint) -> bool {
    std::iter::once(&end.name)
        .chain(end.rails.iter().map(|rail| &rail.name))
        .all(|name| name.len() <= 255)
}

/// A first message is within bounds and is the same once it is written and read again, or is
/// refused.
fn check_hello(body: &[u8]) {
    let Ok(hello) = Hello::parse(body) else { return };
    if has_short_names(&hello.endpoint) && hello.left_out.len() <= 255 {
        assert_eq!(Hello::parse(&hello.body()).as_ref(), Ok(&hello));
    }
    assert!(
        is_within_bounds(&hello.endpoint) && hello.rails.is_within(RailMask::first(hello.count))
    );
    assert_eq!(hello.ring.slots, RING_SLOTS as u32);
    let own = endpoint(2, 2, true);
    if let Ok(terms) = Negotiated::agree(&hello.endpoint, &own) {
        assert!(usize::from(terms.striping.qp_count()) <= MAX_QPS);
        let _ = own.rail_weights_with(&hello.endpoint);
    }
}

/// A reply takes what was offered, and is the same once it is written and read again, or is
/// refused.
fn check_reply(body: &[u8], hello: &Hello) {
    let offer = &hello.endpoint;
    let Ok(reply) = Reply::parse(body, hello) else { return };
    assert!(is_within_bounds(&reply.endpoint) && reply.rails.is_within(hello.rails));
    if has_short_names(&reply.endpoint) && reply.left_out.len() <= 255 {
        assert_eq!(Reply::parse(&reply.body(), hello).as_ref(), Ok(&reply));
    }
    let (striping, most) =
        (reply.terms.striping, offer.rails.first().map_or(0, |rail| rail.qps.len()));
    assert!(usize::from(striping.rails()) <= offer.rails.len());
    assert!(usize::from(striping.qp_count()) <= offer.rails.len() * most);
    assert_eq!(reply.endpoint.rails.len(), usize::from(striping.rails()));
    let _ = offer.rail_weights_with(&reply.endpoint);
}

/// A message about recovery, whose body is made from that of a good one, is within bounds and is
/// the same once it is written and read again, or is refused.
fn check_recovery(good: &Message, body: impl FnOnce(Vec<u8>) -> Vec<u8>, rails: u8) {
    let mask = RailMask::first(rails);
    let Ok(message) = Message::parse(good.kind(), &body(good.body()), rails) else { return };
    let is_short = match &message {
        Message::MissingList { missing_list, .. } => missing_list.check() == Ok(()),
        Message::Offer { rails, endpoint, .. } => {
            assert!(is_within_bounds(endpoint) && rails.is_within(mask));
            assert_eq!(endpoint.rails.len(), usize::from(rails.count()));
            has_short_names(endpoint)
        }
        Message::Halt { usable, cause, .. } => {
            assert!(usable.is_within(mask));
            cause.len() <= 255
        }
        _ => true,
    };
    assert!(
        is_short || !matches!(message, Message::MissingList { .. }),
        "a missing list that is not valid is read"
    );
    if is_short {
        assert_eq!(Message::parse(message.kind(), &message.body(), rails), Ok(message));
    }
}

/// A receiver whose peer sends any immediates.
fn receiver(bytes: &[u8]) {
    let mut random = Random::from_bytes(bytes);
    let striping =
        Striping::new(1 + random.below(4) as u8, 1 + random.below(4) as u8, random.one_in(2));
    let groups: Vec<Vec<u32>> = (0..1 + random.below(6)).map(|_| group(&mut random)).collect();
    let immediates = (0..random.below(64)).map(|_| arriving(&mut random)).collect();
    let _ = receive(striping, &groups, immediates);
}

fn group(random: &mut Random) -> Vec<u32> {
    let count = if random.one_in(2) { 1 } else { 1 + random.index(MAX_GROUP) };
    let mut size = || {
        let most = if random.one_in(2) { 2000 } else { 200_000 };
        random.below(most) as u32
    };
    (0..count).map(|_| size()).collect()
}

/// An immediate that a receiver gets.
#[derive(Debug, Clone)]
enum Arriving {
    /// On a queue pair, any 32 bits.
    Random(u8, u32),
    /// On a queue pair, for one of the latest slots.
    Likely(u8, u8, LengthCode),
}

fn arriving(random: &mut Random) -> Arriving {
    let qp = random.below(256) as u8;
    if random.one_in(8) {
        return Arriving::Random(qp, random.below(1 << 32) as u32);
    }
    let code = match random.below(5) {
        0 => LengthCode::Bytes(random.below(3000) as u32),
        1 => LengthCode::Low(random.below(1 << 16) as u16),
        2 => LengthCode::High(random.below(3) as u16),
        3 => LengthCode::Full,
        _ => LengthCode::Stripe,
    };
    Arriving::Likely(qp, random.below(12) as u8, code)
}

/// A receiver with groups of buffers of these sizes gets all of `immediates`, up to the first that
/// is refused. No completed receive reports more bytes than its buffer has.
fn receive(
    striping: Striping,
    groups: &[Vec<u32>],
    immediates: Vec<Arriving>,
) -> Result<(), Violation> {
    let mut flow = RecvFlow::new(striping);
    let mut out = Vec::new();
    let mut last = 0;
    let mut tested = RequestId::from_bits(0);
    for group in groups {
        let buffer = |i| {
            Ok::<_, Violation>(Buffer {
                addr: 4096,
                length: group[i],
                rkeys: &[1; MAX_RAILS],
                tag: 0,
            })
        };
        let posted = flow.post(group.len(), buffer)?;
        tested = posted.unwrap_or(tested);
        out.extend(posted.map(|id| (id, group)));
        last += group.len() as u32;
    }
    while flow.poll_cts(MAX_GROUP as u32).is_some() {}
    let mut violation = Ok(());
    for one in immediates {
        let (qp, imm) = match one {
            Arriving::Random(qp, bits) => (qp, Imm::from_bits(bits)),
            Arriving::Likely(qp, back, code) => {
                (qp, Imm::new(SlotIndex::of(last.saturating_sub(back.into()).max(1)), code))
            }
        };
        // The queue pair is known from the completion, not from the peer, so it exists.
        violation = flow.handle_immediate(QpIndex(qp % striping.qp_count()), imm);
        if violation.is_err() {
            break;
        }
        flow.handle_empty_poll(tested);
    }
    for (id, group) in out {
        let lengths = flow.poll_done(id)?.map(<[u32]>::to_vec).unwrap_or_default();
        assert!(lengths.is_empty() || lengths.len() == group.len());
        assert!(
            lengths.iter().zip(group).all(|(length, size)| length <= size),
            "{lengths:?} for {group:?}"
        );
    }
    violation
}

/// A sender whose ring holds what the peer writes, and which gets missing lists of it.
fn sender(bytes: &[u8]) {
    let mut random = Random::from_bytes(bytes);
    let striping =
        Striping::new(1 + random.below(4) as u8, 1 + random.below(4) as u8, random.one_in(2));
    let mut flow = SendFlow::new(striping, RailWeights::from_speeds([1; 4]));
    if striping.is_split() && random.one_in(2) {
        flow.use_lanes();
    }
    let mut outstanding: Vec<RequestId> = Vec::new();
    for _ in 0..random.below(40) {
        match random.below(8) {
            0..=4 => {
                let ring: Vec<_> = (0..4).map(|_| clear_to_send(&mut random)).collect();
                let length = random.below(200_000) as u32;
                let read =
                    |seq: u32| ring.get(seq as usize % 8).map(|words| with_number(*words, seq));
                match flow.submit(random.below(3) as u32, 0, length, read) {
                    Ok(Some(transfer)) => {
                        assert!(transfer.length <= length);
                        check_stripes(&flow, &transfer);
                        outstanding.push(transfer.id);
                    }
                    Ok(None) => {}
                    Err(_) => return,
                }
            }
            5 | 6 => {
                if !outstanding.is_empty() {
                    let id = outstanding.swap_remove(random.index(outstanding.len()));
                    while flow.is_done(id) == Ok(false) {
                        flow.handle_completion(id).expect("it is outstanding");
                    }
                    let _ = flow.poll_done(id);
                }
            }
            _ => {
                let before = flow.outstanding();
                if flow
                    .apply_missing_list(
                        &missing_list(&mut random),
                        striping,
                        RailWeights::from_speeds([1; 4]),
                    )
                    .is_err()
                {
                    assert_eq!(flow.outstanding(), before);
                }
                while let Some((transfer, _)) = flow.poll_replay() {
                    assert!(outstanding.contains(&transfer.id));
                    check_stripes(&flow, &transfer);
                }
            }
        }
    }
}

fn clear_to_send(random: &mut Random) -> CtsWords {
    if random.one_in(4) {
        return std::array::from_fn(|_| random.below(u64::MAX));
    }
    let (length, tag) = (random.below(200_000) as u32, random.below(3) as u32);
    Cts { addr: 4096, length, rkeys: [1; 2], tag, seq: 0 }.emit()
}

/// The same with this sequence number, as it is read where that one is looked for.
fn with_number(mut words: CtsWords, seq: u32) -> CtsWords {
    words[3] = (u64::from_le(words[3]) & 0xffff_ffff | u64::from(seq) << 32).to_le();
    words
}

/// The stripes of a message make up all of it.
pub(super) fn check_stripes(flow: &SendFlow, transfer: &Transfer) {
    let sum: u32 = transfer.stripes(|qp| flow.weight_of(qp)).map(|(stripe, _)| stripe.length).sum();
    assert_eq!(sum, transfer.length);
}

/// A missing list near what a sender of a few messages expects.
fn missing_list(random: &mut Random) -> MissingList {
    let number = |random: &mut Random| if random.one_in(10) { random.below(1 << 32) } else { random.below(24) } as u32;
    let (oldest, next) = (number(random), number(random));
    let missing = (0..random.below(20)).map(|i| {
        let seq = if random.one_in(8) { number(random) } else { oldest.wrapping_add(i as u32) };
        let length = random.below(200_000) as u32;
        MissingMessage {
            cts: Cts { addr: 4096, length, rkeys: [1; 2], tag: random.below(3) as u32, seq },
            extra: [1; 2],
        }
    });
    let missing = missing.collect();
    MissingList { oldest, next, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each has reached something that none before had.
    #[test]
    fn inputs_that_are_kept_break_nothing() {
        for (name, target) in TARGETS {
            for input in testkit::corpus::kept_inputs(name) {
                println!("{name}: {input:?}");
                target(&input);
            }
        }
    }

    /// Short ones make few changes of a good message, long ones a sender and a receiver of many
    /// messages.
    #[test]
    fn any_bytes_are_an_input() {
        let mut random = Random::new(1);
        for (name, target) in TARGETS {
            let (short, long) =
                if ["schedules", "control"].contains(&name) { (40, 0) } else { (4000, 1000) };
            for number in 0..short + long {
                let most = if number < short { 24 } else { 800 };
                let length = random.index(most);
                target(&(0..length).map(|_| random.below(256) as u8).collect::<Vec<_>>());
            }
        }
    }
}
