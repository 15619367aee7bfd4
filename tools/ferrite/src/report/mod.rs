//! The results for people: a table on the terminal, `report.md`, `report.svg`; and `raw.json`.

pub(crate) mod chart;
pub(crate) mod judged;
pub(crate) mod markdown;
#[cfg(test)]
pub(crate) mod sample_record;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod verdict;

use std::path::Path;

use crate::error::{Error, Result};
use crate::pair::message::json_error;
use crate::results::record::Record;
use crate::system::output;

/// The files of a report.
pub(crate) const FILES: [&str; 3] = ["raw.json", "report.svg", "report.md"];

/// Writes [`FILES`] into `folder`.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write(record: &Record, folder: &Path) -> Result<()> {
    let raw = serde_json::to_string_pretty(record).map_err(|e| json_error(&e))?;
    std::fs::create_dir_all(folder)
        .map_err(|source| Error::io(format!("cannot create {}", folder.display()), source))?;
    let texts = [raw + "\n", chart::draw(record), markdown::write(record)];
    FILES.iter().zip(texts).try_for_each(|(name, text)| output::write_file(&folder.join(name), &text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The committed results are still read, and drawn as they were.
    #[test]
    fn a_committed_record_gives_its_committed_report() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/results/softrnic-2-cores");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a committed file");
        let record: Record = serde_json::from_str(&read("raw.json")).expect("a record");
        assert_eq!(chart::draw(&record), read("report.svg"));
        assert_eq!(markdown::write(&record), read("report.md"));
    }
}
