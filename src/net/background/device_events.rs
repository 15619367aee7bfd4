//! Asynchronous device events, and the connections that they end.

use crate::error::Result;
use crate::net::background::cq_owners::CqOwners;
use crate::net::background::notices::Notices;
use crate::net::background::port_listeners::{PortEvent, PortListener, PortListeners};
use crate::net::background::weak_registry::WeakRegistry;
use crate::net::peer::state::PeerState;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::context::{AsyncEvent, Context};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The events of one device, and its connections.
#[derive(Debug)]
pub struct DeviceEvents {
    /// The device's name.
    name: String,
    /// The device as it was last opened.
    context: Mutex<Arc<Context>>,
    /// Whether a fatal event ends the connections.
    ends_connections: bool,
    /// The connections that a fatal event ends.
    peers: Mutex<WeakRegistry<PeerState>>,
    /// The connections by completion queue.
    owners: Mutex<CqOwners<PeerState>>,
    listeners: PortListeners,
    notices: Notices,
}

impl DeviceEvents {
    /// The events of `context`. With `ends_connections`, a fatal event ends the connections;
    /// otherwise it is only logged.
    ///
    /// # Errors
    /// Its descriptor cannot be made non-blocking.
    pub fn new(context: &Arc<Context>, ends_connections: bool) -> Result<Self> {
        context.make_events_nonblocking()?;
        let peers = Mutex::new(WeakRegistry::new(0));
        Ok(Self {
            name: context.name().to_owned(),
            context: Mutex::new(Arc::clone(context)),
            ends_connections,
            peers,
            owners: Mutex::default(),
            listeners: PortListeners::default(),
            notices: Notices::default(),
        })
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        &self.name
    }

    /// Handles that the lost device is open again as `context`, and reads events from there.
    /// Returns the lost one.
    ///
    /// # Errors
    /// The descriptor of the events cannot be made non-blocking.
    pub fn replace(&self, context: &Arc<Context>) -> Result<Arc<Context>> {
        context.make_events_nonblocking()?;
        Ok(std::mem::replace(&mut *lock(&self.context), Arc::clone(context)))
    }

    /// Notifies everything that depends on the device's ports that it is open again.
    pub fn notify_device_back(&self) {
        self.listeners.notify_all(PortEvent::Active);
    }

    /// Sends the events of `port` to `listener` from now on, as long as it lives.
    pub fn listen(&self, port: u8, listener: &Arc<dyn PortListener>) {
        self.listeners.add(port, listener);
    }

    /// Lets a fatal event end the connection to `peer` from now on, as long as it lives, unless it
    /// is recovered.
    pub fn watch(&self, peer: &Arc<PeerState>) {
        lock(&self.peers).add(peer);
    }

    /// Lets a failure of this completion queue, which may be reported already, end the connection
    /// to `peer` and no other.
    pub fn watch_queue(&self, queue: &CompletionQueue, peer: &Arc<PeerState>) {
        lock(&self.owners).add(queue.id(), peer);
        if queue.has_failed() {
            self.handle_queue_failure(Some(Arc::clone(peer)));
        }
    }

    /// Forgets the completion queue with this id, which its connection has released.
    pub fn give_up_queue(&self, queue: u64) {
        lock(&self.owners).give_up(queue);
    }

    /// Handles all pending events. Returns whether a port has come up.
    pub fn handle(&self) -> bool {
        let mut has_come_up = false;
        let context = Arc::clone(&lock(&self.context));
        while let Some(occurrence) = context.next_event() {
            let event = occurrence.event.clone();
            let owner = match event {
                AsyncEvent::CompletionQueueError(queue) => lock(&self.owners).of(queue),
                _ => None,
            };
            // From here on a queue that the event names may be destroyed.
            drop(occurrence);
            has_come_up |= matches!(event, AsyncEvent::PortActive(_));
            self.handle_event(event, owner);
        }
        has_come_up
    }

    fn handle_event(&self, event: AsyncEvent, owner: Option<Arc<PeerState>>) {
        let name = &self.name;
        match event {
            AsyncEvent::PortActive(port) => {
                log::info!("{name}:{port} is up");
                self.listeners.notify(port, PortEvent::Active);
            }
            AsyncEvent::PortDown(port) => {
                let recovering = self.listeners.notify(port, PortEvent::Down);
                log::warn!("{name}:{port} is down; {}", port_down(recovering));
            }
            AsyncEvent::GidChange(port) => {
                log::info!("{name}:{port}: the GID table has changed");
                self.listeners.notify(port, PortEvent::GidChange);
            }
            AsyncEvent::LidChange(port) => {
                log::info!("{name}:{port}: the LID has changed");
                self.listeners.notify(port, PortEvent::LidChange);
            }
            AsyncEvent::QueuePairError(what) => {
                // All queue pairs of a port may fail at once.
                match self.notices.line("queue pair", &format!("{name}: {what}")) {
                    Some(line) => log::warn!("{line}"),
                    None => log::debug!("{name}: {what}"),
                }
                self.listeners.notify_all(PortEvent::QueuePairError);
            }
            AsyncEvent::CompletionQueueError(_) => self.handle_queue_failure(owner),
            AsyncEvent::DeviceFatal => self.handle_fatal(&format!("{name}: fatal device error")),
            AsyncEvent::Other(number) => log::debug!("{name}: event {number}"),
        }
    }

    /// Handles that a completion queue of the connection to `owner` has failed, and reports nothing
    /// more.
    fn handle_queue_failure(&self, owner: Option<Arc<PeerState>>) {
        let reason = format!("{}: a completion queue has failed", self.name);
        match owner {
            Some(peer) if peer.handle_queue_failure(&reason) => {
                log::warn!("{reason}; {}", recovered(1))
            }
            Some(peer) => {
                let what = format!("the connection to {} ends", peer.peer());
                self.fail(&reason, &what, std::slice::from_ref(&peer));
            }
            // The queue is released, about to be watched, or one of a flush.
            None => log::debug!("{reason}; no known connection uses it"),
        }
    }

    /// Ends the connections that are not recovered.
    fn handle_fatal(&self, reason: &str) {
        let recovering = self.listeners.notify_all(PortEvent::DeviceFatal);
        if recovering > 0 {
            log::warn!("{reason}; {}", recovered(recovering));
        }
        let peers: Vec<_> =
            lock(&self.peers).all().into_iter().filter(|peer| !peer.is_recoverable()).collect();
        if recovering == 0 || !peers.is_empty() {
            self.fail(reason, "its connections end", &peers);
        }
    }

    /// Logs what happens to the connections to `peers`: `what` if fatal events end them.
    fn fail(&self, reason: &str, what: &str, peers: &[Arc<PeerState>]) {
        if !self.ends_connections {
            log::warn!(
                "{reason}; its connections continue if they can (NCCL_IB_RETURN_ASYNC_EVENTS=0)"
            );
            return;
        }
        log::warn!("{reason}; {what}");
        for peer in peers {
            peer.handle_device_failure(reason);
        }
    }
}

/// What happens to the connections of a port that is down; `recovering` of them recover.
fn port_down(recovering: usize) -> String {
    match recovering {
        0 => "traffic over it waits until the device has used up its retries".into(),
        count => recovered(count),
    }
}

/// The text for connections that survive a failure.
fn recovered(count: usize) -> String {
    format!("{count} connection(s) continue over other ports, or once it is back")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_of_a_port_that_is_down_waits_for_retries_only_if_no_connection_recovers() {
        assert_eq!(port_down(0), "traffic over it waits until the device has used up its retries");
        assert_eq!(port_down(3), "3 connection(s) continue over other ports, or once it is back");
    }
}
