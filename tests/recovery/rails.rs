//! Rails that fail and return while the connection has others.

use crate::common::prelude::*;
use crate::fabric::{Fabric, all_arrives, applied, end, exchange_until, run, sent, set_port};
use crate::stream::{LONG, SHORT, Stream};

cases! { Result<()>;
    all_arrives_over_rail_0_if_rail_1_falls_for_good =>
        all_arrives(Fabric::TwoRails, "port-down device=softrnic1 message=60 times=1", LONG, 300);
    all_arrives_over_rail_1_if_rail_0_falls_for_good =>
        all_arrives(Fabric::TwoRails, "port-down device=softrnic2 message=60 times=1", LONG, 300);
    /// Its memory keys are gone with it.
    all_arrives_over_the_other_card_if_a_device_fails_for_good =>
        all_arrives(Fabric::TwoRails, "device-fatal device=softrnic1 message=60 times=1", LONG, 300);
}

/// Rail 0 returns after rail 1 has fallen for good.
#[test]
fn all_arrives_if_the_second_rail_falls_before_the_first_is_back() -> Result<()> {
    let rules = "port-down=3s device=softrnic0 message=60 times=1; port-down device=softrnic1 message=100 times=1";
    all_arrives(Fabric::TwoRails, rules, SHORT, 1000)
}

#[test]
fn all_arrives_if_ends_lose_different_rails_one_after_the_other() -> Result<()> {
    let rules = "port-down=1s device=softrnic0 message=60 times=1; port-down=500ms device=softrnic3 message=100 times=1";
    all_arrives(Fabric::TwoRails, rules, SHORT, 1000)
}

/// The port of rail 1 is active, and nothing answers for its address when new queue pairs are
/// connected.
#[test]
fn all_arrives_over_rail_0_if_the_peer_cannot_be_resolved_on_rail_1() -> Result<()> {
    let rules = "qp-error device=softrnic0 message=60 times=1; modify-qp=ETIMEDOUT device=softrnic1 message=3..";
    run(Fabric::TwoRails, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 300)?;
        assert!(said(&["recovered on rail(s) 0 of"]), "{}", log());
        end(worker, stream)
    })
}

/// The peer's address on rail 1 cannot be resolved when the rail is to be taken in again, five
/// times: traffic over rail 0 continues, and rail 1 carries its part in the end.
#[test]
fn a_rail_on_which_connecting_fails_for_some_time_is_taken_in_later() -> Result<()> {
    let rules = "modify-qp=ETIMEDOUT device=softrnic1 message=3.. times=5";
    run(Fabric::TwoRails, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        let is_part = |bytes: u64| bytes > 20 * SHORT.bytes as u64 / 5;
        until_rail_1(worker, &mut stream, "both rails", is_part)?;
        if worker.rank() == 0 {
            set_port("softrnic1/1", "down");
        }
        until_rail_1(worker, &mut stream, "rail 0 alone", |bytes| bytes == 0)?;
        if worker.rank() == 0 {
            set_port("softrnic1/1", "up");
        }
        exchange_until(worker, &mut stream, "all refusals", || {
            applied().iter().all(|(_, count)| *count == 5)
        })?;
        until_rail_1(worker, &mut stream, "both rails again", is_part)?;
        end(worker, stream)
    })
}

/// Bytes that the ports of rail 1 send during twenty messages each way: those of rank 0's, and of
/// rank 1's.
fn carried_by_rail_1(worker: &mut WorkerCtx, stream: &mut Stream) -> Result<[u64; 2]> {
    let counts = || [sent("softrnic1/1"), sent("softrnic3/1")];
    worker.barrier()?;
    let before = counts();
    worker.barrier()?;
    stream.exchange(worker, 20)?;
    worker.barrier()?;
    let after = counts();
    worker.barrier()?;
    Ok([after[0] - before[0], after[1] - before[1]])
}

/// Messages both ways until rail 1 has carried as much each way as `is_enough` wants.
pub(crate) fn until_rail_1(
    worker: &mut WorkerCtx,
    stream: &mut Stream,
    what: &'static str,
    is_enough: impl Fn(u64) -> bool,
) -> Result<()> {
    let mut deadline = worker.deadline(what);
    loop {
        worker.begin(what)?;
        let carried = carried_by_rail_1(worker, stream)?;
        // Both see the same counters, but not at the same moment.
        if worker.agree(u64::from(carried.iter().all(|bytes| is_enough(*bytes))))? == 1 {
            return Ok(());
        }
        for _ in 0..1 << 10 {
            deadline.idle()?;
        }
    }
}

#[test]
fn a_rail_that_returns_carries_its_part_again() -> Result<()> {
    run(Fabric::TwoRails, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        // A fifth of the data, so that it is more than the receivers' clear-to-sends.
        let is_part = |bytes: u64| bytes > 20 * SHORT.bytes as u64 / 5;
        until_rail_1(worker, &mut stream, "both rails", is_part)?;
        for _ in 0..2 {
            if worker.rank() == 0 {
                set_port("softrnic1/1", "down");
            }
            until_rail_1(worker, &mut stream, "rail 0 alone", |bytes| bytes == 0)?;
            if worker.rank() == 0 {
                set_port("softrnic1/1", "up");
            }
            until_rail_1(worker, &mut stream, "both rails again", is_part)?;
        }
        assert!(said(&["recovered on rail(s) 0 of"]), "{}", log());
        exchange_until(worker, &mut stream, "both rails still", || true)?;
        end(worker, stream)
    })
}
