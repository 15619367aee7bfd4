//! Ports in several networks that no router joins: ports are connected that reach each other.

use crate::common::prelude::*;
use nccl_net::testing::proto::handle::HANDLE_BYTES;

/// Nothing reaches an address of another network.
const APART: (&str, &str) = ("SOFTRNIC_NETWORK_BITS", "24");

/// Messages each way between rank 0, whose devices have the `addresses` in their order and which
/// sees those that `hca` names, and rank 1.
fn exchange(worker: &mut WorkerCtx, addresses: &[(usize, &[&str])], hca: [&str; 2]) -> Result<()> {
    set("NCCL_IB_HCA", hca[worker.rank()]);
    // The network exists as long as somebody is on it.
    let transport = plugin_transport()?;
    if worker.rank() == 0 {
        for (device, addresses) in addresses {
            softrnic(&format!("gid {device}/1 remove 1"));
            for (index, address) in (1..).zip(*addresses) {
                softrnic(&format!("gid {device}/1 add {index} ::ffff:{address} v2"));
            }
        }
    }
    worker.barrier()?;
    let bench = Bench::open_on(worker, transport, 0, 1 << 20)?;
    for round in 0..10 {
        bench.exchange(worker, round, 300_000, 300_000)?;
        bench.exchange(worker, round, 64, 64)?;
    }
    worker.barrier()
}

fn merged(addresses: &[(usize, &[&str])], hca: [&str; 2], told: [&[&str]; 2]) -> Result<()> {
    let adapt = |setting: Setting| setting.env(APART.0, APART.1).env(ALL_INFO.0, ALL_INFO.1);
    faithful::run(&["--devices", "4"], adapt, |worker| {
        exchange(worker, addresses, hca)?;
        for words in told[worker.rank()] {
            assert!(said(&[words]), "{words}: {}", log());
        }
        worker.barrier()
    })
}

#[test]
fn rails_are_paired_by_network_where_the_ports_of_one_end_are_in_another_order() -> Result<()> {
    let addresses: [(usize, &[&str]); 4] =
        [(0, &["10.1.0.1"]), (1, &["10.2.0.1"]), (2, &["10.2.0.2"]), (3, &["10.1.0.2"])];
    let told: [&[&str]; 2] = [
        &["softrnic0: GID 1 10.1.0.1 to GID 10.1.0.2", "softrnic1: GID 1 10.2.0.1 to GID 10.2.0.2"],
        &["softrnic3: GID 1 10.1.0.2 to GID 10.1.0.1", "softrnic2: GID 1 10.2.0.2 to GID 10.2.0.1"],
    ];
    merged(&addresses, ["softrnic0,softrnic1", "softrnic2,softrnic3"], told)
}

/// As where the first port of one end is down when the job starts.
#[test]
fn the_only_port_of_an_end_is_paired_with_that_of_its_network() -> Result<()> {
    let addresses: [(usize, &[&str]); 3] =
        [(0, &["10.1.0.1"]), (1, &["10.2.0.1"]), (3, &["10.2.0.2"])];
    let told: [&[&str]; 2] = [
        &["softrnic1: GID 1 10.2.0.1 to GID 10.2.0.2"],
        &["softrnic3: GID 1 10.2.0.2 to GID 10.2.0.1"],
    ];
    merged(&addresses, ["softrnic0,softrnic1", "softrnic3"], told)
}

#[test]
fn a_rail_whose_network_the_peer_is_not_in_is_left_out_and_that_is_reported() -> Result<()> {
    let addresses: [(usize, &[&str]); 4] =
        [(0, &["10.1.0.1"]), (1, &["10.2.0.1"]), (2, &["10.1.0.2"]), (3, &["10.3.0.2"])];
    let left_out = "left out until they connect";
    merged(
        &addresses,
        ["softrnic0,softrnic1", "softrnic2,softrnic3"],
        [&[left_out, "10.2.0.1"], &[left_out, "10.2.0.1"]],
    )
}

/// Nothing would take a rail in later, and a router joins the networks.
#[test]
fn without_failover_a_rail_between_networks_is_used_from_the_beginning() -> Result<()> {
    let addresses: [(usize, &[&str]); 4] =
        [(0, &["10.1.0.1"]), (1, &["10.2.0.1"]), (2, &["10.1.0.2"]), (3, &["10.3.0.2"])];
    let adapt = |setting: Setting| setting.env("FERRITE_FAILOVER", "0").env(ALL_INFO.0, ALL_INFO.1);
    faithful::run(&["--devices", "4"], adapt, |worker| {
        exchange(worker, &addresses, ["softrnic0,softrnic1", "softrnic2,softrnic3"])?;
        let ways = [
            "softrnic1: GID 1 10.2.0.1 to GID 10.3.0.2",
            "softrnic3: GID 1 10.3.0.2 to GID 10.2.0.1",
        ];
        assert!(said(&[ways[worker.rank()]]) && !said(&["left out"]), "{}", log());
        worker.barrier()
    })
}

/// Both ends are set so. Only rank 0 has addresses in both networks, and by default it would use
/// the first.
#[test]
fn a_sender_takes_the_address_that_is_in_the_listeners_network() -> Result<()> {
    both(talkative(&[APART]), |worker| {
        let addresses: [(usize, &[&str]); 2] = [(0, &["10.1.0.1", "10.2.0.1"]), (1, &["10.2.0.2"])];
        exchange(worker, &addresses, ["softrnic0", "softrnic1"])?;
        let used = [
            "softrnic0: GID 2 10.2.0.1 to GID 10.2.0.2",
            "softrnic1: GID 1 10.2.0.2 to GID 10.2.0.1",
        ];
        assert!(said(&[used[worker.rank()]]), "{}", log());
        worker.barrier()
    })
}

/// NCCL asks both ends for their first devices, which no cable joins.
#[test]
fn a_connection_uses_the_device_that_is_in_the_listeners_network_if_that_is_wanted() -> Result<()> {
    both(
        talkative(&[APART, ("NCCL_IB_SUBNET_AWARE_ROUTING", "1"), ("SOFTRNIC_DEVICES", "4")]),
        |worker| {
            let addresses: [(usize, &[&str]); 4] =
                [(0, &["10.1.0.1"]), (1, &["10.2.0.1"]), (2, &["10.2.0.2"]), (3, &["10.1.0.2"])];
            exchange(worker, &addresses, ["softrnic0,softrnic1", "softrnic2,softrnic3"])?;
            let used = [["softrnic0: ", "uses softrnic1"], ["softrnic2: ", "uses softrnic3"]]
                [worker.rank()];
            assert!(said(&[used[0], used[1], "NCCL_IB_SUBNET_AWARE_ROUTING"]), "{}", log());
            worker.barrier()
        },
    )
}

/// Only the listener's end is set so. The device that the connection is moved to fails before it is
/// connected, and comes back.
#[test]
fn a_listener_waits_for_the_device_that_the_connection_is_moved_to() -> Result<()> {
    let fault = ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT device=softrnic3 every=1");
    let retries = [("NCCL_IB_MQP_RETRY_CNT", "10000"), ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "20")];
    let setting =
        require!(talkative(&[APART, fault, retries[0], retries[1], ("SOFTRNIC_DEVICES", "4")]));
    pair(&setting, |worker| {
        let rank = worker.rank();
        set("NCCL_IB_HCA", ["softrnic0,softrnic1", "softrnic2,softrnic3"][rank]);
        set("NCCL_IB_SUBNET_AWARE_ROUTING", ["0", "1"][rank]);
        let transport = plugin_transport()?;
        if rank == 0 {
            for (device, address) in
                ["10.1.0.1", "10.2.0.1", "10.2.0.2", "10.1.0.2"].into_iter().enumerate()
            {
                softrnic(&format!("gid {device}/1 remove 1"));
                softrnic(&format!("gid {device}/1 add 1 ::ffff:{address} v2"));
            }
        }
        worker.barrier()?;
        let mut deadline = worker.deadline("a connection");
        if rank == 0 {
            let bytes = worker.receive_bytes(HANDLE_BYTES)?;
            let mut handle = Handle(bytes.try_into().expect("a whole handle"));
            while transport.connect(0, &mut handle)?.is_none() {
                deadline.idle()?;
            }
        } else {
            let (handle, mut listener) = transport.listen(0)?;
            worker.send_bytes(&handle.0)?;
            while !said(&["softrnic3", "up to 10000 more attempts"]) {
                assert!(listener.accept()?.is_none(), "it cannot be connected");
                deadline.idle()?;
            }
            softrnic("fail softrnic3 --back-after 200");
            softrnic("inject --clear");
            while listener.accept()?.is_none() {
                deadline.idle()?;
            }
            assert!(said(&["softrnic3", "back after a fatal error"]), "{}", log());
        }
        worker.barrier()
    })?;
    Ok(())
}
