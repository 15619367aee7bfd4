//! What the connections of a rank take at any number of ranks: a model over constants that were measured or read.
//!
//! ```text
//! group: which processes a rank is connected to, and how often ──┐
//! constants: what one connection takes, of either transport ─────┼─► demand: what a rank takes ──► limits: what is met first
//! layout: how many nodes, and how hybrid-parallel jobs use them ─┘                          └──► report
//! ```
//!
//! No network and no device is used. Each run gives the same numbers.
//!
//! | file | what |
//! |---|---|
//! | `constants` | every measured or assumed number, with where it comes from |
//! | `layout` | ranks, nodes, and the dimensions of a hybrid-parallel job |
//! | `group` | the communicators of a job, and the connections that each gives a rank |
//! | `demand` | what a rank takes with a transport |
//! | `limits` | the number of ranks from which a limit is exceeded |
//! | `report` | all that as text, Markdown tables included, and as JSON |

pub(crate) mod constants;
pub(crate) mod demand;
pub(crate) mod group;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod report;
