//! Operations that stand still, and what the log says of them: processes over the software device,
//! each of them a rank that passes messages on as NCCL's proxies do, and one planted cause.

#[path = "../common/mod.rs"]
mod common;

mod causes;
mod job;
mod operations;
mod rank;
mod set_up;
