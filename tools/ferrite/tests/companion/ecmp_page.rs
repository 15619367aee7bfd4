//! What docs/paths.md has of `ferrite ecmp`: an example, and the table and the picture of the runs that are kept in benchmarks/paths/model.
//! `FERRITE_UPDATE=1 cargo test -p ferrite --test companion ecmp_page` writes them, and benchmarks/paths/model/report.md.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::dist;
use testkit::{Scratch, program, require};

/// How the example begins, and the line that ends it.
const PROMPT: &str = "$ ferrite ";
const EXAMPLE: &str = "```console\n$ ferrite ecmp ";
const END_OF_EXAMPLE: &str = "```\n";
/// What stands around the table.
const TABLE: &str = "<!-- figures: ferrite ecmp --results benchmarks/paths/model/*.json -->\n\n";
const END_OF_TABLE: &str = "\n<!-- end of figures -->\n";
/// How the page of all results begins.
const HEAD_OF_REPORT: &str = "# The model's results\n\nWhat the columns are, and what the model is: [docs/paths.md](../../../docs/paths.md). \
    The slowest group of each policy, in brackets the mean of all:\n\n";
const ADVICE: &str = "write it anew: FERRITE_UPDATE=1 cargo test -p ferrite --test companion ecmp_page";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The file has this text, or gets it if it is to be written anew.
fn has(name: &str, now: &str) {
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(root().join(name), now).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    assert!(read(name) == now, "{name}: {ADVICE}");
}

/// The page before, in and after the part between these marks.
fn parts<'p>(page: &'p str, begin: &str, end: &str) -> (&'p str, &'p str, &'p str) {
    let at = page.find(begin).unwrap_or_else(|| panic!("{begin:?} is on the page"));
    let (inner, tail) = page[at..].split_once(end).unwrap_or_else(|| panic!("{end:?} is on the page"));
    (&page[..at], inner, tail)
}

/// The built program, as the model takes ten times as long in one that is built for tests.
#[test]
fn the_page_has_what_the_command_prints_and_the_results_that_are_kept() {
    let ferrite = require!(dist(&["bin/ferrite"])).join("bin/ferrite");
    has_the_example(&ferrite);
    has_the_results(&ferrite);
}

fn has_the_example(ferrite: &Path) {
    let page = read("docs/paths.md");
    let (head, written, tail) = parts(&page, EXAMPLE, END_OF_EXAMPLE);
    let command = written.lines().nth(1).and_then(|line| line.strip_prefix(PROMPT)).expect("a command");
    let table = program::stdout_of(Command::new(ferrite).args(command.split(' ')));
    has("docs/paths.md", &format!("{head}```console\n{PROMPT}{command}\n{table}{END_OF_EXAMPLE}{tail}"));
}

fn has_the_results(ferrite: &Path) {
    let folder = root().join("benchmarks/paths/model");
    let entries = std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    let scratch = Scratch::new();
    let picture = scratch.path().join("paths.svg");
    let mut command = Command::new(ferrite);
    let all = program::stdout_of(command.args(["ecmp", "--svg"]).arg(&picture).arg("--results").args(files));
    let (summary, _) = all.split_once("\n## ").expect("sections");
    let page = read("docs/paths.md");
    let (head, _, tail) = parts(&page, TABLE, END_OF_TABLE);
    has("docs/paths.md", &format!("{head}{TABLE}{summary}{END_OF_TABLE}{tail}"));
    has("docs/paths.svg", &std::fs::read_to_string(&picture).expect("the picture"));
    has("benchmarks/paths/model/report.md", &format!("{HEAD_OF_REPORT}{all}"));
}
