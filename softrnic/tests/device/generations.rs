//! The devices of each generation of mlx5, held against the table of docs/cards.md.

use crate::common::verbs::*;
use crate::drivers::{LIST, Look, Looked, PART, compare_rows, port_speed, speed, table};
use testkit::softrnic::Softrnic;

/// `active_width` as the page has it, `active_speed` and `active_speed_ex`.
fn signalling(look: &Looked) -> String {
    let port = port_attr(look.context, 1).expect("a port");
    let width = match port.active_width {
        1 => "1X",
        2 => "4X",
        _ => "other",
    };
    format!("{width}, {}, {}", port.active_speed, port.active_speed_ex)
}

fn firmware(look: &Looked) -> String {
    let bytes = look.attributes.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    bytes.map(char::from).collect()
}

fn pages(look: &Looked) -> String {
    format!("{:x}", u64::from(look.attribute(92)) << 32 | u64::from(look.attribute(88)))
}

/// What is looked at in each generation of mlx5, first with Ethernet and then with InfiniBand.
const OF_GENERATION: [(&str, Look); 8] = [
    ("vendor and part", PART),
    ("`fw_ver`", firmware),
    ("speed, Gb/s", speed),
    ("`active_width`, `active_speed`, `active_speed_ex`", signalling),
    ("`page_size_cap`", pages),
    ("`max_pd`", |look| look.attribute(140).to_string()),
    ("`max_ah`", |look| look.attribute(200).to_string()),
    ("`local_ca_ack_delay`", |look| (look.attribute(224) >> 16 & 0xff).to_string()),
];
const WITH_INFINIBAND: [(&str, Look); 2] =
    [("speed on InfiniBand", speed), ("`active_width`, `active_speed`, `active_speed_ex` on InfiniBand", signalling)];

/// Looks at what generations of mlx5 differ in, and compares it with the column of `driver`.
fn compare_generation(driver: &str) {
    let rows = table("of mlx5");
    let env = [("SOFTRNIC_DRIVER", driver), ("SOFTRNIC_LINK", "ib")];
    compare_rows(&rows, driver, &env[..1], &OF_GENERATION);
    compare_rows(&rows, driver, &env, &WITH_INFINIBAND);
    assert_eq!(rows.len(), OF_GENERATION.len() + WITH_INFINIBAND.len() + 2, "every row is looked at");
}

#[test]
fn generations_of_mlx5_are_as_the_page_has_them() {
    ["mlx5-cx4", "mlx5-cx5", "mlx5-cx6", "mlx5-cx6dx", "mlx5-cx7", "mlx5-cx8"].into_iter().for_each(compare_generation);
}

/// In all that the page's first table has, they differ from mlx5 in their part and in their speed.
#[test]
fn generations_of_mlx5_are_like_mlx5() {
    let rows = table("what");
    let same: Vec<_> =
        LIST.into_iter().filter(|(what, _)| !["vendor and part", "speed, Gb/s"].contains(what)).collect();
    for generation in &table("of mlx5")[0][1..] {
        compare_rows(&rows, "mlx5", &[("SOFTRNIC_DRIVER", generation)], &same);
    }
}

/// The name without a generation is one for the ConnectX-7.
#[test]
fn mlx5_is_a_connectx_7() {
    let rows = table("of mlx5");
    compare_rows(&rows, "mlx5-cx7", &[("SOFTRNIC_DRIVER", "mlx5")], &OF_GENERATION);
}

/// What the environment says is stronger than what the generation is like on InfiniBand.
#[test]
fn a_speed_is_stronger_than_the_generations() {
    let env = [("SOFTRNIC_DRIVER", "mlx5-cx8"), ("SOFTRNIC_LINK", "ib"), ("SOFTRNIC_SPEED", "200")];
    Softrnic::new().envs(&env).alone(|| assert_eq!(signalling(&Looked::new()), "4X, 64, 64"));
}

/// Where some ports alone are InfiniBand, all have the speed of Ethernet.
#[test]
fn exceptions_of_the_link_layer_do_not_change_the_speed() {
    let env = [("SOFTRNIC_DRIVER", "mlx5-cx8"), ("SOFTRNIC_LINK", "roce,softrnic0/1=ib")];
    Softrnic::new().envs(&env).alone(|| assert_eq!(speed(&Looked::new()), "400"));
}

/// 200 Gb/s a lane, told to a program with a libibverbs that is older.
#[test]
fn ports_may_tell_their_speed_in_the_old_attribute_alone() {
    let env = [("SOFTRNIC_DRIVER", "mlx5-cx8"), ("SOFTRNIC_LINK", "ib"), ("SOFTRNIC_OLD_SPEED", "1")];
    Softrnic::new().envs(&env).alone(|| {
        let look = Looked::new();
        assert_eq!(signalling(&look), "4X, 128, 0");
        assert_eq!(port_speed(look.context), Err(libc::EOPNOTSUPP));
    });
}
