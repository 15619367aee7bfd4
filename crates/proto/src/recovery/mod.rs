//! Recovery of a connection after a fault: what the two ends tell each other, and what each does next.
//!
//! After a fault, and to use a rail again, all queue pairs of the connection are replaced by new ones, over the rails that both
//! ends can use now. The receiver then lists the messages that have not arrived whole, and the sender sends those again, whole.
//!
//! ```text
//!  sender                                         receiver
//!  Halt ──────────────────────────────────────►            each end says it when it begins attempt A
//!       ◄────────────────────────────────────── Halt
//!  fence
//!  create
//!  Offer ─────────────────────────────────────►  fence, create, connect, post receives
//!  connect ◄─────────────────────────────────── Answer
//!  Ready ─────────────────────────────────────►  test the way back, list what is missing, run
//!  apply, send again, run ◄──────────────────── MissingList
//! ```
//!
//! **Fence**: an end puts its queue pairs into the error state, takes in every completion of theirs, and destroys them. Only its own
//! device writes into the receiver's memory, and only through its own queue pairs. So what has arrived when the receiver's fence
//! is complete is all that ever arrives of what was sent before; and the sender's fence does the same for the clear-to-sends.
//! That is why each end fences before anything new is created. The receiver waits a little for the sender's fence, and polls meanwhile: a device may
//! throw away what has arrived and was not polled before its fence, and what the sender knows to be acknowledged must not be among that.
//!
//! A receiver that does not hear what arrives, since its completion queue or device has failed, fences at once: its device may go on to acknowledge.
//!
//! **Asking**: where nothing has failed, and other queue pairs would only be better (lanes, other paths, a rail or an own port that is back), an end
//! asks first (`Ask`), and begins an attempt only after the other one has answered (`Heard`). Until then data flows over the queue pairs in use,
//! also if the control connection carries nothing for hours. Between the answer and the next frames it may still break: then the connection waits for
//! it, as after a fault.
//!
//! **Attempt**: a number that grows by one each time. 0 is what the connection was set up with. A frame of a later attempt than
//! one's own begins that attempt; one of an earlier attempt is ignored.
//!
//! | file | what |
//! |---|---|
//! | [`rail_mask`] | some of the rails of a connection |
//! | [`message`] | what the ends tell each other |
//! | [`missing_list`] | what has not arrived: [`RecvFlow`](crate::recv::RecvFlow) lists it, [`SendFlow`](crate::send::SendFlow) sends it again |
//! | [`machine`] | the order of things at one end; what its caller has to do |
//! | [`path_mtu`] | paths that lose large packets only |
//! | [`reach`] | how long tests of new queue pairs wait |
//! | [`rail_history`] | how long a rail that has fallen often waits, or over which attempts fail |
//! | [`move_budget`] | how often lanes may be given other paths |

pub mod machine;
pub mod message;
pub mod missing_list;
pub mod move_budget;
pub mod path_mtu;
pub mod rail_history;
pub mod rail_mask;
pub mod reach;
