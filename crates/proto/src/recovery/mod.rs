//! Recovery of a connection after a fault: the messages of the two ends, and their next steps.
//!
//! After a fault, and to use a rail again, new queue pairs replace all queue pairs of the
//! connection. They use the rails that both ends can use now. The receiver then lists the messages
//! that have not arrived whole, and the sender resends them whole.
//!
//! ```text
//!  sender                                         receiver
//!  fence                                                   each end begins attempt A
//!  Halt ──────────────────────────────────────►  fence
//!       ◄────────────────────────────────────── Halt
//!  create
//!  Offer ─────────────────────────────────────►  create, connect, post receives
//!  connect ◄─────────────────────────────────── Answer
//!  Ready ─────────────────────────────────────►  test the way back, list what is missing, run
//!  apply, send again, run ◄──────────────────── MissingList
//! ```
//!
//! **Fence**: an end moves its queue pairs to the error state, handles all of their completions,
//! and destroys them. Only its own device writes into the receiver's memory, and only through its
//! own queue pairs. So after the receiver's fence nothing more arrives of what was sent before. The
//! sender's fence does the same for the clear-to-sends. That is why each end fences before it
//! creates anything new.
//!
//! The receiver fences after the sender, whose `Halt` says that it has fenced, and polls until then.
//! A device may drop arrivals that were not polled before its fence, and these must not include
//! messages that the sender knows to be acknowledged. If its completion queue or device has failed,
//! a receiver fences at once: its device may continue to acknowledge arrivals that the receiver
//! never sees.
//!
//! **Asking**: a voluntary change of queue pairs is for lanes, other paths, or a rail or own port
//! that is back. The end asks first (`Ask`), and begins an attempt only after the other has
//! confirmed (`Heard`). Until then data flows over the present queue pairs, even if the control
//! connection carries nothing for hours. It may still break between the confirmation and the next
//! frames: then the connection waits for it, as after a fault.
//!
//! **Attempt**: a number that increases by one each time. 0 is the set-up. A frame of a later
//! attempt begins that attempt at its receiver; a frame of an earlier one is ignored.
//!
//! | file | contents |
//! | --- | --- |
//! | [`rail_mask`] | a set of rails |
//! | [`message`] | the messages between the ends |
//! | [`missing_list`] | what has not arrived: [`RecvFlow`](crate::recv::RecvFlow) lists it, [`SendFlow`](crate::send::SendFlow) resends it |
//! | [`machine`] | the order of steps at one end, and the caller's actions |
//! | [`path_mtu`] | paths that lose only large packets |
//! | [`reach`] | how long tests of new queue pairs wait |
//! | [`rail_history`] | how long a rail waits after repeated falls or failed attempts |
//! | [`move_budget`] | how often lanes may move to other paths, and whether that made a connection faster |

pub mod machine;
pub mod message;
pub mod missing_list;
pub mod move_budget;
pub mod path_mtu;
pub mod rail_history;
pub mod rail_mask;
pub mod reach;
