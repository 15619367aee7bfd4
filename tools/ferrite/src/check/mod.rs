//! `ferrite check`: NCCL's contract for a network transport, point by point, against one transport.
//!
//! Sixty points, named and numbered. Each runs in fresh processes on a software device of its own and ends within a
//! limit, with one of three verdicts.
//!
//! | module | |
//! |---|---|
//! | [`point`] | what a point is, and the table of all: [`point::all`] |
//! | `loading`, `properties`, `connection`, `peers`, `registration`, `datapath`, `order`, `teardown`, `faults`, `settings` | the points, a chapter each |
//! | [`stage`] | what a point has to work with, in each of its two processes |
//! | `raw` | calls that break the rules which [`Transport`](crate::transport::Transport) keeps |
//! | `relay` | somebody between a connection's two ends |
//! | `device` | what happens to the software device |
//! | [`runner`] | the process that starts the others and judges |
//! | [`verdict`], [`report`] | what comes out |

mod connection;
mod datapath;
mod device;
mod faults;
mod loading;
mod order;
mod peers;
pub mod point;
mod properties;
mod raw;
mod registration;
mod relay;
pub mod report;
pub mod runner;
mod settings;
pub mod stage;
mod teardown;
pub mod verdict;

/// Ends a point with a sentence unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::error::Error::Contract(format!($($words)+)));
        }
    };
}

pub(crate) use ensure;
