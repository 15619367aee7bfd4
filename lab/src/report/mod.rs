//! The results for people: the first screen, `report.html`, `report.md`, `report.svg`; and
//! `raw.json`.

pub(crate) mod chart;
mod comparison;
mod page;
#[cfg(test)]
pub(crate) mod sample_record;
pub(crate) mod table;
pub(crate) mod times;
pub(crate) mod verdict;

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::report::page::Part;
use crate::results::record::Record;
use crate::system::output;

/// The files of a report.
pub(crate) const FILES: [&str; 4] = ["raw.json", "report.svg", "report.md", "report.html"];

/// Writes [`FILES`] into `folder`.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write(record: &Record, folder: &Path) -> Result<()> {
    let page = comparison::page(record);
    write_files(folder, record, (&comparison::title(record), &page, comparison::picture(record)))
}

/// Writes [`FILES`]: the data as JSON, then the picture and the pages.
fn write_files(
    folder: &Path,
    raw: &impl Serialize,
    (title, page, picture): (&str, &[Part], String),
) -> Result<()> {
    let raw = serde_json::to_string_pretty(raw)?;
    std::fs::create_dir_all(folder)
        .map_err(|source| Error::io(format!("cannot create {}", folder.display()), source))?;
    let texts = [raw + "\n", picture, page::markdown(page), page::html(title, page)];
    FILES
        .iter()
        .zip(texts)
        .try_for_each(|(name, text)| output::write_file(&folder.join(name), &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FERRITE_UPDATE=1` writes the expected reports anew.
    #[test]
    fn a_record_gives_the_expected_report() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/comparison");
        let read =
            |name: &str| std::fs::read_to_string(folder.join(name)).expect("a committed file");
        let record: Record = serde_json::from_str(&read("raw.json")).expect("a record");
        let page = comparison::page(&record);
        for (name, drawn) in [
            ("report.svg", comparison::picture(&record)),
            ("report.md", page::markdown(&page)),
            ("report.html", page::html(&comparison::title(&record), &page)),
        ] {
            if std::env::var_os("FERRITE_UPDATE").is_some() {
                std::fs::write(folder.join(name), &drawn).expect("a file");
            }
            assert_eq!(drawn, read(name), "{name}");
        }
    }
}
