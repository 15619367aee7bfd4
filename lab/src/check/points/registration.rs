//! Points 27 to 34: memory.

use std::sync::Arc;

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::connect_locally;
use crate::check::outcome::StepResult;
use crate::check::point::{Point, RANK0_ONLY, Step, Trial};
use crate::check::raw::Opaque;
use crate::check::softrnic::Softrnic;
use crate::check::wait::{SETTLED, SOON, code, done, within};
use crate::error::{Error, Result};
use crate::transport::buffer::Buffer;
use crate::transport::comm::SendComm;

/// Registrations of each of two threads.
const CONCURRENT: usize = 2000;

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 27,
        name: "odd-ranges",
        claim: "memory of any address and size is registered: unaligned, one byte, more than 4 GiB; none at all does no harm",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: odd_ranges }]),
    },
    Point {
        number: 28,
        name: "overlapping-ranges",
        claim: "a range may be registered often, within others and over their edges, and given back in any order",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: overlapping }]),
    },
    Point {
        number: 29,
        name: "replaced-memory",
        claim: "other memory at the same address, registered after the old was given back, is what is sent",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: replaced }]),
    },
    Point {
        number: 30,
        name: "dma-buf",
        claim: "a dma-buf may be closed after its registration, at any offset, and is addressed as the memory is",
        trial: Trial::Needs("a GPU: the software device takes a dma-buf of a GPU's memory only"),
    },
    Point {
        number: 31,
        name: "dma-buf-refused",
        claim: "a dma-buf that cannot be registered is an error, after which memory is registered as before",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: refused }]),
    },
    Point {
        number: 32,
        name: "deregister-nothing",
        claim: "deregMr of NULL, and after a registration that failed, does no harm",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: nothing }]),
    },
    Point {
        number: 33,
        name: "concurrent-registration",
        claim: "two threads register and deregister with two communicators of one device at the same time",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: concurrent }]),
    },
    Point {
        number: 34,
        name: "memlock",
        claim: "when memory cannot be locked, the log names the limit (ulimit -l) and what it is",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: memlock }]),
    },
];

/// Memory regions of the device, once the transport has given back what it gives back late.
fn regions_are(softrnic: &Softrnic, count: u64) -> Result<()> {
    let mut now = 0;
    let same = within(SETTLED, || {
        now = softrnic.objects()?.memory_regions;
        Ok((now == count).then_some(()))
    })?;
    ensure!(same.is_some(), "{now} memory regions on the device, not {count} as before");
    Ok(())
}

/// Address space without memory behind it, until it is touched.
struct Space {
    start: usize,
    len: usize,
}

impl Space {
    /// `at`: replaces what is there; 0: anywhere.
    fn new(at: usize, len: usize) -> Result<Self> {
        let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        // SAFETY: an anonymous mapping: at an address of the kernel's choice, or in the place of one of the caller's own.
        let start =
            unsafe { libc::mmap(at as *mut libc::c_void, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os(format!("cannot map {len} bytes")));
        }
        Ok(Self { start: start as usize, len })
    }

    fn fill(&self, offset: usize, len: usize, value: u8) {
        // SAFETY: inside the mapping; no other code uses it.
        unsafe { ((self.start + offset) as *mut u8).write_bytes(value, len) };
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}

/// Sends bytes of memory that was registered by hand, and checks them.
fn send_raw(ctx: &mut Context<'_>, send: &SendComm, at: usize, memory: Opaque, value: u8) -> Result<()> {
    let raw = ctx.raw()?;
    let (code, request) = within(SOON, || {
        let (code, request) = raw.isend(send, at, 1, 1, memory);
        Ok((code != 0 || request != 0).then_some((code, request)))
    })?
    .unwrap_or((0, 0));
    ensure!(code == 0 && request != 0, "isend returns {code} for the byte {value:#x}");
    let finished = within(SOON, || {
        let (code, done) = raw.test(request, Some(&mut [0]));
        Ok((code != 0 || done).then_some(code))
    })?;
    ensure!(finished == Some(0), "the send of one byte ends with {finished:?}");
    Ok(())
}

fn odd_ranges(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let whole = ctx.can_pin(5 << 30);
    let space = Space::new(0, (4 << 30) + (1 << 20))?;
    let landing = Arc::new(Buffer::new(4096)?);
    let into = conn.recv.register(&landing)?;
    // From where, how much, and which byte is sent.
    let ranges =
        [(0, 4096, 0), (1, 1, 1), (4095, 2, 4096), (13, 100_001, 100_013), (7, (4 << 30) + 77, (4 << 30) + 50)];
    for (i, (offset, size, byte)) in
        ranges.into_iter().enumerate().filter(|(_, (_, size, _))| whole || *size <= 1 << 20)
    {
        let value = 0x31 + i as u8;
        space.fill(byte, 1, value);
        let (code, memory) = raw.register(&conn.send, space.start + offset, size);
        ensure!(code == 0 && memory != 0, "{size} bytes at an address that ends in {offset}: regMr returns {code}");
        let receive = conn.recv.receive(&into, 0, 1, 1)?.ok_or_else(|| Error::Contract("no receive".into()))?;
        send_raw(ctx, &conn.send, space.start + byte, memory, value)?;
        done(receive, &mut [0])?;
        ensure!(landing.read(0, 1)? == [value], "of {size} bytes at {offset}, byte {byte} arrives wrong");
        ensure!(raw.deregister(&conn.send, memory) == 0, "deregMr fails");
    }
    let (code, memory) = raw.register(&conn.send, space.start, 0);
    if memory != 0 {
        ensure!(raw.deregister(&conn.send, memory) == 0, "deregMr of nothing fails");
    }
    conn.carries(&[100])?;
    Ok(StepResult::passed(format!(
        "{}; a size of 0 is {}",
        if whole { "5 ranges up to 4 GiB + 77 bytes" } else { "4 small ranges; 5 GiB are not free" },
        if code == 0 { "taken" } else { "refused" }
    )))
}

fn overlapping(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let before = softrnic.objects()?.memory_regions;
    let memory = Buffer::new(1 << 20)?;
    let start = memory.address(0, 1 << 20)? as usize;
    let mut ranges = vec![(0, 65536); 8];
    ranges.extend([(4096, 4096), (100, 50), (60000, 100_000), (65536, 65536), (0, 1 << 20), (8192, 4096)]);
    // Again and again, each time given back in another order.
    for step in [1, 3, 5, 9, 11, 13] {
        let mut handles = Vec::new();
        for (offset, size) in &ranges {
            let (code, handle) = raw.register(&conn.send, start + offset, *size);
            ensure!(code == 0 && handle != 0, "regMr of {size} bytes at {offset} returns {code}");
            handles.push(handle);
        }
        for i in 0..handles.len() {
            // 14 ranges, and steps that have no factor in common with 14.
            let code = raw.deregister(&conn.send, handles[i * step % ranges.len()]);
            ensure!(code == 0, "deregMr returns {code}");
        }
        regions_are(&softrnic, before)?;
    }
    Ok(StepResult::passed(format!("14 ranges, 6 orders; {before} memory regions before and after")))
}

fn replaced(ctx: &mut Context<'_>) -> Result<StepResult> {
    const LEN: usize = 1 << 16;
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let landing = Arc::new(Buffer::new(4096)?);
    let into = conn.recv.register(&landing)?;
    let before = softrnic.objects()?.memory_regions;
    let mut space = Space::new(0, LEN)?;
    for round in 0..20_u8 {
        space.fill(0, LEN, round + 1);
        let (code, memory) = raw.register(&conn.send, space.start, LEN);
        ensure!(code == 0, "regMr returns {code}");
        let receive = conn.recv.receive(&into, 0, 1, 1)?.ok_or_else(|| Error::Contract("no receive".into()))?;
        send_raw(ctx, &conn.send, space.start + 5000, memory, round + 1)?;
        done(receive, &mut [0])?;
        let got = landing.read(0, 1)?;
        ensure!(got == [round + 1], "memory number {} at this address is sent, not number {}", got[0], round + 1);
        ensure!(raw.deregister(&conn.send, memory) == 0, "deregMr fails");
        // A region that outlives this would be of the old pages.
        regions_are(&softrnic, before)?;
        let start = space.start;
        std::mem::forget(space);
        space = Space::new(start, LEN)?;
    }
    Ok(StepResult::passed("20 times other memory at the same address"))
}

fn refused(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Buffer::new(1 << 16)?;
    let start = memory.address(0, 1)? as usize;
    for fd in [1 << 20, 0] {
        let (code, handle) = raw.register_dmabuf(&conn.send, start, 1 << 16, fd);
        ensure!(code != 0, "file {fd} is no dma-buf, and regMrDmaBuf succeeds");
        ensure!(handle == 0, "regMrDmaBuf fails with {code} and leaves a handle");
    }
    conn.carries(&[1000])?;
    Ok(StepResult::passed("two files that are none are refused; memory is registered and sent as before"))
}

fn nothing(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let told = raw.deregister(&conn.send, 0);
    softrnic.inject("reg-mr=ENOMEM")?;
    let memory = Buffer::new(1 << 16)?;
    let (failed, handle) = raw.register(&conn.send, memory.address(0, 1)? as usize, 1 << 16);
    ensure!(failed != 0 && handle == 0, "a registration that the device refuses: code {failed}, handle {handle:#x}");
    raw.deregister(&conn.send, handle);
    softrnic.run(&["inject", "--clear"])?;
    conn.carries(&[1000])?;
    Ok(StepResult::passed(format!("deregMr(NULL) returns {told}; a failed registration {failed}, with NULL")))
}

fn concurrent(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conns = [connect_locally(&transport, 0, 0)?, connect_locally(&transport, 0, 0)?];
    let before = softrnic.objects()?.memory_regions;
    let memory = Buffer::new(1 << 20)?;
    let start = memory.address(0, 1 << 20)? as usize;
    let failures: Vec<u32> = std::thread::scope(|scope| {
        let work = |conn: usize| {
            let send = &conns[conn].send;
            // Ranges of both overlap, and each has two at a time.
            let register = |i: usize| raw.register(send, start + (i % 7) * 4096 + conn * 100, 4096 + (i % 13) * 4096);
            (0..CONCURRENT).fold(0, |failures, i| {
                let (one, two) = (register(i), register(i + 1));
                let codes = [one.0, two.0, raw.deregister(send, one.1), raw.deregister(send, two.1)];
                failures + codes.into_iter().filter(|code| *code != 0).count() as u32
            })
        };
        let threads = [0, 1].map(|conn| scope.spawn(move || work(conn)));
        threads.into_iter().map(|thread| thread.join().unwrap_or(u32::MAX)).collect()
    });
    ensure!(failures == [0, 0], "calls that failed: {failures:?}");
    regions_are(&softrnic, before)?;
    conns.iter().try_for_each(|conn| conn.carries(&[1000]))?;
    Ok(StepResult::passed(format!(
        "{CONCURRENT} times two registrations by each of two threads; {before} regions as before"
    )))
}

fn memlock(ctx: &mut Context<'_>) -> Result<StepResult> {
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: the structure is readable; the limit is this process's own.
    let code_of_limit = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    ensure!(code_of_limit == 0, "this process cannot lower its limit of locked memory");
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    ctx.softrnic()?.inject("reg-mr=ENOMEM")?;
    let memory = Arc::new(Buffer::new(1 << 20)?);
    let outcome = conn.send.register(&memory);
    ensure!(outcome.is_err(), "the device refuses, and regMr succeeds");
    let otherwise = "the message does not name the limit that is usually the cause";
    Ok(StepResult::passed(format!("ENOMEM with a limit of 64 KiB: code {}, the log names the limit", code(&outcome)))
        .logging(&["memlock|locked memory|ulimit -l"], otherwise))
}
