//! The memory that NCCL has registered for one connection: on the device's own cards, and on the card of a port that is borrowed.

use super::card::Card;
use super::nic::Nic;
use super::rail::Rail;
use crate::error::Result;
use crate::net::control::weak_registry::WeakRegistry;
use crate::net::mr::handle::MrHandle;
use crate::proto::MAX_RAILS;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What holds a memory handle for NCCL.
pub trait Holder: Debug + Send + Sync {
    /// The memory handle.
    fn memory(&self) -> &MrHandle;
}

/// The registered memory of one connection.
#[derive(Debug)]
pub struct ConnMemory {
    nic: Arc<Nic>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    holders: WeakRegistry<dyn Holder>,
    /// Ports of other cards that rails use in place of their own, by rail.
    borrowed: [Option<Arc<Rail>>; MAX_RAILS],
    /// Cards of other devices on which new memory is registered too.
    cards: Vec<Arc<Card>>,
}

impl ConnMemory {
    /// That of a connection of `nic`.
    pub fn new(nic: &Arc<Nic>) -> Arc<Self> {
        let state = State { holders: WeakRegistry::new(0), borrowed: Default::default(), cards: Vec::new() };
        Arc::new(Self { nic: Arc::clone(nic), state: Mutex::new(state) })
    }

    /// Adds the memory that `register` registers with the connection's device and these other cards, and returns what `hold` makes of
    /// its handle.
    ///
    /// # Errors
    /// As `register`.
    pub fn add<H: Holder + 'static>(
        &self,
        register: impl FnOnce(&Nic, &[Arc<Card>]) -> Result<MrHandle>,
        hold: impl FnOnce(MrHandle) -> Arc<H>,
    ) -> Result<Arc<H>> {
        // Locked meanwhile: the ports that are in use do not change before the handle is known here.
        let mut state = self.lock();
        let memory = register(&self.nic, &state.cards)?;
        state.use_borrowed(&memory);
        let held = hold(memory);
        let holder: Arc<dyn Holder> = Arc::clone(&held) as _;
        state.holders.add(&holder);
        Ok(held)
    }

    /// Registers all memory on `card` too, and from now on new memory. No work request may be posted meanwhile.
    ///
    /// # Errors
    /// Some of it cannot be registered there.
    pub fn extend(&self, card: &Arc<Card>) -> Result<()> {
        let mut state = self.lock();
        state.holders.all().iter().try_for_each(|holder| holder.memory().extend(&card.regions))?;
        if !state.cards.iter().any(|known| Arc::ptr_eq(known, card)) {
            state.cards.push(Arc::clone(card));
        }
        // The port may be one that was borrowed before: memory that was registered since has no keys of its card.
        state.holders.all().iter().for_each(|holder| state.use_borrowed(holder.memory()));
        Ok(())
    }

    /// From now on new memory is not registered on `card` any more, which is another device's and not in use.
    pub fn leave(&self, card: &Arc<Card>) {
        self.lock().cards.retain(|known| !Arc::ptr_eq(known, card));
    }

    /// From now on the connection uses `ports`, each with the number of its rail: all memory has the keys for them. Returns whether
    /// keys may be others than before. No work request may be posted meanwhile.
    pub fn use_ports<'a>(&self, ports: impl Iterator<Item = (u8, &'a Arc<Rail>)>) -> bool {
        let mut state = self.lock();
        let mut has_changed = false;
        for (number, port) in ports {
            let place = usize::from(number) % MAX_RAILS;
            let is_own = self.nic.rails.get(place).is_some_and(|own| Arc::ptr_eq(own, port));
            let borrowed = Some(port).filter(|_| !is_own).cloned();
            let is_known = match (&borrowed, &state.borrowed[place]) {
                (None, None) => true,
                (Some(now), Some(before)) => Arc::ptr_eq(now, before),
                _ => false,
            };
            if is_known {
                continue;
            }
            has_changed = true;
            state.borrowed[place] = borrowed;
            state.holders.all().iter().for_each(|holder| holder.memory().use_cache(number, &port.card.regions));
        }
        has_changed
    }

    /// Keys by rail for local work requests on the registered memory that has `length` bytes at `addr`; `None` if there is no such
    /// memory. No bytes need no key.
    pub fn lkeys_at(&self, addr: u64, length: u32) -> Option<[u32; MAX_RAILS]> {
        if length == 0 {
            return Some([0; MAX_RAILS]);
        }
        self.find(addr, length, MrHandle::lkeys)
    }

    /// The same for the peer's work requests.
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
    fn use_borrowed(&self, memory: &MrHandle) {
        for (number, port) in (0..).zip(&self.borrowed) {
            if let Some(port) = port {
                memory.use_cache(number, &port.card.regions);
            }
        }
    }
}
