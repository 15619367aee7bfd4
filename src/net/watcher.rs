//! One thread per card that waits for what nobody polls: the device's events and the lines to peers.

use super::epoll::{Epoll, Trigger};
use super::line::Line;
use super::link::Link;
use super::roll::Roll;
use crate::error::{Error, Result, errno};
use crate::verbs::context::{AsyncEvent, Context};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Waits on behalf of all connections of a card. Stops when dropped.
#[derive(Debug)]
pub struct Watcher {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    /// Whether a fatal event ends the connections.
    heeds: bool,
    epoll: Epoll,
    stop: OwnedFd,
    /// The connections that a fatal event ends.
    links: Mutex<Roll<Link>>,
    lines: Mutex<Roll<Line>>,
}

/// A pause after lines have been heard. While connections are set up, those who do it read their lines themselves, and the
/// watcher is not to be woken by each word.
const PAUSE: Duration = Duration::from_millis(1);

const STOP: u64 = 0;
const DEVICE: u64 = 1;
const FIRST_LINE: u64 = 2;

impl Watcher {
    /// Starts the thread. `heeds`: a fatal event ends the connections; else it is only logged.
    ///
    /// # Errors
    /// No descriptors or no thread can be had.
    pub fn start(context: &Arc<Context>, heeds: bool) -> Result<Self> {
        let epoll = Epoll::new()?;
        // SAFETY: plain numbers.
        let stop = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")?;
        context.make_events_nonblocking();
        let (links, lines) = (Mutex::new(Roll::new(0)), Mutex::new(Roll::new(FIRST_LINE)));
        let shared = Arc::new(Shared { context: Arc::clone(context), heeds, epoll, stop, links, lines });
        shared.epoll.add(shared.stop.as_raw_fd(), STOP, Trigger::Edge)?;
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

    /// Also listens to `line`, as long as it lives.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn listen(&self, line: &Arc<Line>) -> Result<()> {
        let key = lock(&self.shared.lines).add(line);
        // By edges: a forked child of this process may keep a closed socket alive, and what comes to that must not be
        // reported for ever.
        self.shared.epoll.add(line.fd(), key, Trigger::Room)
    }
}

impl Shared {
    fn run(&self) {
        let mut batch = Epoll::batch();
        // Lines that have more to say than one may say at a time.
        let mut unread: Vec<u64> = Vec::new();
        loop {
            let ready = match self.epoll.wait(&mut batch, if unread.is_empty() { -1 } else { 0 }) {
                Ok(ready) => ready,
                Err(e) => {
                    log::warn!("{}: nobody watches for device events and dead peers: {e}", self.context.name());
                    return;
                }
            };
            let mut has_heard = false;
            for key in std::mem::take(&mut unread).into_iter().chain(ready) {
                match key {
                    STOP => return,
                    DEVICE => self.handle_device_events(),
                    key => {
                        has_heard = true;
                        if self.hear(key) && !unread.contains(&key) {
                            unread.push(key);
                        }
                    }
                }
            }
            if has_heard && unread.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Whether there may be more to hear.
    fn hear(&self, key: u64) -> bool {
        let line = lock(&self.lines).get(key);
        let Some(line) = line else { return false };
        let more = line.read();
        if line.has_ended() {
            lock(&self.lines).remove(key);
        }
        more
    }

    fn handle_device_events(&self) {
        let name = self.context.name();
        while let Some(event) = self.context.next_event() {
            match event {
                AsyncEvent::PortActive(port) => log::info!("{name}:{port} is up"),
                AsyncEvent::PortDown(port) => {
                    log::warn!("{name}:{port} is down; traffic over it waits until the device's retries are exhausted");
                }
                AsyncEvent::GidChange(port) => log::info!("{name}:{port}: the GID table has changed"),
                AsyncEvent::QueuePairError(what) => log::warn!("{name}: {what}"),
                // Nothing more would be reported by the queue, and it cannot be told whose it is.
                AsyncEvent::CompletionQueueError => self.fail_all(&format!("{name}: a completion queue has failed")),
                AsyncEvent::DeviceFatal => self.fail_all(&format!("{name}: fatal device error")),
                AsyncEvent::Other(number) => log::debug!("{name}: event {number}"),
            }
        }
    }

    fn fail_all(&self, reason: &str) {
        if !self.heeds {
            log::warn!("{reason}; NCCL_IB_RETURN_ASYNC_EVENTS=0: its connections go on as far as they can");
            return;
        }
        log::warn!("{reason}; its connections end");
        let links = lock(&self.links).all();
        for link in links {
            link.fail(reason);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let one = 1u64;
        // SAFETY: an open eventfd takes 8 bytes.
        unsafe { libc::write(self.shared.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        if let Some(thread) = self.thread.take() {
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
