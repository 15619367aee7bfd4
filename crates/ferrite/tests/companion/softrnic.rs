//! The whole chain on the software device: stock NCCL's own IB transport, and the plugin against
//! it. Skipped, loudly, where a part is not built or not fetched.

use std::path::PathBuf;

use crate::common::{cached_nccl, dist, ferrite, loopback, stock_nccl};
use lab::measure::metric::Metric;
use lab::results::record::Record;
use testkit::{Scratch, require};

const FAST: [&str; 9] = ["--quick", "--slice", "5", "--timeout", "60", "--sizes", "8,64K", "--connections", "10"];

fn text(path: &std::path::Path) -> &str {
    path.to_str().expect("it is text")
}

#[test]
fn the_built_in_transport_runs() {
    let (dist, nccl) = (require!(dist(&["softrnic/libibverbs.so.1"])), require!(stock_nccl()));
    let report = Scratch::new();
    let mut arguments = vec!["bench", "--stock", text(&nccl), "--reps", "1", "--report", text(&report)];
    arguments.extend(FAST);
    let (code, stdout, stderr) = ferrite(&arguments, &[("FERRITE_DIST", text(&dist))]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("A = IB (built in, NCCL 2.21.5)"), "{stdout}");
}

#[test]
fn the_plugin_is_compared_with_the_built_in_transport() {
    let parts = ["softrnic/libibverbs.so.1", "lib/libnccl-net.so"];
    let (dist, nccl) = (require!(dist(&parts)), require!(stock_nccl()));
    let report = Scratch::new();
    let mut arguments = vec!["compare", "--nccl", text(&nccl), "--reps", "1", "--report", text(&report)];
    arguments.extend(FAST);
    let (code, stdout, stderr) = ferrite(&arguments, &[("FERRITE_DIST", text(&dist))]);
    // One repetition tells nothing.
    assert_eq!(code, 3, "{stdout}{stderr}");
    assert!(stdout.contains("B = Ferrite"), "{stdout}");
    let raw = std::fs::read_to_string(report.join("raw.json")).expect("it was written");
    let record: Record = serde_json::from_str(&raw).expect("it is a record");
    let names: Vec<&str> = record.sides.iter().map(|side| side.identity.name.as_str()).collect();
    assert_eq!(names, ["IB", "Ferrite"]);
    for side in &record.sides {
        let verbs = side.verbs.first().expect("both use libibverbs");
        assert!(verbs.starts_with(std::fs::canonicalize(dist.join("softrnic")).expect("it is there")), "{verbs:?}");
    }
    assert!(record.rows.iter().any(|row| row.key.metric == Metric::SetupMany && row.judgement.ratio.is_some()));
}

#[test]
fn nccls_own_loader_takes_the_plugin() {
    let parts = ["softrnic/libibverbs.so.1", "lib/libnccl-net.so"];
    let (dist, nccl) = (require!(dist(&parts)), require!(stock_nccl()));
    let (report, plugin) = (Scratch::new(), dist.join("lib/libnccl-net.so"));
    let plugin = std::fs::canonicalize(plugin).expect("it is there");
    let mut arguments = vec!["bench", "--loader", text(&plugin), "--reps", "1", "--report", text(&report)];
    arguments.extend(FAST);
    let environment = [("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl))];
    let (code, stdout, stderr) = ferrite(&arguments, &environment);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("through NCCL's loader"), "{stdout}");
}

/// The first that can be opened is taken; a release that takes no lists refuses in words.
#[test]
fn the_loader_of_nccl_2_28_takes_a_list_and_that_of_2_21_does_not() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let plugin = std::fs::canonicalize(dist.join("lib/libnccl-net.so")).expect("it is there");
    let (list, report) = (format!("spcx,/no/such.so,{}", plugin.display()), Scratch::new());
    for (release, expected) in [("2.28.9", 0), ("2.21.5", 2)] {
        let nccl = require!(cached_nccl(release));
        let mut arguments = vec!["bench", "--loader", list.as_str(), "--reps", "1", "--report", text(&report)];
        arguments.extend(FAST);
        let (code, stdout, stderr) =
            ferrite(&arguments, &[("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl))]);
        assert_eq!(code, expected, "NCCL {release}: {stdout}{stderr}");
        let words = "NCCL 2.21.5 takes one plugin, and 2.27 and later take a list";
        assert!(if code == 0 { stdout.contains("A = Ferrite") } else { stderr.contains(words) }, "{stdout}{stderr}");
    }
    let nccl = require!(cached_nccl("2.28.9"));
    let missing = ["bench", "--loader", "/no/such.so,/no/other.so"];
    let (code, _, stderr) = ferrite(&missing, &[("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl))]);
    assert_eq!(code, 2);
    assert!(stderr.contains("cannot open /no/such.so"), "{stderr}");
}

/// NCCL 2.20 makes `libnccl-net-VALUE.so` of every value of `NCCL_NET_PLUGIN`, so it takes a name and no path.
#[test]
fn the_loader_of_nccl_2_20_takes_a_name_and_no_path() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net-ferrite.so"]));
    let nccl = require!(cached_nccl("2.20.5"));
    let folder = std::fs::canonicalize(dist.join("lib")).expect("it is there");
    let path = folder.join("libnccl-net.so");
    let report = Scratch::new();
    for (value, code) in [("ferrite", 0), (text(&path), 2)] {
        let mut arguments = vec!["bench", "--loader", value, "--reps", "1", "--report", text(&report)];
        arguments.extend(FAST);
        let environment =
            [("FERRITE_DIST", text(&dist)), ("FERRITE_NCCL", text(&nccl)), ("LD_LIBRARY_PATH", text(&folder))];
        let (found, stdout, stderr) = ferrite(&arguments, &environment);
        assert_eq!(found, code, "{value}: {stdout}{stderr}");
        let words = format!("did not take NCCL_NET_PLUGIN={value}");
        assert!(if code == 0 { stdout.contains("A = Ferrite") } else { stderr.contains(&words) }, "{stdout}{stderr}");
    }
}

#[test]
fn a_transport_that_does_not_use_the_software_device_is_refused() {
    let folder = Scratch::new();
    std::fs::write(folder.join("libibverbs.so.1"), "").expect("it can be written");
    let plugin = loopback();
    let mut arguments = vec!["bench", "--plugin", text(&plugin), "--softrnic", text(&folder)];
    arguments.extend(FAST);
    let (code, _, stderr) = ferrite(&arguments, &[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("has mapped no libibverbs at all"), "{stderr}");
}

/// A copy of the plugin that says it is another build, in place of an older release.
fn another_build(plugin: &std::path::Path, folder: &Scratch) -> PathBuf {
    let mut bytes = std::fs::read(plugin).expect("it is there");
    // Followed by digits: what reads it has the words alone.
    let label = b"ferrite-version=0.";
    let at = bytes.windows(label.len()).position(|window| window == label).expect("it tells its version");
    let build = bytes[at..].iter().position(|byte| *byte == b'+').expect("a commit") + at + 1;
    bytes[build..build + 12].copy_from_slice(b"0123456789ab");
    let path = folder.join("older.so");
    std::fs::write(&path, bytes).expect("it can be written");
    path
}

#[test]
fn two_builds_of_the_plugin_are_verified_against_each_other() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let (folder, plugin) = (Scratch::new(), dist.join("lib/libnccl-net.so"));
    let older = another_build(&plugin, &folder);
    for (zero, one) in [(&plugin, &older), (&older, &plugin)] {
        let arguments =
            ["verify", "--plugin", text(zero), "--peer-plugin", text(one), "--over", "single", "--long", "50"];
        let (code, stdout, stderr) = ferrite(&arguments, &[("FERRITE_DIST", text(&dist))]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        let (rank0, rank1) = stdout.split_once("; rank 1: Ferrite ").expect("both are named");
        let is_older = |words: &str| words.lines().next().is_some_and(|line| line.contains("+0123456789ab"));
        assert_eq!((is_older(rank0), is_older(rank1)), (zero == &older, one == &older), "{stdout}");
    }
}

#[test]
fn a_plugin_that_the_other_end_does_not_understand_is_told_with_what_it_says() {
    let dist = require!(dist(&["softrnic/libibverbs.so.1", "lib/libnccl-net.so"]));
    let plugin = dist.join("lib/libnccl-net.so");
    let foreign = loopback();
    let run = |peer: &std::path::Path| {
        let arguments = ["verify", "--plugin", text(&plugin), "--peer-plugin", text(peer), "--over", "single"];
        ferrite(&arguments, &[("FERRITE_DIST", text(&dist))])
    };
    let (code, stdout, stderr) = run(&foreign);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    let (code, _, stderr) = run(&plugin);
    assert_eq!(code, 2);
    assert!(stderr.contains("--peer-plugin is the file that --plugin names"), "{stderr}");
}
