//! What a device reports by itself, and whose connections that ends.

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
    /// The device as it was opened last.
    context: Mutex<Arc<Context>>,
    /// Whether a fatal event ends the connections.
    ends_connections: bool,
    /// The connections that a fatal event ends.
    peers: Mutex<WeakRegistry<PeerState>>,
    /// Those of them to which a completion queue belongs.
    owners: Mutex<CqOwners<PeerState>>,
    listeners: PortListeners,
    notices: Notices,
}

impl DeviceEvents {
    /// Those of `context`. `ends_connections`: a fatal event ends the connections; else it is only logged.
    ///
    /// # Errors
    /// Their descriptor cannot be made non-blocking.
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

    /// The device was lost and is open again as `context`, whose events are taken from now on. Returns the lost one.
    ///
    /// # Errors
    /// The descriptor of the events cannot be made non-blocking.
    pub fn replace(&self, context: &Arc<Context>) -> Result<Arc<Context>> {
        context.make_events_nonblocking()?;
        Ok(std::mem::replace(&mut *lock(&self.context), Arc::clone(context)))
    }

    /// The device is open again: all that depends on its ports has a look at them.
    pub fn notify_device_back(&self) {
        self.listeners.tell_all(PortEvent::Active);
    }

    /// From now on `listener` receives the events of `port`, as long as it lives.
    pub fn listen(&self, port: u8, listener: &Arc<dyn PortListener>) {
        self.listeners.add(port, listener);
    }

    /// From now on a fatal event ends the connection to `peer`, as long as it lives, unless it is recovered.
    pub fn watch(&self, peer: &Arc<PeerState>) {
        lock(&self.peers).add(peer);
    }

    /// A failure of this completion queue, which may have come already, ends the connection to `peer`, and no other one.
    pub fn watch_queue(&self, queue: &CompletionQueue, peer: &Arc<PeerState>) {
        lock(&self.owners).add(queue.id(), peer);
        if queue.has_failed() {
            self.handle_queue_failure(Some(Arc::clone(peer)));
        }
    }

    /// The completion queue with this id has been given up by its connection.
    pub fn give_up_queue(&self, queue: u64) {
        lock(&self.owners).give_up(queue);
    }

    /// Heeds all events that there are. Whether a port has come up.
    pub fn handle(&self) -> bool {
        let mut has_come_up = false;
        let context = Arc::clone(&lock(&self.context));
        while let Some(occurrence) = context.next_event() {
            let event = occurrence.event.clone();
            let owner = match event {
                AsyncEvent::CompletionQueueError(queue) => lock(&self.owners).of(queue),
                _ => None,
            };
            // From here on a queue that it names may go.
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
                self.listeners.tell_all(PortEvent::QueuePairError);
            }
            AsyncEvent::CompletionQueueError(_) => self.handle_queue_failure(owner),
            AsyncEvent::DeviceFatal => self.handle_fatal(&format!("{name}: fatal device error")),
            AsyncEvent::Other(number) => log::debug!("{name}: event {number}"),
        }
    }

    /// A completion queue of the connection to `owner` has failed, and reports nothing more.
    fn handle_queue_failure(&self, owner: Option<Arc<PeerState>>) {
        let reason = format!("{}: a completion queue has failed", self.name);
        match owner {
            Some(peer) if peer.handle_queue_failure(&reason) => log::warn!("{reason}; {}", recovered(1)),
            Some(peer) => {
                let what = format!("the connection to {} ends", peer.peer());
                self.fail(&reason, &what, std::slice::from_ref(&peer));
            }
            // It is given up, or is about to be watched, or one of those that flushes have.
            None => log::debug!("{reason}, which no connection is known to use"),
        }
    }

    /// Ends the connections that are not recovered.
    fn handle_fatal(&self, reason: &str) {
        let recovering = self.listeners.tell_all(PortEvent::DeviceFatal);
        if recovering > 0 {
            log::warn!("{reason}; {}", recovered(recovering));
        }
        let peers: Vec<_> = lock(&self.peers).all().into_iter().filter(|peer| !peer.is_recoverable()).collect();
        if recovering == 0 || !peers.is_empty() {
            self.fail(reason, "its connections end", &peers);
        }
    }

    /// The text for the connections to `peers`: `what` happens to them if fatal events end them.
    fn fail(&self, reason: &str, what: &str, peers: &[Arc<PeerState>]) {
        if !self.ends_connections {
            log::warn!("{reason}; NCCL_IB_RETURN_ASYNC_EVENTS=0: its connections go on as far as they can");
            return;
        }
        log::warn!("{reason}; {what}");
        for peer in peers {
            peer.handle_device_failure(reason);
        }
    }
}

/// What becomes of the connections of a port that is down, of which `recovering` are recovered.
fn port_down(recovering: usize) -> String {
    match recovering {
        0 => "traffic over it waits until the device's retries are exhausted".into(),
        count => recovered(count),
    }
}

/// The text for connections that a failure does not end.
fn recovered(count: usize) -> String {
    format!("{count} connection(s) recover, over other ports or once it is back")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_of_a_port_that_is_down_is_not_said_to_wait_if_connections_recover() {
        assert_eq!(port_down(0), "traffic over it waits until the device's retries are exhausted");
        assert_eq!(port_down(3), "3 connection(s) recover, over other ports or once it is back");
    }
}
