//! Connecting a queue pair: the way to its peer, and the states RTR and RTS.

use super::queue::{InitQueuePair, QueuePair, RawQueuePair, mask, zeroed_attributes};
use super::sys;
use super::work::RecvChain;
use crate::error::{Error, Result};

/// What both ends of a queue pair have to know of each other, and how it shall behave.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// The peer's queue pair.
    pub dest_qpn: u32,
    /// The peer's first packet sequence number.
    pub dest_psn: u32,
    /// Our first packet sequence number.
    pub psn: u32,
    /// The peer's GID.
    pub dest_gid: [u8; 16],
    /// The peer's LID (InfiniBand).
    pub dest_lid: u16,
    /// Whether packets are addressed by GID.
    pub global: bool,
    /// Our entry in the GID table.
    pub gid_index: u8,
    /// Path MTU as the verbs' enumeration.
    pub mtu: u8,
    /// Service level.
    pub service_level: u8,
    /// Traffic class, where packets are addressed by GID.
    pub traffic_class: u8,
    /// Local acknowledge timeout, as an exponent: 4.096 us · 2^n.
    pub timeout: u8,
    /// How often the device retries.
    pub retry_count: u8,
}

/// Enhanced connection establishment: what two devices of one maker agree on beyond the standard. `struct ibv_ece`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ece {
    /// The maker.
    pub vendor_id: u32,
    /// The maker's own options.
    pub options: u32,
    /// Further fields that are set: none are known.
    pub comp_mask: u32,
}

/// A queue pair that could not be connected, as it was before; and why.
#[derive(Debug)]
pub struct ConnectError {
    /// The queue pair.
    pub pair: InitQueuePair,
    /// What the verbs said.
    pub errno: i32,
    /// The same in words.
    pub error: Error,
}

const RNR_TIMER_0_64_MS: u8 = 12;
const RNR_RETRY_FOREVER: u8 = 7;
const HOP_LIMIT: u8 = 255;

impl InitQueuePair {
    /// Connects it: states RTR and RTS. Completions of receives will carry `recv_id`.
    ///
    /// # Errors
    /// The device refuses the path, or cannot resolve the peer's address.
    pub fn connect(self, path: &Path, recv_id: u64) -> Result<QueuePair> {
        self.try_connect(path, recv_id).map_err(|refused| refused.error)
    }

    /// As [`Self::connect`], but after a refusal it may be tried again.
    ///
    /// # Errors
    /// The device refuses the path, or cannot resolve the peer's address.
    pub fn try_connect(mut self, path: &Path, recv_id: u64) -> std::result::Result<QueuePair, Box<ConnectError>> {
        let refused = |pair: Self, (errno, error)| Box::new(ConnectError { pair, errno, error });
        if !self.ready_to_receive {
            if let Err(why) = self.inner.receive_from(self.port, path) {
                return Err(refused(self, why));
            }
            self.ready_to_receive = true;
        }
        if let Err(why) = self.inner.send_to(path) {
            return Err(refused(self, why));
        }
        // SAFETY: the queue pair and its context are live; their device filled the table in when it was opened.
        let post_send = unsafe { (*(*self.inner.raw).context).ops.post_send };
        let Some(post_send) = post_send else {
            let name = self.inner.domain.context.name();
            let error = Error::internal(format!("{name} has no ibv_post_send"));
            return Err(refused(self, (libc::ENOSYS, error)));
        };
        let Self { inner, inline_bytes, .. } = self;
        Ok(QueuePair { post_send, inner, inline_bytes, recv_chain: RecvChain::new(recv_id) })
    }

    /// What the device offers its peer, if it has something to offer.
    pub fn ece(&self) -> Option<Ece> {
        self.inner.ece()
    }

    /// Takes up what the peer's device offers, as far as this one can; to be called before connecting. `false`: it cannot.
    pub fn adopt_ece(&self, mut offered: Ece) -> bool {
        let Some(set) = self.inner.domain.context.library.ibv_set_ece else { return false };
        // SAFETY: the queue pair is live, and the options are a whole struct.
        let rc = unsafe { set(self.inner.raw, &raw mut offered) };
        if rc != 0 && rc.abs() != libc::EOPNOTSUPP {
            log::info!(
                "{}: the peer's {offered:x?} is not taken up: {}",
                self.inner.name(),
                Error::os("set_ece", rc.abs())
            );
        }
        rc == 0
    }
}

impl QueuePair {
    /// What both devices agreed on, if anything.
    pub fn ece(&self) -> Option<Ece> {
        self.inner.ece()
    }
}

impl RawQueuePair {
    fn receive_from(&self, port: u8, path: &Path) -> std::result::Result<(), (i32, Error)> {
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = u32::from(path.mtu);
        attr.dest_qp_num = path.dest_qpn;
        attr.rq_psn = path.dest_psn;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = RNR_TIMER_0_64_MS;
        attr.ah_attr.port_num = port;
        attr.ah_attr.sl = path.service_level;
        attr.ah_attr.dlid = path.dest_lid;
        if path.global {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = sys::ibv_gid { raw: path.dest_gid };
            attr.ah_attr.grh.sgid_index = path.gid_index;
            attr.ah_attr.grh.hop_limit = HOP_LIMIT;
            attr.ah_attr.grh.traffic_class = path.traffic_class;
        }
        let rtr = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | mask::MAX_DEST_RD | mask::MIN_RNR;
        self.modify(&mut attr, mask::STATE | rtr, "RTR")
    }

    fn send_to(&self, path: &Path) -> std::result::Result<(), (i32, Error)> {
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = path.timeout;
        attr.retry_cnt = path.retry_count;
        attr.rnr_retry = RNR_RETRY_FOREVER;
        attr.sq_psn = path.psn;
        attr.max_rd_atomic = 1;
        let rts = mask::TIMEOUT | mask::RETRY | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_RD;
        self.modify(&mut attr, mask::STATE | rts, "RTS")
    }

    fn ece(&self) -> Option<Ece> {
        let query = self.domain.context.library.ibv_query_ece?;
        let mut ece = Ece::default();
        // SAFETY: the queue pair is live, and `ece` is a valid place.
        let rc = unsafe { query(self.raw, &raw mut ece) };
        (rc == 0 && ece.vendor_id != 0).then_some(ece)
    }
}
