//! The process that copies GPU memory on behalf of this one. It has a driver of its own: it copies
//! as well while an application holds the driver in this process and waits for what is to be
//! copied, as `cudaFree` does.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, c_int, c_uint, c_ulonglong, c_void};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::copy::gpu::cuda;
use crate::copy::gpu::cuda::{Code, Cuda, Flight, Handle, LIBRARY, check, driver, loaded};
use crate::copy::gpu::order::{Answer, FORMAT, Order, Received, kind, pair, receive, send};
use crate::copy::transfer::{CopyError, Direction, Piece};
use crate::host;
use crate::host::lock;
use crate::process::fabric::Fabric;
use crate::shm::file::{helper_lock, set_lock, slot_of};

/// How long the helper may take to import memory. At the first of a GPU it makes a context, which
/// takes up to some seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// The helper of this process.
#[derive(Debug)]
pub(crate) struct Helper {
    socket: OwnedFd,
    /// Address of the stage here.
    stage: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_number: u64,
    /// Answers that nobody has asked for yet, by number.
    answers: HashMap<u64, u64>,
    /// Allocations that the helper has imported.
    shared: Vec<Shared>,
    /// The allocations that a registration of this address and length lies in; of several such
    /// ones, the oldest first.
    regions: HashMap<(u64, u64), VecDeque<Vec<Identity>>>,
    has_ended: bool,
}

/// An allocation that the helper has imported.
#[derive(Clone, Copy, Debug)]
struct Shared {
    identity: Identity,
    /// Registrations that lie in it.
    users: usize,
}

/// Tells an allocation from others, also from a later one at the same address; from such a one with
/// as many bytes only if the driver numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    base: u64,
    bytes: u64,
    /// The driver's number of it; 0: it has none.
    id: u64,
}

/// A copy that the helper has been asked for.
#[derive(Debug)]
pub(crate) struct Pending {
    helper: &'static Helper,
    number: u64,
}

static HELPER: OnceLock<Helper> = OnceLock::new();
/// Serialises starting it, and sharing.
static CHANGING: Mutex<()> = Mutex::new(());

/// This process is a forked child of the one that has started it.
static IS_ABANDONED: AtomicBool = AtomicBool::new(false);

/// The helper, if this process has started one.
pub(crate) fn started() -> Option<&'static Helper> {
    HELPER.get().filter(|_| !IS_ABANDONED.load(Relaxed))
}

/// For a forked child: lets go of the helper, which ends with its parent.
pub(crate) fn abandon() {
    if let Some(helper) = started() {
        IS_ABANDONED.store(true, Relaxed);
        // SAFETY: the child uses the socket no more.
        unsafe { libc::close(helper.socket.as_raw_fd()) };
    }
}

/// Has the helper, which is started by `program` at the first call, import all allocations of GPU
/// `ordinal` in `[addr, addr + len)`.
pub(crate) fn share(
    fabric: &Fabric,
    program: &Path,
    cuda: &'static Cuda,
    ordinal: usize,
    (addr, len): (u64, u64),
) -> Result<(), String> {
    let sharing = Sharing::of_driver()
        .ok_or("the CUDA driver is too old to share memory with another process")?;
    let name = |what: &str, code| format!("{what} of GPU {ordinal}: {}", cuda.name(code));
    let context = cuda.primary_context(ordinal).map_err(|code| name("the context", code))?;
    let _entered = cuda.enter(context).map_err(|code| name("the context", code))?;
    let _changing = lock(&CHANGING);
    if IS_ABANDONED.load(Relaxed) {
        return Err("a forked child has no process of SOFTRNIC_GPU_HELPER".into());
    }
    let helper = match HELPER.get() {
        Some(helper) => helper,
        None => {
            let helper = Helper::start(fabric, program)?;
            HELPER.get_or_init(|| helper)
        }
    };
    let (mut at, mut taken) = (addr, Vec::new());
    while at < addr + len {
        let shared = sharing.allocation(at).map_err(|code| name("the allocation", code)).and_then(
            |(base, bytes)| {
                let identity = Identity { base, bytes, id: cuda.allocation_id(base).unwrap_or(0) };
                let export = || {
                    sharing.export(base).map_err(|code| name("memory that cannot be shared", code))
                };
                helper.import(ordinal as u32, identity, export)?;
                taken.push(identity);
                Ok(base + bytes)
            },
        );
        match shared {
            Ok(end) => at = end,
            Err(why) => {
                helper.give_back(&taken);
                return Err(why);
            }
        }
    }
    lock(&helper.state).regions.entry((addr, len)).or_default().push_back(taken);
    Ok(())
}

/// A registration of `[addr, addr + len)` has gone. Its memory may be freed afterwards.
pub(crate) fn give_back(addr: u64, len: u64) {
    let Some(helper) = started() else { return };
    let _changing = lock(&CHANGING);
    let mut state = lock(&helper.state);
    let Entry::Occupied(mut region) = state.regions.entry((addr, len)) else { return };
    let taken = region.get_mut().pop_front();
    if region.get().is_empty() {
        region.remove();
    }
    drop(state);
    helper.give_back(&taken.unwrap_or_default());
}

impl Helper {
    fn start(fabric: &Fabric, program: &Path) -> Result<Self, String> {
        let (stage, bytes) = fabric.whole_stage();
        let file = fabric.file.path();
        let [ours, theirs] = pair().map_err(|e| format!("a socket pair: {e}"))?;
        let at = stage as usize - fabric.file.base() as usize;
        let owner = slot_of(fabric.me);
        let arguments = [FORMAT.to_string(), at.to_string(), bytes.to_string(), owner.to_string()];
        let mut command = Command::new(program);
        command.args([OsStr::new("gpu-helper"), file.as_os_str()]).args(arguments);
        // It goes into the background by itself, so that the application has no child that it does
        // not know of.
        let status = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).status();
        let told = |what: String| format!("SOFTRNIC_GPU_HELPER={}: {what}", program.display());
        match status {
            Ok(status) if !status.success() => Err(told(status.to_string())),
            // Where an application ignores SIGCHLD, the status of children is not kept.
            Err(error) if error.raw_os_error() != Some(libc::ECHILD) => {
                Err(told(error.to_string()))
            }
            _ => Ok(Self { socket: ours, stage: stage as usize, state: Mutex::default() }),
        }
    }

    /// One more registration lies in the allocation `new`; `export` is asked for it if the helper
    /// does not have it yet.
    fn import(
        &self,
        ordinal: u32,
        new: Identity,
        export: impl FnOnce() -> Result<Token, String>,
    ) -> Result<(), String> {
        let mut state = lock(&self.state);
        if state.has_ended {
            return Err(gone());
        }
        if let Some(known) = state.shared.iter_mut().find(|known| known.identity == new) {
            known.users += 1;
            return Ok(());
        }
        drop(state);
        let token = export()?;
        let (kind, handle, fd) = match &token {
            Token::Ipc(handle) => (kind::IMPORT, handle.0, None),
            Token::Descriptor(fd) => (kind::IMPORT_DESCRIPTOR, [0; 64], Some(fd.as_fd())),
        };
        let Identity { base: addr, bytes, id } = new;
        let order = Order { number: 0, kind, ordinal, addr, bytes, stage_at: 0, id, handle };
        self.done(order, fd)?;
        lock(&self.state).shared.push(Shared { identity: new, users: 1 });
        Ok(())
    }

    /// One registration less lies in each of these allocations.
    fn give_back(&self, allocations: &[Identity]) {
        let mut unused = Vec::new();
        lock(&self.state).shared.retain_mut(|shared| {
            shared.users -= usize::from(allocations.contains(&shared.identity));
            if shared.users == 0 {
                unused.push(shared.identity);
            }
            shared.users > 0
        });
        for Identity { base: addr, bytes, id } in unused {
            let handle = [0; 64];
            let order = Order {
                number: 0,
                kind: kind::GIVE_BACK,
                ordinal: 0,
                addr,
                bytes,
                stage_at: 0,
                id,
                handle,
            };
            // One that has ended has given all back.
            if let Err(why) = self.done(order, None) {
                host::say(format_args!("{why}"));
            }
        }
    }

    /// Has `order` done, and waits for that.
    fn done(&self, order: Order, fd: Option<BorrowedFd<'_>>) -> Result<(), String> {
        let number = self.ask(order, fd).ok_or_else(gone)?;
        let start = Instant::now();
        loop {
            match self.answer(number) {
                Some(Ok(0)) => return Ok(()),
                Some(Ok(_)) => {
                    return Err(
                        "the process of SOFTRNIC_GPU_HELPER cannot import memory of the GPU".into(),
                    );
                }
                Some(Err(())) => return Err(gone()),
                None if start.elapsed() > LIMIT => {
                    return Err(format!(
                        "the process of SOFTRNIC_GPU_HELPER has not answered for {LIMIT:?}"
                    ));
                }
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
    }

    /// Asks for a copy between `piece` and the stage's bytes at `stage`.
    pub(crate) fn copy(
        &'static self,
        piece: &Piece,
        direction: Direction,
        stage: *mut u8,
    ) -> Result<Pending, CopyError> {
        let kind = if direction == Direction::Out { kind::COPY_OUT } else { kind::COPY_IN };
        let stage_at = (stage as usize - self.stage) as u64;
        let Piece { addr, len: bytes, gpu, .. } = *piece;
        let order = Order {
            number: 0,
            kind,
            ordinal: gpu - 1,
            addr,
            bytes,
            stage_at,
            id: 0,
            handle: [0; 64],
        };
        let number = self.ask(order, None).ok_or(CopyError::LocalFault)?;
        Ok(Pending { helper: self, number })
    }

    /// Sends `order` with a number of its own. `None`: the helper has ended.
    fn ask(&self, order: Order, fd: Option<BorrowedFd<'_>>) -> Option<u64> {
        let mut state = lock(&self.state);
        state.last_number += 1;
        let number = state.last_number;
        while !state.has_ended {
            match send(self.socket.as_fd(), &Order { number, ..order }, fd, false) {
                Ok(()) => return Some(number),
                // It may itself wait until somebody takes its answers.
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    state.take_answers(self.socket.as_fd());
                    std::thread::yield_now();
                }
                Err(_) => state.has_ended = true,
            }
        }
        None
    }

    /// The answer to order `number`, if it has come: 0 or an error of the driver. `Err`: the helper
    /// has ended.
    fn answer(&self, number: u64) -> Option<Result<u64, ()>> {
        let mut state = lock(&self.state);
        state.take_answers(self.socket.as_fd());
        match state.answers.remove(&number) {
            Some(code) => Some(Ok(code)),
            None => state.has_ended.then_some(Err(())),
        }
    }
}

impl State {
    /// Takes all answers that there are.
    fn take_answers(&mut self, socket: BorrowedFd<'_>) {
        loop {
            match receive::<Answer>(socket, false) {
                Received::Packet(answer, _) => {
                    self.answers.insert(answer.number, answer.code);
                }
                Received::Nothing => return,
                Received::Ended => {
                    self.has_ended = true;
                    return;
                }
            }
        }
    }
}

impl Pending {
    /// Whether the copy is over. An error: it has failed, which the helper has told, or the helper
    /// has ended.
    pub(crate) fn is_done(&self) -> Result<bool, CopyError> {
        match self.helper.answer(self.number) {
            None => Ok(false),
            Some(Ok(0)) => Ok(true),
            Some(_) => Err(CopyError::LocalFault),
        }
    }
}

fn gone() -> String {
    "the process of SOFTRNIC_GPU_HELPER has ended".into()
}

/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID: Code = 1;

/// How soon to look again at copies that are under way. Those who wait for them may need this
/// processor.
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
    /// The process slot of the one that it copies for. What that has in the stage is no one else's
    /// before the helper has ended, too.
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

/// Does what the process at the other end of `socket` asks for, until that ends. `format` is what
/// it speaks.
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
        libc::mmap(
            ptr::null_mut(),
            stage.bytes,
            access,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            stage.at as libc::off_t,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(told(std::io::Error::last_os_error()));
    }
    // Until the helper of the one that had this slot before has ended.
    while !set_lock(file.as_raw_fd(), helper_lock(stage.owner), libc::F_WRLCK, libc::F_OFD_SETLKW) {
    }
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
            kind::IMPORT_DESCRIPTOR => {
                fd.ok_or(INVALID).and_then(|fd| self.import(order, &Token::Descriptor(fd)))
            }
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
        let card = unsafe { cuda::make_ready(self.stage, self.cuda, order.ordinal as usize) };
        let card = card.map_err(|what| {
            host::say(format_args!("gpu-helper: {what}"));
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
        let bases: Vec<_> = self
            .ranges
            .iter()
            .filter(|(base, range)| is_meant(**base, range))
            .map(|(base, _)| *base)
            .collect();
        while !bases.is_empty() && !self.copies.is_empty() {
            if !self.end_copies() {
                std::thread::sleep(PAUSE);
            }
        }
        for Range { ordinal, imported, .. } in
            bases.iter().filter_map(|base| self.ranges.remove(base)).collect::<Vec<_>>()
        {
            if let Some(Ok(_entered)) = cuda::get(ordinal as usize).map(cuda::Card::enter) {
                self.sharing.give_back(&imported);
            }
        }
    }

    /// Begins a copy, in as many parts as it touches allocations. One that fails is answered when
    /// the others are over.
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

    /// Begins to copy from byte `done` of the copy on, which the stage has room for, to the end of
    /// an allocation at most; how many bytes that are.
    fn begin_part(&self, order: &Order, done: u64) -> Result<(Flight<'static>, u64), Code> {
        let direction = if order.kind == kind::COPY_OUT { Direction::Out } else { Direction::In };
        let addr = order.addr + done;
        let (base, range) = self.ranges.range(..=addr).next_back().ok_or(INVALID)?;
        let left = range
            .imported
            .bytes
            .checked_sub(addr - base)
            .filter(|left| *left > 0)
            .ok_or(INVALID)?;
        let len = left.min(order.bytes - done);
        let theirs = (range.imported.at + (addr - base), len as usize);
        let card = cuda::get(range.ordinal as usize).ok_or(INVALID)?;
        // SAFETY: inside the stage (checked), and memory that is imported; it is given back when no
        // copy is under way.
        let flight = unsafe {
            card.begin(theirs, direction, self.stage.0.add((order.stage_at + done) as usize))
        }?;
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
            host::say(format_args!("gpu-helper: {}", self.cuda.name(code)));
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

// GPU memory that another process is to use: what the owner hands over, and how the other one gets
// at it.
//
// Memory of `cudaMalloc` has a handle of 64 bytes (CUDA's interprocess communication); memory of
// `cuMemCreate`, as NCCL's own is, has a file descriptor, if it was created for that.

const POSIX_FILE_DESCRIPTOR: c_int = 1;
const LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
const LOCATION_DEVICE: c_int = 1;
const READ_AND_WRITE: c_int = 3;

/// Names an allocation of `cudaMalloc` in other processes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// Who may access a mapping, and how: the device of that ordinal, reading and writing.
#[repr(C)]
pub(crate) struct Access {
    /// Kind, and ordinal.
    location: [c_int; 2],
    flags: c_int,
}

driver! {
    /// What sharing memory needs of the driver.
    Sharing {
        init: c"cuInit" (c_uint);
        address_range: c"cuMemGetAddressRange_v2" (*mut u64, *mut usize, u64);
        ipc_get: c"cuIpcGetMemHandle" (*mut IpcHandle, u64);
        ipc_open: c"cuIpcOpenMemHandle_v2" (*mut u64, IpcHandle, c_uint);
        ipc_close: c"cuIpcCloseMemHandle" (u64);
        retain_allocation: c"cuMemRetainAllocationHandle" (*mut u64, *mut c_void);
        release: c"cuMemRelease" (u64);
        export: c"cuMemExportToShareableHandle" (*mut c_void, u64, c_int, c_ulonglong);
        import: c"cuMemImportFromShareableHandle" (*mut u64, *mut c_void, c_int);
        reserve: c"cuMemAddressReserve" (*mut u64, usize, usize, u64, c_ulonglong);
        free_reserved: c"cuMemAddressFree" (u64, usize);
        map: c"cuMemMap" (u64, usize, usize, u64, c_ulonglong);
        unmap: c"cuMemUnmap" (u64, usize);
        set_access: c"cuMemSetAccess" (u64, usize, *const Access, usize);
    }
}

/// What names an allocation in another process.
#[derive(Debug)]
pub(crate) enum Token {
    Ipc(IpcHandle),
    Descriptor(OwnedFd),
}

/// An allocation of another process, in this one.
#[derive(Debug)]
pub(crate) struct Imported {
    /// Where it is here.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
    is_mapped: bool,
}

impl Sharing {
    /// Of the driver that this process has loaded; `None`: that is too old.
    pub(crate) fn of_driver() -> Option<&'static Self> {
        static TABLE: OnceLock<Option<Sharing>> = OnceLock::new();
        TABLE
            .get_or_init(|| {
                Some(loaded()).filter(|library| !library.is_null()).and_then(Self::load)
            })
            .as_ref()
    }

    /// Makes the driver ready, in a process that has not used it yet.
    pub(crate) fn start(&self) -> Result<(), Code> {
        // SAFETY: no memory is involved.
        check(unsafe { (self.init)(0) })
    }

    /// Start and bytes of the allocation that `addr` lies in. Inside a context.
    pub(crate) fn allocation(&self, addr: u64) -> Result<(u64, u64), Code> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: writes one value each.
        check(unsafe { (self.address_range)(&raw mut base, &raw mut bytes, addr) })?;
        Ok((base, bytes as u64))
    }

    /// What names the allocation that starts at `base`. Inside a context.
    pub(crate) fn export(&self, base: u64) -> Result<Token, Code> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: writes one handle.
        if check(unsafe { (self.ipc_get)(&raw mut handle, base) }).is_ok() {
            return Ok(Token::Ipc(handle));
        }
        let (mut allocation, mut fd): (u64, c_int) = (0, -1);
        // SAFETY: writes one value each; what was retained is released.
        unsafe {
            check((self.retain_allocation)(&raw mut allocation, base as *mut c_void))?;
            let exported =
                (self.export)((&raw mut fd).cast(), allocation, POSIX_FILE_DESCRIPTOR, 0);
            (self.release)(allocation);
            check(exported)?;
        }
        // SAFETY: the driver has just opened it for us.
        Ok(Token::Descriptor(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The allocation of `bytes` that `token` names, on GPU `ordinal`, whose context this is inside
    /// of.
    pub(crate) fn import(&self, token: &Token, bytes: u64, ordinal: u32) -> Result<Imported, Code> {
        let mut at = 0;
        match token {
            Token::Ipc(handle) => {
                // SAFETY: writes one value.
                check(unsafe { (self.ipc_open)(&raw mut at, *handle, LAZY_ENABLE_PEER_ACCESS) })?;
            }
            Token::Descriptor(fd) => {
                let mut allocation = 0;
                let fd = fd.as_raw_fd() as usize as Handle;
                // SAFETY: writes one value.
                check(unsafe { (self.import)(&raw mut allocation, fd, POSIX_FILE_DESCRIPTOR) })?;
                let mapped = self.map_all(bytes as usize, allocation, ordinal);
                // SAFETY: imported here, and not used any more: a mapping keeps it alive.
                unsafe { (self.release)(allocation) };
                at = mapped?;
            }
        }
        Ok(Imported { at, bytes, is_mapped: matches!(token, Token::Descriptor(_)) })
    }

    /// Maps `bytes` of `allocation`; where.
    fn map_all(&self, bytes: usize, allocation: u64, ordinal: u32) -> Result<u64, Code> {
        let access =
            Access { location: [LOCATION_DEVICE, ordinal as c_int], flags: READ_AND_WRITE };
        let mut at = 0;
        // SAFETY: writes one value.
        check(unsafe { (self.reserve)(&raw mut at, bytes, 0, 0, 0) })?;
        // SAFETY: an address range that was reserved here, so that nobody else uses it; given back
        // unless it is mapped.
        unsafe {
            let mapped = check((self.map)(at, bytes, 0, allocation, 0)).and_then(|()| {
                check((self.set_access)(at, bytes, &raw const access, 1)).inspect_err(|_| {
                    (self.unmap)(at, bytes);
                })
            });
            mapped.map(|()| at).inspect_err(|_| {
                (self.free_reserved)(at, bytes);
            })
        }
    }

    /// Gives back what was imported. Inside the context. Nothing copies from or to it any more.
    pub(crate) fn give_back(&self, imported: &Imported) {
        let Imported { at, bytes, is_mapped } = *imported;
        // SAFETY: imported by this table, and given back once.
        unsafe {
            if is_mapped {
                (self.unmap)(at, bytes as usize);
                (self.free_reserved)(at, bytes as usize);
            } else {
                (self.ipc_close)(at);
            }
        }
    }
}
