//! What a message costs the card and its driver, counted by the software device, without a clock.
//!
//! One process sends to itself in a fixed order, as `solo` does. The device is asked what it has counted before and after a number
//! of messages; the difference over their number is the cost of one. The same run gives the same numbers each time.
//!
//! | file | what is in it |
//! |---|---|
//! | `case` | a size, a depth, so many queue pairs and rails |
//! | `counted` | what the device has counted, out of `softrnic stat` |
//! | `quantity` | the rows of the table: what one message costs, out of what was counted |
//! | `queues` | the memory of queues as drivers lay it out |
//! | `worker` | the process that sends to itself |
//! | `runner` | each transport in each case, each in a process of its own |
//! | `report` | text and JSON |

pub(crate) mod case;
mod counted;
mod quantity;
mod queues;
pub(crate) mod report;
pub(crate) mod runner;
pub(crate) mod worker;
