//! What NCCL's configuration files add to the environment: `~/.nccl.conf` (or the one that `NCCL_CONF_FILE` names), `/etc/nccl.conf`.
//! What is set already stays. A test holds this against stock NCCL (`tests/doctor/conf_files.rs`); other releases were tried by hand.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use nccl_net::inspect::conf_file::lines;

use lab::nccl::nccl_files::Version;
use lab::system::host;
use lab::system::root::Root;

/// How the releases from one on read the files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    since: (u32, u32),
    /// They know `NCCL_CONF_FILE`.
    knows_named: bool,
    has_comments: bool,
    /// `~` is `$HOME`, and not the home that `/etc/passwd` tells; a line may end in a carriage return.
    is_of_2_30: bool,
}

const fn since(minor: u32, knows_named: bool, has_comments: bool, is_of_2_30: bool) -> Reading {
    Reading { since: (2, minor), knows_named, has_comments, is_of_2_30 }
}

const READINGS: [Reading; 4] = [
    since(0, false, false, false),
    since(23, true, false, false),
    since(26, true, true, false),
    since(30, true, true, true),
];

impl Reading {
    /// That of a release; of the newest where it is not known.
    pub(crate) fn of(version: Option<Version>) -> &'static Self {
        let is_known = |reading: &&Self| version.is_none_or(|(major, minor, _)| reading.since <= (major, minor));
        let known = READINGS.iter().rev().find(is_known);
        known.unwrap_or(&READINGS[0])
    }
}

/// Where a file sets a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    file: PathBuf,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.file.display(), self.line)
    }
}

/// What files add to the environment: names, values, places.
pub(crate) type Added = BTreeMap<String, (String, Place)>;

/// The files that NCCL reads, in its order: the first that sets a variable wins.
fn files(root: &Root, env: &BTreeMap<String, String>, reading: &Reading) -> Vec<PathBuf> {
    let named = env.get("NCCL_CONF_FILE").filter(|path| reading.knows_named && !path.is_empty()).map(PathBuf::from);
    let home = if reading.is_of_2_30 { env.get("HOME").map(PathBuf::from) } else { home_of_passwd(root) };
    let own = named.or_else(|| home.map(|home| home.join(".nccl.conf")));
    own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]).collect()
}

fn home_of_passwd(root: &Root) -> Option<PathBuf> {
    let (user, text) = (host::user_id().to_string(), root.text("/etc/passwd")?);
    let mut users = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    users.find(|fields| fields.get(2) == Some(&user.as_str()))?.get(5).map(PathBuf::from)
}

/// Whether there is a file that a release reads.
pub(crate) fn is_there(root: &Root, env: &BTreeMap<String, String>) -> bool {
    READINGS.iter().flat_map(|reading| files(root, env, reading)).any(|file| root.exists(file))
}

/// What the files add to the environment.
pub(crate) fn added(root: &Root, env: &BTreeMap<String, String>, reading: &Reading) -> Added {
    let mut added = Added::new();
    for file in files(root, env, reading) {
        let text = std::fs::read(root.path(&file)).unwrap_or_default();
        for line in lines(&String::from_utf8_lossy(&text), reading.has_comments, reading.is_of_2_30) {
            if !env.contains_key(&line.name) {
                let place = Place { file: file.clone(), line: line.number };
                added.entry(line.name).or_insert((line.value, place));
            }
        }
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_precedes_the_files_and_the_users_file_precedes_the_machines() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("etc")).expect("made");
        std::fs::create_dir_all(folder.path().join("home/u")).expect("made");
        std::fs::write(folder.path().join("etc/nccl.conf"), "A=1\n# B=2\nC=3\nD = 4\n").expect("written");
        std::fs::write(folder.path().join("home/u/.nccl.conf"), "C=5\n").expect("written");
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env = [set("HOME", "/home/u"), set("A", "0")].into();
        let added = added(&Root::new(folder.path()), &env, Reading::of(None));
        let told: Vec<_> = added.iter().map(|(name, (value, place))| format!("{name}={value} {place}")).collect();
        assert_eq!(told, ["C=5 /home/u/.nccl.conf, line 1", "D = 4 /etc/nccl.conf, line 4"]);
    }
}
