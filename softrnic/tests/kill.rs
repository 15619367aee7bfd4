//! One side of an exchange, or both, killed at any point: by SIGKILL, now and then after a SIGSTOP.
//!
//! `SOFTRNIC_KILL_ROUNDS` and `SOFTRNIC_KILL_SEED` say how many rounds and which;
//! `softrnic/scripts/soak.sh` runs a thousand.

mod common;
#[path = "kill/crash.rs"]
mod crash;
#[path = "kill/participant.rs"]
mod participant;
#[path = "kill/summary.rs"]
mod summary;

use common::prelude::*;
use crash::{Crash, Random, Step};
use participant::{Ending, MODELLED, Participant};
use summary::Summary;
use testkit::Process;
use testkit::crash::in_child_that_dies;
use testkit::side::enter;

const SURVIVOR: usize = 0;
const VICTIM: usize = 1;
/// A process that is started after the victim's end.
const SUCCESSOR: usize = 2;

/// Room for little more than the running processes need: what killed processes have left must be
/// freed.
const SMALL_TABLES: [(&str, &str); 3] =
    [("SOFTRNIC_MAX_QP", "6"), ("SOFTRNIC_MAX_MR", "6"), ("SOFTRNIC_MAX_CQ", "6")];

/// What the survivor or the successor is to do next.
#[derive(Clone, Copy, Default)]
struct Task {
    /// [`END`], [`EXCHANGE`] or [`CHECK`].
    kind: u8,
    /// Creates new objects afterwards, and does not keep those of this round.
    renews: bool,
    /// Waits for events, not by polling.
    waits: bool,
    seed: u64,
}

const END: u8 = 0;
/// Exchange messages until one fails.
const EXCHANGE: u8 = 1;
/// Exchange bytes that are checked.
const CHECK: u8 = 2;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// After each kill: the survivor's request fails after the modelled time, all that it had posted
/// comes back, it can destroy or reuse everything, and a new process finds room in the fabric and
/// exchanges checked bytes with it. In the end no file is left.
#[test]
fn random_deaths_are_survived() {
    enter(|side, socket| match side {
        SURVIVOR => run_survivor(socket),
        VICTIM => run_victim(socket),
        _ => run_successor(socket),
    });
    let (rounds, seed) = (number("SOFTRNIC_KILL_ROUNDS", 100), number("SOFTRNIC_KILL_SEED", 1));
    let mut run = Run::new(seed);
    for round in 0..rounds {
        // Shown if the round fails.
        println!("round {round} of seed {seed}");
        run.run_round();
    }
    run.close();
    println!("{rounds} rounds, seed {seed}\n{}", run.summary);
}

/// Rounds on one fabric, in each of which a process is killed.
struct Run {
    softrnic: Softrnic,
    random: Random,
    survivor: Option<(Process, Peer)>,
    summary: Summary,
}

impl Run {
    fn new(seed: u64) -> Self {
        let softrnic = Softrnic::new().envs(&SMALL_TABLES);
        Self { softrnic, random: Random::new(seed), survivor: None, summary: Summary::default() }
    }

    fn run_round(&mut self) {
        let (survivor, mut to_survivor) =
            self.survivor.take().unwrap_or_else(|| self.softrnic.start(SURVIVOR, &[]));
        let task = Task {
            kind: EXCHANGE,
            renews: self.random.below(2) == 0,
            waits: self.random.below(2) == 0,
            seed: self.random.next(),
        };
        assert!(to_survivor.try_send(&task));
        let plan = Plan::pick(&mut self.random);
        println!("{plan:?}");
        let seed = self.random.next().to_string();
        let strict = if self.random.below(4) == 0 { "1" } else { "0" };
        let mut env = vec![("SOFTRNIC_TEST_SEED", seed.as_str()), ("SOFTRNIC_STRICT", strict)];
        env.extend(plan.crash.iter().map(|(_, (name, value))| (*name, value.as_str())));
        let (victim, mut to_victim) = self.softrnic.start(VICTIM, &env);
        let signals = plan.send_signals(&victim, &survivor);
        let ending = introduce(&mut to_survivor, &mut to_victim, plan.kills_survivor);
        signals.join().expect("the thread that sends the signals");
        self.summary.add(&plan, is_killed(victim), ending);
        if plan.kills_survivor {
            assert!(is_killed(survivor));
            // Nobody uses the fabric's file any more: the next process replaces it, and removes its
            // own in the end.
            self.run_successor_alone();
        } else {
            let task = Task { kind: CHECK, renews: self.random.below(2) == 0, ..task };
            let (successor, mut to_successor) = self.softrnic.start(SUCCESSOR, &[]);
            to_survivor.send(&task);
            to_successor.send(&task);
            swap::<Address>(&mut to_survivor, &mut to_successor);
            (0..4).for_each(|_| swap::<u8>(&mut to_survivor, &mut to_successor));
            successor.finish();
            self.survivor = Some((survivor, to_survivor));
        }
    }

    fn run_successor_alone(&self) {
        let (successor, mut to_successor) = self.softrnic.start(SUCCESSOR, &[]);
        to_successor.send(&Task::default());
        successor.finish();
        self.softrnic.assert_clean();
    }

    /// The last survivor is killed as well.
    fn close(&mut self) {
        if let Some((mut survivor, _socket)) = self.survivor.take() {
            survivor.signal(libc::SIGKILL);
            assert!(is_killed(survivor));
            self.run_successor_alone();
        }
    }
}

/// Which processes of a round are killed, and when.
#[derive(Debug)]
struct Plan {
    /// The victim is killed in the middle of a step of its own,
    crash: Option<(Step, (&'static str, String))>,
    /// or so long after its start,
    after: Duration,
    /// after having been stopped for so long.
    stopped: Option<Duration>,
    kills_survivor: bool,
    /// So long after the victim's start.
    survivor_after: Duration,
}

impl Plan {
    fn pick(random: &mut Random) -> Self {
        let way = random.below(10);
        Self {
            crash: (way < 7).then(|| Crash::pick(random)),
            after: Duration::from_micros(random.below(30_000)),
            stopped: (way == 9).then(|| Duration::from_micros(random.below(30_000))),
            kills_survivor: random.below(8) == 0,
            survivor_after: Duration::from_micros(random.below(30_000)),
        }
    }

    /// What the round is counted as.
    fn name(&self) -> String {
        let how = match (&self.crash, self.stopped) {
            (Some((step, _)), _) => format!("in {step:?}"),
            (None, Some(_)) => "stopped, then killed".to_owned(),
            (None, None) => "at some time".to_owned(),
        };
        if self.kills_survivor { how + ", and the survivor" } else { how }
    }

    /// Sends the signals that the processes do not send themselves, in a thread of its own.
    fn send_signals(&self, victim: &Process, survivor: &Process) -> std::thread::JoinHandle<()> {
        let mut signals = vec![];
        if self.crash.is_none() {
            signals.extend(self.stopped.map(|_| (self.after, victim.pid(), libc::SIGSTOP)));
            signals.push((
                self.after + self.stopped.unwrap_or_default(),
                victim.pid(),
                libc::SIGKILL,
            ));
        }
        if self.kills_survivor {
            signals.push((self.survivor_after, survivor.pid(), libc::SIGKILL));
        }
        signals.sort_unstable();
        let start = Instant::now();
        std::thread::spawn(move || {
            for (at, pid, signal) in signals {
                std::thread::sleep(at.saturating_sub(start.elapsed()));
                // SAFETY: our own child, for which nobody has waited yet.
                unsafe { libc::kill(pid as i32, signal) };
            }
        })
    }
}

/// Waits for a process; whether it was killed. If not, it must have ended well.
fn is_killed(process: Process) -> bool {
    let ended = process.ended();
    let is_killed = ended.is_killed_by(libc::SIGKILL);
    assert!(is_killed || ended.is_body_done(), "{ended}");
    is_killed
}

fn swap<T: Copy + Default>(a: &mut Peer, b: &mut Peer) {
    let (from_a, from_b): (T, T) = (a.recv(), b.recv());
    a.send(&from_b);
    b.send(&from_a);
}

/// Passes on the addresses of survivor and victim, and that they are connected; how the exchange
/// ended for the survivor, `None` if that was killed too.
fn introduce(survivor: &mut Peer, victim: &mut Peer, may_both_die: bool) -> Option<Ending> {
    let lives = |known: Option<Address>| {
        known.or_else(|| (!may_both_die).then(|| panic!("the survivor has ended")))
    };
    let mine = lives(survivor.try_recv());
    // No queue pair has number 0.
    let theirs: Address = victim.try_recv().unwrap_or_default();
    victim.try_send(&mine.unwrap_or_default());
    survivor.try_send(&theirs);
    let are_ready = (survivor.try_recv().unwrap_or(0u8), victim.try_recv().unwrap_or(0u8));
    victim.try_send(&are_ready.0);
    survivor.try_send(&are_ready.1);
    let ending: Option<Ending> = survivor.try_recv();
    assert!(ending.is_some() || may_both_die, "the survivor has ended");
    ending
}

/// Side [`SURVIVOR`]: one peer after the other is killed.
fn run_survivor(mut socket: Peer) {
    let mut kept: Option<Participant> = None;
    loop {
        let task: Task = socket.recv();
        if task.kind == END {
            return;
        }
        let mut participant = kept.take().unwrap_or_else(|| Participant::new(0));
        participant.waits = task.waits;
        let peer: Address = socket.swap(&participant.node.address());
        if task.kind == CHECK {
            participant.connect(&peer);
            socket.barrier();
            participant.check(&peer, task.seed, || socket.barrier());
        } else {
            exchange(&mut participant, &peer, task.seed, &mut socket);
        }
        if task.renews {
            participant.close();
        } else {
            participant.reset();
            kept = Some(participant);
        }
    }
}

/// The survivor's part of a round: goes on until a request fails because nobody answers.
fn exchange(participant: &mut Participant, peer: &Address, seed: u64, socket: &mut Peer) {
    let is_there = peer.qpn != 0;
    if is_there {
        participant.connect(peer);
    }
    socket.swap(&1u8);
    let mut ending = Ending::default();
    if is_there {
        ending = participant.stream(peer, u64::MAX, &mut Random::new(seed), &mut Crash::none());
        assert_eq!(ending.status, RETRY_EXC);
        assert!(
            u128::from(ending.waited_us) >= MODELLED.as_micros(),
            "it failed too early: {ending:?}"
        );
    }
    socket.send(&ending);
}

/// Side [`VICTIM`]: does everything there is to do, until it is killed.
fn run_victim(mut socket: Peer) {
    let mut crash = Crash::of_environment();
    let mut random = Random::new(number("SOFTRNIC_TEST_SEED", 0));
    crash.enter(Step::Attach);
    assert_eq!(ibv_close_device(open(1)), 0);
    crash.enter(Step::Create);
    let mut participant = Participant::new(1);
    participant.waits = random.below(2) == 0 || crash.is_in(Step::Event);
    let peer: Address = socket.swap(&participant.node.address());
    if peer.qpn == 0 {
        return;
    }
    crash.enter(Step::Connect);
    participant.connect(&peer);
    socket.swap(&1u8);
    let lives_on = (0..40).all(|_| {
        let ending = participant.stream(&peer, 4, &mut random, &mut crash);
        crash.enter(Step::Churn);
        churn(&participant.node);
        ending.status == OK
    });
    if lives_on {
        crash.enter(Step::Reset);
        participant.reset();
        participant.connect(&peer);
    }
    crash.enter(Step::Destroy);
    participant.close();
    crash.enter(Step::Leave);
}

/// Creates and destroys one of each.
fn churn(node: &Node) {
    let cq = ibv_create_cq(node.context, 16, ptr::null_mut(), ptr::null_mut(), 0);
    let qp = create_qp(node.pd, cq, cq, CAP);
    let mr = ibv_reg_mr(node.pd, node.memory.as_ptr().cast_mut().cast(), 4096, ALL_ACCESS);
    assert!(!cq.is_null() && !qp.is_null() && !mr.is_null());
    assert_eq!((ibv_destroy_qp(qp), ibv_dereg_mr(mr), ibv_destroy_cq(cq)), (0, 0, 0));
}

/// Side [`SUCCESSOR`]: finds room, and exchanges checked bytes with the survivor, or with itself
/// where there is none.
fn run_successor(mut socket: Peer) {
    let task: Task = socket.recv();
    let mut participant = Participant::new(1);
    let mine = participant.node.address();
    if task.kind == CHECK {
        let peer: Address = socket.swap(&mine);
        participant.connect(&peer);
        socket.barrier();
        participant.check(&peer, task.seed, || socket.barrier());
    } else {
        participant.connect(&mine);
        participant.check(&mine, task.seed, || {});
    }
    participant.close();
}

/// Killed processes keep neither places for processes nor entries of any table, nor storage of the
/// file.
#[test]
fn hundreds_of_deaths_exhaust_no_table() {
    // More than there are: 256 processes, 4096 QPs, 4096 CQs, 16384 MRs.
    const DEATHS: usize = 600;
    const EACH: (usize, usize, usize) = (8, 8, 30);
    Softrnic::new().alone(|| {
        let node = Node::new(0, 64);
        let file = format!("/dev/shm/{}", std::env::var("SOFTRNIC_FABRIC").expect("set"));
        let blocks =
            || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&file).expect("the file"));
        let mut used = 0;
        for death in 0..DEATHS {
            in_child_that_dies(|| take_much(EACH));
            if death == 10 {
                used = blocks();
            }
        }
        assert!(blocks() <= used, "{} blocks after 10 deaths, {} in the end", used, blocks());
        node.close();
    });
}

/// Takes so many QPs, CQs and MRs.
fn take_much((qps, cqs, mrs): (usize, usize, usize)) {
    let context = open(0);
    let pd = ibv_alloc_pd(context);
    let cqs: Vec<_> =
        (0..cqs).map(|_| ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0)).collect();
    let has_all = cqs.iter().all(|cq| !cq.is_null())
        && (0..qps).all(|_| !create_qp(pd, cqs[0], cqs[0], CAP).is_null())
        && (0..mrs).all(|_| !ibv_reg_mr(pd, cqs.as_ptr().cast_mut().cast(), 8, 1).is_null());
    assert!(has_all, "a table has no room");
}
