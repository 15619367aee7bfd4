//! An RDMA card or one PCI function of a card: what libibverbs opens as one device.

use super::gdr::Gdr;
use super::open_device::OpenDevice;
use crate::error::{Error, Result};
use crate::host::config::Config;
use crate::host::sysfs;
use crate::net::background::watcher::Watcher;
use crate::proto::recovery::move_budget::CardMoves;
use crate::verbs::clock;
use crate::verbs::context::{Context, DeviceAttributes};
use once_cell::sync::OnceCell;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// An RDMA device, and what its ports share. It persists when the device is lost and opened again.
#[derive(Debug)]
pub struct Card {
    // Declared first: its thread stops before the device is closed.
    watcher: OnceCell<Watcher>,
    /// The device as it was last opened.
    device: Mutex<Arc<OpenDevice>>,
    reopening: Mutex<Reopening>,
    /// The device's name, such as `mlx5_0`.
    pub name: String,
    attributes: DeviceAttributes,
    peer_memory: bool,
    dmabuf: bool,
    fail_on_async_error: bool,
    relaxed_ordering: bool,
    pci_path: Option<String>,
    /// Its path in sysfs, which stays the same when it is lost and comes back.
    place: Option<PathBuf>,
    is_virtual: bool,
    /// The lane moves of all of its connections, and since when they are counted.
    moves: Mutex<CardMoves>,
    opened: Instant,
}

/// The attempts to reopen a lost device.
#[derive(Debug, Default)]
struct Reopening {
    /// When to try again.
    next: Option<Instant>,
    /// Why the last attempt failed.
    error: Option<Error>,
}

/// The interval between attempts is a tenth of the time that the device has been lost, within these
/// limits.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Card {
    /// The card of `context`.
    ///
    /// # Errors
    /// A query fails, or the device has no more protection domains.
    pub fn open(context: &Arc<Context>, config: &Config, gdr: &Gdr) -> Result<Arc<Self>> {
        let device = OpenDevice::new(Arc::clone(context), config.relaxed_ordering)?;
        Ok(Arc::new(Self {
            watcher: OnceCell::new(),
            peer_memory: gdr.works_by_address(&device.domain),
            dmabuf: device.domain.supports_dmabuf(),
            device: Mutex::new(device),
            reopening: Mutex::default(),
            name: context.name().to_owned(),
            fail_on_async_error: config.fail_on_async_error,
            relaxed_ordering: config.relaxed_ordering,
            attributes: context.attributes()?,
            pci_path: sysfs::pci_path(context.name(), config.merge_vfs),
            place: sysfs::device_path(context.name()),
            is_virtual: sysfs::is_virtual_function(context.name()),
            moves: Mutex::default(),
            opened: clock::now(),
        }))
    }

    /// Calls `decide` for a lane of one of its connections that wants to move, if the budget of the
    /// card allows it. Otherwise returns how long no lane may move.
    pub fn move_lane(&self, decide: impl FnOnce() -> bool) -> Option<Duration> {
        let mut moves = lock(&self.moves);
        let now = clock::since(self.opened);
        if now < moves.next() {
            return Some(moves.next() - now);
        }
        if decide() {
            moves.handle_move(now);
        }
        None
    }

    /// The device as it was last opened. It may be lost.
    pub fn device(&self) -> Arc<OpenDevice> {
        Arc::clone(&lock(&self.device))
    }

    /// The open device. If it is lost, tries to reopen it, unless that was tried a moment ago.
    ///
    /// # Errors
    /// It is lost, and not back.
    pub fn living_device(&self) -> Result<Arc<OpenDevice>> {
        let device = self.device();
        let Some(lost_at) = device.context.failed_at() else { return Ok(device) };
        let mut reopening = match self.reopening.try_lock() {
            Ok(reopening) => reopening,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // One at a time: the others do not wait.
            Err(TryLockError::WouldBlock) => return Err(self.absent(lost_at, None)),
        };
        // Another thread may have been quicker.
        let now_open = self.device();
        if !Arc::ptr_eq(&now_open, &device) {
            return Ok(now_open);
        }
        let now = clock::now();
        if reopening.next.is_some_and(|next| now < next) {
            return Err(self.absent(lost_at, reopening.error.as_ref()));
        }
        match self.reopen(&device) {
            Ok(opened) => {
                *reopening = Reopening::default();
                Ok(opened)
            }
            Err(e) => {
                let pause =
                    (now.saturating_duration_since(lost_at) / 10).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                *reopening = Reopening { next: Some(clock::now() + pause), error: Some(e) };
                Err(self.absent(lost_at, reopening.error.as_ref()))
            }
        }
    }

    /// # Errors
    /// The device is absent, or cannot be opened or watched.
    fn reopen(&self, lost: &OpenDevice) -> Result<Arc<OpenDevice>> {
        let is_at_place = |name: &str| match &self.place {
            Some(place) => sysfs::device_path(name).as_ref() == Some(place),
            None => name == self.name,
        };
        let context = lost.context.open_again(is_at_place)?;
        let opened = OpenDevice::new(context, self.relaxed_ordering)?;
        let watcher = self.watcher()?;
        watcher.watch_device(&opened.context)?;
        *lock(&self.device) = Arc::clone(&opened);
        log::info!("{}: the device is back after a fatal error, and open again", self.name);
        watcher.events().notify_device_back();
        Ok(opened)
    }

    #[cold]
    fn absent(&self, lost_at: Instant, why: Option<&Error>) -> Error {
        let text = format!(
            "{} was lost by a fatal error {} s ago",
            self.name,
            clock::since(lost_at).as_secs()
        );
        match why {
            None => Error::system(text).recoverable(),
            Some(why) => Error::system(format!("{text} and is not back: {why}")).recoverable(),
        }
    }

    /// If the device is lost: since when, and why it cannot be reopened.
    pub fn loss(&self) -> Option<String> {
        let lost_at = self.device().context.failed_at()?;
        // Locked while another thread reopens the device, which may take long.
        let reopening = self.reopening.try_lock().ok();
        Some(
            self.absent(lost_at, reopening.as_ref().and_then(|reopening| reopening.error.as_ref()))
                .text(),
        )
    }

    /// The card's watcher, which the first call starts.
    ///
    /// # Errors
    /// The watcher cannot be started.
    pub fn watcher(&self) -> Result<&Watcher> {
        self.watcher
            .get_or_try_init(|| Watcher::start(&self.device().context, self.fail_on_async_error))
    }

    /// Lets `watcher` be the card's, which has none.
    #[cfg(any(test, feature = "simulator"))]
    pub fn set_watcher(&self, watcher: Watcher) {
        let _ = self.watcher.set(watcher);
    }

    /// The card's watcher, if it has been started.
    pub fn started_watcher(&self) -> Option<&Watcher> {
        self.watcher.get()
    }

    /// GUID of the card.
    pub fn guid(&self) -> u64 {
        self.attributes.system_image_guid
    }

    /// Number of ports, active or not.
    pub fn port_count(&self) -> u8 {
        self.attributes.port_count
    }

    /// The most queue pairs of the device.
    pub fn max_queue_pairs(&self) -> i32 {
        self.attributes.max_queue_pairs
    }

    /// Whether GPU memory can be registered by address.
    pub fn supports_peer_memory(&self) -> bool {
        self.peer_memory
    }

    /// Whether GPU memory can be registered by dma-buf.
    pub fn supports_dmabuf(&self) -> bool {
        self.dmabuf
    }

    /// Whether it is a virtual function, which shares its port with another card.
    pub fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    /// Path of the PCI function in /sys, if there is one.
    pub fn pci_path(&self) -> Option<&str> {
        self.pci_path.as_deref()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
