//! The way from a queue pair to its peer: which ports, by which addresses, and whether packets get through at present.

use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::thread;
use std::time::Duration;

use crate::abi::types::{AhAttr, Gid};
use crate::limits::PORTS;
use crate::network::ecmp;
use crate::network::gid::{self, GidType, TypedGid};
use crate::network::link;
use crate::network::port_id::PortId;
use crate::process::fabric::Fabric;
use crate::process::settings::{LoopbackDown, OwnPortDown};
use crate::shm::slots::{GIDS, NO_PEER, PortSlot};

impl Fabric {
    /// Waits as long as address resolution tries to find an address; false if it does not try.
    #[cold]
    pub(crate) fn await_address(&self) -> bool {
        let time = Duration::from_millis(self.settings.resolve_ms).mul_f64(self.settings.time_scale);
        thread::sleep(time);
        !time.is_zero()
    }
}

/// The global part of an address vector.
#[derive(Clone, Copy, Debug)]
struct Global {
    index: usize,
    source: TypedGid,
    target: Gid,
    flow_label: u32,
}

/// A way through the network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Route {
    from: PortId,
    /// `None`: leads nowhere.
    to: Option<PortId>,
    global: Option<Global>,
    lid: u16,
    mtu_bytes: u32,
    /// It leads from a queue pair back to the same.
    is_loop: bool,
    /// The state of the network by which it was checked; see [`Header::changes`](crate::shm::slots::Header).
    checked_at: u64,
    /// Messages below this size get through.
    limit: u64,
    /// Its own end alone keeps packets from leaving, and the device says so.
    is_refused: bool,
}

impl Route {
    /// The way that an address vector describes. RoCE resolves the address, as the kernel does; InfiniBand believes it.
    pub(crate) fn find(fabric: &Fabric, from: PortId, vector: &AhAttr) -> Result<Self, i32> {
        Self::begin(fabric, from, vector)?.resolve(fabric)
    }

    /// As [`Self::find`], for datagrams, which may be for a group: nobody gets these.
    pub(crate) fn of_datagrams(fabric: &Fabric, from: PortId, vector: &AhAttr) -> Result<Self, i32> {
        let route = Self::begin(fabric, from, vector)?;
        if route.global.is_some_and(|global| gid::is_multicast(&global.target)) {
            return Ok(route);
        }
        route.resolve(fabric)
    }

    /// What the vector says.
    fn begin(fabric: &Fabric, from: PortId, vector: &AhAttr) -> Result<Self, i32> {
        if u32::from(vector.port_num) != from.port {
            return Err(libc::EINVAL);
        }
        let mine = fabric.port(from.device, from.port);
        let mut route = Self { from, lid: vector.dlid, checked_at: u64::MAX, ..Self::default() };
        if vector.is_global != 0 {
            let index = usize::from(vector.sgid_index);
            // As in the kernel: an entry that is empty has another errno than one beyond the table, on every device.
            let source = mine.gid(index).ok_or(if index < GIDS { libc::ENODATA } else { libc::EINVAL })?;
            let mut target = [0; 16];
            target[..8].copy_from_slice(&vector.dgid[0].to_ne_bytes());
            target[8..].copy_from_slice(&vector.dgid[1].to_ne_bytes());
            route.global = Some(Global { index, source, target, flow_label: vector.flow_label });
        }
        if mine.is_infiniband() {
            return Ok(route);
        }
        let global = route.global.ok_or(libc::EINVAL)?;
        if gid::is_mapped(&global.source.gid) != gid::is_mapped(&global.target) {
            return Err(libc::EINVAL);
        }
        Ok(route)
    }

    /// Finds the port that has the address. Where nobody answers, that takes as long as `SOFTRNIC_RESOLVE_MS` says, and is looked at once more.
    fn resolve(self, fabric: &Fabric) -> Result<Self, i32> {
        match self.look_up(fabric) {
            Err(libc::ETIMEDOUT) if fabric.await_address() => self.look_up(fabric),
            found => found,
        }
    }

    fn look_up(mut self, fabric: &Fabric) -> Result<Self, i32> {
        let mine = fabric.port(self.from.device, self.from.port);
        if mine.is_infiniband() {
            let lid = u32::from(self.lid);
            self.to = self.find_port(fabric, |slot| slot.is_infiniband() && slot.lid.load(SeqCst) == lid);
            return Ok(self);
        }
        let target = self.global.map(|global| global.target).ok_or(libc::EINVAL)?;
        let bits = fabric.settings.network_bits;
        if self.global.is_some_and(|global| gid::are_apart(&global.source.gid, &target, bits)) {
            return Err(libc::ETIMEDOUT);
        }
        self.to = self.find_port(fabric, |slot| !slot.is_infiniband() && slot.has_gid(&target));
        // What address resolution says where nobody answers.
        let theirs = self.to.map(|to| fabric.port(to.device, to.port)).ok_or(libc::ETIMEDOUT)?;
        if mine.is_active() && theirs.is_active() { Ok(self) } else { Err(libc::ETIMEDOUT) }
    }

    fn find_port(&self, fabric: &Fabric, is_it: impl Fn(&PortSlot) -> bool) -> Option<PortId> {
        let topology = &fabric.topology;
        let all =
            (0..topology.devices()).flat_map(|device| (1..=topology.ports()).map(move |port| PortId { device, port }));
        all.into_iter().find(|port| is_it(fabric.port(port.device, port.port)))
    }

    /// The same way with packets of up to `mtu_bytes`.
    pub(crate) fn with_mtu(self, mtu_bytes: u32) -> Self {
        Self { mtu_bytes, checked_at: u64::MAX, ..self }
    }

    /// The same way, which leads from a queue pair back to the same if `is_loop`.
    pub(crate) fn looped(self, is_loop: bool) -> Self {
        Self { is_loop, ..self }
    }

    /// The name of the queue pair at its end.
    pub(crate) fn peer(&self, qpn: u32) -> u64 {
        self.to.map_or(NO_PEER, |to| to.qp_name(qpn))
    }

    /// The addresses of a global vector: the sender's, with what its packets look like, and the target's.
    pub(crate) fn addresses(&self) -> Option<(TypedGid, Gid)> {
        self.global.map(|global| (global.source, global.target))
    }

    /// Where it leads, if anywhere.
    pub(crate) fn to(&self) -> Option<PortId> {
        self.to
    }

    /// Which of the paths of the sending port the packets of queue pair `local` take to `remote` of the port where this leads; `None`:
    /// there is but one way, or none. InfiniBand does not choose by a hash.
    pub(crate) fn path(&self, fabric: &Fabric, local: u32, remote: u32) -> Option<u32> {
        let paths = fabric.topology.paths();
        let Global { source, target, flow_label, .. } = self.global?;
        let is_within_port = self.to? == self.from;
        if paths == 0 || is_within_port || fabric.port(self.from.device, self.from.port).is_infiniband() {
            return None;
        }
        let port = match source.kind {
            GidType::RoceV2 => ecmp::udp_source_port(flow_label, local, remote),
            // Version 1 has no UDP header.
            GidType::Plain => 0,
        };
        Some(ecmp::path(&source.gid, &target, port, paths))
    }

    /// Numbers a new connection among those that go this way.
    pub(crate) fn take_flow(&self, fabric: &Fabric) -> u32 {
        let row = |end: PortId| end.device * PORTS + end.port as usize - 1;
        self.to.map_or(0, |to| fabric.header().flows[row(self.from)][row(to)].fetch_add(1, SeqCst))
    }

    /// Checks the route anew if the network has changed since.
    #[inline]
    pub(crate) fn refresh(&mut self, fabric: &Fabric) {
        if fabric.header().changes.load(Acquire) != self.checked_at {
            self.check(fabric);
        }
    }

    /// Whether a message of so many bytes gets through, by the last [`Self::refresh`].
    #[inline]
    pub(crate) fn carries(&self, bytes: u64) -> bool {
        bytes < self.limit
    }

    /// Whether sending ends in an error at once, by the last [`Self::refresh`].
    #[inline]
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused
    }

    #[cold]
    fn check(&mut self, fabric: &Fabric) {
        self.checked_at = fabric.header().changes.load(Acquire);
        (self.limit, self.is_refused) = (0, false);
        let Some(to) = self.to else { return };
        let (mine, theirs) = (fabric.port(self.from.device, self.from.port), fabric.port(to.device, to.port));
        // Packets to the same queue pair do not leave the device.
        let is_inside = self.is_loop && fabric.settings.loopback_down == LoopbackDown::Answered;
        let is_up = (is_inside || mine.is_active() && theirs.is_active())
            && !fabric.is_failed(self.from.device)
            && !fabric.is_failed(to.device);
        let has_source = self.global.is_none_or(|global| mine.gid(global.index) == Some(global.source));
        let is_found = has_source
            && self.global.is_none_or(|global| {
                // The sender's entry gives the wire format; the receiver looks for its address in that format.
                theirs.answers_to(&TypedGid { gid: global.target, kind: global.source.kind })
            });
        let is_cut_off = !is_inside && !mine.is_active() || !has_source;
        self.is_refused =
            is_cut_off && !fabric.is_failed(self.from.device) && fabric.settings.own_port_down == OwnPortDown::Fails;
        let is_near = !mine.is_infiniband() || theirs.lid.load(SeqCst) == u32::from(self.lid);
        if is_up && is_found && is_near {
            let narrowest = link::mtu_bytes(mine.mtu.load(SeqCst).min(theirs.mtu.load(SeqCst)));
            // Packets are as large as both ends agreed; a port in between that takes only smaller ones drops them.
            self.limit = if self.mtu_bytes <= narrowest { u64::MAX } else { u64::from(narrowest) + 1 };
        }
    }
}
