//! Bytes arrive: between processes, within one, for every opcode, and in order.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::node::{Node, Terms, Work, local_pair};
use crate::common::verbs::*;
use testkit::Peer;
use testkit::softrnic::Softrnic;

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

const SIZES: [usize; 20] =
    [0, 1, 7, 8, 9, 63, 64, 65, 255, 256, 257, 263, 264, 4095, 4096, 4097, 65_536, 65_537, 1_000_003, 4 << 20];
const SPACE: usize = (4 << 20) + 256;

#[test]
fn every_opcode_between_processes() {
    Softrnic::new().pair(every_opcode);
}

#[test]
fn every_opcode_with_late_execution() {
    Softrnic::new().strict().pair(every_opcode);
}

#[test]
fn every_opcode_by_lines() {
    Softrnic::new().env("SOFTRNIC_LINES", "1").pair(every_opcode);
}

/// Side 0 requests, side 1 checks. All sizes, odd alignments on both ends.
fn every_opcode(side: usize, mut socket: Peer) {
    let mut node = Node::new(side, SPACE);
    let peer = node.connect_over(&mut socket, &Terms::default());
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
                node.send(Work { id: seed, opcode, imm, sges: &[node.sge(from, len)], to, ..Work::default() });
                let wc = node.next();
                assert_eq!((wc.wr_id, wc.status, wc.qp_num), (seed, OK, node.qpn()), "{opcode} of {len}");
                assert_eq!(wc.opcode, [1, 1, 0, 0, 2][opcode as usize]);
            } else if opcode != WRITE && opcode != READ {
                let wc = node.next();
                assert_eq!((wc.wr_id, wc.status, wc.byte_len as usize), (seed, OK, len), "{opcode}");
                assert_eq!((wc.qp_num, wc.src_qp), (node.qpn(), peer.qpn));
                assert_eq!(wc.opcode, if opcode == WRITE_IMM { 129 } else { 128 });
                if opcode != SEND {
                    assert_eq!((wc.flags & 2, wc.imm), (2, seed as u32 ^ 0xa5a5));
                }
            }
            socket.barrier();
            if !fills {
                assert!(node.memory[at..at + len] == pattern(len, seed)[..], "{opcode} of {len}: wrong data");
                assert!(node.memory[..at].iter().chain(&node.memory[at + len..][..64]).all(|b| *b == 0xee), "outside");
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
        let mut node = Node::new(0, 4096);
        node.connect_over(&mut socket, &Terms::default());
        for (gather, scatter) in [([3, 5, 8, 1], [1, 2, 14, 9]), ([100, 200, 300, 0], [0, 599, 1, 7])] {
            let total: usize = gather.iter().sum();
            let parts = |lengths: [usize; 4], node: &Node| {
                let mut at = 1;
                lengths.map(|len| {
                    let sge = node.sge(at, len);
                    at += len + 11;
                    sge
                })
            };
            let want = pattern(total, 3);
            let mine = parts(if side == 0 { gather } else { scatter }, &node);
            let base = node.memory.as_ptr() as u64;
            if side == 0 {
                let mut bytes = want.iter();
                for sge in mine {
                    let at = (sge.addr - base) as usize;
                    node.memory[at..at + sge.length as usize].fill_with(|| *bytes.next().expect("enough"));
                }
            } else {
                node.recv(1, &mine);
            }
            socket.barrier();
            if side == 0 {
                node.send(Work { opcode: SEND, sges: &mine, ..Work::default() });
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
        let (a, b) = local_pair(64, &Terms::default());
        let mut bytes = *b"inline!!";
        // Inline data needs no key.
        let sge = Sge { addr: bytes.as_mut_ptr() as u64, length: 8, lkey: 0 };
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { flags: SIGNALED | INLINE, sges: &[sge], to, ..Work::default() });
        bytes.fill(0);
        assert_eq!(a.next().status, OK);
        assert_eq!(&b.memory[..8], b"inline!!");
        assert_eq!(bytes, [0; 8]);
    });
}

#[test]
fn strict_mode_reads_other_data_late() {
    Softrnic::new().strict().alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        let to = (b.address().addr, b.address().rkey);
        // On a busy machine we may be too late ourselves, but not always.
        let shows = (0..1000).any(|_| {
            a.memory[0] = 1;
            a.send(Work { sges: &[a.sge(0, 1)], to, ..Work::default() });
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
        node.connect(&node.address(), &Terms::default());
        fill(&mut node.memory[..64], 9);
        let to = (node.address().addr, node.address().rkey);
        node.send(Work { opcode: READ, sges: &[node.sge(64, 64)], to, ..Work::default() });
        assert_eq!(node.next().status, OK);
        assert!(node.memory[64..] == pattern(64, 9)[..]);
        node.close();
    });
}

#[test]
fn iova_may_differ_from_the_address() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
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
        a.send(Work { sges: &[a.sge(0, 1)], to: (0x1005, rkey), ..Work::default() });
        assert_eq!(a.next().status, OK);
        assert_eq!(b.memory[5], 77);
        a.send(Work { sges: &[a.sge(0, 1)], to: (0x0fff, rkey), ..Work::default() });
        assert_eq!(a.next().status, REM_ACCESS);
    });
}

#[test]
fn requests_in_a_list_run_in_order() {
    Softrnic::new().alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
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

/// The receiver reads memory that the sender keeps rewriting: where it reads round n, lower addresses hold round n or a later
/// one.
#[test]
fn bytes_appear_in_ascending_order() {
    Softrnic::new().pair(|side, mut socket| {
        const BYTES: usize = 64;
        let mut node = Node::new(0, 4096);
        let peer = node.connect_over(&mut socket, &Terms::default());
        let aligned = node.memory.as_ptr().align_offset(8);
        let theirs: usize = socket.swap(&aligned);
        if side == 0 {
            let to = |at: usize| (peer.addr + (theirs + at) as u64, peer.rkey);
            for round in 1..=20_000u32 {
                node.memory[..BYTES].fill(round as u8);
                node.send(Work { sges: &[node.sge(0, BYTES)], to: to(0), ..Work::default() });
                assert_eq!(node.next().status, OK);
            }
            node.memory[0] = 1;
            node.send(Work { sges: &[node.sge(0, 1)], to: to(BYTES), ..Work::default() });
            assert_eq!(node.next().status, OK);
        } else {
            // SAFETY: aligned and inside the memory; read as atomics while the device writes.
            let words: &[AtomicU64] =
                unsafe { std::slice::from_raw_parts(node.memory.as_ptr().add(aligned).cast(), BYTES / 8 + 1) };
            let mut looks = 0;
            while words[BYTES / 8].load(Ordering::Acquire) == 0 {
                let begin = Instant::now();
                let mut seen = [0; BYTES / 8];
                for (seen, word) in seen.iter_mut().zip(words).rev() {
                    *seen = word.load(Ordering::Acquire);
                }
                // Rounds are counted modulo 256: this tells older from newer only if little time has passed.
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

/// Side 0 writes `bytes` again and again; side 1 waits for the last word of each `unit` and looks at those before it, back
/// to the start of its unit.
fn polled(side: usize, mut socket: Peer, bytes: usize, unit: usize) {
    const ROUNDS: u64 = 300;
    const ALIGNED: usize = 128;
    let mut node = Node::new(0, bytes + ALIGNED);
    let peer = node.connect_over(&mut socket, &Terms::default());
    let mine = node.memory.as_ptr().align_offset(ALIGNED);
    let theirs: usize = socket.swap(&mine);
    for round in 1..=ROUNDS {
        if side == 0 {
            for word in node.memory[..bytes].chunks_mut(8) {
                word.copy_from_slice(&round.to_le_bytes()[..word.len()]);
            }
            socket.barrier();
            let to = (peer.addr + theirs as u64, peer.rkey);
            node.send(Work { sges: &[node.sge(0, bytes)], to, ..Work::default() });
            assert_eq!(node.next().status, OK);
        } else {
            node.memory.fill(0);
            // SAFETY: aligned and inside the memory; read as atomics while the device writes.
            let words: &[AtomicU64] =
                unsafe { std::slice::from_raw_parts(node.memory.as_ptr().add(mine).cast(), bytes / 8) };
            socket.barrier();
            for (at, unit) in words.chunks_exact(unit / 8).enumerate() {
                let (flag, rest) = unit.split_last().expect("not empty");
                while flag.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                let late = rest.iter().position(|word| word.load(Ordering::Acquire) != round);
                assert_eq!(late, None, "a word of unit {at} in round {round} appears after the last");
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
    Softrnic::new().env("SOFTRNIC_LINES", "1").pair(|side, socket| polled(side, socket, 614_400, 128));
}

#[test]
fn whole_lines_are_seen_by_their_last_word_when_staged() {
    Softrnic::new()
        .env("SOFTRNIC_LINES", 1)
        .env("SOFTRNIC_STAGED", 1)
        .pair(|side, socket| polled(side, socket, 65_536, 128));
}

/// The receiver posts one receive at a time; the sender's queue is full most of the time. Nothing is lost, doubled or
/// out of order.
#[test]
fn a_slow_receiver_gets_everything_in_order() {
    Softrnic::new().pair(|side, mut socket| {
        const MESSAGES: u32 = 2000;
        let mut node = Node::new(side, 64 * 1024);
        node.connect_over(&mut socket, &Terms { min_rnr_timer: 1, ..Terms::default() });
        if side == 0 {
            let (mut posted, mut done) = (0, 0);
            while done < MESSAGES {
                if posted < MESSAGES {
                    // A buffer of its own for every slot of the queue.
                    let at = posted as usize % 64 * 1024;
                    let len = posted as usize * 7 % 1000 + 4;
                    node.memory[at..at + 4].copy_from_slice(&posted.to_ne_bytes());
                    let sges = [node.sge(at, len)];
                    let work =
                        Work { id: posted.into(), opcode: SEND_IMM, imm: posted, sges: &sges, ..Work::default() };
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
