//! The inputs of fuzz targets that are kept in `tests/fuzz/corpus`.

use std::path::Path;

/// The kept inputs of `target`, shortest first. `scripts/fuzz.py` writes them to one file, each
/// behind its length: four bytes, the lowest first.
///
/// # Panics
/// The file cannot be read, is cut, or has no more than ten inputs.
#[must_use]
pub fn kept_inputs(target: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let packed =
        std::fs::read(corpus.join(target).with_extension("inputs")).expect("a target's inputs");
    let mut rest = &packed[..];
    let inputs: Vec<_> = std::iter::from_fn(|| {
        let (length, after) = rest.split_first_chunk()?;
        let (input, left) = after.split_at(u32::from_le_bytes(*length) as usize);
        rest = left;
        Some(input.to_vec())
    })
    .collect();
    assert!(inputs.len() > 10, "{target}: {} inputs", inputs.len());
    inputs
}
