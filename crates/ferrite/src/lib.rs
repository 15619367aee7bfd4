//! The program `ferrite`: what operators look at machines and running jobs with, and the commands
//! of the [`lab`].
//!
//! | module | what is in it |
//! |---|---|
//! | `doctor` | a machine before a job, row by row; sees it through the plugin's own code |
//! | `top` | statistics that the plugin writes, as tables and metrics |
//! | `trace` | messages that the plugin has timed, of both ends, as a timeline |
//! | [`hang`] | what processes of Ferrite wait for |
//! | [`cli`] | the command line |
//! | `fuzz` | what a fuzzer chooses: files of statistics, messages between doctors |

pub mod cli;
mod doctor;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod hang;
mod top;
mod trace;
