//! The memory that NCCL has registered for one connection.
//!
//! NCCL holds its handles as long as it likes. Their keys depend on the devices of the connection's
//! rails. A lost card is opened again when it comes back, as another device.

use super::nic::Nic;
use super::open_device::{LOSS_LIMIT, OpenDevice};
use crate::error::Result;
use crate::net::background::weak_registry::WeakRegistry;
use crate::net::mr::handle::MrHandle;
use crate::net::peer::state::PeerState;
use crate::proto::MAX_RAILS;
use crate::verbs::clock;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Interval between attempts to register memory on a device that does not work.
const TRY_EVERY: Duration = Duration::from_millis(5);

/// Holds a memory handle for NCCL.
pub trait Holder: Debug + Send + Sync {
    /// The memory handle.
    fn memory(&self) -> &MrHandle;
}

/// The registered memory of one connection.
#[derive(Debug)]
pub struct ConnMemory {
    nic: Arc<Nic>,
    peer: Arc<PeerState>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holders: WeakRegistry<dyn Holder>,
    /// By rail: the device whose keys are used there.
    in_use: [Weak<OpenDevice>; MAX_RAILS],
}

impl ConnMemory {
    /// The memory of a connection of `nic` to `peer`, whose rails are on `devices`, each with its
    /// rail number.
    pub fn new<'a>(
        nic: &Arc<Nic>,
        peer: &Arc<PeerState>,
        devices: impl Iterator<Item = (u8, &'a Arc<OpenDevice>)>,
    ) -> Arc<Self> {
        let state = State { holders: WeakRegistry::new(0), in_use: Default::default() };
        let this = Self { nic: Arc::clone(nic), peer: Arc::clone(peer), state: Mutex::new(state) };
        this.use_devices(devices);
        Arc::new(this)
    }

    /// Adds the memory that `register` registers with the connection's device. Returns the result of
    /// `hold` for its handle. Waits until a device that does not work works again or is lost, at
    /// most [`LOSS_LIMIT`].
    ///
    /// # Errors
    /// As for `register`.
    pub fn add<H: Holder + 'static>(
        &self,
        register: impl Fn(&Nic) -> Result<MrHandle>,
        hold: impl FnOnce(MrHandle) -> Arc<H>,
    ) -> Result<Arc<H>> {
        let begun = clock::now();
        loop {
            // Locked meanwhile: the devices in use must not change before the handle is known here.
            let mut state = self.lock();
            let memory = match register(&self.nic) {
                Ok(memory) => memory,
                Err(e)
                    if !(e.is_recoverable
                        && self.peer.is_recoverable()
                        && clock::since(begun) < LOSS_LIMIT) =>
                {
                    return Err(e);
                }
                Err(_) => {
                    drop(state);
                    clock::sleep(TRY_EVERY);
                    continue;
                }
            };
            state.use_keys(&memory);
            let lost = state.lost().filter(|_| self.peer.is_recoverable());
            let held = hold(memory);
            let holder: Arc<dyn Holder> = Arc::clone(&held) as _;
            state.holders.add(&holder);
            drop(state);
            if let Some(device) = lost {
                // The memory has no key there, and the device's watcher may not have reported the
                // loss yet. Nothing may be posted before.
                self.peer.set_recovering(true);
                self.peer.handle_queue_failure(&format!(
                    "{}: fatal device error",
                    device.context.name()
                ));
            }
            return Ok(held);
        }
    }

    /// Checks that all memory can be registered again, on a returned or another device.
    ///
    /// # Errors
    /// As for [`MrHandle::require_renewable`].
    pub fn require_renewable(&self) -> Result<()> {
        let holders = self.lock().holders.all();
        holders.iter().try_for_each(|holder| holder.memory().require_renewable())
    }

    /// Registers all memory also on `device`, one of the connection's own cards, opened again.
    ///
    /// # Errors
    /// Some of it cannot be registered there, as for [`MrHandle::extend`].
    pub fn renew(&self, device: &OpenDevice) -> Result<()> {
        let holders = self.lock().holders.all();
        holders.iter().try_for_each(|holder| holder.memory().extend(&device.regions))
    }

    /// The connection now uses the rails on `devices`, each with its number, and no others: all
    /// memory gets the keys for them. Returns whether keys may have changed. No work request may be
    /// posted meanwhile.
    pub fn use_devices<'a>(
        &self,
        devices: impl Iterator<Item = (u8, &'a Arc<OpenDevice>)>,
    ) -> bool {
        let mut state = self.lock();
        let before = std::mem::take(&mut state.in_use);
        let mut has_changed = false;
        for (number, device) in devices {
            let place = usize::from(number) % MAX_RAILS;
            state.in_use[place] = Arc::downgrade(device);
            if Weak::ptr_eq(&state.in_use[place], &before[place]) {
                continue;
            }
            has_changed = true;
            state
                .holders
                .all()
                .iter()
                .for_each(|holder| holder.memory().use_card(number, &device.regions));
        }
        has_changed
    }

    /// Keys by rail for local work requests on the registered memory with `length` bytes at `addr`;
    /// `None` if there is no such memory. Zero bytes need no key.
    pub fn lkeys_at(&self, addr: u64, length: u32) -> Option<[u32; MAX_RAILS]> {
        if length == 0 {
            return Some([0; MAX_RAILS]);
        }
        self.find(addr, length, MrHandle::lkeys)
    }

    /// [`Self::lkeys_at`] for the peer's work requests.
    pub fn rkeys_at(&self, addr: u64, length: u32) -> Option<[u32; MAX_RAILS]> {
        self.find(addr, length, |memory| memory.rkeys.all())
    }

    fn find<T>(&self, addr: u64, length: u32, of: impl FnOnce(&MrHandle) -> T) -> Option<T> {
        let holders = self.lock().holders.all();
        holders.iter().map(|holder| holder.memory()).find(|memory| memory.has(addr, length)).map(of)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A lost device among those in use.
    fn lost(&self) -> Option<Arc<OpenDevice>> {
        self.in_use.iter().filter_map(Weak::upgrade).find(|device| device.is_lost())
    }

    /// Gives `memory` the keys of the devices in use.
    fn use_keys(&self, memory: &MrHandle) {
        for (number, device) in (0..).zip(&self.in_use) {
            if let Some(device) = device.upgrade() {
                memory.use_card(number, &device.regions);
            }
        }
    }
}
