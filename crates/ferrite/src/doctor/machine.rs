//! What the rows look at: the files of the machine, the environment of the job, and what was found out by trial. Trials are
//! made when a row asks for them first, and once.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::doctor::conf_file::{self, Added, Reading};
use crate::doctor::loopback::{self, LoopbackFacts};
use crate::doctor::verbs_facts::VerbsFacts;
use crate::doctor::verbs_probe;
use lab::nccl::dynamic_loader::DynamicLoader;
use lab::nccl::nccl_files::{self, NcclFile, Version};
use lab::system::root::Root;
use lab::system::{host, subprocess};

/// The hidden subcommands of the trials.
pub(crate) const VERBS_WORKER: &str = "doctor-verbs";
pub(crate) const LOOPBACK_WORKER: &str = "doctor-loopback";

/// A trial that prints nothing for so long is ended.
const SILENCE: Duration = Duration::from_secs(45);

/// The machine, the environment of the job, and the plugin.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) root: Root,
    /// The environment of the job: that of the doctor, and what NCCL adds from its configuration files.
    pub(crate) env: BTreeMap<String, String>,
    /// That of the doctor.
    pub(crate) own_env: BTreeMap<String, String>,
    /// What NCCL adds.
    pub(crate) added: Added,
    /// The plugin's file, or why there is none.
    pub(crate) plugin: Result<PathBuf, String>,
    /// Processes of the job on this host.
    pub(crate) ranks: u32,
    /// The working directory.
    folder: PathBuf,
    verbs: OnceCell<Result<VerbsFacts, String>>,
    loopback: OnceCell<Vec<LoopbackFacts>>,
    nccl_files: OnceCell<Vec<NcclFile>>,
}

impl Machine {
    pub(crate) fn new(root: Root, env: BTreeMap<String, String>, plugin: Result<PathBuf, String>, ranks: u32) -> Self {
        let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let (verbs, loopback, nccl_files) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        let (own_env, added) = (env.clone(), Added::new());
        let mut machine = Self { root, env, own_env, added, plugin, ranks, folder, verbs, loopback, nccl_files };
        if conf_file::is_there(&machine.root, &machine.env) {
            machine.added = conf_file::added(&machine.root, &machine.env, Reading::of(machine.nccl()));
            machine.env.extend(machine.added.iter().map(|(name, (value, _))| (name.clone(), value.clone())));
        }
        machine
    }

    /// The release of NCCL that a job takes: PyTorch's, else the one that the loader or Python finds first. `None`: it is not known.
    pub(crate) fn nccl(&self) -> Option<Version> {
        let files = self.nccl_files();
        files.iter().find(|file| file.is_of_pytorch).or_else(|| files.first())?.version
    }

    /// The dynamic loader of the job.
    pub(crate) fn loader(&self) -> DynamicLoader<'_> {
        DynamicLoader { root: &self.root, env: &self.env, folder: &self.folder }
    }

    /// The value of a variable that is set and not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The files libnccl.so.2.
    pub(crate) fn nccl_files(&self) -> &[NcclFile] {
        self.nccl_files.get_or_init(|| nccl_files::find(self.loader()))
    }

    /// The kernel's log, where it may be read; below another root, its file `/var/log/dmesg`.
    pub(crate) fn kernel_log(&self) -> Option<String> {
        if self.root.is_real() { host::kernel_log() } else { self.root.text("/var/log/dmesg") }
    }

    /// What libibverbs reports; else why there is no libibverbs.
    pub(crate) fn verbs(&self) -> Result<&VerbsFacts, &str> {
        let found = self.verbs.get_or_init(|| {
            let printed = subprocess::run(&[VERBS_WORKER.to_owned()], &self.env, SILENCE);
            let facts = printed.lines.last().and_then(|line| serde_json::from_str(line).ok());
            facts.unwrap_or_else(|| Err(format!("looking at the devices failed: {}", printed.words())))
        });
        found.as_ref().map_err(String::as_str)
    }

    /// How the message of each device to itself went.
    pub(crate) fn loopback(&self) -> &[LoopbackFacts] {
        self.loopback
            .get_or_init(|| self.plugin.as_ref().map_or_else(|_| Vec::new(), |plugin| self.try_loopback(plugin)))
    }

    fn try_loopback(&self, plugin: &Path) -> Vec<LoopbackFacts> {
        let mut env = self.env.clone();
        env.extend(loopback::SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let words = [LOOPBACK_WORKER.to_owned(), plugin.display().to_string()];
        let printed = subprocess::run(&words, &env, SILENCE);
        let mut facts: Vec<LoopbackFacts> =
            printed.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if printed.failure.is_some() {
            facts.push(LoopbackFacts { device: String::new(), result: Err(printed.words()) });
        }
        facts
    }
}

/// Does the work of a hidden subcommand; the exit code.
pub(crate) fn verbs_worker() -> i32 {
    verbs_probe::main()
}

/// As [`verbs_worker`].
pub(crate) fn loopback_worker(plugin: &Path) -> i32 {
    loopback::main(plugin)
}

#[cfg(test)]
impl Machine {
    /// A machine whose trials have been made, with these files.
    pub(crate) fn made_up(root: &Path, env: &[(&str, &str)], verbs: VerbsFacts) -> Self {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let machine = Self::new(Root::new(root), env, Err("none".into()), 8);
        machine.verbs.set(Ok(verbs)).expect("it was not set");
        machine
    }
}
