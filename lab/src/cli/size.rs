//! Sizes in bytes, as the command line takes them.

/// `8`, `64K`, `4M`, `1G`, with or without a B or iB after it.
pub(super) fn parse_size(text: &str) -> Result<usize, String> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.trim_end_matches('B').trim_end_matches('I');
    let (digits, shift) = match bare.chars().last() {
        Some('K') => (&bare[..bare.len() - 1], 10),
        Some('M') => (&bare[..bare.len() - 1], 20),
        Some('G') => (&bare[..bare.len() - 1], 30),
        _ => (bare, 0),
    };
    let number: usize = digits.parse().map_err(|_| format!("{text} is no size, as 8, 64K or 4M are"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=128 << 20).contains(&bytes) => Ok(bytes),
        _ => Err(format!("{text} is not between 1 and 128M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("4MiB"), Ok(4 << 20));
        for wrong in ["", "K", "-1", "0", "1T", "1G", "99999999999999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
