//! One thread per card that waits for what nobody polls: the device's events, the lines to peers, and the port at which peers
//! call again that have lost one. It dials again for connections whose line is lost, and clears away what set-up has left.

use super::epoll::{Epoll, Trigger};
use super::line::Line;
use super::link::Link;
use super::owners::{Owner, Owners};
use super::reception::Reception;
use super::redial::Redial;
use super::roll::Roll;
use crate::error::{Error, Result, errno};
use crate::verbs::context::{AsyncEvent, Context};
use std::fmt::Debug;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Waits on behalf of all connections of a card. Stops when dropped.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The process that has the thread. A forked child has neither that nor the epoll, and nobody watches there.
    owner: u32,
    context: Arc<Context>,
    /// Whether a fatal event ends the connections.
    heeds: bool,
    epoll: Epoll,
    /// Wakes the thread.
    bell: OwnedFd,
    stops: AtomicBool,
    /// The connections that a fatal event ends.
    links: Mutex<Roll<Link>>,
    /// Those of them to which a completion queue belongs.
    owners: Mutex<Owners<Link>>,
    lines: Mutex<Roll<Line>>,
    /// Ports, and what strangers there have to say their first words.
    ports: Mutex<Vec<(Weak<Reception>, Duration)>>,
    /// Connections that need another line.
    lost: Mutex<Vec<Weak<Link>>>,
    chores: Mutex<Vec<Weak<dyn Chore>>>,
}

/// What has to be done now and then, as long as it says so.
pub trait Chore: Debug + Send + Sync {
    /// Does it; whether there will be more to do. It must not wait for anybody who waits for a watcher.
    fn attend(&self) -> bool;
}

/// A pause after lines have been heard. While connections are set up, those who do it read their lines themselves, and the
/// watcher is not to be woken by each word.
const PAUSE: Duration = Duration::from_millis(1);
/// A pause after a port could not be served: this process has too many descriptors, say.
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// How often connections whose line is lost are looked after.
const REDIAL_EVERY: Duration = Duration::from_millis(20);
/// How often chores are done, and strangers looked after.
const CHORES_EVERY: Duration = Duration::from_secs(1);

const BELL: u64 = 0;
const DEVICE: u64 = 1;
const PORT: u64 = 2;
const FIRST_LINE: u64 = 3;

impl Watcher {
    /// Starts the thread. `heeds`: a fatal event ends the connections; else it is only logged.
    ///
    /// # Errors
    /// No descriptors or no thread can be had.
    pub fn start(context: &Arc<Context>, heeds: bool) -> Result<Self> {
        let epoll = Epoll::new()?;
        // SAFETY: plain numbers.
        let bell = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")?;
        context.make_events_nonblocking()?;
        let shared = Arc::new(Shared {
            owner: std::process::id(),
            context: Arc::clone(context),
            heeds,
            epoll,
            bell,
            stops: AtomicBool::new(false),
            links: Mutex::new(Roll::new(0)),
            owners: Mutex::default(),
            lines: Mutex::new(Roll::new(FIRST_LINE)),
            ports: Mutex::default(),
            lost: Mutex::default(),
            chores: Mutex::default(),
        });
        shared.epoll.add(shared.bell.as_raw_fd(), BELL, Trigger::Edge)?;
        shared.epoll.add(context.event_fd().as_raw_fd(), DEVICE, Trigger::Edge)?;
        let run = Arc::clone(&shared);
        let name = format!("ferrite-{}", context.name()).chars().take(15).collect();
        let thread = without_signals(|| std::thread::Builder::new().name(name).spawn(move || run.run()));
        let thread = thread.map_err(|e| Error::io("starting the watcher thread", &e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// From now on a fatal event ends `link`, as long as it lives.
    pub fn watch(&self, link: &Arc<Link>) {
        lock(&self.shared.links).add(link);
    }

    /// A failure of the completion queue with this id ends `link`, and no other connection.
    pub fn watch_queue(&self, queue: u64, link: &Arc<Link>) {
        lock(&self.shared.owners).add(queue, link);
    }

    /// Also listens to `line`, as long as it lives, unless somebody does already; if it is lost, dials again for its
    /// connections.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn listen(&self, line: &Arc<Line>) -> Result<()> {
        self.shared.listen(line)
    }

    /// Also serves `reception`, as long as it lives, unless somebody does already. `patience` is what strangers have to say
    /// their first words.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn attend(&self, reception: &Arc<Reception>, patience: Duration) -> Result<()> {
        if self.shared.is_inherited() || !reception.begin_to_watch() {
            return Ok(());
        }
        let mut ports = lock(&self.shared.ports);
        ports.retain(|(port, _)| port.strong_count() > 0);
        ports.push((Arc::downgrade(reception), patience));
        drop(ports);
        let added = self.shared.epoll.add(reception.fd(), PORT, Trigger::Level);
        added.inspect_err(|_| reception.is_not_watched())
    }

    /// Also does `chore`, as long as it lives and says that there will be more to do.
    pub fn take_up(&self, chore: &Arc<dyn Chore>) {
        if self.shared.is_inherited() {
            return;
        }
        let mut chores = lock(&self.shared.chores);
        if !chores.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(chore))) {
            chores.push(Arc::downgrade(chore));
            self.shared.ring();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut batch = Epoll::batch();
        // Lines that have more to say than one may say at a time.
        let mut unread: Vec<u64> = Vec::new();
        let mut redials: Vec<Redial> = Vec::new();
        let mut chores_due = Instant::now();
        loop {
            let ready = match self.epoll.wait(&mut batch, self.patience_ms(!unread.is_empty(), !redials.is_empty())) {
                Ok(ready) => ready,
                Err(e) => {
                    log::warn!("{}: nobody watches for device events and dead peers: {e}", self.context.name());
                    return;
                }
            };
            let mut pause = Duration::ZERO;
            for key in std::mem::take(&mut unread).into_iter().chain(ready) {
                match key {
                    BELL if self.stops.load(Ordering::Acquire) => return,
                    BELL => {}
                    DEVICE => self.handle_device_events(),
                    PORT => pause = pause.max(self.serve_ports()),
                    key => {
                        pause = pause.max(PAUSE);
                        if self.hear(key) && !unread.contains(&key) {
                            unread.push(key);
                        }
                    }
                }
            }
            let lost = std::mem::take(&mut *lock(&self.lost));
            redials.extend(lost.into_iter().map(Redial::new));
            redials.retain_mut(|redial| redial.advance(&mut |line| self.follow(line)));
            if Instant::now() >= chores_due {
                chores_due = Instant::now() + CHORES_EVERY;
                self.do_chores();
            }
            if unread.is_empty() && !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    }

    /// How long there is nothing to do if nothing comes; -1 for ever.
    fn patience_ms(&self, is_unread: bool, is_redialling: bool) -> i32 {
        if is_unread || !lock(&self.lost).is_empty() {
            return 0;
        }
        let has_strangers = |port: &(Weak<Reception>, _)| port.0.upgrade().is_some_and(|port| port.has_strangers());
        let limit = match is_redialling {
            true => REDIAL_EVERY,
            false if !lock(&self.chores).is_empty() => CHORES_EVERY,
            false if lock(&self.ports).iter().any(has_strangers) => CHORES_EVERY,
            false => return -1,
        };
        i32::try_from(limit.as_millis()).unwrap_or(i32::MAX)
    }

    fn is_inherited(&self) -> bool {
        self.owner != std::process::id()
    }

    fn ring(&self) {
        let one = 1u64;
        // SAFETY: an open eventfd takes 8 bytes; one that is full rings as well.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    fn listen(&self, line: &Arc<Line>) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        if line.begin_to_watch() {
            let key = lock(&self.lines).add(line);
            // By edges: what comes on a line that has ended is not reported for ever.
            self.epoll.add(line.fd(), key, Trigger::Room).inspect_err(|_| line.is_not_watched())?;
        }
        // Then nobody will hear it again.
        if line.has_ended() {
            self.take_over(line);
        }
        Ok(())
    }

    /// The same for a line that was dialled again; without it, whoever waits on it looks now and then.
    fn follow(&self, line: &Arc<Line>) {
        let _ = self.listen(line).inspect_err(|e| log::debug!("{}: {e}", self.context.name()));
    }

    /// From now on this watcher looks for another line for the connections of `line`, which has ended.
    fn take_over(&self, line: &Line) {
        let lost = line.take_lost();
        if !lost.is_empty() {
            lock(&self.lost).extend(lost);
            self.ring();
        }
    }

    /// Whether there may be more to hear.
    fn hear(&self, key: u64) -> bool {
        let line = lock(&self.lines).get(key);
        let Some(line) = line else { return false };
        let more = line.read();
        if line.has_ended() {
            lock(&self.lines).remove(key);
            self.take_over(&line);
        }
        more
    }

    /// The pause after it.
    fn serve_ports(&self) -> Duration {
        let ports: Vec<_> = lock(&self.ports).iter().filter_map(|(port, t)| Some((port.upgrade()?, *t))).collect();
        match ports.iter().all(|(port, patience)| port.poll(*patience).is_ok()) {
            true => PAUSE,
            // Whoever accepts is told.
            false => LONG_PAUSE,
        }
    }

    fn do_chores(&self) {
        self.serve_ports();
        // Off the list meanwhile, so that one that comes back is put on it; and the list is not locked.
        let chores = std::mem::take(&mut *lock(&self.chores));
        for chore in chores {
            if !chore.upgrade().is_some_and(|chore| chore.attend()) {
                continue;
            }
            let mut chores = lock(&self.chores);
            if !chores.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), chore.as_ptr())) {
                chores.push(chore);
            }
        }
    }

    fn handle_device_events(&self) {
        let name = self.context.name();
        while let Some(occurrence) = self.context.next_event() {
            let event = occurrence.event.clone();
            let owner = match event {
                AsyncEvent::CompletionQueueError(queue) => lock(&self.owners).of(queue),
                _ => Owner::Unknown,
            };
            // From here on a queue that it names may go, and its id be another's.
            drop(occurrence);
            match event {
                AsyncEvent::PortActive(port) => log::info!("{name}:{port} is up"),
                AsyncEvent::PortDown(port) => {
                    log::warn!("{name}:{port} is down; traffic over it waits until the device's retries are exhausted");
                }
                AsyncEvent::GidChange(port) => log::info!("{name}:{port}: the GID table has changed"),
                AsyncEvent::QueuePairError(what) => log::warn!("{name}: {what}"),
                // Nothing more would be reported by the queue.
                AsyncEvent::CompletionQueueError(_) => {
                    let reason = format!("{name}: a completion queue has failed");
                    match owner {
                        Owner::Known(link) => self.fail(
                            &reason,
                            &format!("the connection to {} ends", link.peer()),
                            std::slice::from_ref(&link),
                        ),
                        Owner::Gone => log::debug!("{reason}, of a connection that is closed"),
                        Owner::Unknown => self.fail_all(&reason),
                    }
                }
                AsyncEvent::DeviceFatal => self.fail_all(&format!("{name}: fatal device error")),
                AsyncEvent::Other(number) => log::debug!("{name}: event {number}"),
            }
        }
    }

    fn fail_all(&self, reason: &str) {
        let links = lock(&self.links).all();
        self.fail(reason, "its connections end", &links);
    }

    /// `what` is said to happen to `links`, if fatal events are heeded.
    fn fail(&self, reason: &str, what: &str, links: &[Arc<Link>]) {
        if !self.heeds {
            log::warn!("{reason}; NCCL_IB_RETURN_ASYNC_EVENTS=0: its connections go on as far as they can");
            return;
        }
        log::warn!("{reason}; {what}");
        for link in links {
            link.fail(reason);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().filter(|_| !self.shared.is_inherited()) else { return };
        self.shared.stops.store(true, Ordering::Release);
        self.shared.ring();
        // A chore may have dropped the last of what kept the card: then this is that thread, which is about to end.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Runs `body` with all signals blocked, which a thread started in it inherits: the host's handlers are not to run on it.
fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain data, filled in by the calls below.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: valid places for sets.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
    let result = body();
    // SAFETY: the set that the call above has filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn owned(fd: RawFd, call: &str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::os(call, errno()));
    }
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
