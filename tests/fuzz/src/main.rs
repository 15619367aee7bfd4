//! libFuzzer with one of Ferrite's targets: `FERRITE_FUZZ` names it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nccl_net::testing::fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("FERRITE_FUZZ").unwrap_or_default();
    let found = TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("FERRITE_FUZZ={wanted:?}: {:?} are allowed", TARGETS.map(|(name, _)| name))).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
