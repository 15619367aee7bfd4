//! Objects that an application has promised to use from one thread at a time: whether it does.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::host::stderr;

/// Whether a thread is in an object. Looked at only where the application has promised that there is never more than one.
#[derive(Debug)]
pub(crate) struct InUse {
    is_promised: bool,
    is_in: AtomicBool,
}

impl InUse {
    pub(crate) fn new(is_promised: bool) -> Self {
        Self { is_promised, is_in: AtomicBool::new(false) }
    }

    /// Whether one thread alone is to use the object.
    pub(crate) fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// A thread comes into `object`. Ends the process, as mlx5 does, if one is in it that was not to be.
    #[inline]
    pub(crate) fn enter(&self, object: &str) {
        if self.is_promised && self.is_in.swap(true, Acquire) {
            broken(object);
        }
    }

    #[inline]
    pub(crate) fn leave(&self) {
        if self.is_promised {
            self.is_in.store(false, Release);
        }
    }

    /// As `enter`, until the result is dropped.
    #[inline]
    pub(crate) fn while_in(&self, object: &str) -> Inside<'_> {
        self.enter(object);
        Inside(self)
    }
}

/// A thread is in the object.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a InUse);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cold]
fn broken(object: &str) -> ! {
    stderr::say(format_args!(
        "two threads are in {object} at once, which the application has promised to use from one thread at a time; \
         mlx5 takes no lock there. The process ends"
    ));
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_take_turns_keep_the_promise() {
        let promised = InUse::new(true);
        drop(promised.while_in("a queue"));
        promised.enter("a queue");
        promised.leave();
        drop(promised.while_in("a queue"));
        let shared = InUse::new(false);
        let _first = shared.while_in("a queue");
        let _second = shared.while_in("a queue");
    }
}
