//! Lanes where the two ends or their cards allow fewer than is asked for.

use crate::common::prelude::*;
use crate::transport::queue_pairs_with_data;

/// Carries messages that are cut and such that are not, both ways.
fn works(worker: &mut WorkerCtx) -> Result<Bench> {
    let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
    for round in 0..20 {
        let size = [100_000, 8, 1 << 19][round % 3];
        bench.exchange(worker, round, size, size)?;
    }
    Ok(bench)
}

/// Both ends or one of them have said that.
pub(crate) fn is_said_at_an_end(worker: &mut WorkerCtx, words: &[&str]) -> Result<()> {
    let own = u64::from(said(words));
    assert!(own + worker.swap(own)? > 0, "{words:?}: {}", log());
    Ok(())
}

/// Ranks whose settings are `lanes` send over so many.
fn ranks_use(lanes: [&str; 2], expected: [usize; 2]) -> Result<()> {
    both(talkative(&[]), |worker| {
        set("FERRITE_LANES", lanes[worker.rank()]);
        let _bench = works(worker)?;
        assert_eq!(queue_pairs_with_data(), expected[worker.rank()]);
        worker.barrier()
    })
}

cases! { Result<()>;
    ends_with_other_numbers_of_lanes_use_the_lesser => ranks_use(["4", "3"], [3, 3]);
    one_lane_at_an_end_is_one_for_both => ranks_use(["1", "8"], [1, 1]);
}

/// Each device has six queue pairs for a connection each way: two are left for the second end, and
/// the connection with that end has two lanes.
#[test]
fn a_device_with_too_few_queue_pairs_for_all_lanes_gives_what_it_has() -> Result<()> {
    let env = [("FERRITE_LANES", "4"), ("SOFTRNIC_MAX_QP", "6")];
    both(talkative(&env), |worker| {
        let _bench = works(worker)?;
        let lanes = queue_pairs_with_data();
        assert!(lanes == 2 || lanes == 4, "{lanes}");
        is_said_at_an_end(worker, &["a connection has 2 of 4 lanes: ibv_create_qp("])?;
        worker.barrier()
    })
}

#[test]
fn with_a_device_that_refuses_flow_labels_lanes_keep_their_paths() -> Result<()> {
    let env = [
        ("FERRITE_LANES", "4"),
        ("FERRITE_NEW_PATHS", "1"),
        ("SOFTRNIC_FAULTS", "modify-qp=EINVAL message=1 times=1"),
    ];
    both(talkative(&env), |worker| {
        let _bench = works(worker)?;
        assert_eq!(queue_pairs_with_data(), 4);
        is_said_at_an_end(
            worker,
            &["keep their paths, as the device refuses a flow label: ", "Invalid argument"],
        )?;
        worker.barrier()
    })
}
