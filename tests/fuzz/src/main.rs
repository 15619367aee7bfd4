//! libFuzzer with one of Ferrite's targets: `FERRITE_FUZZ` names it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ferrite_proto::fuzz::Target;
use std::sync::LazyLock;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let wanted = std::env::var("FERRITE_FUZZ").unwrap_or_default();
    let targets = [
        &ferrite_proto::fuzz::TARGETS[..],
        &nccl_net::fuzz::TARGETS[..],
        &ferrite::fuzz::TARGETS[..],
    ]
    .concat();
    let found = targets.iter().find(|(name, _)| *name == wanted);
    let names = || targets.iter().map(|(name, _)| *name).collect::<Vec<_>>();
    found.unwrap_or_else(|| panic!("FERRITE_FUZZ={wanted:?}: {:?} are allowed", names())).1
});

fuzz_target!(|bytes: &[u8]| TARGET(bytes));
