//! Ports and queue pairs that fail while a connection is being set up.

use crate::common::prelude::*;
use crate::fabric::{Fabric, begin_softrnic, inject_only, run, set_port, softrnic};
use crate::stream::{SHORT, Stream};
use std::ops::Range;

/// How often connections are set up, each time with the fault at another moment.
const ROUNDS: u64 = 12;

/// `fault` happens in rank 0 `RANK` times half a millisecond after both begin to connect; then the
/// connection carries messages.
fn connects_despite(fabric: Fabric, fault: impl Fn(u64) + Copy + Send + 'static) -> Result<()> {
    connects_despite_with(fabric, &[], 0..ROUNDS, fault)
}

/// The same with variables for both ranks, in these rounds.
fn connects_despite_with(
    fabric: Fabric,
    env: &[(&str, &str)],
    rounds: Range<u64>,
    fault: impl Fn(u64) + Copy + Send + 'static,
) -> Result<()> {
    run(fabric, env, |worker| {
        // Only ports that are active now are used.
        drop(plugin_transport()?);
        for round in rounds {
            worker.begin(format!("round {round}"))?;
            worker.barrier()?;
            let fault = (worker.rank() == 0).then(|| {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(500 * round));
                    fault(round);
                })
            });
            let mut stream = Stream::open(worker, SHORT)?;
            stream.exchange(worker, 20)?;
            if let Some(fault) = fault {
                fault.join().expect("no panic");
            }
            stream.exchange(worker, 20)?;
            worker.barrier()?;
            stream.close()?;
        }
        worker.barrier()
    })
}

fn flap(port: &str) {
    set_port(port, "down");
    std::thread::sleep(Duration::from_millis(30));
    set_port(port, "up");
}

#[test]
fn a_connection_comes_about_if_a_port_falls_at_any_step() -> Result<()> {
    connects_despite(Fabric::OneRail, |round| {
        flap(["softrnic0/1", "softrnic1/1"][round as usize % 2])
    })
}

#[test]
fn a_connection_comes_about_if_a_port_of_two_falls_at_any_step() -> Result<()> {
    connects_despite(Fabric::TwoRails, |round| flap(&format!("softrnic{}/1", round % 4)))
}

/// The queue pair fails with its first message.
#[test]
fn a_connection_comes_about_if_a_queue_pair_fails_at_once() -> Result<()> {
    connects_despite(Fabric::OneRail, |round| {
        inject_only(&format!("qp-error device=softrnic{} times=1", round % 2));
    })
}

/// Device 0 or 1 fails, and is back after 50 ms. For a while before, it may refuse commands.
fn fail_device(round: u64) {
    let device = format!("softrnic{}", round % 2);
    let refuses = ["0", "20"][round as usize / 2 % 2];
    softrnic(&["fail", &device, "--refuses", refuses, "--back-after", "50"]);
}

#[test]
fn a_connection_comes_about_if_a_device_fails_at_any_step() -> Result<()> {
    connects_despite(Fabric::OneRail, fail_device)
}

/// Nothing completes on a device that has failed, and no time that goes by without success is
/// noticed.
#[test]
fn a_connection_comes_about_if_a_device_fails_at_any_step_and_completes_nothing_more() -> Result<()>
{
    let env = [("SOFTRNIC_SILENT_FAILURE", "1"), ("FERRITE_STALL_MS", "0")];
    // Each takes a second, in which the device is waited for without success.
    connects_despite_with(Fabric::OneRail, &env, 2..5, fail_device)
}

#[test]
fn a_connection_comes_about_if_a_device_of_two_fails_at_any_step() -> Result<()> {
    connects_despite(Fabric::TwoRails, |round| fail_device(round + round / 4))
}

/// A device that refuses commands for good never says that it is lost.
#[test]
fn a_device_that_refuses_commands_for_good_ends_the_set_up_in_time() -> Result<()> {
    run(Fabric::OneRail, &[("FERRITE_HANDSHAKE_TIMEOUT", "2")], |worker| {
        drop(plugin_transport()?);
        worker.barrier()?;
        // It would fail in the end.
        let refusing = (worker.rank() == 0)
            .then(|| begin_softrnic(&["fail", "softrnic0", "--refuses", "1000000"]));
        if refusing.is_some() {
            wait_until("the device refuses", || softrnic(&["stat"]).contains("REFUSES COMMANDS"));
        }
        worker.barrier()?;
        let error = Stream::open(worker, SHORT).err().map(|e| e.to_string());
        if let Some(mut refusing) = refusing {
            refusing.kill().and_then(|()| refusing.wait()).expect("it is ours");
        }
        let is_reported =
            said(&["Input/output error", "still failing after 2 s (FERRITE_HANDSHAKE_TIMEOUT)"]);
        assert!(error.is_some() && (worker.rank() == 1 || is_reported), "{error:?} {}", log());
        Ok(())
    })
}

/// Before anything is said: each end waits for its port.
#[test]
fn a_connection_comes_about_when_ports_that_are_down_come_up() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        drop(plugin_transport()?);
        worker.barrier()?;
        if worker.rank() == 0 {
            set_port("softrnic0/1", "down");
            set_port("softrnic1/1", "down");
        }
        worker.barrier()?;
        let ports = (worker.rank() == 0).then(|| {
            std::thread::spawn(|| {
                for port in ["softrnic0/1", "softrnic1/1"] {
                    std::thread::sleep(Duration::from_millis(300));
                    set_port(port, "up");
                }
            })
        });
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        assert!(!said(&["the port is down"]), "{}", log());
        if let Some(ports) = ports {
            ports.join().expect("no panic");
        }
        worker.barrier()?;
        stream.close()
    })
}
