//! ferrite.
fn main() {}
