//! Faults on devices that do what some cards and kernels do otherwise (softrnic/docs/cards.md).

use crate::fabric::{Fabric, end, run};
use crate::stream::{LONG, SHORT, Shape, Stream};
use lab::error::Result;
use testkit::cases;

/// `count` messages each way, with these settings of the software device.
fn all_arrives(fabric: Fabric, env: &[(&str, &str)], shape: Shape, count: usize) -> Result<()> {
    run(fabric, env, |worker| {
        let mut stream = Stream::open(worker, shape)?;
        stream.exchange(worker, count)?;
        end(worker, stream)
    })
}

/// The completions of former queue pairs are there, with the numbers of the present ones.
fn all_arrives_beside_stale_completions(fabric: Fabric) -> Result<()> {
    let rules = "qp-error device=softrnic0 opcode=write,write-imm message=9.. every=15 times=40; \
                 qp-error device=softrnic1 opcode=write,write-imm message=9.. every=15 times=40";
    let env = [
        ("SOFTRNIC_STALE_COMPLETIONS", "1"),
        ("SOFTRNIC_QPN_REUSE", "1"),
        ("SOFTRNIC_FAULTS", rules),
    ];
    all_arrives(fabric, &env, SHORT, 2000)
}

cases! { Result<()>;
    completions_of_former_queue_pairs_change_nothing_on_one_rail =>
        all_arrives_beside_stale_completions(Fabric::OneRail);
    completions_of_former_queue_pairs_change_nothing_on_lanes =>
        all_arrives_beside_stale_completions(Fabric::Lanes);
}

/// A message waits for a receive, all but its last packet in place, when the port of the receiver
/// falls: it is sent again, and what had been placed is not taken for it.
#[test]
fn a_message_of_which_the_first_packets_are_there_arrives_whole() -> Result<()> {
    let rules = "rnr device=softrnic0 opcode=write-imm message=30 attempts=all times=300; \
                 rnr device=softrnic0 opcode=write-imm message=50.. every=9 attempts=2 times=100; \
                 port-down=20ms device=softrnic1 opcode=write-imm message=60 times=1";
    let env = [("SOFTRNIC_RNR_PLACES", "1"), ("SOFTRNIC_FAULTS", rules)];
    all_arrives(Fabric::OneRail, &env, LONG, 400)
}

/// Ports fall at both ends. No completion tells why a queue pair has ended.
#[test]
fn queue_pairs_that_end_at_once_with_their_port_and_without_a_reason_are_made_anew() -> Result<()> {
    let rules = "port-down=5ms device=softrnic0 message=40.. every=200 times=5; \
                 port-down=5ms device=softrnic1 message=90.. every=200 times=5; \
                 qp-error device=softrnic1 message=33 times=1";
    let env = [
        ("SOFTRNIC_OWN_PORT_DOWN", "fails"),
        ("SOFTRNIC_FLUSH_ONLY", "1"),
        ("SOFTRNIC_FAULTS", rules),
    ];
    all_arrives(Fabric::OneRail, &env, SHORT, 2000)
}

/// The table has the link-local address twice, and the others come back at other indices.
#[test]
fn an_address_that_is_there_twice_is_no_trouble() -> Result<()> {
    let rules = "port-down=5ms gid=move device=softrnic0 message=60 times=1; \
                 port-down=5ms gid=move gid-after=10ms device=softrnic1 message=90 times=1";
    all_arrives(
        Fabric::OneRail,
        &[("SOFTRNIC_GIDS", "vlan"), ("SOFTRNIC_FAULTS", rules)],
        SHORT,
        1000,
    )
}

/// One of two paths loses all for a while, and no work request ever fails of it.
#[test]
fn a_path_that_loses_all_is_left_though_retries_are_endless() -> Result<()> {
    let rule = "drop attempts=all device=softrnic1 message=50.. for=1s";
    let env =
        [("SOFTRNIC_ENDLESS_RETRIES", "1"), ("NCCL_IB_TIMEOUT", "12"), ("SOFTRNIC_FAULTS", rule)];
    all_arrives(Fabric::TwoRails, &env, SHORT, 1000)
}
