//! The results for people: a table on the terminal, `report.md`, `report.svg`; and `raw.json`.

pub(crate) mod chart;
pub(crate) mod markdown;
#[cfg(test)]
pub(crate) mod sample_record;
pub(crate) mod table;
pub(crate) mod times;
pub(crate) mod verdict;

use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::pair::parent::json_error;
use crate::results::record::Record;
use crate::system::output;

/// The files of a report.
pub(crate) const FILES: [&str; 3] = ["raw.json", "report.svg", "report.md"];

/// Writes [`FILES`] into `folder`.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write(record: &Record, folder: &Path) -> Result<()> {
    write_files(folder, record, [chart::draw(record), markdown::write(record)])
}

/// Writes [`FILES`]: what they were made of as JSON, then picture and page.
fn write_files(folder: &Path, raw: &impl Serialize, [picture, page]: [String; 2]) -> Result<()> {
    let raw = serde_json::to_string_pretty(raw).map_err(|e| json_error(&e))?;
    std::fs::create_dir_all(folder)
        .map_err(|source| Error::io(format!("cannot create {}", folder.display()), source))?;
    let texts = [raw + "\n", picture, page];
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
        for (name, drawn) in
            [("report.svg", chart::draw(&record)), ("report.md", markdown::write(&record))]
        {
            if std::env::var_os("FERRITE_UPDATE").is_some() {
                std::fs::write(folder.join(name), &drawn).expect("a file");
            }
            assert_eq!(drawn, read(name), "{name}");
        }
    }
}
