//! Points 1 to 7: the library, and what happens before there is a connection.

use std::mem::{offset_of, size_of};

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::outcome::StepResult;
use crate::check::point::{BOTH_RANKS, Env, Host, Point, RANK0_ONLY, Step, Trial};
use crate::check::raw::Raw;
use crate::check::wait::{code, open_files_and_threads};
use crate::error::{Error, Result};
use crate::nccl::abi::later::{Net, NetV9};
use crate::nccl::abi::{ncclNet_v8_t, ncclNetProperties_v8_t};
use crate::nccl::elf;
use crate::nccl::library::{Library, Source};
use crate::nccl::shared_object::SharedObject;
use crate::transport::instance::Transport;

/// Conversions of printf, some of which write to memory.
const PER_CENTS: &str = "%s%n%d%99999999d%p%*c";

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 1,
        name: "abi-layout",
        claim: "the vtable is a data object of its version's size, whose functions lie in the library",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: layout }]),
    },
    Point {
        number: 2,
        name: "loads-without-libibverbs",
        claim: "where libibverbs cannot be loaded, the library loads with all symbols bound and reports no device",
        trial: Trial::Steps(&[Step { env: Env { host: Host::WithoutVerbs, ..RANK0_ONLY }, run: no_verbs }]),
    },
    Point {
        number: 3,
        name: "name",
        claim: "the name is nobody else's, NCCL's loader finds it, and init alone takes nothing of the device",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: name }]),
    },
    Point {
        number: 4,
        name: "load-and-unload",
        claim: "loading and unloading it twice leaves no thread or file, and the process ends well",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: reload }, Step { env: RANK0_ONLY, run: reload_in_use }]),
    },
    Point {
        number: 5,
        name: "init-again",
        claim: "init may be called again, also by another thread, and finds the same devices",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: init_again }]),
    },
    Point {
        number: 6,
        name: "no-devices",
        claim: "without an active port there are no devices, which is no error",
        trial: Trial::Steps(&[
            Step { env: BOTH_RANKS, run: ports_down },
            Step { env: Env { vars: &[("NCCL_IB_HCA", "=nothing9")], ..RANK0_ONLY }, run: none },
            Step { env: Env { vars: &[("NCCL_IB_DISABLE", "1")], ..RANK0_ONLY }, run: disabled },
        ]),
    },
    Point {
        number: 7,
        name: "log-lines",
        claim: "per cents and lines of more than 1024 bytes get into the log as they are",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: log_lines }]),
    },
];

/// What the header says of the layout, as this program was compiled.
const _: () = {
    assert!(size_of::<ncclNet_v8_t>() == 152 && size_of::<ncclNetProperties_v8_t>() == 64);
    assert!(offset_of!(ncclNet_v8_t, regMrDmaBuf) == 64 && offset_of!(ncclNet_v8_t, irecvConsumed) == 144);
    assert!(offset_of!(ncclNetProperties_v8_t, guid) == 16 && offset_of!(ncclNetProperties_v8_t, latency) == 40);
};

fn layout(ctx: &mut Context<'_>) -> Result<StepResult> {
    let library = Library::open(&ctx.job.source)?;
    let identity = library.identity();
    let symbol = match ctx.job.source {
        // What NCCL's loader of 2.21.5 names otherwise.
        Source::Loader { .. } if identity.interface == 8 => "ncclNetPlugin_v8",
        _ => identity.symbol.as_str(),
    };
    let size = elf::data_size(&identity.file, symbol)?;
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
        return Ok(StepResult::passed(format!("loads; init returns {code}, so NCCL takes another network")));
    }
    let (code, count) = raw.devices();
    ensure!(code != 0 || count == 0, "init succeeded without libibverbs, and there are {count} devices");
    Ok(StepResult::passed(format!("loads; init succeeds, devices returns {code} and {count} devices")))
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
    // SAFETY: NCCL's loader reads it in this call; no other thread of this process touches the environment now.
    unsafe { std::env::set_var("NCCL_NET_PLUGIN", &plugin) };
    let found = Library::open(&Source::Loader { nccl: nccl.clone(), plugin })?;
    ensure!(found.identity().name == name, "NCCL's loader found {:?}", found.identity().name);
    Ok(StepResult::passed(format!("{words}; NCCL 2.21.5's loader takes it")))
}

fn reload(ctx: &mut Context<'_>) -> Result<StepResult> {
    let file = ctx.job.source.file().to_path_buf();
    // The loader's own caches are made at the first time.
    let before = open_files_and_threads();
    let mut after = before;
    for _ in 0..2 {
        SharedObject::open(&file)?.close();
        after = open_files_and_threads();
    }
    ensure!(after == before, "{before:?} files and threads before, {after:?} after being unloaded twice");
    Ok(StepResult::passed(format!("{} files and {} threads before and after", after.0, after.1)))
}

/// As a tuner's probe does while the transport runs: its own reference is given back, the code has to stay.
fn reload_in_use(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let count = transport.devices()?;
    let file = ctx.job.source.file().to_path_buf();
    let before = open_files_and_threads();
    for _ in 0..2 {
        SharedObject::open(&file)?.close();
    }
    ensure!(
        open_files_and_threads() == before,
        "{before:?} files and threads before, {:?} after",
        open_files_and_threads()
    );
    ensure!(transport.devices()? == count, "the devices are others than before");
    let file = ctx.job.source.file();
    if !matches!(ctx.job.source, Source::Plugin { .. }) {
        return Ok(StepResult::nothing());
    }
    let lasting = elf::is_nodelete(file)?;
    let threads = before.1 > 1;
    ensure!(lasting || !threads, "it has threads and could be unmapped (not linked with -z nodelete)");
    Ok(StepResult::passed(if lasting { "cannot be unmapped" } else { "has no threads" }))
}

fn init_again(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    let first = raw.devices();
    let threads = open_files_and_threads().1;
    ensure!(raw.init() == 0 && raw.devices() == first, "a second init changes the devices or fails");
    let other = std::thread::spawn(move || (raw.init(), raw.devices()));
    let (code, devices) = other.join().map_err(|_| Error::Contract("init panicked in another thread".into()))?;
    ensure!((code, devices) == (0, first), "init in another thread: code {code}, devices {devices:?}, not {first:?}");
    // A thread may take a moment to vanish.
    std::thread::sleep(std::time::Duration::from_millis(5));
    let more = open_files_and_threads().1;
    ensure!(more <= threads, "{threads} threads after the first init, {more} after the third");
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
    let words = format!("a setting of {} bytes with %s and %n is told as it is (init: {})", value.len(), code(&result));
    let otherwise = "the value of NCCL_SOCKET_FAMILY is not told, or not as it is";
    Ok(StepResult::passed(words).logging(&["NCCL_SOCKET_FAMILY", PER_CENTS, "xxxx"], otherwise))
}
