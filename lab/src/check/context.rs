//! What a point has to work with, in each of its two processes.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::check::ensure;
use crate::check::raw::Raw;
use crate::check::report::StepResult;
use crate::error::{Error, Result};
use crate::measure::plan;
use crate::measure::stream::TAG;
use crate::nccl::library::Source;
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvComm, Region, Request, SendComm};
use crate::transport::deadline::{Deadline, finished};
use crate::transport::instance::Transport;
use crate::transport::listener;
use crate::transport::listener::{Handle, Listener, LocalConn};

/// What both processes of a step are to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StepJob {
    /// The point.
    pub(crate) number: u32,
    /// It is a point of the one-sided operations.
    pub(crate) one_sided: bool,
    /// The step of it, from 0.
    pub(crate) step: usize,
    /// The transport.
    pub(crate) source: Source,
    /// NCCL 2.21.5, where it is in the cache: for a peer of another kind and as a reference.
    pub(crate) built_in: Option<PathBuf>,
    /// The command line of the software device, where that is what is used.
    pub(crate) softrnic: Option<PathBuf>,
    /// Devices that are fused into one, 1 or 2.
    pub(crate) rails: usize,
    /// The links are InfiniBand, else RoCE.
    pub(crate) infiniband: bool,
}

/// One of the two processes of a step.
#[derive(Debug)]
pub(crate) struct Context<'s> {
    /// The process: its rank, and the sockets to its peer and its parent.
    pub(crate) worker: &'s mut WorkerCtx,
    /// What both processes do.
    pub(crate) job: &'s StepJob,
    transport: Option<Transport>,
}

/// What points need that make it fail or read its state.
pub(super) const SOFTWARE_DEVICE: &str = "the software device";

impl<'s> Context<'s> {
    pub(crate) fn new(worker: &'s mut WorkerCtx, job: &'s StepJob) -> Self {
        Self { worker, job, transport: None }
    }

    /// 0 or 1.
    pub(crate) fn rank(&self) -> usize {
        self.worker.rank()
    }

    /// The transport, initialised at the first call.
    ///
    /// # Errors
    /// Those of [`Transport::open`].
    pub(crate) fn transport(&mut self) -> Result<Transport> {
        if let Some(transport) = &self.transport {
            return Ok(transport.clone());
        }
        let transport = Transport::open(&self.job.source)?;
        self.transport = Some(transport.clone());
        Ok(transport)
    }

    /// The transport's functions themselves.
    ///
    /// # Errors
    /// Those of [`Context::transport`].
    pub(super) fn raw(&mut self) -> Result<Raw> {
        Ok(Raw::of(&self.transport()?))
    }

    /// The device that a rank uses: rank 1 the second one where there are two.
    ///
    /// # Errors
    /// Those of the transport.
    pub(crate) fn device(&mut self) -> Result<usize> {
        let rank = self.rank();
        self.transport()?.device_of(rank, None)
    }

    /// The software device, to change and to read its state.
    ///
    /// # Errors
    /// [`Error::Missing`] on devices of the machine.
    pub(super) fn softrnic(&self) -> Result<Softrnic> {
        self.job.softrnic.as_deref().map(Softrnic::new).ok_or(Error::Missing(SOFTWARE_DEVICE))
    }

    /// Whether so much memory can be registered: a device of the kernel's needs all of it there.
    pub(super) fn can_pin(&self, bytes: u64) -> bool {
        let free = || -> Option<u64> {
            let told = std::fs::read_to_string("/proc/meminfo").ok()?;
            let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
            Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
        };
        self.job.softrnic.is_some() || free().is_none_or(|free| free >= bytes)
    }

    /// Swaps handles with the peer.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub(crate) fn swap_handles(&mut self, mine: &Handle) -> Result<Handle> {
        let mut theirs = Handle([0; _]);
        theirs.0.copy_from_slice(&self.worker.exchange(&mine.0)?);
        Ok(theirs)
    }

    /// Forks: the child runs `body` and is then killed; returns here when it has ended. To be
    /// called before the transport is loaded here.
    pub(super) fn in_killed_child(&mut self, body: impl FnOnce(&mut Self)) {
        // SAFETY: this process has one thread, so the child has all that there is.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as for die_with_parent: a plain system call; then the end of the child, as a
            // crash would be.
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

/// Something that a transport has to keep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    /// From 1; the same point has the same number for ever.
    pub(crate) number: u32,
    /// For `--only`.
    pub(crate) name: &'static str,
    /// What is claimed.
    pub(crate) claim: &'static str,
    /// How it is tried.
    pub(crate) trial: Trial,
}

/// How a point is tried.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trial {
    /// In these steps, one after the other, until one fails.
    Steps(&'static [Step]),
    /// Not by this tool: it needs this.
    Needs(&'static str),
}

/// One pair of fresh processes.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    /// What it is like where they are.
    pub(crate) env: Env,
    /// What each of them does.
    pub(crate) run: fn(&mut Context<'_>) -> Result<StepResult>,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step").field("env", &self.env).finish_non_exhaustive()
    }
}

/// A variable and its value.
pub(super) type Variable = (&'static str, &'static str);

/// What it is like where the processes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Env {
    /// Variables of both processes.
    pub(crate) vars: &'static [Variable],
    /// Variables of rank 1, besides.
    pub(crate) rank1_vars: &'static [Variable],
    /// Whether sysfs shows the devices.
    pub(crate) host: Host,
    /// Rank 0 does everything; rank 1 only waits.
    pub(crate) alone: bool,
    /// A process that is silent for so long counts as hung; s.
    pub(crate) timeout_s: u64,
    /// Only with `--long`.
    pub(crate) long: bool,
}

impl Env {
    pub(super) const fn vars(self, vars: &'static [Variable]) -> Self {
        Self { vars, ..self }
    }

    pub(super) const fn rank1_vars(self, rank1_vars: &'static [Variable]) -> Self {
        Self { rank1_vars, ..self }
    }

    /// Counts as hung after `timeout_s` seconds of silence.
    pub(super) const fn within(self, timeout_s: u64) -> Self {
        Self { timeout_s, ..self }
    }

    pub(super) const fn faithful(self) -> Self {
        Self { host: Host::Faithful, ..self }
    }

    pub(super) const fn without_verbs(self) -> Self {
        Self { host: Host::WithoutVerbs, ..self }
    }

    pub(super) const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// Whether it takes a software device to set it up.
    pub(crate) fn needs_softrnic(&self) -> bool {
        let names_one = |(name, value): &Variable| {
            let is_taste = matches!(*name, "SOFTRNIC_STRICT" | "SOFTRNIC_LINES");
            value.contains("softrnic") || name.starts_with("SOFTRNIC_") && !is_taste
        };
        self.host == Host::Faithful || self.vars.iter().chain(self.rank1_vars).any(names_one)
    }
}

/// What the machine seems to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    /// Software devices that sysfs does not show, unless there are two rails.
    Plain,
    /// Software devices in sysfs.
    Faithful,
    /// No libibverbs that could be loaded.
    WithoutVerbs,
}

/// Both ranks work.
pub(super) const BOTH_RANKS: Env =
    Env { vars: &[], rank1_vars: &[], host: Host::Plain, alone: false, timeout_s: 20, long: false };
/// Rank 0 works.
pub(super) const RANK0_ONLY: Env = Env { alone: true, ..BOTH_RANKS };

/// Time limit for what the peer or the device has to do.
pub(super) const SOON: Duration = Duration::from_secs(8);

/// How long the device and the system may keep objects that are closed.
pub(super) const SETTLED: Duration = Duration::from_secs(2);

/// Tests a request until it is done, within [`SOON`].
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub(super) fn done(request: Request<'_>, sizes: &mut [i32]) -> Result<()> {
    finished(&mut Deadline::new("a request", SOON), request, sizes)
}

/// The code of the call that failed; 0 for none.
pub(super) fn code<T>(result: &Result<T>) -> u32 {
    match result {
        Ok(_) => 0,
        Err(Error::Call { code, .. }) => *code,
        Err(_) => u32::MAX,
    }
}

/// Tries until `attempt` gives something or fails, for `limit` at most; `None` when the time is
/// over.
///
/// # Errors
/// Those of `attempt`.
pub(super) fn within<T>(
    limit: Duration,
    mut attempt: impl FnMut() -> Result<Option<T>>,
) -> Result<Option<T>> {
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
pub(super) fn open_files_and_threads() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Waits until this process has no more files and threads than `before`. A thread may take up to
/// `limit` to end, and one that was there before may have ended meanwhile.
///
/// # Errors
/// [`Error::Contract`] with both counts.
pub(super) fn no_more_than(before: (usize, usize), limit: Duration) -> Result<()> {
    let mut now = before;
    within(SETTLED, || {
        now = open_files_and_threads();
        Ok((now.0 <= before.0).then_some(()))
    })?;
    ensure!(now.0 <= before.0, "{before:?} files and threads before, {now:?} after");
    let settled = within(limit, || {
        now = open_files_and_threads();
        Ok((now.1 <= before.1).then_some(()))
    })?;
    ensure!(settled.is_some(), "{before:?} files and threads before, {now:?} after");
    Ok(())
}

/// The software device of this process's fabric.
#[derive(Debug, Clone)]
pub(super) struct Softrnic {
    program: PathBuf,
}

/// Objects on all devices of a fabric, of all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Objects {
    pub(super) queue_pairs: u64,
    pub(super) completion_queues: u64,
    pub(super) memory_regions: u64,
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue_pairs, completion_queues, memory_regions } = self;
        write!(
            f,
            "{queue_pairs} queue pairs, {completion_queues} completion queues, {memory_regions} memory regions"
        )
    }
}

impl Softrnic {
    pub(super) fn new(program: &Path) -> Self {
        Self { program: program.into() }
    }

    /// Runs `softrnic WORDS` on the fabric that this process takes part in; what it prints.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be started; [`Error::Refused`] with its words if it fails.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(&self.program).args(words).output().map_err(|source| {
            Error::io(format!("cannot start {}", self.program.display()), source)
        })?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Refused(format!("the software device: {words}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Everything that there is.
    ///
    /// # Errors
    /// As [`Self::run`]; [`Error::Unreadable`] if it is not understood.
    pub(super) fn stat(&self) -> Result<serde_json::Value> {
        serde_json::from_str(&self.run(&["stat", "--json"])?)
            .map_err(|problem| Error::Unreadable(format!("softrnic stat: {problem}")))
    }

    /// How many objects there are.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub(super) fn objects(&self) -> Result<Objects> {
        let stat = self.stat()?;
        let devices = stat["devices"].as_array().cloned().unwrap_or_default();
        let listed = |name: &str| {
            devices.iter().map(|device| device[name].as_array().map_or(0, Vec::len) as u64).sum()
        };
        Ok(Objects {
            queue_pairs: listed("queue_pairs"),
            completion_queues: listed("completion_queues"),
            memory_regions: devices
                .iter()
                .map(|device| device["memory_regions"].as_u64().unwrap_or(0))
                .sum(),
        })
    }

    /// What each queue pair has sent, in messages.
    ///
    /// # Errors
    /// As [`Self::stat`].
    pub(super) fn messages(&self) -> Result<Vec<u64>> {
        let stat = self.stat()?;
        let devices = stat["devices"].as_array().cloned().unwrap_or_default();
        let pairs = devices
            .iter()
            .flat_map(|device| device["queue_pairs"].as_array().cloned().unwrap_or_default());
        Ok(pairs.map(|pair| pair["counters"]["messages"].as_u64().unwrap_or(0)).collect())
    }

    /// Puts a fault rule into force.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub(super) fn inject(&self, rule: &str) -> Result<()> {
        self.run(&["inject", rule]).map(drop)
    }
}

/// Makes a folder with files of libibverbs's names that are no libraries, to be put before the
/// system's own. It is removed when the value is dropped.
pub(super) fn folder() -> Result<TempDir> {
    let failed = |source| Error::io("cannot make a folder without libibverbs", source);
    let folder = tempfile::Builder::new().prefix("ferrite-no-verbs-").tempdir().map_err(failed)?;
    for name in ["libibverbs.so", "libibverbs.so.1"] {
        std::fs::write(folder.path().join(name), "no library").map_err(failed)?;
    }
    Ok(folder)
}

/// The first aligned word that is an address in one of `ranges`, with its offset. Words with a byte
/// `fill` are none: such bytes were not written.
///
/// At other offsets no pointer is looked for: there a port and an address of 127.0.0.0/8 after it
/// can look like one.
pub(super) fn first_pointer(
    bytes: &[u8],
    fill: u8,
    ranges: &[Range<usize>],
) -> Option<(usize, usize)> {
    const WORD: usize = size_of::<usize>();
    (0..bytes.len()).step_by(WORD).zip(bytes.chunks_exact(WORD)).find_map(|(at, word)| {
        let address = usize::from_le_bytes(word.try_into().ok()?);
        let is_pointer =
            !word.contains(&fill) && ranges.iter().any(|range| range.contains(&address));
        is_pointer.then_some((at, address))
    })
}

/// Connects device `from` to a new listener on device `to`, in this process and thread.
pub(crate) fn connect_locally(transport: &Transport, from: usize, to: usize) -> Result<LocalConn> {
    LocalConn::open(
        transport,
        from,
        to,
        &mut Deadline::new("a connection within one process", SOON),
    )
}

/// Connects device `from` to `listener`, whose handle is given, in this process and thread.
pub(crate) fn connect_and_accept(
    transport: &Transport,
    from: usize,
    handle: &mut Handle,
    listener: &mut Listener,
) -> Result<LocalConn> {
    let mut deadline = Deadline::new("a connection within one process", SOON);
    let (send, recv) =
        listener::connect_and_accept(transport, from, handle, listener, &mut deadline, || ())?;
    Ok(LocalConn { send, recv })
}

impl LocalConn {
    /// Sends messages of these sizes, one after the other, and checks every byte.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Stalled`]; [`Error::Contract`] for wrong data.
    pub(crate) fn carries(&self, sizes: &[usize]) -> Result<()> {
        let most = sizes.iter().copied().max().unwrap_or(0).next_multiple_of(4096);
        let (mine, theirs) = (Arc::new(Buffer::new(most)?), Arc::new(Buffer::new(most + 4096)?));
        let (out, into) = (self.send.register(&mine)?, self.recv.register(&theirs)?);
        sizes
            .iter()
            .enumerate()
            .try_for_each(|(i, size)| self.message(&out, &into, *size, i as u64))
    }

    /// Sends one message from the start of `out` to the start of `into`.
    ///
    /// # Errors
    /// As [`LocalConn::carries`].
    pub(crate) fn message(
        &self,
        out: &Region,
        into: &Region,
        size: usize,
        seed: u64,
    ) -> Result<()> {
        plan::fill(out.memory(), 0, size, seed)?;
        let (went, came) = exchange((&self.send, out, 0, size), (&self.recv, into, 0, size))?;
        arrived(into, 0, size, seed, came)?;
        ensure!(went as usize == size, "a send of {size} bytes says that it sent {went}");
        Ok(())
    }
}

/// Where a message comes from, or goes: communicator, memory, offset, size.
type Side<'a, C> = (&'a C, &'a Region, usize, usize);

/// Sends one message and receives one, and tests both in turn, as NCCL's progress thread does: a
/// transport may need to be called at either end for the other to get on. The sizes that the send
/// and the receive report.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub(super) fn exchange(
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

/// Posts a send for the receive that was posted last, and tests that one meanwhile.
///
/// # Errors
/// Those of `post` and of the transport; [`Error::Stalled`]; [`Error::Contract`] if the receive is
/// done before it.
pub(super) fn sent_meanwhile<'c>(
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
pub(super) fn arrived(
    into: &Region,
    offset: usize,
    size: usize,
    seed: u64,
    told: i32,
) -> Result<()> {
    ensure!(told as usize == size, "a receive of {size} bytes says that {told} came");
    if let Some(at) = plan::check(into.memory(), offset, size, seed)? {
        let words =
            format!("byte {} of {size} is {:#04x}, not {:#04x}", at.offset, at.got, at.expected);
        return Err(Error::Contract(words));
    }
    Ok(())
}

/// The longest of some calls, less the time in which others had the processors.
#[derive(Debug, Default)]
pub(crate) struct Slowest(pub(crate) Duration);

impl Slowest {
    pub(crate) fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (waited, start) = (waited_for_a_processor(), Instant::now());
        let result = call();
        let (taken, waited) = (start.elapsed(), waited_for_a_processor().saturating_sub(waited));
        self.0 = self.0.max(taken.saturating_sub(waited));
        result
    }
}

/// How long this thread has been ready to run while others had the processors, in all; 0 where the
/// kernel does not tell (the second number of `schedstat` in proc(5), nanoseconds).
fn waited_for_a_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(
        text.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_sleeps_is_slow() {
        let mut slowest = Slowest::default();
        slowest.time(|| std::thread::sleep(Duration::from_millis(20)));
        slowest.time(|| ());
        assert!(slowest.0 >= Duration::from_millis(10), "{slowest:?}");
    }

    #[test]
    fn settings_that_other_devices_do_not_read_keep_no_point_from_them() {
        let made_up = |vars| BOTH_RANKS.vars(vars).needs_softrnic();
        assert!(!made_up(&[("SOFTRNIC_LINES", "1")]) && !made_up(&[("SOFTRNIC_STRICT", "0")]));
        assert!(
            made_up(&[("SOFTRNIC_FAULTS", "drop")]) && made_up(&[("NCCL_IB_HCA", "softrnic1")])
        );
    }

    const RANGES: [Range<usize>; 2] =
        [0x5500_0000_0000..0x5500_0010_0000, 0x7f00_0000_0000..0x7f00_0400_0000];

    #[test]
    fn an_aligned_address_is_found() {
        let mut handle = [0; 128];
        handle[104..112].copy_from_slice(&0x7f00_03ff_ffff_usize.to_le_bytes());
        assert_eq!(first_pointer(&handle, 0xaa, &RANGES), Some((104, 0x7f00_03ff_ffff)));
        handle[104..112].copy_from_slice(&0x7f00_0400_0000_usize.to_le_bytes());
        assert_eq!(first_pointer(&handle, 0xaa, &RANGES), None);
    }

    #[test]
    fn what_was_not_written_is_no_address() {
        let ranges = [RANGES[0].clone(), 0xaaaa_aaaa_0000..0xaaaa_aaab_0000];
        let handle = 0xaaaa_aaaa_1234_usize.to_le_bytes();
        assert_eq!(first_pointer(&handle, 0xaa, &ranges), None);
        assert_eq!(first_pointer(&handle, 0x55, &ranges), Some((0, 0xaaaa_aaaa_1234)));
    }

    #[test]
    fn a_port_and_a_loopback_address_are_none() {
        let mut handle = [0; 128];
        handle[12..20].copy_from_slice(&[0xeb, 0x9c, 0, 0, 127, 0, 0, 1]);
        // One byte earlier, these would be 0x7f00009ceb00.
        assert_eq!(first_pointer(&handle, 0xaa, &RANGES), None);
    }
}
