//! The connections that receive the events of a device's ports.

use crate::net::background::weak_registry::WeakRegistry;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A port event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortEvent {
    /// It came up.
    Active,
    /// It went down.
    Down,
    /// Its GID table changed.
    GidChange,
    /// Its LID changed.
    LidChange,
    /// A queue pair of the device has failed, of this port or another one.
    QueuePairError,
    /// Its device is lost.
    DeviceFatal,
}

/// Something that depends on a port, such as a connection with a rail there.
pub trait PortListener: Debug + Send + Sync {
    /// Handles an event of `port`. Returns how many connections recover because of it, for the
    /// caller's warning. The device's watcher calls it, holds no lock, and waits for it.
    fn handle_port_event(&self, port: u8, what: PortEvent) -> usize;
}

/// The listeners of one device, by port.
#[derive(Debug, Default)]
pub(super) struct PortListeners(Mutex<HashMap<u8, WeakRegistry<dyn PortListener>>>);

impl PortListeners {
    /// Sends the events of `port` to `listener` from now on, as long as it lives.
    pub(super) fn add(&self, port: u8, listener: &Arc<dyn PortListener>) {
        self.lock().entry(port).or_insert_with(|| WeakRegistry::new(0)).add(listener);
    }

    /// Notifies the listeners of `port`. Returns how many connections recover.
    pub(super) fn notify(&self, port: u8, what: PortEvent) -> usize {
        let listeners = self.lock().get(&port).map(WeakRegistry::all).unwrap_or_default();
        listeners.iter().map(|listener| listener.handle_port_event(port, what)).sum()
    }

    /// [`Self::notify`] for all ports. A listener of several ports counts once.
    pub(super) fn notify_all(&self, what: PortEvent) -> usize {
        let by_port: Vec<_> =
            self.lock().iter().map(|(port, listeners)| (*port, listeners.all())).collect();
        let mut counts = HashMap::new();
        for (port, listeners) in by_port {
            for listener in listeners {
                let count = counts.entry(Arc::as_ptr(&listener).cast::<()>()).or_insert(0);
                *count = listener.handle_port_event(port, what).max(*count);
            }
        }
        counts.into_values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u8, WeakRegistry<dyn PortListener>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener that recovers this many connections, and records the events.
    #[derive(Debug)]
    struct Noting(usize, Mutex<Vec<(u8, PortEvent)>>);

    impl PortListener for Noting {
        fn handle_port_event(&self, port: u8, what: PortEvent) -> usize {
            self.1.lock().expect("one thread").push((port, what));
            self.0
        }
    }

    #[test]
    fn a_listener_hears_of_its_ports_while_it_lives_and_the_counts_are_added() {
        let listeners = PortListeners::default();
        let [one, other] = [1, 10].map(|count| Arc::new(Noting(count, Mutex::default())));
        let dynamic = |listener: &Arc<Noting>| Arc::clone(listener) as Arc<dyn PortListener>;
        listeners.add(1, &dynamic(&one));
        listeners.add(1, &dynamic(&other));
        listeners.add(2, &dynamic(&other));
        let counts = [1, 2, 3].map(|port| listeners.notify(port, PortEvent::Down));
        assert_eq!((counts, listeners.notify_all(PortEvent::DeviceFatal)), ([11, 10, 0], 11));
        assert_eq!(
            *one.1.lock().expect("one thread"),
            [(1, PortEvent::Down), (1, PortEvent::DeviceFatal)]
        );
        drop(other);
        assert_eq!(listeners.notify_all(PortEvent::Active), 1);
    }
}
