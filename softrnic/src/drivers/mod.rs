//! Drivers of real cards: what their devices grant, and how they refuse. Each file has what the driver's sources say, and nothing
//! else; docs/cards.md names the sources.

mod bnxt_re;
pub(crate) mod driver;
mod efa;
mod erdma;
mod hns;
mod ionic;
mod irdma;
mod mana;
mod mlx5;
mod own;
mod rxe;
pub(crate) mod table;
