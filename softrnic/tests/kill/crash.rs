//! Kills a process at some moment, or in the middle of something that it does.

use std::ptr;

/// Random numbers that a seed decides.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// 0 to `end`, that not included.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// What a process can be in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// First device list: the fabric's file, a place in it, the service thread.
    Attach,
    /// Device, PD, channel, CQ, QP, MR.
    Create,
    /// RESET to RTS.
    Connect,
    PostSend,
    PostRecv,
    /// A fetch-and-add: under the word that says who is at it.
    Atomic,
    Poll,
    /// Arming a CQ, waiting for the event, taking it.
    Event,
    /// Creating and destroying a CQ, a QP and an MR while traffic runs.
    Churn,
    /// To ERR, to RESET, and connected again.
    Reset,
    /// Everything, in order.
    Destroy,
    /// The exit handlers.
    Leave,
}

/// All steps, with the time that each may take (ns) and how often it is taken at least.
pub(crate) const STEPS: [(Step, u64, u64); 12] = [
    (Step::Attach, 1_000_000, 1),
    (Step::Create, 400_000, 1),
    (Step::Connect, 60_000, 1),
    (Step::PostSend, 100_000, 150),
    (Step::PostRecv, 3_000, 6),
    (Step::Atomic, 20_000, 10),
    (Step::Poll, 4_000, 150),
    (Step::Event, 100_000, 6),
    (Step::Churn, 300_000, 30),
    (Step::Reset, 60_000, 1),
    (Step::Destroy, 200_000, 1),
    (Step::Leave, 60_000, 1),
];

const NAME: &str = "SOFTRNIC_TEST_CRASH";

/// Kills its process a certain time after it takes a certain step for the n-th time.
pub(crate) struct Crash {
    step: usize,
    left: u64,
    ns: i64,
    timer: libc::timer_t,
}

impl Crash {
    /// Nothing happens.
    pub(crate) fn none() -> Self {
        Self { step: usize::MAX, left: 0, ns: 0, timer: ptr::null_mut() }
    }

    /// Picks a step, for the environment of the process to come.
    pub(crate) fn pick(random: &mut Random) -> (Step, (&'static str, String)) {
        let index = random.below(STEPS.len() as u64) as usize;
        let (step, ns, times) = STEPS[index];
        (step, (NAME, format!("{index} {} {}", 1 + random.below(times), 1 + random.below(ns))))
    }

    /// What the environment says.
    pub(crate) fn of_environment() -> Self {
        let Ok(text) = std::env::var(NAME) else { return Self::none() };
        let words: Vec<u64> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
        // SAFETY: all zeros is a valid sigevent; the timer is written on success.
        let timer = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            (event.sigev_notify, event.sigev_signo) = (libc::SIGEV_SIGNAL, libc::SIGKILL);
            let mut timer = ptr::null_mut();
            assert_eq!(
                libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer),
                0
            );
            timer
        };
        Self { step: words[0] as usize, left: words[1], ns: words[2] as i64, timer }
    }

    /// Whether it happens in such a step.
    pub(crate) fn is_in(&self, step: Step) -> bool {
        STEPS.get(self.step).is_some_and(|(mine, ..)| *mine == step)
    }

    /// The process begins a step.
    pub(crate) fn enter(&mut self, step: Step) {
        if !self.is_in(step) {
            return;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.step = usize::MAX;
            // SAFETY: a timer of this process; all zeros is a valid itimerspec.
            unsafe {
                let mut when: libc::itimerspec = std::mem::zeroed();
                when.it_value.tv_nsec = self.ns;
                assert_eq!(libc::timer_settime(self.timer, 0, &raw const when, ptr::null_mut()), 0);
            }
        }
    }
}
