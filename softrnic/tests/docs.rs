//! Every setting that is read is known and has its row.

use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
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
