//! Tests of several files together.
//!
//! | file | contents |
//! | --- | --- |
//! | `inquiry` | questions and answers of processes, one by one |
//! | `many_ends` | a process with many ends visits them once per step, not once per end |
//! | `model` | rings of stalled processes; each process must name the cause |

mod inquiry;
mod many_ends;
mod model;
