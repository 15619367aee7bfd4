//! `ferrite check`: the contract of an NCCL net transport, point by point, against one transport.
//!
//! Each point has a number and a name. It runs in new processes on a software device of its own and
//! ends within a time limit, with one of three verdicts.
//!
//! | file | what is in it |
//! |---|---|
//! | `points` | the points themselves, a chapter a file, and the table of all |
//! | `context` | what a step can use, in each of its two processes; what a point is: its steps, and the environment of each step; polling with a limit; how long calls take, whatever other processes do; messages within one process; an address of this process among the bytes of a handle; the software device's command line |
//! | `raw` | calls of a table's functions with arguments of any kind |
//! | `relay` | a TCP relay between the two ends of a connection |
//! | `runner` | the process that starts the others and judges; a folder that hides libibverbs; one of the two processes of a step |
//! | `report` | what a step returns and how a point ends; as text, JSON and JUnit XML |

mod context;
pub(crate) mod points;
mod raw;
pub(crate) mod relay;
pub(crate) mod report;
pub(crate) mod runner;

/// Returns [`Error::Contract`](crate::error::Error::Contract) with a sentence unless a condition
/// holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            return Err($crate::error::Error::Contract(format!($($words)+)));
        }
    };
}

use ensure;
