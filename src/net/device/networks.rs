//! Which device of this process is in the networks of a peer's ports, if the user enables that
//! (`NCCL_IB_SUBNET_AWARE_ROUTING`).

use super::nic::Nic;
use super::pairing::Nearness;
use std::sync::Arc;

/// The devices that a connection may be moved to.
#[derive(Debug)]
pub struct Networks(Vec<Arc<Nic>>);

impl Networks {
    /// `devices`, and each of their ports.
    pub fn of(devices: &[Arc<Nic>]) -> Self {
        let merged = devices.iter().filter(|device| device.ports.len() > 1);
        Self(merged.cloned().chain(devices.iter().flat_map(Nic::split)).collect())
    }

    /// The device for a connection of `own` to a peer whose ports have these GIDs. It is another
    /// device if one of `own`'s ports is in none of their networks, and all ports of the other are.
    pub fn device_towards(&self, own: &Arc<Nic>, peers: &[[u8; 16]]) -> Arc<Nic> {
        if peers.is_empty() || own.first().infiniband || is_near(own, peers) {
            return Arc::clone(own);
        }
        let mut others: Vec<_> =
            self.0.iter().filter(|device| !device.first().infiniband).collect();
        // Prefers a device with as many ports as NCCL's choice.
        others.sort_by_key(|device| device.ports.len() != own.ports.len());
        let Some(other) = others.into_iter().find(|device| is_near(device, peers)) else {
            return Arc::clone(own);
        };
        let text = format!(
            "{}: a connection uses {}, which is in the peer's network (NCCL_IB_SUBNET_AWARE_ROUTING=1)",
            own.name, other.name
        );
        match own.notices.line("networks", &text) {
            Some(line) => log::info!("{line}"),
            None => log::debug!("{text}"),
        }
        Arc::clone(other)
    }
}

/// Whether each port of `nic` is in the network of one of `peers`.
fn is_near(nic: &Nic, peers: &[[u8; 16]]) -> bool {
    nic.ports.iter().all(|port| {
        let address = port.address_towards(peers);
        let is_near =
            |address| peers.iter().any(|peer| port.nearness_of(&address, peer) == Nearness::Near);
        address.is_ok_and(is_near)
    })
}
