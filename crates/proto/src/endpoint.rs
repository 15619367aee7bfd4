//! The description of one end of a connection for the other: its rails, and the queue pairs on
//! each.

use super::codec::{Reader, Writer};
use super::rail_weights::RailWeights;
use super::recovery::rail_mask::RailMask;
use super::stripe::Striping;
use super::{MAX_QPS, MAX_RAILS, QpIndex, Violation, violation};

/// One end of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QpEnd {
    /// Queue pair number, 24 bits.
    pub qpn: u32,
    /// First packet sequence number that this end sends, 24 bits.
    pub psn: u32,
    /// In a hello the device's offer beyond the standard, in a reply the accepted part.
    pub ece: Option<Ece>,
}

/// Enhanced connection establishment: vendor-defined options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor, never 0.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
    /// Further fields that are set.
    pub comp_mask: u32,
}

/// Bytes of a [`SinkEnd`]: a packet of the largest MTU.
pub const SINK_BYTES: usize = 4096;

/// Memory of [`SINK_BYTES`] that the peer may write to at any time, for tests of the path. The
/// content is never read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SinkEnd {
    /// Its address in the process of this end.
    pub addr: u64,
    /// Its key on the port's card.
    pub key: u32,
}

/// One end of a rail: a port, its address, and its queue pairs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RailEnd {
    /// For messages: device and port.
    pub name: String,
    /// Whether the link layer is InfiniBand (addressed by `lid`) or Ethernet (by `gid`).
    pub infiniband: bool,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier.
    pub gid: [u8; 16],
    /// Path MTU as an `ibv_mtu` code: 1 = 256 … 5 = 4096 bytes.
    pub mtu: u8,
    /// Nominal speed of the port, in Mbit/s.
    pub speed_mbps: u32,
    /// At a sender: the key of its ring of clear-to-sends on the port's card. 0 at a receiver.
    pub ring_key: u32,
    /// The target of the peer's path tests.
    pub sink: SinkEnd,
    /// Its queue pairs.
    pub qps: Vec<QpEnd>,
}

/// One end of a connection. The rails of both ends are in the same order, and connected one to one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// For messages: device, host name, process.
    pub name: String,
    /// Whether the fabric may reorder packets, so that data and immediate of a large message are
    /// posted separately.
    pub adaptive_routing: bool,
    /// Whether this end supports splitting messages over all queue pairs.
    pub split: bool,
    /// Whether this end supports recovery from a failed queue pair.
    pub failover: bool,
    /// Its rails, 1 to [`MAX_RAILS`], with equally many queue pairs each.
    pub rails: Vec<RailEnd>,
}

impl Endpoint {
    /// This end of queue pair `index` of a connection with this striping. An end may have more
    /// queue pairs.
    pub fn qp_end(&self, index: QpIndex, striping: Striping) -> Option<QpEnd> {
        let rail = self.rails.get(usize::from(striping.place_of(index)))?;
        rail.qps.get(usize::from(index.0 / striping.rails())).copied()
    }

    /// [`Self::qp_end`], mutable.
    pub fn qp_end_mut(&mut self, index: QpIndex, striping: Striping) -> Option<&mut QpEnd> {
        let rail = self.rails.get_mut(usize::from(striping.place_of(index)))?;
        rail.qps.get_mut(usize::from(index.0 / striping.rails()))
    }

    /// For messages: rail number `rail` of this end.
    pub fn name_of(&self, rail: usize) -> String {
        match self.rails.get(rail).filter(|rail| !self.name.starts_with(&rail.name)) {
            Some(rail) => format!("{} of {}", rail.name, self.name),
            None => self.name.clone(),
        }
    }

    /// Keeps only this many rails, and queue pairs on each.
    pub fn truncate(&mut self, rails: usize, qps_per_rail: usize) {
        self.rails.truncate(rails);
        for rail in &mut self.rails {
            rail.qps.truncate(qps_per_rail);
        }
    }

    /// The part of an end with rails numbered `of` that is on the rails numbered `rails`.
    #[must_use]
    pub fn over(&self, of: RailMask, rails: RailMask) -> Self {
        let left = of.iter().zip(&self.rails).filter(|(number, _)| rails.contains(*number));
        Self {
            rails: left.map(|(_, rail)| rail.clone()).collect(),
            name: self.name.clone(),
            ..*self
        }
    }

    /// The initial shares of the rails that this end shares with `peer`.
    pub fn rail_weights_with(&self, peer: &Self) -> RailWeights {
        RailWeights::from_speeds(
            self.rails
                .iter()
                .zip(&peer.rails)
                .map(|(mine, theirs)| mine.speed_mbps.min(theirs.speed_mbps)),
        )
    }
}

impl Endpoint {
    pub(super) fn emit(&self, to: &mut Writer) {
        to.name(&self.name);
        to.u8(u8::from(self.adaptive_routing));
        to.u8(u8::from(self.split));
        to.u8(u8::from(self.failover));
        to.u8(self.rails.len().min(MAX_RAILS) as u8);
        self.rails.iter().take(MAX_RAILS).for_each(|rail| rail.emit(to));
    }

    /// # Errors
    /// It is too short or invalid.
    pub(super) fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let (name, adaptive_routing, split, failover) =
            (from.name()?, from.flag()?, from.flag()?, from.flag()?);
        let count = from.count(MAX_RAILS, "rails")?;
        let rails = (0..count).map(|_| RailEnd::parse(from)).collect::<Result<_, _>>()?;
        Ok(Self { name, adaptive_routing, split, failover, rails })
    }
}

impl RailEnd {
    fn emit(&self, to: &mut Writer) {
        to.name(&self.name);
        to.u8(u8::from(self.infiniband));
        to.u16(self.lid);
        to.bytes(&self.gid);
        to.u8(self.mtu);
        to.u32(self.speed_mbps);
        to.u32(self.ring_key);
        to.u64(self.sink.addr);
        to.u32(self.sink.key);
        to.u8(self.qps.len().min(MAX_QPS) as u8);
        self.qps.iter().take(MAX_QPS).for_each(|qp| qp.emit(to));
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let (name, infiniband) = (from.name()?, from.flag()?);
        let (lid, gid, mtu) = (from.u16()?, from.array()?, from.u8()?);
        if !(1..=5).contains(&mtu) {
            return Err(violation!("MTU code {mtu}; 1 (256 bytes) to 5 (4096) are possible"));
        }
        let (speed_mbps, ring_key) = (from.u32()?, from.u32()?);
        let sink = SinkEnd { addr: from.u64()?, key: from.u32()? };
        let count = from.count(MAX_QPS, "queue pairs")?;
        let qps = (0..count).map(|_| QpEnd::parse(from)).collect::<Result<_, _>>()?;
        Ok(Self { name, infiniband, lid, gid, mtu, speed_mbps, ring_key, sink, qps })
    }
}

impl QpEnd {
    fn emit(&self, to: &mut Writer) {
        to.u32(self.qpn);
        to.u32(self.psn);
        let none = Ece { vendor_id: 0, options: 0, comp_mask: 0 };
        let Ece { vendor_id, options, comp_mask } = self.ece.unwrap_or(none);
        [vendor_id, options, comp_mask].into_iter().for_each(|word| to.u32(word));
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, Violation> {
        let (qpn, psn) = (from.number24()?, from.number24()?);
        let ece = Ece { vendor_id: from.u32()?, options: from.u32()?, comp_mask: from.u32()? };
        Ok(Self { qpn, psn, ece: Some(ece).filter(|ece| ece.vendor_id != 0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::endpoint;

    #[test]
    fn lanes_are_dealt_out_to_rails_in_turn() {
        let striping = Striping::new(3, 2, false);
        for end in [endpoint(3, 2, false), endpoint(4, 2, false), endpoint(3, 5, false)] {
            let number = |qp| end.qp_end(QpIndex(qp), striping).map(|qp| qp.qpn);
            let numbers: Vec<_> = (0..6).filter_map(number).collect();
            assert_eq!(numbers, [0, 100, 200, 1, 101, 201]);
        }
        assert_eq!(endpoint(3, 2, false).qp_end(QpIndex(6), striping), None);
    }

    #[test]
    fn a_queue_pair_to_be_changed_is_the_one_that_is_read() {
        let striping = Striping::new(3, 2, false);
        let mut end = endpoint(3, 2, false);
        for qp in (0..8).map(QpIndex) {
            let read = end.qp_end(qp, striping);
            assert_eq!(end.qp_end_mut(qp, striping).copied(), read);
        }
    }

    #[test]
    fn a_rail_is_named_with_the_name_of_its_end_unless_that_has_it() {
        let mut end = endpoint(2, 1, false);
        end.name = "mlx5_0:1 on n1".into();
        end.rails[0].name = "mlx5_0:1".into();
        end.rails[1].name = "mlx5_1:1".into();
        let names = [0, 1, 2].map(|rail| end.name_of(rail));
        assert_eq!(names, ["mlx5_0:1 on n1", "mlx5_1:1 of mlx5_0:1 on n1", "mlx5_0:1 on n1"]);
    }
}
