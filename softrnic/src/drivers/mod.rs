//! Drivers of real cards: what their devices grant, and how they refuse. Each entry has what the
//! driver's sources say, and nothing else; docs/cards.md names the sources.

mod bnxt_re;
mod erdma;
mod mlx5;
pub(crate) mod table;
