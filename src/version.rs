//! Which build this is.

use std::hint::black_box;

/// What the built file has before its version.
const KEY: &str = "ferrite-version=";

/// The version without a commit, and room for one.
const UNKNOWN: &str =
    concat!("ferrite-version=", env!("CARGO_PKG_VERSION"), "+unknown__________________________");

/// The version and the commit, with `_` behind them. The compiler does not know the commit, so that
/// a commit compiles nothing anew: `scripts/build.sh` writes it into the built file.
static BUILD: [u8; UNKNOWN.len()] = match UNKNOWN.as_bytes().first_chunk() {
    Some(bytes) => *bytes,
    None => [0; UNKNOWN.len()],
};

/// The version, and the commit that it was built from: `0.1.0+0123456789ab`. `.modified` follows
/// the commit if files had been changed since; `0.1.0+unknown` is a build that `scripts/build.sh`
/// did not make, or made without git.
pub fn text() -> &'static str {
    // Otherwise the compiler takes the bytes as it knows them.
    version(black_box(&BUILD))
}

/// The version in such bytes.
fn version(bytes: &[u8]) -> &str {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    text.strip_prefix(KEY)
        .and_then(|rest| rest.split('_').next())
        .unwrap_or(env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_ends_where_the_padding_begins() {
        assert_eq!(text(), concat!(env!("CARGO_PKG_VERSION"), "+unknown"));
        assert_eq!(
            version(b"ferrite-version=1.2.3-rc.1+0123456789ab.modified____"),
            "1.2.3-rc.1+0123456789ab.modified"
        );
        assert_eq!(version(b"ferrite-version=1.2.3+0123456789ab"), "1.2.3+0123456789ab");
    }
}
