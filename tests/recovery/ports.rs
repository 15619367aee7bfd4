//! Ports that go down and come back.

use crate::common::prelude::*;
use crate::fabric::{Fabric, all_arrives, applied, end, exchange_until, run, set_port};
use crate::stream::{LONG, SHORT, Shape, Stream};

/// Messages each way: more than twice as many as are on their way when the port falls.
const MESSAGES: usize = 300;

fn over_one_rail(rules: &str, shape: Shape) -> Result<()> {
    all_arrives(Fabric::OneRail, rules, shape, MESSAGES)
}

cases! { Result<()>;
    all_arrives_if_the_port_of_rank_0_falls_for_20_ms =>
        over_one_rail("port-down=20ms device=softrnic0 message=60 times=1", LONG);
    all_arrives_if_the_port_of_rank_1_falls_for_20_ms =>
        over_one_rail("port-down=20ms device=softrnic1 message=60 times=1", LONG);
}

#[test]
fn all_arrives_if_both_ports_fall_at_once() -> Result<()> {
    over_one_rail(
        "port-down=20ms device=softrnic0 message=60 times=1; port-down=20ms device=softrnic1 message=60 times=1",
        LONG,
    )
}

/// The second one falls during the recovery, or soon after it.
#[test]
fn all_arrives_if_both_ports_fall_one_after_the_other() -> Result<()> {
    over_one_rail(
        "port-down=20ms device=softrnic0 message=60 times=1; port-down=5ms device=softrnic1 message=70 times=1",
        LONG,
    )
}

#[test]
fn all_arrives_if_a_port_falls_and_messages_are_split_over_queue_pairs() -> Result<()> {
    let rules = "port-down=20ms device=softrnic0 message=60 times=1; port-down=10ms device=softrnic1 message=80 times=1";
    all_arrives(Fabric::Split, rules, LONG, MESSAGES)
}

#[test]
fn all_arrives_if_a_port_falls_and_messages_are_split_over_lanes() -> Result<()> {
    let rules = "port-down=20ms device=softrnic0 message=60 times=1; port-down=10ms device=softrnic1 message=80 times=1";
    all_arrives(Fabric::Lanes, rules, LONG, MESSAGES)
}

#[test]
fn all_arrives_if_a_port_falls_for_2_s() -> Result<()> {
    over_one_rail("port-down=2s device=softrnic0 message=60 times=1", SHORT)
}

/// Longer than a device's retries last, also with the default of NCCL 2.23; scripts/nightly.sh runs
/// it.
#[test]
fn all_arrives_if_both_ports_fall_for_half_a_minute() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.begin("messages while both ports are down")?;
        worker.barrier()?;
        let ports = (worker.rank() == 0).then(|| {
            ["softrnic0/1", "softrnic1/1"].iter().for_each(|port| set_port(port, "down"));
            std::thread::spawn(|| {
                for (port, seconds) in [("softrnic1/1", 31), ("softrnic0/1", 4)] {
                    std::thread::sleep(Duration::from_secs(seconds));
                    set_port(port, "up");
                }
            })
        });
        worker.barrier()?;
        stream.exchange(worker, MESSAGES)?;
        if let Some(ports) = ports {
            ports.join().expect("no panic");
        }
        end(worker, stream)
    })
}

/// Clear-to-sends are held back while a receiver posts many at a time: those that have not been
/// written come by the missing list.
#[test]
fn all_arrives_if_the_port_of_the_receiver_falls_while_many_buffers_are_posted() -> Result<()> {
    let many = Shape { depth: 64, bytes: 2048 };
    all_arrives(Fabric::OneRail, "port-down=20ms device=softrnic1 message=20 times=1", many, 2000)
}

/// How often ports fall in all; many times more in scripts/nightly.sh.
fn falls() -> usize {
    if std::env::var_os("FERRITE_DEEP").is_some() { 1000 } else { 100 }
}

/// Each of `ports` falls again and again, after its fortieth message on new queue pairs.
fn all_arrives_despite_flaps(fabric: Fabric, ports: &[(&str, &str)]) -> Result<()> {
    let times = falls() / ports.len();
    let rule = |(port, time): &(&str, &str)| {
        format!("port-down={time} device={port} message=40 times={times}")
    };
    let rules = ports.iter().map(rule).collect::<Vec<_>>().join("; ");
    run(fabric, &[("SOFTRNIC_FAULTS", &rules)], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        // Not all: a rail that has fallen often is not used for a minute while another one works.
        let is_over = || {
            applied().iter().map(|(_, count)| *count).sum::<u64>()
                >= (times * ports.len() / 2) as u64
        };
        exchange_until(worker, &mut stream, "ports that fall again and again", is_over)?;
        stream.exchange(worker, 100)?;
        end(worker, stream)
    })
}

#[test]
fn all_arrives_despite_many_flaps_of_the_only_rail() -> Result<()> {
    all_arrives_despite_flaps(Fabric::OneRail, &[("softrnic0", "3ms"), ("softrnic1", "7ms")])
}

#[test]
fn all_arrives_despite_many_flaps_of_two_rails() -> Result<()> {
    let ports =
        [("softrnic0", "3ms"), ("softrnic1", "7ms"), ("softrnic2", "20ms"), ("softrnic3", "1ms")];
    all_arrives_despite_flaps(Fabric::TwoRails, &ports)
}
