//! Tests with invalid input, beside those of the fuzzer's targets ([`crate::fuzz`]): it is refused
//! with a text, or parsed as a value within bounds that survives encoding and parsing.

use crate::cts::{Cts, CtsWords, SlotIndex};
use crate::fuzz::check_stripes;
use crate::handle::{HANDLE_BYTES, Handle, Token};
use crate::rail_weights::RailWeights;
use crate::recovery::missing_list::{MissingList, MissingMessage};
use crate::send::{SendFlow, Transfer};
use crate::stripe::Striping;
use crate::{MAX_MESSAGE, PROTOCOL_VERSION};
use proptest::collection::vec;
use proptest::prelude::*;

const TOKEN: Token = [0; 16];

proptest! {
    #[test]
    fn a_handle_is_read_as_written_or_refused_for_the_field_that_is_wrong(
        tail in vec(any::<u8>(), HANDLE_BYTES - 12), is_ours in prop::bool::weighted(0.8),
        version in prop_oneof![4 => Just(PROTOCOL_VERSION), 1 => any::<u16>()], family in prop_oneof![2 => Just(4), 2 => Just(6), 1 => any::<u8>()],
    ) {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let mut bytes = Handle::without_gids(address, TOKEN).emit();
        bytes[0] ^= u8::from(!is_ours);
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        bytes[10] = family;
        bytes[12..].copy_from_slice(&tail);
        let expected = match () {
            () if !is_ours => "is not Ferrite's".into(),
            () if version != PROTOCOL_VERSION => format!("speaks protocol {version},"),
            () if family != 4 && family != 6 => format!("an address of family {family}"),
            () => {
                let handle = Handle::parse(&bytes).expect("valid");
                let written = handle.emit();
                prop_assert_eq!(Handle::parse(&written), Ok(handle));
                let end = if family == 4 { 20 } else { 36 };
                prop_assert_eq!((&written[12..14], &written[16..end]), (&bytes[12..14], &bytes[16..end]), "port, address");
                prop_assert_eq!((&written[40..56], &written[64..]), (&bytes[40..56], &bytes[64..]), "the token, the GIDs");
                return Ok(());
            }
        };
        let refusal = Handle::parse(&bytes).expect_err("refused");
        prop_assert!(refusal.text().contains(&expected), "{refusal}");
    }

    #[test]
    fn no_message_is_longer_than_isend_was_given(ring in vec(any::<CtsWords>(), 1..20), lengths in vec(0..=MAX_MESSAGE, 1..20),
                                                   rails in 1u8..=4) {
        let mut flow = SendFlow::new(Striping::new(rails, 1, false), RailWeights::from_speeds([1; 4]));
        for length in lengths {
            let read = |seq: u32| ring.get(seq as usize - 1).map(|words| {
                let mut words = *words;
                // The sequence number is the one that is looked for; length and tag are made valid
                // ones.
                words[3] = (words[3] & 0x0000_0000_ffff_ffff | u64::from(seq) << 32).to_le();
                words[1] &= 0xffff_ffff_3fff_ffff;
                words[2] &= 0xffff_ffff;
                words
            });
            match flow.submit(0, 0, length, read) {
                Ok(Some(transfer)) => {
                    prop_assert!(transfer.length <= length);
                    check_stripes(&flow, &transfer);
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
    }

    /// Messages 1 to `sent` were sent, and the first `ended` of them are reported to NCCL; `read`
    /// clear-to-sends have been read.
    #[test]
    fn no_missing_list_makes_a_sender_send_more_than_it_was_given_or_what_it_has_given_up(
        sent in 0u32..12, ended in 0u32..12, read in 0u32..16, missing_lists in vec(missing_list(), 1..4), rails in 1u8..=4,
    ) {
        let mut flow = SendFlow::new(Striping::new(2, 2, true), RailWeights::from_speeds([1; 4]));
        let cts = |seq| Cts { addr: 4096, length: 100_000, rkeys: [1; 2], tag: u32::from(seq > sent), seq };
        let look = |seq: u32| (seq <= sent.max(read)).then(|| cts(seq).emit());
        let mut known: Vec<_> = (0..sent).map(|i| {
            let transfer = flow.submit(0, i.into(), 50_000 + i, look).expect("valid").expect("cleared");
            (transfer, u64::from(i))
        }).collect();
        let _ = flow.submit(9, 0, 0, look).expect("valid");
        for (Transfer { id, .. }, _) in known.drain(..ended.min(sent) as usize) {
            while !flow.is_done(id).expect("live") {
                flow.handle_completion(id).expect("outstanding");
            }
            flow.poll_done(id).expect("done");
        }
        let mut unsent: Vec<_> = (sent + 1..=sent.max(read)).collect();
        for missing_list in missing_lists {
            let before = flow.outstanding();
            match flow.apply_missing_list(&missing_list, Striping::new(rails, 1, false), RailWeights::from_speeds([1; 4])) {
                Err(_) => prop_assert_eq!(flow.outstanding(), before),
                Ok(()) => {
                    let listed: Vec<_> = missing_list.missing.iter().map(|missing| missing.cts.seq).collect();
                    prop_assert!(listed.iter().all(|seq| *seq > ended.min(sent)));
                    prop_assert!(unsent.iter().all(|seq| listed.contains(seq)));
                    while let Some((transfer, addr)) = flow.poll_replay() {
                        let is_same = |(known, from): &(Transfer, u64)| (known.id, known.length, *from) == (transfer.id, transfer.length, addr);
                        prop_assert!(known.iter().any(is_same));
                        check_stripes(&flow, &transfer);
                    }
                }
            }
            // One more message goes into a buffer that a missing list has listed, if there is one
            // of this tag.
            if let Ok(Some(transfer)) = flow.submit(0, 7, 1, |_| None) {
                let _ = flow.handle_completion(transfer.id);
                unsent.retain(|seq| SlotIndex::of(*seq) != transfer.slot);
                known.push((transfer, 7));
            }
        }
    }
}

/// A missing list near what a sender of a few messages expects. Most are valid.
fn missing_list() -> impl Strategy<Value = MissingList> {
    let missing = (0u32..20, prop_oneof![4 => Just(100_000), 1 => any::<u32>()], 0u32..2);
    let list = vec(missing, 0..20);
    (
        prop_oneof![9 => 0u32..20, 1 => any::<u32>()],
        prop_oneof![9 => 0u32..24, 1 => any::<u32>()],
        list,
        any::<bool>(),
    )
        .prop_map(|(oldest, next, mut list, is_tidy)| {
            if is_tidy {
                list.sort_unstable();
                list.dedup_by_key(|(seq, ..)| *seq);
                list.retain(|(seq, ..)| (oldest..next).contains(seq));
            }
            let missing = list.into_iter().map(|(seq, length, tag)| MissingMessage {
                cts: Cts { addr: 4096, length, rkeys: [1; 2], tag, seq },
                extra: [1; 2],
            });
            MissingList { oldest, next, missing: missing.collect() }
        })
}
