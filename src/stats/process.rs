//! The one table of records of this process.

use super::file::{Header, Words};
use super::layout::{SEVERAL, header};
use super::table::{ProcessInfo, Table};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `None`: nothing has been opened yet.
static TABLE: Mutex<Option<Table>> = Mutex::new(None);
/// As [`header::OWN_RANK`].
static OWN_RANK: AtomicU64 = AtomicU64::new(0);
/// One in this many messages is timed. 0: none, since nobody can read the times.
static INTERVAL: AtomicU32 = AtomicU32::new(0);
/// The process that created the file, and the header.
static HEADER: OnceLock<(u32, &'static Header)> = OnceLock::new();

/// The folder of the file if the user names none.
pub const DEFAULT_FOLDER: &str = "/dev/shm";

/// Puts the records into a file in `folder`. Must be called before the first connection; later
/// calls do nothing. Without a file, records are in private memory.
///
/// # Errors
/// The file cannot be created. Not fatal.
pub fn open_file(folder: &str, process: &ProcessInfo) -> Result<(), String> {
    let mut table = lock();
    if table.is_none() {
        let made = table.insert(Table::in_file(Path::new(folder), process)?);
        INTERVAL.store(process.sample, Ordering::Relaxed);
        HEADER.get_or_init(|| (made.owner, made.header));
    }
    Ok(())
}

/// The rank in the tags of this process's sends, if all have the same.
pub fn own_rank() -> Option<u32> {
    match OWN_RANK.load(Ordering::Relaxed) {
        0 | SEVERAL => None,
        rank => Some(rank as u32 - 1),
    }
}

/// One in this many messages is timed; 0: none.
pub(super) fn interval() -> u32 {
    INTERVAL.load(Ordering::Relaxed)
}

/// Looks for stalled ends, at most every half second. Called every second. Returns whether any end
/// is stalled.
pub fn check_stalls() -> bool {
    lock()
        .as_mut()
        .filter(|table| table.owner == std::process::id())
        .is_some_and(Table::check_stalls)
}

/// A send of this process has this rank as its tag.
pub(super) fn handle_own_rank(rank: u32) {
    let rank = u64::from(rank) + 1;
    let told = match OWN_RANK.load(Ordering::Relaxed) {
        0 => rank,
        known if known == rank || known == SEVERAL => return,
        _ => SEVERAL,
    };
    OWN_RANK.store(told, Ordering::Relaxed);
    if let Some((_, words)) = HEADER.get().filter(|(owner, _)| *owner == std::process::id()) {
        words[header::OWN_RANK].store(told, Ordering::Relaxed);
    }
}

/// A free record and its number.
pub(super) fn take_record() -> (usize, &'static Words) {
    let mut table = lock();
    // A forked child does not touch its parent's file.
    let is_own = |table: &Table| table.owner == std::process::id();
    if !table.as_ref().is_some_and(is_own) {
        *table = None;
    }
    table.get_or_insert_with(Table::private).take()
}

/// The end with record `number` is closed.
pub(super) fn give_record_back(number: usize, words: &Words) {
    if let Some(table) = lock().as_mut().filter(|table| table.owner == std::process::id()) {
        table.give_back(number, words);
    }
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}
