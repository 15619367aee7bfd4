//! Fault injection: carries out the fault rules in force, from outside of the engine.
//!
//! Whether a rule applies to a message is a pure function of the seed, the connection (its two ports and its number
//! among those between them), the number of the message on it and the number of the transmission: the same seed gives
//! the same faults, whatever the timing.

mod apply;
mod call;
pub(crate) mod injector;
mod matching;
mod outage;
mod trace;
