//! Tests of all values where there are few enough, and of sequence numbers that wrap. With
//! `FERRITE_EXHAUSTIVE` set, of every value; else of some of them, evenly spread.

use crate::cts::{Cts, CtsWords};
use crate::imm::{Imm, LengthCode};
use crate::rail_weights::RailWeights;
use crate::random::Random;
use crate::recv::{Buffer, RecvFlow};
use crate::send::SendFlow;
use crate::stripe::Striping;
use crate::{RING_SLOTS, Violation};

/// From one value, or one input that a fuzzer has kept, to the next: 1, or `otherwise`.
pub(crate) fn step(otherwise: usize) -> usize {
    if std::env::var_os("FERRITE_EXHAUSTIVE").is_some() { 1 } else { otherwise }
}

#[test]
fn every_immediate_is_read_as_it_is_made_again() {
    for bits in (0..=u32::MAX).step_by(step(65_537)) {
        let imm = Imm::from_bits(bits);
        let (slot, code) = (imm.slot(), imm.length_code());
        let again = Imm::new(slot, code);
        assert_eq!((again.slot(), again.length_code()), (slot, code), "{bits:#x}");
        // What a length code leaves unused is all that may differ.
        assert_eq!(slot.index() as u32, bits >> 23);
        match code {
            LengthCode::Bytes(length) => assert!(again == imm && length == bits & 0x7f_ffff),
            LengthCode::Low(half) | LengthCode::High(half) => {
                assert_eq!(u32::from(half), bits & 0xffff)
            }
            LengthCode::Full | LengthCode::Stripe => {}
        }
    }
}

/// A connection whose first message has sequence number `first`: what happens to each message, in
/// words without that number.
fn told(first: u32, messages: u32) -> Vec<String> {
    let striping = Striping::new(1, 2, true);
    let mut sender = SendFlow::new(striping, RailWeights::from_speeds([1]));
    let mut receiver = RecvFlow::new(striping);
    (sender.head, sender.next) = (first, first);
    receiver.window.begin_at(first);
    let mut ring = vec![CtsWords::default(); RING_SLOTS];
    let mut random = Random::new(7);
    let (mut sends, mut receives, mut told) = (Vec::new(), Vec::new(), Vec::new());
    let (mut posted, mut rounds) = (0, 0);
    while posted < messages || !receives.is_empty() || !sends.is_empty() {
        rounds += 1;
        assert!(rounds < 10 * messages, "nothing goes on");
        let buffer = |i: usize| Buffer {
            addr: i as u64,
            length: 40_000,
            rkeys: &[1, 0, 0, 0],
            tag: i as u32,
        };
        // Often more than there is space for.
        for _ in 0..random.index(150) {
            let count = 1 + random.index(8);
            if posted < messages
                && let Some(id) =
                    receiver.post(count, |i| Ok::<_, Violation>(buffer(i))).expect("valid")
            {
                posted += count as u32;
                receives.push(id);
            }
        }
        while let Some(slots) = receiver.poll_cts(8) {
            told.push(format!("slots {slots:?}"));
            ring[slots.clone()].copy_from_slice(receiver.encoded_cts_narrow(slots));
        }
        let read = |seq: u32| {
            Some(ring[seq as usize % RING_SLOTS]).filter(|words| Cts::seq_of(words[3]) == seq)
        };
        for tag in 0..8 {
            let length = random.below(45_000) as u32;
            sends.extend(sender.submit(tag, 0, length, read).expect("valid"));
        }
        let keep = if posted < messages { random.index(3) } else { 0 };
        while sends.len() > keep {
            let transfer = sends.swap_remove(random.index(sends.len()));
            for (stripe, immediates) in transfer.stripes(|_| 1) {
                for imm in [Some(immediates.first), immediates.second].into_iter().flatten() {
                    receiver.handle_immediate(stripe.qp, imm).expect("expected");
                }
                sender.handle_completion(transfer.id).expect("outstanding");
            }
            let place = sender.place(transfer.id).expect("live").wrapping_sub(first);
            let done = sender.poll_done(transfer.id).expect("live");
            told.push(format!("message {} of {done:?} bytes", place.wrapping_add(1)));
        }
        receives.retain(|id| match receiver.poll_done(*id).expect("live") {
            Some(lengths) => {
                told.push(format!("arrived {lengths:?}"));
                false
            }
            None => true,
        });
        // A receive that waits for clear-to-sends is tested.
        receives.iter().for_each(|id| receiver.handle_empty_poll(*id));
    }
    assert!(sender.is_idle() && receiver.is_idle() && receiver.outstanding() == 0);
    told
}

#[test]
fn sequence_numbers_wrap_at_any_message_and_nothing_else_changes() {
    let fast = told(1 + RING_SLOTS as u32, 2000);
    assert!(fast.len() > 2000);
    // The first message has the same slot, and sequence number 0 comes soon, or within the ring's
    // later rounds.
    for rounds in 1..=4 {
        assert_eq!(told((RING_SLOTS as u32 * rounds).wrapping_neg() + 1, 2000), fast, "{rounds}");
    }
    // It comes at any place of a group.
    for before in (0..2048).step_by(step(127)) {
        let first = 0_u32.wrapping_sub(before);
        assert_eq!(
            told(first, 2500).len(),
            told(first.wrapping_add(RING_SLOTS as u32 * 16), 2500).len(),
            "{before}"
        );
    }
}
