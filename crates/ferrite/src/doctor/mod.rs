//! What on this machine would keep NCCL from using the plugin, or make it slow: looked at before a job, without NCCL, without
//! root, and without changing anything. Devices are opened, and objects made on them for a trial are destroyed again.
//!
//! | file | what is in it |
//! |---|---|
//! | `finding`, `row` | a fact with its verdict; a row of the table, which gives facts |
//! | `rows` | the table, a file for each group of rows |
//! | `machine` | what rows look at: files, environment, trials |
//! | `conf_file`, `pci` | NCCL's configuration files; PCI functions |
//! | `verbs_probe`, `loopback` | the trials, each in a process of its own; `verbs_facts` is what the first finds |
//! | `report` | text and JSON |
//! | `peers` | several hosts: are they alike, and does each reach the others |

mod conf_file;
pub(crate) mod finding;
mod loopback;
pub(crate) mod machine;
mod pci;
pub(crate) mod peers;
pub(crate) mod report;
pub(crate) mod row;
pub(crate) mod rows;
mod verbs_facts;
mod verbs_probe;
