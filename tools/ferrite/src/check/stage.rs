//! What a point has to work with, in each of its two processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::buffer::Buffer;
use crate::check::device::Device;
use crate::check::ensure;
use crate::check::point::{self, Point, Trial};
use crate::check::raw::Raw;
use crate::check::verdict::Finding;
use crate::comm::{RecvComm, Region, Request, SendComm};
use crate::error::{Error, Result};
use crate::library::Source;
use crate::link::{Deadline, finished};
use crate::measure::{TAG, pattern};
use crate::seat::Seat;
use crate::transport::{Handle, Listener, Transport};

/// What both processes of an act are told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// The point.
    pub number: u32,
    /// The act of it, from 0.
    pub act: usize,
    /// The transport.
    pub source: Source,
    /// NCCL 2.21.5, where it is in the cache: for a peer of another kind and as a reference.
    pub built_in: Option<PathBuf>,
    /// The command line of the software device, where that is what is used.
    pub softrnic: Option<PathBuf>,
    /// Devices that are fused into one, 1 or 2.
    pub rails: usize,
    /// The links are InfiniBand, else RoCE.
    pub infiniband: bool,
}

/// One of the two processes of an act.
#[derive(Debug)]
pub struct Stage<'s> {
    /// The line to the peer.
    pub seat: &'s mut Seat,
    /// What both were told.
    pub order: &'s Order,
    transport: Option<Transport>,
}

/// What some points need, to break it or to look into it.
pub(super) const SOFTWARE_DEVICE: &str = "the software device";

/// How long something may take that the peer or the device has to do.
pub const SOON: Duration = Duration::from_secs(8);

/// How long what is closed may be in the device's and the system's books.
pub const SETTLED: Duration = Duration::from_secs(2);

/// The body of the hidden subcommand `check-worker`; the exit code.
pub fn main() -> i32 {
    let seat = match Seat::take() {
        Ok(Some(seat)) => seat,
        Ok(None) => return crate::cli::ending::INVALID,
        Err(problem) => {
            crate::output::tell(format_args!("{problem}"));
            return crate::cli::ending::INVALID;
        }
    };
    seat.run(|seat| {
        let order: Order = seat.order()?;
        let finding = play(seat, &order)?;
        seat.report(&finding)?;
        // Nobody leaves before both have found what they look for: a point may be about the other's end.
        seat.barrier()
    })
}

fn play(seat: &mut Seat, order: &Order) -> Result<Finding> {
    let point = point::all().into_iter().find(|point| point.number == order.number);
    let Some(Point { name, trial: Trial::Acts(acts), .. }) = point else {
        return Err(Error::Misuse("a point that is not tried"));
    };
    let act = acts.get(order.act).ok_or(Error::Misuse("a point without such an act"))?;
    seat.begin(format!("trying {name}"))?;
    if seat.rank() == 1 {
        for (variable, value) in act.scene.rank1 {
            // SAFETY: this process has one thread so far, and no library is loaded.
            unsafe { std::env::set_var(variable, value) };
        }
        if act.scene.alone {
            return Ok(Finding::nothing());
        }
    }
    match (act.play)(&mut Stage { seat, order, transport: None }) {
        Err(missing @ Error::Missing(_)) => Ok(Finding::skipped(missing.to_string())),
        finding => finding,
    }
}

impl Stage<'_> {
    /// 0 or 1.
    pub fn rank(&self) -> usize {
        self.seat.rank()
    }

    /// The transport, initialised at the first call.
    ///
    /// # Errors
    /// Those of [`Transport::open`].
    pub fn transport(&mut self) -> Result<Transport> {
        if let Some(transport) = &self.transport {
            return Ok(transport.clone());
        }
        let transport = Transport::open(&self.order.source)?;
        self.transport = Some(transport.clone());
        Ok(transport)
    }

    /// The transport's version 8 functions themselves.
    ///
    /// # Errors
    /// Those of [`Stage::transport`]; [`Error::Misuse`] for another version.
    pub(super) fn raw(&mut self) -> Result<Raw> {
        Raw::of(&self.transport()?)
    }

    /// The device that a rank uses: rank 1 the second one where there are two.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn device(&mut self) -> Result<usize> {
        let rank = self.rank();
        self.transport()?.device_of(rank, None)
    }

    /// The software device, to be changed and looked at.
    ///
    /// # Errors
    /// [`Error::Missing`] on devices of the machine, which are neither.
    pub(super) fn hardware(&self) -> Result<Device> {
        self.order.softrnic.as_deref().map(Device::new).ok_or(Error::Missing(SOFTWARE_DEVICE))
    }

    /// Whether so much memory can be registered: a device of the kernel's needs all of it there.
    pub(super) fn can_pin(&self, bytes: u64) -> bool {
        let free = || -> Option<u64> {
            let told = std::fs::read_to_string("/proc/meminfo").ok()?;
            let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
        };
        self.order.softrnic.is_some() || free().is_none_or(|free| free >= bytes)
    }

    /// Swaps handles with the peer.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn swap_handles(&mut self, mine: &Handle) -> Result<Handle> {
        let mut theirs = Handle([0; _]);
        theirs.0.copy_from_slice(&self.seat.exchange(&mine.0)?);
        Ok(theirs)
    }

    /// Goes on in a child of this process until the child has ended; the child does `body` and is then killed. To be
    /// called before the transport is loaded here.
    pub(super) fn in_a_doomed_child(&mut self, body: impl FnOnce(&mut Self)) {
        // SAFETY: this process has one thread, so the child has all that there is.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as for die_with_parent: a plain system call; then the end of the child, as a crash would be.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            body(self);
            // SAFETY: a signal to the process itself.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        let mut status = 0;
        // SAFETY: the child that was just made.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
    }
}

/// A connection within this process.
#[derive(Debug)]
pub struct Loop {
    /// The sending end.
    pub send: SendComm,
    /// The receiving end.
    pub recv: RecvComm,
}

/// Connects `from` to a new listener on `to`, in this process and thread.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub fn connect_here(transport: &Transport, from: usize, to: usize) -> Result<Loop> {
    let (mut handle, mut listener) = transport.listen(to)?;
    let pair = meet(transport, from, &mut handle, &mut listener)?;
    listener.close()?;
    Ok(pair)
}

/// Connects `from` to `listener`, whose handle is given.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub fn meet(transport: &Transport, from: usize, handle: &mut Handle, listener: &mut Listener) -> Result<Loop> {
    let mut deadline = Deadline::new("a connection within one process", SOON);
    let (mut send, mut recv) = (None, None);
    loop {
        if send.is_none() {
            send = transport.connect(from, handle)?;
        }
        if recv.is_none() {
            recv = listener.accept()?;
        }
        match (send, recv) {
            (Some(send), Some(recv)) => return Ok(Loop { send, recv }),
            pending => (send, recv) = pending,
        }
        deadline.idle()?;
    }
}

impl Loop {
    /// Sends messages of these sizes, one after the other, and checks every byte.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Stalled`]; [`Error::Contract`] for wrong data.
    pub fn carries(&self, sizes: &[usize]) -> Result<()> {
        let most = sizes.iter().copied().max().unwrap_or(0).next_multiple_of(4096);
        let (mine, theirs) = (Arc::new(Buffer::new(most)?), Arc::new(Buffer::new(most + 4096)?));
        let (out, into) = (self.send.register(&mine)?, self.recv.register(&theirs)?);
        sizes.iter().enumerate().try_for_each(|(i, size)| self.message(&out, &into, *size, i as u64))
    }

    /// Sends one message from the start of `out` to the start of `into`.
    ///
    /// # Errors
    /// As [`Loop::carries`].
    pub fn message(&self, out: &Region, into: &Region, size: usize, seed: u64) -> Result<()> {
        pattern::fill(out.memory(), 0, size, seed)?;
        let (went, came) = exchange((&self.send, out, 0, size), (&self.recv, into, 0, size))?;
        arrived(into, 0, size, seed, came)?;
        ensure!(went as usize == size, "a send of {size} bytes says that it sent {went}");
        Ok(())
    }
}

/// Where a message comes from, or goes: communicator, memory, offset, size.
type Side<'a, C> = (&'a C, &'a Region, usize, usize);

/// Sends one message and receives one, and looks after both in turn, as NCCL's progress thread does: a transport may
/// need to be called at either end for the other to get on. The sizes that the send and the receive report.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub fn exchange(
    (sender, out, from, size): Side<'_, SendComm>,
    (receiver, into, to, room): Side<'_, RecvComm>,
) -> Result<(i32, i32)> {
    let mut deadline = Deadline::new("a message each way", SOON);
    let (mut send, mut receive) = (None, None);
    let (mut went, mut came) = ([-1], [-1]);
    let (mut sent, mut received) = (false, false);
    while !(sent && received) {
        match &mut receive {
            None => receive = receiver.receive(into, to, room, TAG)?,
            Some(request) => received = received || request.test(&mut came)?,
        }
        match &mut send {
            None => send = sender.send(out, from, size, TAG)?,
            Some(request) => sent = sent || request.test(&mut went)?,
        }
        deadline.idle()?;
    }
    Ok((went[0], came[0]))
}

/// Posts a send for the receive that was posted last, and looks after that one meanwhile.
///
/// # Errors
/// Those of `post` and of the transport; [`Error::Stalled`]; [`Error::Contract`] if the receive is done before it.
pub fn sent_meanwhile<'c>(
    deadline: &mut Deadline,
    receive: &mut Request<'_>,
    mut post: impl FnMut() -> Result<Option<Request<'c>>>,
) -> Result<Request<'c>> {
    loop {
        if let Some(send) = post()? {
            deadline.progress();
            return Ok(send);
        }
        ensure!(!receive.test(&mut [0; 8])?, "a receive is done before its message was sent");
        deadline.idle()?;
    }
}

/// A message of `size` bytes at `offset` is what was sent.
///
/// # Errors
/// [`Error::Contract`] with the first wrong byte.
pub fn arrived(into: &Region, offset: usize, size: usize, seed: u64, told: i32) -> Result<()> {
    ensure!(told as usize == size, "a receive of {size} bytes says that {told} came");
    if let Some(at) = pattern::check(into.memory(), offset, size, seed)? {
        let words = format!("byte {} of {size} is {:#04x}, not {:#04x}", at.offset, at.got, at.expected);
        return Err(Error::Contract(words));
    }
    Ok(())
}

/// Tests a request that is to be done soon.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub fn done(request: Request<'_>, sizes: &mut [i32]) -> Result<()> {
    finished(&mut Deadline::new("a request", SOON), request, sizes)
}

/// The code of the call that failed; 0 for none.
pub fn code<T>(result: &Result<T>) -> u32 {
    match result {
        Ok(_) => 0,
        Err(Error::Call { code, .. }) => *code,
        Err(_) => u32::MAX,
    }
}

/// Tries until `attempt` gives something or fails, for `limit` at most; `None` when the time is over.
///
/// # Errors
/// Those of `attempt`.
pub fn within<T>(limit: Duration, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt()? {
            return Ok(Some(found));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

/// How many files and threads this process has.
pub fn belongings() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
    (count("/proc/self/fd"), count("/proc/self/task"))
}
