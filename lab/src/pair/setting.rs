//! How a pair of processes is started.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::pair::parent::{Pair, WorkerMessage, json_error};
use crate::pair::worker_ctx::{Pages, WorkerCtx};
use crate::system::host;
use crate::verbs::Verbs;

/// How to start a pair.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The libibverbs of both processes.
    pub verbs: Verbs,
    /// `NCCL_NET_PLUGIN` of both processes.
    pub net_plugin: String,
    /// Whether each process keeps to a CPU of its own, where there are two.
    pub pin: bool,
    /// How long a process may be silent before it counts as hung.
    pub silence: Duration,
    /// What each rank takes its buffers from instead of fresh memory.
    pub pages: Option<[Pages; 2]>,
    /// More environment, for both alike.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the other process is on another host.
    pub between_hosts: bool,
}

impl Setting {
    /// The usual: pinned, hung after 60 s of silence, `NCCL_NET_PLUGIN=none`.
    pub fn new(verbs: Verbs) -> Self {
        let silence = Duration::from_secs(60);
        Self {
            verbs,
            net_plugin: "none".into(),
            pin: true,
            silence,
            pages: None,
            env: Vec::new(),
            between_hosts: false,
        }
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// What starts a process of the pair that works on `fabric`.
    pub(crate) fn command(&self, program: &Path, arguments: &[OsString], fabric: &str) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        let verbs = &self.verbs;
        let settings =
            if self.between_hosts { verbs.settings_between_hosts() } else { verbs.settings() };
        verbs.apply_with(settings, &mut command, fabric);
        command.env("NCCL_NET_PLUGIN", &self.net_plugin);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The variable with the name of the test whose body a worker process is to run.
const TASK: &str = "FERRITE_TASK";

/// Runs `body` in two processes, from within the test whose full name is `test`, and returns what
/// they returned. The test binary is started again for that one test; in there this function does
/// not return. A panic of `body` (a failed assertion) is reported as that process's failure.
///
/// The processes run the test from its top, so their body is that of its first call, whichever call
/// has started them: what differs between the calls of a test has to be in the environment.
///
/// # Errors
/// [`Error::Worker`] if a process failed, died or hung; [`Error::Io`] if it could not be started.
pub fn run<T, F>(test: &str, setting: &Setting, body: F) -> Result<[T; 2]>
where
    T: Serialize + DeserializeOwned,
    F: FnOnce(&mut WorkerCtx) -> Result<T>,
{
    if std::env::var_os(TASK).is_some_and(|task| task == test)
        && let Some(worker) = WorkerCtx::from_environment()?
    {
        std::process::exit(worker.run(|worker| sit(worker, body)));
    }
    let _turn = PairPermit::wait();
    let program = std::env::current_exe().map_err(|e| Error::io("no own binary", e))?;
    let arguments: Vec<OsString> =
        [test, "--exact", "--nocapture", "--include-ignored"].iter().map(OsString::from).collect();
    let mut setting = setting.clone();
    setting.env.push((TASK.into(), test.into()));
    let mut pair = Pair::spawn(&program, &arguments, &setting)?;
    let mut results = [None, None];
    while let Some((rank, message)) = pair.next_message().map_err(no_such_test)? {
        if let WorkerMessage::Value { value } = message {
            results[rank] = Some(serde_json::from_value(value).map_err(|e| json_error(&e))?);
        }
    }
    match results {
        [Some(zero), Some(one)] => Ok([zero, one]),
        _ => Err(Error::Misuse("a process ended without a result")),
    }
}

/// The right to run a pair of polling processes, while other tests of this program wait: more
/// pairs than the machine has CPUs for slow each other down beyond every time limit.
#[derive(Debug)]
pub struct PairPermit(());

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl PairPermit {
    /// Waits for it; [`run`] does so by itself.
    pub fn wait() -> Self {
        let most = (host::cpus().map_or(1, |cpus| cpus.len()) / 2).max(1);
        let (running, ended) = &RUNNING;
        // A count is right even if a holder of the lock panicked.
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= most {
            running = ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
        Self(())
    }
}

impl Drop for PairPermit {
    fn drop(&mut self) {
        let (running, ended) = &RUNNING;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

/// A test harness that found nothing to run ends well and says nothing.
fn no_such_test(problem: Error) -> Error {
    match problem {
        Error::Worker { log, .. } if log.iter().any(|line| line == "running 0 tests") => {
            Error::Misuse("no test of that name: pass its full path")
        }
        other => other,
    }
}

fn sit<T: Serialize>(
    worker: &mut WorkerCtx,
    body: impl FnOnce(&mut WorkerCtx) -> Result<T>,
) -> Result<()> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(worker)));
    match outcome {
        Ok(result) => worker.report(&result?),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied());
            Err(Error::Data(text.unwrap_or("the body panicked").into()))
        }
    }
}
