//! What a process that a test has started is to run.

use crate::name::test_name;

/// Which body of a test a process is to run, and as which of its sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Role {
    /// Calls of [`alone`](crate::alone) and [`pair`](crate::pair) in a test count from 1; 0 is
    /// [`enter`](crate::side::enter).
    pub(crate) call: usize,
    pub(crate) side: usize,
}

impl Role {
    pub(crate) const VARIABLE: &str = "TESTKIT_SIDE";

    pub(crate) fn print(self, test: &str) -> String {
        format!("{}:{}:{test}", self.call, self.side)
    }

    fn parse(text: &str, test: &str) -> Option<Self> {
        let mut words = text.splitn(3, ':');
        let (call, side, name) = (words.next()?, words.next()?, words.next()?);
        (name == test).then_some(Self { call: call.parse().ok()?, side: side.parse().ok()? })
    }

    /// What this process was started for.
    pub(crate) fn of_this_process() -> Option<Self> {
        Self::parse(&std::env::var(Self::VARIABLE).ok()?, &test_name())
    }
}
