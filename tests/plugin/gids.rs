//! How ports are addressed: the choice of a GID, changes of the table, the way to a peer in another
//! network or subnet, and ways that are not there yet.

use crate::common::bench::SIZES;
use crate::common::log::wait_for_gid_changes;
use crate::common::prelude::*;

/// A bench that carries some messages.
fn works(worker: &mut WorkerCtx) -> Result<()> {
    let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
    for (i, size) in [0, 1, 5000, 100_000].into_iter().enumerate() {
        bench.exchange(worker, i, size, size)?;
    }
    worker.barrier()
}

fn chosen(env: &[(&str, &str)], words: &str) -> Result<()> {
    let setting = require!(talkative(env));
    pair(&setting.env("SOFTRNIC_GIDS", "rich"), |worker| {
        let transport = plugin_transport()?;
        assert!(said(&["softrnic0 RoCE", words]), "{words:?} is not in {}", log());
        drop(transport);
        works(worker)
    })?;
    Ok(())
}

#[test]
fn the_routable_v2_gid_of_a_rich_table_is_chosen() -> Result<()> {
    chosen(&[], "GID 10.82.1.1 (index 3; routable, RoCE v2)")
}

#[test]
fn the_gid_of_the_named_address_family_is_chosen() -> Result<()> {
    chosen(
        &[("NCCL_IB_ADDR_FAMILY", "AF_INET6")],
        "GID fd52:4e49:4300::1:1 (index 5; routable, RoCE v2)",
    )
}

#[test]
fn the_gid_of_the_named_roce_version_is_chosen() -> Result<()> {
    chosen(&[("NCCL_IB_ROCE_VERSION_NUM", "1")], "GID 10.82.1.1 (index 2; routable, RoCE v1)")
}

#[test]
fn the_gid_in_the_named_address_range_is_chosen() -> Result<()> {
    chosen(
        &[("NCCL_IB_ADDR_RANGE", "fd52:4e49::/32")],
        "GID fd52:4e49:4300::1:1 (index 5; routable, RoCE v2)",
    )
}

#[test]
fn the_gid_at_the_named_index_is_chosen() -> Result<()> {
    chosen(&[("NCCL_IB_GID_INDEX", "1")], "GID fe80::")
}

#[test]
fn an_index_out_of_the_table_is_refused_with_the_table() -> Result<()> {
    both(talkative(&[("NCCL_IB_GID_INDEX", "7"), ("SOFTRNIC_GIDS", "rich")]), |_| {
        let transport = plugin_transport()?;
        let words = [
            "NCCL_IB_GID_INDEX=7: softrnic0 has no GID there",
            "3: 10.82.1.1 (RoCE v2)",
            "of 16 entries",
        ];
        assert!(said(&["WARN", words[0], words[1], words[2]]), "{}", log());
        let (mut handle, _listener) = transport.listen(0)?;
        let refusal = loop {
            match transport.connect(0, &mut handle) {
                Ok(_) => std::thread::yield_now(),
                Err(Error::Call { code, .. }) => break code,
                Err(other) => return Err(other),
            }
        };
        assert_eq!(refusal, abi::ncclInvalidUsage);
        Ok(())
    })
}

#[test]
fn a_table_that_changes_is_read_again() -> Result<()> {
    both(talkative(&[("SOFTRNIC_GIDS", "rich")]), |worker| {
        works(worker)?;
        let device = worker.rank();
        // The entry that was chosen goes, and its address comes back elsewhere; then a better one
        // appears.
        softrnic(&format!("gid {device}/1 remove 3"));
        softrnic(&format!("gid {device}/1 add 9 ::ffff:10.82.1.7{device} v2"));
        worker.barrier()?;
        works(worker)?;
        let (now, was) = (
            format!("GID 10.82.1.7{device} (index 9;"),
            format!("instead of 10.82.1.{}", device + 1),
        );
        assert!(said(&[&format!("softrnic{device}"), &now, "now using GID", &was]), "{}", log());
        softrnic(&format!("gid {device}/1 remove 9"));
        worker.barrier()?;
        works(worker)?;
        assert!(said(&["now using GID", &format!("instead of 10.82.1.7{device}")]), "{}", log());
        Ok(())
    })
}

/// Rank 0 is set to use another network, in which rank 1 has an address too or not. What both ends
/// use: GID and peer's GID.
fn towards_another_network(
    rank_1_is_there: bool,
    used: [[&str; 2]; 2],
    words: &'static [&'static [&'static str]; 2],
) -> Result<()> {
    both(talkative(&[("SOFTRNIC_GIDS", "rich")]), |worker| {
        let device = worker.rank();
        if device == 0 {
            set("NCCL_IB_ADDR_RANGE", "10.99.0.0/16");
            set("NCCL_IB_WARN_RAIL_LOCAL", "1");
        }
        // The network exists as long as somebody is on it.
        drop(plugin_transport()?);
        let is_there = device == 0 || rank_1_is_there;
        if is_there {
            softrnic(&format!("gid {device}/1 add 11 ::ffff:10.99.0.{} v2", device + 1));
        }
        worker.barrier()?;
        works(worker)?;
        if is_there {
            wait_for_gid_changes(&[device], 1);
        }
        worker.barrier()?;
        // The connections before may have been made before the change was known.
        let earlier = log().lines().count();
        works(worker)?;
        let [gid, peer] = used[device];
        assert!(said(&[&format!("softrnic{device}: GID {gid} to GID {peer}, ")]), "{}", log());
        let others = |line: &&str| {
            line.contains(": GID ")
                && line.contains(" to GID ")
                && !line.contains(&format!("to GID {peer}, "))
        };
        let later = log().lines().skip(earlier).filter(others).count();
        assert_eq!(later, 0, "as sender and as receiver: {}", log());
        words[device].iter().for_each(|words| assert!(said(&[words]), "{words}: {}", log()));
        worker.barrier()
    })
}

#[test]
fn both_ends_use_the_network_that_one_of_them_is_reported() -> Result<()> {
    towards_another_network(
        true,
        [["11 10.99.0.1", "10.99.0.2"], ["11 10.99.0.2", "10.99.0.1"]],
        &[&[], &[]],
    )
}

#[test]
fn that_peers_are_in_another_network_is_reported() -> Result<()> {
    let used = [["11 10.99.0.1", "10.82.1.2"], ["3 10.82.1.2", "10.99.0.1"]];
    towards_another_network(
        false,
        used,
        &[
            &["peers are in another network (GID 10.99.0.1 here, 10.82.1.2 of"],
            &["peers are in another network"],
        ],
    )
}

#[test]
fn a_peer_whose_address_is_not_resolved_yet_is_tried_again() -> Result<()> {
    let faults = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT times=3"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20"),
    ];
    let setting = require!(talkative(&faults));
    let told = pair(&setting, |worker| {
        works(worker)?;
        let count = |words: &str| log().matches(words).count();
        Ok((count("up to 34 more attempts, 20 ms apart"), count(": connected at attempt ")))
    })?;
    let failed = told.iter().map(|t| t.0).sum::<usize>();
    assert!((1..=3).contains(&failed), "{told:?}");
    assert_eq!(told.iter().map(|t| t.1).sum::<usize>(), failed, "{told:?}");
    Ok(())
}

#[test]
fn a_peer_whose_address_is_never_resolved_is_reported_with_both_ends() -> Result<()> {
    let env = [
        ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic1"),
        ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "500"),
        ("NCCL_IB_MQP_RETRY_CNT", "4"),
    ];
    both(talkative(&env), |worker| {
        if worker.rank() == 1 {
            return worker.barrier();
        }
        // Both ends in one process: what is listened for on device 1 is answered from there.
        let transport = plugin_transport()?;
        let (mut handle, mut listener) = transport.listen(1)?;
        let mut slowest = Duration::ZERO;
        let mut calls = 0;
        let failure = loop {
            let begun = Instant::now();
            let connecting = transport.connect(0, &mut handle).map(drop);
            let accepting = listener.accept().map(drop);
            slowest = slowest.max(begun.elapsed());
            calls += 1;
            if let Err(e) = connecting.and(accepting) {
                break e;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(failure, Error::Call { .. }), "{failure}");
        // A call that waits for an attempt takes its 500 ms; one attempt and the next are then two
        // calls apart.
        assert!(
            calls > 15,
            "the caller is kept waiting: {calls} calls, the longest of {slowest:?}"
        );
        let words = [
            "accepting ",
            "to RTR failed: Connection timed out",
            "5 attempts in ",
            "softrnic1 with GID 10.82.1.2 (index 1), peer softrnic0 port 1",
            "with GID 10.82.1.1",
        ];
        assert!(said(&words), "{}", log());
        worker.barrier()
    })
}

#[test]
fn a_path_that_is_refused_for_good_is_not_tried_again() -> Result<()> {
    let env = [("SOFTRNIC_FAULTS", "modify-qp=EINVAL times=1")];
    both(talkative(&env), |worker| {
        if worker.rank() == 0 {
            let transport = plugin_transport()?;
            let (mut handle, mut listener) = transport.listen(1)?;
            while transport.connect(0, &mut handle).and_then(|_| listener.accept()).is_ok() {
                std::thread::yield_now();
            }
            assert!(said(&["to RTR failed: Invalid argument", "NCCL_IB_GID_INDEX"]), "{}", log());
            assert!(!said(&["attempts"]), "{}", log());
        }
        worker.barrier()
    })
}

/// All sizes over InfiniBand.
fn over_infiniband(prepare: impl FnOnce(&WorkerCtx), words: &str) -> Result<()> {
    both(talkative(&[("SOFTRNIC_LINK", "ib")]), |worker| {
        drop(plugin_transport()?);
        assert!(said(&["softrnic0 InfiniBand 400 Gb/s LID 2"]), "{}", log());
        prepare(worker);
        worker.barrier()?;
        let bench = Bench::open(worker, plugin_transport()?, 8 << 20)?;
        for (i, &size) in SIZES.iter().enumerate() {
            bench.exchange(worker, i, size, size)?;
        }
        assert!(said(&[&format!("softrnic{}", worker.rank()), words]), "{words:?}: {}", log());
        worker.barrier()
    })
}

#[test]
fn infiniband_peers_in_one_subnet_are_addressed_by_lid() -> Result<()> {
    over_infiniband(|_| {}, ": LID ")
}

/// Nothing arrives by the old one.
#[test]
fn a_lid_that_changes_is_that_of_the_next_connection() -> Result<()> {
    both(talkative(&[("SOFTRNIC_LINK", "ib"), ("FERRITE_FAILOVER", "0")]), |worker| {
        works(worker)?;
        let device = worker.rank();
        softrnic(&format!("port {device}/1 --lid {}", 70 + device));
        wait_until("the event", || said(&["the LID has changed"]));
        worker.barrier()?;
        works(worker)?;
        assert!(said(&[&format!("LID {} to LID {}", 70 + device, 71 - device)]), "{}", log());
        worker.barrier()
    })
}

/// A site may set it for its RoCE nodes, and it then is there on the others as well.
#[test]
fn the_gid_index_is_ignored_on_infiniband() -> Result<()> {
    over_infiniband(|_| set("NCCL_IB_GID_INDEX", "77"), ": LID ")
}

/// A GID of a fabric with routers: entry 1, subnet 1 or 2, and the port's LID as FLID.
#[test]
fn infiniband_peers_in_other_subnets_are_addressed_by_gid() -> Result<()> {
    let route = |worker: &WorkerCtx| {
        let device = worker.rank();
        let lid = 2 + 2 * device;
        softrnic(&format!("gid {device}/1 add 1 fec0:0:{lid:x}:{}::{}", device + 1, device + 1));
    };
    over_infiniband(route, ": GID 1 fec0:0:")
}

/// What the devices of two ends agree on: bits that both have, or nothing where one end does not
/// ask.
fn agree_on(enable: [&str; 2], words: Option<&str>) -> Result<()> {
    both(talkative(&[]), |worker| {
        set("SOFTRNIC_ECE", ["13", "7"][worker.rank()]);
        set("NCCL_IB_ECE_ENABLE", enable[worker.rank()]);
        works(worker)?;
        match words {
            Some(words) => {
                assert_eq!(log().matches(words).count(), 2, "sender and receiver: {}", log());
            }
            None => assert!(!said(&["ECE options"]), "{}", log()),
        }
        worker.barrier()
    })
}

cases! { Result<()>;
    both_ends_use_the_ece_options_that_both_have =>
        agree_on(["1", "1"], Some("use ECE options 0x5 of 0xf000"));
    ece_options_that_one_end_disables_are_not_used => agree_on(["1", "0"], None);
}

#[test]
fn clear_to_sends_have_a_traffic_class_of_their_own() -> Result<()> {
    both(talkative(&[("NCCL_IB_TC", "106"), ("NCCL_IB_FIFO_TC", "184")]), |worker| {
        works(worker)?;
        for class in ["traffic class 106", "traffic class 184"] {
            assert_eq!(log().matches(class).count(), 1, "{class}: {}", log());
        }
        worker.barrier()
    })
}

/// Connecting fails, and the log says all of `words` in one line.
fn fails_with(env: &[(&str, &str)], words: &[&str]) -> Result<()> {
    both(talkative(env), |_| {
        let transport = plugin_transport()?;
        let (mut handle, _listener) = transport.listen(0)?;
        while transport.connect(0, &mut handle).is_ok() {
            std::thread::yield_now();
        }
        assert!(said(words), "{}", log());
        Ok(())
    })
}

#[test]
fn a_partition_key_that_is_not_there_is_named() -> Result<()> {
    let words =
        ["WARN", "to INIT failed: Invalid argument", "NCCL_IB_PKEY=3", "has 1 partition key(s)"];
    fails_with(&[("NCCL_IB_PKEY", "3")], &words)
}

#[test]
fn a_partition_key_whose_value_is_not_there_is_named() -> Result<()> {
    let words = ["WARN", "NCCL_IB_PKEY_VALUE=0x8001", "has no such partition key"];
    fails_with(&[("NCCL_IB_PKEY_VALUE", "0x8001")], &words)
}

/// The device has the key 0xffff at index 0, and at no other.
#[test]
fn a_partition_key_is_found_by_its_value_whatever_its_membership_and_the_index() -> Result<()> {
    both(talkative(&[("NCCL_IB_PKEY_VALUE", "0x7fff"), ("NCCL_IB_PKEY", "3")]), |worker| {
        let transport = plugin_transport()?;
        Bench::open(worker, transport, 1 << 16)?.exchange(worker, 1, 4096, 4096)
    })
}
