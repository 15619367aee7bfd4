//! One process: a rank that receives from the one before, and sends to the next.

use crate::common::plugin_transport_of;
use crate::common::prelude::*;
use lab::nccl::profiler::{Event, Profiler};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use testkit::Peer;

/// The variable that gives a process its rank and task.
pub(crate) const VARIABLE: &str = "HANG_RANK";
/// Receives that are posted ahead, and messages that are kept until they are sent on.
const DEPTH: u32 = 4;
const BYTES: usize = 64;
/// The software devices are no more.
pub(crate) const DEVICES: usize = 8;
/// After so many messages a rank says that they flow.
const STEADY: u32 = 10;

/// A rank, and what it does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Rank {
    pub(crate) number: u32,
    /// The rank that it receives from.
    pub(crate) from: Option<u32>,
    /// Whether it sends to the next one.
    pub(crate) sends: bool,
    /// It stops after so many messages that it has sent, or received, and makes no call from then
    /// on.
    pub(crate) stops_after: Option<u32>,
    /// Its receives do not wait until it has sent on, nor its sends until something has arrived.
    pub(crate) is_independent: bool,
    /// When so many messages are sent and complete, and as many have arrived, it makes no call
    /// until [`crate::job::Job::keep_queue_pairs`].
    pub(crate) waits_after: Option<u32>,
    /// A pause after each message; milliseconds.
    pub(crate) pause_ms: u64,
    /// A pause after each round of calls; microseconds.
    pub(crate) idle_us: u64,
    /// The version of the plugin's table.
    pub(crate) abi: u32,
    /// NCCL reports to a profiler that so many operations have begun; the last one still runs.
    pub(crate) begun: Option<u64>,
    /// A thread of its own passes the first message on.
    pub(crate) has_two_threads: bool,
    /// It never calls `connect`.
    pub(crate) never_connects: bool,
    /// It never calls `accept`.
    pub(crate) never_accepts: bool,
    /// Its messages have handles for a profiler, as those of NCCL's operations have from version 10
    /// on.
    pub(crate) has_handles: bool,
}

/// What NCCL carries from `listen` to `connect`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandleBytes(pub(crate) [u8; 128]);

impl Default for HandleBytes {
    fn default() -> Self {
        Self([0; 128])
    }
}

/// Both connections of a rank, as far as it has them, with memory to send from and receive into.
struct Ends<'c> {
    send: Option<(&'c SendComm, Region)>,
    recv: Option<(&'c RecvComm, Region)>,
}

/// Runs until the process is killed, or a call fails.
pub(crate) fn run(rank: Rank, mut parent: Peer) -> Result<()> {
    let transport = transport_of(rank)?;
    let _operation = rank.begun.map(|begun| begin(&transport, rank, begun)).transpose()?;
    let device = rank.number as usize % DEVICES;
    let (handle, mut listener) = transport.listen(device)?;
    parent.send(&HandleBytes(handle.0));
    let mut to = Handle(parent.recv::<HandleBytes>().0);
    let to = rank.sends.then_some(&mut to).filter(|_| !rank.never_connects);
    let listener = rank.from.map(|_| &mut listener).filter(|_| !rank.never_accepts);
    let (send, recv) = connect(&transport, device, to, listener)?;
    let memory = || Buffer::new(BYTES).map(Arc::new);
    let ends = Ends {
        send: send
            .as_ref()
            .map(|send| Ok::<_, Error>((send, send.register(&memory()?)?)))
            .transpose()?,
        recv: recv
            .as_ref()
            .map(|recv| Ok::<_, Error>((recv, recv.register(&memory()?)?)))
            .transpose()?,
    };
    if rank.has_two_threads {
        std::thread::scope(|scope| {
            scope.spawn(|| pass_one_on(rank, &ends)).join().expect("no panic")
        })?;
    }
    pass_on(rank, &ends, parent)
}

fn transport_of(rank: Rank) -> Result<Transport> {
    match rank.has_handles {
        true => Transport::open_with_handles(&Source::plugin_of(
            dist().join("lib/libnccl-net.so"),
            rank.abi,
        )),
        false => plugin_transport_of(rank.abi),
    }
}

/// Reports `begun` operations to the plugin's profiler as NCCL does. The last one runs as long as
/// the communicator is there.
fn begin(transport: &Transport, rank: Rank, begun: u64) -> Result<(Profiler, Vec<Event>)> {
    // The transport's communicator has this number.
    let profiler = Profiler::begin(&transport.identity().file, 6, 1, c"dp", rank.number as i32, 4)?;
    let mut live = Vec::new();
    for number in 0..begun {
        live.iter().for_each(|event| profiler.stop(*event));
        let operation = profiler.collective(c"AllReduce", number);
        let to = rank.sends.then(|| profiler.proxy(operation, rank.number as i32 + 1, true));
        let from = rank.from.map(|from| profiler.proxy(operation, from as i32, false));
        live = to.into_iter().chain(from).collect();
    }
    Ok((profiler, live))
}

/// Connects to the handle and accepts at the listener, as far as they are given.
fn connect(
    transport: &Transport,
    device: usize,
    mut to: Option<&mut Handle>,
    mut listener: Option<&mut Listener>,
) -> Result<(Option<SendComm>, Option<RecvComm>)> {
    let (mut send, mut recv) = (None, None);
    loop {
        if let Some(to) = to.as_deref_mut().filter(|_| send.is_none()) {
            send = transport.connect(device, to)?;
        }
        if let Some(listener) = listener.as_deref_mut().filter(|_| recv.is_none()) {
            recv = listener.accept()?;
        }
        if send.is_some() == to.is_some() && recv.is_some() == listener.is_some() {
            return Ok((send, recv));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Receives one message and then sends one, as far as the rank does that. In a ring all would wait
/// for the first one.
fn pass_one_on(rank: Rank, ends: &Ends<'_>) -> Result<()> {
    if let Some((recv, region)) = &ends.recv {
        complete(|| recv.receive(region, 0, BYTES, rank.from.unwrap_or(0) as i32))?;
    }
    if let Some((send, region)) = &ends.send {
        complete(|| send.send(region, 0, BYTES, rank.number as i32))?;
    }
    Ok(())
}

/// Makes `call` until there is a request, and waits until that is done.
fn complete<'c>(call: impl Fn() -> Result<Option<Request<'c>>>) -> Result<()> {
    let mut request = loop {
        if let Some(request) = call()? {
            break request;
        }
    };
    while !request.test(&mut [0])? {}
    Ok(())
}

fn pass_on(mut rank: Rank, ends: &Ends<'_>, mut parent: Peer) -> Result<()> {
    let (mut posted, mut arrived, mut sent) = (0_u32, 0_u32, 0_u32);
    let (mut receives, mut sends): (VecDeque<Request<'_>>, VecDeque<Request<'_>>) =
        Default::default();
    let (mut next_send, mut has_begun) = (Instant::now(), false);
    loop {
        std::thread::sleep(Duration::from_micros(rank.idle_us));
        if rank.waits_after.is_some_and(|most| {
            sent == most && sends.is_empty() && (ends.recv.is_none() || arrived >= most)
        }) {
            eprintln!("rank {} waits for the test", rank.number);
            parent.recv::<u8>();
            rank.waits_after = None;
        }
        let is_stopped = rank.stops_after.is_some_and(|most| sent.max(arrived) >= most);
        if let Some((recv, region)) = ends.recv.as_ref().filter(|_| !is_stopped) {
            // What has arrived is kept until it is sent on.
            let kept =
                if rank.sends && !rank.is_independent { arrived.saturating_sub(sent) } else { 0 };
            while posted < arrived + DEPTH
                && kept < DEPTH
                && let Some(request) =
                    recv.receive(region, 0, BYTES, rank.from.unwrap_or(0) as i32)?
            {
                posted += 1;
                receives.push_back(request);
            }
        }
        arrived += finished(&mut receives)?;
        if let Some((send, region)) =
            ends.send.as_ref().filter(|_| !is_stopped && Instant::now() >= next_send)
        {
            // In a ring each rank is one message ahead.
            let may_send = rank.from.is_none() || rank.is_independent || sent < arrived + 1;
            if may_send
                && rank.waits_after != Some(sent)
                && sends.len() < DEPTH as usize
                && let Some(request) = send.send(region, 0, BYTES, rank.number as i32)?
            {
                sent += 1;
                sends.push_back(request);
                next_send = Instant::now() + Duration::from_millis(rank.pause_ms);
            }
        }
        finished(&mut sends)?;
        if !has_begun && sent.max(arrived) > STEADY {
            has_begun = true;
            eprintln!("rank {} passes messages on", rank.number);
        }
    }
}

/// Takes the requests off that are done; how many.
fn finished(requests: &mut VecDeque<Request<'_>>) -> Result<u32> {
    let mut count = 0;
    while let Some(request) = requests.front_mut() {
        if !request.test(&mut [0])? {
            break;
        }
        requests.pop_front();
        count += 1;
    }
    Ok(count)
}
