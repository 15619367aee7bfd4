//! Structures that are shorter in some applications than in others: nothing may be touched behind
//! the short form. Each lies at the end of a page that nothing follows, so one byte too many is a
//! SIGSEGV of the child.

use crate::common::guard::AtPageEnd;
use crate::common::prelude::*;
use std::mem::transmute_copy;

#[test]
fn send_and_receive_requests_of_the_short_form() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(4096, &TERMS);
        let sge = AtPageEnd::new(a.sge(0, 8));
        for opcode in [WRITE, WRITE_IMM, SEND, SEND_IMM, READ] {
            let no_sges = AtPageEnd::new(b.sge(0, 64));
            let wr =
                RecvWr { wr_id: 5, next: ptr::null_mut(), sg_list: no_sges.as_ptr(), num_sge: 1 };
            let wr = AtPageEnd::new(wr);
            let mut bad = ptr::null_mut();
            assert_eq!(post_recv(b.qp, wr.as_ptr(), &mut bad), 0);
            let to = b.address();
            let wr = SendWr {
                wr_id: 6,
                next: ptr::null_mut(),
                sg_list: sge.as_ptr(),
                num_sge: 1,
                opcode,
                flags: SIGNALED,
                imm: 1,
                remote_addr: to.addr,
                rkey: to.rkey,
                rest: [u64::MAX; 3],
            };
            let wr = AtPageEnd::new(wr);
            let mut bad = ptr::null_mut();
            assert_eq!(post_send(a.qp, wr.as_ptr(), &mut bad), 0);
            assert_eq!(a.next().status, OK);
        }
    });
}

#[test]
fn completions_fill_no_more_than_their_array() {
    Softrnic::new().alone(|| {
        let (a, _b) = local_pair(4096, &TERMS);
        for _ in 0..5 {
            a.send(WORK);
        }
        let array = AtPageEnd::new([Wc::default(); 3]);
        assert_eq!(poll_cq(a.cq, 3, array.as_ptr().cast()), 3);
        assert_eq!(poll_cq(a.cq, 3, array.as_ptr().cast()), 2);
        assert_eq!(poll_cq(a.cq, 3, array.as_ptr().cast()), 0);
    });
}

#[test]
fn qp_attributes_of_136_bytes() {
    Softrnic::new().alone(|| {
        let a = Node::new(0, 64);
        let terms = TERMS;
        let init = AtPageEnd::new(QpAttr { state: INIT, port: 1, access: 7, ..ATTR });
        assert_eq!(ibv_modify_qp(a.qp, init.as_ptr(), INIT_MASK), 0);
        let attr = AtPageEnd::new(rtr(&a.address(), &terms));
        assert_eq!(ibv_modify_qp(a.qp, attr.as_ptr(), RTR_MASK), 0);
        let attr = AtPageEnd::new(rts(a.psn, &terms));
        assert_eq!(ibv_modify_qp(a.qp, attr.as_ptr(), RTS_MASK), 0);
        let out = AtPageEnd::new(ATTR);
        let made = AtPageEnd::new([0u8; 64]);
        assert_eq!(ibv_query_qp(a.qp, out.as_ptr(), -1, made.as_ptr().cast()), 0);
        let got = out.get();
        assert_eq!(
            (got.state, got.dest_qpn, got.sq_psn, got.timeout),
            (RTS, a.qpn(), a.psn, terms.timeout)
        );
        assert_eq!((got.path_mtu, got.access, got.rnr_retry), (5, 7, 7));
        assert_eq!(made.get()[32..36], CAP.max_send_wr.to_ne_bytes());
    });
}

#[test]
fn qp_init_attributes_of_64_bytes() {
    Softrnic::new().alone(|| {
        let a = Node::new(0, 64);
        let mut init = empty_init();
        (init.send_cq, init.recv_cq, init.qp_type, init.cap) = (a.cq, a.cq, 2, CAP);
        // SAFETY: plain data of 64 bytes.
        let bytes = AtPageEnd::new(unsafe { transmute_copy::<QpInit, [u64; 8]>(&init) });
        let qp = ibv_create_qp(a.pd, bytes.as_ptr().cast());
        assert!(!qp.is_null());
        assert_eq!(ibv_destroy_qp(qp), 0);
        a.close();
    });
}

#[test]
fn port_attributes_of_every_length() {
    Softrnic::new().alone(|| {
        let context = open(0);
        let short = AtPageEnd::new([0xeeu8; 48]);
        assert_eq!(ibv_query_port(context, 1, short.as_ptr().cast()), 0);
        let bytes = short.get();
        assert_eq!(bytes[0..4], 4u32.to_ne_bytes(), "active");
        assert_eq!((bytes[43], bytes[44], bytes[46]), (2, 128, 2), "4x, NDR, Ethernet");
        assert_eq!(ibv_query_port(context, 2, short.as_ptr().cast()), libc::EINVAL);

        // Newer headers reach this through verbs_context, 320 bytes before the context, if its size
        // (8 bytes before) is large enough and abi_compat (at 320) is all ones. SAFETY: offsets of
        // the verbs interface.
        let (query, size, compat) = unsafe {
            let at = context.cast::<u8>();
            (*at.sub(320).cast::<Ptr>(), *at.sub(8).cast::<usize>(), *at.add(320).cast::<usize>())
        };
        assert_eq!((size, compat), (696, usize::MAX));
        // SAFETY: its type in the verbs interface.
        let query: unsafe extern "C" fn(Ptr, u8, Ptr, usize) -> i32 =
            unsafe { transmute_copy(&query) };
        let middle = AtPageEnd::new([0xeeu8; 52]);
        // SAFETY: 52 bytes.
        assert_eq!(unsafe { query(context, 1, middle.as_ptr().cast(), 52) }, 0);
        assert_eq!(middle.get()[..48], bytes);
        let long = AtPageEnd::new([0xeeu8; 64]);
        // SAFETY: 64 bytes.
        assert_eq!(unsafe { query(context, 1, long.as_ptr().cast(), 64) }, 0);
        assert_eq!(long.get()[52..64], [128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "speed, then zeros");
    });
}

#[test]
fn device_attributes_of_232_bytes() {
    Softrnic::new().env("SOFTRNIC_MAX_QP", "99").alone(|| {
        let out = AtPageEnd::new([0u8; 232]);
        assert_eq!(ibv_query_device(open(0), out.as_ptr().cast()), 0);
        assert_eq!(out.get()[108..112], 99u32.to_ne_bytes(), "max_qp");
        assert_eq!(out.get()[227], 1, "ports");
    });
}

/// Newer headers reach this through verbs_context, 104 bytes before the context.
#[test]
fn extended_device_attributes_of_every_length() {
    Softrnic::new().ports(2).alone(|| {
        let context = open(0);
        let plain = AtPageEnd::new([0u8; 232]);
        assert_eq!(ibv_query_device(context, plain.as_ptr().cast()), 0);
        type Query = unsafe extern "C" fn(Ptr, *const u32, Ptr, usize) -> i32;
        // SAFETY: offset and type of the verbs interface.
        let query: Option<Query> =
            unsafe { transmute_copy(&*context.cast::<u8>().sub(104).cast::<Ptr>()) };
        let query = query.expect("query_device_ex");
        let whole = AtPageEnd::new([0xeeu8; 400]);
        // SAFETY: as many bytes as the length says, here and below.
        assert_eq!(unsafe { query(context, ptr::null(), whole.as_ptr().cast(), 400) }, 0);
        let bytes = whole.get();
        // The last four are padding.
        assert_eq!(bytes[..228], plain.get()[..228]);
        assert!(bytes[232..396].iter().all(|&byte| byte == 0), "nothing of the rest is supported");
        assert_eq!(bytes[396..], 2u32.to_ne_bytes(), "phys_port_cnt_ex");
        let short = AtPageEnd::new([0xeeu8; 304]);
        let no_extension = 0u32;
        // SAFETY: as above.
        let rc = unsafe { query(context, &raw const no_extension, short.as_ptr().cast(), 304) };
        assert_eq!(rc, 0);
        assert_eq!(short.get()[..228], bytes[..228]);
        assert_eq!(short.get()[232..], bytes[232..304]);
        let extension = 1u32;
        // SAFETY: as above.
        let refused = unsafe {
            [
                query(context, &raw const extension, whole.as_ptr().cast(), 400),
                query(context, ptr::null(), short.as_ptr().cast(), 231),
            ]
        };
        assert_eq!(refused, [libc::EINVAL; 2]);
    });
}

#[test]
fn unknown_opcodes_of_the_extended_context_are_absent() {
    Softrnic::new().alone(|| {
        let context = open(0);
        // advise_mr: NULL makes the inlined wrapper say so. SAFETY: an offset of the verbs
        // interface.
        assert!(unsafe { *context.cast::<u8>().sub(312).cast::<Ptr>() }.is_null());
    });
}

#[test]
fn gid_entries_are_the_same_everywhere() {
    Softrnic::new().devices(8).alone(|| {
        type One = unsafe extern "C" fn(Ptr, u32, u32, Ptr, u32, usize) -> i32;
        type All = unsafe extern "C" fn(Ptr, Ptr, usize, u32, usize) -> isize;
        // SAFETY: the functions' types in the verbs interface.
        let (one, all): (One, All) = unsafe {
            (
                transmute_copy(&symbol("_ibv_query_gid_ex", "IBVERBS_1.11")),
                transmute_copy(&symbol("_ibv_query_gid_table", "IBVERBS_1.11")),
            )
        };
        let mut seen = vec![];
        for device in 0..8 {
            let context = open(device);
            let table = AtPageEnd::new([[0u8; 32]; 2]);
            // SAFETY: two entries of 32 bytes; then one of 24, the form without the last fields.
            unsafe {
                assert_eq!(all(context, table.as_ptr().cast(), 2, 0, 32), 2);
                let short = AtPageEnd::new([0u8; 24]);
                assert_eq!(one(context, 1, 1, short.as_ptr().cast(), 0, 24), 0);
                assert_eq!(short.get(), table.get()[1][..24]);
                assert_eq!(one(context, 1, 2, short.as_ptr().cast(), 0, 24), libc::ENODATA);
                assert_eq!(one(context, 1, 16, short.as_ptr().cast(), 0, 24), libc::EINVAL);
            }
            for (index, entry) in table.get().iter().enumerate() {
                let gid = AtPageEnd::new([0u8; 16]);
                assert_eq!(ibv_query_gid(context, 1, index as i32, gid.as_ptr()), 0);
                assert_eq!(gid.get(), entry[..16]);
                assert_eq!(entry[24..28], 2u32.to_ne_bytes(), "RoCE v2");
                seen.push(gid.get());
            }
            assert_eq!(table.get()[0][..2], [0xfe, 0x80]);
            assert_eq!(table.get()[1][..13], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10]);
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 16, "every GID is unique");
    });
}
