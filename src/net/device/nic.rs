//! A network device as NCCL sees it: a port, or several equal ports of one card.

#![allow(unsafe_code)]

use super::card::Card;
use super::card_port::CardPort;
use super::gdr::{Gdr, GdrSupport};
use super::open_device::OpenDevice;
use super::round_trips::RoundTrips;
use crate::error::{Error, Result};
use crate::host::config::Config;
use crate::net::background::notices::Notices;
use crate::net::background::periodic::PeriodicTask;
use crate::net::background::port_listeners::PortListener;
use crate::net::background::workers::{StartWorkers, Workers};
use crate::net::control::driver::ControlDriver;
use crate::net::explain::end::ExplainedEnd;
use crate::net::explain::explainer::Explainer;
use crate::net::explain::set_up::SetUpWait;
use crate::net::mr::handle::MrHandle;
use crate::net::mr::regions::MemoryKind;
use crate::net::peer::state::PeerState;
use crate::proto::MAX_RAILS;
use crate::proto::recovery::rail_mask::RailMask;
use crate::verbs::context::Context;
use crate::verbs::shared::RingBlocks;
use std::os::fd::RawFd;
use std::sync::Arc;

/// One to [`MAX_RAILS`] ports that are one device to NCCL.
#[derive(Debug)]
pub struct Nic {
    /// The names of its ports, joined by `+`. No other device has the same.
    pub name: String,
    /// The ports. NCCL sees the properties of the first one.
    pub ports: Vec<Arc<CardPort>>,
    /// The cards of the ports, each once. There may be several, since libibverbs opens each PCI
    /// function of a card separately.
    pub cards: Vec<Arc<Card>>,
    /// Settings.
    pub config: Arc<Config>,
    /// Threads that recover connections.
    pub workers: Arc<Workers>,
    start_workers: Arc<dyn PeriodicTask>,
    /// Explains the waits of this process.
    pub explainer: Arc<Explainer>,
    /// Log lines about recoveries.
    pub notices: Notices,
    /// The known round trips to peers.
    pub round_trips: RoundTrips,
    /// Memory of the rings of its senders.
    pub rings: RingBlocks,
}

impl Nic {
    /// The devices that the settings define from `contexts`. Logs if they cannot access GPU memory.
    /// Problems that the user should know go into `missing`.
    pub fn discover(
        contexts: &[Arc<Context>],
        config: &Arc<Config>,
        missing: &mut Vec<String>,
    ) -> Vec<Arc<Self>> {
        let gdr = Gdr::detect();
        let nics = Self::discover_with(&gdr, contexts, config, missing);
        if !nics.is_empty() {
            gdr.warn_if_missing(GdrSupport {
                by_address: nics.iter().any(|nic| nic.supports_peer_memory()),
                dmabuf: nics.iter().any(|nic| nic.supports_dmabuf()),
                knows_dmabuf: nics
                    .iter()
                    .flat_map(|nic| &nic.cards)
                    .any(|card| card.device().context.knows_dmabuf()),
            });
        }
        nics
    }

    /// [`Self::discover`] where `gdr` is known.
    pub fn discover_with(
        gdr: &Gdr,
        contexts: &[Arc<Context>],
        config: &Arc<Config>,
        missing: &mut Vec<String>,
    ) -> Vec<Arc<Self>> {
        let ports = CardPort::discover(contexts, config, gdr, missing);
        Self::assemble(ports, config, &Arc::default(), &Explainer::new(config))
    }

    /// Groups `ports` into devices, in the order of their first ports.
    fn assemble(
        ports: Vec<Arc<CardPort>>,
        config: &Arc<Config>,
        workers: &Arc<Workers>,
        explainer: &Arc<Explainer>,
    ) -> Vec<Arc<Self>> {
        let mut groups: Vec<Vec<Arc<CardPort>>> = Vec::new();
        for port in &ports {
            let fits = |group: &&mut Vec<Arc<CardPort>>| {
                group.len() < MAX_RAILS && are_equal_ports(&group[0], port)
            };
            match groups.iter_mut().find(fits).filter(|_| config.merge_nics) {
                Some(group) => group.push(Arc::clone(port)),
                None => groups.push(vec![Arc::clone(port)]),
            }
        }
        let new = |group| Arc::new(Self::new(group, config, workers, explainer));
        groups.into_iter().map(new).collect()
    }

    /// The device with `ports`.
    fn new(
        ports: Vec<Arc<CardPort>>,
        config: &Arc<Config>,
        workers: &Arc<Workers>,
        explainer: &Arc<Explainer>,
    ) -> Self {
        let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        let name = names.join("+");
        let mut cards: Vec<Arc<Card>> = Vec::new();
        for port in &ports {
            if !cards.iter().any(|card| Arc::ptr_eq(card, &port.card)) {
                cards.push(Arc::clone(&port.card));
            }
        }
        Self {
            name,
            ports,
            cards,
            config: Arc::clone(config),
            workers: Arc::clone(workers),
            start_workers: Arc::new(StartWorkers(Arc::clone(workers))),
            explainer: Arc::clone(explainer),
            notices: Notices::default(),
            round_trips: RoundTrips::default(),
            rings: RingBlocks::default(),
        }
    }

    /// A device for each of its ports; itself if it has one.
    pub fn split(self: &Arc<Self>) -> Vec<Arc<Self>> {
        if self.ports.len() == 1 {
            return vec![Arc::clone(self)];
        }
        self.ports.iter().map(|port| Arc::new(self.like(vec![Arc::clone(port)]))).collect()
    }

    /// A device with other `ports`, which shares the common objects of this one.
    fn like(&self, ports: Vec<Arc<CardPort>>) -> Self {
        Self::new(ports, &self.config, &self.workers, &self.explainer)
    }

    /// The device of all `ports`, which are devices of one port each. With `any`, they may be of
    /// several cards and different speeds.
    ///
    /// # Errors
    /// They cannot be one device, or the user does not want it.
    pub fn merge(ports: &[Arc<Self>], any: bool) -> Result<Self> {
        let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
        let refused = |why: &str| {
            Err(Error::usage(format!("{} cannot be one device: {why}", names.join(" and "))))
        };
        let Some(of) = ports.first() else { return refused("there is no port") };
        let first = of.first();
        let twice =
            ports.iter().enumerate().any(|(i, port)| names[..i].contains(&port.name.as_str()));
        let fits = |port: &Arc<Self>| match any {
            true => port.first().infiniband == first.infiniband,
            false => are_equal_ports(first, port.first()),
        };
        match () {
            () if !of.config.merge_nics => refused("NCCL_IB_MERGE_NICS=0"),
            () if ports.len() > MAX_RAILS => {
                refused(&format!("at most {MAX_RAILS} ports are allowed"))
            }
            () if twice => refused("a port is named twice"),
            () if any && !ports.iter().all(fits) => refused("their link layers differ"),
            () if !ports.iter().all(fits) => refused(
                "they are not equal ports of one card (NCCL_NET_FORCE_MERGE and NCCL_NET_MERGE_LEVEL allow it)",
            ),
            () => Ok(of.like(ports.iter().flat_map(|port| &port.ports).cloned().collect())),
        }
    }

    /// The numbers of the fabric's rail and plane that the user has set for its ports; -1 if unset
    /// or different.
    pub fn rail_and_plane(&self) -> (i16, i16) {
        let of =
            |port: &Arc<CardPort>| port.config.hca.rail_and_plane(&port.card.name, port.number);
        let mut all = self.ports.iter().map(of);
        let first = all.next().unwrap_or((-1, -1));
        all.fold(first, |(rail, plane), other| {
            (if rail == other.0 { rail } else { -1 }, if plane == other.1 { plane } else { -1 })
        })
    }

    /// Its first port.
    pub fn first(&self) -> &CardPort {
        &self.ports[0]
    }

    /// Whether slow lanes of its connections move to other paths. InfiniBand switches do not choose
    /// paths by flow labels.
    pub fn has_new_paths(&self) -> bool {
        self.config.new_paths && !self.first().infiniband
    }

    /// Its ports, each with the number of its rail if it is the sender's, and its device as open now.
    pub fn own_ports(&self) -> impl Iterator<Item = (u8, &Arc<CardPort>, Arc<OpenDevice>)> {
        (0..).zip(&self.ports).map(|(rail, port)| (rail, port, port.card.device()))
    }

    /// Its ports of these `rails`, if it is the sender's, as far as they exist.
    pub fn ports_of(&self, rails: RailMask) -> Vec<(u8, Arc<CardPort>)> {
        rails
            .iter()
            .filter_map(|rail| Some((rail, Arc::clone(self.ports.get(usize::from(rail))?))))
            .collect()
    }

    /// Registers `size` bytes at `addr` on every card, through a dma-buf descriptor and offset if
    /// given. If connections recover, lost cards are skipped: the memory is registered there when
    /// they are back.
    ///
    /// # Errors
    /// As for [`MrHandle::register`].
    ///
    /// # Safety
    /// The memory stays mapped until the handle is dropped.
    pub unsafe fn register(
        &self,
        addr: u64,
        size: usize,
        kind: MemoryKind,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<MrHandle> {
        let devices = self.cards.iter().map(|card| card.device());
        let devices: Vec<_> =
            devices.filter(|device| !(self.config.failover && device.is_lost())).collect();
        // SAFETY: the caller keeps the memory mapped.
        unsafe {
            MrHandle::register(
                devices.iter().map(|device| &device.regions),
                addr,
                size,
                kind,
                dmabuf,
                self.config.failover,
            )
        }
    }

    /// Bandwidth of all ports together, in Mbit/s.
    pub fn speed_mbps(&self) -> u32 {
        self.ports.iter().map(|port| port.speed_mbps).sum()
    }

    /// Whether GPU memory can be registered by address, on every card.
    pub fn supports_peer_memory(&self) -> bool {
        self.cards.iter().all(|card| card.supports_peer_memory())
    }

    /// Whether GPU memory can be registered by dma-buf, on every card.
    pub fn supports_dmabuf(&self) -> bool {
        self.cards.iter().all(|card| card.supports_dmabuf())
    }

    /// Lets a watcher serve `driver`, which has the control connection of `peer`, and a failure of
    /// any card end the connection.
    ///
    /// # Errors
    /// A watcher cannot be started, or the kernel has no memory for it.
    pub fn watch(&self, peer: &Arc<PeerState>, driver: &Arc<ControlDriver>) -> Result<()> {
        for card in &self.cards {
            card.watcher()?.events().watch(peer);
        }
        self.watch_set_up(driver, None)
    }

    /// Lets a watcher support connection set-up: serve `driver`, and run `task`, if given.
    ///
    /// # Errors
    /// A watcher cannot be started, or the kernel has no memory for it.
    pub fn watch_set_up(
        &self,
        driver: &Arc<ControlDriver>,
        task: Option<&Arc<dyn PeriodicTask>>,
    ) -> Result<()> {
        let Some(card) = self.cards.first() else { return Ok(()) };
        let watcher = card.watcher()?;
        if let Some(task) = task {
            watcher.run_periodically(task);
        }
        watcher.serve(driver)
    }

    /// Whether all messages belong to operations of NCCL, whose tags are ranks. NCCL's set-up of
    /// communicators over the network uses the numbers of its steps as tags.
    pub fn has_only_ranks_as_tags(&self) -> bool {
        !self.config.connects_early
    }

    /// No thread can be started for a recovery, for this reason: a watcher tries again each second.
    pub fn start_workers_later(&self, reason: &Error) {
        if let Some(line) = self
            .notices
            .line("workers", &format!("{}: {reason}; trying again each second", self.name))
        {
            log::warn!("{line}");
        }
        if let Some(watcher) = self.cards.iter().find_map(|card| card.started_watcher()) {
            watcher.run_periodically(&self.start_workers);
        }
    }

    /// Sends the ports' events to `listener` from now on. Call it after [`Self::watch`].
    pub fn watch_ports(&self, listener: &Arc<dyn PortListener>) {
        for port in &self.ports {
            if let Some(watcher) = port.card.started_watcher() {
                watcher.events().listen(port.number, listener);
            }
        }
    }

    /// Explains the waits of `end`, as long as it lives. Call it after [`Self::watch`].
    pub fn explain(&self, end: &Arc<dyn ExplainedEnd>) {
        if !self.explainer.add(end) {
            return;
        }
        let task: Arc<dyn PeriodicTask> = Arc::clone(&self.explainer) as _;
        self.cards
            .iter()
            .filter_map(|card| card.started_watcher())
            .for_each(|watcher| watcher.run_periodically(&task));
    }

    /// Explains `wait`, of a connection that is not set up yet, and lets a watcher serve `driver`.
    ///
    /// # Errors
    /// As for [`Self::watch_set_up`].
    pub fn explain_set_up(&self, wait: &Arc<SetUpWait>, driver: &Arc<ControlDriver>) -> Result<()> {
        let task: Arc<dyn PeriodicTask> = Arc::clone(&self.explainer) as _;
        self.watch_set_up(driver, Some(&task).filter(|_| self.explainer.add_set_up(wait)))
    }

    /// The device in one line, for the log.
    pub fn describe(&self) -> String {
        let ports: Vec<_> = self.ports.iter().map(|port| port.describe()).collect();
        match ports.as_slice() {
            [one] => one.clone(),
            many => format!("{} ({} rails: {})", self.name, many.len(), many.join("; ")),
        }
    }
}

/// Whether two ports may be one device: they are of one card, and equal in speed and link
/// layer.
fn are_equal_ports(a: &CardPort, b: &CardPort) -> bool {
    let same_card = a.card.pci_path().is_some()
        && a.card.pci_path() == b.card.pci_path()
        && a.card.guid() == b.card.guid();
    let physical = !a.card.is_virtual() && !b.card.is_virtual();
    physical && same_card && a.infiniband == b.infiniband && a.speed_mbps == b.speed_mbps
}
