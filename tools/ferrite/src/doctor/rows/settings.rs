//! The settings: the environment and NCCL's configuration files, against the plugin's own table of variables.

use nccl_net::inspect::config::Config;
use nccl_net::inspect::variables::{VARIABLES, ignored_reason};

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;

pub(crate) const ROWS: &[Row] = &[Row {
    name: "settings",
    what: "variables of the environment, ~/.nccl.conf and /etc/nccl.conf: each value is in range; warn of names that do not \
           exist, that the plugin does not honour, and that contradict its use",
    why: "the plugin refuses a value that is out of range, and a misspelt variable has no effect",
    cure: "correct the variable, or unset it; all are in docs/settings.md",
    look: settings,
}];

fn settings(machine: &Machine) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        machine.env.iter().filter_map(|(name, value)| of_variable(name, value.trim())).collect();
    let set = VARIABLES.iter().filter(|variable| machine.var(variable.name).is_some()).count();
    if found.iter().all(|finding| finding.verdict == Verdict::Ok) {
        found.push(Finding::ok(
            "",
            format!("{set} of the plugin's {} variables are set, each in range", VARIABLES.len()),
        ));
    }
    found
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
