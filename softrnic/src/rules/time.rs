//! Times as rules have them: a number with its unit.

/// A time with its unit, in nanoseconds. The error is a sentence.
pub(crate) fn parse(value: &str) -> Result<u64, String> {
    let split = value.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(value.len());
    let (digits, unit) = value.split_at(split);
    let factor = match unit {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => 0.0,
    };
    let ns = digits.parse::<f64>().ok().map(|n| n * factor).filter(|ns| (1.0..=1e13).contains(ns));
    ns.map(|ns| ns as u64).ok_or_else(|| format!("{value:?} is no time; write 50us, 3ms or 2s; at most 10000s"))
}
