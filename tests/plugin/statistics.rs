//! The file of statistics that other processes read: what is counted, and what becomes of the file.

use crate::common::prelude::*;
use crate::common::process::is_worker;
use nccl_net::inspect::stats::histogram;
use nccl_net::inspect::stats::layout::{
    CLOSED, FILE_PREFIX, HEADER_WORDS, LAYOUT_MAJOR, LAYOUT_MINOR, MAGIC, OPEN, RECEIVER,
    RECORD_WORDS, SENDER, header, record,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Files of statistics in `folder`.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder)
        .expect("the folder")
        .map(|entry| entry.expect("it is readable").path());
    entries
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILE_PREFIX))
        })
        .collect()
}

/// The words of this process's own file. It is not opened in this process, which would lose its
/// lock.
pub(crate) fn own_words(folder: &Path) -> Vec<u64> {
    let mine = format!("{FILE_PREFIX}{}.", std::process::id());
    let path = files(folder)
        .into_iter()
        .find(|path| path.to_string_lossy().contains(&mine))
        .expect("a file");
    words(&path)
}

fn words(path: &Path) -> Vec<u64> {
    let bytes = std::process::Command::new("cat").arg(path).output().expect("cat").stdout;
    bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
        .collect()
}

pub(crate) fn records(words: &[u64]) -> impl Iterator<Item = &[u64]> {
    words[HEADER_WORDS..]
        .chunks_exact(RECORD_WORDS)
        .filter(|words| words[record::STATE] & 0xff == OPEN)
}

fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8(bytes).expect("text")
}

pub(crate) fn in_folder(setting: Setting, folder: &Scratch) -> Setting {
    setting.env("FERRITE_STATS_DIR", folder.path().to_str().expect("text"))
}

#[test]
fn each_end_of_a_connection_is_counted_and_knows_its_peer() -> Result<()> {
    const MESSAGES: u64 = 70;
    let folder = Scratch::new();
    let setting = in_folder(require!(setting()), &folder).env("FERRITE_SAMPLE", "4");
    pair(&setting, |worker| {
        let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
        set("RANK", ["40", "41"][worker.rank()]);
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        for round in 0..MESSAGES as usize {
            bench.exchange(worker, round, 1000, 1000)?;
        }
        let words = own_words(&folder);
        assert_eq!(
            (words[header::MAGIC], words[header::LAYOUT]),
            (MAGIC, LAYOUT_MAJOR << 32 | LAYOUT_MINOR)
        );
        assert_eq!(
            (words[header::PID], words[header::LABEL]),
            (std::process::id().into(), 41 + worker.rank() as u64)
        );
        assert_eq!(
            words.len() as u64,
            HEADER_WORDS as u64 + words[header::RECORDS] * RECORD_WORDS as u64
        );
        assert_eq!(
            (words[header::OWN_RANK], words[header::UNLISTED]),
            (4, 0),
            "all messages have tag 3"
        );
        let ends: Vec<_> = records(&words).collect();
        let mut directions: Vec<_> = ends.iter().map(|end| end[record::DIRECTION]).collect();
        directions.sort_unstable();
        assert_eq!(directions, [SENDER, RECEIVER]);
        for end in ends {
            assert_eq!([record::BEGUN, record::DONE].map(|at| end[at]), [MESSAGES; 2]);
            assert_eq!(end[record::BYTES], 1000 * MESSAGES);
            assert_eq!(end[record::PEER_LABEL], 42 - worker.rank() as u64);
            // Two counts in each word.
            let stages =
                end[record::HISTOGRAMS..].chunks_exact(histogram::WORDS).take(record::STAGES);
            let samples = |words: &[u64]| {
                words.iter().map(|word| (word >> 32) + (word & 0xffff_ffff)).sum::<u64>()
            };
            assert!(
                stages
                    .map(samples)
                    .all(|count| (MESSAGES / 4 - 1..=MESSAGES / 4 + 1).contains(&count))
            );
            let is_sender = end[record::DIRECTION] == SENDER;
            assert_eq!(end[if is_sender { record::OWN_RANK } else { record::PEER_RANK }], 4);
            assert_eq!((end[record::RAIL_COUNT], end[record::QP_COUNT]), (1, 1));
            let device = text(&end[record::DEVICE..][..record::DEVICE_WORDS]);
            assert_eq!(device, text(&end[record::RAIL_NAMES..][..record::RAIL_NAME_WORDS]));
            assert_eq!(
                end[record::PEER_HOST..][..record::PEER_HOST_WORDS],
                words[header::HOST..][..header::HOST_WORDS]
            );
        }
        drop(bench);
        let words = own_words(&folder);
        let closed = words[HEADER_WORDS..]
            .chunks_exact(RECORD_WORDS)
            .filter(|end| end[record::STATE] & 0xff == CLOSED);
        assert_eq!(closed.map(|end| end[record::DONE]).collect::<Vec<_>>(), [MESSAGES; 2]);
        let mode = |path: &PathBuf| {
            std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
        };
        assert!(files(&folder).iter().all(|path| mode(path) == 0o600));
        worker.barrier()
    })?;
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new(), "both processes have ended in order");
    Ok(())
}

#[test]
fn the_bytes_of_each_lane_are_counted_at_the_sender() -> Result<()> {
    const BYTES: usize = 1 << 20;
    let folder = Scratch::new();
    let setting = in_folder(require!(setting()), &folder).env("FERRITE_LANES", "4");
    pair(&setting, |worker| {
        let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
        let bench = Bench::open(worker, plugin_transport()?, BYTES + 64)?;
        bench.exchange(worker, 1, BYTES, BYTES)?;
        for end in records(&own_words(&folder)) {
            let (lanes, others) = end[record::LANE_BYTES..][..record::LANES].split_at(4);
            let expected = if end[record::DIRECTION] == SENDER { BYTES as u64 } else { 0 };
            assert_eq!((lanes.iter().sum::<u64>(), others.iter().sum::<u64>()), (expected, 0));
            assert!(
                expected == 0 || lanes.iter().all(|bytes| *bytes == BYTES as u64 / 4),
                "{lanes:?}"
            );
            assert_eq!((end[record::QP_COUNT], end[record::MOVES]), (4, 0));
        }
        worker.barrier()
    })?;
    Ok(())
}

/// NCCL calls nothing meanwhile: a watcher looks each second.
#[test]
fn a_receive_that_waits_is_counted_as_a_stall() -> Result<()> {
    let folder = Scratch::new();
    pair(&in_folder(require!(setting()), &folder), |worker| {
        let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
        let bench = Bench::open(worker, plugin_transport()?, 64)?;
        let mut deadline = worker.deadline("a message");
        let receive = posted(&mut deadline, || bench.link.recv.receive(&bench.into, 0, 8, 3))?;
        let stalls = || {
            records(&own_words(&folder))
                .map(|end| [record::DIRECTION, record::STALLS].map(|at| end[at]))
                .collect::<Vec<_>>()
        };
        wait_until("the receive has waited for a second", || stalls().contains(&[RECEIVER, 1]));
        assert!(stalls().contains(&[SENDER, 0]));
        worker.barrier()?;
        let send = posted(&mut deadline, || bench.link.send.send(&bench.out, 0, 8, 3))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])?;
        worker.barrier()
    })?;
    Ok(())
}

/// The process ends without its exit handlers, as one that is killed.
#[test]
fn the_file_of_a_process_that_is_killed_stays_with_what_was_outstanding() -> Result<()> {
    let folder = Scratch::new();
    let setting = in_folder(require!(setting()), &folder);
    let killed = pair::<()>(&setting, |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        bench.exchange(worker, 1, 1000, 1000)?;
        let _outstanding = bench.link.recv.receive(&bench.into, 0, 8, 3)?.expect("there is room");
        worker.barrier()?;
        // SAFETY: ends here.
        unsafe { libc::_exit(0) }
    });
    assert!(killed.is_err());
    let left = files(folder.path());
    assert_eq!(left.len(), 2);
    for path in left {
        let words = words(&path);
        let end =
            records(&words).find(|end| end[record::DIRECTION] == RECEIVER).expect("the receiver");
        assert_eq!((end[record::BEGUN], end[record::DONE]), (2, 1));
    }
    Ok(())
}

/// A job runs where no file can be created.
fn goes_on_without_a_file(folder: &str, why: &'static str) -> Result<()> {
    both(talkative(&[("FERRITE_STATS_DIR", folder)]), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        bench.exchange(worker, 1, 1000, 1000)?;
        assert!(said(&["no statistics for `ferrite top`", why]), "{}", log());
        Ok(())
    })
}

cases! { Result<()>;
    without_the_folder_there_is_no_file_and_a_line_in_the_log =>
        goes_on_without_a_file("/no/such/folder", "No such file or directory");
    /// Writing to the memory of a file without blocks ends a process by a signal.
    on_a_full_file_system_there_is_no_file_and_a_line_in_the_log => in_file_system_of("4k");
    /// NCCL needs room for itself.
    on_a_file_system_of_which_it_would_take_most_there_is_no_file_and_a_line_in_the_log =>
        in_file_system_of("12k");
}

fn in_file_system_of(size: &str) -> Result<()> {
    let folder = Scratch::new();
    let path = folder.path().to_str().expect("text").to_owned();
    let mount = |arguments: &[&str]| {
        std::process::Command::new(arguments[0]).args(&arguments[1..]).output()
    };
    // A worker gets the folder of the process that has started it, and does not come back from
    // the next function.
    if !is_worker() {
        let mounted =
            mount(&["mount", "-t", "tmpfs", "-o", &format!("size={size}"), "none", &path]);
        if !mounted.is_ok_and(|output| output.status.success()) {
            require!(Err::<(), _>(Missing::new("no file system can be mounted here")));
        }
    }
    let outcome = goes_on_without_a_file(&path, "less than half of the file system would be left");
    let _ = mount(&["umount", &path]);
    outcome
}

#[test]
fn with_ferrite_stats_0_there_is_no_file() -> Result<()> {
    let folder = Scratch::new();
    let setting = in_folder(require!(setting()), &folder).env("FERRITE_STATS", "0");
    pair(&setting, |worker| {
        let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
        let bench = Bench::open(worker, plugin_transport()?, 1 << 16)?;
        bench.exchange(worker, 1, 1000, 1000)?;
        assert_eq!(files(&folder), Vec::<PathBuf>::new());
        worker.barrier()
    })?;
    Ok(())
}
