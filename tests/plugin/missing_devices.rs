//! What makes this process differ from others in its devices is a warning at the start.

use crate::common::prelude::*;

/// Process 1 initializes the plugin when `change` has been made to the devices, and runs `check`.
fn after(env: &[(&str, &str)], change: &str, check: impl FnOnce()) -> Result<()> {
    both(talkative(env), |worker| {
        // The devices are there as long as somebody uses them.
        let _transport = if worker.rank() == 0 { Some(plugin_transport()?) } else { None };
        if worker.rank() == 0 {
            softrnic(change);
        }
        worker.barrier()?;
        if worker.rank() == 1 {
            plugin_transport()?.devices()?;
            check();
        }
        worker.barrier()
    })
}

const DOWN: [&str; 3] = ["WARN", "softrnic1:1, which NCCL_IB_HCA names, is not used", "not active"];

#[test]
fn a_port_that_is_named_and_down_is_a_warning() -> Result<()> {
    after(&[("NCCL_IB_HCA", "softrnic0,softrnic1")], "port 1/1 down", || {
        assert!(said(&DOWN), "{}", log())
    })
}

/// Many cards have a port without a cable.
#[test]
fn a_port_that_is_not_named_and_down_is_none() -> Result<()> {
    for hca in ["", "softrnic"] {
        after(&[("NCCL_IB_HCA", hca)], "port 1/1 down", || {
            assert!(!said(&["WARN", "softrnic1"]), "{}", log())
        })?;
    }
    Ok(())
}

#[test]
fn a_port_with_a_link_local_address_only_is_a_warning_with_the_cure() -> Result<()> {
    after(&[], "gid 1/1 remove 1", || {
        let words = [
            "WARN",
            "softrnic1 has a link-local address only (fe80::",
            "give its network interface an IP address",
        ];
        assert!(said(&words) && !said(&["WARN", "softrnic0"]), "{}", log());
    })
}

#[test]
fn a_link_local_address_that_the_user_has_chosen_is_none() -> Result<()> {
    after(&[("NCCL_IB_GID_INDEX", "0")], "gid 1/1 remove 1", || {
        assert!(!said(&["WARN", "link-local"]), "{}", log())
    })
}

#[test]
fn both_ends_of_a_connection_say_that_they_have_other_numbers_of_rails() -> Result<()> {
    faithful::run(
        &["--devices", "4"],
        |setting| setting,
        |worker| {
            if worker.rank() == 1 {
                set("NCCL_IB_HCA", "softrnic3");
            }
            let bench = Bench::open(worker, plugin_transport()?, 4096)?;
            bench.exchange(worker, 0, 100, 100)?;
            let words = [
                ["2 rail(s) here, 1 at", "softrnic3"],
                ["1 rail(s) here, 2 at", "softrnic0+softrnic1"],
            ];
            let words = words[worker.rank()];
            assert!(said(&["WARN", words[0], words[1]]), "{}", log());
            assert_eq!(log().matches("rail(s) here").count(), 1, "it is said once: {}", log());
            worker.barrier()
        },
    )
}

#[test]
fn ends_with_as_many_rails_say_nothing_of_them() -> Result<()> {
    both(setting(), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 4096)?;
        bench.exchange(worker, 0, 100, 100)?;
        assert!(!said(&["rail(s) here"]), "{}", log());
        worker.barrier()
    })
}
