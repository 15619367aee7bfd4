//! Ferrite on verbs that were not written here: Linux's soft-RoCE driver, the kernel's uverbs
//! interface and the system's rdma-core, in a virtual machine. NCCL 2.21.5's own transport goes the
//! same way, to tell what the driver does wrong from what Ferrite does.
//!
//! Each test is two things: on the host it fetches its verdict from one run of the machine, which
//! all tests of this program share; in the machine, where this program is started again for each
//! test, it is the test itself. Nothing here asserts on time: the machine is emulated, and anything
//! may be slow in it.

#[path = "../common/mod.rs"]
mod common;

mod addresses;
mod contract;
mod data;
mod faults;
mod guest;
mod machine;
mod observations;
mod rails;
mod resources;

use guest::{Case, Side};

/// The list of tests: each as a function of this program, for the transports named. Those for
/// `deep` transports run where `FERRITE_DEEP` is set (scripts/nightly.sh), the others in every run.
macro_rules! tests {
    ($($module:ident::$test:ident: [$($side:ident)*] $([deep $($deep:ident)*])?;)+) => {
        $(tests!(@one $module $test $($side)* $($($deep)*)?);)+

        /// The names of the tests that only a deep run has.
        pub(crate) const DEEP: &[&str] = &[$($($(concat!(stringify!($test), "::", stringify!($deep)),)*)?)+];
    };
    (@one $module:ident $test:ident $($side:ident)*) => {
        mod $test {
            $(tests!(@side $module $test $side);)*
        }
    };
    (@side $module:ident $test:ident $side:ident) => {
        #[test]
        fn $side() -> lab::error::Result<()> {
            crate::judge(stringify!($side), crate::$module::$test)
        }
    };
}

tests! {
    data::one_device: [] [deep plugin];
    data::two_devices: [] [deep plugin stock];
    data::two_devices_at_once: [] [deep plugin];
    data::measured: [] [deep plugin];
    data::four_queue_pairs: [] [deep plugin stock];
    data::unequal_packets: [] [deep plugin];
    data::longer_than_the_port_allows: [] [deep plugin stock];
    data::two_hundred_connections: [] [deep plugin];
    contract::connections: [] [deep plugin];
    contract::messages: [] [deep plugin];
    addresses::ipv4_by_default: [] [deep plugin stock];
    addresses::ipv6_by_family: [] [deep plugin stock];
    addresses::link_local_by_index: [] [deep plugin stock];
    addresses::an_address_that_goes_and_comes_back: [] [deep plugin];
    faults::loss_and_reordering: [plugin] [deep stock];
    faults::black_hole: [] [deep plugin stock];
    faults::link_down: [] [deep plugin stock];
    faults::link_flap: [] [deep plugin];
    faults::black_hole_that_ends: [] [deep plugin];
    faults::peer_killed: [plugin] [deep stock];
    faults::peer_killed_before_its_worker: [] [deep plugin];
    rails::one_device_of_two_rails: [] [deep plugin stock];
    resources::everything_is_given_back: [] [deep plugin stock];
    observations::as_the_page_says: [] [deep rxe];
    resources::locked_memory_is_limited: [plugin] [deep stock];
}

/// Whether this is a run of all tests.
pub(crate) fn is_deep() -> bool {
    std::env::var_os("FERRITE_DEEP").is_some()
}

/// The test in the machine, its verdict outside.
fn judge(side: &str, test: fn(&Case) -> lab::error::Result<()>) -> lab::error::Result<()> {
    let side = if side == "stock" { Side::Stock } else { Side::Plugin };
    if guest::is_here() {
        return test(&Case { side });
    }
    machine::verdict(&testkit::test_name(), side);
    Ok(())
}
