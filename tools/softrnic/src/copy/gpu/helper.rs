//! The process that copies GPU memory on behalf of this one. It has a driver of its own: it copies as well while an application
//! holds the driver in this process and waits for what is to be copied, as `cudaFree` does.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use crate::copy::gpu::cuda::Cuda;
use crate::copy::gpu::order::{Answer, FORMAT, Order, Received, kind, pair, receive, send};
use crate::copy::gpu::sharing::{Sharing, Token};
use crate::copy::piece::{CopyError, Direction, Piece};
use crate::host::lock::lock;
use crate::process::fabric::Fabric;

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
    /// Allocations that the helper has imported, by their start.
    shared: BTreeMap<u64, Shared>,
    has_ended: bool,
}

#[derive(Clone, Copy, Debug)]
struct Shared {
    bytes: u64,
    /// Registrations that lie in it.
    users: usize,
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

/// The helper, if it was started.
pub(crate) fn started() -> Option<&'static Helper> {
    HELPER.get()
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
    let helper = match HELPER.get() {
        Some(helper) => helper,
        None => {
            let helper = Helper::start(fabric, program)?;
            HELPER.get_or_init(|| helper)
        }
    };
    let mut at = addr;
    while at < addr + len {
        let shared = sharing.allocation(at).map_err(|code| name("the allocation", code)).and_then(|(base, bytes)| {
            let export = || sharing.export(base).map_err(|code| name("memory that cannot be shared", code));
            helper.import(ordinal as u32, (base, bytes), export).map(|()| base + bytes)
        });
        match shared {
            Ok(end) => at = end,
            Err(why) => {
                helper.give_back((addr, at - addr));
                return Err(why);
            }
        }
    }
    Ok(())
}

/// A registration of `[addr, addr + len)` has gone.
pub(crate) fn give_back(addr: u64, len: u64) {
    if let Some(helper) = HELPER.get() {
        let _changing = lock(&CHANGING);
        helper.give_back((addr, len));
    }
}

impl Helper {
    fn start(fabric: &Fabric, program: &Path) -> Result<Self, String> {
        let (stage, bytes) = fabric.whole_stage();
        let file = fabric.file.path();
        let [ours, theirs] = pair().map_err(|e| format!("a socket pair: {e}"))?;
        let at = stage as usize - fabric.file.base() as usize;
        let arguments = [FORMAT.to_string(), at.to_string(), bytes.to_string()];
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

    /// One more registration lies in the allocation of `bytes` at `base`; `export` is asked for it if it is new.
    fn import(
        &self,
        ordinal: u32,
        (base, bytes): (u64, u64),
        export: impl FnOnce() -> Result<Token, String>,
    ) -> Result<(), String> {
        if let Some(shared) = lock(&self.state).shared.get_mut(&base).filter(|shared| shared.bytes == bytes) {
            shared.users += 1;
            return Ok(());
        }
        let token = export()?;
        let (kind, handle, fd) = match &token {
            Token::Ipc(handle) => (kind::IMPORT, handle.0, None),
            Token::Descriptor(fd) => (kind::IMPORT_DESCRIPTOR, [0; 64], Some(fd.as_fd())),
        };
        let order = Order { number: 0, kind, ordinal, addr: base, bytes, stage_at: 0, handle };
        let number = self.ask(order, fd).ok_or_else(gone)?;
        let start = Instant::now();
        loop {
            match self.answer(number) {
                Some(Ok(0)) => break,
                Some(Ok(_)) => return Err("the process of SOFTRNIC_GPU_HELPER cannot import the memory".into()),
                Some(Err(())) => return Err(gone()),
                None if start.elapsed() > LIMIT => {
                    return Err(format!("the process of SOFTRNIC_GPU_HELPER has not answered for {LIMIT:?}"));
                }
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        lock(&self.state).shared.insert(base, Shared { bytes, users: 1 });
        Ok(())
    }

    fn give_back(&self, (addr, len): (u64, u64)) {
        let mut unused = Vec::new();
        lock(&self.state).shared.retain(|&base, shared| {
            if base < addr + len && addr < base + shared.bytes {
                shared.users -= 1;
            }
            if shared.users == 0 {
                unused.push((base, shared.bytes));
            }
            shared.users > 0
        });
        for (addr, bytes) in unused {
            let order =
                Order { number: 0, kind: kind::GIVE_BACK, ordinal: 0, addr, bytes, stage_at: 0, handle: [0; 64] };
            self.ask(order, None);
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
        let order = Order { number: 0, kind, ordinal: gpu - 1, addr, bytes, stage_at, handle: [0; 64] };
        let number = self.ask(order, None).ok_or(CopyError::LocalFault)?;
        Ok(Pending { helper: self, number })
    }

    /// Sends `order` with a number of its own. `None`: the helper has ended.
    fn ask(&self, order: Order, fd: Option<std::os::fd::BorrowedFd<'_>>) -> Option<u64> {
        let mut state = lock(&self.state);
        state.last_number += 1;
        let number = state.last_number;
        state.has_ended |= send(self.socket.as_fd(), &Order { number, ..order }, fd).is_err();
        (!state.has_ended).then_some(number)
    }

    /// The answer to order `number`, if it has come: 0 or an error of the driver. `Err`: the helper has ended.
    fn answer(&self, number: u64) -> Option<Result<u64, ()>> {
        let mut state = lock(&self.state);
        loop {
            match receive::<Answer>(self.socket.as_fd(), false) {
                Received::Packet(answer, _) => drop(state.answers.insert(answer.number, answer.code)),
                Received::Nothing => break,
                Received::Ended => {
                    state.has_ended = true;
                    break;
                }
            }
        }
        match state.answers.remove(&number) {
            Some(code) => Some(Ok(code)),
            None => state.has_ended.then_some(Err(())),
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
