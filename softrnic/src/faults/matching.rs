//! Whether a rule applies to a message.

use std::sync::atomic::Ordering::Relaxed;

use crate::host::clock::now_ns;
use crate::network::ecmp::mix;
use crate::shm::slots::RuleSlot;

/// A message that is transmitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    /// Ports and number of the connection in one word.
    pub(crate) path: u64,
    /// Number of the message on its connection, from 1.
    pub(crate) number: u64,
    /// Number of the transmission, from 0.
    pub(crate) attempt: u32,
    /// `ibv_wr_opcode`.
    pub(crate) opcode: u32,
    /// Bytes of its largest packet.
    pub(crate) packet: u64,
}

/// Whether rule `id` applies to the transmission. If so, it is counted.
pub(crate) fn match_rule(rule: &RuleSlot, id: u32, seed: u64, sent: &Transmission) -> bool {
    rule.id.load(Relaxed) == id
        && rule.opcodes.load(Relaxed) & 1 << sent.opcode.min(31) != 0
        && is_large_enough(rule, sent.packet)
        && sent.attempt < rule.attempts.load(Relaxed)
        && is_chosen(rule, sent.number)
        && is_drawn(rule, id, seed, sent)
        && is_in_time(rule)
        && count_hit(rule)
}

/// A random number for what a rule does to the message.
pub(crate) fn salt(id: u32, seed: u64, sent: &Transmission) -> u64 {
    random(seed, &[sent.path, sent.number, u64::from(id), 1])
}

/// Whether the rule is for messages whose largest packet has so many bytes.
fn is_large_enough(rule: &RuleSlot, packet: u64) -> bool {
    let larger = u64::from(rule.larger.load(Relaxed));
    larger == 0 || packet > larger
}

/// Whether `number` is among the rule's messages.
fn is_chosen(rule: &RuleSlot, number: u64) -> bool {
    let first = rule.first.load(Relaxed);
    let every = rule.every.load(Relaxed).max(1);
    (first..=rule.last.load(Relaxed)).contains(&number) && (number - first).is_multiple_of(every)
}

fn is_drawn(rule: &RuleSlot, id: u32, seed: u64, sent: &Transmission) -> bool {
    let chance = rule.chance.load(Relaxed);
    if chance == u64::MAX {
        return true;
    }
    random(seed, &[sent.path, sent.number, u64::from(id), u64::from(sent.attempt) << 1]) >> 32 < chance
}

/// Whether the rule has not ended yet. Its time begins when this is first asked.
pub(crate) fn is_in_time(rule: &RuleSlot) -> bool {
    let lasts = rule.lasts.load(Relaxed);
    if lasts == 0 {
        return true;
    }
    let now = now_ns();
    let end = rule.ends_at.compare_exchange(0, now + lasts, Relaxed, Relaxed);
    end.map_or_else(|end| now < end, |_| true)
}

/// Whether the time of the rule is over.
pub(crate) fn is_over(rule: &RuleSlot) -> bool {
    let end = rule.ends_at.load(Relaxed);
    end != 0 && now_ns() >= end
}

/// Counts a hit; false if the rule has had all of its own.
fn count_hit(rule: &RuleSlot) -> bool {
    let before = rule.hits.fetch_add(1, Relaxed);
    let times = rule.times.load(Relaxed);
    times == 0 || before < u64::from(times)
}

/// A number that depends on nothing but its arguments, and on every bit of them.
fn random(seed: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(seed), |state, word| mix(state ^ mix(*word)))
}
