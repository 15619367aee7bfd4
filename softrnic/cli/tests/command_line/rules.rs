//! Faults on demand.

use std::time::{Duration, Instant};

use crate::common::node::{Node, Terms, Work, local_pair, to_state};
use crate::common::verbs::*;
use crate::program::{control, refused};
use testkit::Peer;
use testkit::softrnic::Softrnic;
use testkit::unique::unique_name;

/// A write of 16 bytes, `value` each.
fn write(a: &mut Node, b: &Node, id: u64, value: u8) {
    a.memory[..16].fill(value);
    let sges = [a.sge(0, 16)];
    a.send(Work { id, sges: &sges, to: (b.address().addr, b.address().rkey), ..Work::default() });
}

/// What `local_pair` gives in a process with these rules, and what became of `count` writes.
fn statuses(count: u64) -> (Node, Node, Vec<u32>) {
    let (mut a, b) = local_pair(64, &Terms::default());
    for id in 0..count {
        write(&mut a, &b, id, id as u8 + 1);
    }
    let seen = (0..count).map(|id| (id, a.next())).map(|(id, wc)| {
        assert_eq!(wc.wr_id, id);
        wc.status
    });
    let seen = seen.collect();
    (a, b, seen)
}

#[test]
fn a_lost_message_is_sent_again() {
    Softrnic::new().faults("drop message=2").alone(|| {
        let (_a, b, seen) = statuses(3);
        assert_eq!((seen, b.memory[0]), (vec![OK; 3], 3));
    });
}

#[test]
fn a_message_that_is_always_lost_fails_and_is_not_delivered() {
    let rule = ("SOFTRNIC_FAULTS", "drop message=2 attempts=all");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (_a, b, seen) = statuses(3);
        assert_eq!((seen, b.memory[0], b.state()), (vec![OK, RETRY_EXC, FLUSH], 1, RTS));
    });
}

/// The data is there, the receive is complete, and the sender's request fails.
#[test]
fn a_lost_acknowledgement_leaves_the_data_delivered() {
    let rule = ("SOFTRNIC_FAULTS", "drop-ack attempts=all");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        b.recv(7, &[]);
        b.recv(8, &[]);
        a.memory[..16].fill(9);
        let sges = [a.sge(0, 16)];
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { opcode: WRITE_IMM, imm: 5, sges: &sges, to, ..Work::default() });
        let got = b.next();
        assert_eq!((got.wr_id, got.status, got.imm, b.memory[0]), (7, OK, 5, 9));
        assert_eq!((a.next().status, a.state(), b.state()), (RETRY_EXC, ERR, RTS));
        assert!(b.next_within(Duration::from_millis(50)).is_none(), "delivered once");
    });
}

#[test]
fn a_message_whose_first_acknowledgement_is_lost_counts_once() {
    let rule = ("SOFTRNIC_FAULTS", "drop-ack message=1");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (a, b) = local_pair(64, &Terms::default());
        b.recv(7, &[]);
        b.recv(8, &[]);
        for imm in [1, 2] {
            a.send(Work { opcode: SEND_IMM, imm, ..Work::default() });
            assert_eq!(a.next().status, OK);
        }
        let seen = [b.next(), b.next()].map(|wc| (wc.wr_id, wc.imm));
        assert_eq!(seen, [(7, 1), (8, 2)]);
    });
}

#[test]
fn a_responder_that_is_never_ready_exhausts_the_retries() {
    let rule = ("SOFTRNIC_FAULTS", "rnr opcode=send message=2 attempts=all");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (a, b) = local_pair(64, &Terms { rnr_retry: 2, ..Terms::default() });
        b.recv(1, &[]);
        b.recv(2, &[]);
        for _ in 0..2 {
            a.send(Work { opcode: SEND, ..Work::default() });
        }
        assert_eq!([a.next().status, a.next().status], [OK, RNR_EXC]);
        assert_eq!(b.next().wr_id, 1);
        assert_eq!(b.poll().map(|wc| wc.wr_id), None);
    });
}

#[test]
fn one_bit_of_the_data_turns() {
    Softrnic::new().faults("corrupt message=2").alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        for (message, wrong_bits) in [(1u8, 0), (2, 1), (3, 0)] {
            write(&mut a, &b, 1, message);
            assert_eq!(a.next().status, OK);
            let wrong: u32 = b.memory[..16].iter().map(|byte| (byte ^ message).count_ones()).sum();
            assert_eq!(wrong, wrong_bits, "message {message}");
        }
    });
}

#[test]
fn failures_at_either_end_have_their_statuses() {
    Softrnic::new()
        .envs(&[(
            "SOFTRNIC_FAULTS",
            "qp-error message=1 flow=0; access-error message=1 flow=1; operation-error message=1 flow=2",
        )])
        .alone(|| {
            for (status, states) in [(2, [ERR, RTS]), (REM_ACCESS, [ERR, ERR]), (REM_OP, [ERR, ERR])] {
                let (a, b, seen) = statuses(1);
                assert_eq!((seen, [a.state(), b.state()]), (vec![status], states));
            }
        });
}

#[test]
fn an_overrun_on_demand_kills_the_queue_and_its_queue_pairs() {
    let rule = ("SOFTRNIC_FAULTS", "cq-overrun message=1");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        write(&mut a, &b, 1, 1);
        let mut event = AsyncEvent::default();
        assert_eq!(ibv_get_async_event(a.context, &mut event), 0);
        assert_eq!((event.kind, event.element), (0, a.cq as usize));
        ibv_ack_async_event(&mut event);
        assert_eq!(a.state(), ERR);
        // Nothing shows when the message has been dealt with: its memory stays.
        std::mem::forget((a, b));
    });
}

/// The sender has given up, reset its queue pair and reused its buffer; then the packet arrives, with the old bytes.
#[test]
fn a_late_write_lands_after_its_sender_is_gone() {
    let rule = ("SOFTRNIC_FAULTS", "late=100ms message=1; drop message=1 attempts=all");
    let env = [rule, ("SOFTRNIC_TIME_SCALE", "0.001")];
    Softrnic::new().envs(&env).alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        b.recv(3, &[]);
        a.memory[..16].fill(7);
        let sges = [a.sge(0, 16)];
        let to = (b.address().addr, b.address().rkey);
        a.send(Work { opcode: WRITE_IMM, imm: 1, sges: &sges, to, ..Work::default() });
        assert_eq!(a.next().status, RETRY_EXC);
        assert_eq!(to_state(a.qp, RESET), 0);
        a.memory.fill(0);
        let got = b.next();
        assert_eq!((got.wr_id, got.imm, b.memory[0]), (3, 1, 7));
    });
}

/// But not when the responder has moved on.
#[test]
fn a_late_write_is_thrown_away_once_its_number_has_passed() {
    let rule = ("SOFTRNIC_FAULTS", "late=50ms message=1");
    Softrnic::new().envs(&[rule]).alone(|| {
        let (mut a, b) = local_pair(64, &Terms { timeout: 8, ..Terms::default() });
        for value in [1, 2] {
            write(&mut a, &b, 1, value);
            assert_eq!(a.next().status, OK);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(b.memory[0], 2);
    });
}

#[test]
fn calls_fail_as_often_as_asked() {
    let rules = ("SOFTRNIC_FAULTS", "modify-qp=ETIMEDOUT times=2; reg-mr=ENOMEM message=3 device=softrnic1");
    Softrnic::new().envs(&[rules]).alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        assert_eq!(a.to_init(7), 0);
        let outcomes = [(); 3].map(|()| a.to_rtr(&b.address(), &Terms::default()));
        assert_eq!(outcomes, [libc::ETIMEDOUT, libc::ETIMEDOUT, 0]);
        let mut memory = [0u8; 64];
        let mut register = |node: &Node| !ibv_reg_mr(node.pd, memory.as_mut_ptr().cast(), 64, 7).is_null();
        assert!(register(&a) && register(&a) && register(&a));
        assert_eq!([register(&b), register(&b), register(&b)], [true, false, true]);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
    });
}

#[test]
fn calls_of_some_numbers_fail() {
    let rules = ("SOFTRNIC_FAULTS", "poll-cq=EIO message=3.. every=2 times=2 device=softrnic1");
    Softrnic::new().envs(&[rules]).alone(|| {
        let (a, b) = (Node::new(0, 64), Node::new(1, 64));
        let poll = |node: &Node| poll_cq(node.cq, 1, &mut Wc::default());
        assert_eq!([(); 5].map(|()| poll(&a)), [0; 5]);
        assert_eq!([(); 3].map(|()| poll(&b)), [0, 0, -libc::EIO]);
        let rules = control(&["inject"]);
        assert!(rules.contains("applied 1"), "{rules}");
        assert_eq!([(); 5].map(|()| poll(&b)), [0, -libc::EIO, 0, 0, 0]);
        let rules = control(&["inject"]);
        assert!(rules.contains("applied 2"), "{rules}");
    });
}

#[test]
fn calls_fail_until_the_time_of_their_rule_is_over() {
    let rules = ("SOFTRNIC_FAULTS", "poll-cq=EIO for=100ms");
    Softrnic::new().envs(&[rules]).alone(|| {
        let node = Node::new(0, 64);
        let poll = || poll_cq(node.cq, 1, &mut Wc::default());
        assert_eq!(poll(), -libc::EIO);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!([(); 9].map(|()| poll()), [0; 9]);
        let rules = control(&["inject"]);
        assert!(rules.contains("applied 1\n"), "{rules}");
    });
}

#[test]
fn a_delay_holds_up_what_is_behind_it() {
    Softrnic::new().faults("delay=80ms message=2").alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        let begin = Instant::now();
        for id in 1..=3 {
            write(&mut a, &b, id, id as u8);
        }
        assert_eq!(a.next().wr_id, 1);
        assert_eq!(a.next().wr_id, 2);
        // A lower bound: no machine is too slow for it.
        assert!(begin.elapsed() >= Duration::from_millis(80), "held up for {:?}", begin.elapsed());
        assert_eq!(a.next().wr_id, 3);
        assert_eq!(b.memory[0], 3);
    });
}

/// As where a switch takes smaller packets than the ports say. A queue pair has packets of up to 4096 bytes here.
#[test]
fn packets_that_are_too_large_are_lost_and_others_arrive() {
    Softrnic::new().faults("drop larger=1024 attempts=all").alone(|| {
        for (bytes, status) in [(0, OK), (1024, OK), (1025, RETRY_EXC), (8192, RETRY_EXC)] {
            let (a, b) = local_pair(8192, &Terms::default());
            let sges = [a.sge(0, bytes)];
            a.send(Work { sges: &sges, to: (b.address().addr, b.address().rkey), ..Work::default() });
            assert_eq!(a.next().status, status, "{bytes} bytes");
        }
    });
}

/// Rules come and go while traffic runs.
#[test]
fn rules_can_be_changed_from_outside() {
    Softrnic::new().alone(|| {
        let (mut a, b) = local_pair(64, &Terms::default());
        let mut value = 0;
        let mut wrong_bits = || {
            value += 1;
            write(&mut a, &b, 1, value);
            assert_eq!(a.next().status, OK);
            b.memory[..16].iter().map(|byte| (byte ^ value).count_ones()).sum::<u32>()
        };
        assert_eq!(wrong_bits(), 0);
        let listed = control(&["inject", "corrupt", "device=softrnic0;", "drop device=softrnic1"]);
        assert!(listed.contains("1  corrupt device=softrnic0  applied 0"), "{listed}");
        assert_eq!(wrong_bits(), 1);
        let listed = control(&["inject"]);
        assert!(listed.contains("device=softrnic0  applied 1") && listed.contains("2  drop"), "{listed}");
        assert!(!control(&["inject", "--remove", "1"]).contains("corrupt"));
        assert_eq!(wrong_bits(), 0);
        let fabric = std::env::var("SOFTRNIC_FABRIC").expect("set");
        assert_eq!(control(&["inject", "--clear"]), format!("fabric {fabric}: 0 fault rule(s) in force\n"));
        assert_eq!(control(&["inject"]), "");
        for (args, says) in [
            (&["inject", "dorp"][..], "no action \"dorp\""),
            (&["inject", "drop device=softrnic5"][..], "there is no softrnic5 among 2"),
            (&["inject", "--remove", "7"][..], "no rule in force has the number 7"),
        ] {
            let told = refused(args);
            assert!(told.contains(says), "{args:?}: {told}");
        }
        let many = "drop;".repeat(65);
        assert!(refused(&["inject", &many]).contains("65 fault rules do not fit"));
    });
}

/// 300 messages each way.
fn exchange(side: usize, mut socket: Peer) {
    let node = Node::new(side, 64);
    node.connect_over(&mut socket, &Terms { timeout: 1, retry_cnt: 7, ..Terms::default() });
    for id in 0..300 {
        node.recv(id, &[]);
        socket.barrier();
        node.send(Work { opcode: SEND, ..Work::default() });
        assert_eq!([node.next().status, node.next().status], [OK, OK]);
    }
    socket.barrier();
}

/// With the same seed the rules hit the same messages, with another seed other ones, whatever the timing.
#[test]
fn the_same_seed_gives_the_same_faults() {
    let rules = "drop chance=0.1; rnr chance=0.05 opcode=send; delay=1us chance=0.1";
    let files = ["1", "1", "2"].map(|seed| {
        let file = std::env::temp_dir().join(unique_name("softrnic-trace"));
        let softrnic = Softrnic::new().faults(rules).env("SOFTRNIC_TRACE", file.display()).env("SOFTRNIC_SEED", seed);
        softrnic.pair(exchange);
        file
    });
    let traces = files.map(|file| {
        let text = std::fs::read_to_string(&file).expect("trace");
        std::fs::remove_file(&file).expect("own file");
        let mut lines: Vec<_> = text.lines().map(String::from).collect();
        lines.sort();
        lines
    });
    assert!(traces[0].len() > 50, "{:?}", traces[0]);
    assert_eq!(traces[0], traces[1]);
    assert_ne!(traces[0], traces[2]);
}
