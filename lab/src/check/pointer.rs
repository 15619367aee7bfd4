//! An address of this process among the bytes of a handle.

use std::ops::Range;

/// The first aligned word that is an address in one of `ranges`, with its offset. Words with a byte `fill` are none: such bytes were
/// not written.
///
/// At other offsets no pointer is looked for: there a port and an address of 127.0.0.0/8 after it can look like one.
pub(super) fn first_pointer(bytes: &[u8], fill: u8, ranges: &[Range<usize>]) -> Option<(usize, usize)> {
    const WORD: usize = size_of::<usize>();
    (0..bytes.len()).step_by(WORD).zip(bytes.chunks_exact(WORD)).find_map(|(at, word)| {
        let address = usize::from_le_bytes(word.try_into().ok()?);
        let is_pointer = !word.contains(&fill) && ranges.iter().any(|range| range.contains(&address));
        is_pointer.then_some((at, address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGES: [Range<usize>; 2] = [0x5500_0000_0000..0x5500_0010_0000, 0x7f00_0000_0000..0x7f00_0400_0000];

    #[test]
    fn an_aligned_address_is_found() {
        let mut handle = [0; 128];
        handle[104..112].copy_from_slice(&0x7f00_03ff_ffff_usize.to_le_bytes());
        assert_eq!(first_pointer(&handle, 0xaa, &RANGES), Some((104, 0x7f00_03ff_ffff)));
        handle[104..112].copy_from_slice(&0x7f00_0400_0000_usize.to_le_bytes());
        assert_eq!(first_pointer(&handle, 0xaa, &RANGES), None);
    }

    #[test]
    fn what_was_not_written_is_no_address() {
        let ranges = [RANGES[0].clone(), 0xaaaa_aaaa_0000..0xaaaa_aaab_0000];
        let handle = 0xaaaa_aaaa_1234_usize.to_le_bytes();
        assert_eq!(first_pointer(&handle, 0xaa, &ranges), None);
        assert_eq!(first_pointer(&handle, 0x55, &ranges), Some((0, 0xaaaa_aaaa_1234)));
    }

    #[test]
    fn a_port_and_a_loopback_address_are_none() {
        let mut handle = [0; 128];
        handle[12..20].copy_from_slice(&[0xeb, 0x9c, 0, 0, 127, 0, 0, 1]);
        // One byte earlier, these would be 0x7f00009ceb00.
        assert_eq!(first_pointer(&handle, 0xaa, &RANGES), None);
    }
}
