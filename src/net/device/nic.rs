//! What NCCL calls a network device: a port, or several like ports of one card, which are its rails.

use super::card::Card;
use super::gdr::Gdr;
use super::rail::Rail;
use crate::error::Result;
use crate::host::config::Config;
use crate::net::control::driver::ControlDriver;
use crate::net::control::peer_state::PeerState;
use crate::net::control::periodic::PeriodicTask;
use crate::net::qp::set::Lanes;
use crate::proto::MAX_RAILS;
use crate::verbs::context::Context;
use std::sync::Arc;

/// One to [`MAX_RAILS`] ports that NCCL sees as one.
#[derive(Debug)]
pub struct Nic {
    /// Unique among the devices: the names of its rails, joined by `+`.
    pub name: String,
    /// The ports; the first one stands for all where NCCL wants to know of one.
    pub rails: Vec<Arc<Rail>>,
    /// What the ports belong to, each once: libibverbs opens the functions of a card separately.
    pub cards: Vec<Arc<Card>>,
    /// Settings.
    pub config: Arc<Config>,
}

impl Nic {
    /// The devices among `contexts`, as the settings want them; what keeps them from a GPU's memory is said.
    pub fn discover(contexts: &[Arc<Context>], config: &Arc<Config>) -> Vec<Arc<Self>> {
        let gdr = Gdr::look();
        let nics = Self::assemble(Rail::discover(contexts, config, &gdr), config);
        gdr.complain(&nics);
        nics
    }

    /// The devices that `rails` make, in the order of their first ones.
    fn assemble(rails: Vec<Arc<Rail>>, config: &Arc<Config>) -> Vec<Arc<Self>> {
        let mut groups: Vec<Vec<Arc<Rail>>> = Vec::new();
        for rail in rails {
            let may_join = |group: &&mut Vec<Arc<Rail>>| group.len() < MAX_RAILS && are_alike(&group[0], &rail);
            match groups.iter_mut().find(may_join).filter(|_| config.merge_nics) {
                Some(group) => group.push(rail),
                None => groups.push(vec![rail]),
            }
        }
        groups.into_iter().map(|group| Arc::new(Self::new(group, config))).collect()
    }

    fn new(rails: Vec<Arc<Rail>>, config: &Arc<Config>) -> Self {
        let names: Vec<_> = rails.iter().map(|rail| rail.name.as_str()).collect();
        let name = names.join("+");
        let mut cards: Vec<Arc<Card>> = Vec::new();
        for rail in &rails {
            if !cards.iter().any(|card| Arc::ptr_eq(card, &rail.card)) {
                cards.push(Arc::clone(&rail.card));
            }
        }
        Self { name, rails, cards, config: Arc::clone(config) }
    }

    /// Its first port.
    pub fn first(&self) -> &Rail {
        &self.rails[0]
    }

    /// Which of the cards rail number `rail` belongs to.
    pub fn card_of(&self, rail: usize) -> usize {
        let of = |rail: &Arc<Rail>| self.cards.iter().position(|card| Arc::ptr_eq(card, &rail.card));
        self.rails.get(rail).and_then(of).unwrap_or(0)
    }

    /// Bandwidth of all rails in Mbit/s.
    pub fn speed_mbps(&self) -> u32 {
        self.rails.iter().map(|rail| rail.speed_mbps).sum()
    }

    /// Whether GPU memory can be registered by address, on every card.
    pub fn supports_peer_memory(&self) -> bool {
        self.cards.iter().all(|card| card.supports_peer_memory())
    }

    /// Whether GPU memory can be registered by dma-buf, on every card.
    pub fn supports_dmabuf(&self) -> bool {
        self.cards.iter().all(|card| card.supports_dmabuf())
    }

    /// Serves what drives the control connection of `link` as long as it lives, and ends the connection when one of the cards
    /// is lost.
    ///
    /// # Errors
    /// A watcher cannot be started, or the kernel has no memory for it.
    pub fn watch(&self, link: &Arc<PeerState>) -> Result<()> {
        for card in &self.cards {
            card.watcher()?.watch(link);
        }
        self.watch_set_up(link.stream().driver(), None)
    }

    /// Looks after what is being set up: what comes on control connections, and what `task` has to do.
    ///
    /// # Errors
    /// A watcher cannot be started, or the kernel has no memory for it.
    pub fn watch_set_up(&self, driver: &Arc<ControlDriver>, task: Option<&Arc<dyn PeriodicTask>>) -> Result<()> {
        let Some(card) = self.cards.first() else { return Ok(()) };
        let watcher = card.watcher()?;
        if let Some(task) = task {
            watcher.take_up(task);
        }
        watcher.serve(driver)
    }

    /// When a completion queue of `lanes` fails, `link` ends and nobody else's connection. To be called after [`Self::watch`].
    pub fn watch_queues(&self, link: &Arc<PeerState>, lanes: &Lanes) {
        for (rail, queue) in lanes.queues().enumerate() {
            if let Some(watcher) = self.cards.get(self.card_of(rail)).and_then(|card| card.started_watcher()) {
                watcher.watch_queue(queue, link);
            }
        }
    }

    /// One line for people: how this device is used.
    pub fn describe(&self) -> String {
        let rails: Vec<_> = self.rails.iter().map(|rail| rail.describe()).collect();
        match rails.as_slice() {
            [one] => one.clone(),
            many => format!("{} ({} rails: {})", self.name, many.len(), many.join("; ")),
        }
    }
}

/// Whether two ports may be rails of one device: they belong to one card, and nothing tells them apart.
fn are_alike(a: &Rail, b: &Rail) -> bool {
    let same_card =
        a.card.pci_path().is_some() && a.card.pci_path() == b.card.pci_path() && a.card.guid() == b.card.guid();
    let physical = !a.card.is_virtual() && !b.card.is_virtual();
    physical && same_card && a.infiniband == b.infiniband && a.speed_mbps == b.speed_mbps
}
