//! What a helper does: imports GPU memory of the process that it was started by, and copies between it and the stage.

use std::collections::{BTreeMap, VecDeque};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::copy::gpu::card::{self, Flight};
use crate::copy::gpu::cuda::{Code, Cuda, LIBRARY};
use crate::copy::gpu::order::{Answer, FORMAT, Order, Received, kind, receive, send};
use crate::copy::gpu::sharing::{Imported, IpcHandle, Sharing, Token};
use crate::copy::piece::Direction;
use crate::host::stderr;
use crate::shm::record_lock::{helper_lock, set_lock};

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID: Code = 1;

/// How soon to look again at copies that are under way. Those who wait for them may need this processor.
const PAUSE: Duration = Duration::from_micros(20);

/// Where a helper finds the stage that it copies to and from.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// The fabric's file.
    pub file: &'a Path,
    /// Its first byte in the file.
    pub at: u64,
    /// Its length, in bytes.
    pub bytes: usize,
    /// The process slot of the one that it copies for. What that has in the stage is no one else's before the helper has ended, too.
    pub owner: usize,
}

#[derive(Debug)]
struct Server {
    socket: OwnedFd,
    cuda: &'static Cuda,
    sharing: &'static Sharing,
    stage: (*mut u8, usize),
    /// By the address of the allocation in the other process.
    ranges: BTreeMap<u64, Range>,
    copies: VecDeque<Active>,
}

#[derive(Debug)]
struct Range {
    ordinal: u32,
    id: u64,
    imported: Imported,
}

#[derive(Debug)]
struct Active {
    number: u64,
    /// Those that may not be over.
    parts: Vec<Flight<'static>>,
    failed: Option<Code>,
}

/// Does what the process at the other end of `socket` asks for, until that ends. `format` is what it speaks.
///
/// # Errors
/// A sentence: the formats differ, or the file or the driver cannot be used.
pub fn serve(socket: OwnedFd, stage: Stage<'_>, format: u32) -> Result<(), String> {
    if format != FORMAT {
        return Err(format!(
            "gpu-helper: this program speaks format {FORMAT}, the library format {format}: take both from one build"
        ));
    }
    let stage = map(stage)?;
    // SAFETY: a C string; what the library does when it is loaded is the driver's affair.
    if unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) }.is_null() {
        return Err("gpu-helper: there is no libcuda.so.1".into());
    }
    let too_old = "gpu-helper: the CUDA driver is too old";
    let (cuda, sharing) = (Cuda::in_use().ok_or(too_old)?, Sharing::of_driver().ok_or(too_old)?);
    sharing.start().map_err(|code| format!("gpu-helper: cuInit: {}", cuda.name(code)))?;
    Server { socket, cuda, sharing, stage, ranges: BTreeMap::new(), copies: VecDeque::new() }.run();
    Ok(())
}

fn map(stage: Stage<'_>) -> Result<(*mut u8, usize), String> {
    let told = |e: std::io::Error| format!("gpu-helper: {}: {e}", stage.file.display());
    let file = OpenOptions::new().read(true).write(true).open(stage.file).map_err(told)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, which is never unmapped.
    let at = unsafe {
        libc::mmap(ptr::null_mut(), stage.bytes, access, libc::MAP_SHARED, file.as_raw_fd(), stage.at as libc::off_t)
    };
    if at == libc::MAP_FAILED {
        return Err(told(std::io::Error::last_os_error()));
    }
    // Until the helper of the one that had this slot before has ended.
    while !set_lock(file.as_raw_fd(), helper_lock(stage.owner), libc::F_WRLCK, libc::F_OFD_SETLKW) {}
    // The lock goes with the descriptor, which stays open for good.
    let _ = file.into_raw_fd();
    Ok((at.cast(), stage.bytes))
}

impl Server {
    fn run(&mut self) {
        loop {
            let waits = self.copies.is_empty();
            let has_come = match receive::<Order>(self.socket.as_fd(), waits) {
                Received::Packet(order, fd) => {
                    self.handle(&order, fd);
                    true
                }
                Received::Nothing => false,
                Received::Ended => return,
            };
            if !self.end_copies() && !has_come {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn handle(&mut self, order: &Order, fd: Option<OwnedFd>) {
        let done = match order.kind {
            kind::IMPORT => self.import(order, &Token::Ipc(IpcHandle(order.handle))),
            kind::IMPORT_DESCRIPTOR => fd.ok_or(INVALID).and_then(|fd| self.import(order, &Token::Descriptor(fd))),
            kind::GIVE_BACK => {
                self.give_back(|base, range| base == order.addr && range.id == order.id);
                Ok(())
            }
            kind::COPY_OUT | kind::COPY_IN => return self.begin(order),
            _ => Err(INVALID),
        };
        self.answer(order.number, done);
    }

    fn import(&mut self, order: &Order, token: &Token) -> Result<(), Code> {
        // SAFETY: mapped for good, and the other process has given it storage.
        let card = unsafe { card::make_ready(self.stage, self.cuda, order.ordinal as usize) };
        let card = card.map_err(|what| {
            stderr::say(format_args!("gpu-helper: {what}"));
            INVALID
        })?;
        // What was there before is no more.
        let end = order.addr.saturating_add(order.bytes);
        self.give_back(|base, range| base < end && order.addr < base + range.imported.bytes);
        let _entered = card.enter()?;
        let imported = self.sharing.import(token, order.bytes, order.ordinal)?;
        self.ranges.insert(order.addr, Range { ordinal: order.ordinal, id: order.id, imported });
        Ok(())
    }

    /// Gives those allocations back, once no copy is under way.
    fn give_back(&mut self, is_meant: impl Fn(u64, &Range) -> bool) {
        let bases: Vec<_> =
            self.ranges.iter().filter(|(base, range)| is_meant(**base, range)).map(|(base, _)| *base).collect();
        while !bases.is_empty() && !self.copies.is_empty() {
            if !self.end_copies() {
                std::thread::sleep(PAUSE);
            }
        }
        for Range { ordinal, imported, .. } in
            bases.iter().filter_map(|base| self.ranges.remove(base)).collect::<Vec<_>>()
        {
            if let Some(Ok(_entered)) = card::get(ordinal as usize).map(card::Card::enter) {
                self.sharing.give_back(&imported);
            }
        }
    }

    /// Begins a copy, in as many parts as it touches allocations. One that fails is answered when the others are over.
    fn begin(&mut self, order: &Order) {
        let (mut parts, mut done, mut failed) = (Vec::new(), 0, None);
        let room = (self.stage.1 as u64).saturating_sub(order.stage_at);
        if order.bytes > room {
            failed = Some(INVALID);
        }
        while done < order.bytes && failed.is_none() {
            match self.begin_part(order, done) {
                Ok((flight, len)) => {
                    parts.push(flight);
                    done += len;
                }
                Err(code) => failed = Some(code),
            }
        }
        self.copies.push_back(Active { number: order.number, parts, failed });
    }

    /// Begins to copy from byte `done` of the copy on, which the stage has room for, to the end of an allocation at most; how many bytes
    /// that are.
    fn begin_part(&self, order: &Order, done: u64) -> Result<(Flight<'static>, u64), Code> {
        let direction = if order.kind == kind::COPY_OUT { Direction::Out } else { Direction::In };
        let addr = order.addr + done;
        let (base, range) = self.ranges.range(..=addr).next_back().ok_or(INVALID)?;
        let left = range.imported.bytes.checked_sub(addr - base).filter(|left| *left > 0).ok_or(INVALID)?;
        let len = left.min(order.bytes - done);
        let theirs = (range.imported.at + (addr - base), len as usize);
        let card = card::get(range.ordinal as usize).ok_or(INVALID)?;
        // SAFETY: inside the stage (checked), and memory that is imported; it is given back when no copy is under way.
        let flight = unsafe { card.begin(theirs, direction, self.stage.0.add((order.stage_at + done) as usize)) }?;
        Ok((flight, len))
    }

    /// Answers for the copies that are over. Whether there are some.
    fn end_copies(&mut self) -> bool {
        let before = self.copies.len();
        let mut index = 0;
        while index < self.copies.len() {
            if !self.copies[index].is_over() {
                index += 1;
            } else if let Some(active) = self.copies.remove(index) {
                self.answer(active.number, active.failed.map_or(Ok(()), Err));
            }
        }
        self.copies.len() < before
    }

    fn answer(&self, number: u64, done: Result<(), Code>) {
        let code = done.err().unwrap_or(0);
        if code != 0 {
            stderr::say(format_args!("gpu-helper: {}", self.cuda.name(code)));
        }
        // One that has ended is noticed by the next receive.
        let _ = send(self.socket.as_fd(), &Answer { number, code: code.into() }, None, true);
    }
}

impl Active {
    /// Whether all its parts are over.
    fn is_over(&mut self) -> bool {
        while let Some(last) = self.parts.last() {
            match last.is_over() {
                Ok(false) => return false,
                Ok(true) => {}
                Err(code) => self.failed = Some(code),
            }
            self.parts.pop();
        }
        true
    }
}
