//! Ports that go down and come back.

use crate::fabric::{ALL, Fabric, all_arrives, end, recoveries, run};
use crate::stream::{LONG, SHORT, Shape, Stream};
use ferrite::error::Result;

/// Messages each way: more than twice as many as are on their way when the port falls.
const MESSAGES: usize = 300;

fn over_one_rail(rules: &str, shape: Shape) -> Result<()> {
    all_arrives(Fabric::OneRail, rules, shape, MESSAGES)
}

fn split(rules: &str, shape: Shape) -> Result<()> {
    all_arrives(Fabric::Split, rules, shape, MESSAGES)
}

#[test]
fn all_arrives_if_the_port_of_rank_0_falls_for_20_ms() -> Result<()> {
    over_one_rail("port-down=20ms device=softrnic0 message=60 times=1", LONG)
}

#[test]
fn all_arrives_if_the_port_of_rank_1_falls_for_20_ms() -> Result<()> {
    over_one_rail("port-down=20ms device=softrnic1 message=60 times=1", LONG)
}

#[test]
fn all_arrives_if_both_ports_fall_at_once() -> Result<()> {
    over_one_rail(
        "port-down=20ms device=softrnic0 message=60 times=1; port-down=20ms device=softrnic1 message=60 times=1",
        LONG,
    )
}

#[test]
fn all_arrives_if_both_ports_fall_one_after_the_other() -> Result<()> {
    over_one_rail(
        "port-down=20ms device=softrnic0 message=60 times=1; port-down=5ms device=softrnic1 message=70 times=1",
        LONG,
    )
}

#[test]
fn all_arrives_if_a_port_falls_and_messages_are_split_over_queue_pairs() -> Result<()> {
    split(
        "port-down=20ms device=softrnic0 message=60 times=1; port-down=10ms device=softrnic1 message=150 times=1",
        LONG,
    )
}

#[test]
fn all_arrives_if_a_port_falls_for_2_s() -> Result<()> {
    over_one_rail("port-down=2s device=softrnic0 message=60 times=1", SHORT)
}
