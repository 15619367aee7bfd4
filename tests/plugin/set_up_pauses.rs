//! What a device refuses while a connection is set up is tried again after a pause, and not with
//! each call of NCCL's.

use crate::common::prelude::*;
use std::process::Command;

/// Calls of NCCL's that follow each other at once.
const CALLS: u32 = 300;
/// From one try to the next.
const PAUSE: Duration = Duration::from_millis(10);

/// How often the only fault rule has been applied: a device has refused so many commands.
fn refusals() -> u32 {
    let text = program::stdout_of(Command::new(dist().join("bin/softrnic")).arg("inject"));
    let (_, count) = text.trim().rsplit_once("  applied ").expect("a rule and a number");
    count.parse().expect("a number")
}

/// `call` is NCCL's for an end of a connection whose device refuses commands, as `rule` says. Once
/// that is over, the connection comes about.
fn pauses(
    rule: &str,
    call: impl Fn(&Transport, &mut Handle, &mut Listener) -> Result<()>,
) -> Result<()> {
    let setting = require!(setting()).env("SOFTRNIC_FAULTS", rule);
    alone(Ok(setting), |worker| {
        let transport = plugin_transport()?;
        let (mut handle, mut listener) = transport.listen(0)?;
        // The first may come of what is made before there is a control connection, and the second
        // of what is offered over it.
        wait_until("three refusals", || {
            assert!(
                transport.connect(1, &mut handle).expect("it goes on").is_none(),
                "a device refuses"
            );
            assert!(listener.accept().expect("it goes on").is_none(), "a device refuses");
            refusals() >= 3
        });
        let (begun, before) = (Instant::now(), refusals());
        for _ in 0..CALLS {
            call(&transport, &mut handle, &mut listener)?;
        }
        // However slow the machine is, there are no more tries than pauses, and one before the
        // first.
        let most = 1 + (begun.elapsed().as_nanos() / PAUSE.as_nanos()) as u32;
        let tries = refusals() - before;
        assert!(tries <= most, "{tries} tries in {CALLS} calls, and {most} could be");
        softrnic("inject --clear");
        let pair = connect_pair(worker, &transport, 1, &mut handle, &mut listener, || ())?;
        works(worker, pair)
    })
}

#[test]
fn a_connecting_end_pauses_before_it_makes_again_what_its_device_has_refused() -> Result<()> {
    pauses("reg-mr=EIO device=softrnic1", |transport, handle, _| {
        transport.connect(1, handle).map(|comm| assert!(comm.is_none(), "its device refuses"))
    })
}

#[test]
fn a_listener_pauses_before_it_makes_again_what_its_device_has_refused() -> Result<()> {
    pauses("modify-qp=EIO device=softrnic0", |_, _, listener| {
        listener.accept().map(|comm| assert!(comm.is_none(), "its device refuses"))
    })
}
