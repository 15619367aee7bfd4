//! One process that talks to itself: no second process whose pace could change what the transport
//! does. One thread makes every call in a fixed order. So a run executes the same instructions each
//! time, and their counts compare two transports.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::measure::plan;
use crate::measure::stream::TAG;
use crate::measure::turns::START;
use crate::nccl::library::Source;
use crate::system::host;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{Region, Request};
use crate::transport::deadline::{Deadline, finished, posted};
use crate::transport::instance::Transport;
use crate::transport::listener::LocalConn;
use crate::verbs::{Verbs, new_fabric_name};

/// Makes `count` connections, each closed before the next.
fn each(endpoints: &Endpoints, count: u32) -> Result<String> {
    let start = Instant::now();
    for _ in 0..count {
        endpoints.connect()?.close()?;
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    Ok(format!("{count} connections made and closed, {us:.1} us each"))
}

/// Makes `count` connections and holds them. One that is made before and closed pays for what a
/// process needs once.
fn all(endpoints: &Endpoints, count: u32) -> Result<String> {
    endpoints.connect()?.close()?;
    let mut conns = Vec::with_capacity(count as usize);
    let before = host::resident()?;
    let start = Instant::now();
    for _ in 0..count {
        conns.push(endpoints.connect()?);
    }
    let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(count);
    let after = host::resident()?;
    conns.into_iter().try_for_each(LocalConn::close)?;
    let per_comm = |before: u64, after: u64| after.saturating_sub(before) / (2 * u64::from(count));
    Ok(format!(
        "{count} connections held, {us:.1} us each, {} B resident per comm, of which {} B shared memory",
        per_comm(before.all, after.all),
        per_comm(before.shared, after.shared)
    ))
}

/// A transport that is ready, and the two devices that talk.
pub(crate) struct Endpoints {
    pub(crate) transport: Transport,
    pub(crate) listener: usize,
    pub(crate) sender: usize,
    pub(crate) silence: Duration,
}

impl Endpoints {
    /// A connection from the sender's device to the listener's.
    pub(crate) fn connect(&self) -> Result<LocalConn> {
        LocalConn::open(
            &self.transport,
            self.sender,
            self.listener,
            &mut self.deadline("connecting to itself"),
        )
    }

    fn deadline(&self, what: &'static str) -> Deadline {
        Deadline::new(what, self.silence)
    }
}

/// How often calls are made that find nothing, in each round of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EmptyCalls {
    /// `isend` without a receive.
    pub(crate) sends: u32,
    /// `test` of a receive that nothing was sent to.
    pub(crate) tests: u32,
}

/// What to do, with what.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// What to load.
    pub(crate) source: Source,
    /// Which libibverbs it has to be using.
    pub(crate) verbs: Verbs,
    /// Device index of the listener and of the sender; `None`: 0, and for the sender the second
    /// device if there is one.
    pub(crate) devices: [Option<usize>; 2],
    /// How long nothing may happen.
    pub(crate) silence: Duration,
    /// What to do.
    pub(crate) work: Work,
}

/// What the process does with its transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Send messages over one connection and check the last ones.
    Messages {
        /// The size of each.
        bytes: usize,
        /// How many.
        count: u64,
        /// How many are in flight at a time.
        depth: usize,
        /// Calls of each round that find nothing.
        empty_calls: EmptyCalls,
    },
    /// Make connections and close them.
    Connections {
        /// How many.
        count: u32,
        /// Whether all are open at once; else each is closed before the next is made.
        hold: bool,
    },
}

impl Job {
    /// Does it, and returns the result in one line. Replaces the process by itself with the
    /// environment that workers get, since the loader reads its part at the start: whatever the
    /// caller did before is done a second time.
    ///
    /// # Errors
    /// Those of the transport; [`crate::error::Error::Refused`] if it uses another libibverbs;
    /// [`crate::error::Error::Data`] if a message is wrong; [`crate::error::Error::Stalled`];
    /// [`crate::error::Error::Io`] if the process cannot be replaced.
    pub(crate) fn run(&self) -> Result<String> {
        ensure_environment(&self.verbs, self.source.net_plugin())?;
        host::raise_open_files();
        let line = self.perform();
        clean(&self.verbs);
        line
    }

    fn perform(&self) -> Result<String> {
        let transport = Transport::open(&self.source)?;
        let endpoints = Endpoints {
            listener: transport.device_of(0, self.devices[0])?,
            sender: transport.device_of(1, self.devices[1])?,
            silence: self.silence,
            transport,
        };
        self.verbs.prove()?;
        let result = match self.work {
            Work::Messages { bytes, count, depth, empty_calls } => {
                run(&endpoints, bytes, count, depth, empty_calls)?
            }
            Work::Connections { count, hold: false } => each(&endpoints, count)?,
            Work::Connections { count, hold: true } => all(&endpoints, count)?,
        };
        Ok(format!("{}: {result}", endpoints.transport.name()))
    }
}

// Messages from this process to itself, in rounds of a fixed order: all receives, all sends, the
// tests of the sends, the tests of the receives. On request, calls without effect come before and
// behind the receives.

/// Sends `count` messages of `bytes` bytes, `depth` to a round, with calls without effect. Checks the
/// messages of the last round.
fn run(
    endpoints: &Endpoints,
    bytes: usize,
    count: u64,
    depth: usize,
    empty_calls: EmptyCalls,
) -> Result<String> {
    let conn = endpoints.connect()?;
    let mut path = Path { empty_calls, ..Path::new(endpoints, &conn, bytes, depth)? };
    let last = ((count - 1) % depth as u64) as usize + 1;
    let rounds = (count - last as u64) / depth as u64;
    path.fill(0)?;
    thread::sleep(START);
    let start = Instant::now();
    for _ in 0..rounds {
        path.round(depth)?;
    }
    let mut spent = start.elapsed();
    path.fill(1)?;
    let start = Instant::now();
    path.round(last)?;
    spent += start.elapsed();
    path.check(1, last)?;
    let [sends, tests] = path.least;
    drop(path);
    conn.close()?;
    let us = spent.as_secs_f64() * 1e6 / count as f64;
    let mut line =
        format!("{count} messages of {bytes} B, {depth} in flight, {us:.3} us per message");
    for (what, calls, least) in
        [("isend", empty_calls.sends, sends), ("test", empty_calls.tests, tests)]
    {
        if calls > 0 {
            line += &format!(
                ", {:.2} ns per {what} without effect",
                least.as_secs_f64() * 1e9 / f64::from(calls)
            );
        }
    }
    Ok(line)
}

/// A connection with registered memory at both ends.
pub(crate) struct Path<'w> {
    conn: &'w LocalConn,
    out: Region,
    into: Region,
    bytes: usize,
    /// Between the places of two messages in flight; bytes.
    stride: usize,
    depth: usize,
    empty_calls: EmptyCalls,
    /// The least time that the sends and the tests without effect of a round have taken.
    least: [Duration; 2],
    deadline: Deadline,
}

impl<'w> Path<'w> {
    /// For messages of `bytes` bytes, of which `depth` are in flight.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Io`] if there is no memory.
    pub(crate) fn new(
        endpoints: &Endpoints,
        conn: &'w LocalConn,
        bytes: usize,
        depth: usize,
    ) -> Result<Self> {
        let stride = bytes.next_multiple_of(4096);
        Ok(Self {
            conn,
            out: conn.send.register(&Arc::new(Buffer::new(depth * stride)?))?,
            into: conn.recv.register(&Arc::new(Buffer::new(depth * stride)?))?,
            bytes,
            stride,
            depth,
            empty_calls: EmptyCalls::default(),
            least: [Duration::MAX; 2],
            deadline: endpoints.deadline("a message to itself"),
        })
    }

    /// Writes what the messages of the next rounds contain.
    pub(crate) fn fill(&self, test: u64) -> Result<()> {
        (0..self.depth).try_for_each(|index| {
            plan::fill(
                self.out.memory(),
                index * self.stride,
                self.bytes,
                plan::seed(test, 0, index as u64),
            )
        })
    }

    /// Compares what the first `count` messages of the last round brought.
    pub(crate) fn check(&self, test: u64, count: usize) -> Result<()> {
        for index in 0..count {
            let seed = plan::seed(test, 0, index as u64);
            if let Some(wrong) =
                plan::check(self.into.memory(), index * self.stride, self.bytes, seed)?
            {
                return Err(Error::Data(format!(
                    "message {index} of the last {count}, offset {}: expected {:#04x}, got {:#04x}",
                    wrong.offset, wrong.expected, wrong.got
                )));
            }
        }
        Ok(())
    }

    /// The calls of `isend` that there is no receive for.
    fn send_empty(&mut self) -> Result<()> {
        let start = Instant::now();
        for _ in 0..self.empty_calls.sends {
            if self.conn.send.send(&self.out, 0, self.bytes, TAG)?.is_some() {
                return Err(Error::Data(
                    "a message was accepted that there is no receive for".into(),
                ));
            }
        }
        self.least[0] = self.least[0].min(start.elapsed());
        Ok(())
    }

    /// One round of `count` messages.
    ///
    /// # Errors
    /// Those of the transport; [`Error::Data`] if a message has another length; [`Error::Stalled`].
    pub(crate) fn round(&mut self, count: usize) -> Result<()> {
        self.send_empty()?;
        let Self {
            conn, ref out, ref into, bytes, stride, ref mut deadline, ref mut least, ..
        } = *self;
        let mut receives = Receives::new(bytes);
        for index in 0..count {
            receives
                .push(posted(deadline, || conn.recv.receive(into, index * stride, bytes, TAG))?);
        }
        let tests = self.empty_calls.tests;
        let start = Instant::now();
        for _ in 0..tests {
            if receives.test_oldest()? {
                return Err(Error::Data("a receive was complete before anything was sent".into()));
            }
        }
        least[1] = least[1].min(start.elapsed());
        let mut sends = Vec::with_capacity(count);
        for index in 0..count {
            let send = || conn.send.send(out, index * stride, bytes, TAG);
            sends.push(loop {
                if let Some(request) = send()? {
                    break request;
                }
                // A transport may announce receives in batches: testing one announces them.
                receives.test_oldest()?;
                deadline.idle()?;
            });
        }
        for request in sends {
            finished(deadline, request, &mut [0])?;
        }
        while !receives.is_empty() {
            if !receives.test_oldest()? {
                deadline.idle()?;
            }
        }
        deadline.progress();
        Ok(())
    }
}

/// The receives of a round, oldest first.
struct Receives<'c> {
    requests: std::collections::VecDeque<Request<'c>>,
    bytes: usize,
}

impl<'c> Receives<'c> {
    fn new(bytes: usize) -> Self {
        Self { requests: std::collections::VecDeque::new(), bytes }
    }

    fn push(&mut self, request: Request<'c>) {
        self.requests.push_back(request);
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Tests the oldest one once; whether it is done.
    fn test_oldest(&mut self) -> Result<bool> {
        let mut size = [0];
        let Some(request) = self.requests.front_mut() else { return Ok(false) };
        if !request.test(&mut size)? {
            return Ok(false);
        }
        self.requests.pop_front();
        if size[0] as usize == self.bytes {
            return Ok(true);
        }
        Err(Error::Data(format!("a message of {} B came with {} B", self.bytes, size[0])))
    }
}

/// Set in a process that has been replaced: the name of its fabric.
const MARK: &str = "FERRITE_SOLO";

/// Returns in a process that has the environment workers get; replaces any other by itself.
///
/// # Errors
/// [`Error::Io`] if the process cannot be replaced.
fn ensure_environment(verbs: &Verbs, net_plugin: &str) -> Result<()> {
    if std::env::var_os(MARK).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
    // The process keeps its id, so the fabric's name names its owner.
    let fabric = new_fabric_name();
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    verbs.apply(&mut command, &fabric);
    // One line of output, unless the user wants more: the built-in transport warns on stdout.
    if std::env::var_os("NCCL_DEBUG").is_none() {
        command.env_remove("NCCL_DEBUG");
    }
    command.env("NCCL_NET_PLUGIN", net_plugin).env(MARK, fabric);
    Err(Error::io("cannot start this program again", command.exec()))
}

/// Removes what the software device leaves when a process does not end in order.
fn clean(verbs: &Verbs) {
    if let Ok(fabric) = std::env::var(MARK) {
        verbs.clean(&fabric);
    }
}
