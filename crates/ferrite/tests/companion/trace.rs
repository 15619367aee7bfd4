//! `ferrite trace` on processes that run or were killed, on files of several machines, and on files
//! that are none.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use lab::error::Result;
use lab::nccl::library::Source;
use lab::pair;
use lab::pair::{PeerConn, Setting, WorkerCtx};
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::deadline::{finished, posted};
use lab::verbs::Verbs;
use nccl_net::inspect::stats::layout::{
    CHUNK_RECORDS, FILE_PREFIX, FIRST_RECORD_WORDS, HEADER_WORDS, LAYOUT_MAJOR, LAYOUT_MINOR,
    MAGIC, OPEN, RECORD_WORDS, SENDER, header, record, timed,
};
use serde_json::Value;
use testkit::dist::{plugin, softrnic_library_folder};
use testkit::{Missing, Scratch, program, require, test_name};

/// Messages each way. One in four is timed, from number 1 on.
const MESSAGES: usize = 70;

/// Two processes over the software device, whose files are in `folder`.
fn setting(folder: &Path) -> Result<Setting, Missing> {
    plugin()?;
    let verbs = Verbs::softrnic(&softrnic_library_folder()?).expect("it is there");
    let folder = folder.to_str().expect("text");
    Ok(Setting::new(verbs).env("FERRITE_STATS_DIR", folder).env("FERRITE_SAMPLE", "4"))
}

/// Sends messages each way, and calls `then` while the connections stand.
fn job(worker: &mut WorkerCtx, then: impl FnOnce(&mut WorkerCtx) -> Result<()>) -> Result<()> {
    // SAFETY: the process has one thread that looks at the environment: this one.
    unsafe { std::env::set_var("RANK", ["40", "41"][worker.rank()]) };
    let transport = Transport::open(&Source::plugin(plugin().expect("it is there")))?;
    let device = worker.rank().min(transport.devices()? - 1);
    let link = PeerConn::open(worker, &transport, device)?;
    let (mine, theirs) = (Arc::new(Buffer::new(4096)?), Arc::new(Buffer::new(4096)?));
    let (out, into) = (link.send.register(&mine)?, link.recv.register(&theirs)?);
    let mut deadline = worker.deadline("messages");
    for _ in 0..MESSAGES {
        let receive = posted(&mut deadline, || link.recv.receive(&into, 0, 4096, 3))?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, 1000, 3))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])?;
    }
    worker.barrier()?;
    then(worker)?;
    drop((out, into));
    link.close()
}

/// What `ferrite trace` did with these arguments: exit code, what it printed, and the timeline if
/// it wrote one.
fn trace(arguments: &[&str]) -> (i32, String, Option<Value>) {
    let scratch = Scratch::new();
    let file = scratch.join("out.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
    command.arg("trace").args(arguments).arg("--output").arg(&file).env_remove("FERRITE_STATS_DIR");
    let (code, stdout, stderr) = program::run(&mut command).into_parts();
    let written = std::fs::read_to_string(&file)
        .ok()
        .map(|text| serde_json::from_str(&text).expect("it is JSON"));
    (code, stdout + &stderr, written)
}

fn events(timeline: &Value) -> &Vec<Value> {
    timeline["traceEvents"].as_array().expect("events")
}

fn of_phase<'a>(timeline: &'a Value, phase: &'a str) -> impl Iterator<Item = &'a Value> {
    events(timeline).iter().filter(move |event| event["ph"] == phase)
}

fn number(event: &Value, name: &str) -> f64 {
    event[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {event}"))
}

/// The name of an arrow, and the track and the time of one of its ends.
type ArrowEnd<'a> = (&'a Value, (u64, u64), f64);

/// What Perfetto needs: known events with numbers, slices of a track that are apart or within each
/// other, arrows that begin and end, in this order.
fn check(timeline: &Value) {
    let mut slices: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, BTreeMap<&str, ArrowEnd<'_>>> = BTreeMap::new();
    let mut named = BTreeSet::new();
    for event in events(timeline) {
        let track = (number(event, "pid") as u64, number(event, "tid") as u64);
        assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        match event["ph"].as_str() {
            Some("M") => drop(named.insert(track)),
            Some("X") => {
                let (begin, duration) = (number(event, "ts"), number(event, "dur"));
                assert!(begin >= 0.0 && duration >= 0.0, "{event}");
                slices.entry(track).or_default().push((begin, begin + duration));
            }
            Some(phase @ ("s" | "f")) => {
                let end = (&event["name"], track, number(event, "ts"));
                arrows.entry(number(event, "id") as u64).or_default().insert(phase, end);
            }
            _ => panic!("an unknown event: {event}"),
        }
    }
    for (track, slices) in &slices {
        assert!(named.contains(track), "track {track:?} has no name");
        for (at, (begin, end)) in slices.iter().enumerate() {
            // The numbers have three digits behind the point.
            let is_apart =
                |(other, until): &(f64, f64)| other + 0.001 >= *end || until - 0.001 <= *begin;
            let is_nested = |(other, until): &(f64, f64)| {
                *other >= begin - 0.001 && *until <= end + 0.001
                    || *begin >= other - 0.001 && *end <= until + 0.001
            };
            assert!(
                slices[at + 1..].iter().all(|one| is_apart(one) || is_nested(one)),
                "slices of {track:?} overlap"
            );
        }
    }
    for arrow in arrows.values() {
        assert!(arrow.len() == 2, "an arrow without one of its ends: {arrow:?}");
        let ((name, track, from), (_, _, to)) = (arrow["s"], arrow["f"]);
        // A sender may be held up before it notes that it has sent, but `isend` was called before
        // anything arrived.
        let of_message = |slice: &&(f64, f64)| slice.0 <= from + 0.002 && from <= slice.1 + 0.002;
        let called =
            slices[&track].iter().filter(of_message).map(|slice| slice.0).fold(from, f64::min);
        let earliest = if name == "message" { called } else { from };
        assert!(earliest <= to + 0.002, "an arrow that leads back: {arrow:?}");
    }
}

/// The names of the processes, or of the tracks.
fn names(timeline: &Value, of: &str) -> Vec<String> {
    let metadata = of_phase(timeline, "M").filter(|event| event["name"] == of);
    metadata.map(|event| event["args"]["name"].as_str().expect("a name").to_owned()).collect()
}

/// The timed messages of each track, without their stages.
fn messages(timeline: &Value) -> BTreeMap<u64, Vec<u64>> {
    let mut messages: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for slice in of_phase(timeline, "X") {
        if let Some(message) = slice["args"]["message"].as_u64() {
            messages.entry(number(slice, "tid") as u64).or_default().push(message);
        }
    }
    messages
}

/// Numbers 1, 5, … 69, as there are 70 messages.
fn expected() -> Vec<u64> {
    (1..MESSAGES as u64).step_by(4).collect()
}

#[test]
fn a_running_job_has_a_track_for_each_end_and_arrows_between_them() -> Result<()> {
    let folder = Scratch::new();
    let setting = require!(setting(folder.path()));
    pair::run(&test_name(), &setting, |worker| {
        job(worker, |worker| {
            if worker.rank() == 0 {
                let folder = std::env::var("FERRITE_STATS_DIR").expect("it is set");
                let (code, printed, written) = trace(&["--seconds", "0", "--folder", &folder]);
                assert_eq!(code, 0, "{printed}");
                let timeline = written.expect("it was written");
                check(&timeline);
                let processes = names(&timeline, "process_name");
                assert!(
                    processes.len() == 2 && processes[0].starts_with("rank 40, "),
                    "{processes:?}"
                );
                let ends = names(&timeline, "thread_name");
                let words = ["to rank 41", "from rank 41", "to rank 40", "from rank 40"];
                assert!(
                    ends.len() == 4
                        && ends.iter().zip(words).all(|(end, word)| end.starts_with(word)),
                    "{ends:?}"
                );
                let of_ends = messages(&timeline);
                assert!(
                    of_ends.len() == 4 && of_ends.values().all(|one| *one == expected()),
                    "{of_ends:?}"
                );
                // Two arrows for each message of two connections.
                assert_eq!(of_phase(&timeline, "f").count(), 2 * 2 * expected().len());
                assert!(printed.contains("36 timed message(s), one in 4 is timed; "), "{printed}");
                assert!(printed.contains("; 2 connection(s) with both ends, "), "{printed}");
                let pid = std::process::id().to_string();
                let (code, printed, written) =
                    trace(&["--seconds", "0", "--folder", &folder, &pid]);
                assert_eq!(
                    (code, names(&written.expect("written"), "process_name").len()),
                    (0, 1),
                    "{printed}"
                );
                let (code, printed, _) = trace(&["--seconds", "0.05", "--folder", &folder]);
                assert!(
                    code == 3 && printed.contains("none of 2 process(es) with files in "),
                    "{printed}"
                );
            }
            worker.barrier()
        })
    })?;
    Ok(())
}

/// The files of two processes that were killed after all messages.
fn killed_job(folder: &Scratch, setting: &Setting) -> Vec<PathBuf> {
    let killed = pair::run::<(), _>(&test_name(), setting, |worker| {
        // SAFETY: ends here.
        job(worker, |_| unsafe { libc::_exit(0) })
    });
    assert!(killed.is_err());
    let entries = std::fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.to_string_lossy().contains(FILE_PREFIX)).collect()
}

/// What is left of an earlier job is not among the slowest messages of this one.
#[test]
fn beside_a_running_job_processes_that_had_ended_are_left_out_unless_they_are_asked_for()
-> Result<()> {
    let folder = Scratch::new();
    let setting = require!(setting(folder.path()));
    pair::run(&test_name(), &setting, |worker| {
        job(worker, |worker| {
            if worker.rank() == 0 {
                let folder = std::env::var("FERRITE_STATS_DIR").expect("it is set");
                let own = format!("{FILE_PREFIX}{}.", std::process::id());
                let files = std::fs::read_dir(&folder)
                    .expect("the folder")
                    .map(|entry| entry.expect("an entry").path());
                let mut others = files.filter(|path| !path.to_string_lossy().contains(&own));
                // Nobody has its lock, as where its process has ended. Not read by this process,
                // which would lose its own.
                let left = Path::new(&folder).join(format!("{FILE_PREFIX}1.0"));
                let copied =
                    Command::new("cp").arg(others.next().expect("the peer's")).arg(left).status();
                assert!(copied.is_ok_and(|status| status.success()));
                let (code, printed, _) = trace(&["--seconds", "0.05", "--folder", &folder]);
                assert!(
                    code == 3 && printed.contains("none of 2 process(es) with files in "),
                    "{printed}"
                );
                let (code, printed, written) = trace(&["--seconds", "0", "--folder", &folder]);
                assert_eq!(
                    (code, names(&written.expect("written"), "process_name").len()),
                    (0, 3),
                    "{printed}"
                );
            }
            worker.barrier()
        })
    })?;
    Ok(())
}

#[test]
fn messages_of_killed_processes_are_there_whether_or_not_it_looks_for_a_while() -> Result<()> {
    let folder = Scratch::new();
    let setting = require!(setting(folder.path()));
    assert_eq!(killed_job(&folder, &setting).len(), 2);
    for seconds in ["0", "0.02"] {
        let (code, printed, written) =
            trace(&["--seconds", seconds, "--folder", folder.to_str().expect("text")]);
        assert_eq!(code, 0, "{printed}");
        let timeline = written.expect("it was written");
        check(&timeline);
        assert!(messages(&timeline).values().all(|one| *one == expected()), "{printed}");
    }
    // 18 messages at two ends of two connections.
    let (code, printed, written) =
        trace(&["--seconds", "3600", "--most", "72", "--folder", folder.to_str().expect("text")]);
    assert!(code == 0 && written.is_some(), "{printed}");
    assert!(printed.contains("ended early: 72 messages are there, and --most is 72"), "{printed}");
    Ok(())
}

fn words(path: &Path) -> Vec<u64> {
    let bytes = std::fs::read(path).expect("it is readable");
    bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")))
        .collect()
}

fn write(path: &Path, words: &[u64]) {
    std::fs::write(path, words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())
        .expect("it is written");
}

/// The second process's file is made one of a machine whose clock is five seconds ahead, and whose
/// time of day tells nothing.
#[test]
fn clocks_of_two_machines_are_set_by_their_messages() -> Result<()> {
    const AHEAD: u64 = 5_000_000_000;
    let folder = Scratch::new();
    let setting = require!(setting(folder.path()));
    let files = killed_job(&folder, &setting);
    let other = Scratch::new();
    let mut moved = words(&files[1]);
    moved[header::BOOT] ^= 1;
    moved[header::CREATED] = 0;
    for end in moved[HEADER_WORDS..].chunks_exact_mut(RECORD_WORDS) {
        for message in end[record::TIMED..].chunks_exact_mut(timed::WORDS) {
            message[timed::AT] += AHEAD;
        }
    }
    write(&other.join(files[1].file_name().expect("a name")), &moved);
    std::fs::remove_file(&files[1]).expect("it was there");
    let folders = [&folder, &other].map(|folder| folder.to_str().expect("text").to_owned());
    let (code, printed, written) =
        trace(&["--seconds", "0", "--folder", &folders[0], "--folder", &folders[1]]);
    assert_eq!(code, 0, "{printed}");
    assert!(printed.contains(" is set by messages, to "), "{printed}");
    check(&written.expect("it was written"));
    Ok(())
}

/// A file of one process with one open end.
fn file() -> Vec<u64> {
    let mut words = vec![0; HEADER_WORDS + CHUNK_RECORDS * RECORD_WORDS];
    for (at, value) in [
        (header::MAGIC, MAGIC),
        (header::LAYOUT, LAYOUT_MAJOR << 32 | LAYOUT_MINOR),
        (header::HEADER_BYTES, HEADER_WORDS as u64 * 8),
        (header::RECORD_BYTES, RECORD_WORDS as u64 * 8),
        (header::RECORDS, CHUNK_RECORDS as u64),
        (header::SAMPLE, 4),
    ] {
        words[at] = value;
    }
    (words[HEADER_WORDS + record::STATE], words[HEADER_WORDS + record::DIRECTION]) = (OPEN, SENDER);
    words
}

#[test]
fn without_a_process_or_with_files_of_other_versions_it_says_so() {
    let folder = Scratch::new();
    let in_folder = |arguments: &[&str]| {
        let folder = folder.to_str().expect("text");
        trace(&[&["--seconds", "0", "--folder", folder], arguments].concat())
    };
    let (code, printed, written) = in_folder(&[]);
    assert!(
        code == 3 && written.is_none() && printed.contains("no process has a statistics file"),
        "{printed}"
    );
    let (code, printed, _) = trace(&["--seconds", "0", "--folder", "/no/such/folder"]);
    assert!(code == 2 && printed.contains("/no/such/folder"), "{printed}");
    let (code, printed, _) = trace(&["--seconds", "3601"]);
    assert!(code == 2 && printed.contains("0 to 3600 seconds"), "{printed}");
    let mut older = file();
    older[header::LAYOUT] = LAYOUT_MAJOR << 32 | 1;
    older[header::RECORD_BYTES] = FIRST_RECORD_WORDS as u64 * 8;
    write(&folder.join(format!("{FILE_PREFIX}1.a")), &older);
    let mut newer = file();
    newer[header::LAYOUT] = (LAYOUT_MAJOR + 1) << 32;
    write(&folder.join(format!("{FILE_PREFIX}2.a")), &newer);
    std::fs::write(folder.join(format!("{FILE_PREFIX}3.a")), "something else")
        .expect("it is written");
    let (code, printed, _) = in_folder(&[]);
    assert_eq!(code, 3, "{printed}");
    for words in [
        "1.a: layout 1.1, of a Ferrite that keeps no timed messages",
        "of a newer Ferrite",
        "3.a: not a file",
    ] {
        assert!(printed.contains(words), "{words:?} is missing: {printed}");
    }
}

/// Whatever a record says, the timeline is one that Perfetto reads.
#[test]
fn a_file_with_any_words_gives_a_valid_timeline_or_none() {
    let folder = Scratch::new();
    let path = folder.join(format!("{FILE_PREFIX}1.a"));
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..20 {
        let mut words = file();
        for end in 0..2 {
            let start = HEADER_WORDS + end * RECORD_WORDS;
            for place in 0..record::TIMED_MESSAGES {
                let message =
                    &mut words[start + record::TIMED + place * timed::WORDS..][..timed::WORDS];
                message.fill_with(|| {
                    [random.u64(..), random.u64(..1 << 58), random.u64(..1 << 20), 0]
                        [random.usize(..4)]
                });
                message[timed::MESSAGE_AGAIN] = message[timed::MESSAGE];
            }
            words[start + record::CONNECTION] = 7;
            words[start + record::STATE] = OPEN;
            words[start + record::DIRECTION] = random.u64(..3);
            for _ in 0..10 {
                words[start + random.usize(record::DIRECTION..record::TIMED)] = random.u64(..);
            }
        }
        write(&path, &words);
        let (code, printed, written) =
            trace(&["--seconds", "0", "--folder", folder.to_str().expect("text")]);
        assert_eq!(code, if written.is_some() { 0 } else { 3 }, "{printed}");
        if let Some(timeline) = written {
            assert!(of_phase(&timeline, "X").count() > 0);
        }
    }
}

#[test]
fn an_output_that_nobody_named_replaces_no_file() {
    let folder = Scratch::new();
    let setting = require!(setting(folder.path()));
    killed_job(&folder, &setting);
    let place = folder.to_str().expect("text");
    for expected in [1, 2, 3] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ferrite"));
        command
            .args(["trace", "--seconds", "0", "--folder", place])
            .current_dir(place)
            .env_remove("FERRITE_STATS_DIR");
        let (code, stdout, stderr) = program::run(&mut command).into_parts();
        assert_eq!(code, 0, "{stdout}{stderr}");
        let written = std::fs::read_dir(place).expect("the folder").flatten();
        let written = written
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("ferrite-trace"));
        assert_eq!(written.count(), expected, "{stdout}");
    }
    assert!(
        folder.join("ferrite-trace.json").exists() && folder.join("ferrite-trace.2.json").exists()
    );
}
