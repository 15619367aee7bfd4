//! The settings: the environment and NCCL's configuration files, against the plugin's own table of variables.

use std::collections::BTreeSet;

use nccl_net::inspect::config::Config;
use nccl_net::inspect::variables::{VARIABLES, ignored_reason};

use crate::doctor::conf_file::{self, Reading};
use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;

pub(crate) const ROWS: &[Row] = &[Row {
    name: "settings",
    what: "variables of the environment and of NCCL's configuration files (NCCL_CONF_FILE or ~/.nccl.conf; /etc/nccl.conf), with file and line: \
           each value is in range. Warn of names that do not exist, that the plugin does not honour, or that contradict its use. \
           Warn of blanks, quotation marks and comments in a file, which NCCL takes as part of the name or value",
    why: "the plugin refuses a value that is out of range, and a misspelt variable has no effect",
    cure: "correct the variable, or unset it; all are in docs/settings.md",
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
            Some(place) if is_good => found.push(Finding::ok("", format!("{name}={value}, from {place}"))),
            None if is_good && is_known => in_order.push(format!("{name}={value}")),
            _ => {}
        }
    }
    if !in_order.is_empty() {
        found.push(Finding::ok("", format!("in range, from the environment: {}", in_order.join(", "))));
    }
    found.extend(of_other_releases(machine));
    found.extend(of_environment_plugin(machine));
    if found.iter().all(|finding| finding.verdict == Verdict::Ok) {
        let known = |variable: &&nccl_net::inspect::variables::Variable| machine.var(variable.name).is_some();
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
    if machine.added.is_empty() && !conf_file::is_there(&machine.root, &machine.own_env) {
        return Vec::new();
    }
    let releases: BTreeSet<_> = machine.nccl_files().iter().filter_map(|file| file.version).collect();
    let mut found = Vec::new();
    for (major, minor, patch) in releases {
        let reading = Reading::of(Some((major, minor, patch)));
        if reading == Reading::of(machine.nccl()) {
            continue;
        }
        let other = conf_file::added(&machine.root, &machine.own_env, reading);
        let names: BTreeSet<&String> = other.keys().chain(machine.added.keys()).filter(|name| is_nccls(name)).collect();
        for name in names {
            let said = |added: &conf_file::Added| match added.get(name) {
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
    Some(Finding::unknown("", text).cure("NCCL_DEBUG=INFO: the plugin logs where it differs from the environment"))
}

/// Whether a name is, or was meant to be, one of NCCL's or of Ferrite's.
fn is_nccls(name: &str) -> bool {
    meant(name).starts_with("NCCL_") || meant(name).starts_with("FERRITE_")
}

/// A name without what people write around it.
fn meant(name: &str) -> &str {
    name.trim().trim_start_matches("export ").trim()
}

/// What belongs to a name or a value although it was hardly meant to. `None`: nothing, or it is none of NCCL's variables.
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
    if value.is_empty() {
        return None;
    }
    if VARIABLES.iter().any(|variable| variable.name == name) {
        // Alone, so that the error is this variable's.
        let parsed = Config::parse(|other| (other == name).then(|| value.to_owned()));
        return match parsed {
            Err(error) => Some(Finding::fail("", error.text())),
            Ok(_) => contradiction(name, value).map(|why| Finding::warn("", format!("{name}={value}: {why}"))),
        };
    }
    let why = match ignored_reason(name) {
        Some(why) => why,
        // This program and the project's tests have variables of their own.
        None if name.starts_with("FERRITE_") && nearest(name, 2).is_some() => "there is no such variable",
        None if name.starts_with("NCCL_") && nearest(name, 1).is_some() => "the plugin has no such variable",
        None => return None,
    };
    let near = nearest(name, 4).map_or(String::new(), |near| format!("; {near} is meant?"));
    Some(Finding::warn("", format!("{name}={value} has no effect: {why}{near}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_counts_changed_characters() {
        assert_eq!(
            (distance("abc", "abc"), distance("abc", "abd"), distance("abc", ""), distance("ac", "abc")),
            (0, 1, 3, 1)
        );
    }

    #[test]
    fn what_a_file_of_the_wrong_form_has_left_in_the_environment_is_told() {
        let said = |name: &str, value: &str| of_spelling(name, value, false).map(|finding| finding.fact);
        let of_blank = said("NCCL_IB_TC ", "106").expect("a blank");
        assert!(of_blank.contains("the blank belongs to the name, and NCCL_IB_TC is not set by it"), "{of_blank}");
        assert!(said("export NCCL_IB_TC", "106").is_some_and(|fact| fact.contains("`export`")));
        assert!(said("FERRITE_LANES", " 4").is_some_and(|fact| fact.contains("belongs to the value")));
        assert_eq!([said("NCCL_IB_TC", "106"), said("PS1 ", " $ "), said("NCCL_IB_HCA", "a #b")], [None, None, None]);
    }

    #[test]
    fn each_way_to_be_wrong_has_its_verdict() {
        let look = |name, value| of_variable(name, value).map(|finding| (finding.verdict, finding.fact));
        let (verdict, text) = look("NCCL_IB_TIMEOUT", "32").expect("out of range");
        assert_eq!((verdict, text.contains("from 0 to 31")), (Verdict::Fail, true), "{text}");
        let (verdict, text) = look("NCCL_IB_TIMOUT", "20").expect("misspelt");
        assert_eq!((verdict, text.contains("NCCL_IB_TIMEOUT is meant?")), (Verdict::Warn, true), "{text}");
        let (verdict, text) = look("NCCL_IB_DATA_DIRECT", "1").expect("not honoured");
        assert_eq!((verdict, text.contains("are not used")), (Verdict::Warn, true), "{text}");
        assert_eq!(look("FERRITE_FAILOWER", "0").map(|(verdict, _)| verdict), Some(Verdict::Warn));
        assert_eq!(look("NCCL_IB_HCA", "mlx5_0:x").map(|(verdict, _)| verdict), Some(Verdict::Fail));
        assert_eq!(look("NCCL_NET", "Socket").map(|(verdict, _)| verdict), Some(Verdict::Warn));
        for (name, value) in
            [("NCCL_DEBUG", "INFO"), ("NCCL_IB_TIMEOUT", "22"), ("PATH", "/bin"), ("NCCL_NET", "Ferrite")]
        {
            assert_eq!(look(name, value), None, "{name}");
        }
    }
}
