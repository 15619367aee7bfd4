//! What on this machine would keep NCCL from using the plugin, or make it slow: looked at before a
//! job, without NCCL, without root, and without changing anything. Devices are opened, and objects
//! made on them for a trial are destroyed again.
//!
//! | file | what is in it |
//! |---|---|
//! | `rows` | the table, a file for each group of rows |
//! | `machine` | what rows look at: files, environment, trials; NCCL's configuration files; PCI functions; the trials, each in a process of its own |
//! | `report` | text and JSON; a fact with its verdict; a row of the table, which gives facts |
//! | `peers` | several hosts: are they alike, and does each reach the others |

pub(crate) mod machine;
pub(crate) mod peers;
pub(crate) mod report;
pub(crate) mod rows;
