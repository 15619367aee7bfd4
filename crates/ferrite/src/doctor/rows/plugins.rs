//! Which network plugin NCCL would load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use lab::nccl::plugin_search::{DEFAULT_FILE, Outcome, PluginSearch, SEARCHES, versions};

pub(crate) const ROWS: &[Row] = &[Row {
    name: "plugins",
    what: "which network plugin NCCL would load, by NCCL_NET_PLUGIN and the loader's folders, for each release that the row `nccl` finds, or for all. FAIL if NCCL_NET_PLUGIN gives these releases no plugin. Warn if it gives some other release none, if it is not set and there is none, if the plugin is not Ferrite, or if there are several copies of Ferrite",
    why: "images have plugins of their own, releases read NCCL_NET_PLUGIN in different ways, and NCCL silently uses its built-in network if it finds no plugin",
    cure: "export NCCL_NET_PLUGIN=/PATH/TO/libnccl-net.so (NCCL 2.21 and later take a path), NCCL_NET=Ferrite to be sure",
    look: plugins,
}];

/// What releases make of the setting, in one line.
struct Judged {
    /// Which releases.
    releases: String,
    /// The worst verdict on it: where none of the releases is found here, it depends on what later ones take.
    worst: Verdict,
    outcome: Outcome,
}

/// The releases that are found here, else all; those in a row that take the same are one, with what the newest has to say.
fn judge(machine: &Machine) -> Vec<Judged> {
    let setting = machine.env.get("NCCL_NET_PLUGIN").map(String::as_str);
    let outcome = |search: &PluginSearch| search.outcome(setting, |file| machine.loader().open(file));
    let found: BTreeSet<_> = machine.nccl_files().iter().filter_map(|file| file.version).collect();
    let mut judged: Vec<Judged> = Vec::new();
    for (major, minor, patch) in found {
        let Some(search) = PluginSearch::of((major, minor)) else { continue };
        let release = format!("{major}.{minor}.{patch}");
        add(&mut judged, outcome(search), Verdict::Fail, |before| match before {
            None => format!("NCCL {release}"),
            Some(before) => format!("{before}, {release}"),
        });
    }
    if !judged.is_empty() {
        return judged;
    }
    for (at, search) in SEARCHES.iter().enumerate() {
        let (_, minor) = search.since;
        // 2.20 takes no path at all, and hardly anybody has it.
        let worst = match at {
            0 => Verdict::Ok,
            _ if at + 1 < SEARCHES.len() => Verdict::Warn,
            _ => Verdict::Fail,
        };
        add(&mut judged, outcome(search), worst, |before| {
            let before = before.map(|text| text.split(" to ").next().unwrap_or(text).to_owned());
            let first = before.unwrap_or_else(|| format!("NCCL 2.{minor}"));
            match SEARCHES.get(at + 1).map(|next| next.since.1 - 1) {
                None => format!("{first} and later"),
                Some(last) if first.ends_with(&format!("2.{last}")) => first,
                Some(last) => format!("{first} to 2.{last}"),
            }
        });
    }
    judged
}

/// Adds what releases take; `named` makes their name, of that of those before them if these take the same.
fn add(judged: &mut Vec<Judged>, outcome: Outcome, worst: Verdict, named: impl FnOnce(Option<&str>) -> String) {
    match judged.last_mut().filter(|last| last.outcome.plugins == outcome.plugins) {
        Some(last) => *last = Judged { releases: named(Some(&last.releases)), worst, outcome },
        None => judged.push(Judged { releases: named(None), worst, outcome }),
    }
}

fn plugins(machine: &Machine) -> Vec<Finding> {
    let judged = judge(machine);
    let mut found: Vec<Finding> = judged.iter().map(|judged| of_releases(machine, judged)).collect();
    let taken: Vec<&PathBuf> =
        judged.iter().flat_map(|judged| &judged.outcome.plugins).map(|plugin| &plugin.path).collect();
    let setting = machine.var("NCCL_NET_PLUGIN");
    let names = [Some(DEFAULT_FILE.to_owned()), setting.map(|name| format!("libnccl-net-{name}.so"))];
    let others =
        names.iter().flatten().filter(|name| !name.contains('/')).flat_map(|name| machine.loader().places(name));
    for path in others {
        let is_same = |other: &&PathBuf| machine.root.resolved(other) == machine.root.resolved(&path);
        if !taken.iter().any(is_same) {
            found.push(other(machine, &path, setting.is_some_and(|value| value.contains('/'))));
        }
    }
    found
}

/// The verdict on what releases take.
fn of_releases(machine: &Machine, judged: &Judged) -> Finding {
    let Judged { releases, worst, outcome } = judged;
    let passed = if outcome.passed.is_empty() { String::new() } else { format!(" ({})", outcome.passed.join("; ")) };
    let Some((first, later)) = outcome.plugins.split_first() else {
        let set = machine.env.get("NCCL_NET_PLUGIN").filter(|value| !value.is_empty());
        let setting = match machine.env.get("NCCL_NET_PLUGIN") {
            None => "NCCL_NET_PLUGIN is not set".into(),
            Some(value) if value.is_empty() => "NCCL_NET_PLUGIN is empty".into(),
            Some(value) => format!("NCCL_NET_PLUGIN={value}"),
        };
        let is_asked_for = set.is_some_and(|value| !value.eq_ignore_ascii_case("none"));
        let verdict = if is_asked_for { Verdict::Fail } else { Verdict::Warn };
        let text = format!("takes no plugin, but its built-in network: {setting}{passed}");
        return Finding::judge(false, verdict.min(*worst), releases.as_str(), text);
    };
    let (shown, tables) = (first.path.display(), versions(&first.tables));
    let ours = |path: &Path| is_ours(&machine.root.path(path));
    if ours(&first.path) {
        let version = build_of(&machine.root.path(&first.path)).unwrap_or_default();
        return Finding::ok(releases.as_str(), format!("takes {shown}: Ferrite {version}, ncclNet {tables}{passed}"));
    }
    let mut text = format!("takes {shown}, which is not Ferrite (ncclNet {tables}){passed}");
    if let Some(next) = later.iter().find(|plugin| ours(&plugin.path)) {
        text += &format!("; {} is Ferrite, and is taken only where that one does not start", next.path.display());
    }
    Finding::judge(false, Verdict::Warn.min(*worst), releases.as_str(), text)
}

/// The verdict on a file that NCCL does not take; `is_path` if NCCL_NET_PLUGIN names the one that it takes by its path.
/// Another copy of Ferrite is one that somebody may take for the one that is used.
fn other(machine: &Machine, path: &Path, is_path: bool) -> Finding {
    let (file, shown) = (machine.root.path(path), path.display());
    if is_path || !is_ours(&file) {
        return Finding::ok("", format!("{shown} is there as well, and is not taken"));
    }
    let version = build_of(&file).unwrap_or_default();
    Finding::warn("", format!("{shown} is there as well, and is not taken: another copy of Ferrite ({version})")).cure(
        "remove the copy that is not meant, or export NCCL_NET_PLUGIN=/PATH/TO/libnccl-net.so (NCCL 2.21 and later)",
    )
}

/// Whether the file has the name of our network in it, as a C string.
fn is_ours(file: &Path) -> bool {
    let name = b"Ferrite\0";
    std::fs::read(file).is_ok_and(|bytes| bytes.windows(name.len()).any(|window| window == name))
}

/// The version with the commit that the file tells, as `scripts/build.sh` has written it.
fn build_of(file: &Path) -> Option<String> {
    let (bytes, key) = (std::fs::read(file).ok()?, b"ferrite-version=");
    // The words alone are there too, where the program looks for them.
    let is_it = |at: &usize| bytes[*at..].starts_with(key) && bytes.get(at + key.len()).is_some_and(u8::is_ascii_digit);
    let rest = &bytes[(0..bytes.len()).find(is_it)? + key.len()..];
    let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte))?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}
