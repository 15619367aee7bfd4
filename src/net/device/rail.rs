//! An active port of an RDMA card: by itself a device to NCCL, or one rail of several.

use super::address::Addresses;
use super::card::Card;
use super::gdr::Gdr;
use crate::error::Result;
use crate::host::config::Config;
use crate::verbs::context::Context;
use crate::verbs::port::{LinkLayer, PortAttributes};
use std::sync::Arc;

/// An active port of a card.
#[derive(Debug)]
pub struct Rail {
    /// The card.
    pub card: Arc<Card>,
    /// Unique among the rails.
    pub name: String,
    /// The port, from 1.
    pub port: u8,
    /// The port's number as NCCL's built-in transport counts it.
    pub port_of_card: i32,
    /// Bandwidth in Mbit/s.
    pub speed_mbps: u32,
    /// Whether its link layer is InfiniBand, or else Ethernet.
    pub infiniband: bool,
    /// Settings.
    pub config: Arc<Config>,
    /// What is known of its GIDs.
    pub addresses: Addresses,
}

impl Rail {
    /// The rails among `contexts`: every active port of InfiniBand or Ethernet that the settings admit, in libibverbs' order.
    pub fn discover(contexts: &[Arc<Context>], config: &Arc<Config>, gdr: &Gdr) -> Vec<Arc<Self>> {
        let mut rails: Vec<Arc<Self>> = Vec::new();
        for context in contexts {
            let card = match Card::open(context, config, gdr) {
                Ok(card) => card,
                Err(e) => {
                    log::warn!("{} is not used: {e}", context.name());
                    continue;
                }
            };
            for port in 1..=card.port_count() {
                // NCCL's built-in transport adds the number of ports before it on the same card, its own ones included.
                let siblings =
                    rails.iter().filter(|r| card.pci_path().is_some() && r.card.pci_path() == card.pci_path());
                let before = siblings.count() as i32;
                match Self::open(&card, port, before, config) {
                    Ok(Some(rail)) => rails.push(Arc::new(rail)),
                    Ok(None) => {}
                    Err(e) => log::warn!("{}:{port} is not used: {e}", context.name()),
                }
            }
        }
        rails
    }

    fn open(card: &Arc<Card>, port: u8, before: i32, config: &Arc<Config>) -> Result<Option<Self>> {
        let context = &card.context;
        let attributes = context.port(port)?;
        if let Some(why) = unfitness(&attributes).or_else(|| excluded(config, context.name(), port)) {
            log::debug!("{}:{port} is not used: {why}", context.name());
            return Ok(None);
        }
        let name = match card.port_count() {
            1 => context.name().to_owned(),
            _ => format!("{}:{port}", context.name()),
        };
        let told_speed = context.port_speed_mbps(port).filter(|_| config.query_port_speed);
        Ok(Some(Self {
            card: Arc::clone(card),
            name,
            port,
            port_of_card: i32::from(port) + before,
            speed_mbps: told_speed.unwrap_or_else(|| speed_mbps(attributes.speed, attributes.width)),
            infiniband: attributes.is_infiniband(),
            config: Arc::clone(config),
            addresses: Addresses::default(),
        }))
    }
}

/// Why a port cannot be used, if it cannot.
fn unfitness(attributes: &PortAttributes) -> Option<String> {
    match attributes.link_layer {
        _ if !attributes.active => Some("it is not active".into()),
        LinkLayer::Other(number) => Some(format!("its link layer ({number}) is neither InfiniBand nor Ethernet")),
        LinkLayer::InfiniBand | LinkLayer::Ethernet => None,
    }
}

fn excluded(config: &Config, device: &str, port: u8) -> Option<String> {
    (!config.hca.admits(device, port)).then(|| "NCCL_IB_HCA excludes it".into())
}

/// Bandwidth of `width` links of `speed`, both as the verbs' bit masks.
fn speed_mbps(speed: u32, width: u8) -> u32 {
    const PER_LINK_MBPS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
    const LINKS: [u32; 5] = [1, 4, 8, 12, 2];
    let per_link = PER_LINK_MBPS.get(speed.trailing_zeros() as usize).copied().unwrap_or(PER_LINK_MBPS[0]);
    let links = LINKS.get(width.trailing_zeros() as usize).copied().unwrap_or(1);
    per_link * links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        assert_eq!(speed_mbps(128, 2), 400_000, "NDR, 4 links");
        assert_eq!(speed_mbps(32, 2), 100_000, "EDR, 4 links");
        assert_eq!(speed_mbps(16, 1), 14_000);
        assert_eq!(speed_mbps(0, 0), 2_500, "nothing told");
    }
}
