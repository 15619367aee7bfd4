//! What was timed in all processes, gathered over a time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::timed::Timed;
use crate::top::end::End;
use crate::top::stats_file::StatsFile;
use nccl_net::inspect::stats::layout::{FILE_PREFIX, LAYOUT_MAJOR, header, record};

/// The messages of all processes.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// By file.
    pub(crate) processes: BTreeMap<PathBuf, Process>,
    /// Files that are not used, and why.
    pub(crate) unused: BTreeMap<PathBuf, String>,
    /// Files of processes that had ended before.
    pub(crate) left_out: BTreeSet<PathBuf>,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Process id.
    pub(crate) pid: u64,
    /// Its rank: its launcher's word, or else what its sends tell.
    pub(crate) rank: Option<u64>,
    /// Host name.
    pub(crate) host: String,
    /// One in so many messages is timed.
    pub(crate) sample: u64,
    /// Whether it lived when it was last looked at.
    pub(crate) is_alive: bool,
    /// Names the monotonic clock that its times are by: processes with the same one have the same clock.
    pub(crate) clock: String,
    /// The time of day at that clock's zero, in nanoseconds since 1970.
    pub(crate) zero: i64,
    /// Its ends, by number and generation of the record.
    pub(crate) ends: BTreeMap<(usize, u64), TimedEnd>,
}

/// One end of a connection, and its messages.
#[derive(Debug)]
pub(crate) struct TimedEnd {
    /// The end.
    pub(crate) end: End,
    /// A number that both ends of a connection have; 0: it is not known.
    pub(crate) connection: u64,
    /// By number.
    pub(crate) messages: BTreeMap<u64, Timed>,
}

impl Recording {
    /// Looks once more at the files of `folder`; unless `only` is empty, at those of the processes with these ids.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn look(&mut self, folder: &Path, only: &[u64]) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILE_PREFIX)) {
                continue;
            }
            if self.left_out.contains(&path) {
                continue;
            }
            match StatsFile::read(&path) {
                Ok(file) if !only.is_empty() && !only.contains(&file.pid()) => {}
                Ok(file) => self.add(path, &file),
                // It has ended meanwhile.
                Err(_) if !path.exists() => {}
                Err(why) => drop(self.unused.insert(path, why)),
            }
        }
        Ok(())
    }

    /// Adds what is in a file.
    pub(crate) fn add(&mut self, path: PathBuf, file: &StatsFile) {
        let why = match (file.has_timed_messages(), file.word(header::SAMPLE)) {
            (false, _) => Some(format!(
                "layout {LAYOUT_MAJOR}.{}, of a Ferrite that keeps no timed messages",
                file.word(header::LAYOUT) & 0xffff_ffff
            )),
            (true, 0) => Some("no message is timed: FERRITE_SAMPLE is 0 there".into()),
            _ => None,
        };
        if let Some(why) = why {
            self.unused.insert(path, why);
            return;
        }
        self.unused.remove(&path);
        let process = self.processes.entry(path).or_insert_with(|| Process::new(file));
        process.add(file);
    }

    /// Leaves out the processes of `folder` that have ended, unless all have: their messages are of another job. They count as long as they
    /// live while it is looked.
    pub(crate) fn leave_out_dead(&mut self, folder: &Path) {
        let is_here = |path: &PathBuf| path.parent() == Some(folder);
        let of_here = || self.processes.iter().filter(|(path, _)| is_here(path));
        if of_here().any(|(_, process)| process.is_alive) {
            let dead: Vec<_> =
                of_here().filter(|(_, process)| !process.is_alive).map(|(path, _)| path.clone()).collect();
            self.processes.retain(|path, _| !dead.contains(path));
            self.left_out.extend(dead);
        }
    }

    /// Forgets the messages of living processes that were complete before `time`, by this machine's monotonic clock.
    pub(crate) fn forget_before(&mut self, time: i64) {
        let ends = self.processes.values_mut().filter(|process| process.is_alive).flat_map(|one| one.ends.values_mut());
        ends.for_each(|end| end.messages.retain(|_, message| message.at >= time));
    }

    /// Messages at both ends: one that was timed at both counts twice.
    pub(crate) fn len(&self) -> usize {
        self.ends().map(|(_, end)| end.messages.len()).sum()
    }

    /// All ends, with their processes.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (&Process, &TimedEnd)> {
        self.processes.values().flat_map(|process| process.ends.values().map(move |end| (process, end)))
    }
}

impl Process {
    fn new(file: &StatsFile) -> Self {
        let [high, low] = std::array::from_fn(|word| file.word(header::BOOT + word));
        let zero = file.word(header::CREATED).wrapping_sub(file.word(header::CREATED_MONOTONIC)) as i64;
        let clock = if (high, low) == (0, 0) { file.host() } else { format!("{high:016x}{low:016x}") };
        Self {
            pid: file.pid(),
            rank: None,
            host: file.host(),
            sample: file.word(header::SAMPLE),
            is_alive: false,
            clock,
            zero,
            ends: BTreeMap::new(),
        }
    }

    fn add(&mut self, file: &StatsFile) {
        (self.is_alive, self.rank) = (file.is_alive, file.rank());
        for (number, words) in file.records() {
            let end = End::new(number, words);
            let connection = words[record::CONNECTION];
            let known = self.ends.entry((number, end.generation)).or_insert_with(|| TimedEnd {
                end: end.clone(),
                connection,
                messages: BTreeMap::new(),
            });
            known.end = end;
            // Of a receiver the last stage may be known only now.
            known.messages.extend(Timed::all(words).map(|message| (message.number, message)));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::top::stats_file::tests::{example, parsed};
    use crate::trace::timed::tests::words;
    use nccl_net::inspect::stats::layout::{FIRST_RECORD_WORDS, HEADER_WORDS, RECORD_WORDS, timed};

    /// A file in which the first end has these messages: number, completion, stages.
    pub(crate) fn with_messages(messages: &[(u64, u64, [u64; 3])]) -> Vec<u64> {
        let mut file = example();
        for (place, (number, at, stages)) in messages.iter().enumerate() {
            let start = HEADER_WORDS + record::TIMED + place * timed::WORDS;
            file[start..start + timed::WORDS].copy_from_slice(&words(*number, *at, *stages));
        }
        file
    }

    fn numbers(recording: &Recording) -> Vec<u64> {
        recording.ends().flat_map(|(_, end)| end.messages.keys().copied()).collect()
    }

    #[test]
    fn messages_that_the_plugin_has_overwritten_between_two_looks_are_kept() {
        let mut recording = Recording::default();
        for first in [1, 3] {
            let file = with_messages(&[(first, 100 * first, [1; 3]), (first + 1, 100 * first + 50, [1; 3])]);
            recording.add("file".into(), &parsed(&file));
        }
        assert_eq!((numbers(&recording), recording.len()), (vec![1, 2, 3, 4], 4));
        recording.forget_before(300);
        assert_eq!(numbers(&recording), [1, 2, 3, 4], "the process is dead");
        recording.processes.values_mut().for_each(|process| process.is_alive = true);
        recording.forget_before(300);
        assert_eq!(numbers(&recording), [3, 4]);
    }

    #[test]
    fn a_record_that_another_end_gets_is_another_end() {
        let mut recording = Recording::default();
        let mut file = with_messages(&[(1, 100, [1; 3])]);
        recording.add("file".into(), &parsed(&file));
        file[HEADER_WORDS + record::STATE] += 0x100;
        file[HEADER_WORDS + record::CONNECTION] = 9;
        recording.add("file".into(), &parsed(&file));
        let connections: Vec<_> = recording.ends().map(|(_, end)| end.connection).collect();
        assert_eq!(connections, [0, 9]);
    }

    #[test]
    fn files_without_timed_messages_are_named_with_the_reason() {
        let mut old = example();
        old[header::LAYOUT] = LAYOUT_MAJOR << 32 | 1;
        old[header::RECORD_BYTES] = FIRST_RECORD_WORDS as u64 * 8;
        let mut untimed = example();
        untimed[header::SAMPLE] = 0;
        let mut recording = Recording::default();
        recording.add("old".into(), &parsed(&old));
        recording.add("untimed".into(), &parsed(&untimed));
        let why: Vec<_> = recording.unused.values().cloned().collect();
        assert!(recording.processes.is_empty() && why[0].contains("layout 1.1, of a Ferrite"), "{why:?}");
        assert!(why[1].contains("FERRITE_SAMPLE is 0"), "{why:?}");
        recording.add("old".into(), &parsed(&example()));
        assert_eq!(recording.unused.len(), 1, "it has another file now");
    }

    #[test]
    fn any_words_are_taken_or_not() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..100 {
            let mut file = with_messages(&[(1, 100, [1; 3]); 25]);
            for _ in 0..random.usize(1..60) {
                let at = HEADER_WORDS + random.usize(0..RECORD_WORDS);
                file[at] = [random.u64(..), 0, 1, u64::MAX, 1 << 59, (1 << 59) - 1][random.usize(..6)];
            }
            let mut recording = Recording::default();
            recording.add("file".into(), &parsed(&file));
            assert!(recording.len() <= 25);
        }
    }
}
