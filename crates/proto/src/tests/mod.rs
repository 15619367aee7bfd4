//! Tests of several files together.
//!
//! | file | contents |
//! | --- | --- |
//! | `arrival_orders` | every order of a few immediates |
//! | `exhaustive` | all values of small ranges |
//! | `malformed_input` | peers that break the protocol |

mod arrival_orders;
pub(crate) mod exhaustive;
mod malformed_input;
