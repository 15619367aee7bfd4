//! The GID table of a port. It is cached: tables are long, and reading one for every connection
//! takes time.

use super::card::Card;
use crate::host::gid::{self, GidEntry, Preference};
use crate::host::sysfs;
use crate::verbs::context::Context;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The most entries of a table. The index of an entry is a byte.
const LONGEST_TABLE: i32 = 256;

/// The GID table of one port.
#[derive(Debug)]
pub struct GidTable {
    card: Arc<Card>,
    /// Port number, from 1.
    port: u8,
    cached: Mutex<Option<Cached>>,
}

#[derive(Debug)]
struct Cached {
    /// The device that the table was read from: a reopened one may have another table.
    context: Weak<Context>,
    /// [`Context::port_changes`] before the table was read.
    changes: Option<u32>,
    entries: Vec<GidEntry>,
}

/// A selected entry.
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// The entry.
    pub entry: GidEntry,
    /// The earlier entry for the same preference, if it differs.
    pub before: Option<GidEntry>,
}

impl GidTable {
    /// The table of port number `port` (from 1) of `card`.
    pub fn new(card: &Arc<Card>, port: u8) -> Self {
        Self { card: Arc::clone(card), port, cached: Mutex::default() }
    }

    fn context(&self) -> Arc<Context> {
        Arc::clone(&self.card.device().context)
    }

    /// Reads entry `index`. `None`: it is empty or, as in some containers, unreadable.
    pub fn entry(&self, index: i32) -> Option<GidEntry> {
        let context = self.context();
        let gid = context.gid(self.port, index)?;
        let roce_version =
            gid.roce_version.or_else(|| sysfs::roce_version(context.name(), self.port, index));
        Some(GidEntry { index: u8::try_from(index).ok()?, gid: gid.bytes, roce_version })
    }

    /// Reads the first `count` entries.
    pub fn read(&self, count: i32) -> Vec<GidEntry> {
        (0..count.min(LONGEST_TABLE)).filter_map(|index| self.entry(index)).collect()
    }

    /// The errno if one of the first `count` entries is unreadable.
    pub fn errno(&self, count: i32) -> Option<i32> {
        self.context().gid_errno(self.port, count.min(LONGEST_TABLE))
    }

    /// The best of the first `count` entries. Reads them again only if the table has changed.
    pub fn choose(&self, count: i32, want: &Preference) -> Option<Choice> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let context = self.context();
        let (changes, read_from) = (context.port_changes(), Arc::downgrade(&context));
        let is_current = |c: &&Cached| {
            changes.is_some() && c.changes == changes && Weak::ptr_eq(&c.context, &read_from)
        };
        let current = cached.as_ref().filter(is_current);
        let known = current.and_then(|c| gid::choose(&c.entries, want));
        // The event of a change may not have arrived yet, so this reads the entry itself again.
        if let Some(entry) =
            known.filter(|known| self.entry(i32::from(known.index)) == Some(*known))
        {
            return Some(Choice { entry, before: None });
        }
        let before = cached.take().and_then(|c| gid::choose(&c.entries, want));
        let entries = self.read(count);
        let chosen = gid::choose(&entries, want);
        *cached = Some(Cached { context: read_from, changes, entries });
        chosen.map(|entry| Choice { entry, before: before.filter(|before| *before != entry) })
    }

    /// The present index of the GID of `entry` among the first `count` entries. Compares the RoCE
    /// version too, since a table has a GID once for each version.
    pub fn index_of(&self, entry: &GidEntry, count: i32) -> Option<u8> {
        let context = self.context();
        let holds =
            |index: i32| context.gid(self.port, index).is_some_and(|g| g.bytes == entry.gid);
        let is_same = |index: &i32| {
            self.entry(*index).is_some_and(|e| GidEntry { index: entry.index, ..e } == *entry)
        };
        let known = Some(i32::from(entry.index)).filter(is_same);
        let found = known.or_else(|| {
            (0..count.min(LONGEST_TABLE)).find(|index| holds(*index) && is_same(index))
        });
        found.and_then(|index| u8::try_from(index).ok())
    }
}
