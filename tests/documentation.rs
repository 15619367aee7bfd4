//! What the pages name exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the page is there")
}

/// The tests of a file in Rust: functions behind `#[test]`, with other attributes between them or not.
fn tests_in_rust(text: &str, found: &mut BTreeSet<String>) {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "#[test]") {
        let rest = lines[at + 1..].iter().take_while(|line| !line.is_empty() && !line.ends_with('}'));
        let name = rest.filter_map(|line| line.strip_prefix("fn ")).next();
        found.extend(name.and_then(|name| name.split(['(', '<']).next()).map(str::to_owned));
    }
}

/// The tests of a file in Python.
fn tests_in_python(text: &str, found: &mut BTreeSet<String>) {
    let names = text.split("def ").skip(1).filter_map(|rest| rest.split('(').next());
    found.extend(names.filter(|name| name.starts_with("test_")).map(str::to_owned));
}

/// The tests in `folder`.
fn tests_below(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("it is readable") {
        let path = entry.expect("it is readable").path();
        if path.is_dir() {
            tests_below(&path, found);
            continue;
        }
        let take = match path.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => tests_in_rust,
            Some("py") => tests_in_python,
            _ => continue,
        };
        take(&fs::read_to_string(&path).expect("it is readable"), found);
    }
}

/// The names of all tests.
fn tests() -> BTreeSet<String> {
    let mut tests = BTreeSet::new();
    for folder in [
        "src",
        "tests",
        "tools/ferrite",
        "tools/softrnic",
        "tools/softrnic-cli",
        "tools/testkit",
        "tools/models",
        "tools/payload",
        "scripts/tests",
    ] {
        tests_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut tests);
    }
    tests
}

/// Whether what a page names as a test exists: `check 20` of `ferrite check`, a test or a file.
fn is_there(name: &str, tests: &BTreeSet<String>, points: &str) -> bool {
    if let Some(point) = name.strip_prefix("check ") {
        return points.contains(&format!("\n| {point} | "));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let name = name.trim_matches('`');
    tests.contains(name) || root.join(name).is_file()
}

#[test]
fn a_function_that_is_no_test_is_not_taken_for_one() {
    let mut found = BTreeSet::new();
    tests_in_rust(
        "fn helps() {}\n#[test]\n#[ignore]\nfn is_one() {\n}\nfn another() {}\n#[test]\n}\nfn none() {}",
        &mut found,
    );
    tests_in_python("def helps(self):\n    def test_it(self) -> None:", &mut found);
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["is_one", "test_it"]);
    assert!(!tests().contains("tests_below"));
}

#[test]
fn each_weakness_has_a_test_that_exists() {
    let tests = tests();
    let points = read("docs/conformance.md");
    let page = read("docs/weaknesses.md");
    let rows: Vec<Vec<&str>> = page.lines().map(|line| line.split(" | ").collect()).collect();
    let numbers = rows.iter().filter_map(|row| row[0].strip_prefix("| ")?.parse::<u32>().ok());
    let last = numbers.max().expect("rows with numbers");
    for number in 1..=last {
        let row = rows.iter().find(|row| row[0] == format!("| {number}")).unwrap_or_else(|| panic!("row {number}"));
        assert_eq!(row.len(), 4, "row {number}");
        let shown = row[3].trim_end_matches('|').trim();
        // Those without a test say why in the column before.
        let excused = row[2].starts_with("does not apply");
        assert_eq!(shown.is_empty(), excused, "row {number}");
        for name in shown.split(", ").filter(|name| !name.is_empty()) {
            assert!(is_there(name, &tests, &points), "row {number}: {name}");
        }
    }
}

/// What the pages promise: each row of the table in docs/proof.md has a promise, the page that makes it, and its tests.
#[test]
fn each_promise_has_a_test_that_exists() {
    let (tests, points, page) = (tests(), read("docs/conformance.md"), read("docs/proof.md"));
    let table = page.split("<!-- promises -->").nth(1).and_then(|rest| rest.split("<!-- end -->").next());
    let rows: Vec<_> = table.expect("the table").lines().filter(|line| line.starts_with("| ")).skip(2).collect();
    assert!(rows.len() >= 20, "{} promises", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [_, source, named] = cells[..] else { panic!("three columns: {row}") };
        let source = source.split("](").nth(1).and_then(|rest| rest.split(')').next()).expect("a link");
        assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(source).is_file(), "{row}");
        assert!(!named.is_empty(), "no test: {row}");
        for name in named.split(", ") {
            assert!(is_there(name, &tests, &points), "{name}: {row}");
        }
    }
}

/// The points that `ferrite check` has, as numbers and names.
fn checks() -> BTreeSet<(u32, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/ferrite/src/check/points");
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("it is readable") {
        let text = fs::read_to_string(entry.expect("it is readable").path()).expect("it is readable");
        for point in text.split("number: ").skip(1) {
            let number = point.split(',').next().and_then(|number| number.parse().ok());
            let name = point.split("name: \"").nth(1).and_then(|rest| rest.split('"').next());
            found.extend(number.zip(name.map(str::to_owned)));
        }
    }
    found
}

#[test]
fn each_point_of_the_contract_is_a_check_and_each_check_is_on_the_page() {
    let page = read("docs/conformance.md");
    let table = page.split("## All points").nth(1).expect("the table");
    let point = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.parse().ok()?, cells.next()?.to_owned()))
    };
    let points: BTreeSet<_> = table.lines().filter_map(point).collect();
    assert!(points.len() >= 65, "{points:?}");
    assert_eq!(points, checks());
}

/// The pages, from the root of the repository.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")).expect("it is readable");
    let names = docs.map(|entry| format!("docs/{}", entry.expect("it is readable").file_name().display()));
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benchmarks/README.md",
        "tests/rxe/README.md",
        "tools/ferrite/README.md",
        "tools/ferrite/docs/raw-json.md",
        "tools/softrnic/README.md",
    ];
    names.chain(others.map(str::to_owned)).collect()
}

#[test]
fn links_and_files_that_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in pages() {
        let text = read(&page);
        let folder = root.join(&page).parent().expect("a folder").to_owned();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            assert!(folder.join(target).exists(), "{page}: a link to {target}");
        }
        // Between backticks or at the beginning of a command.
        let words = text.split(|c: char| c.is_whitespace() || "`(),;|\"'".contains(c));
        let files = words.filter(|word| ["scripts/", "tests/", "docs/"].iter().any(|folder| word.starts_with(folder)));
        for file in files.map(|file| file.trim_end_matches(['.', ':'])) {
            // From the root of the repository, or from the page's crate.
            let exists = folder.ancestors().any(|above| above.starts_with(root) && above.join(file).exists());
            assert!(exists, "{page}: {file}");
        }
    }
}

/// The pages in a folder and those below it, from the root of the repository; without results, which pages link to.
fn pages_below(folder: &Path, found: &mut Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(folder).expect("it is readable") {
        let path = entry.expect("it is readable").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "results", "packages", "dist"].contains(&&*name) {
            pages_below(&path, found);
        } else if name.ends_with(".md") && name != "report.md" {
            found.push(path.strip_prefix(root).expect("below it").display().to_string());
        }
    }
}

/// docs/SUMMARY.md is what `scripts/site.py` makes a site of.
#[test]
fn each_page_is_a_chapter() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages = Vec::new();
    for folder in ["docs", "benchmarks", "tests", "tools"] {
        pages_below(&root.join(folder), &mut pages);
    }
    pages.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(str::to_owned));
    assert!(pages.len() > 25, "{pages:?}");
    let summary = read("docs/SUMMARY.md");
    for page in pages.iter().filter(|page| *page != "docs/SUMMARY.md") {
        let link = match page.strip_prefix("docs/") {
            Some(name) => format!("]({name})"),
            None => format!("](../{page})"),
        };
        assert!(summary.contains(&link), "docs/SUMMARY.md has no {link}");
    }
}
