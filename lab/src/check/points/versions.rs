//! Points 61 to 65: what the versions of the interface after 8 have added.

use std::ffi::c_void;
use std::sync::Arc;

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::connect_locally;
use crate::check::outcome::StepResult;
use crate::check::point::{Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::points::connection::connect_raw;
use crate::check::raw::Raw;
use crate::check::wait::{SOON, within};
use crate::error::{Error, Result};
use crate::nccl::library::{self, Library, Source};
use crate::transport::buffer::Buffer;
use crate::transport::instance::Transport;

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 61,
        name: "contexts",
        claim: "1000 contexts begin and end in any order; one whose first word NCCL has written over serves as before; NULL ends",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: contexts }]),
    },
    Point {
        number: 62,
        name: "request-hints",
        claim: "a 1 or a 2 in the place of a request, which are hints of NCCL's, is never taken for an answer",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: hints }]),
    },
    Point {
        number: 63,
        name: "lengths-beyond",
        claim: "a message longer than is promised, also by a multiple of 4 GiB, is refused and not cut; the connection goes on",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: beyond }]),
    },
    Point {
        number: 64,
        name: "merged-devices",
        claim: "two and four devices become one with a name of its own, which names its members and carries messages",
        trial: Trial::Steps(&[Step {
            env: Env {
                vars: &[("NCCL_NET_FORCE_MERGE", "any"), ("NCCL_IB_MERGE_NICS", "1"), ("SOFTRNIC_DEVICES", "4")],
                ..RANK0_ONLY
            },
            run: merged,
        }]),
    },
    Point {
        number: 65,
        name: "two-tables",
        claim: "the tables of version 8 and of this version serve two copies of NCCL in one process",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: two_tables }]),
    },
];

const CONTEXTS: usize = 1000;

/// A context of a communicator with this traffic class.
fn begun(raw: Raw, traffic_class: i32) -> Result<*mut c_void> {
    let mut context = std::ptr::null_mut();
    let code = raw.begin(&mut context, traffic_class);
    ensure!(code == 0, "init of one more communicator returns {code}");
    Ok(context)
}

fn contexts(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    if raw.version() < 11 {
        return Ok(StepResult::skipped("versions before 11 have no contexts"));
    }
    let devices = raw.devices();
    let mut alive = Vec::new();
    for i in 0..CONTEXTS {
        // Of any class, sensible or not.
        alive.push(begun(raw, i as i32 - 1)?);
        if i % 3 == 2 {
            let ended = alive.swap_remove(i * 7 % alive.len());
            ensure!(raw.finalize(ended) == 0, "finalize fails while others are alive");
        }
    }
    ensure!(raw.devices() == devices, "the devices are others with {} contexts", alive.len());
    for context in alive.drain(..) {
        ensure!(raw.finalize(context) == 0, "finalize fails");
    }
    ensure!(raw.finalize(std::ptr::null_mut()) == 0, "finalize of NULL fails");

    let context = begun(raw, -1)?;
    // NCCL passes the context to its own one-sided transport, which writes the traffic class of another communicator there.
    if !context.is_null() {
        // SAFETY: a context is NULL or begins with an `int`, which only this test writes now.
        unsafe { context.cast::<i32>().write(77) };
    }
    let (send, recv) = connect_raw(raw.with_context(context), false)?;
    let place = context as usize;
    let told = std::thread::spawn(move || (0..CONTEXTS as u32).map(|i| told_at(raw, place, i)).max());
    let here = (0..CONTEXTS as u32).map(|i| told_at(raw, place, i)).max();
    let there = told.join().map_err(|_| Error::Contract("setNetAttr panicked".into()))?;
    ensure!((here, there) == (Some(0), Some(0)), "setNetAttr by two threads returns {here:?} and {there:?}");
    ensure!(raw.close_send(send) == 0 && raw.close_recv(recv) == 0, "closing fails");
    ensure!(raw.finalize(context) == 0, "finalize of a context whose first word is another fails");
    Ok(StepResult::passed(format!("{CONTEXTS}, of them up to {} at once", CONTEXTS * 2 / 3)))
}

fn told_at(raw: Raw, context: usize, i: u32) -> u32 {
    raw.set_attributes(context as *mut c_void, [1 << (i % 8), u32::MAX, 1])
}

fn hints(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Arc::new(Buffer::new(8192)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let start = memory.address(0, 8)? as usize;
    for hint in [1, 2] {
        let (code, request) = raw.isend_over(hint, &conn.send, start, 8, 1, out.raw() as usize);
        ensure!((code, request) == (0, 0), "isend over {hint}, with no receive yet: code {code}, request {request:#x}");
        let (code, receive) = raw.irecv_over(hint, &conn.recv, &into, 4096, 64, 1);
        ensure!(code == 0 && receive > 2, "irecv over {hint}: code {code}, request {receive:#x}");
        let send = within(SOON, || match raw.isend_over(hint, &conn.send, start, 8, 1, out.raw() as usize) {
            (0, 0) => Ok(None),
            (0, request) => Ok(Some(request)),
            (code, _) => Err(Error::Contract(format!("isend returns {code}"))),
        })?;
        let Some(send) = send.filter(|request| *request > 2) else {
            return Err(Error::Contract(format!("isend over {hint}: request {send:?}")));
        };
        for (request, what) in [(send, "send"), (receive, "receive")] {
            let end = within(SOON, || Ok(Some(raw.test(request, None)).filter(|answer| *answer != (0, false))))?;
            ensure!(end == Some((0, true)), "the test of a {what} says {end:?}");
        }
    }
    conn.carries(&[8, 5000])?;
    Ok(StepResult::passed("1 and 2: NULL for a send too early, requests of the transport's own else"))
}

fn beyond(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    if raw.version() == 8 {
        return Ok(StepResult::skipped("version 8 promises no length"));
    }
    let most = raw.properties(0, 0).most_bytes();
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Arc::new(Buffer::new(8192)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let start = memory.address(0, 8)? as usize;
    let all = [most + 1, (1 << 32) + 8, (1 << 40) + 8, i64::MAX];
    let sizes: Vec<_> = all.into_iter().filter(|size| *size > most).collect();
    for size in &sizes {
        let (code, request) = raw.irecv_over(0, &conn.recv, &into, 0, *size, 1);
        ensure!(code != 0 || request == 0, "a receive of {size} bytes is taken");
        let (code, request) = raw.isend(&conn.send, start, *size, 1, out.raw() as usize);
        ensure!(code != 0 || request == 0, "a send of {size} bytes is taken");
    }
    conn.carries(&[8, 5000])?;
    Ok(StepResult::passed(format!("{} sizes beyond {most} are refused; then messages", sizes.len())))
}

fn merged(ctx: &mut Context<'_>) -> Result<StepResult> {
    // Before `init`: a transport of version 8 would merge what it finds.
    if Library::open(&ctx.job.source)?.identity().interface == 8 {
        return Ok(StepResult::skipped("version 8 merges devices by itself"));
    }
    let transport = ctx.transport()?;
    let count = transport.devices()?;
    ensure!(count == 4, "there are {count} devices, not 4");
    let single: Vec<_> = (0..count).map(|device| transport.properties(device)).collect::<Result<_>>()?;
    ensure!(single.iter().enumerate().all(|(i, p)| p.fused == [i as i32]), "a device is not its own only member");
    for wrong in [&[][..], &[99], &[0, 99]] {
        ensure!(transport.fuse(wrong).is_err(), "a device of {wrong:?} is made");
    }
    let mut names: Vec<_> = single.iter().map(|properties| properties.name.clone()).collect();
    for members in [&[0, 1][..], &[0, 1, 2, 3]] {
        let device = transport.fuse(members)?;
        ensure!(device == names.len(), "the device of {members:?} has number {device}, not {}", names.len());
        let told = transport.devices()?;
        ensure!(told == device + 1, "there are {told} devices with it");
        let properties = transport.properties(device)?;
        let wanted: Vec<i32> = members.iter().map(|member| *member as i32).collect();
        ensure!(properties.fused == wanted, "the device of {members:?} says it is of {:?}", properties.fused);
        let speed: i32 = members.iter().map(|member| single[*member].speed_mbps).sum();
        ensure!(properties.speed_mbps == speed, "its speed is {}, not {speed}", properties.speed_mbps);
        names.push(properties.name);
        connect_locally(&transport, device, device)?.carries(&[8, 100_001])?;
    }
    let again = (0..names.len()).map(|device| transport.properties(device).map(|properties| properties.name));
    ensure!(again.collect::<Result<Vec<_>>>()? == names, "names change");
    let words = names.join(", ");
    names.sort();
    names.dedup();
    ensure!(names.len() == 6, "names are not unique: {words}");
    Ok(StepResult::passed(words))
}

fn two_tables(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let Source::Plugin { path, .. } = &ctx.job.source else {
        return Ok(StepResult::skipped("a plugin is loaded twice, NCCL is not"));
    };
    let version = transport.identity().interface;
    if version == 8 || library::require_plugin(path, Some(8)).is_err() {
        return Ok(StepResult::skipped("there is no other table"));
    }
    let other = Transport::open(&Source::plugin_of(path, 8))?;
    let (one, two) = (connect_locally(&transport, 0, 0)?, connect_locally(&other, 0, 0)?);
    for size in [8, 5000] {
        one.carries(&[size])?;
        two.carries(&[size])?;
    }
    drop((one, transport));
    two.carries(&[100_001])?;
    Ok(StepResult::passed(format!("versions 8 and {version}, each with a connection")))
}
