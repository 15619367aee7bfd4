//! What pages link to and name exists, and each page is a chapter.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("the page is there")
}

/// The pages in a folder and those below it, from the root of the repository; without results,
/// which pages link to.
fn pages_below(folder: &Path, found: &mut Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(folder).expect("it is readable") {
        let path = entry.expect("it is readable").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir()
            && !name.starts_with('.')
            && !["target", "results", "fixtures", "packages", "dist"].contains(&&*name)
        {
            pages_below(&path, found);
        } else if name.ends_with(".md") && name != "report.md" {
            found.push(path.strip_prefix(root).expect("below it").display().to_string());
        }
    }
}

/// All pages.
fn pages() -> Vec<String> {
    let mut pages =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(str::to_owned).to_vec();
    for folder in ["docs", "benchmarks", "tests", "crates", "lab", "softrnic"] {
        pages_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut pages);
    }
    pages
}

#[test]
fn links_and_files_that_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The history speaks of files that are gone.
    for page in pages().into_iter().filter(|page| page != "CHANGELOG.md") {
        let text = read(&page);
        let folder = root.join(&page).parent().expect("a folder").to_owned();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for target in targets.filter(|target| !target.is_empty() && !target.contains("://")) {
            assert!(folder.join(target).exists(), "{page}: a link to {target}");
        }
        // Between backticks or at the beginning of a command.
        let words = text.split(|c: char| c.is_whitespace() || "`(),;|\"'".contains(c));
        let files = words.filter(|word| {
            ["scripts/", "tests/", "docs/", "lab/", "crates/"]
                .iter()
                .any(|folder| word.starts_with(folder))
        });
        for file in files
            .filter_map(|file| file.split("::").next()?.split('#').next())
            .map(|file| file.trim_end_matches(['.', ':']))
        {
            // From the root of the repository, or from the page's crate.
            let exists = folder
                .ancestors()
                .any(|above| above.starts_with(root) && above.join(file).exists());
            assert!(exists, "{page}: {file}");
        }
    }
}

/// docs/SUMMARY.md is what `scripts/book.py` makes a site of.
#[test]
fn each_page_is_a_chapter() {
    let summary = read("docs/SUMMARY.md");
    for page in pages().iter().filter(|page| *page != "docs/SUMMARY.md") {
        let link = match page.strip_prefix("docs/") {
            Some(name) => format!("]({name})"),
            None => format!("](../{page})"),
        };
        assert!(summary.contains(&link), "docs/SUMMARY.md has no {link}");
    }
}
