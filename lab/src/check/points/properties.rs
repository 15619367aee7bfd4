//! Points 8 to 12: what a transport says of its devices.

use std::ffi::CStr;
use std::fs;
use std::sync::Arc;

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::connect_locally;
use crate::check::outcome::StepResult;
use crate::check::point::{Env, Host, Point, RANK0_ONLY, Step, Trial};
use crate::check::raw::{FILLS, Raw};
use crate::error::{Error, Result};
use crate::nccl::abi::{self, later::Common};
use crate::nccl::library::Source;
use crate::transport::buffer::Buffer;
use crate::transport::instance::{Properties, Transport};

/// Asked so often, the same strings have to be given out.
const OFTEN: usize = 2000;

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 8,
        name: "every-field-written",
        claim: "getProperties writes all fields of a structure full of other bytes, and nothing behind it",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: every_field }]),
    },
    Point {
        number: 9,
        name: "names",
        claim: "two ports of one card have names of their own, which stay where they are",
        trial: Trial::Steps(&[Step { env: Env { vars: &[("SOFTRNIC_PORTS", "2")], ..RANK0_ONLY }, run: names }]),
    },
    Point {
        number: 10,
        name: "as-the-built-in",
        claim: "speed, guid, port, pciPath and the rest are what the built-in transport of 2.21.5 says on the same host",
        trial: Trial::Steps(&[
            Step { env: Env { host: Host::Faithful, ..RANK0_ONLY }, run: as_built_in },
            Step {
                env: Env { host: Host::Faithful, vars: &[("SOFTRNIC_PORTS", "2")], ..RANK0_ONLY },
                run: both_ports_as_built_in,
            },
        ]),
    },
    Point {
        number: 11,
        name: "pointer-support",
        claim: "GPU memory is promised only where the device takes it, and dma-buf where the device does",
        trial: Trial::Steps(&[
            Step { env: Env { host: Host::Faithful, vars: &[("SOFTRNIC_GPU", "none")], ..RANK0_ONLY }, run: no_gpu },
            Step { env: Env { host: Host::Faithful, vars: &[("SOFTRNIC_GPU", "dmabuf")], ..RANK0_ONLY }, run: dmabuf },
        ]),
    },
    Point {
        number: 12,
        name: "registration-is-global",
        claim: "regIsGlobal is 1 only if what one communicator has registered works on another of the device",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: global }]),
    },
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
        let unwritten = (0..one.size()).filter(has_meaning).find(|&at| one.bytes[at] != two.bytes[at]);
        if let Some(at) = unwritten {
            return Err(Error::Contract(format!("byte {at} of the properties of device {device} is not written")));
        }
        let size = one.size();
        ensure!(one.bytes[size..].iter().all(|byte| *byte == FILLS[0]), "bytes behind byte {size} are written");
        sensible(device, &one.common)?;
    }
    Ok(StepResult::passed(format!("every field of each of {count} devices, over two kinds of garbage")))
}

fn sensible(device: usize, properties: &Common) -> Result<()> {
    let Common { pointer_support, registration_is_global, speed, max_comms, max_receives, device_type, .. } =
        *properties;
    ensure!(!properties.name.is_null(), "device {device} has no name");
    ensure!(
        pointer_support & abi::NCCL_PTR_HOST as i32 != 0,
        "device {device} takes no host memory: {pointer_support}"
    );
    ensure!([0, 1].contains(&registration_is_global), "regIsGlobal of device {device} is {registration_is_global}");
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
    // SAFETY: by NCCL's contract a C string that lives as long as the process; every_field looks at it first.
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

/// Of a card's four ports the built-in transport of 2.21.5 fuses two by two; others may fuse them all.
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

/// NCCL 2.21.5 reads 8 bits of a port's speed, in which 400 Gb/s is the highest: it says of a port of 800 Gb/s half of that.
fn is_same_speed(mine: i32, built_in: i32, is_faster: impl FnOnce() -> bool) -> bool {
    mine == built_in || mine / 2 == built_in && mine % 800_000 == 0 && is_faster()
}

/// Whether the device's port is faster than NCCL 2.21.5 can say, as the kernel has it, or as the software device was asked to be.
fn is_above_400_gbps(properties: &Properties) -> bool {
    let device = properties.name.split(['+', ':']).next().unwrap_or_default();
    let rate = fs::read_to_string(format!("/sys/class/infiniband/{device}/ports/{}/rate", properties.port))
        .unwrap_or_default();
    let is_set = |name: &str, value: &str| std::env::var(name).is_ok_and(|set| set == value);
    rate.split(' ').next().and_then(|gbps| gbps.parse::<f64>().ok()).is_some_and(|gbps| gbps > 400.0)
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
    (0..transport.devices()?).map(|device| Ok(transport.properties(device)?.pointer_support as u32)).collect()
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
    Ok(StepResult::passed("dma-buf alone where that alone is possible; whether peermem works is told by a GPU only"))
}

fn global(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    if transport.properties(0)?.registration_is_global == 0 {
        return Ok(StepResult::passed("does not claim it"));
    }
    let (one, two) = (connect_locally(&transport, 0, 0)?, connect_locally(&transport, 0, 0)?);
    let (mine, theirs) = (Arc::new(Buffer::new(8192)?), Arc::new(Buffer::new(8192)?));
    // What the receiving end of one has registered is sent from on another, and the other way round.
    let (out, into) = (one.recv.register(&mine)?, one.send.register(&theirs)?);
    two.message(&out, &into, 5000, 1)?;
    one.message(&out, &into, 5000, 2)?;
    Ok(StepResult::passed("registered with one communicator, used on another, in both directions"))
}
