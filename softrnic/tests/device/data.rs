//! Bytes arrive: between processes, within one, for every opcode, and in order.

use crate::common::prelude::*;
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pattern that differs at every place.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for byte in bytes {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *byte = x as u8;
    }
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed);
    bytes
}

const SIZES: [usize; 20] = [
    0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 263, 264, 4095, 4096, 4097, 65_536, 65_537,
    1_000_003, 4_194_304,
];
const SPACE: usize = (4 << 20) + 256;

cases! { ();
    every_opcode_between_processes => Softrnic::new().pair(every_opcode);
    every_opcode_with_late_execution => Softrnic::new().strict().pair(every_opcode);
    every_opcode_by_lines => Softrnic::new().env("SOFTRNIC_LINES", "1").pair(every_opcode);
}

/// Side 0 requests, side 1 checks. All sizes, odd alignments on both ends.
fn every_opcode(side: usize, mut socket: Peer) {
    let mut node = Node::new(side, SPACE);
    let peer = node.connect_over(&mut socket, &TERMS);
    for (round, len) in SIZES.into_iter().enumerate() {
        for opcode in [WRITE, WRITE_IMM, SEND, SEND_IMM, READ] {
            let seed = round as u64 * 10 + u64::from(opcode);
            let (from, to) = (round * 3 % 16, round * 5 % 16);
            let reads = opcode == READ;
            let fills = reads == (side == 1);
            let at = if side == 0 { from } else { to };
            node.memory[..at + len + 64].fill(0xee);
            if fills {
                fill(&mut node.memory[at..at + len], seed);
            }
            if side == 1 && opcode != WRITE && opcode != READ {
                let sges = if opcode == WRITE_IMM { vec![] } else { vec![node.sge(to, len + 32)] };
                node.recv(seed, &sges);
            }
            socket.barrier();
            if side == 0 {
                let to = (peer.addr + to as u64, peer.rkey);
                let imm = seed as u32 ^ 0xa5a5;
                node.send(Work { id: seed, opcode, imm, sges: &[node.sge(from, len)], to, ..WORK });
                let wc = node.next();
                assert_eq!(
                    (wc.wr_id, wc.status, wc.qp_num),
                    (seed, OK, node.qpn()),
                    "{opcode} of {len}"
                );
                assert_eq!(wc.opcode, [1, 1, 0, 0, 2][opcode as usize]);
            } else if opcode != WRITE && opcode != READ {
                let wc = node.next();
                assert_eq!(
                    (wc.wr_id, wc.status, wc.byte_len as usize),
                    (seed, OK, len),
                    "{opcode}"
                );
                assert_eq!((wc.qp_num, wc.src_qp), (node.qpn(), peer.qpn));
                assert_eq!(wc.opcode, if opcode == WRITE_IMM { 129 } else { 128 });
                if opcode != SEND {
                    assert_eq!((wc.flags & 2, wc.imm), (2, seed as u32 ^ 0xa5a5));
                }
            }
            socket.barrier();
            if !fills {
                assert!(
                    node.memory[at..at + len] == pattern(len, seed)[..],
                    "{opcode} of {len}: wrong data"
                );
                assert!(
                    node.memory[..at]
                        .iter()
                        .chain(&node.memory[at + len..][..64])
                        .all(|b| *b == 0xee),
                    "outside"
                );
            }
            socket.barrier();
        }
    }
    assert!(node.poll().is_none());
    socket.barrier();
    node.close();
}

#[test]
fn several_elements_on_both_sides() {
    Softrnic::new().pair(|side, mut socket| {
        let cap = Cap { max_send_sge: 32, max_recv_sge: 32, ..CAP };
        let mut node = Node::with(0, 4096, cap, 64);
        node.connect_over(&mut socket, &TERMS);
        for (gather, scatter) in [
            (vec![3, 5, 8, 1], vec![1, 2, 14, 9]),
            (vec![100, 200, 300, 0], vec![0, 599, 1, 7]),
            ((1..=32).collect(), (1..=32).rev().collect()),
        ] {
            let total: usize = gather.iter().sum();
            let parts = |lengths: Vec<usize>, node: &Node| {
                let mut at = 1;
                let place = |len| {
                    let sge = node.sge(at, len);
                    at += len + 11;
                    sge
                };
                lengths.into_iter().map(place).collect::<Vec<_>>()
            };
            let want = pattern(total, 3);
            let mine = parts(if side == 0 { gather } else { scatter }, &node);
            let base = node.memory.as_ptr() as u64;
            if side == 0 {
                let mut bytes = want.iter();
                for sge in &mine {
                    let at = (sge.addr - base) as usize;
                    node.memory[at..at + sge.length as usize]
                        .fill_with(|| *bytes.next().expect("enough"));
                }
            } else {
                node.recv(1, &mine);
            }
            socket.barrier();
            if side == 0 {
                node.send(Work { opcode: SEND, sges: &mine, ..WORK });
                assert_eq!(node.next().status, OK);
            } else {
                assert_eq!(node.next().byte_len as usize, total);
                let got: Vec<u8> = mine
                    .iter()
                    .flat_map(|s| &node.memory[(s.addr - base) as usize..][..s.length as usize])
                    .copied()
                    .take(total)
                    .collect();
                assert!(got == want);
            }
            socket.barrier();
        }
    });
}

#[test]
fn inline_data_is_taken_at_the_post() {
    Softrnic::new().strict().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let mut bytes = *b"inline!!";
        // Inline data needs no key.
        let sge = Sge { addr: bytes.as_mut_ptr() as u64, length: 8, lkey: 0 };
        let to = b.at(0);
        a.send(Work { flags: SIGNALED | INLINE, sges: &[sge], to, ..WORK });
        bytes.fill(0);
        assert_eq!(a.next().status, OK);
        assert_eq!(&b.memory[..8], b"inline!!");
        assert_eq!(bytes, [0; 8]);
    });
}

#[test]
fn strict_mode_reads_other_data_late() {
    Softrnic::new().strict().alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        let to = b.at(0);
        // On a busy machine we may be too late ourselves, but not always.
        let shows = (0..1000).any(|_| {
            a.memory[0] = 1;
            a.send(Work { sges: &[a.sge(0, 1)], to, ..WORK });
            a.memory[0] = 2;
            assert_eq!(a.next().status, OK);
            b.memory[0] == 2
        });
        assert!(shows, "a buffer that was changed after the post");
    });
}

#[test]
fn a_qp_may_be_connected_to_itself() {
    Softrnic::new().alone(|| {
        let mut node = Node::new(0, 128);
        node.connect(&node.address(), &TERMS);
        fill(&mut node.memory[..64], 9);
        let to = node.at(0);
        node.send(Work { opcode: READ, sges: &[node.sge(64, 64)], to, ..WORK });
        assert_eq!(node.next().status, OK);
        assert!(node.memory[64..] == pattern(64, 9)[..]);
        node.close();
    });
}

#[test]
fn iova_may_differ_from_the_address() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        let register = symbol("ibv_reg_mr_iova2", "IBVERBS_1.8");
        // SAFETY: its type in the verbs interface.
        let register: unsafe extern "C" fn(Ptr, Ptr, usize, u64, u32) -> *mut Mr =
            unsafe { std::mem::transmute(register) };
        let at = b.memory.as_ptr().cast_mut();
        // SAFETY: a live PD and memory.
        let mr = unsafe { register(b.pd, at.cast(), 64, 0x1000, 7) };
        // SAFETY: a live MR.
        let rkey = u64::from(unsafe { (*mr).rkey });
        a.memory[0] = 77;
        a.send(Work { sges: &[a.sge(0, 1)], to: (0x1005, rkey), ..WORK });
        assert_eq!(a.next().status, OK);
        assert_eq!(b.memory[5], 77);
        a.send(Work { sges: &[a.sge(0, 1)], to: (0x0fff, rkey), ..WORK });
        assert_eq!(a.next().status, REM_ACCESS);
    });
}

#[test]
fn requests_in_a_list_run_in_order() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let mut sges: Vec<Sge> = (0..8).map(|i| a.sge(i, 1)).collect();
        let to = b.address();
        let mut list: Vec<SendWr> = sges
            .iter_mut()
            .enumerate()
            .map(|(i, sge)| SendWr {
                wr_id: i as u64,
                next: ptr::null_mut(),
                sg_list: sge,
                num_sge: 1,
                opcode: if i == 5 { BIND_MW } else { WRITE },
                flags: SIGNALED,
                imm: 0,
                remote_addr: to.addr,
                rkey: to.rkey,
                rest: [0; 3],
            })
            .collect();
        for i in 0..7 {
            list[i].next = &raw mut list[i + 1];
        }
        let mut bad = ptr::null_mut();
        // The sixth is no opcode we know: those before it are posted.
        assert_eq!(post_send(a.qp, &raw mut list[0], &mut bad), libc::EOPNOTSUPP);
        assert_eq!(bad, &raw mut list[5]);
        // Those that are executed late are completed late.
        let ids: Vec<_> = (0..5).map(|_| a.next().wr_id).collect();
        assert_eq!(ids, [0, 1, 2, 3, 4]);
        assert!(a.poll().is_none());
    });
}

/// The receiver reads memory that the sender keeps rewriting: where it reads round n, lower
/// addresses hold round n or a later one.
#[test]
fn bytes_appear_in_ascending_order() {
    Softrnic::new().pair(|side, mut socket| {
        const BYTES: usize = 64;
        let mut node = Node::new(0, 4096);
        let peer = node.connect_over(&mut socket, &TERMS);
        let aligned = node.memory.as_ptr().align_offset(8);
        let theirs: usize = socket.swap(&aligned);
        if side == 0 {
            let to = |at: usize| (peer.addr + (theirs + at) as u64, peer.rkey);
            for round in 1..=20_000u32 {
                node.memory[..BYTES].fill(round as u8);
                node.send(Work { sges: &[node.sge(0, BYTES)], to: to(0), ..WORK });
                assert_eq!(node.next().status, OK);
            }
            node.memory[0] = 1;
            node.send(Work { sges: &[node.sge(0, 1)], to: to(BYTES), ..WORK });
            assert_eq!(node.next().status, OK);
        } else {
            // SAFETY: aligned and inside the memory; read as atomics while the device writes.
            let words: &[AtomicU64] = unsafe {
                std::slice::from_raw_parts(node.memory.as_ptr().add(aligned).cast(), BYTES / 8 + 1)
            };
            let mut looks = 0;
            while words[BYTES / 8].load(Ordering::Acquire) == 0 {
                let begin = Instant::now();
                let mut seen = [0; BYTES / 8];
                for (seen, word) in seen.iter_mut().zip(words).rev() {
                    *seen = word.load(Ordering::Acquire);
                }
                // Rounds are counted modulo 256: this tells older from newer only if little time
                // has passed.
                if begin.elapsed() < Duration::from_micros(100) {
                    let rounds: Vec<u8> = seen.iter().flat_map(|word| word.to_le_bytes()).collect();
                    let is_sorted = rounds.is_sorted_by(|low, high| low.wrapping_sub(*high) < 128);
                    assert!(is_sorted, "{rounds:?}");
                    looks += 1;
                }
            }
            assert!(looks > 100, "{looks} looks");
        }
        socket.barrier();
    });
}

/// Side 0 writes `bytes` again and again; side 1 waits for the last word of each `unit` and looks
/// at those before it, back to the start of its unit.
fn polled(side: usize, mut socket: Peer, bytes: usize, unit: usize) {
    const ROUNDS: u64 = 300;
    const ALIGNED: usize = 128;
    let mut node = Node::new(0, bytes + ALIGNED);
    let peer = node.connect_over(&mut socket, &TERMS);
    let mine = node.memory.as_ptr().align_offset(ALIGNED);
    let theirs: usize = socket.swap(&mine);
    for round in 1..=ROUNDS {
        if side == 0 {
            for word in node.memory[..bytes].chunks_mut(8) {
                word.copy_from_slice(&round.to_le_bytes()[..word.len()]);
            }
            socket.barrier();
            let to = (peer.addr + theirs as u64, peer.rkey);
            node.send(Work { sges: &[node.sge(0, bytes)], to, ..WORK });
            assert_eq!(node.next().status, OK);
        } else {
            node.memory.fill(0);
            // SAFETY: aligned and inside the memory; read as atomics while the device writes.
            let words: &[AtomicU64] = unsafe {
                std::slice::from_raw_parts(node.memory.as_ptr().add(mine).cast(), bytes / 8)
            };
            socket.barrier();
            for (at, unit) in words.chunks_exact(unit / 8).enumerate() {
                let (flag, rest) = unit.split_last().expect("not empty");
                while flag.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                let late = rest.iter().position(|word| word.load(Ordering::Acquire) != round);
                assert_eq!(
                    late, None,
                    "a word of unit {at} in round {round} appears after the last"
                );
            }
        }
        socket.barrier();
    }
}

#[test]
fn the_last_word_of_a_long_message_appears_last() {
    Softrnic::new().pair(|side, socket| polled(side, socket, 65_536, 65_536));
}

#[test]
fn whole_lines_are_seen_by_their_last_word() {
    Softrnic::new()
        .env("SOFTRNIC_LINES", "1")
        .pair(|side, socket| polled(side, socket, 614_400, 128));
}

#[test]
fn whole_lines_are_seen_by_their_last_word_when_staged() {
    Softrnic::new()
        .env("SOFTRNIC_LINES", 1)
        .env("SOFTRNIC_STAGED", 1)
        .pair(|side, socket| polled(side, socket, 65_536, 128));
}

/// The receiver posts one receive at a time; the sender's queue is full most of the time. Nothing
/// is lost, doubled or out of order.
#[test]
fn a_slow_receiver_gets_everything_in_order() {
    Softrnic::new().pair(|side, mut socket| {
        const MESSAGES: u32 = 2000;
        let mut node = Node::new(side, 64 * 1024);
        node.connect_over(&mut socket, &Terms { min_rnr_timer: 1, ..TERMS });
        if side == 0 {
            let (mut posted, mut done) = (0, 0);
            while done < MESSAGES {
                if posted < MESSAGES {
                    // A buffer of its own for every slot of the queue.
                    let at = posted as usize % 64 * 1024;
                    let len = posted as usize * 7 % 1000 + 4;
                    node.memory[at..at + 4].copy_from_slice(&posted.to_ne_bytes());
                    let sges = [node.sge(at, len)];
                    let work = Work {
                        id: posted.into(),
                        opcode: SEND_IMM,
                        imm: posted,
                        sges: &sges,
                        ..WORK
                    };
                    match node.try_send(work) {
                        0 => posted += 1,
                        rc => assert_eq!(rc, libc::ENOMEM),
                    }
                }
                while let Some(wc) = node.poll() {
                    assert_eq!((wc.wr_id, wc.status), (u64::from(done), OK));
                    done += 1;
                }
                std::thread::yield_now();
            }
        } else {
            for want in 0..MESSAGES {
                node.recv(want.into(), &[node.sge(0, 1024)]);
                let wc = node.next();
                assert_eq!((wc.wr_id, wc.status, wc.imm), (want.into(), OK, want));
                assert_eq!(wc.byte_len, want * 7 % 1000 + 4);
                assert_eq!(node.memory[..4], want.to_ne_bytes());
            }
        }
        socket.barrier();
        assert!(node.poll().is_none());
    });
}

/// A queue pair that is to have so many inline bytes; the bytes that it is granted, or the errno,
/// which was `errno_before`.
fn granted(node: &Node, max_inline_data: u32, errno_before: i32) -> Result<u32, i32> {
    let mut init = QpInit {
        user: ptr::null_mut(),
        send_cq: node.cq,
        recv_cq: node.cq,
        srq: ptr::null_mut(),
        cap: Cap { max_inline_data, ..CAP },
        qp_type: 2,
        sq_sig_all: 0,
    };
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = errno_before };
    let qp = ibv_create_qp(node.pd, &mut init);
    if qp.is_null() {
        return Err(Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    let granted = init.cap;
    assert_eq!(Cap { max_inline_data: 0, ..granted }, Cap { max_inline_data: 0, ..CAP });
    assert_eq!(ibv_query_qp(qp, &mut QpAttr::default(), 1, &mut init), 0);
    assert_eq!(init.cap, granted);
    assert_eq!(ibv_destroy_qp(qp), 0);
    Ok(granted.max_inline_data)
}

/// A node whose own queue pair asks for none.
fn node() -> Node {
    Node::with(0, 64, Cap { max_inline_data: 0, ..CAP }, 256)
}

#[test]
fn too_much_inline_data_is_refused() {
    Softrnic::new().env("SOFTRNIC_MAX_INLINE", "96").alone(|| {
        let node = node();
        let grants = [0, 64, 96, 97, 256].map(|bytes| granted(&node, bytes, libc::ENOMEM));
        assert_eq!(grants, [Ok(0), Ok(64), Ok(96), Err(libc::EINVAL), Err(libc::EINVAL)]);
    });
}

#[test]
fn a_refusal_may_leave_errno_as_it_was() {
    let env = [("SOFTRNIC_MAX_INLINE", "96"), ("SOFTRNIC_INLINE_EXCESS", "silent")];
    Softrnic::new().envs(&env).alone(|| {
        let node = node();
        assert_eq!(granted(&node, 96, 0), Ok(96));
        assert_eq!(
            [0, libc::ENOMEM].map(|before| granted(&node, 97, before)),
            [Err(0), Err(libc::ENOMEM)]
        );
        let too_long = Cap { max_send_wr: 1 << 20, ..CAP };
        assert!(create_qp(node.pd, node.cq, node.cq, too_long).is_null());
        assert_eq!(
            Error::last_os_error().raw_os_error(),
            Some(libc::EINVAL),
            "other refusals have their reasons"
        );
    });
}

#[test]
fn less_may_be_granted_than_asked_for() {
    let env = [("SOFTRNIC_MAX_INLINE", "96"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    Softrnic::new().envs(&env).alone(|| {
        let node = node();
        assert_eq!(
            [0, 64, 96, 97, 256].map(|bytes| granted(&node, bytes, 0)),
            [0, 64, 96, 96, 96].map(Ok)
        );
    });
}

#[test]
fn a_device_may_have_none() {
    let env = [("SOFTRNIC_MAX_INLINE", "0"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        assert_eq!([0, 64].map(|bytes| granted(&a, bytes, 0)), [0, 0].map(Ok));
        let sges = [a.sge(0, 8)];
        let to = b.at(0);
        let work = |flags| Work { sges: &sges, to, flags, ..WORK };
        assert_eq!(a.try_send(work(INLINE | SIGNALED)), libc::EINVAL);
        a.send(work(SIGNALED));
        assert_eq!(a.next().status, OK);
    });
}

/// Another copy of the library; its file has another name.
fn load_copy(folder: &Scratch, name: &str, namespace: libc::Lmid_t) -> Ptr {
    let path = folder.path().join(name);
    std::fs::copy(library_path(), &path).expect("a copy");
    load(&path, namespace)
}

/// Each end belongs to a copy of its own.
fn exchange(ends: [(Ptr, &Node); 2]) {
    for (end, peer) in [(0, 1), (1, 0)] {
        use_library(ends[end].0);
        ends[end].1.connect(&ends[peer].1.address(), &TERMS);
    }
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (ends[from].1, ends[to].1);
        to.recv(1, &[to.sge(0, 64)]);
        from.send(Work { opcode: SEND, sges: &[from.sge(64, 64)], ..WORK });
        assert_eq!((from.next().status, to.next().status), (OK, OK));
        assert_eq!(to.memory[..64], from.memory[64..128]);
    }
}

fn two_copies_in(namespace: libc::Lmid_t) {
    let folder = Scratch::new();
    let first = handle();
    let mut one = Node::new(0, 128);
    one.memory[64..].fill(1);

    // A copy that is refused takes nothing from the first one.
    // SAFETY: no other thread reads or writes the environment: the device's has read it.
    unsafe { std::env::set_var("SOFTRNIC_DEVICES", "5") };
    use_library(load_copy(&folder, "refused.so", libc::LM_ID_BASE));
    assert!(ibv_get_device_list(&mut 0).is_null());
    // SAFETY: as above.
    unsafe { std::env::remove_var("SOFTRNIC_DEVICES") };

    let second = load_copy(&folder, "libibverbs.so", namespace);
    assert_ne!(first, second);
    use_library(second);
    let mut other = Node::new(1, 128);
    other.memory[64..].fill(2);
    exchange([(first, &one), (second, &other)]);

    // What one copy has made is nothing to the other.
    assert!(ibv_create_cq(one.context, 1, ptr::null_mut(), ptr::null_mut(), 0).is_null());
    if namespace == libc::LM_ID_BASE {
        assert_eq!(Error::last_os_error().raw_os_error(), Some(libc::ENODEV));
    }
    other.close();
    use_library(first);
    one.close();
}

cases! { ();
    two_copies_in_one_process_are_as_two_processes =>
        Softrnic::new().alone(|| two_copies_in(libc::LM_ID_BASE));
    a_copy_in_another_namespace_of_the_loader_is_as_another_process =>
        Softrnic::new().alone(|| two_copies_in(libc::LM_ID_NEWLM));
}

/// The slower of the ports sets the pace: a message cannot be there before its bytes have passed.
#[test]
fn bandwidth_has_a_bound_and_bytes_take_their_time() {
    Softrnic::new().faults("slow=0.01 message=1").alone(|| {
        let (a, b) = local_pair(100_000, &TERMS);
        let sges = [a.sge(0, 100_000)];
        let to = b.at(0);
        a.send(Work { sges: &sges, to, ..WORK });
        a.next();
        let begin = Instant::now();
        for id in 0..3 {
            a.send(Work { id, sges: &sges, to, ..WORK });
        }
        let ids = [(); 3].map(|()| a.next().wr_id);
        assert_eq!(ids, [0, 1, 2]);
        // 300 kB at 10 MB/s. A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= Duration::from_millis(29), "{:?}", begin.elapsed());
    });
}

/// In chaos a long write into memory with relaxed ordering lands in pieces and whole; elsewhere in
/// order.
#[test]
fn relaxed_memory_is_written_in_no_order_but_completely() {
    const RELAXED: i32 = 1 << 20;
    Softrnic::new().env("SOFTRNIC_CHAOS", "1").alone(|| {
        let (mut a, mut b) = (Node::new(0, 65_536), Node::new(1, 65_536));
        assert_eq!(ibv_dereg_mr(b.mr), 0);
        b.mr = ibv_reg_mr(b.pd, b.memory.as_mut_ptr().cast(), 65_536, ALL_ACCESS | RELAXED);
        a.connect(&b.address(), &TERMS);
        b.connect(&a.address(), &TERMS);
        for (round, length) in
            [1usize, 63, 64, 65, 1000, 4096, 65_536, 65_535].into_iter().enumerate()
        {
            for (i, byte) in a.memory.iter_mut().enumerate() {
                *byte = (i * 7 + i / 256 + round) as u8;
            }
            b.memory.fill(0);
            let sges = [a.sge(0, length)];
            a.send(Work { sges: &sges, to: b.at(0), ..WORK });
            assert_eq!(a.next().status, OK);
            assert!(a.memory[..length] == b.memory[..length], "{length} bytes");
            assert!(b.memory[length..].iter().all(|&byte| byte == 0), "{length} bytes and no more");
        }
    });
}

const TRANSLATION: i32 = 1;
const PD: i32 = 2;
const ACCESS: i32 = 4;
/// `IBV_REREG_MR_ERR_INPUT`, `IBV_REREG_MR_ERR_CMD`.
const WRONG: i32 = -1;
const FAILED: i32 = -4;

fn errno() -> Option<i32> {
    Error::last_os_error().raw_os_error()
}

fn rereg(node: &Node, flags: i32, pd: Ptr, memory: (Ptr, usize), access: i32) -> i32 {
    ibv_rereg_mr(node.mr, flags, pd, memory.0, memory.1, access)
}

const NOTHING: (Ptr, usize) = (ptr::null_mut(), 0);

/// The status of a write of 8 bytes from `a` into the region of `b`, at this address.
fn written(a: &Node, b: &Node, addr: u64) -> u32 {
    a.send(Work { sges: &[a.sge(0, 8)], to: (addr, u64::from(b.key())), ..WORK });
    a.next().status
}

#[test]
fn a_region_gets_other_memory_access_and_domain() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &TERMS);
        a.memory[..8].copy_from_slice(b"00000008");
        let mut other = vec![0u8; 32];
        let (addr, key) = (other.as_mut_ptr() as u64, b.key());
        assert_eq!(rereg(&b, TRANSLATION, ptr::null_mut(), (other.as_mut_ptr().cast(), 32), 0), 0);
        // SAFETY: a live region.
        let region = unsafe { &*b.mr };
        assert_eq!((region.addr as u64, region.length, region.lkey), (addr, 32, key));
        assert_eq!((written(&a, &b, addr), other[..8].to_vec()), (OK, b"00000008".to_vec()));
        let elsewhere = ibv_alloc_pd(b.context);
        assert_eq!(rereg(&b, PD | ACCESS, elsewhere, NOTHING, 7), 0);
        assert_eq!((region.pd, ibv_dealloc_pd(elsewhere)), (elsewhere, libc::EBUSY));
        assert_eq!(rereg(&b, PD, b.pd, NOTHING, 0), 0);
        assert_eq!((ibv_dealloc_pd(elsewhere), written(&a, &b, addr)), (0, OK));
        assert_eq!(written(&a, &b, addr + 25), REM_ACCESS, "the new bounds");
        b.close();
    });
}

#[test]
fn access_that_a_region_loses_is_refused() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let addr = b.address().addr;
        assert_eq!(
            (written(&a, &b, addr), rereg(&b, ACCESS, ptr::null_mut(), NOTHING, 1)),
            (OK, 0)
        );
        assert_eq!(written(&a, &b, addr), REM_ACCESS);
    });
}

#[test]
fn a_domain_that_a_region_leaves_has_it_no_more() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let addr = b.address().addr;
        assert_eq!(
            (written(&a, &b, addr), rereg(&b, PD, ibv_alloc_pd(b.context), NOTHING, 0)),
            (OK, 0)
        );
        assert_eq!(written(&a, &b, addr), REM_ACCESS);
    });
}

#[test]
fn a_change_that_is_refused_leaves_the_region_as_it_was() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &TERMS);
        let none = ptr::null_mut();
        let memory = b.memory.as_ptr() as Ptr;
        for (flags, given, access) in [
            (8, NOTHING, 0),
            (TRANSLATION, (memory, 0), 0),
            (TRANSLATION, NOTHING, 0),
            (0, NOTHING, 1),
        ] {
            assert_eq!(
                (rereg(&b, flags, none, given, access), errno()),
                (WRONG, Some(libc::EINVAL)),
                "{flags}"
            );
        }
        assert_eq!(
            (rereg(&b, ACCESS, none, NOTHING, 2), errno()),
            (FAILED, Some(libc::EINVAL)),
            "remote, not local"
        );
        let hole = 0x1000 as Ptr;
        assert_eq!(
            (rereg(&b, TRANSLATION, none, (hole, 8), 0), errno()),
            (FAILED, Some(libc::EFAULT))
        );
        assert_eq!(written(&a, &b, b.address().addr), OK);
    });
}

const EVERYTHING: u32 = 15;

pub(crate) fn terms() -> Terms {
    Terms { access: EVERYTHING, ..TERMS }
}

/// Registers the node's memory anew, with every access.
fn open_up(node: &mut Node) {
    assert_eq!(ibv_dereg_mr(node.mr), 0);
    node.mr =
        ibv_reg_mr(node.pd, node.memory.as_mut_ptr().cast(), node.memory.len(), EVERYTHING as i32);
    assert!(!node.mr.is_null());
}

/// Two nodes in this process whose memory allows atomics. `at` is an aligned offset in each.
fn nodes() -> (Node, Node, [usize; 2]) {
    let (mut a, mut b) = (Node::new(0, 64), Node::new(1, 64));
    open_up(&mut a);
    open_up(&mut b);
    a.connect(&b.address(), &terms());
    b.connect(&a.address(), &terms());
    let at = [&a, &b].map(|node| node.memory.as_ptr().align_offset(8));
    (a, b, at)
}

/// Posts an atomic on 8 bytes at `to` of the peer, whose old value goes to `at` here.
pub(crate) fn post(node: &Node, opcode: u32, at: usize, to: (u64, u64), operands: [u64; 2]) -> i32 {
    let mut sge = node.sge(at, 8);
    let mut wr = SendWr {
        wr_id: 9,
        next: ptr::null_mut(),
        sg_list: &raw mut sge,
        num_sge: 1,
        opcode,
        flags: SIGNALED,
        imm: 0,
        remote_addr: to.0,
        // Where other requests have their key, atomics have the first operand; theirs is behind the
        // second.
        rkey: operands[0],
        rest: [operands[1], to.1, 0],
    };
    post_send(node.qp, &mut wr, &mut ptr::null_mut())
}

fn word(node: &Node, at: usize) -> u64 {
    // SAFETY: eight bytes inside the node's memory, aligned.
    unsafe { node.memory.as_ptr().add(at).cast::<u64>().read_volatile() }
}

fn set(node: &mut Node, at: usize, value: u64) {
    node.memory[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}

#[test]
fn fetch_add_and_compare_swap_return_the_old_value() {
    Softrnic::new().alone(|| {
        let (a, mut b, at) = nodes();
        set(&mut b, at[1], u64::MAX - 1);
        let to = (b.address().addr + at[1] as u64, b.address().rkey);

        assert_eq!(post(&a, FETCH_ADD, at[0], to, [5, 0]), 0);
        let done = a.next();
        assert_eq!((done.status, done.opcode, done.byte_len), (OK, 4, 8));
        assert_eq!((word(&a, at[0]), word(&b, at[1])), (u64::MAX - 1, 3), "it wraps");

        let big = 0x1122_3344_5566_7788;
        assert_eq!(post(&a, CMP_SWAP, at[0], to, [3, big]), 0);
        assert_eq!((a.next().opcode, word(&a, at[0]), word(&b, at[1])), (3, 3, big));
        assert_eq!(post(&a, CMP_SWAP, at[0], to, [3, 7]), 0);
        assert_eq!(a.next().status, OK);
        assert_eq!((word(&a, at[0]), word(&b, at[1])), (big, big), "not equal: not swapped");
    });
}

#[test]
fn atomics_need_their_access_and_an_aligned_word() {
    Softrnic::new().alone(|| {
        // The region does not allow them.
        let (a, b) = local_pair(64, &terms());
        let at = b.memory.as_ptr().align_offset(8) as u64;
        assert_eq!(post(&a, FETCH_ADD, 0, (b.address().addr + at, b.address().rkey), [1, 0]), 0);
        assert_eq!((a.next().status, b.state()), (REM_ACCESS, ERR));

        // The word is not aligned.
        let (a, b, at) = nodes();
        assert_eq!(
            post(&a, FETCH_ADD, 0, (b.address().addr + at[1] as u64 + 4, b.address().rkey), [1, 0]),
            0
        );
        assert_eq!((a.next().status, b.state()), (REM_INV_REQ, ERR));

        // The queue pair does not grant them.
        let (mut a, mut b) = (Node::new(0, 64), Node::new(1, 64));
        open_up(&mut a);
        open_up(&mut b);
        a.connect(&b.address(), &TERMS);
        b.connect(&a.address(), &TERMS);
        let at = b.memory.as_ptr().align_offset(8) as u64;
        assert_eq!(post(&a, FETCH_ADD, 0, (b.address().addr + at, b.address().rkey), [1, 0]), 0);
        assert_eq!((a.next().status, b.state()), (REM_INV_REQ, ERR));
    });
}

/// Two processes add to the same word of one of them; nothing is lost.
#[test]
fn concurrent_additions_all_count() {
    Softrnic::new().pair(|side, mut socket| {
        const ROUNDS: u64 = 5000;
        let mut node = Node::new(side, 4096);
        open_up(&mut node);
        // Both add to the memory of side 0: side 0 over a connection with itself.
        let mut own = Node::new(0, 64);
        open_up(&mut own);
        let at = node.memory.as_ptr().align_offset(8);
        let theirs: usize = socket.swap(&at);
        let peer = node.connect_over(&mut socket, &terms());
        let (adder, to) = if side == 0 {
            let me = node.address();
            (None, (me.addr + at as u64, me.rkey))
        } else {
            (Some(&node), (peer.addr + theirs as u64, peer.rkey))
        };
        let second = adder.is_none().then(|| second_pair(&node));
        let adder = adder.unwrap_or_else(|| &second.as_ref().expect("made").0);
        for _ in 0..ROUNDS {
            assert_eq!(post(adder, FETCH_ADD, 8, to, [1, 0]), 0);
            assert_eq!(adder.next().status, OK);
        }
        socket.barrier();
        if side == 0 {
            assert_eq!(word(&node, at), 2 * ROUNDS);
        }
    });
}

/// A queue pair connected with another one in the protection domain of `node`, which therefore
/// reaches its memory.
fn second_pair(node: &Node) -> (Node, Node) {
    let one = Node::new(0, 64);
    let mut other = Node::new(0, 64);
    assert_eq!(ibv_destroy_qp(other.qp), 0);
    other.qp = create_qp(node.pd, node.cq, node.cq, CAP);
    assert!(!other.qp.is_null());
    one.connect(&other.address(), &terms());
    other.connect(&one.address(), &terms());
    (one, other)
}

/// Gives up after 1 ms.
const QUICK: Terms = Terms { timeout: 7, retry_cnt: 1, rnr_retry: 7, min_rnr_timer: 12, access: 7 };
/// Gives up after 2.1 s.
const PATIENT: Terms = Terms { timeout: 16, retry_cnt: 7, ..QUICK };
/// Gives up after the second "receiver not ready".
const IMPATIENT: Terms = Terms { rnr_retry: 1, min_rnr_timer: 1, ..PATIENT };
const LOC_QP_OP: u32 = 2;
/// Three packets.
const BYTES: usize = 9000;

/// Copies go directly: staged ones are not placed before the message is.
fn placing() -> Softrnic {
    Softrnic::new().envs(&[("SOFTRNIC_RNR_PLACES", "1"), ("SOFTRNIC_STAGED", "0")])
}

/// A message of `a`'s memory, all of it 1, for the memory of `b`.
fn message(a: &mut Node, b: &Node, opcode: u32) {
    a.memory.fill(1);
    let to = b.at(0);
    a.send(Work {
        opcode,
        sges: &[a.sge(0, 4000), a.sge(4000, a.memory.len() - 4000)],
        to,
        ..WORK
    });
}

/// How many bytes from the start are there; none may be behind them.
fn placed(b: &Node) -> usize {
    let count = b.memory.iter().take_while(|byte| **byte == 1).count();
    assert!(b.memory[count..].iter().all(|byte| *byte == 0));
    count
}

/// What is in the memory of a peer that has no receive, when a message of this kind has failed.
fn left_without_a_receive(opcode: u32, bytes: usize) -> usize {
    let (mut a, b) = local_pair(bytes, &IMPATIENT);
    message(&mut a, &b, opcode);
    assert_eq!(a.next().status, RNR_EXC);
    b.assert_unharmed();
    placed(&b)
}

#[test]
fn a_write_that_meets_no_receive_may_leave_all_but_its_last_packet() {
    placing().alone(|| {
        assert_eq!(left_without_a_receive(WRITE_IMM, BYTES), 8192);
        assert_eq!(left_without_a_receive(WRITE_IMM, 8192), 4096);
        assert_eq!(left_without_a_receive(WRITE_IMM, 4096), 0, "one packet");
        assert_eq!(
            left_without_a_receive(SEND_IMM, BYTES),
            0,
            "its first packet needs the receive"
        );
    });
}

#[test]
fn by_default_it_leaves_nothing() {
    Softrnic::new().alone(|| assert_eq!(left_without_a_receive(WRITE_IMM, BYTES), 0));
}

/// The receives are there, and a rule has it otherwise.
#[test]
fn a_rule_that_has_a_receive_missing_leaves_as_much() {
    placing().faults("rnr attempts=all").alone(|| {
        let (mut a, b) = local_pair(BYTES, &IMPATIENT);
        b.recv(1, &[]);
        message(&mut a, &b, WRITE_IMM);
        assert_eq!((a.next().status, placed(&b)), (RNR_EXC, 8192));
        b.assert_unharmed();
    });
}

#[test]
fn a_write_that_meets_a_receive_later_arrives_whole_and_once() {
    placing().alone(|| {
        let (mut a, b) = local_pair(BYTES, &PATIENT);
        message(&mut a, &b, WRITE_IMM);
        assert_eq!(placed(&b), 8192);
        assert!(b.poll().is_none() && a.poll().is_none());
        b.recv(5, &[]);
        assert_eq!((a.next().status, b.next().wr_id, placed(&b)), (OK, 5, BYTES));
        assert!(b.poll().is_none());
    });
}

#[test]
fn the_first_packets_need_their_key() {
    placing().alone(|| {
        let (a, b) = local_pair(BYTES, &IMPATIENT);
        let to = (b.address().addr, 0xffff_ff01);
        a.send(Work { opcode: WRITE_IMM, sges: &[a.sge(0, BYTES)], to, ..WORK });
        assert_eq!((a.next().status, b.state(), placed(&b)), (REM_ACCESS, ERR, 0));
    });
}

/// The next `N` completions: of which queue pair, of which request, and how it went.
fn taken<const N: usize>(node: &Node) -> [(u32, u64, u32); N] {
    std::array::from_fn(|_| node.next()).map(|wc| (wc.qp_num, wc.wr_id, wc.status))
}

#[test]
fn completions_of_a_queue_pair_that_is_no_more_may_stay_and_have_the_number_of_the_next_one() {
    let env = [("SOFTRNIC_STALE_COMPLETIONS", "1"), ("SOFTRNIC_QPN_REUSE", "1")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=4).for_each(|id| b.recv(id, &[]));
        (11..=13).for_each(|id| a.send(Work { id, opcode: SEND, ..WORK }));
        let number = b.qpn();
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        let next = Node { qp: create_qp(b.pd, b.cq, b.cq, CAP), ..Node::new(1, 16) };
        assert_eq!((next.qpn(), next.to_init(7)), (number, 0));
        next.recv(9, &[]);
        assert_eq!(to_state(next.qp, ERR), 0);
        // The receive that was posted, and not used, has gone without a word.
        assert_eq!(
            taken(&b),
            [(number, 1, OK), (number, 2, OK), (number, 3, OK), (number, 9, FLUSH)]
        );
        assert!(b.poll().is_none());
        // A reset is like that, too.
        assert_eq!(to_state(a.qp, RESET), 0);
        assert_eq!(taken(&a), [11, 12, 13].map(|id| (a.qpn(), id, OK)));
        assert!(a.poll().is_none());
    });
}

#[test]
fn flushed_completions_may_stay_as_well_and_nothing_is_held_up_by_them() {
    Softrnic::new().env("SOFTRNIC_STALE_COMPLETIONS", "1").alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        (1..=3).for_each(|id| b.recv(id, &[]));
        assert_eq!(to_state(b.qp, ERR), 0);
        let number = b.qpn();
        assert_eq!(ibv_destroy_qp(b.qp), 0);
        assert_eq!(taken(&b), [(number, 1, FLUSH), (number, 2, FLUSH)]);
        // With one that nobody has polled.
        assert_eq!((ibv_dereg_mr(b.mr), ibv_destroy_cq(b.cq), ibv_dealloc_pd(b.pd)), (0, 0, 0));
        a.close();
    });
}

#[test]
fn a_step_to_rtr_towards_nobody_may_take_its_time() {
    const TIME: Duration = Duration::from_millis(300);
    Softrnic::new().env("SOFTRNIC_RESOLVE_MS", TIME.as_millis()).alone(|| {
        let (a, b) = (Node::new(0, 16), Node::new(1, 16));
        let mut nobody = rtr(&b.address(), &QUICK);
        nobody.dgid[1] ^= 1 << 60;
        let begin = Instant::now();
        assert_eq!(a.connect_by(&nobody, &QUICK), Err(libc::ETIMEDOUT));
        // A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= TIME, "{:?}", begin.elapsed());
        assert_eq!(a.state(), INIT);
        a.connect_by(&rtr(&b.address(), &QUICK), &QUICK).expect("to somebody");
    });
}

#[test]
fn a_peer_that_is_there_again_meanwhile_is_found() {
    let rule = "port-down=50ms device=softrnic0 message=1 times=1; modify-qp=ETIMEDOUT message=5";
    Softrnic::new().envs(&[("SOFTRNIC_FAULTS", rule), ("SOFTRNIC_RESOLVE_MS", "400")]).alone(
        || {
            let (a, b) = local_pair(16, &PATIENT);
            let (c, d) = (Node::new(0, 16), Node::new(1, 16));
            a.send(WORK);
            d.connect(&c.address(), &QUICK);
            c.connect(&d.address(), &QUICK);
            assert_eq!(a.next().status, OK);
            // A rule's failure takes as long.
            let begin = Instant::now();
            let e = Node::new(0, 16);
            assert_eq!(e.connect_by(&rtr(&b.address(), &QUICK), &QUICK), Err(libc::ETIMEDOUT));
            assert!(begin.elapsed() >= Duration::from_millis(400), "{:?}", begin.elapsed());
        },
    );
}

#[test]
fn seven_retries_may_be_endless() {
    let env = [("SOFTRNIC_ENDLESS_RETRIES", "1"), ("SOFTRNIC_FAULTS", "drop attempts=100")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &Terms { retry_cnt: 7, ..QUICK });
        write(&a, &b);
        assert_eq!(a.next().status, OK, "at the hundred and first attempt");
        let (c, d) = local_pair(16, &Terms { retry_cnt: 6, ..QUICK });
        write(&c, &d);
        assert_eq!(c.next().status, RETRY_EXC);
    });
}

fn write(a: &Node, b: &Node) {
    a.send(Work { id: 7, sges: &[a.sge(0, 8)], to: b.at(0), ..WORK });
}

/// What becomes of two writes, the first of which finds the port down that it is to leave by.
fn written_while_down(env: &[(&str, &str)], expected: [u32; 2]) {
    let rules = "port-down=50ms device=softrnic0 message=1 times=1; port-down=50ms device=softrnic1 message=3 times=1";
    Softrnic::new().faults(rules).envs(env).alone(|| {
        let ((a, b), (c, d)) = (local_pair(16, &PATIENT), local_pair(16, &PATIENT));
        write(&a, &b);
        write(&a, &b);
        assert_eq!([a.next(), a.next()].map(|wc| wc.status), expected);
        assert_eq!((a.state() == ERR, b.state()), (expected[0] != OK, RTS));
        // A queue pair that has sent nothing meanwhile goes on.
        assert_eq!([next_event(a.context).0, next_event(a.context).0], [PORT_ERR, PORT_ACTIVE]);
        write(&c, &d);
        assert_eq!(c.next().status, OK);
        // The port of the peer is another matter: it is waited for.
        let (e, f) = local_pair(16, &PATIENT);
        for _ in 0..3 {
            write(&f, &e);
        }
        write(&c, &d);
        assert_eq!((c.next().status, d.state()), (OK, RTS));
    });
}

cases! { ();
    an_own_port_that_is_down_may_end_a_queue_pair_at_once =>
        written_while_down(&[("SOFTRNIC_OWN_PORT_DOWN", "fails")], [LOC_QP_OP, FLUSH]);
    by_default_an_own_port_is_waited_for => written_while_down(&[], [OK, OK]);
}

#[test]
fn the_reason_may_be_missing() {
    let env = [("SOFTRNIC_OWN_PORT_DOWN", "fails"), ("SOFTRNIC_FLUSH_ONLY", "1")];
    written_while_down(&env, [FLUSH, FLUSH]);
}

#[test]
fn devices_like_rxes_have_that_from_their_driver() {
    written_while_down(&[("SOFTRNIC_DRIVER", "rxe")], [FLUSH, FLUSH]);
}

/// Its connections are by the entry of the table that is empty now.
#[test]
fn an_own_address_that_has_moved_may_end_a_queue_pair_at_once() {
    let rule = "port-down=1ms gid=move device=softrnic0 message=1 times=1";
    Softrnic::new().faults(rule).env("SOFTRNIC_OWN_PORT_DOWN", "fails").alone(|| {
        let ((a, b), (c, d)) = (local_pair(16, &PATIENT), local_pair(16, &PATIENT));
        write(&a, &b);
        assert_eq!(a.next().status, LOC_QP_OP);
        while next_event(a.context).0 != PORT_ACTIVE {}
        write(&c, &d);
        assert_eq!(c.next().status, LOC_QP_OP);
    });
}

#[test]
fn what_the_own_device_finds_wrong_may_be_told_as_flushed() {
    let env = [("SOFTRNIC_FLUSH_ONLY", "1"), ("SOFTRNIC_FAULTS", "qp-error flow=2")];
    Softrnic::new().envs(&env).alone(|| {
        let (a, b) = local_pair(16, &QUICK);
        let to = b.at(0);
        let unknown = Sge { lkey: 0xffff_ff01, ..a.sge(0, 8) };
        a.send(Work { id: 1, sges: &[unknown], to, ..WORK });
        a.send(Work { id: 2, ..WORK });
        assert_eq!(taken(&a), [(a.qpn(), 1, FLUSH), (a.qpn(), 2, FLUSH)]);
        assert_eq!(a.state(), ERR);
        b.assert_unharmed();
        // What the peer refuses is told as ever.
        let (c, d) = local_pair(16, &QUICK);
        c.send(Work { sges: &[c.sge(0, 8)], to: (d.address().addr, 0xffff_ff01), ..WORK });
        assert_eq!(c.next().status, REM_ACCESS);
        let (e, f) = local_pair(16, &QUICK);
        write(&e, &f);
        assert_eq!(e.next().status, FLUSH);
    });
}

/// What a queue pair that is to have `cap` gets.
fn variants_granted(node: &Node, cap: Cap) -> Cap {
    let (none, cq) = (ptr::null_mut(), node.cq);
    let mut init =
        QpInit { user: none, send_cq: cq, recv_cq: cq, srq: none, cap, qp_type: 2, sq_sig_all: 0 };
    let qp = ibv_create_qp(node.pd, &mut init);
    assert!(!qp.is_null());
    let told = init.cap;
    assert_eq!(ibv_query_qp(qp, &mut QpAttr::default(), 1, &mut init), 0);
    assert_eq!((init.cap, ibv_destroy_qp(qp)), (told, 0));
    told
}

#[test]
fn more_of_everything_may_be_granted_than_asked_for() {
    Softrnic::new().env("SOFTRNIC_GRANT_MORE", "1").alone(|| {
        let (a, b) = local_pair(1024, &TERMS);
        let more = Cap {
            max_send_wr: 65,
            max_recv_wr: 65,
            max_send_sge: 7,
            max_recv_sge: 7,
            // As libmlx5 writes for queue pairs without elements.
            max_inline_data: u32::MAX - 3,
        };
        assert_eq!(variants_granted(&a, CAP), more);
        let none = Cap { max_recv_wr: 0, max_recv_sge: 0, max_inline_data: 0, ..CAP };
        assert_eq!(variants_granted(&a, none), Cap { max_recv_wr: 0, max_recv_sge: 0, ..more });
        let most = Cap { max_send_wr: 16384, max_send_sge: 32, max_inline_data: 1024, ..CAP };
        assert_eq!(
            variants_granted(&a, most),
            Cap { max_send_wr: 32769, max_send_sge: 32, ..more }
        );
        // And it is there, of inline data 128 bytes.
        let sges = [a.sge(0, 16); 7];
        let work = Work { opcode: SEND, flags: INLINE, sges: &sges, ..WORK };
        (0..65).for_each(|id| b.recv(id, &[b.sge(0, 16); 7]));
        assert_eq!(b.try_recv(65, &[]), libc::ENOMEM);
        assert_eq!(a.try_send(Work { sges: &[a.sge(0, 129)], ..work }), libc::EINVAL);
        (0..65).for_each(|_| a.send(work));
        assert_eq!(a.try_send(work), libc::ENOMEM);
        (0..65).for_each(|id| assert_eq!((b.next().wr_id, a.state()), (id, RTS)));
    });
}

#[test]
fn a_table_may_have_an_address_twice() {
    Softrnic::new().gids("vlan").alone(|| {
        let table: [_; 5] = {
            let node = Node::new(0, 16);
            std::array::from_fn(|index| node.gid_of(1, index as i32))
        };
        assert_eq!((table[0], table[4]), (table[2], [0; 2]), "link-local, and the end");
        assert_ne!(table[1], table[3]);
        for index in 0..4 {
            let (a, b) = (Node::new(0, 16), Node::new(1, 16));
            connect_ports((&a, 1), (&b, 1), index, &QUICK);
            write(&a, &b);
            assert_eq!(a.next().status, OK, "entry {index}");
        }
    });
}
