//! One process that talks to itself: no second process whose pace could change what the transport
//! does. One thread makes every call in a fixed order, so that a run executes the same
//! instructions each time and two transports can be compared by counting them.

mod connections;
pub(crate) mod endpoints;
pub(crate) mod in_vain;
pub(crate) mod job;
pub(crate) mod messages;
mod reexec;
