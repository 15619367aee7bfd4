//! Connecting a queue pair: the path to the peer's, and the states RTR and RTS.

use super::queue_pair::{InitQueuePair, QueuePair, RawQueuePair, zeroed_attributes};
use super::recv_chain::RecvChain;
use super::sys;
use crate::error::{Error, Result};

pub use super::sys::ibv_ece as Ece;

/// The attributes that connect a queue pair to the peer's.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Number of the peer's queue pair.
    pub dest_qpn: u32,
    /// First packet sequence number that the peer sends.
    pub dest_psn: u32,
    /// First packet sequence number that this end sends.
    pub psn: u32,
    /// The peer's GID.
    pub dest_gid: [u8; 16],
    /// The peer's LID (InfiniBand).
    pub dest_lid: u16,
    /// Whether packets carry GIDs (a global route header).
    pub global: bool,
    /// Entry of this end's GID table.
    pub gid_index: u8,
    /// Path MTU as `enum ibv_mtu`.
    pub mtu: u8,
    /// Service level.
    pub service_level: u8,
    /// Traffic class, where packets carry GIDs.
    pub traffic_class: u8,
    /// Flow label, where packets carry GIDs: 20 bits, from which a RoCE v2 device derives the UDP
    /// source port. 0: the device chooses the port.
    pub flow_label: u32,
    /// Local acknowledge timeout: the exponent n of 4.096 us · 2^n.
    pub timeout: u8,
    /// Retries of the device.
    pub retry_count: u8,
}

/// An attempt to connect a queue pair has failed.
#[derive(Debug)]
pub struct ConnectError {
    /// The queue pair, for another attempt.
    pub qp: InitQueuePair,
    /// The reason.
    pub error: Error,
}

const RNR_TIMER_0_64_MS: u8 = 12;
const RNR_RETRY_FOREVER: u8 = 7;
const HOP_LIMIT: u8 = 255;

impl InitQueuePair {
    /// Connects it: states RTR and RTS. Completions of its receives carry `recv_id`.
    ///
    /// # Errors
    /// The device refuses the path, or cannot resolve the peer's address.
    pub fn connect(self, path: &Path, recv_id: u64) -> Result<QueuePair> {
        self.try_connect(path, recv_id).map_err(|failed| failed.error)
    }

    /// [`Self::connect`], but returns the queue pair with the error.
    ///
    /// # Errors
    /// The device refuses the path, or cannot resolve the peer's address.
    pub fn try_connect(
        mut self,
        path: &Path,
        recv_id: u64,
    ) -> std::result::Result<QueuePair, Box<ConnectError>> {
        if !self.is_in_rtr {
            if let Err(error) = self.inner.to_rtr(self.port, path) {
                return Err(Box::new(ConnectError { qp: self, error }));
            }
            self.is_in_rtr = true;
        }
        if let Err(error) = self.inner.to_rts(path) {
            return Err(Box::new(ConnectError { qp: self, error }));
        }
        // SAFETY: the queue pair and its context are live; their device initialised the table when
        // it was opened.
        let (post_send, post_recv) = unsafe {
            let ops = &raw const (*(*self.inner.raw).context).ops;
            ((*ops).post_send, (*ops).post_recv)
        };
        let (Some(post_send), Some(post_recv)) = (post_send, post_recv) else {
            let name = self.inner.domain.context.name();
            let error = Error::misuse(format!("{name} has no ibv_post_send, or no ibv_post_recv"));
            return Err(Box::new(ConnectError { qp: self, error }));
        };
        let Self { inner, inline_bytes, .. } = self;
        Ok(QueuePair {
            post_send,
            post_recv,
            inner,
            inline_bytes,
            recv_chain: RecvChain::new(recv_id),
        })
    }

    /// The options that the device offers its peer, if any.
    pub fn ece(&self) -> Option<Ece> {
        self.inner.ece()
    }

    /// Adopts the offered options of the peer's device that this one supports. Call it before
    /// connecting. `false`: the device supports none.
    pub fn adopt_ece(&self, mut offered: Ece) -> bool {
        let Some(set) = self.inner.domain.context.library.ibv_set_ece else { return false };
        // SAFETY: the queue pair is live, and the options are a whole struct.
        let rc = unsafe { set(self.inner.raw, &raw mut offered) };
        if rc != 0 && rc.abs() != libc::EOPNOTSUPP {
            log::info!(
                "{}: the peer's ECE options {:#x} of {:#x} are not adopted: {}",
                self.inner.name(),
                offered.options,
                offered.vendor_id,
                Error::os("set_ece", rc.abs())
            );
        }
        rc == 0
    }
}

impl QueuePair {
    /// The options that both devices agreed on, if any.
    pub fn ece(&self) -> Option<Ece> {
        self.inner.ece()
    }
}

impl RawQueuePair {
    fn to_rtr(&self, port: u8, path: &Path) -> Result<()> {
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::IBV_QPS_RTR;
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
            attr.ah_attr.grh.flow_label = path.flow_label;
        }
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, mask, "RTR")
    }

    fn to_rts(&self, path: &Path) -> Result<()> {
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::IBV_QPS_RTS;
        attr.timeout = path.timeout;
        attr.retry_cnt = path.retry_count;
        attr.rnr_retry = RNR_RETRY_FOREVER;
        attr.sq_psn = path.psn;
        attr.max_rd_atomic = 1;
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, mask, "RTS")
    }

    fn ece(&self) -> Option<Ece> {
        let query = self.domain.context.library.ibv_query_ece?;
        let mut ece = Ece::default();
        // SAFETY: the queue pair is live, and `ece` is a valid place.
        let rc = unsafe { query(self.raw, &raw mut ece) };
        (rc == 0 && ece.vendor_id != 0).then_some(ece)
    }
}
