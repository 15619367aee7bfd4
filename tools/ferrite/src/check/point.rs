//! What a point is, and all of them.

use std::fmt;

use crate::check::stage::Stage;
use crate::check::verdict::Finding;
use crate::check::{connection, datapath, faults, loading, order, peers, properties, registration, settings, teardown};
use crate::error::{Error, Result};

/// Something that a transport has to keep.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// 1 to 60; the same point has the same number for ever.
    pub number: u32,
    /// For `--only`.
    pub name: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// How it is tried.
    pub trial: Trial,
}

/// How a point is tried.
#[derive(Debug, Clone, Copy)]
pub enum Trial {
    /// In these acts, one after the other, until one fails.
    Acts(&'static [Act]),
    /// Not by this tool: it needs this.
    Needs(&'static str),
}

/// One pair of fresh processes.
#[derive(Clone, Copy)]
pub struct Act {
    /// What it is like where they are.
    pub scene: Scene,
    /// What each of them does.
    pub play: fn(&mut Stage<'_>) -> Result<Finding>,
}

impl fmt::Debug for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Act").field("scene", &self.scene).finish_non_exhaustive()
    }
}

/// A variable and its value.
pub type Variable = (&'static str, &'static str);

/// What it is like where the processes are.
#[derive(Debug, Clone, Copy)]
pub struct Scene {
    /// Variables of both processes.
    pub env: &'static [Variable],
    /// Variables of rank 1, besides.
    pub rank1: &'static [Variable],
    /// Whether sysfs shows the devices.
    pub host: Host,
    /// Rank 0 does everything; rank 1 only waits.
    pub alone: bool,
    /// Calls the functions of version 8 by itself.
    pub raw: bool,
    /// A process that is silent for so long counts as hung; s.
    pub patience: u64,
    /// Only with `--long`.
    pub long: bool,
}

impl Scene {
    /// Whether it takes a software device to set it up.
    pub fn is_made_up(&self) -> bool {
        let names_one = |(name, value): &Variable| {
            let is_taste = matches!(*name, "SOFTRNIC_STRICT" | "SOFTRNIC_LINES");
            value.contains("softrnic") || name.starts_with("SOFTRNIC_") && !is_taste
        };
        self.host == Host::Faithful || self.env.iter().chain(self.rank1).any(names_one)
    }
}

/// What the machine seems to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// Software devices that sysfs does not show, unless there are two rails.
    Plain,
    /// Software devices in sysfs.
    Faithful,
    /// No libibverbs that could be loaded.
    WithoutVerbs,
}

/// Both ranks work.
pub const TWO: Scene =
    Scene { env: &[], rank1: &[], host: Host::Plain, alone: false, raw: false, patience: 20, long: false };
/// Rank 0 works.
pub const ALONE: Scene = Scene { alone: true, ..TWO };

/// All points, by number.
pub fn all() -> Vec<Point> {
    let chapters = [
        loading::POINTS,
        properties::POINTS,
        connection::POINTS,
        peers::POINTS,
        registration::POINTS,
        datapath::POINTS,
        order::POINTS,
        teardown::POINTS,
        faults::POINTS,
        settings::POINTS,
    ];
    let mut all = chapters.concat();
    all.sort_by_key(|point| point.number);
    all
}

/// The points that `words` name, by number or by name; all for none.
///
/// # Errors
/// [`Error::Usage`] for a word that names none.
pub fn chosen(words: &[String]) -> Result<Vec<Point>> {
    let all = all();
    let named = |point: &Point, word: &str| point.name == word || word.parse() == Ok(point.number);
    if let Some(stranger) = words.iter().find(|word| !all.iter().any(|point| named(point, word))) {
        return Err(Error::Usage(format!("there is no check {stranger}; --list names all")));
    }
    let chosen = |point: &Point| words.is_empty() || words.iter().any(|word| named(point, word));
    Ok(all.into_iter().filter(chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixty_with_names_of_their_own() {
        let all = all();
        assert_eq!(all.iter().map(|point| point.number).collect::<Vec<_>>(), (1..=60).collect::<Vec<_>>());
        let mut names: Vec<_> = all.iter().map(|point| point.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 60);
        let tidy = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c.is_ascii_digit());
        assert!(names.iter().all(|name| tidy(name) && name.parse::<u32>().is_err()));
    }

    #[test]
    fn settings_that_other_devices_do_not_read_keep_no_point_from_them() {
        let made_up = |env| Scene { env, ..TWO }.is_made_up();
        assert!(!made_up(&[("SOFTRNIC_LINES", "1")]) && !made_up(&[("SOFTRNIC_STRICT", "0")]));
        assert!(made_up(&[("SOFTRNIC_FAULTS", "drop")]) && made_up(&[("NCCL_IB_HCA", "softrnic1")]));
    }

    #[test]
    fn points_are_chosen_by_number_or_name() {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let numbers = |list: &[&str]| chosen(&words(list)).map(|c| c.iter().map(|p| p.number).collect::<Vec<_>>());
        assert_eq!(numbers(&["57", "abi-layout"]).ok(), Some(vec![1, 57]));
        assert!(numbers(&["0"]).is_err() && numbers(&["nonsense"]).is_err());
        assert_eq!(numbers(&[]).map(|all| all.len()).ok(), Some(60));
    }
}
