//! The process that starts a point's two others, waits for them with a limit, and judges.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::check::point::{Act, Host, Point, Trial};
use crate::check::stage::{Order, SOFTWARE_DEVICE};
use crate::check::verdict::{Finding, Outcome, Verdict};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::library::Source;
use crate::pair::{Pair, Setting};
use crate::seat::{Note, json_error};
use crate::verbs::Verbs;

/// The hidden subcommand that makes one of the two processes of this program.
pub const WORKER: &str = "check-worker";
/// How long a process may take to end when its work is done.
const LEAVING: Duration = Duration::from_secs(5);

/// What the software device is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// InfiniBand, else RoCE.
    pub infiniband: bool,
    /// Devices that the transport is to fuse into one: 1 or 2.
    pub rails: usize,
    /// Junk in undefined fields, and data read late.
    pub strict: bool,
}

/// Where the software device is.
#[derive(Debug, Clone)]
pub struct Softrnic {
    /// The folder of its libibverbs.so.1.
    pub folder: PathBuf,
    /// Its command line.
    pub control: PathBuf,
}

/// What to check, and on what.
#[derive(Debug, Clone)]
pub struct Request {
    /// This program.
    pub program: PathBuf,
    /// The transport.
    pub source: Source,
    /// Whether the transport speaks version 8.
    pub version8: bool,
    /// NCCL 2.21.5, if it is in the cache.
    pub built_in: Option<PathBuf>,
    /// The software device; `None`: on the devices of this machine, which nobody breaks.
    pub softrnic: Option<Softrnic>,
    /// What it is like.
    pub shape: Shape,
    /// With the points that take minutes.
    pub long: bool,
}

impl Request {
    /// Tries the points, `jobs` at a time, and tells each outcome to `tell` in the order of the points. Those that were
    /// told when somebody interrupted it.
    ///
    /// # Errors
    /// Those of `tell`, which end it.
    pub fn run_all(
        &self,
        points: &[Point],
        jobs: usize,
        mut tell: impl FnMut(&Outcome) -> Result<()>,
    ) -> Result<Vec<Outcome>> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (sender, outcomes) = channel();
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, points.len().max(1)) {
                let (sender, next, stop) = (sender.clone(), &next, &stop);
                scope.spawn(move || {
                    while let Some((index, point)) = taken(points, next).filter(|_| !stop.load(Ordering::Relaxed)) {
                        // Nobody listens any more if this fails, which is fine.
                        sender.send((index, self.run(point))).unwrap_or_default();
                    }
                });
            }
            drop(sender);
            let told = in_order(&outcomes, &mut tell);
            stop.store(true, Ordering::Relaxed);
            told
        })
    }

    /// Tries one point; nothing if somebody interrupted it.
    fn run(&self, point: &Point) -> Option<Outcome> {
        let start = Instant::now();
        let (verdict, detail, log) = match point.trial {
            Trial::Needs(what) => (Verdict::Skipped, format!("needs {what}"), Vec::new()),
            Trial::Acts(acts) => self.perform(point, acts),
        };
        (!interrupt::heard()).then(|| Outcome {
            number: point.number,
            name: point.name.into(),
            claim: point.claim.into(),
            verdict,
            detail,
            seconds: start.elapsed().as_secs_f64(),
            log,
        })
    }

    fn perform(&self, point: &Point, acts: &[Act]) -> (Verdict, String, Vec<String>) {
        let mut details: Vec<String> = Vec::new();
        let mut skipped: Vec<String> = Vec::new();
        for (index, act) in acts.iter().enumerate().filter(|(_, act)| self.long || !act.scene.long) {
            if act.scene.raw && !self.version8 {
                skipped.push("needs a transport of interface v8".into());
                continue;
            }
            if self.softrnic.is_none() && act.scene.is_made_up() {
                skipped.push(format!("needs {SOFTWARE_DEVICE}"));
                continue;
            }
            match self.act(point, index, act) {
                Ok(finding) if finding.skipped => skipped.push(finding.detail),
                Ok(finding) => details.push(finding.detail),
                Err(Error::Worker { rank, what, log, .. }) => {
                    return (Verdict::Failed, format!("{what} (rank {rank}{})", part(index, acts)), log);
                }
                Err(problem) => return (Verdict::Failed, format!("{problem}{}", part(index, acts)), Vec::new()),
            }
        }
        details.retain(|detail| !detail.is_empty());
        details.dedup();
        skipped.dedup();
        if details.is_empty() && !skipped.is_empty() {
            return (Verdict::Skipped, skipped.join("; "), Vec::new());
        }
        skipped.iter_mut().for_each(|why| why.insert_str(0, "left out: "));
        details.extend(skipped);
        (Verdict::Passed, details.join("; "), Vec::new())
    }

    /// One pair of processes from start to end; the finding of rank 0.
    fn act(&self, point: &Point, index: usize, act: &Act) -> Result<Finding> {
        let order = Order {
            number: point.number,
            act: index,
            source: self.source.clone(),
            built_in: self.built_in.clone(),
            softrnic: self.softrnic.as_ref().map(|device| device.control.clone()),
            rails: self.shape.rails,
            infiniband: self.shape.infiniband,
        };
        let mask = Mask::new(act.scene.host == Host::WithoutVerbs)?;
        let setting = self.setting(act, &mask)?;
        let (program, arguments) = self.command(act);
        let mut pair = Pair::spawn(&program, &arguments, &setting)?;
        pair.send(&order)?;
        let mut findings = [Finding::nothing(), Finding::nothing()];
        while let Some((rank, note)) = pair.next_note()? {
            if let Note::Value { value } = note {
                findings[rank] = serde_json::from_value(value).map_err(|e| json_error(&e))?;
            }
        }
        pair.ended(LEAVING)?;
        for (rank, finding) in findings.iter().enumerate() {
            let log = pair.log(rank);
            if let Some(what) = finding.objection(&log) {
                let log = log.into_iter().rev().take(8).rev().collect();
                return Err(Error::Worker { rank, what, log, wrong: true });
            }
        }
        let [zero, _] = findings;
        Ok(zero)
    }

    fn is_faithful(&self, act: &Act) -> bool {
        act.scene.host == Host::Faithful || self.shape.rails == 2 && act.scene.host == Host::Plain
    }

    fn command(&self, act: &Act) -> (PathBuf, Vec<OsString>) {
        let Some(device) = self.softrnic.as_ref().filter(|_| self.is_faithful(act)) else {
            return (self.program.clone(), vec![WORKER.into()]);
        };
        let mut words: Vec<OsString> = vec!["run".into(), "--library".into(), device.folder.clone().into()];
        words.push("--faithful".into());
        if self.shape.rails == 2 {
            words.push("--same-card".into());
        }
        words.extend(["--".into(), self.program.clone().into(), WORKER.into()]);
        (device.control.clone(), words)
    }

    fn setting(&self, act: &Act, mask: &Mask) -> Result<Setting> {
        let verbs = match &self.softrnic {
            Some(device) if mask.0.is_none() => Verbs::softrnic(&device.folder)?,
            _ => Verbs::System,
        };
        let mut setting = Setting::new(verbs);
        setting.net_plugin = self.source.net_plugin().into();
        setting.silence = Duration::from_secs(act.scene.patience);
        let fused = if self.shape.rails == 2 { "1" } else { "0" };
        let devices = if self.shape.rails == 2 { "4" } else { "2" };
        setting = setting
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,ENV,NET")
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_IB_MERGE_NICS", fused)
            .env("SOFTRNIC_QUIET", "1")
            .env("SOFTRNIC_DEVICES", devices)
            .env("SOFTRNIC_LINK", if self.shape.infiniband { "ib" } else { "roce" })
            .env("SOFTRNIC_STRICT", if self.shape.strict { "1" } else { "0" });
        if let Some(folder) = &mask.0 {
            setting = setting.env("LD_LIBRARY_PATH", folder);
        }
        Ok(act.scene.env.iter().fold(setting, |setting, (name, value)| setting.env(name, value)))
    }
}

/// The next point that nobody has taken.
fn taken<'p>(points: &'p [Point], next: &AtomicUsize) -> Option<(usize, &'p Point)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    points.get(index).map(|point| (index, point))
}

/// Tells the outcomes by index, whatever order they come in, up to the first that there is not.
fn in_order(
    outcomes: &Receiver<(usize, Option<Outcome>)>,
    tell: &mut impl FnMut(&Outcome) -> Result<()>,
) -> Result<Vec<Outcome>> {
    let (mut early, mut told) = (BTreeMap::new(), Vec::new());
    for (index, outcome) in outcomes {
        let Some(outcome) = outcome else { break };
        early.insert(index, outcome);
        while let Some(outcome) = early.remove(&told.len()) {
            tell(&outcome)?;
            told.push(outcome);
        }
    }
    // After an interrupt there are gaps.
    for outcome in early.into_values() {
        tell(&outcome)?;
        told.push(outcome);
    }
    Ok(told)
}

/// Which act it was, where there are several.
fn part(index: usize, acts: &[Act]) -> String {
    if acts.len() == 1 {
        return String::new();
    }
    let env = acts[index].scene.env.iter().chain(acts[index].scene.rank1);
    let env: Vec<String> = env.map(|(name, value)| format!("{name}={value}")).collect();
    let with = if env.is_empty() { String::new() } else { format!(" with {}", env.join(" ")) };
    format!(", act {}{with}", index + 1)
}

/// A folder with files of libibverbs's names that are no libraries, put before the system's own.
struct Mask(Option<PathBuf>);

impl Mask {
    fn new(wanted: bool) -> Result<Self> {
        if !wanted {
            return Ok(Self(None));
        }
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("ferrite-no-verbs-{}-{number}", std::process::id()));
        let failed = |source| Error::io(format!("cannot make {}", folder.display()), source);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        for name in ["libibverbs.so", "libibverbs.so.1"] {
            std::fs::write(folder.join(name), "no library").map_err(failed)?;
        }
        Ok(Self(Some(folder)))
    }
}

impl Drop for Mask {
    fn drop(&mut self) {
        if let Some(folder) = &self.0 {
            std::fs::remove_dir_all(folder).unwrap_or_default();
        }
    }
}

/// The command line of the software device whose library is in `folder`.
///
/// # Errors
/// [`Error::Io`] if it is not where it is built.
pub fn control_of(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("../bin/softrnic");
    std::fs::canonicalize(&path).map_err(|source| {
        Error::io(
            format!("no command line of the software device at {} (scripts/build.sh makes it)", path.display()),
            source,
        )
    })
}
