//! Connections between the two processes of a pair, and waiting with a limit.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::transport::comm::Request;

/// Looks at the clock, and lets another process have the CPU, once in so many polls: some tens of
/// microseconds.
const POLLS_PER_LOOK: u32 = 1 << 10;

/// What takes longer than this is waited for with pauses, in which other processes have the CPU.
const LONG: Duration = Duration::from_millis(4);
/// A pause is the time that has been waited divided by this: too short to show in what is measured.
const PAUSES_PER_WAIT: u32 = 64;
/// A wait for longer than this means that the peer has lost its CPU; and the shortest pause then.
const LOST: Duration = Duration::from_micros(300);
const PAUSE: Duration = Duration::from_micros(30);
/// Polls from one pause to the next.
const POLLS_PER_PAUSE: u32 = 1 << 5;

/// A limit for a loop that polls. Cheap: the clock is read rarely.
#[derive(Debug)]
pub struct Deadline {
    what: &'static str,
    limit: Duration,
    /// Whether this thread has a CPU of its own, unless others disturb it.
    has_own_cpu: bool,
    start: Option<Instant>,
    /// Polls until the next look.
    polls_left: u32,
}

impl Deadline {
    /// Gives up `limit` after the first look at the clock.
    pub fn new(what: &'static str, limit: Duration) -> Self {
        Self { what, limit, has_own_cpu: false, start: None, polls_left: POLLS_PER_LOOK }
    }

    /// For a process with a CPU of its own, whose peer usually answers within microseconds. If the
    /// peer has lost its CPU, this waits with pauses, which keep this process's share of its CPU.
    /// To yield at each look would lose that share while the peer waits as well.
    #[must_use]
    pub fn with_own_cpu(self, has_own_cpu: bool) -> Self {
        Self { has_own_cpu, ..self }
    }

    /// To be called when a poll found nothing.
    ///
    /// # Errors
    /// [`Error::Stalled`] past the limit.
    #[inline]
    pub fn idle(&mut self) -> Result<()> {
        self.polls_left -= 1;
        if self.polls_left == 0 {
            return self.look();
        }
        Ok(())
    }

    /// To be called when something was found: the limit counts anew.
    #[inline]
    pub fn progress(&mut self) {
        self.start = None;
    }

    #[cold]
    fn look(&mut self) -> Result<()> {
        if !self.has_own_cpu {
            std::thread::yield_now();
        }
        self.polls_left = POLLS_PER_LOOK;
        let waited = self.start.get_or_insert_with(Instant::now).elapsed();
        if waited > self.limit {
            return Err(Error::Stalled { what: self.what.into(), after: self.limit });
        }
        let (long, pause) = if self.has_own_cpu { (LOST, PAUSE) } else { (LONG, Duration::ZERO) };
        if waited > long {
            std::thread::sleep(pause.max(waited / PAUSES_PER_WAIT));
            self.polls_left = POLLS_PER_PAUSE;
        }
        Ok(())
    }
}

/// Calls `post` until it gives a request.
///
/// # Errors
/// Those of `post`; [`Error::Stalled`].
pub fn posted<'c>(
    deadline: &mut Deadline,
    mut post: impl FnMut() -> Result<Option<Request<'c>>>,
) -> Result<Request<'c>> {
    loop {
        if let Some(request) = post()? {
            deadline.progress();
            return Ok(request);
        }
        deadline.idle()?;
    }
}

/// Tests until the request is done; the sizes are in the first places of `sizes`.
///
/// # Errors
/// Those of the transport's `test`; [`Error::Stalled`].
pub fn finished(
    deadline: &mut Deadline,
    mut request: Request<'_>,
    sizes: &mut [i32],
) -> Result<()> {
    while !request.test(sizes)? {
        deadline.idle()?;
    }
    deadline.progress();
    Ok(())
}
