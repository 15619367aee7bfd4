//! Addresses that a port loses and gets back, as when its network interface goes down and comes up.

use crate::abi::consts::event;
use crate::control::names::PortName;
use crate::control::network::Network;
use crate::network::gid::{self, TypedGid};
use crate::rules::gid_return::GidChange;
use crate::shm::slots::PortSlot;

/// An entry that was taken out of a GID table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenGid {
    index: usize,
    entry: TypedGid,
}

impl Network {
    /// Takes all GIDs out of the port's table that are no link-local ones; a `GID_CHANGE` each.
    pub(crate) fn take_gids(&self, name: PortName) -> Vec<TakenGid> {
        let taken = self.change(name, |slot, control| {
            let entries = (0..slot.gids.len()).filter_map(|index| Some(TakenGid { index, entry: slot.gid(index)? }));
            let taken: Vec<_> = entries.filter(|one| !gid::is_link_local(&one.entry.gid)).collect();
            for one in &taken {
                slot.gids[one.index].clear();
                self.announce(control, event::GID_CHANGE, name);
            }
            Ok(taken)
        });
        taken.unwrap_or_default()
    }

    /// Puts them back, or what is there in their place by `change`; a `GID_CHANGE` each.
    pub(crate) fn return_gids(&self, name: PortName, taken: &[TakenGid], change: GidChange) {
        let _ = self.change(name, |slot, control| {
            for one in taken {
                let (index, entry) = replacement(slot, taken, *one, change);
                slot.gids[index].set(&entry);
                self.announce(control, event::GID_CHANGE, name);
            }
            Ok(())
        });
    }
}

/// The entry that stands for `one`, and its index. A table that has no other empty entry keeps the old one.
fn replacement(slot: &PortSlot, taken: &[TakenGid], one: TakenGid, change: GidChange) -> (usize, TypedGid) {
    match change {
        GidChange::Same => (one.index, one.entry),
        GidChange::Other => (one.index, TypedGid { gid: gid::renumbered(one.entry.gid), ..one.entry }),
        GidChange::Moved => {
            let is_new = |index: &usize| slot.gid(*index).is_none() && taken.iter().all(|old| old.index != *index);
            (1..slot.gids.len()).find(is_new).map_or((one.index, one.entry), |index| (index, one.entry))
        }
    }
}
