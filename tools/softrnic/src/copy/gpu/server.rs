//! What a helper does: imports GPU memory of the process that it was started by, and copies between it and the stage.

use std::collections::{BTreeMap, VecDeque};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::copy::gpu::card::{self, Flight};
use crate::copy::gpu::cuda::{Code, Cuda, LIBRARY};
use crate::copy::gpu::order::{Answer, FORMAT, Order, Received, kind, receive, send};
use crate::copy::gpu::sharing::{Imported, IpcHandle, Sharing, Token};
use crate::copy::piece::Direction;
use crate::host::stderr;

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
    imported: Imported,
}

#[derive(Debug)]
struct Active {
    number: u64,
    parts: Vec<Flight<'static>>,
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
    if at == libc::MAP_FAILED { Err(told(std::io::Error::last_os_error())) } else { Ok((at.cast(), stage.bytes)) }
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
            kind::GIVE_BACK => return self.give_back(order.addr),
            kind::COPY_OUT | kind::COPY_IN => match self.begin(order) {
                Ok(parts) => return self.copies.push_back(Active { number: order.number, parts }),
                Err(code) => Err(code),
            },
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
        // The allocation that was there before is no more.
        self.give_back(order.addr);
        let _entered = card.enter()?;
        let imported = self.sharing.import(token, order.bytes, order.ordinal)?;
        self.ranges.insert(order.addr, Range { ordinal: order.ordinal, imported });
        Ok(())
    }

    fn give_back(&mut self, base: u64) {
        let Some(Range { ordinal, imported }) = self.ranges.remove(&base) else { return };
        if let Some(Ok(_entered)) = card::get(ordinal as usize).map(card::Card::enter) {
            self.sharing.give_back(&imported);
        }
    }

    /// Begins a copy, in as many parts as it touches allocations.
    fn begin(&self, order: &Order) -> Result<Vec<Flight<'static>>, Code> {
        let direction = if order.kind == kind::COPY_OUT { Direction::Out } else { Direction::In };
        let room = (self.stage.1 as u64).checked_sub(order.stage_at).ok_or(INVALID)?;
        if order.bytes > room {
            return Err(INVALID);
        }
        let (mut parts, mut done) = (Vec::new(), 0);
        while done < order.bytes {
            let addr = order.addr + done;
            let (base, range) = self.ranges.range(..=addr).next_back().ok_or(INVALID)?;
            let left = range.imported.bytes.checked_sub(addr - base).filter(|left| *left > 0).ok_or(INVALID)?;
            let len = left.min(order.bytes - done);
            let theirs = (range.imported.at + (addr - base), len as usize);
            let card = card::get(range.ordinal as usize).ok_or(INVALID)?;
            // SAFETY: inside the stage (checked), and memory that is imported; it is given back only when the registration is
            // gone, which waits for its copies.
            parts.push(unsafe { card.begin(theirs, direction, self.stage.0.add((order.stage_at + done) as usize)) }?);
            done += len;
        }
        Ok(parts)
    }

    /// Answers for the copies that are over. Whether there are some.
    fn end_copies(&mut self) -> bool {
        let before = self.copies.len();
        let mut index = 0;
        while index < self.copies.len() {
            let result = are_over(&mut self.copies[index].parts);
            if result == Ok(false) {
                index += 1;
            } else if let Some(active) = self.copies.remove(index) {
                self.answer(active.number, result.map(drop));
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
        let _ = send(self.socket.as_fd(), &Answer { number, code: code.into() }, None);
    }
}

/// Whether all these copies are over.
fn are_over(parts: &mut Vec<Flight<'static>>) -> Result<bool, Code> {
    while let Some(last) = parts.last() {
        if !last.is_over()? {
            return Ok(false);
        }
        parts.pop();
    }
    Ok(true)
}
