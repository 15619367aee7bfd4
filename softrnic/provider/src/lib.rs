//! softrnic as kernel and card under the system's own libibverbs and one of its providers, the driver
//! libraries. This library is preloaded: `softrnic run --provider mlx5 -- PROGRAM`.
//!
//! ```text
//!   program ── libibverbs ── provider         the system's, unmodified
//!                 │             │
//!              commands      work requests in its send and receive queues, completions in its
//!                 │             │            completion queues, how far they are filled
//!              preload ─────────┤            functions of the C library and of libibverbs, replaced
//!                 │             │
//!              command       objects         the kernel's answers; the kernel's objects
//!                 │             │
//!                 │          provider        what these ask of a provider
//!                 │             │
//!               uapi   mlx5, erdma, bnxt_re,  numbers and structures of the kernel; of the
//!                               │   ionic      providers
//!                               │
//!                           softrnic         executes: keys, timers, faults, events
//! ```
//!
//! After each call that posts, and before each that polls, the work requests that the provider has
//! written are posted to softrnic. Before a poll, softrnic's completions are written into the
//! provider's completion queue. No thread takes part in this. One thread for each open device
//! translates asynchronous events.
//!
//! Another provider needs one more file, which implements `provider::Provider`, and an entry in
//! `PROVIDERS`.

// On other processors the library is empty: it has not been tried there.
#![cfg(target_arch = "x86_64")]

mod bnxt_re;
mod command;
mod erdma;
mod ionic;
mod mlx5;
mod objects;
mod preload;
mod provider;
mod uapi;

use ibverbs::calls::host::{last_errno as errno, lock, say};
use provider::Provider;

/// The providers: their names, and the numbers of their drivers in the kernel's interface.
static PROVIDERS: [(&str, u32, &dyn Provider); 4] = [
    ("mlx5", 1, &mlx5::Mlx5),
    ("bnxt_re", 6, &bnxt_re::BnxtRe),
    ("erdma", 19, &erdma::Erdma),
    ("ionic", 21, &ionic::Ionic),
];

/// The result of a call of softrnic that returns an errno value.
fn check(code: i32) -> Result<(), i32> {
    if code == 0 { Ok(()) } else { Err(code) }
}

/// The result of a call of softrnic that returns NULL and sets errno on failure.
fn made<T>(pointer: *mut T) -> Result<*mut T, i32> {
    if pointer.is_null() { Err(errno().max(1)) } else { Ok(pointer) }
}
