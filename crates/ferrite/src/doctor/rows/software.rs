//! Which network plugin NCCL would load.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab::nccl::debug_log::SUBSYSTEMS;
use lab::nccl::plugin_search::{
    DEFAULT_FILE, NcclFile, Outcome, PluginSearch, SEARCHES, Version, versions,
};
use nccl_net::inspect::config::Config;
use nccl_net::inspect::iface;
use nccl_net::inspect::iface::Interface;
use nccl_net::inspect::variables::{VARIABLES, ignored_reason};

use crate::doctor::machine;
use crate::doctor::machine::{Machine, Reading};
use crate::doctor::report::{Finding, Row, Verdict};

pub(crate) const ROWS: &[Row] = &[Row {
    name: "plugins",
    what: "which network plugin each NCCL release loads: FAIL if none by NCCL_NET_PLUGIN; warn if unset, not Ferrite, or several copies",
    why: "images have plugins of their own, releases read NCCL_NET_PLUGIN in different ways, and NCCL silently uses its built-in network if it finds no plugin",
    cure: "export NCCL_NET_PLUGIN=/PATH/TO/libnccl-net.so (NCCL 2.21 and later take a path), and NCCL_NET=Ferrite to be sure",
    look: plugins,
}];

/// What releases make of the setting, in one line.
struct Judged {
    /// Which releases.
    releases: String,
    /// The worst verdict on it: where none of the releases is found here, it depends on what later
    /// ones take.
    worst: Verdict,
    outcome: Outcome,
}

/// The releases that are found here, else all; those in a row that take the same are one, with what
/// the newest has to say.
fn judge(machine: &Machine) -> Vec<Judged> {
    let setting = machine.env.get("NCCL_NET_PLUGIN").map(String::as_str);
    let outcome =
        |search: &PluginSearch| search.outcome(setting, |file| machine.loader().open(file));
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

/// Adds what releases take; `named` makes their name, of that of those before them if these take
/// the same.
fn add(
    judged: &mut Vec<Judged>,
    outcome: Outcome,
    worst: Verdict,
    named: impl FnOnce(Option<&str>) -> String,
) {
    match judged.last_mut().filter(|last| last.outcome.plugins == outcome.plugins) {
        Some(last) => *last = Judged { releases: named(Some(&last.releases)), worst, outcome },
        None => judged.push(Judged { releases: named(None), worst, outcome }),
    }
}

fn plugins(machine: &Machine) -> Vec<Finding> {
    let judged = judge(machine);
    let mut found: Vec<Finding> =
        judged.iter().map(|judged| of_releases(machine, judged)).collect();
    let taken: Vec<&PathBuf> = judged
        .iter()
        .flat_map(|judged| &judged.outcome.plugins)
        .map(|plugin| &plugin.path)
        .collect();
    let setting = machine.var("NCCL_NET_PLUGIN");
    let names =
        [Some(DEFAULT_FILE.to_owned()), setting.map(|name| format!("libnccl-net-{name}.so"))];
    let others = names
        .iter()
        .flatten()
        .filter(|name| !name.contains('/'))
        .flat_map(|name| machine.loader().places(name));
    for path in others {
        let is_same =
            |other: &&PathBuf| machine.root.resolved(other) == machine.root.resolved(&path);
        if !taken.iter().any(is_same) {
            found.push(other(machine, &path, setting.is_some_and(|value| value.contains('/'))));
        }
    }
    found
}

/// The verdict on what releases take.
fn of_releases(machine: &Machine, judged: &Judged) -> Finding {
    let Judged { releases, worst, outcome } = judged;
    let passed = if outcome.passed.is_empty() {
        String::new()
    } else {
        format!(" ({})", outcome.passed.join("; "))
    };
    let Some((first, later)) = outcome.plugins.split_first() else {
        let set = machine.env.get("NCCL_NET_PLUGIN").filter(|value| !value.is_empty());
        let setting = match machine.env.get("NCCL_NET_PLUGIN") {
            None => "NCCL_NET_PLUGIN is not set".into(),
            Some(value) if value.is_empty() => "NCCL_NET_PLUGIN is empty".into(),
            Some(value) => format!("NCCL_NET_PLUGIN={value}"),
        };
        let is_asked_for = set.is_some_and(|value| !value.eq_ignore_ascii_case("none"));
        let verdict = if is_asked_for { Verdict::Fail } else { Verdict::Warn };
        let text = format!("takes no plugin and uses its built-in network: {setting}{passed}");
        return Finding::judge(false, verdict.min(*worst), releases.as_str(), text);
    };
    let (shown, tables) = (first.path.display(), versions(&first.tables));
    let ours = |path: &Path| is_ours(&machine.root.path(path));
    if ours(&first.path) {
        let version = build_of(&machine.root.path(&first.path)).unwrap_or_default();
        return Finding::ok(
            releases.as_str(),
            format!("takes {shown}: Ferrite {version}, ncclNet {tables}{passed}"),
        );
    }
    let mut text = format!("takes {shown}, which is not Ferrite (ncclNet {tables}){passed}");
    if let Some(next) = later.iter().find(|plugin| ours(&plugin.path)) {
        text += &format!(
            "; {} is Ferrite, and is taken only where that one does not start",
            next.path.display()
        );
    }
    Finding::judge(false, Verdict::Warn.min(*worst), releases.as_str(), text)
}

/// The verdict on a file that NCCL does not take; `is_path` if NCCL_NET_PLUGIN names the one that
/// it takes by its path. Another copy of Ferrite is one that somebody may take for the one that is
/// used.
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
    let is_it = |at: &usize| {
        bytes[*at..].starts_with(key) && bytes.get(at + key.len()).is_some_and(u8::is_ascii_digit)
    };
    let rest = &bytes[(0..bytes.len()).find(is_it)? + key.len()..];
    let end =
        rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte))?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

pub(crate) const VERSION_ROWS: &[Row] = &[
    Row {
        name: "nccl",
        what: "each libnccl.so.2, its version, and which one PyTorch loads; warn below 2.20, for 2.23 to 2.27, if versions differ or wheels share a file",
        why: "the plugin serves NCCL 2.20 and later. In 2.23 to 2.25 ncclCommAbort never returns after a network error. 2.26 and 2.27 do not report it to the application. A process loads the first that it finds",
        cure: "keep one version, 2.28.3 or later so that jobs see errors: remove the others, or set LD_LIBRARY_PATH to its folder",
        look: nccl,
    },
    Row {
        name: "firmware",
        what: "RDMA devices of one model have the same firmware",
        why: "fused ports and ranks behave alike only with the same firmware",
        cure: "update the older one (`mlxfwmanager`, `flint`), then reset the card",
        look: firmware,
    },
    Row {
        name: "kernel-log",
        what: "the kernel's log, if readable, has no fault of a GPU (Xid), an RDMA driver or the PCIe bus (AER)",
        why: "hardware that is about to fail often reports it there first",
        cure: "follow the line: NVIDIA documents Xid numbers, AER names the PCIe function, and health errors of mlx5 need a reset",
        look: kernel_log,
    },
];

fn nccl(machine: &Machine) -> Vec<Finding> {
    let files = machine.nccl_files();
    if files.is_empty() {
        return vec![Finding::unknown("", "no libnccl.so.2 where the loader and Python look")];
    }
    let mut found: Vec<Finding> = files.iter().map(of_file).collect();
    found.extend(files.iter().filter_map(of_wheels));
    let versions: BTreeSet<Version> = files.iter().filter_map(|file| file.version).collect();
    let of_pytorch = files.iter().find(|file| file.is_of_pytorch);
    if versions.len() > 1 {
        found.push(match of_pytorch.filter(|file| file.version.is_some()) {
            Some(own) => Finding::ok(
                "",
                format!(
                    "{} different versions: PyTorch takes {}, other programs the loader's",
                    versions.len(),
                    own.path.display()
                ),
            ),
            None => Finding::warn(
                "",
                format!(
                    "{} different versions: a process takes the first that it finds",
                    versions.len()
                ),
            ),
        });
    }
    found.extend(machine.nccl().into_iter().flat_map(beside_the_plugin));
    found
}

fn of_file(NcclFile { path, version, is_of_pytorch, .. }: &NcclFile) -> Finding {
    let shown = path.display();
    let Some(version) = version else {
        return Finding::unknown("", format!("{shown}: its version is not known"));
    };
    let who = if *is_of_pytorch { ", which PyTorch takes" } else { "" };
    let text = format!("{shown}: {}.{}.{}{who}", version.0, version.1, version.2);
    match version {
        _ if *version < (2, 20, 0) => Finding::warn("", text),
        (2, 23..=25, _) => Finding::warn(
            "",
            format!("{text}: ncclCommAbort does not return after a network error"),
        ),
        (2, 26 | 27, _) => {
            Finding::warn("", format!("{text}: network errors do not reach the application"))
        }
        _ => Finding::ok("", text),
    }
}

/// The verdict on a file that several wheels install.
fn of_wheels(NcclFile { path, wheels, .. }: &NcclFile) -> Option<Finding> {
    if wheels.len() < 2 {
        return None;
    }
    let packages: Vec<&str> = wheels.iter().filter_map(|wheel| wheel.split(' ').next()).collect();
    let text = format!(
        "{} is a file of {}: the last that was installed has overwritten the others",
        path.display(),
        wheels.join(" and ")
    );
    Some(Finding::warn("", text).cure(format!(
        "pip uninstall {}; then pip install the one that `pip show torch` requires, in the release that this line gives for it",
        packages.join(" ")
    )))
}

/// What a release sends over its built-in transport although it has the plugin.
fn beside_the_plugin(version: Version) -> Vec<Finding> {
    let (major, minor, patch) = version;
    let mut found = Vec::new();
    if (major, minor) >= (2, 29) {
        let text = format!(
            "NCCL {major}.{minor}.{patch} sends one-sided operations (ncclPutSignal) over its built-in transport, never over a plugin"
        );
        found.push(Finding::ok("", text));
    }
    if (major, minor) >= (2, 30) {
        let text = format!(
            "NCCL {major}.{minor}.{patch} also opens every RDMA device itself (`NET/IB : Using`), whatever carries the data"
        );
        found.push(Finding::ok("", text));
    }
    found
}

fn firmware(machine: &Machine) -> Vec<Finding> {
    let class = Path::new("/sys/class/infiniband");
    let text = |device: &str, file: &str| machine.root.text(class.join(device).join(file));
    let devices: Vec<(String, String, String)> = machine
        .root
        .names(class)
        .into_iter()
        .filter_map(|name| Some((text(&name, "hca_type")?, text(&name, "fw_ver")?, name)))
        .collect();
    let of_device = |(kind, version, name): &(String, String, String)| {
        let other = devices.iter().find(|(other, theirs, _)| other == kind && theirs != version);
        let said = format!("{kind}, firmware {version}");
        match other {
            None => Finding::ok(name.as_str(), said),
            Some((_, theirs, other)) => {
                Finding::warn(name.as_str(), format!("{said}, and {other} has {theirs}"))
            }
        }
    };
    if devices.is_empty() {
        return vec![Finding::unknown("", "/sys shows no firmware")];
    }
    devices.iter().map(of_device).collect()
}

/// Lines that are shown at most.
const SHOWN: usize = 3;

fn kernel_log(machine: &Machine) -> Vec<Finding> {
    let Some(text) = machine.kernel_log() else {
        return vec![Finding::unknown(
            "",
            "it may not be read here (as root, or with kernel.dmesg_restrict=0)",
        )];
    };
    let bad: Vec<&str> = text.lines().filter(|line| is_fault(line)).collect();
    if bad.is_empty() {
        return vec![Finding::ok("", format!("{} lines, no fault", text.lines().count()))];
    }
    let shown = bad.iter().rev().take(SHOWN).map(|line| Finding::warn("", (*line).to_owned()));
    let more = bad.len().saturating_sub(SHOWN);
    shown.chain((more > 0).then(|| Finding::warn("", format!("and {more} more")))).collect()
}

fn is_fault(line: &str) -> bool {
    let has = |words: &[&str]| words.iter().all(|word| line.contains(word));
    has(&["NVRM", "Xid"])
        || has(&["AER:", "rror"])
        || has(&["PCIe Bus Error"])
        || ["mlx5_core", "bnxt_en", "irdma", "mlx4_core"].iter().any(|driver| line.contains(driver))
            && ["health", "error", "FATAL", "timeout"].iter().any(|word| line.contains(word))
}

pub(crate) const SETTING_ROWS: &[Row] = &[Row {
    name: "settings",
    what: "values in the environment and NCCL's configuration files are in range; warn of unknown, ignored or contradictory names, and of blanks, quotes or comments",
    why: "the plugin refuses a value that is out of range, and a misspelt variable has no effect",
    cure: "correct or unset the variable; docs/settings.md has all",
    look: settings,
}];

fn settings(machine: &Machine) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    let mut in_order: Vec<String> = Vec::new();
    for (name, value) in &machine.env {
        let place = machine.added.get(name).map(|(_, place)| place.to_string());
        let from = place.as_ref().map_or(String::new(), |place| format!(" (from {place})"));
        let spelling = of_spelling(name, value, place.is_some());
        // A name that is not what it was meant to be sets nothing.
        let has_effect = spelling.is_none() || meant(name) == name;
        let said = [spelling, of_variable(name, value.trim()).filter(|_| has_effect)];
        let is_good = said.iter().all(Option::is_none);
        found.extend(said.into_iter().flatten().map(|mut finding| {
            finding.fact += &from;
            finding
        }));
        let is_known = VARIABLES.iter().any(|variable| variable.name == name) && !value.is_empty();
        match place {
            Some(place) if is_good => {
                found.push(Finding::ok("", format!("{name}={value}, from {place}")))
            }
            None if is_good && is_known => in_order.push(format!("{name}={value}")),
            _ => {}
        }
    }
    if !in_order.is_empty() {
        found.push(Finding::ok(
            "",
            format!("in range, from the environment: {}", in_order.join(", ")),
        ));
    }
    found.extend(of_other_releases(machine));
    found.extend(of_environment_plugin(machine));
    found.extend(of_force_merge(machine));
    if found.iter().all(|finding| finding.verdict == Verdict::Ok) {
        let known = |variable: &&nccl_net::inspect::variables::Variable| {
            machine.var(variable.name).is_some()
        };
        let set = VARIABLES.iter().filter(known).count();
        found.push(Finding::ok(
            "",
            format!("{set} of the plugin's {} variables are set, each in range", VARIABLES.len()),
        ));
    }
    found
}

/// Variables that another release of NCCL that is found here reads otherwise from the files.
fn of_other_releases(machine: &Machine) -> Vec<Finding> {
    if machine.added.is_empty() && !machine::is_there(&machine.root, &machine.own_env) {
        return Vec::new();
    }
    let releases: BTreeSet<_> =
        machine.nccl_files().iter().filter_map(|file| file.version).collect();
    let mut found = Vec::new();
    for (major, minor, patch) in releases {
        let reading = Reading::of(Some((major, minor, patch)));
        if reading == Reading::of(machine.nccl()) {
            continue;
        }
        let other = machine::added_by_files(&machine.root, &machine.own_env, reading);
        let names: BTreeSet<&String> =
            other.keys().chain(machine.added.keys()).filter(|name| is_nccls(name)).collect();
        for name in names {
            let said = |added: &machine::Added| match added.get(name) {
                Some((value, place)) => format!("{value} (from {place})"),
                None => "not set".into(),
            };
            let (here, there) = (said(&machine.added), said(&other));
            if here != there {
                let text = format!(
                    "{name}: NCCL {major}.{minor}.{patch}, which is here too, reads the files differently: {there}"
                );
                found.push(Finding::warn("", text));
            }
        }
    }
    found
}

/// A library that NCCL asks instead of the environment.
fn of_environment_plugin(machine: &Machine) -> Option<Finding> {
    let named = machine.var("NCCL_ENV_PLUGIN");
    let library = match named {
        Some(name) if name.eq_ignore_ascii_case("none") => return None,
        Some(name) => format!("NCCL_ENV_PLUGIN={name}"),
        None => machine.loader().places("libnccl-env.so").first()?.display().to_string(),
    };
    let text = format!(
        "{library}: NCCL 2.28.9 and later ask it instead of the environment, and the doctor does not see what it sets"
    );
    Some(
        Finding::unknown("", text)
            .cure("NCCL_DEBUG=INFO: the plugin logs where it differs from the environment"),
    )
}

/// The names in `NCCL_NET_FORCE_MERGE` that no device of the plugin has. NCCL then fails.
fn of_force_merge(machine: &Machine) -> Option<Finding> {
    let (value, facts) = (machine.var("NCCL_NET_FORCE_MERGE")?, machine.verbs().ok()?);
    let used = facts.ports().filter(|(_, device, port)| facts.is_used(device, port));
    let devices: Vec<String> = used
        .map(|(_, device, port)| match device.ports.len() {
            1 => device.name.clone(),
            _ => format!("{}/{}", device.name, port.port),
        })
        .collect();
    // NCCL takes a colon for the beginning of a port's number.
    let own = |name: &str| name.split(':').next().unwrap_or_default().trim().to_owned();
    let unknown: Vec<&str> = value
        .split([';', ','])
        .map(str::trim)
        .filter(|name| !name.is_empty() && !devices.contains(&own(name)))
        .collect();
    let text = format!(
        "NCCL_NET_FORCE_MERGE: no device is called {}; NCCL from 2.24 on ends each communicator",
        unknown.join(", ")
    );
    (!unknown.is_empty() && !devices.is_empty())
        .then(|| Finding::warn("", text).cure(format!("names are {}", devices.join(", "))))
}

/// Whether a name is, or was meant to be, one of NCCL's or of Ferrite's.
fn is_nccls(name: &str) -> bool {
    meant(name).starts_with("NCCL_") || meant(name).starts_with("FERRITE_")
}

/// A name without what people write around it.
fn meant(name: &str) -> &str {
    name.trim().trim_start_matches("export ").trim()
}

/// What belongs to a name or a value although it was hardly meant to. `None`: nothing, or it is
/// none of NCCL's variables.
fn of_spelling(name: &str, value: &str, is_of_file: bool) -> Option<Finding> {
    if !is_nccls(name) {
        return None;
    }
    let meant = meant(name);
    let why = if name != meant {
        let what = if name.starts_with("export ") { "the word `export`" } else { "the blank" };
        format!("{what} belongs to the name, and {meant} is not set by it")
    } else if value != value.trim() {
        "the blank at the end or the beginning belongs to the value for NCCL".into()
    } else if is_of_file && value.contains(" #") {
        "the comment belongs to the value".into()
    } else if is_of_file && value.starts_with(['"', '\'']) {
        "the quotation marks belong to the value".into()
    } else {
        return None;
    };
    let cure = "write NAME=VALUE from the first column on, without blanks, quotation marks or a comment behind it";
    Some(Finding::warn("", format!("{:?}: {why}", format!("{name}={value}"))).cure(cure))
}

/// What is to be said of a variable. `None`: nothing.
fn of_variable(name: &str, value: &str) -> Option<Finding> {
    let of_nccl = match name {
        "NCCL_HOSTID" if value.is_empty() => Some((
            "an empty value is not unset: NCCL takes all hosts with it for one host".to_owned(),
            "unset it, or give each host its own value",
        )),
        "NCCL_DEBUG" if !value.is_empty() && !is_any(value, &LEVELS) => Some((
            "NCCL does not know this level, and logs nothing".to_owned(),
            "NCCL_DEBUG=WARN or INFO",
        )),
        "NCCL_DEBUG_SUBSYS" => of_subsystems(value)
            .map(|why| (why, "unset it, or use NCCL's names, with commas and without blanks")),
        _ => None,
    };
    if let Some((why, cure)) = of_nccl {
        return Some(Finding::warn("", format!("{name}={value:?}: {why}")).cure(cure));
    }
    if value.is_empty() {
        return None;
    }
    if VARIABLES.iter().any(|variable| variable.name == name) {
        // Alone, so that the error is this variable's.
        let parsed = Config::parse(|other| (other == name).then(|| value.to_owned()));
        return match parsed {
            Err(error) => Some(Finding::fail("", error.text())),
            Ok(_) => contradiction(name, value)
                .map(|why| Finding::warn("", format!("{name}={value}: {why}"))),
        };
    }
    let why = match ignored_reason(name, value) {
        Some(reason) => reason.text,
        // This program and the project's tests have variables of their own.
        None if name.starts_with("FERRITE_") && nearest(name, 2).is_some() => {
            "there is no such variable".to_owned()
        }
        None if name.starts_with("NCCL_") && nearest(name, 1).is_some() => {
            "the plugin has no such variable".to_owned()
        }
        None => return None,
    };
    let near = nearest(name, 4).map_or(String::new(), |near| format!("; {near} is meant?"));
    Some(Finding::warn("", format!("{name}={value} has no effect: {why}{near}")))
}

/// Whether NCCL, which ignores case, takes `word` for one of `names`.
fn is_any(word: &str, names: &[&str]) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case(word))
}

/// The levels of all NCCL releases.
const LEVELS: [&str; 6] = ["VERSION", "WARN", "ATTN", "INFO", "ABORT", "TRACE"];
/// The subsystems that NCCL has besides those of 2.21.5, and the word for all.
const MORE_SUBSYSTEMS: [&str; 5] = ["ALLOC_HOST", "PROFILE", "RAS", "DESTROY", "ALL"];

/// What is wrong with a value of `NCCL_DEBUG_SUBSYS`. `None`: nothing.
fn of_subsystems(value: &str) -> Option<String> {
    let list = value.strip_prefix('^').unwrap_or(value);
    let words = || list.split(',').filter(|word| !word.is_empty());
    if value.is_empty() || list != value && words().any(|word| is_any(word, &["ALL"])) {
        return Some("NCCL then logs nothing at all, no warnings either".to_owned());
    }
    let is_known = |word: &str| is_any(word, &SUBSYSTEMS) || is_any(word, &MORE_SUBSYSTEMS);
    let unknown = words().find(|word| !is_known(word))?;
    Some(if is_known(unknown.trim()) {
        format!("NCCL up to 2.29 does not know {unknown:?}, with the blank, and ignores it")
    } else {
        format!(
            "NCCL does not know {unknown:?}: up to 2.29 it ignores the word, later ones the list"
        )
    })
}

/// Why a value that is in range keeps the plugin from being used.
fn contradiction(name: &str, value: &str) -> Option<&'static str> {
    match name {
        "NCCL_NET" if !value.eq_ignore_ascii_case("Ferrite") => {
            Some("NCCL uses the network of that name, not the plugin")
        }
        "NCCL_IB_DISABLE" if value == "1" => Some("the plugin reports no device"),
        _ => None,
    }
}

/// The plugin's variable that differs least from `name`, in `most` characters at most.
fn nearest(name: &str, most: usize) -> Option<&'static str> {
    let distances = VARIABLES.iter().map(|variable| (distance(name, variable.name), variable.name));
    distances.min().filter(|(distance, _)| *distance <= most).map(|(_, name)| name)
}

/// Characters to insert, to remove or to replace, to make one text of the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

pub(crate) const CONTROL_ROWS: &[Row] = &[
    Row {
        name: "control",
        what: "the interface for connection set-up (TCP); warn if other hosts cannot reach it, or an entry of NCCL_SOCKET_IFNAME matches none",
        why: "peers connect to this address; loopback, docker's bridge and link-local addresses lead nowhere from another host",
        cure: "NCCL_SOCKET_IFNAME=DEV, an interface that all hosts of the job reach; NCCL_SOCKET_FAMILY for the address family",
        look: control,
    },
    Row {
        name: "control-port",
        what: "this host reaches a TCP port on that interface, chosen by the system",
        why: "each process of a job listens at one such port; a firewall that drops it lets every connection time out",
        cure: "open the ports of net.ipv4.ip_local_port_range between the hosts of the job (iptables, nft, network policies)",
        look: control_port,
    },
];

/// A port of this host answers at once, or not at all.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The settings of the job that choose the interface.
fn config(machine: &Machine) -> Result<Config, String> {
    let lookup = |name: &str| match name {
        "NCCL_SOCKET_IFNAME" | "NCCL_SOCKET_FAMILY" | "NCCL_COMM_ID" => {
            machine.env.get(name).cloned()
        }
        _ => None,
    };
    Config::parse(lookup).map_err(|error| error.text())
}

/// The interface that the plugin would take, with the settings of the job.
///
/// # Errors
/// The settings are out of range, or no interface fits.
pub(crate) fn chosen(machine: &Machine) -> Result<Interface, String> {
    iface::choose(&config(machine)?.interfaces).map_err(|error| error.text())
}

fn control(machine: &Machine) -> Vec<Finding> {
    let Interface { name, address } = match chosen(machine) {
        Ok(interface) => interface,
        Err(why) => return vec![Finding::fail("", why)],
    };
    let state = machine
        .root
        .text(format!("/sys/class/net/{name}/operstate"))
        .filter(|state| state != "unknown");
    let speed =
        machine.root.number(format!("/sys/class/net/{name}/speed")).filter(|mbps| *mbps > 0);
    let mut text = format!("{} ({})", name, address.ip());
    text += &state.map_or(String::new(), |state| format!(", {state}"));
    text += &speed.map_or(String::new(), |mbps| format!(", {} Gb/s", mbps as f64 / 1000.0));
    let mut found = match unreachable_reason(&name, address) {
        None => vec![Finding::ok("", text)],
        Some(why) => vec![Finding::warn("", format!("{text}: {why}"))],
    };
    let filter = config(machine).map(|config| config.interfaces).unwrap_or_default();
    let without = filter.without_effect();
    found.extend(without.into_iter().map(|entry| {
        let text = format!("NCCL_SOCKET_IFNAME={}: {}", filter.text(), entry.why);
        Finding::judge(!entry.is_mistake, Verdict::Warn, "", text)
    }));
    found
}

fn control_port(machine: &Machine) -> Vec<Finding> {
    let Ok(Interface { address, .. }) = chosen(machine) else {
        return vec![Finding::unknown("", "no interface: see `control`")];
    };
    match TcpListener::bind(address).and_then(|listener| Ok((listener.local_addr()?, listener))) {
        Ok((place, _listener)) => vec![reached(place)],
        Err(problem) => {
            vec![Finding::fail("", format!("nothing can listen on {}: {problem}", address.ip()))]
        }
    }
}

/// Whether something that listens at `place` can be reached.
fn reached(place: SocketAddr) -> Finding {
    match TcpStream::connect_timeout(&place, TIME_LIMIT) {
        Ok(_) => Finding::ok("", format!("{place} was reached")),
        Err(problem) => Finding::fail("", format!("{place} cannot be reached: {problem}")),
    }
}

/// Why no other host reaches the address.
fn unreachable_reason(name: &str, address: SocketAddr) -> Option<&'static str> {
    let is_link_local = match address.ip() {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if address.ip().is_loopback() {
        return Some("no other host reaches it");
    }
    if name.starts_with("docker") || name.starts_with("virbr") {
        return Some("a bridge of this host alone");
    }
    is_link_local.then_some("link-local, not routed")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::machine::{DeviceFacts, PortFacts, RailFacts, VerbsFacts};

    #[test]
    fn devices_that_nccl_net_force_merge_names_and_nobody_has_are_warned_of() {
        let port = |port| PortFacts { port, active: true, ..PortFacts::default() };
        let device = |name: &str, ports: &[u8]| DeviceFacts {
            name: name.into(),
            ports: ports.iter().map(|number| port(*number)).collect(),
            ..DeviceFacts::default()
        };
        let rail =
            |device: &str, port| RailFacts { device: device.into(), port, ..RailFacts::default() };
        let facts = VerbsFacts {
            devices: vec![device("x0", &[1, 2]), device("x1", &[1])],
            rails: vec![rail("x0", 1), rail("x0", 2), rail("x1", 1)],
            ..VerbsFacts::default()
        };
        let said = |value: &str| {
            let env = [("NCCL_NET_FORCE_MERGE", value)];
            let machine = Machine::made_up(Path::new("/nonexistent"), &env, facts.clone());
            of_force_merge(&machine).map(|finding| finding.fact)
        };
        assert_eq!(["x0/1,x0/2", "x0/1, x1; x0/2:1,", ""].map(said), [None, None, None]);
        for (value, unknown) in [("x0:1,x0:2", "x0:1, x0:2;"), ("x1,x2", " x2;"), ("x0,x1", " x0;")]
        {
            let fact = said(value).expect("a warning");
            assert!(fact.contains(unknown), "{fact}");
        }
    }

    #[test]
    fn the_distance_counts_changed_characters() {
        assert_eq!(
            (
                distance("abc", "abc"),
                distance("abc", "abd"),
                distance("abc", ""),
                distance("ac", "abc")
            ),
            (0, 1, 3, 1)
        );
    }

    #[test]
    fn what_a_file_of_the_wrong_form_has_left_in_the_environment_is_told() {
        let said =
            |name: &str, value: &str| of_spelling(name, value, false).map(|finding| finding.fact);
        let of_blank = said("NCCL_IB_TC ", "106").expect("a blank");
        assert!(
            of_blank.contains("the blank belongs to the name, and NCCL_IB_TC is not set by it"),
            "{of_blank}"
        );
        assert!(said("export NCCL_IB_TC", "106").is_some_and(|fact| fact.contains("`export`")));
        assert!(
            said("FERRITE_LANES", " 4").is_some_and(|fact| fact.contains("belongs to the value"))
        );
        assert_eq!(
            [said("NCCL_IB_TC", "106"), said("PS1 ", " $ "), said("NCCL_IB_HCA", "a #b")],
            [None, None, None]
        );
    }

    #[test]
    fn each_way_to_be_wrong_has_its_verdict() {
        let look =
            |name, value| of_variable(name, value).map(|finding| (finding.verdict, finding.fact));
        let (verdict, text) = look("NCCL_IB_TIMEOUT", "32").expect("out of range");
        assert_eq!((verdict, text.contains("from 0 to 31")), (Verdict::Fail, true), "{text}");
        let (verdict, text) = look("NCCL_IB_TIMOUT", "20").expect("misspelt");
        assert_eq!(
            (verdict, text.contains("NCCL_IB_TIMEOUT is meant?")),
            (Verdict::Warn, true),
            "{text}"
        );
        let (verdict, text) = look("NCCL_IB_DATA_DIRECT", "1").expect("not honoured");
        assert_eq!((verdict, text.contains("does not use")), (Verdict::Warn, true), "{text}");
        assert_eq!(look("FERRITE_FAILOWER", "0").map(|(verdict, _)| verdict), Some(Verdict::Warn));
        assert_eq!(
            look("NCCL_IB_HCA", "mlx5_0:x").map(|(verdict, _)| verdict),
            Some(Verdict::Fail)
        );
        assert_eq!(look("NCCL_NET", "Socket").map(|(verdict, _)| verdict), Some(Verdict::Warn));
        for (name, value, why) in [
            ("NCCL_HOSTID", "", "one host"),
            ("NCCL_DEBUG", "WARNING", "logs nothing"),
            ("NCCL_DEBUG_SUBSYS", "", "warnings"),
            ("NCCL_DEBUG_SUBSYS", "^INIT,all", "warnings"),
            ("NCCL_DEBUG_SUBSYS", "NET,NETT", "\"NETT\""),
            ("NCCL_DEBUG_SUBSYS", "ALL,x", "\"x\""),
            ("NCCL_DEBUG_SUBSYS", "NET, INIT", "\" INIT\""),
        ] {
            let (verdict, text) = look(name, value).unwrap_or_else(|| panic!("{name}={value}"));
            assert_eq!((verdict, text.contains(why)), (Verdict::Warn, true), "{text}");
        }
        for (name, value) in [
            ("NCCL_HOSTID", "node1"),
            ("NCCL_DEBUG", "warn"),
            ("NCCL_DEBUG_SUBSYS", "init,NET,,RAS"),
            ("NCCL_DEBUG_SUBSYS", "^DESTROY"),
            ("NCCL_IB_HCA", ""),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_IB_TIMEOUT", "22"),
            ("PATH", "/bin"),
            ("NCCL_NET", "Ferrite"),
        ] {
            assert_eq!(look(name, value), None, "{name}");
        }
    }

    #[test]
    fn a_port_that_refuses_fails() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let place = listener.local_addr().expect("its address");
        assert_eq!(reached(place).verdict, Verdict::Ok);
        let refusing = testkit::port::OwnPort::new();
        assert_eq!(reached(refusing.address()).verdict, Verdict::Fail);
    }

    #[test]
    fn addresses_that_no_other_host_reaches_are_known() {
        let why = |name, address: &str| {
            unreachable_reason(name, address.parse().expect("an address")).is_some()
        };
        assert!(
            why("lo", "127.0.0.1:0")
                && why("docker0", "172.17.0.1:0")
                && why("eth0", "169.254.3.4:0")
        );
        assert!(why("eth0", "[fe80::1]:0"));
        assert!(!why("eth0", "10.0.0.1:0") && !why("ib0", "[fd00::1]:0"));
    }
}
