//! The pages say what is true: tests that they name exist, links lead somewhere, every setting has its row.

use std::collections::HashSet;
use std::path::Path;

const PAGES: [&str; 6] =
    ["docs/semantics.md", "docs/clients.md", "docs/cards.md", "docs/faults.md", "docs/rxe.md", "README.md"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `file.rs::name` of everything in backticks that looks so.
fn named(text: &str) -> Vec<String> {
    let ticked = text.split('`').skip(1).step_by(2);
    ticked.filter(|word| word.contains(".rs::")).map(str::to_owned).collect()
}

/// The tests of a file of tests/, here or of the command line; or of src/ where the name has a folder.
fn tests_of(file: &str) -> HashSet<String> {
    let tests = ["tests/", "tests/device/", "../softrnic-cli/tests/command_line/", "../layouts/tests/"];
    let folders = if file.contains('/') { [""; 4] } else { tests };
    let exists = |path: &String| Path::new(env!("CARGO_MANIFEST_DIR")).join(path).exists();
    let path = folders.map(|folder| format!("{folder}{file}")).into_iter().find(exists);
    let text = read(&path.unwrap_or_else(|| panic!("there is no file {file}")));
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let after = lines.iter().enumerate().filter(|(_, line)| **line == "#[test]");
    after
        .filter_map(|(at, _)| lines[at + 1..].iter().find_map(|line| line.strip_prefix("fn ")))
        .filter_map(|rest| rest.split('(').next().map(str::to_owned))
        .collect()
}

#[test]
fn every_test_that_is_named_exists() {
    for page in PAGES {
        for name in named(&read(page)) {
            let (file, test) = name.split_once("::").expect("file::test");
            assert!(tests_of(file).contains(test), "{page} names {name}, which is no test");
        }
    }
}

/// Each row of the tables either names its test or says what is missing.
#[test]
fn every_row_has_its_test() {
    let page = read("docs/semantics.md");
    let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| what")).collect();
    assert!(rows.len() > 60, "{} rows: too few to believe", rows.len());
    for row in rows {
        let shown = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        assert!(!named(shown).is_empty() || shown.contains("not modelled"), "no test: {row}");
    }
}

/// Each client names the test that runs it, or says that none does.
#[test]
fn every_client_has_its_test() {
    let page = read("docs/clients.md");
    let table = page.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 4);
    let rows: Vec<_> = table.filter(|line| !line.starts_with("| client")).collect();
    assert!(rows.len() > 12, "{} rows: too few to believe", rows.len());
    for row in rows {
        let shown = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
        assert!(!named(shown).is_empty() || shown.contains("not run by a test"), "no test: {row}");
    }
}

/// The pages do not link to what is not there.
#[test]
fn links_lead_somewhere() {
    for page in PAGES {
        let text = read(page);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !target.starts_with("http") && !target.starts_with('#') {
                let path = folder.parent().expect("a folder").join(target);
                assert!(path.exists(), "{page} links to {target}");
            }
        }
    }
}

/// A setting that the sources read, or that a driver stands for, is not taken for a misspelt one.
#[test]
fn every_setting_is_known() {
    let text = read("src/process/settings.rs");
    let (list, rest) = text.split_once("const KNOWN").and_then(|(_, rest)| rest.split_once("];")).expect("the list");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/drivers");
    let files = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path());
    let drivers: Vec<_> = files.map(|path| std::fs::read_to_string(path).expect("text")).collect();
    assert!(drivers.len() > 9);
    for text in drivers.iter().map(String::as_str).chain([rest]) {
        let quoted = text.split('"').skip(1).step_by(2);
        for name in quoted.filter(|word| word.starts_with("SOFTRNIC_") && !word.contains(['=', ':'])) {
            assert!(name == "SOFTRNIC_" || list.contains(&format!("\"{name}\"")), "{name} is not in the list");
        }
    }
}

/// The settings that the sources read are those of the table in src/lib.rs.
#[test]
fn every_setting_has_its_row() {
    let table = read("src/lib.rs");
    for file in ["src/process/settings.rs", "src/network/topology.rs", "src/drivers/table.rs"] {
        let text = read(file);
        for quoted in text.split('"').skip(1).step_by(2).filter(|word| word.starts_with("SOFTRNIC_")) {
            let name = quoted.split(|c: char| !c.is_ascii_uppercase() && c != '_').next().unwrap_or_default();
            if name == "SOFTRNIC_" {
                continue;
            }
            // `SOFTRNIC_MAX_QP`, `_MAX_CQ`
            let short = name.trim_start_matches("SOFTRNIC");
            let is_told = [name, short].iter().any(|name| table.contains(&format!("`{name}`")));
            assert!(is_told, "{file} reads {name}, which the table does not have");
        }
    }
}
