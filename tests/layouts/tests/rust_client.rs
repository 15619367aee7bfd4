//! A program with the crate rdma-sys, unmodified, and with the system's headers, on the software
//! device: two connected queue pairs, and messages whose bytes are compared. Here, since these
//! tests have the crate anyway.

use rdma_sys::*;
use std::mem::zeroed;
use std::ptr;
use testkit::dist;
use testkit::require;
use testkit::softrnic::Softrnic;

const LENGTH: usize = 4096;
/// An IPv4 address, as RoCE v2 has them.
const GID: u8 = 1;

/// One end, with memory of its own.
struct End {
    pair: *mut ibv_qp,
    queue: *mut ibv_cq,
    memory: Box<[u8; LENGTH]>,
    region: *mut ibv_mr,
}

impl End {
    /// # Safety
    /// `domain` is one of `context`, which is open.
    unsafe fn new(context: *mut ibv_context, domain: *mut ibv_pd) -> Self {
        // SAFETY: as the caller promises; attributes of zeros ask for nothing but what is set.
        unsafe {
            let queue = ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0);
            assert!(!queue.is_null(), "ibv_create_cq");
            let mut attr: ibv_qp_init_attr = zeroed();
            (attr.send_cq, attr.recv_cq, attr.qp_type, attr.sq_sig_all) =
                (queue, queue, ibv_qp_type::IBV_QPT_RC, 1);
            (attr.cap.max_send_wr, attr.cap.max_recv_wr) = (4, 4);
            (attr.cap.max_send_sge, attr.cap.max_recv_sge) = (1, 1);
            let pair = ibv_create_qp(domain, &raw mut attr);
            assert!(!pair.is_null(), "ibv_create_qp");
            let mut memory = Box::new([0; LENGTH]);
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            let region = ibv_reg_mr(domain, memory.as_mut_ptr().cast(), LENGTH, access.0 as i32);
            assert!(!region.is_null(), "ibv_reg_mr");
            Self { pair, queue, memory, region }
        }
    }

    /// # Safety
    /// `gid` is entry [`GID`] of port 1, and `other` the number of a queue pair there.
    unsafe fn connect(&self, gid: ibv_gid, other: u32) {
        // SAFETY: each mask names what is set before.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
            (attr.qp_state, attr.port_num, attr.qp_access_flags) =
                (ibv_qp_state::IBV_QPS_INIT, 1, access.0);
            use ibv_qp_attr_mask as mask;
            let of_init = mask::IBV_QP_STATE
                | mask::IBV_QP_PKEY_INDEX
                | mask::IBV_QP_PORT
                | mask::IBV_QP_ACCESS_FLAGS;
            assert_eq!(ibv_modify_qp(self.pair, &raw mut attr, of_init.0 as i32), 0, "INIT");
            (attr.qp_state, attr.path_mtu, attr.dest_qp_num) =
                (ibv_qp_state::IBV_QPS_RTR, ibv_mtu::IBV_MTU_1024, other);
            (attr.max_dest_rd_atomic, attr.min_rnr_timer) = (1, 12);
            (attr.ah_attr.is_global, attr.ah_attr.port_num) = (1, 1);
            (attr.ah_attr.grh.dgid, attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit) =
                (gid, GID, 64);
            let of_rtr = mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER;
            assert_eq!(ibv_modify_qp(self.pair, &raw mut attr, of_rtr.0 as i32), 0, "RTR");
            (attr.qp_state, attr.timeout, attr.retry_cnt, attr.rnr_retry) =
                (ibv_qp_state::IBV_QPS_RTS, 14, 7, 7);
            attr.max_rd_atomic = 1;
            let of_rts = mask::IBV_QP_STATE
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC;
            assert_eq!(ibv_modify_qp(self.pair, &raw mut attr, of_rts.0 as i32), 0, "RTS");
        }
    }

    fn element(&mut self) -> ibv_sge {
        // SAFETY: a region that stands.
        let lkey = unsafe { (*self.region).lkey };
        ibv_sge { addr: self.memory.as_mut_ptr() as u64, length: LENGTH as u32, lkey }
    }

    /// Sends the memory, or writes it into that of `to`.
    fn send(&mut self, to: Option<&Self>) {
        let mut element = self.element();
        // SAFETY: what is posted stands until the completion is polled.
        unsafe {
            let mut request: ibv_send_wr = zeroed();
            (request.sg_list, request.num_sge, request.opcode) =
                (&raw mut element, 1, ibv_wr_opcode::IBV_WR_SEND);
            if let Some(to) = to {
                request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE;
                request.wr.rdma =
                    rdma_t { remote_addr: to.memory.as_ptr() as u64, rkey: (*to.region).rkey };
            }
            let mut bad = ptr::null_mut();
            assert_eq!(
                ibv_post_send(self.pair, &raw mut request, &raw mut bad),
                0,
                "ibv_post_send"
            );
        }
        self.poll();
    }

    fn receive(&mut self) {
        let mut element = self.element();
        // SAFETY: as in `send`.
        unsafe {
            let mut request: ibv_recv_wr = zeroed();
            (request.sg_list, request.num_sge) = (&raw mut element, 1);
            let mut bad = ptr::null_mut();
            assert_eq!(
                ibv_post_recv(self.pair, &raw mut request, &raw mut bad),
                0,
                "ibv_post_recv"
            );
        }
    }

    /// Waits for a completion, which must be a success.
    fn poll(&self) {
        // SAFETY: room for one completion.
        unsafe {
            let mut completion: ibv_wc = zeroed();
            while ibv_poll_cq(self.queue, 1, &raw mut completion) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(completion.status, ibv_wc_status::IBV_WC_SUCCESS);
        }
    }
}

fn fill(memory: &mut [u8], seed: usize) {
    memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + seed) as u8);
}

fn messages() {
    // SAFETY: calls of libibverbs in the order that it asks for.
    unsafe {
        let mut count = 0;
        let list = ibv_get_device_list(&raw mut count);
        assert!(!list.is_null() && count == 2, "{count} devices");
        let context = ibv_open_device(*list);
        ibv_free_device_list(list);
        assert!(!context.is_null(), "ibv_open_device");
        let domain = ibv_alloc_pd(context);
        let mut gid: ibv_gid = zeroed();
        assert_eq!(ibv_query_gid(context, 1, GID.into(), &raw mut gid), 0, "ibv_query_gid");
        let (mut a, mut b) = (End::new(context, domain), End::new(context, domain));
        a.connect(gid, (*b.pair).qp_num);
        b.connect(gid, (*a.pair).qp_num);

        fill(&mut a.memory[..], 1);
        a.send(Some(&b));
        assert_eq!(a.memory, b.memory, "a write");
        fill(&mut b.memory[..], 2);
        a.receive();
        b.send(None);
        a.poll();
        assert_eq!(a.memory, b.memory, "a send");

        for end in [a, b] {
            assert_eq!(ibv_destroy_qp(end.pair), 0);
            assert_eq!(ibv_dereg_mr(end.region), 0);
            assert_eq!(ibv_destroy_cq(end.queue), 0);
        }
        assert_eq!((ibv_dealloc_pd(domain), ibv_close_device(context)), (0, 0));
    }
}

#[test]
fn a_program_with_the_crate_rdma_sys() {
    let library = require!(dist::built("softrnic-tools/libibverbs.so.1"));
    let folder = library.parent().expect("in a folder").display().to_string();
    Softrnic::new().env("LD_LIBRARY_PATH", folder).alone(messages);
}
