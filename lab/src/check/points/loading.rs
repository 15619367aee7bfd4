//! Points 1 to 7: the library, and what happens before there is a connection.

use std::ffi::{CStr, c_void};
use std::fs;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::{
    BOTH_RANKS, Context, Point, RANK0_ONLY, SETTLED, SOON, code, connect_locally, no_more_than,
    open_files_and_threads, within,
};
use crate::check::ensure;
use crate::check::points::connection::{connect_raw, rule};
use crate::check::raw::{FILLS, Raw};
use crate::check::report::StepResult;
use crate::error::{Error, Result};
use crate::measure::stream::TAG;
use crate::nccl::abi::later::{Common, Net, NetV9};
use crate::nccl::abi::{ncclNet_v8_t, ncclNetProperties_v8_t};
use crate::nccl::library::{Library, Source};
use crate::nccl::shared_object::SharedObject;
use crate::nccl::{abi, library, shared_object};
use crate::transport::buffer::Buffer;
use crate::transport::deadline::{Deadline, posted};
use crate::transport::instance::{Properties, Transport};
use crate::transport::listener::LocalConn;

/// Conversions of printf, some of which write to memory.
const PER_CENTS: &str = "%s%n%d%99999999d%p%*c";

pub(super) const POINTS: &[Point] = &[
    point!(1, "abi-layout", RANK0_ONLY => layout;
        "the vtable is a data object of its version's size, whose functions lie in the library"),
    point!(2, "loads-without-libibverbs", RANK0_ONLY.without_verbs() => no_verbs;
        "where libibverbs cannot be loaded, the library loads with all symbols bound and reports no device"),
    point!(3, "name", RANK0_ONLY => name;
        "the name is nobody else's, NCCL's loader finds it, and init alone takes nothing of the device"),
    point!(4, "load-and-unload", RANK0_ONLY => reload, RANK0_ONLY => reload_in_use;
        "loading and unloading it twice leaves no thread or file, and the process ends well"),
    point!(5, "init-again", RANK0_ONLY => init_again;
        "init may be called again, also by another thread, and finds the same devices"),
    point!(6, "no-devices",
        BOTH_RANKS => ports_down, RANK0_ONLY.vars(&[("NCCL_IB_HCA", "=nothing9")]) => none,
        RANK0_ONLY.vars(&[("NCCL_IB_DISABLE", "1")]) => disabled;
        "without an active port there are no devices, which is no error"),
    point!(7, "log-lines", RANK0_ONLY => log_lines;
        "per cents and lines of more than 1024 bytes get into the log as they are"),
];

/// What the header says of the layout, as this program was compiled.
const _: () = {
    assert!(size_of::<ncclNet_v8_t>() == 152 && size_of::<ncclNetProperties_v8_t>() == 64);
    assert!(
        offset_of!(ncclNet_v8_t, regMrDmaBuf) == 64
            && offset_of!(ncclNet_v8_t, irecvConsumed) == 144
    );
    assert!(
        offset_of!(ncclNetProperties_v8_t, guid) == 16
            && offset_of!(ncclNetProperties_v8_t, latency) == 40
    );
};

fn layout(ctx: &mut Context<'_>) -> Result<StepResult> {
    let library = Library::open(&ctx.job.source)?;
    let identity = library.identity();
    let symbol = match ctx.job.source {
        // What NCCL's loader of 2.21.5 names otherwise.
        Source::Loader { .. } if identity.interface == 8 => "ncclNetPlugin_v8",
        _ => identity.symbol.as_str(),
    };
    let size = shared_object::data_size(&identity.file, symbol)?;
    let wanted = match identity.interface {
        8 => size_of::<ncclNet_v8_t>(),
        9 | 10 => size_of::<NetV9>(),
        _ => size_of::<Net>(),
    };
    ensure!(size == wanted as u64, "{symbol} is a data object of {size} bytes, not {wanted}");
    let functions = identity.functions;
    Ok(StepResult::passed(format!(
        "{symbol}: {size} bytes, name {:?}, {functions} functions in the file",
        identity.name
    )))
}

fn no_verbs(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = Transport::without_init(Library::open(&ctx.job.source)?);
    let raw = Raw::of(&transport);
    let code = raw.init();
    if code != 0 {
        return Ok(StepResult::passed(format!(
            "loads; init returns {code}, so NCCL takes another network"
        )));
    }
    let (code, count) = raw.devices();
    ensure!(
        code != 0 || count == 0,
        "init succeeded without libibverbs, and there are {count} devices"
    );
    Ok(StepResult::passed(format!(
        "loads; init succeeds, devices returns {code} and {count} devices"
    )))
}

fn name(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let (name, count) = (transport.name().to_owned(), transport.devices()?);
    let is_built_in = matches!(ctx.job.source, Source::Stock { .. });
    let taken = ["IB", "Socket"].iter().any(|taken| name.eq_ignore_ascii_case(taken));
    ensure!(!taken || is_built_in, "{name:?} is the name of a network of NCCL's own");
    let held = ctx.softrnic()?.objects()?;
    ensure!(held.queue_pairs == 0, "init alone holds {held}");
    let words = format!("{name:?}, {count} devices; after init: {held}");
    let (Source::Plugin { path, .. }, Some(nccl)) = (&ctx.job.source, &ctx.job.built_in) else {
        return Ok(StepResult::passed(words));
    };
    let plugin = path.to_string_lossy().into_owned();
    // SAFETY: NCCL's loader reads it in this call; no other thread of this process touches the
    // environment now.
    unsafe { std::env::set_var("NCCL_NET_PLUGIN", &plugin) };
    let found = Library::open(&Source::Loader { nccl: nccl.clone(), plugin })?;
    ensure!(found.identity().name == name, "NCCL's loader found {:?}", found.identity().name);
    Ok(StepResult::passed(format!("{words}; NCCL 2.21.5's loader takes it")))
}

fn reload(ctx: &mut Context<'_>) -> Result<StepResult> {
    let file = ctx.job.source.file().to_path_buf();
    // The loader's own caches are made at the first time.
    let before = open_files_and_threads();
    for _ in 0..2 {
        SharedObject::open(&file)?.close();
    }
    no_more_than(before, SETTLED)?;
    let (files, threads) = before;
    Ok(StepResult::passed(format!("{files} files and {threads} threads before and after")))
}

/// As a tuner's probe does while the transport runs: its own reference is given back, the code has
/// to stay.
fn reload_in_use(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let count = transport.devices()?;
    let file = ctx.job.source.file().to_path_buf();
    let before = open_files_and_threads();
    for _ in 0..2 {
        SharedObject::open(&file)?.close();
    }
    no_more_than(before, SETTLED)?;
    ensure!(transport.devices()? == count, "the devices are others than before");
    let file = ctx.job.source.file();
    if !matches!(ctx.job.source, Source::Plugin { .. }) {
        return Ok(StepResult::nothing());
    }
    let lasting = shared_object::is_nodelete(file)?;
    let threads = before.1 > 1;
    ensure!(
        lasting || !threads,
        "it has threads and could be unmapped (not linked with -z nodelete)"
    );
    Ok(StepResult::passed(if lasting { "cannot be unmapped" } else { "has no threads" }))
}

fn init_again(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    let first = raw.devices();
    let before = open_files_and_threads();
    ensure!(
        raw.init() == 0 && raw.devices() == first,
        "a second init changes the devices or fails"
    );
    let other = std::thread::spawn(move || (raw.init(), raw.devices()));
    let (code, devices) =
        other.join().map_err(|_| Error::Contract("init panicked in another thread".into()))?;
    ensure!(
        (code, devices) == (0, first),
        "init in another thread: code {code}, devices {devices:?}, not {first:?}"
    );
    no_more_than(before, SETTLED)?;
    Ok(StepResult::passed(format!("three times, by two threads: {} devices", first.1)))
}

/// Rank 1 makes the fabric, rank 0 finds all of its ports down.
fn ports_down(ctx: &mut Context<'_>) -> Result<StepResult> {
    let softrnic = ctx.softrnic()?;
    if ctx.rank() == 1 {
        ctx.transport()?;
        ctx.worker.barrier()?;
        ctx.worker.barrier()?;
        return Ok(StepResult::nothing());
    }
    ctx.worker.barrier()?;
    for device in 0..2 * ctx.job.rails {
        softrnic.run(&["port", &format!("softrnic{device}/1"), "down"])?;
    }
    let found = none(ctx)?;
    ctx.worker.barrier()?;
    Ok(found)
}

fn none(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = Transport::without_init(Library::open(&ctx.job.source)?);
    let raw = Raw::of(&transport);
    let (init, (code, count)) = (raw.init(), raw.devices());
    ensure!((init, code) == (0, 0), "init returned {init}, devices {code}: that is an error");
    ensure!(count == 0, "{count} devices where there should be none");
    Ok(StepResult::nothing())
}

/// The user has asked for none: an error leads NCCL to the same.
fn disabled(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = Transport::without_init(Library::open(&ctx.job.source)?);
    let raw = Raw::of(&transport);
    let (init, (_, count)) = (raw.init(), raw.devices());
    ensure!(init != 0 || count == 0, "NCCL_IB_DISABLE=1 leaves {count} devices");
    Ok(StepResult::passed(format!(
        "ports down, a filter that admits none: no devices, no error; disabled: init returns {init}"
    )))
}

fn log_lines(ctx: &mut Context<'_>) -> Result<StepResult> {
    // Longer than the 1024 bytes that NCCL's own logger keeps.
    let value = format!("{PER_CENTS}{}", "x".repeat(1500));
    // SAFETY: this process has one thread so far, and no library is loaded.
    unsafe { std::env::set_var("NCCL_SOCKET_FAMILY", &value) };
    let transport = Transport::without_init(Library::open(&ctx.job.source)?);
    let result = transport.init();
    let words = format!(
        "a setting of {} bytes with %s and %n is reported unchanged (init: {})",
        value.len(),
        code(&result)
    );
    let otherwise = "the value of NCCL_SOCKET_FAMILY is not told, or not as it is";
    Ok(StepResult::passed(words).logging(&["NCCL_SOCKET_FAMILY", PER_CENTS, "xxxx"], otherwise))
}

pub(super) const VERSION_POINTS: &[Point] = &[
    point!(61, "contexts", RANK0_ONLY => contexts;
        "1000 contexts begin and end in any order; one whose first word NCCL has written over serves as before; NULL ends"),
    point!(62, "request-hints", RANK0_ONLY => hints;
        "a 1 or a 2 in the place of a request, which are hints of NCCL's, is never taken for an answer"),
    point!(63, "lengths-beyond", RANK0_ONLY => beyond;
        "a message longer than is promised, also by a multiple of 4 GiB, is refused and not cut; the connection continues"),
    point!(64, "merged-devices",
        RANK0_ONLY.vars(&[
            ("NCCL_NET_FORCE_MERGE", "any"), ("NCCL_IB_MERGE_NICS", "1"), ("SOFTRNIC_DEVICES", "4"),
        ]) => merged;
        "two and four devices become one with a name of its own, which names its members and carries messages"),
    point!(65, "two-tables", RANK0_ONLY => two_tables;
        "the tables of version 8 and of this version serve two copies of NCCL in one process"),
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
    // NCCL passes the context to its own one-sided transport, which writes the traffic class of
    // another communicator there.
    if !context.is_null() {
        // SAFETY: a context is NULL or begins with an `int`, which only this test writes now.
        unsafe { context.cast::<i32>().write(77) };
    }
    let (send, recv) = connect_raw(raw.with_context(context), false)?;
    let place = context as usize;
    let told =
        std::thread::spawn(move || (0..CONTEXTS as u32).map(|i| told_at(raw, place, i)).max());
    let here = (0..CONTEXTS as u32).map(|i| told_at(raw, place, i)).max();
    let there = told.join().map_err(|_| Error::Contract("setNetAttr panicked".into()))?;
    ensure!(
        (here, there) == (Some(0), Some(0)),
        "setNetAttr by two threads returns {here:?} and {there:?}"
    );
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
        ensure!(
            (code, request) == (0, 0),
            "isend over {hint}, with no receive yet: code {code}, request {request:#x}"
        );
        let (code, receive) = raw.irecv_over(hint, &conn.recv, &into, 4096, 64, 1);
        ensure!(code == 0 && receive > 2, "irecv over {hint}: code {code}, request {receive:#x}");
        let send = within(SOON, || {
            match raw.isend_over(hint, &conn.send, start, 8, 1, out.raw() as usize) {
                (0, 0) => Ok(None),
                (0, request) => Ok(Some(request)),
                (code, _) => Err(Error::Contract(format!("isend returns {code}"))),
            }
        })?;
        let Some(send) = send.filter(|request| *request > 2) else {
            return Err(Error::Contract(format!("isend over {hint}: request {send:?}")));
        };
        for (request, what) in [(send, "send"), (receive, "receive")] {
            let end = within(SOON, || {
                Ok(Some(raw.test(request, None)).filter(|answer| *answer != (0, false)))
            })?;
            ensure!(end == Some((0, true)), "the test of a {what} says {end:?}");
        }
    }
    conn.carries(&[8, 5000])?;
    Ok(StepResult::passed(
        "1 and 2: NULL for a send too early, requests of the transport's own else",
    ))
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
    Ok(StepResult::passed(format!(
        "{} sizes beyond {most} are refused; then messages",
        sizes.len()
    )))
}

fn merged(ctx: &mut Context<'_>) -> Result<StepResult> {
    // Before `init`: a transport of version 8 would merge what it finds.
    if Library::open(&ctx.job.source)?.identity().interface == 8 {
        return Ok(StepResult::skipped("version 8 merges devices by itself"));
    }
    let transport = ctx.transport()?;
    let count = transport.devices()?;
    ensure!(count == 4, "there are {count} devices, not 4");
    let single: Vec<_> =
        (0..count).map(|device| transport.properties(device)).collect::<Result<_>>()?;
    ensure!(
        single.iter().enumerate().all(|(i, p)| p.fused == [i as i32]),
        "a device is not its own only member"
    );
    for wrong in [&[][..], &[99], &[0, 99]] {
        ensure!(transport.fuse(wrong).is_err(), "a device of {wrong:?} is made");
    }
    let mut names: Vec<_> = single.iter().map(|properties| properties.name.clone()).collect();
    for members in [&[0, 1][..], &[0, 1, 2, 3]] {
        let device = transport.fuse(members)?;
        ensure!(
            device == names.len(),
            "the device of {members:?} has number {device}, not {}",
            names.len()
        );
        let told = transport.devices()?;
        ensure!(told == device + 1, "there are {told} devices with it");
        let properties = transport.properties(device)?;
        let wanted: Vec<i32> = members.iter().map(|member| *member as i32).collect();
        ensure!(
            properties.fused == wanted,
            "the device of {members:?} says it is of {:?}",
            properties.fused
        );
        let speed: i32 = members.iter().map(|member| single[*member].speed_mbps).sum();
        ensure!(
            properties.speed_mbps == speed,
            "its speed is {}, not {speed}",
            properties.speed_mbps
        );
        names.push(properties.name);
        connect_locally(&transport, device, device)?.carries(&[8, 100_001])?;
    }
    let again = (0..names.len())
        .map(|device| transport.properties(device).map(|properties| properties.name));
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

/// Asked so often, the same strings have to be given out.
const OFTEN: usize = 2000;

pub(super) const PROPERTY_POINTS: &[Point] = &[
    point!(8, "every-field-written", RANK0_ONLY => every_field;
        "getProperties writes all fields of a structure full of other bytes, and nothing behind it"),
    point!(9, "names", RANK0_ONLY.vars(&[("SOFTRNIC_PORTS", "2")]) => names;
        "two ports of one card have names of their own, which stay where they are"),
    point!(10, "as-the-built-in",
        RANK0_ONLY.faithful() => as_built_in,
        RANK0_ONLY.faithful().vars(&[("SOFTRNIC_PORTS", "2")]) => both_ports_as_built_in;
        "speed, guid, port, pciPath and the rest are what the built-in transport of 2.21.5 says on the same host"),
    point!(11, "pointer-support",
        RANK0_ONLY.faithful().vars(&[("SOFTRNIC_GPU", "none")]) => no_gpu,
        RANK0_ONLY.faithful().vars(&[("SOFTRNIC_GPU", "dmabuf")]) => dmabuf;
        "GPU memory is promised only where the device takes it, and dma-buf where the device does"),
    point!(12, "registration-is-global", RANK0_ONLY => global;
        "regIsGlobal is 1 only if what one communicator has registered works on another of the device"),
];

fn every_field(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    let (_, count) = raw.devices();
    ensure!(count > 0, "there are {count} devices");
    for device in 0..count as usize {
        let [one, two] = FILLS.map(|fill| raw.properties(device, fill));
        ensure!(
            (one.code, two.code) == (0, 0),
            "getProperties of device {device} returns {} and {}",
            one.code,
            two.code
        );
        let has_meaning = |at: &usize| !one.padding.iter().any(|range| range.contains(at));
        let unwritten =
            (0..one.size()).filter(has_meaning).find(|&at| one.bytes[at] != two.bytes[at]);
        if let Some(at) = unwritten {
            return Err(Error::Contract(format!(
                "byte {at} of the properties of device {device} is not written"
            )));
        }
        let size = one.size();
        ensure!(
            one.bytes[size..].iter().all(|byte| *byte == FILLS[0]),
            "bytes behind byte {size} are written"
        );
        sensible(device, &one.common)?;
    }
    Ok(StepResult::passed(format!(
        "every field of each of {count} devices, over two kinds of garbage"
    )))
}

fn sensible(device: usize, properties: &Common) -> Result<()> {
    let Common {
        pointer_support,
        registration_is_global,
        speed,
        max_comms,
        max_receives,
        device_type,
        ..
    } = *properties;
    ensure!(!properties.name.is_null(), "device {device} has no name");
    ensure!(
        pointer_support & abi::NCCL_PTR_HOST as i32 != 0,
        "device {device} takes no host memory: {pointer_support}"
    );
    ensure!(
        [0, 1].contains(&registration_is_global),
        "regIsGlobal of device {device} is {registration_is_global}"
    );
    ensure!(speed > 0 && max_comms > 0, "device {device}: speed {speed}, maxComms {max_comms}");
    ensure!((1..=32).contains(&max_receives), "device {device}: maxRecvs {max_receives}");
    ensure!(device_type == 0, "device {device} is of type {device_type}, not a host's");
    Ok(())
}

/// The name of a device, and where it lies.
fn name_of(raw: Raw, device: usize) -> (usize, String) {
    let properties = raw.properties(device, 0).common;
    if properties.name.is_null() {
        return (0, String::new());
    }
    // SAFETY: by NCCL's contract a C string that lives as long as the process; every_field looks at
    // it first.
    let text = unsafe { CStr::from_ptr(properties.name) }.to_string_lossy().into_owned();
    (properties.name as usize, text)
}

fn names(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    let (_, count) = raw.devices();
    let count = count as usize;
    let least = if ctx.job.rails == 2 { 2 } else { 4 };
    ensure!(count >= least, "{count} devices where there are {least} ports at least");
    let first: Vec<_> = (0..count).map(|device| name_of(raw, device)).collect();
    let mut unique: Vec<_> = first.iter().map(|(_, name)| name).collect();
    unique.sort();
    unique.dedup();
    let all: Vec<_> = first.iter().map(|(_, name)| name.as_str()).collect();
    ensure!(unique.len() == count, "names are not unique: {}", all.join(", "));
    for _ in 0..OFTEN {
        for (device, known) in first.iter().enumerate() {
            let now = name_of(raw, device);
            ensure!(now == *known, "the name of device {device} was {known:?} and is {now:?}");
        }
    }
    Ok(StepResult::passed(format!("{}; the same after {OFTEN} calls", all.join(", "))))
}

fn as_built_in(ctx: &mut Context<'_>) -> Result<StepResult> {
    if matches!(ctx.job.source, Source::Stock { .. }) {
        return Ok(StepResult::skipped("the transport is what others are compared with"));
    }
    let Some(nccl) = &ctx.job.built_in else {
        return Ok(StepResult::skipped("needs NCCL 2.21.5 in the cache (ferrite wheel)"));
    };
    let built_in = Transport::open(&Source::stock(nccl))?;
    let transport = ctx.transport()?;
    let (mine, theirs) = (transport.devices()?, built_in.devices()?);
    ensure!(mine == theirs, "{mine} devices, the built-in transport has {theirs}");
    for device in 0..mine {
        compare(device, &transport.properties(device)?, &built_in.properties(device)?)?;
    }
    let first = transport.properties(0)?;
    let path = first.pci_path.map_or_else(|| "none".into(), |path| path.display().to_string());
    Ok(StepResult::passed(format!(
        "{mine} devices alike: speed {}, port {}, path {path}",
        first.speed_mbps, first.port
    )))
}

/// Of a card's four ports the built-in transport of 2.21.5 fuses two by two; others may fuse them
/// all.
fn both_ports_as_built_in(ctx: &mut Context<'_>) -> Result<StepResult> {
    if ctx.job.rails == 2 {
        // SAFETY: no library is loaded and no thread started yet.
        unsafe { std::env::set_var("NCCL_IB_HCA", "=softrnic0,softrnic2") };
    }
    as_built_in(ctx)
}

fn compare(device: usize, mine: &Properties, theirs: &Properties) -> Result<()> {
    macro_rules! same {
        ($($field:ident),*) => {$(
            let (a, b) = (&mine.$field, &theirs.$field);
            ensure!(a == b, "{} of device {device} is {a:?}, the built-in transport's {b:?}", stringify!($field));
        )*};
    }
    same!(guid, pci_path, port, latency_us, max_comms, max_receives, registration_is_global);
    same!(pointer_support, device_type, device_version);
    let (a, b) = (mine.speed_mbps, theirs.speed_mbps);
    ensure!(
        is_same_speed(a, b, || is_above_400_gbps(theirs)),
        "speed_mbps of device {device} is {a}, the built-in transport's {b}"
    );
    Ok(())
}

/// NCCL 2.21.5 reads 8 bits of a port's speed, in which 400 Gb/s is the highest: it says of a port
/// of 800 Gb/s half of that.
fn is_same_speed(mine: i32, built_in: i32, is_faster: impl FnOnce() -> bool) -> bool {
    mine == built_in || mine / 2 == built_in && mine % 800_000 == 0 && is_faster()
}

/// Whether the device's port is faster than NCCL 2.21.5 can say, as the kernel has it, or as the
/// software device was asked to be.
fn is_above_400_gbps(properties: &Properties) -> bool {
    let device = properties.name.split('+').next().unwrap_or_default();
    let rate = fs::read_to_string(format!(
        "/sys/class/infiniband/{device}/ports/{}/rate",
        properties.port
    ))
    .unwrap_or_default();
    let is_set = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    rate.split(' ')
        .next()
        .and_then(|gbps| gbps.parse::<f64>().ok())
        .is_some_and(|gbps| gbps > 400.0)
        || is_set("SOFTRNIC_SPEED", "800")
        || is_set("SOFTRNIC_DRIVER", "mlx5-cx8")
}

#[test]
fn a_speed_is_twice_the_built_in_transports_only_above_400_gbps() {
    for (mine, built_in, is_faster, expected) in [
        (400_000, 400_000, false, true),
        (800_000, 400_000, true, true),
        (1_600_000, 800_000, true, true),
        (800_000, 400_000, false, false),
        (1_200_000, 400_000, true, false),
        (400_000, 200_000, true, false),
        (0, 400_000, true, false),
    ] {
        assert_eq!(is_same_speed(mine, built_in, || is_faster), expected, "{mine} and {built_in}");
    }
}

/// The bits that all devices promise.
fn promised(ctx: &mut Context<'_>) -> Result<Vec<u32>> {
    let transport = ctx.transport()?;
    (0..transport.devices()?)
        .map(|device| Ok(transport.properties(device)?.pointer_support as u32))
        .collect()
}

fn no_gpu(ctx: &mut Context<'_>) -> Result<StepResult> {
    let promised = promised(ctx)?;
    let gpu = abi::NCCL_PTR_CUDA | abi::NCCL_PTR_DMABUF;
    ensure!(
        promised.iter().all(|bits| bits & gpu == 0),
        "GPU memory is promised where the device takes none: {promised:?}"
    );
    Ok(StepResult::passed("promises no GPU memory on a device that takes none"))
}

fn dmabuf(ctx: &mut Context<'_>) -> Result<StepResult> {
    let promised = promised(ctx)?;
    let right = |bits: &u32| bits & abi::NCCL_PTR_DMABUF != 0 && bits & abi::NCCL_PTR_CUDA == 0;
    ensure!(promised.iter().all(right), "a device that takes dma-bufs only promises {promised:?}");
    Ok(StepResult::passed(
        "dma-buf alone where that alone is possible; only a GPU shows whether peermem works",
    ))
}

fn global(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    if transport.properties(0)?.registration_is_global == 0 {
        return Ok(StepResult::passed("does not claim it"));
    }
    let (one, two) = (connect_locally(&transport, 0, 0)?, connect_locally(&transport, 0, 0)?);
    let (mine, theirs) = (Arc::new(Buffer::new(8192)?), Arc::new(Buffer::new(8192)?));
    // What the receiving end of one has registered is sent from on another, and the other way
    // round.
    let (out, into) = (one.recv.register(&mine)?, one.send.register(&theirs)?);
    two.message(&out, &into, 5000, 1)?;
    one.message(&out, &into, 5000, 2)?;
    Ok(StepResult::passed("registered with one communicator, used on another, in both directions"))
}

const HCA: &str = "NCCL_IB_HCA";
const QPS: &str = "NCCL_IB_QPS_PER_CONNECTION";
const SPLIT: &str = "NCCL_IB_SPLIT_DATA_ON_QPS";
const TIMEOUT: &str = "NCCL_IB_TIMEOUT";
const RETRIES: &str = "NCCL_IB_RETRY_CNT";
/// A transport that recovers connections by itself is not to do so, if it knows this variable.
const NO_FAILOVER: (&str, &str) = ("FERRITE_FAILOVER", "0");
const GID: &str = "NCCL_IB_GID_INDEX";

pub(super) const SETTING_POINTS: &[Point] = &[
    point!(58, "newest-nccl", needs "a GPU: NCCL makes no communicator without one";
        "the same file works in the newest NCCL, also after all communicators were destroyed"),
    point!(59, "same-graph", needs "a GPU: NCCL makes no communicator without one";
        "NCCL chooses the same graph as with its own transport, and all collectives are right"),
    point!(60, "variables",
        RANK0_ONLY.vars(&[(HCA, "=softrnic1")]) => only_one,
        RANK0_ONLY.vars(&[(HCA, "^softrnic0")]) => not_zero,
        RANK0_ONLY.vars(&[(HCA, "softrnic0:1")]) => by_port,
        RANK0_ONLY.vars(&[(QPS, "3")]) => queue_pairs,
        RANK0_ONLY.vars(&[(QPS, "2"), (SPLIT, "1")]) => split,
        RANK0_ONLY.vars(&[(QPS, "2"), (SPLIT, "0")]) => not_split,
        RANK0_ONLY.vars(&[(TIMEOUT, "16"), (RETRIES, "1"), NO_FAILOVER]) => patient,
        RANK0_ONLY.vars(&[(TIMEOUT, "10"), (RETRIES, "0"), NO_FAILOVER]) => hasty,
        RANK0_ONLY.vars(&[(GID, "0")]) => link_local, RANK0_ONLY.vars(&[(GID, "7")]) => no_such_gid,
        RANK0_ONLY.vars(&[(TIMEOUT, "banana")]) => nonsense;
        "NCCL_IB_* variables do what they do for the built-in transport, and invalid values are reported"),
];

/// The names of the devices.
fn device_names(ctx: &mut Context<'_>) -> Result<Vec<String>> {
    let transport = ctx.transport()?;
    (0..transport.devices()?).map(|device| Ok(transport.properties(device)?.name)).collect()
}

fn only_one(ctx: &mut Context<'_>) -> Result<StepResult> {
    let device_names = device_names(ctx)?;
    let right = device_names.len() == 1
        && device_names[0].contains("softrnic1")
        && !device_names[0].contains("softrnic0");
    ensure!(right, "{HCA}==softrnic1 leaves {}", device_names.join(", "));
    Ok(StepResult::nothing())
}

fn not_zero(ctx: &mut Context<'_>) -> Result<StepResult> {
    let device_names = device_names(ctx)?;
    let right =
        !device_names.is_empty() && !device_names.iter().any(|name| name.contains("softrnic0"));
    ensure!(right, "{HCA}=^softrnic0 leaves {}", device_names.join(", "));
    Ok(StepResult::nothing())
}

fn by_port(ctx: &mut Context<'_>) -> Result<StepResult> {
    let device_names = device_names(ctx)?;
    ensure!(
        device_names.len() == 1 && device_names[0].contains("softrnic0"),
        "{HCA}=softrnic0:1 leaves {}",
        device_names.join(", ")
    );
    Ok(StepResult::passed("HCA by name, by exclusion and by port"))
}

fn queue_pairs(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let before = ctx.softrnic()?.objects()?.queue_pairs;
    let conn = connect_locally(&transport, 0, 0)?;
    conn.carries(&[1000; 10])?;
    let more = ctx.softrnic()?.objects()?.queue_pairs - before;
    let wanted = 6 * ctx.job.rails as u64;
    ensure!(
        more == wanted,
        "{QPS}=3: a connection has {more} queue pairs at its two ends, not {wanted}"
    );
    Ok(StepResult::passed("3 queue pairs a connection"))
}

/// How many queue pairs of both ends had to do with one message of 1 MiB.
fn busy(ctx: &mut Context<'_>) -> Result<usize> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    conn.carries(&[1 << 20])?;
    Ok(ctx.softrnic()?.messages()?.into_iter().filter(|messages| *messages > 0).count())
}

fn split(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (busy, least) = (busy(ctx)?, 2 * ctx.job.rails + 1);
    ensure!(
        busy >= least,
        "{SPLIT}=1 with 2 queue pairs: {busy} of them took part in a message of 1 MiB, not {least}"
    );
    Ok(StepResult::nothing())
}

fn not_split(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (busy, most) = (busy(ctx)?, ctx.job.rails + 1);
    ensure!(
        busy <= most,
        "{SPLIT}=0 with 2 queue pairs: {busy} of them took part in a message of 1 MiB, not {most}"
    );
    Ok(StepResult::passed("messages cut over them or not"))
}

/// How long it takes until a send fails whose packets vanish.
fn until_lost(ctx: &mut Context<'_>) -> Result<Duration> {
    let transport = ctx.transport()?;
    let LocalConn { send, recv } = connect_locally(&transport, 0, transport.devices()? - 1)?;
    let memory = Arc::new(Buffer::new(8192)?);
    let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
    let mut deadline = Deadline::new("a message", SOON);
    let _receive = posted(&mut deadline, || recv.receive(&into, 4096, 64, TAG))?;
    ctx.softrnic()?.inject(&rule(ctx, "drop attempts=all"))?;
    let mut sending = posted(&mut deadline, || send.send(&out, 0, 64, TAG))?;
    let start = Instant::now();
    let failed = within(SOON, || match sending.test(&mut [0]) {
        Ok(true) => {
            Err(Error::Contract("a message is sent although all of its packets vanish".into()))
        }
        Ok(false) => Ok(None),
        Err(_) => Ok(Some(start.elapsed())),
    })?;
    failed.ok_or_else(|| Error::Contract("no error although all packets vanish".into()))
}

/// 4.096 us · 2^16, twice: more than half a second.
fn patient(ctx: &mut Context<'_>) -> Result<StepResult> {
    let took = until_lost(ctx)?;
    let right = (Duration::from_millis(450)..Duration::from_secs(4)).contains(&took);
    ensure!(right, "{TIMEOUT}=16 {RETRIES}=1: an error after {took:?}, not after 0.54 s");
    Ok(StepResult::nothing())
}

/// 4 ms, once.
fn hasty(ctx: &mut Context<'_>) -> Result<StepResult> {
    let took = until_lost(ctx)?;
    ensure!(
        took < Duration::from_millis(400),
        "{TIMEOUT}=10 {RETRIES}=0: an error after {took:?}, not after 4 ms"
    );
    Ok(StepResult::passed("timeout and retries as set"))
}

fn link_local(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    connect_locally(&transport, 0, transport.devices()? - 1)?.carries(&[1000])?;
    Ok(StepResult::nothing())
}

fn no_such_gid(ctx: &mut Context<'_>) -> Result<StepResult> {
    if ctx.job.infiniband {
        // Addressed by LID: the entry is of no use.
        return Ok(StepResult::nothing());
    }
    let outcome = ctx.transport().and_then(|transport| {
        ensure!(transport.devices()? > 0, "no device with this GID");
        connect_locally(&transport, 0, 0)?.carries(&[1000])
    });
    ensure!(outcome.is_err(), "{GID}=7, which is empty, and connections work: another one is used");
    Ok(StepResult::passed("the GID index as set"))
}

fn nonsense(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = Transport::without_init(Library::open(&ctx.job.source)?);
    let outcome = transport.init();
    if outcome.is_ok() {
        // Some read it only now.
        connect_locally(&transport, 0, 0)?;
    }
    let then = if outcome.is_err() { "init refuses" } else { "the default is taken" };
    let otherwise = "a value that is no number is not told";
    Ok(StepResult::passed(format!("invalid values are reported, {then}"))
        .logging(&[TIMEOUT, "banana"], otherwise))
}
