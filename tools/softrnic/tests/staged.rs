//! Where processes may not look into each other: the bytes pass through the fabric.

mod common;

use common::cli::control;
use common::node::{Node, Terms, Work};
use common::process::pair;
use common::verbs::*;

/// Has the kernel refuse what the default profiles of container runtimes refuse.
fn enter_sandbox() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let skip_unless = |k: u32| libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, k) };
    let refuse = || statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    let mut filter = [
        // The number of the call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        skip_unless(libc::SYS_process_vm_readv as u32),
        refuse(),
        skip_unless(libc::SYS_process_vm_writev as u32),
        refuse(),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a valid program, which outlives the call.
    let rc = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

#[test]
fn bytes_arrive_in_a_sandbox_and_stat_says_how() {
    const MOST: usize = 3_000_001;
    pair("bytes_arrive_in_a_sandbox_and_stat_says_how", &[], |side, mut line| {
        enter_sandbox();
        let mut node = Node::new(side, MOST);
        let peer = node.join(&mut line, &Terms::default());
        for (round, size) in [0, 1, 8, 4096, 524_288, 524_289, MOST].into_iter().enumerate() {
            let data = pattern(size, round);
            if side == 0 {
                node.memory[..size].copy_from_slice(&data);
                line.meet();
                let to = (peer.addr, peer.rkey);
                node.send(Work { opcode: WRITE_IMM, imm: 9, sges: &[node.sge(0, size)], to, ..Work::default() });
                assert_eq!(node.next().status, OK);
                // And back.
                node.memory[..size].fill(0);
                node.send(Work { opcode: READ, sges: &[node.sge(0, size)], to, ..Work::default() });
                assert_eq!(node.next().status, OK);
                assert!(node.memory[..size] == data, "{size} bytes read");
            } else {
                node.memory.fill(0xee);
                node.recv(1, &[]);
                line.meet();
                assert_eq!((node.next().status, node.memory[..size] == data), (OK, true), "{size} bytes written");
                assert!(node.memory[size..].iter().all(|&byte| byte == 0xee));
            }
            line.meet();
        }
        if side == 0 {
            let seen: serde_json::Value = serde_json::from_str(&control(&["stat", "--json"])).expect("JSON");
            let processes = seen["processes"].as_array().expect("list");
            let me = processes.iter().find(|p| p["pid"] == std::process::id()).expect("this process");
            assert_eq!((&me["copies_staged"], &me["copies_directly"]), (&true.into(), &false.into()));
            assert_eq!(me["obstacle"], libc::EPERM);
            assert!(control(&["stat"]).contains("copies staged (Operation not permitted"));
        }
        line.meet();
    });
}
