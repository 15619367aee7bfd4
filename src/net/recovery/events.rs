//! Events of a connection's recovery: from the peer, the ports, and failed queue pairs.

use super::conn::ConnRecovery;
use super::inbox::Input;
use crate::net::background::port_listeners::{PortEvent, PortListener};
use crate::net::control::observers::RecoveryEvents;
use crate::proto::control::event::PeerChange;
use crate::proto::frame::Frame;

impl ConnRecovery {
    /// Handles a possibly lost device. If the queue pairs are on it, NCCL's calls post nothing from
    /// now on: memory that is registered now has no keys there.
    pub(super) fn handle_loss(&self) {
        if let Some(name) = self.in_use.lost_name()
            && let Err(e) = self.report(&format!("{name}: fatal device error"), 0)
        {
            self.nic.start_workers_later(&e);
        }
        if self.nic.cards.iter().any(|card| card.device().is_lost()) {
            self.put_or_wait(Input::PortChanged);
        }
    }
}

impl RecoveryEvents for ConnRecovery {
    fn handle_frame(&self, frame: Frame) {
        self.put_or_wait(Input::Frame(frame));
    }

    fn handle_fault(&self, reason: &str) {
        if let Err(e) = self.report(reason, 0) {
            self.peer.fail(&e.text());
        }
    }

    fn handle_change(&self, change: &PeerChange) {
        match change {
            PeerChange::Back => self.put_or_wait(Input::Back),
            // A running connection needs no action, so no thread is started.
            PeerChange::Unknown(_) | PeerChange::Closed(_) | PeerChange::Broken(_) => {
                if self.peer.is_recovering() {
                    self.put_or_wait(Input::PeerGone);
                }
            }
            PeerChange::Doubted => self.put_or_wait(Input::Doubted),
            PeerChange::Lost(_) | PeerChange::Frame(_) | PeerChange::Inquiry(_) => {}
        }
    }
}

impl PortListener for ConnRecovery {
    fn handle_port_event(&self, _port: u8, what: PortEvent) -> usize {
        if what == PortEvent::QueuePairError {
            self.put_or_wait(Input::QueuePairFailed);
            return 0;
        }
        match what {
            PortEvent::DeviceFatal => self.handle_loss(),
            PortEvent::Active | PortEvent::GidChange | PortEvent::LidChange => {
                self.put_or_wait(Input::PortReady)
            }
            PortEvent::Down | PortEvent::QueuePairError => self.put_or_wait(Input::PortChanged),
        }
        usize::from(matches!(what, PortEvent::Down | PortEvent::DeviceFatal))
    }
}
