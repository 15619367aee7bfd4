//! One thread per card that waits for what nobody polls: the device's events and the peers' control connections.

use super::link::Link;
use crate::error::{Error, Result, errno};
use crate::verbs::context::{AsyncEvent, Context};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

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
    epoll: OwnedFd,
    stop: OwnedFd,
    links: Mutex<Links>,
}

#[derive(Debug, Default)]
struct Links {
    by_key: HashMap<u64, Weak<Link>>,
    next_key: u64,
}

const STOP: u64 = 0;
const DEVICE: u64 = 1;
const FIRST_LINK: u64 = 2;

impl Watcher {
    /// Starts the thread. `heeds`: a fatal event ends the connections; else it is only logged.
    ///
    /// # Errors
    /// No descriptors or no thread can be had.
    pub fn start(context: &Arc<Context>, heeds: bool) -> Result<Self> {
        // SAFETY: plain numbers.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1")?;
        // SAFETY: plain numbers.
        let stop = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }, "eventfd")?;
        context.make_events_nonblocking();
        let links = Mutex::new(Links { next_key: FIRST_LINK, ..Links::default() });
        let shared = Arc::new(Shared { context: Arc::clone(context), heeds, epoll, stop, links });
        shared.wait_for(shared.stop.as_raw_fd(), STOP)?;
        shared.wait_for(context.event_fd().as_raw_fd(), DEVICE)?;
        let run = Arc::clone(&shared);
        let name = format!("ferrite-{}", context.name()).chars().take(15).collect();
        let thread = without_signals(|| std::thread::Builder::new().name(name).spawn(move || run.run()));
        let thread = thread.map_err(|e| Error::io("starting the watcher thread", &e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Also listens to `link`, as long as it lives.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn watch(&self, link: &Arc<Link>) -> Result<()> {
        let key = {
            let mut links = self.shared.lock();
            links.by_key.retain(|_, link| link.strong_count() > 0);
            let key = links.next_key;
            links.next_key += 1;
            links.by_key.insert(key, Arc::downgrade(link));
            key
        };
        self.shared.wait_for(link.fd(), key)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, fd: RawFd, key: u64) -> Result<()> {
        // By edges: a forked child of this process may keep a closed socket alive, and what comes to that must not be
        // reported for ever. All readers read until there is nothing.
        let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: key };
        // SAFETY: open descriptors and a valid event.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::os("epoll_ctl", errno())),
        }
    }

    fn run(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        loop {
            // SAFETY: the array is valid for its length.
            let count =
                unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, -1) };
            if count < 0 && errno() != libc::EINTR {
                log::warn!("{}: nobody watches for device events and dead peers: {}", self.context.name(), errno());
                return;
            }
            for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
                match event.u64 {
                    STOP => return,
                    DEVICE => self.handle_device_events(),
                    key => self.handle_link(key),
                }
            }
        }
    }

    fn handle_link(&self, key: u64) {
        let link = self.lock().by_key.get(&key).and_then(Weak::upgrade);
        let Some(link) = link else { return };
        if !link.handle_readable() {
            // SAFETY: the link keeps its descriptor open.
            unsafe {
                libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, link.fd(), std::ptr::null_mut());
            }
            self.lock().by_key.remove(&key);
        }
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
        let links: Vec<_> = self.lock().by_key.values().filter_map(Weak::upgrade).collect();
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

fn owned(fd: RawFd, call: &str) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::os(call, errno()));
    }
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
