//! The process that copies GPU memory on behalf of this one. It has a driver of its own: it copies as well while an application
//! holds the driver in this process and waits for what is to be copied, as `cudaFree` does.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::copy::gpu::cuda::Cuda;
use crate::copy::gpu::order::{Answer, FORMAT, Order, Received, kind, pair, receive, send};
use crate::copy::gpu::sharing::{Sharing, Token};
use crate::copy::piece::{CopyError, Direction, Piece};
use crate::host::lock::lock;
use crate::host::stderr;
use crate::process::fabric::Fabric;
use crate::shm::process_id::slot_of;

/// How long the helper may take to import memory. At the first of a GPU it makes a context, which takes up to some seconds.
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
    /// The allocations that a registration of this address and length lies in; of several such ones, the oldest first.
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

/// Tells an allocation from others, also from a later one at the same address; from such a one with as many bytes only if the driver
/// numbers it.
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

/// Has the helper, which is started by `program` at the first call, import all allocations of GPU `ordinal` in `[addr, addr + len)`.
pub(crate) fn share(
    fabric: &Fabric,
    program: &Path,
    cuda: &'static Cuda,
    ordinal: usize,
    (addr, len): (u64, u64),
) -> Result<(), String> {
    let sharing = Sharing::of_driver().ok_or("the CUDA driver is too old to share memory with another process")?;
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
        let shared = sharing.allocation(at).map_err(|code| name("the allocation", code)).and_then(|(base, bytes)| {
            let identity = Identity { base, bytes, id: cuda.allocation_id(base).unwrap_or(0) };
            let export = || sharing.export(base).map_err(|code| name("memory that cannot be shared", code));
            helper.import(ordinal as u32, identity, export)?;
            taken.push(identity);
            Ok(base + bytes)
        });
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
        // It goes into the background by itself, so that the application has no child that it does not know of.
        let status = command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).status();
        let told = |what: String| format!("SOFTRNIC_GPU_HELPER={}: {what}", program.display());
        match status {
            Ok(status) if !status.success() => Err(told(status.to_string())),
            // Where an application ignores SIGCHLD, the status of children is not kept.
            Err(error) if error.raw_os_error() != Some(libc::ECHILD) => Err(told(error.to_string())),
            _ => Ok(Self { socket: ours, stage: stage as usize, state: Mutex::default() }),
        }
    }

    /// One more registration lies in the allocation `new`; `export` is asked for it if the helper does not have it yet.
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
            let order = Order { number: 0, kind: kind::GIVE_BACK, ordinal: 0, addr, bytes, stage_at: 0, id, handle };
            // One that has ended has given all back.
            if let Err(why) = self.done(order, None) {
                stderr::say(format_args!("{why}"));
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
                Some(Ok(_)) => return Err("the process of SOFTRNIC_GPU_HELPER cannot import memory of the GPU".into()),
                Some(Err(())) => return Err(gone()),
                None if start.elapsed() > LIMIT => {
                    return Err(format!("the process of SOFTRNIC_GPU_HELPER has not answered for {LIMIT:?}"));
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
        let order = Order { number: 0, kind, ordinal: gpu - 1, addr, bytes, stage_at, id: 0, handle: [0; 64] };
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

    /// The answer to order `number`, if it has come: 0 or an error of the driver. `Err`: the helper has ended.
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
                Received::Packet(answer, _) => drop(self.answers.insert(answer.number, answer.code)),
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
    /// Whether the copy is over. An error: it has failed, which the helper has told, or the helper has ended.
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
