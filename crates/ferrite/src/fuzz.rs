//! What a fuzzer chooses the input of: files of statistics, which other processes write, and what
//! the doctors of several hosts say to each other.
//!
//! Each target takes any bytes, and panics if what has to hold does not. `scripts/fuzz.py` has
//! libFuzzer choose the bytes; a test runs the inputs that are kept in `tests/fuzz/corpus`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nccl_net::inspect::stats::layout::{
    HEADER_WORDS, LAYOUT_MAJOR, LAYOUT_MINOR, MAGIC, OPEN, RECEIVER, RECORD_WORDS, SENDER, header,
    record, text_words, timed,
};

use crate::hang::Finding;
use crate::top::openmetrics::Totals;
use crate::top::rates::{Sort, rows};
use crate::top::stats_file::{End, Process, Processes, StatsFile};
use crate::top::table::{Ports, View};
use crate::top::{openmetrics, table};
use crate::trace::{Recording, Timeline};
use crate::{hang, trace};

/// A target: it takes any bytes.
pub type Target = fn(&[u8]);

/// The targets, by name.
pub const TARGETS: [(&str, Target); 2] =
    [("stats", stats_target), ("doctor", crate::doctor::peers::fuzz::target)];

/// Words of a good file.
const WORDS: usize = HEADER_WORDS + RECORD_WORDS;
/// Bytes of a change.
const CHANGE: usize = 4;

/// Two looks at the files of two machines. The first byte says whether the rest is the first file
/// as it is; or else the second one says how much of the second file is there, and the rest is
/// changes of good files, half of them before the first look.
pub(crate) fn stats_target(bytes: &[u8]) {
    let Some(([kind, cut], rest)) = bytes.split_first_chunk() else { return };
    let sort =
        [Sort::P99, Sort::Gbps, Sort::Cts, Sort::Wait, Sort::Retries][usize::from(kind / 8) % 5];
    let mut looks =
        Looks { sort, before: None, totals: Totals::default(), recording: Recording::default() };
    if kind % 8 == 0 {
        return looks.look(&[rest.to_vec()]);
    }
    let mut words = [good(1), good(2)].concat();
    let changes: Vec<&[u8]> = rest.chunks_exact(CHANGE).collect();
    let (before, after) = changes.split_at(changes.len() / 2);
    for changes in [before, after] {
        changes.iter().for_each(|change| apply(&mut words, change));
        let mut files = words.chunks_exact(WORDS).map(bytes_of).collect::<Vec<_>>();
        let length = 8 * WORDS - usize::from(*cut) * WORDS / 32;
        files[1].truncate(length);
        looks.look(&files);
    }
}

/// A file of a process on the machine of this number with one end of a connection, which has timed
/// messages.
fn good(machine: u64) -> Vec<u64> {
    let mut words = vec![0; WORDS];
    for (at, value) in [
        (header::MAGIC, MAGIC),
        (header::LAYOUT, LAYOUT_MAJOR << 32 | LAYOUT_MINOR),
        (header::HEADER_BYTES, HEADER_WORDS as u64 * 8),
        (header::RECORD_BYTES, RECORD_WORDS as u64 * 8),
        (header::RECORDS, 1),
        (header::PID, 800 + machine),
        (header::LABEL, machine),
        (header::SAMPLE, 64),
        (header::BOOT, machine),
        (HEADER_WORDS + record::STATE, 0x100 | OPEN),
        (HEADER_WORDS + record::DIRECTION, if machine == 1 { SENDER } else { RECEIVER }),
        (HEADER_WORDS + record::CONNECTION, 5),
        (HEADER_WORDS + record::RAIL_COUNT, 2),
        (HEADER_WORDS + record::QP_COUNT, 4),
        (HEADER_WORDS + record::LANE_BYTES, 1000),
    ] {
        words[at] = value;
    }
    for message in 0..3 {
        let place = HEADER_WORDS + record::TIMED + message as usize * timed::WORDS;
        let times = [message + 1, 1000 * (message + 1), 10, 20, 30, 1 << 56 | 4096, 0, message + 1];
        words[place..][..timed::WORDS].copy_from_slice(&times);
    }
    for (at, text, count) in [
        (header::HOST, "n-0411", header::HOST_WORDS),
        (HEADER_WORDS + record::DEVICE, "mlx5_3", record::DEVICE_WORDS),
        (HEADER_WORDS + record::PEER_HOST, "n-0412", record::PEER_HOST_WORDS),
    ] {
        words[at..][..count]
            .iter_mut()
            .zip(text_words(text, count))
            .for_each(|(word, value)| *word = value);
    }
    words
}

/// A change: two bytes say which word, one how, and one to what.
fn apply(words: &mut [u64], change: &[u8]) {
    let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % words.len();
    let (how, value) = (change[2], u64::from(change[3]));
    let byte = u32::from(how / 8 % 8) * 8;
    words[at] = match how % 8 {
        0 => value,
        1 => u64::MAX - value,
        2 => 1 << (value % 64),
        3 => (1 << (value % 64)) - 1,
        4 => words[at].wrapping_add(value),
        5 => words[at].rotate_left(8) | value,
        6 => words[(at + change[3] as usize) % words.len()],
        _ => words[at] & !(0xff << byte) | value << byte,
    };
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// What commands keep from one look to the next.
struct Looks {
    sort: Sort,
    before: Option<Processes>,
    totals: Totals,
    recording: Recording,
}

impl Looks {
    /// All that is shown can be: no control characters, and formats that others read are kept.
    fn look(&mut self, files: &[Vec<u8>]) {
        let now = self.processes(files);
        let mut rows = rows(self.before.as_ref(), &now);
        self.sort.apply(&mut rows);
        let (ports, port_rates) = (Ports::new(), BTreeMap::new());
        let view = View {
            now: &now,
            rows: &rows,
            ports: &ports,
            port_rates: &port_rates,
            sort: self.sort,
            width: 80,
            has_keys: true,
        };
        check_text(&view.text(usize::MAX));
        check_json(&openmetrics::line(&view));
        check_text(&table::text(&rows));
        self.totals.add(&now);
        let metrics = self.totals.text(&now, &ports);
        check_text(&metrics);
        for line in metrics.lines().filter(|line| !line.starts_with("# ")) {
            assert!(
                line.rsplit(' ').next().is_some_and(|value| value.parse::<f64>().is_ok()),
                "{line}"
            );
        }
        self.check_timeline();
        for process in now.living.values() {
            let connections = hang::open_connections(&process.file);
            check_text(&Finding::of_connections(connections).text());
        }
        self.before = Some(now);
    }

    fn processes(&mut self, files: &[Vec<u8>]) -> Processes {
        let at = self
            .before
            .as_ref()
            .map_or_else(Instant::now, |before| before.at + Duration::from_secs(1));
        let mut now =
            Processes { at, living: BTreeMap::new(), dead: Vec::new(), unreadable: Vec::new() };
        for (number, bytes) in files.iter().enumerate() {
            let path = PathBuf::from(number.to_string());
            match StatsFile::parse(bytes) {
                Ok(mut file) => {
                    file.is_alive = true;
                    self.recording.add(path.clone(), &file);
                    let ends =
                        file.records().map(|(number, words)| End::new(number, words)).collect();
                    now.living.insert(path, Process { file, ends });
                }
                Err(why) => now.unreadable.push((path, why)),
            }
        }
        now
    }

    fn check_timeline(&self) {
        let timeline = Timeline::new(&self.recording);
        check_json(&trace::document(&timeline).to_string());
        check_text(&trace::table(&timeline, 100));
        check_text(&trace::advice(&timeline).unwrap_or_default());
        timeline
            .clock_lines()
            .iter()
            .chain(self.recording.unused.values())
            .for_each(|line| check_text(line));
    }
}

fn check_text(text: &str) {
    assert!(text.lines().all(|line| !line.contains(char::is_control)), "{text:?}");
}

fn check_json(text: &str) {
    assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_words_of_doctors_that_are_kept_break_nothing() {
        for (name, target) in TARGETS {
            for input in testkit::corpus::kept_inputs(name) {
                println!("{name}: {input:?}");
                target(&input);
            }
        }
    }

    #[test]
    fn any_bytes_are_an_input() {
        let mut random = fastrand::Rng::with_seed(1);
        for (_, target) in TARGETS {
            for length in 0..40 {
                target(&std::iter::repeat_with(|| random.u8(..)).take(length).collect::<Vec<_>>());
            }
        }
    }

    /// Every word of the records, and of the ends without a record, is the highest number, but for
    /// those that say what it is.
    #[test]
    fn the_highest_numbers_are_shown() {
        let is_kept =
            |at: &usize| [record::STATE, record::DIRECTION, record::CONNECTION].contains(at);
        let words = (0..RECORD_WORDS)
            .filter(|at| !is_kept(at))
            .map(|at| HEADER_WORDS + at)
            .chain([header::UNLISTED]);
        let places = words.flat_map(|at| [at, WORDS + at]);
        let highest = places.map(|at| (at, 1, 0));
        // Both ends send, so that they are added up.
        let changes = highest.chain([(WORDS + HEADER_WORDS + record::DIRECTION, 0, SENDER as u8)]);
        let changes: Vec<u8> =
            changes.flat_map(|(at, how, value)| [at as u8, (at >> 8) as u8, how, value]).collect();
        for sort in 0..5 {
            stats_target(&[&[sort << 3 | 1, 0], &changes[..], &changes[..]].concat());
        }
    }
}
