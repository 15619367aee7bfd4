//! NCCL's configuration files, `/etc/nccl.conf` and `~/.nccl.conf` (or the one that `NCCL_CONF_FILE` names): lines `NAME=VALUE`,
//! which NCCL adds to the environment. What is set already stays.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::doctor::root::Root;

/// The files that NCCL reads, in its order: the first that sets a variable wins.
fn files(env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    let named = env.get("NCCL_CONF_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let own = named.or_else(|| env.get("HOME").map(|home| PathBuf::from(home).join(".nccl.conf")));
    own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]).collect()
}

/// The environment with what the files add.
pub(crate) fn merged(root: &Root, mut env: BTreeMap<String, String>) -> BTreeMap<String, String> {
    for file in files(&env) {
        for line in root.text(&file).unwrap_or_default().lines() {
            let line = line.trim();
            if let Some((name, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
                env.entry(name.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
            }
        }
    }
    env
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
        let env = merged(&Root::new(folder.path()), [set("HOME", "/home/u"), set("A", "0")].into());
        let expected = [set("A", "0"), set("C", "5"), set("D", "4"), set("HOME", "/home/u")];
        assert_eq!(env.into_iter().collect::<Vec<_>>(), expected);
    }
}
