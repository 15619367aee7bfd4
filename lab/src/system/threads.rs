//! The threads of another process: where each is, and how much of the time it has had a processor.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// All threads of a process at one moment.
#[derive(Debug)]
pub struct Threads {
    at: Instant,
    threads: Vec<Thread>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Thread {
    id: String,
    name: String,
    /// As in `/proc/PID/stat`.
    state: char,
    /// The function of the kernel that it waits in; empty: none, or the kernel does not tell.
    place: String,
    times: Times,
}

/// Since the thread began. Zero where the kernel does not count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Times {
    ran: Duration,
    /// It could run, and had no processor. The kernel counts each such wait when it is over.
    waited: Duration,
}

impl Threads {
    /// Those of process `pid` now; none if it has ended.
    pub fn read(pid: u32) -> Self {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let mut threads: Vec<Thread> = tasks.filter_map(|task| Thread::read(&task.path())).collect();
        // The first has the lowest number, but where numbers have begun again.
        threads.sort_by_key(|thread| thread.id.parse::<u32>().unwrap_or(u32::MAX));
        Self { at: Instant::now(), threads }
    }

    /// Where each is, and what it has had of the time since `earlier`, as part of a sentence.
    pub fn since(&self, earlier: &Self) -> String {
        let mut text = format!("threads in the last {:.1} s", self.at.duration_since(earlier.at).as_secs_f64());
        for (place, thread) in self.threads.iter().enumerate() {
            let before = earlier.threads.iter().find(|before| before.id == thread.id);
            let before = before.map_or_else(Times::default, |before| before.times);
            let [ran, waited] = [
                thread.times.ran.saturating_sub(before.ran).as_secs_f64(),
                thread.times.waited.saturating_sub(before.waited).as_secs_f64(),
            ];
            let (colon, name, now) = (if place == 0 { ':' } else { ';' }, &thread.name, thread.now());
            // A String takes everything.
            let _ = write!(text, "{colon} {name} ran {ran:.2} s, waited {waited:.2} s for a processor, now {now}");
        }
        text
    }
}

impl Thread {
    fn read(task: &Path) -> Option<Self> {
        let read = |name: &str| fs::read_to_string(task.join(name));
        let stat = read("stat").ok()?;
        // The name before the state may hold any characters.
        let state = stat.rsplit_once(") ")?.1.chars().next()?;
        Some(Self {
            id: task.file_name()?.to_string_lossy().into_owned(),
            name: read("comm").ok()?.trim_end().to_owned(),
            state,
            place: read("wchan").ok().filter(|place| place != "0").unwrap_or_default(),
            times: read("schedstat").ok().and_then(|text| Times::parse(&text)).unwrap_or_default(),
        })
    }

    fn now(&self) -> String {
        match (self.state, self.place.as_str()) {
            ('R', _) => "can run".into(),
            ('T' | 't', _) => "is stopped".into(),
            (state, "") => format!("sleeps ({state})"),
            (state, place) => format!("sleeps in {place} ({state})"),
        }
    }
}

impl Times {
    /// Out of a line of `/proc/PID/task/TID/schedstat`: nanoseconds that it ran, and that it waited.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
        Some(Self { ran: words.next()??, waited: words.next()?? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(state: char, place: &str, ran_ms: u64, waited_ms: u64) -> Thread {
        let times = Times { ran: Duration::from_millis(ran_ms), waited: Duration::from_millis(waited_ms) };
        Thread { id: "7".into(), name: "worker".into(), state, place: place.into(), times }
    }

    #[test]
    fn what_a_thread_has_had_is_told_since_the_earlier_moment() {
        let at = Instant::now();
        let earlier = Threads { at, threads: vec![thread('S', "", 1000, 2000)] };
        let later = at + Duration::from_secs(10);
        let text =
            |state, place| Threads { at: later, threads: vec![thread(state, place, 1100, 11_000)] }.since(&earlier);
        assert_eq!(
            text('R', ""),
            "threads in the last 10.0 s: worker ran 0.10 s, waited 9.00 s for a processor, now can run"
        );
        assert!(text('S', "futex_wait").ends_with("now sleeps in futex_wait (S)"));
        assert!(text('T', "").ends_with("now is stopped"));
    }

    #[test]
    fn the_threads_of_a_process_are_read() {
        assert_eq!(
            Times::parse("1000 2500 3\n"),
            Some(Times { ran: Duration::from_micros(1), waited: Duration::from_nanos(2500) })
        );
        assert_eq!(Times::parse("none"), None);
        let read = Threads::read(std::process::id());
        assert!(read.threads.iter().any(|thread| thread.state == 'R'), "this one runs: {read:?}");
        assert!(Threads::read(u32::MAX).threads.is_empty());
    }
}
