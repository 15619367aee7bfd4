//! The ranks of a test, as the test sees them.

use crate::common::prelude::*;
use crate::rank::{self, HandleBytes, Rank};
use ferrite::hang::Finding;
use lab::verbs::Verbs;
use std::path::{Path, PathBuf};
use testkit::dist::softrnic_library_folder;
use testkit::softrnic::Softrnic;
use testkit::{Peer, Process};

/// How the ranks are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each sends to the next one.
    Chain,
    /// The last one to the first as well.
    Ring,
}

/// Processes that pass messages on.
pub(crate) struct Job {
    pub(crate) processes: Vec<Process>,
    peers: Vec<Peer>,
    reports: Scratch,
    /// The file of their fabric, which processes that are killed leave behind.
    fabric: PathBuf,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.processes.clear();
        // The last one may have removed it.
        let _ = std::fs::remove_file(&self.fabric);
    }
}

/// What has to be there.
pub(crate) fn built() -> Result<PathBuf, Missing> {
    plugin()?;
    softrnic_library_folder()
}

/// In a process of a job: runs it, and does not return.
pub(crate) fn enter() {
    testkit::side::enter(|_, parent| {
        let rank = std::env::var(rank::VARIABLE).expect("a rank");
        let rank: Rank = serde_json::from_str(&rank).expect("a rank");
        if let Err(error) = rank::run(rank, parent) {
            eprintln!("rank {} ends: {error}", rank.number);
        }
    });
}

impl Job {
    /// `count` ranks, with more variables; `change` says what is particular with each.
    pub(crate) fn start(
        shape: Shape,
        count: u32,
        env: &[(&str, &str)],
        change: impl Fn(&mut Rank),
    ) -> Self {
        testkit::network::own();
        let reports = Scratch::new();
        let verbs =
            Verbs::softrnic(&softrnic_library_folder().expect("it is there")).expect("it is there");
        let settings = verbs.settings();
        let softrnic = settings.iter().fold(
            Softrnic::new().devices(rank::DEVICES.min(count as usize)),
            |softrnic, (name, value)| {
                softrnic.env(name, value.to_str().expect("a path of this test's"))
            },
        );
        let softrnic = softrnic.env("FERRITE_HANG_SECONDS", "1").env("NCCL_DEBUG", "INFO");
        let softrnic = softrnic
            .env(ALL_INFO.0, ALL_INFO.1)
            .env("FERRITE_REPORT_DIR", reports.path().display())
            .envs(env);
        let mut peers = Vec::new();
        let mut processes = Vec::new();
        for number in 0..count {
            let before = (number + count - 1) % count;
            let mut rank = Rank {
                number,
                from: Some(before).filter(|_| number > 0 || shape == Shape::Ring),
                sends: number + 1 < count || shape == Shape::Ring,
                stops_after: None,
                is_independent: false,
                waits_after: None,
                pause_ms: 0,
                // On a machine of two processors each gets its turn.
                idle_us: 200.max(u64::from(count) * 100),
                abi: 8,
                begun: None,
                has_two_threads: false,
                never_connects: false,
                never_accepts: false,
                has_handles: false,
            };
            change(&mut rank);
            let rank = serde_json::to_string(&rank).expect("JSON");
            let (process, peer) = softrnic.start(number as usize, &[(rank::VARIABLE, &rank)]);
            processes.push(process);
            peers.push(peer);
        }
        let handles: Vec<HandleBytes> = peers.iter_mut().map(Peer::recv).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.send(&handles[(number + 1) % handles.len()]);
        }
        let fabric = Path::new("/dev/shm").join(softrnic.fabric());
        Self { processes, peers, reports, fabric }
    }

    /// Lets a rank that waits for it continue.
    pub(crate) fn keep_queue_pairs(&mut self, rank: usize) {
        self.peers[rank].send(&0_u8);
    }

    /// Waits until `rank` has said all of `words` in one line, which is returned.
    pub(crate) fn line(&self, rank: usize, words: &[&str]) -> String {
        let found = || {
            let output = self.processes[rank].output();
            output
                .lines()
                .find(|line| words.iter().all(|word| line.contains(word)))
                .map(str::to_owned)
        };
        let what = || {
            format!("rank {rank} to say {words:?}; it has said:\n{}", self.processes[rank].output())
        };
        testkit::wait::wait_within(testkit::wait::LIMIT, found)
            .unwrap_or_else(|| panic!("{}", what()))
    }

    /// As the others name that process, whose rank they know if it sends.
    pub(crate) fn place(&self, rank: usize, sends: bool) -> String {
        let pid = self.processes[rank].pid();
        if sends { format!("(pid {pid}") } else { format!("process {pid} on") }
    }

    /// What `ferrite hang` finds out of a rank, once that is as it should be.
    pub(crate) fn found(&self, rank: usize, is_right: impl Fn(&Finding) -> bool) -> Finding {
        let ask = || {
            Some(Finding::of_process(self.processes[rank].pid(), Duration::from_secs(6)))
                .filter(&is_right)
        };
        wait_until("ferrite hang to say so", ask)
    }

    /// The reports of a rank, once there is one.
    pub(crate) fn reports(&self, rank: usize) -> Vec<serde_json::Value> {
        let name = format!(".{}.", self.processes[rank].pid());
        wait_until("a report", || {
            let files = std::fs::read_dir(self.reports.path()).expect("a folder");
            let names =
                files.filter_map(|file| file.ok()?.path().into_os_string().into_string().ok());
            let ours = names.filter(|file| file.contains(&name) && file.ends_with(".json"));
            let reports: Vec<_> = ours.filter_map(|file| std::fs::read(file).ok()).collect();
            let reports = reports.iter().map(|bytes| serde_json::from_slice(bytes).expect("JSON"));
            Some(reports.collect()).filter(|reports: &Vec<_>| !reports.is_empty())
        })
    }
}
