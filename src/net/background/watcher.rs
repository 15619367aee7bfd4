//! One thread per card that waits for everything that no other thread polls: device events, this
//! process's control connections and port, and periodic tasks.

use crate::error::{Error, Result};
use crate::net::background::device_events::DeviceEvents;
use crate::net::background::periodic::{PeriodicTask, PeriodicTasks};
use crate::net::background::signals::without_signals;
use crate::net::control::driver::ControlDriver;
use crate::net::control::epoll::{Epoll, Trigger};
use crate::net::control::fork::CloseOnFork;
use crate::net::control::fork::process_id;
use crate::verbs::context::Context;
use rustix::event::EventfdFlags;
use std::os::fd::{AsRawFd, OwnedFd};
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
    /// The process that has the thread. A forked child has neither the thread nor the epoll, and no
    /// watcher.
    owner: u32,
    events: DeviceEvents,
    tasks: PeriodicTasks,
    /// The driver of this process's control connections, if this watcher serves it.
    driver: Mutex<Weak<ControlDriver>>,
    /// The driver, whether or not this watcher serves it.
    known: Mutex<Weak<ControlDriver>>,
    epoll: Epoll,
    wake: Wake,
    stops: AtomicBool,
}

/// Pause after reading control connections. During set-up the callers poll the driver themselves,
/// and the watcher need not wake for each frame.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause after the driver could not accept clients, for example for lack of descriptors.
const LONG_PAUSE: Duration = Duration::from_millis(100);
/// How often periodic tasks run.
const TASKS_EVERY: Duration = Duration::from_secs(1);

const WAKE: u64 = 0;
const DEVICE: u64 = 1;
const CONTROL: u64 = 2;

impl Watcher {
    /// Starts the thread. With `ends_connections`, a fatal event ends the connections; otherwise it
    /// is only logged.
    ///
    /// # Errors
    /// No descriptors are left, or no thread can be started.
    pub fn start(context: &Arc<Context>, ends_connections: bool) -> Result<Self> {
        let shared = Self::prepare(context, ends_connections)?;
        let run = Arc::clone(&shared);
        let name = format!("ferrite-{}", context.name()).chars().take(15).collect();
        let thread =
            without_signals(|| std::thread::Builder::new().name(name).spawn(move || run.run()));
        let thread = thread.map_err(|e| Error::io("starting the watcher thread", &e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A watcher without a thread: the caller calls [`Self::handle_device`].
    #[cfg(any(test, feature = "simulator"))]
    pub fn without_thread(context: &Arc<Context>, ends_connections: bool) -> Result<Self> {
        Ok(Self { shared: Self::prepare(context, ends_connections)?, thread: None })
    }

    /// Handles the events of the device.
    #[cfg(any(test, feature = "simulator"))]
    pub fn handle_device(&self) {
        self.shared.handle_device();
    }

    fn prepare(context: &Arc<Context>, ends_connections: bool) -> Result<Arc<Shared>> {
        let shared = Arc::new(Shared {
            owner: process_id(),
            events: DeviceEvents::new(context, ends_connections)?,
            tasks: PeriodicTasks::default(),
            driver: Mutex::default(),
            known: Mutex::default(),
            epoll: Epoll::new()?,
            wake: Wake::new()?,
            stops: AtomicBool::new(false),
        });
        // Handles earlier events: the descriptor only reports new ones.
        shared.events.handle();
        shared.epoll.add(&shared.wake.fd, WAKE, Trigger::Edge)?;
        shared.epoll.add(context.event_fd(), DEVICE, Trigger::Edge)?;
        Ok(shared)
    }

    /// Handles that the lost device is open again as `context`, and reads events from there.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn watch_device(&self, context: &Arc<Context>) -> Result<()> {
        if self.shared.is_inherited() {
            return Ok(());
        }
        let lost = self.shared.events.replace(context)?;
        self.shared.epoll.remove(lost.event_fd());
        self.shared.epoll.add(context.event_fd(), DEVICE, Trigger::Edge)
    }

    /// The events of the card's device, and its connections.
    pub fn events(&self) -> &DeviceEvents {
        &self.shared.events
    }

    /// Also serves `driver`, as long as it lives, unless another watcher does.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn serve(&self, driver: &Arc<ControlDriver>) -> Result<()> {
        if self.shared.is_inherited() || driver.is_inherited() {
            return Ok(());
        }
        *self.shared.known.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(driver);
        if !driver.begin_to_serve() {
            return Ok(());
        }
        *self.shared.driver.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(driver);
        let added = self.shared.epoll.add(driver.as_ref(), CONTROL, Trigger::Level);
        added.inspect_err(|_| driver.end_to_serve())
    }

    /// Also runs `task`, as long as it lives and returns that there is more to do.
    pub fn run_periodically(&self, task: &Arc<dyn PeriodicTask>) {
        // While it has tasks, it runs them in time without being woken.
        if !self.shared.is_inherited() && self.shared.tasks.add(task) {
            self.shared.wake.ring();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut tasks_due = Instant::now();
        loop {
            let limit = if self.tasks.is_empty() { -1 } else { TASKS_EVERY.as_millis() as i32 };
            let ready = match self.epoll.wait(limit) {
                Ok(ready) => ready,
                Err(e) => {
                    log::warn!(
                        "{}: cannot watch for device events and dead peers: {e}",
                        self.events.device()
                    );
                    self.end_to_serve();
                    return;
                }
            };
            let mut pause = Duration::ZERO;
            for key in ready {
                match key {
                    WAKE if self.stops.load(Ordering::Acquire) => return,
                    DEVICE => self.handle_device(),
                    CONTROL => pause = self.serve(),
                    _ => {}
                }
            }
            if Instant::now() >= tasks_due {
                tasks_due = Instant::now() + TASKS_EVERY;
                self.tasks.run();
            }
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
        }
    }

    fn handle_device(&self) {
        let has_come_up = self.events.handle();
        let driver = self.known.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(driver) = driver.filter(|_| has_come_up) {
            driver.handle_network_change();
        }
    }

    /// Serves the driver. Returns the pause after it.
    fn serve(&self) -> Duration {
        let driver = self.driver.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        match driver.map(|driver| driver.poll()) {
            None | Some(Ok(())) => PAUSE,
            // The listener's owner gets the error.
            Some(Err(_)) => LONG_PAUSE,
        }
    }

    /// Leaves the control connections to another card's watcher.
    fn end_to_serve(&self) {
        if let Some(driver) = self.driver.lock().unwrap_or_else(PoisonError::into_inner).upgrade() {
            driver.end_to_serve();
        }
    }

    fn is_inherited(&self) -> bool {
        self.owner != process_id()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take().filter(|_| !self.shared.is_inherited()) else {
            return;
        };
        self.shared.stops.store(true, Ordering::Release);
        self.shared.wake.ring();
        self.shared.end_to_serve();
        // A task may have dropped the last reference to the card. Then this is the watcher's
        // thread, which is about to end.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

/// Wakes the thread.
#[derive(Debug)]
struct Wake {
    // Declared first, to be dropped before the descriptor is closed.
    _unshared: CloseOnFork,
    fd: OwnedFd,
}

impl Wake {
    fn new() -> Result<Self> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let fd = fd.map_err(|e| Error::os("eventfd", e.raw_os_error()))?;
        Ok(Self { _unshared: CloseOnFork::new(fd.as_raw_fd()), fd })
    }

    fn ring(&self) {
        // A full counter is readable too, so a failed write does no harm.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}
