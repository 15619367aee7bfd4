//! `ferrite doctor`: each verdict that can be bad is shown by breaking what it is about, and is
//! good again without that.

#[path = "../common/mod.rs"]
mod common;
mod conf_files;
mod devices;
mod host;
mod loaders;
mod peers;

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::softrnic::Softrnic;
use testkit::{Missing, Scratch, dist, program, skipped};

/// A run of the doctor: on which devices, with which environment and files.
struct Setup {
    softrnic: Softrnic,
    env: Vec<(String, String)>,
    words: Vec<String>,
    root: Scratch,
    /// What a shell does before: limits of the process.
    shell: String,
    /// What the run needs and is missing: it is skipped.
    missing: Option<Missing>,
}

/// What was reported; the verdict is empty if the run was skipped.
struct Report {
    code: i32,
    verdict: String,
    /// All facts and cures.
    text: String,
}

/// A run on the software devices, on a machine that has no file of its own.
fn setup(row: &str) -> Setup {
    let setup = Setup {
        softrnic: Softrnic::new().env("SOFTRNIC_TIME_SCALE", "0.01"),
        env: Vec::new(),
        words: ["doctor", "--json", "--only", row].map(str::to_owned).into(),
        root: Scratch::new(),
        shell: String::new(),
        missing: None,
    };
    match (dist::softrnic_library_folder(), dist::plugin()) {
        (Ok(library), Ok(plugin)) => {
            let dist = plugin.parent().and_then(Path::parent).expect("dist/lib");
            setup.env("LD_LIBRARY_PATH", library.display()).env("FERRITE_DIST", dist.display())
        }
        (Err(missing), _) | (_, Err(missing)) => Setup { missing: Some(missing), ..setup },
    }
}

impl Setup {
    fn env(mut self, name: &str, value: impl ToString) -> Self {
        self.env.push((name.into(), value.to_string()));
        self
    }

    fn softrnic(mut self, name: &str, value: impl ToString) -> Self {
        self.softrnic = self.softrnic.env(name, value);
        self
    }

    fn word(mut self, word: &str) -> Self {
        self.words.push(word.into());
        self
    }

    /// With a command of the shell before, such as `ulimit -l 64`.
    fn shell(mut self, command: &str) -> Self {
        self.shell = command.into();
        self
    }

    /// With a file of the machine.
    fn file(self, path: &str, contents: impl AsRef<[u8]>) -> Self {
        let path = self.root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, contents).expect("written");
        self
    }

    /// With a symbolic link of the machine.
    fn link(self, path: &str, target: &str) -> Self {
        let path = self.root.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::os::unix::fs::symlink(target, path).expect("linked");
        self
    }

    fn look(self) -> Report {
        if let Some(missing) = self.missing {
            skipped(missing);
            return Report { code: 0, verdict: String::new(), text: String::new() };
        }
        let script = format!(
            "{} exec \"$0\" \"$@\"",
            if self.shell.is_empty() { String::new() } else { format!("{}; ", self.shell) }
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_ferrite")]).args(&self.words);
        command.args([Path::new("--sysroot"), self.root.path()]);
        for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if name.starts_with("NCCL_") || name == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        command.envs(self.softrnic.vars()).env("HOME", "/home/user");
        command.envs(self.env.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let printed = program::run(&mut command);
        let report: Value =
            serde_json::from_str(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"));
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 1, "{printed}");
        let words = |finding: &Value| {
            format!(
                "{} {} {} {}\n",
                finding["verdict"], finding["subject"], finding["fact"], finding["cure"]
            )
        };
        let text = rows[0]["findings"].as_array().expect("findings").iter().map(words).collect();
        self.softrnic.assert_clean();
        let verdict = rows[0]["verdict"].as_str().unwrap_or_default();
        assert!(!verdict.is_empty(), "no verdict: {printed}");
        Report { code: printed.status.code().unwrap_or(-1), verdict: verdict.into(), text }
    }
}

impl Report {
    /// The verdict, and words that the facts or cures have to have.
    #[track_caller]
    fn is(&self, verdict: &str, words: &[&str]) {
        if self.verdict.is_empty() {
            return;
        }
        assert_eq!(self.verdict, verdict, "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "{word:?} is missing: {}", self.text);
        }
        assert_eq!(self.code, i32::from(verdict == "FAIL"), "{}", self.text);
        assert!(
            verdict == "ok"
                || verdict == "unknown"
                || !self.text.contains("null\n")
                || self.text.contains("\"ok\""),
            "no cure: {}",
            self.text
        );
    }
}
