//! Death at any point: of one side of an exchange, or both, by SIGKILL, now and then after a SIGSTOP.
//!
//! `SOFTRNIC_KILL_ROUNDS` and `SOFTRNIC_KILL_SEED` say how many rounds and which; `tools/softrnic/scripts/soak.sh` runs a thousand.

mod common;
#[path = "kill/crash.rs"]
mod crash;
#[path = "kill/participant.rs"]
mod participant;
#[path = "kill/summary.rs"]
mod summary;

use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::ptr;
use std::time::{Duration, Instant};

use common::node::{Address, CAP, Node, create_qp, open};
use common::process::{Line, alone, assert_clean, fabric_name, finish, is_side, line, start};
use common::verbs::*;
use crash::{Crash, Random, Step};
use participant::{Ending, MODELLED, Participant};
use summary::Summary;

const NAME: &str = "random_deaths_are_survived";
const SURVIVOR: usize = 0;
const VICTIM: usize = 1;
const VISITOR: usize = 2;

/// Room for little more than the living need: what the dead leave must be cleared up.
const TIGHT: [(&str, &str); 3] = [("SOFTRNIC_MAX_QP", "6"), ("SOFTRNIC_MAX_MR", "6"), ("SOFTRNIC_MAX_CQ", "6")];

/// What the survivor is to do next.
#[derive(Clone, Copy, Default)]
struct Order {
    /// 0: end; 1: exchange until it fails; 2: check that bytes flow.
    kind: u8,
    /// With new objects, not those of the round before.
    renews: bool,
    /// Waits for events, not by polling.
    waits: bool,
    seed: u64,
}

const END: u8 = 0;
const EXCHANGE: u8 = 1;
const CHECK: u8 = 2;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// After each death: the survivor is told within the modelled time, all that it had posted comes back, it can destroy
/// or reuse everything, and a fresh process finds room in the fabric and exchanges checked bytes with it. In the end
/// no file is left.
#[test]
fn random_deaths_are_survived() {
    let body = |side, line| match side {
        SURVIVOR => survive(line),
        VICTIM => suffer(line),
        _ => visit(line),
    };
    if is_side(NAME, body) {
        return;
    }
    let (rounds, seed) = (number("SOFTRNIC_KILL_ROUNDS", 200), number("SOFTRNIC_KILL_SEED", 1));
    let mut stage = Stage::new(fabric_name("kill"), seed);
    for round in 0..rounds {
        // Shown if the round fails.
        println!("round {round} of seed {seed}");
        stage.play();
    }
    stage.close();
    println!("{rounds} rounds, seed {seed}\n{}", stage.summary);
}

/// The fabric, and who lives there.
struct Stage {
    fabric: String,
    random: Random,
    survivor: Option<(Child, Line)>,
    summary: Summary,
}

impl Stage {
    fn new(fabric: String, seed: u64) -> Self {
        Self { fabric, random: Random::new(seed), survivor: None, summary: Summary::default() }
    }

    fn enter(&self, side: usize, env: &[(&str, &str)]) -> (Child, Line) {
        let (mine, theirs) = UnixStream::pair().expect("socket pair");
        let mut all = vec![("SOFTRNIC_FABRIC", self.fabric.as_str())];
        all.extend(TIGHT.iter().chain(env));
        (start(NAME, side, theirs, &all), line(mine))
    }

    /// One round.
    fn play(&mut self) {
        let (survivor, mut to_survivor) = self.survivor.take().unwrap_or_else(|| self.enter(SURVIVOR, &[]));
        let order = Order {
            kind: EXCHANGE,
            renews: self.random.below(2) == 0,
            waits: self.random.below(2) == 0,
            seed: self.random.next(),
        };
        assert!(to_survivor.try_send(&order));
        let fate = Fate::draw(&mut self.random);
        println!("{fate:?}");
        let seed = self.random.next().to_string();
        let strict = if self.random.below(4) == 0 { "1" } else { "0" };
        let mut env = vec![("SOFTRNIC_TEST_SEED", seed.as_str()), ("SOFTRNIC_STRICT", strict)];
        env.extend(fate.crash.iter().map(|(_, (name, value))| (*name, value.as_str())));
        let (victim, mut to_victim) = self.enter(VICTIM, &env);
        let hunter = fate.hunt(&victim, &survivor);
        let told = introduce(&mut to_survivor, &mut to_victim, fate.takes_both);
        hunter.join().expect("the hunter");
        self.summary.add(&fate, is_killed(victim), told);
        if !fate.takes_both {
            let order = Order { kind: CHECK, renews: self.random.below(2) == 0, ..order };
            let (visitor, mut to_visitor) = self.enter(VISITOR, &[]);
            to_survivor.send(&order);
            to_visitor.send(&order);
            swap::<Address>(&mut to_survivor, &mut to_visitor);
            (0..4).for_each(|_| swap::<u8>(&mut to_survivor, &mut to_visitor));
            finish(visitor);
            self.survivor = Some((survivor, to_survivor));
        } else {
            assert!(is_killed(survivor));
            // All are dead: their file is stale, the next one replaces and in the end removes it.
            self.visit_alone();
        }
    }

    fn visit_alone(&self) {
        let (visitor, mut to_visitor) = self.enter(VISITOR, &[]);
        to_visitor.send(&Order::default());
        finish(visitor);
        assert_clean(&self.fabric);
    }

    /// The last survivor is killed as well.
    fn close(&mut self) {
        if let Some((mut survivor, _line)) = self.survivor.take() {
            survivor.kill().expect("kill");
            assert!(is_killed(survivor));
            self.visit_alone();
        }
    }
}

/// How a round goes.
#[derive(Debug)]
struct Fate {
    /// The victim dies in the middle of a step of its own,
    crash: Option<(Step, (&'static str, String))>,
    /// or so long after its start,
    after: Duration,
    /// after having been stopped for so long.
    stopped: Option<Duration>,
    /// The survivor dies as well, so long after the victim's start.
    takes_both: bool,
    both_after: Duration,
}

impl Fate {
    fn draw(random: &mut Random) -> Self {
        let way = random.below(10);
        Self {
            crash: (way < 7).then(|| Crash::pick(random)),
            after: Duration::from_micros(random.below(30_000)),
            stopped: (way == 9).then(|| Duration::from_micros(random.below(30_000))),
            takes_both: random.below(8) == 0,
            both_after: Duration::from_micros(random.below(30_000)),
        }
    }

    /// What the round is counted as.
    fn name(&self) -> String {
        let how = match (&self.crash, self.stopped) {
            (Some((step, _)), _) => format!("in {step:?}"),
            (None, Some(_)) => "stopped, then killed".to_owned(),
            (None, None) => "at some time".to_owned(),
        };
        if self.takes_both { how + ", and the survivor" } else { how }
    }

    /// Sees to what the processes do not do themselves.
    fn hunt(&self, victim: &Child, survivor: &Child) -> std::thread::JoinHandle<()> {
        let mut shots = vec![];
        if self.crash.is_none() {
            shots.extend(self.stopped.map(|_| (self.after, victim.id(), libc::SIGSTOP)));
            shots.push((self.after + self.stopped.unwrap_or_default(), victim.id(), libc::SIGKILL));
        }
        if self.takes_both {
            shots.push((self.both_after, survivor.id(), libc::SIGKILL));
        }
        shots.sort_unstable();
        let start = Instant::now();
        std::thread::spawn(move || {
            for (at, pid, signal) in shots {
                std::thread::sleep(at.saturating_sub(start.elapsed()));
                // SAFETY: our own child, for which nobody has waited yet.
                unsafe { libc::kill(pid as i32, signal) };
            }
        })
    }
}

/// Waits for a process; whether it was killed. If not, it must have ended well.
fn is_killed(child: Child) -> bool {
    let output = child.wait_with_output().expect("wait");
    let text = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let is_killed = output.status.signal() == Some(libc::SIGKILL);
    assert!(is_killed || output.status.success(), "{}\n{}\n{}", output.status, text[0], text[1]);
    is_killed
}

fn swap<T: Copy + Default>(a: &mut Line, b: &mut Line) {
    let (from_a, from_b): (T, T) = (a.recv(), b.recv());
    a.send(&from_b);
    b.send(&from_a);
}

/// Tells the two of each other; returns how it ended for the survivor, `None` if that was killed too.
fn introduce(survivor: &mut Line, victim: &mut Line, may_both_die: bool) -> Option<Ending> {
    let lives = |known: Option<Address>| known.or_else(|| (!may_both_die).then(|| panic!("the survivor is dead")));
    let mine = lives(survivor.try_recv());
    // Nobody has QP number 0.
    let theirs: Address = victim.try_recv().unwrap_or_default();
    victim.try_send(&mine.unwrap_or_default());
    survivor.try_send(&theirs);
    let are_ready = (survivor.try_recv().unwrap_or(0u8), victim.try_recv().unwrap_or(0u8));
    victim.try_send(&are_ready.0);
    survivor.try_send(&are_ready.1);
    let told: Option<Ending> = survivor.try_recv();
    assert!(told.is_some() || may_both_die, "the survivor is dead");
    told
}

/// Side [`SURVIVOR`]: outlives one peer after the other.
fn survive(mut line: Line) {
    let mut kept: Option<Participant> = None;
    loop {
        let order: Order = line.recv();
        if order.kind == END {
            return;
        }
        let mut participant = kept.take().unwrap_or_else(|| Participant::new(0));
        participant.waits = order.waits;
        let peer: Address = line.swap(&participant.node.address());
        if order.kind == CHECK {
            participant.connect(&peer);
            line.meet();
            participant.check(&peer, order.seed, || line.meet());
        } else {
            exchange(&mut participant, &peer, order.seed, &mut line);
        }
        if order.renews {
            participant.close();
        } else {
            participant.reset();
            kept = Some(participant);
        }
    }
}

/// The survivor's part of a round: goes on until it is told that nobody is there.
fn exchange(participant: &mut Participant, peer: &Address, seed: u64, line: &mut Line) {
    let is_there = peer.qpn != 0;
    if is_there {
        participant.connect(peer);
    }
    line.swap(&1u8);
    let mut ending = Ending::default();
    if is_there {
        ending = participant.stream(peer, u64::MAX, &mut Random::new(seed), &mut Crash::none());
        assert_eq!(ending.status, RETRY_EXC);
        assert!(u128::from(ending.waited_us) >= MODELLED.as_micros(), "told too early: {ending:?}");
    }
    line.send(&ending);
}

/// Side [`VICTIM`]: does everything there is to do, and does not get far.
fn suffer(mut line: Line) {
    let mut crash = Crash::of_environment();
    let mut random = Random::new(number("SOFTRNIC_TEST_SEED", 0));
    crash.enter(Step::Attach);
    assert_eq!(ibv_close_device(open(1)), 0);
    crash.enter(Step::Create);
    let mut participant = Participant::new(1);
    participant.waits = random.below(2) == 0 || crash.awaits(Step::Event);
    let peer: Address = line.swap(&participant.node.address());
    if peer.qpn == 0 {
        return;
    }
    crash.enter(Step::Connect);
    participant.connect(&peer);
    line.swap(&1u8);
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
    std::process::exit(0);
}

/// Creates and destroys one of each.
fn churn(node: &Node) {
    let cq = ibv_create_cq(node.context, 16, ptr::null_mut(), ptr::null_mut(), 0);
    let qp = create_qp(node.pd, cq, cq, CAP);
    let mr = ibv_reg_mr(node.pd, node.memory.as_ptr().cast_mut().cast(), 4096, ALL_ACCESS);
    assert!(!cq.is_null() && !qp.is_null() && !mr.is_null());
    assert_eq!((ibv_destroy_qp(qp), ibv_dereg_mr(mr), ibv_destroy_cq(cq)), (0, 0, 0));
}

/// Side [`VISITOR`]: finds room, and either the survivor or nobody but itself to exchange bytes with.
fn visit(mut line: Line) {
    let order: Order = line.recv();
    let mut participant = Participant::new(1);
    let mine = participant.node.address();
    if order.kind == CHECK {
        let peer: Address = line.swap(&mine);
        participant.connect(&peer);
        line.meet();
        participant.check(&peer, order.seed, || line.meet());
    } else {
        participant.connect(&mine);
        participant.check(&mine, order.seed, || {});
    }
    participant.close();
}

/// The dead keep nothing: neither places for processes nor entries of any table, nor storage of the file.
#[test]
fn hundreds_of_deaths_exhaust_no_table() {
    // More than there are: 256 processes, 4096 QPs, 4096 CQs, 16384 MRs.
    const DEATHS: usize = 600;
    const EACH: (usize, usize, usize) = (8, 8, 30);
    alone("hundreds_of_deaths_exhaust_no_table", &[], || {
        let node = Node::new(0, 64);
        let file = format!("/dev/shm/{}", std::env::var("SOFTRNIC_FABRIC").expect("set"));
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&file).expect("the file"));
        let mut used = 0;
        for death in 0..DEATHS {
            // SAFETY: the child uses the library, and is killed.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                take_much(EACH);
            }
            let mut status = -1;
            // SAFETY: waits for our child.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            assert_eq!(status, libc::SIGKILL, "death {death}: it found no room");
            if death == 10 {
                used = blocks();
            }
        }
        assert!(blocks() <= used, "{} blocks after 10 deaths, {} in the end", used, blocks());
        node.close();
    });
}

/// In a child: takes so many QPs, CQs and MRs, and is killed.
fn take_much((qps, cqs, mrs): (usize, usize, usize)) {
    let context = open(0);
    let pd = ibv_alloc_pd(context);
    let cqs: Vec<_> = (0..cqs).map(|_| ibv_create_cq(context, 16, ptr::null_mut(), ptr::null_mut(), 0)).collect();
    let has_all = cqs.iter().all(|cq| !cq.is_null())
        && (0..qps).all(|_| !create_qp(pd, cqs[0], cqs[0], CAP).is_null())
        && (0..mrs).all(|_| !ibv_reg_mr(pd, cqs.as_ptr().cast_mut().cast(), 8, 1).is_null());
    // SAFETY: ends this process without handlers.
    unsafe {
        if has_all {
            libc::kill(libc::getpid(), libc::SIGKILL);
        }
        libc::_exit(1);
    }
}
