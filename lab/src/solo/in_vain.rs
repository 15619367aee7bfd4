//! Calls that find nothing.

/// How often calls are made that find nothing, in each round of messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InVain {
    /// `isend` without a receive.
    pub(crate) sends: u32,
    /// `test` of a receive that nothing was sent to.
    pub(crate) tests: u32,
}
