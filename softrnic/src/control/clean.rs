//! What fabrics leave behind when all their processes are killed.

use std::io;
use std::path::Path;

use crate::control::error::Error;
use crate::shm::holders::{self, Remains};

/// The file of a fabric.
#[derive(Debug)]
pub struct Found {
    /// Name of the fabric.
    pub name: String,
    /// What became of it.
    pub fate: Fate,
}

/// What [`clean`] did with a fabric.
#[derive(Debug)]
pub enum Fate {
    /// It has no process, and [`remains`] leaves it there; how many bytes of storage it has.
    Dead(u64),
    /// It had no process, and is gone; how many bytes of storage it had.
    Removed(u64),
    /// Some process takes part in it. It is as it was.
    InUse,
    /// It could not be looked at or removed.
    Failed(io::Error),
}

/// Removes the fabrics in the folder `dir` that are this user's, whose names are `wanted` and in which no process takes
/// part, whatever its process id namespace. Returns all that there were, by name. This process must not take part in one
/// of them.
pub fn clean(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    each(dir, wanted, true)
}

/// The same without removing anything: what [`clean`] would remove has [`Fate::Dead`].
pub fn remains(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    each(dir, wanted, false)
}

fn each(dir: &Path, wanted: impl Fn(&str) -> bool, is_removed: bool) -> Result<Vec<Found>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|error| Error::System(dir.to_owned(), error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
    names.sort_unstable();
    Ok(names.into_iter().filter_map(|name| one(dir, name, is_removed)).collect())
}

fn one(dir: &Path, name: String, is_removed: bool) -> Option<Found> {
    let fate = match holders::look(&dir.join(&name), is_removed) {
        Ok(Remains::NotOurs) => return None,
        Ok(Remains::Held) => Fate::InUse,
        Ok(Remains::Dead(bytes)) => Fate::Dead(bytes),
        Ok(Remains::Removed(bytes)) => Fate::Removed(bytes),
        Err(error) => Fate::Failed(error),
    };
    Some(Found { name, fate })
}
