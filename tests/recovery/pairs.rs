//! Which ports are connected with each other after a fault: those that reach each other.

use crate::common::prelude::*;
use crate::fabric::{Fabric, end, exchange_until, recoveries, run, set_port, softrnic};
use crate::stream::{SHORT, Stream};

/// The first port of one end and the second one of the other fall for good: the two that are left
/// are in one network.
#[test]
fn all_arrives_over_the_ports_that_are_left_though_they_were_no_pair() -> Result<()> {
    run(Fabric::TwoRails, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.barrier()?;
        set_port(["softrnic0/1", "softrnic3/1"][worker.rank()], "down");
        stream.exchange(worker, 100)?;
        end(worker, stream)
    })
}

/// Two cables of rank 1 are exchanged, with their addresses.
#[test]
fn all_arrives_if_two_ports_exchange_their_networks() -> Result<()> {
    run(Fabric::TwoRails, &[("SOFTRNIC_NETWORK_BITS", "24")], |worker| {
        let transport = plugin_transport()?;
        drop(transport);
        set_addresses(worker.rank(), ["10.1.0", "10.2.0"]);
        worker.barrier()?;
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.barrier()?;
        if worker.rank() == 1 {
            ["2/1", "3/1"]
                .into_iter()
                .for_each(|port| set_port(&format!("softrnic{port}"), "down"));
            set_addresses(1, ["10.2.0", "10.1.0"]);
            ["2/1", "3/1"].into_iter().for_each(|port| set_port(&format!("softrnic{port}"), "up"));
        }
        stream.exchange(worker, 100)?;
        end(worker, stream)
    })
}

/// No router joins the networks of the second ports. That is known only when the one end tells its
/// address, after the connection has begun.
#[test]
fn ports_that_are_in_different_networks_are_not_connected_though_they_are_left() -> Result<()> {
    run(Fabric::TwoRails, &[("SOFTRNIC_NETWORK_BITS", "24")], |worker| {
        drop(plugin_transport()?);
        set_addresses(worker.rank(), [["10.1.0", "10.2.0"], ["10.1.0", "10.3.0"]][worker.rank()]);
        worker.barrier()?;
        let mut stream = Stream::open(worker, SHORT)?;
        worker.barrier()?;
        exchange_until(worker, &mut stream, "the second rail is tried", || recoveries() > 0)?;
        let far = ["10.3.0.2", "10.2.0.1"][worker.rank()];
        assert!(!said(&[&format!(" to GID {far}")]), "{}", log());
        end(worker, stream)
    })
}

/// The two ports of a rank get addresses in these networks.
fn set_addresses(rank: usize, networks: [&str; 2]) {
    for (place, network) in networks.into_iter().enumerate() {
        let port = format!("{}/1", 2 * rank + place);
        softrnic(&["gid", &port, "remove", "1"]);
        softrnic(&["gid", &port, "add", "1", &format!("::ffff:{network}.{}", rank + 1), "v2"]);
    }
}
