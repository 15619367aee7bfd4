//! What users see, in files: a change of words is a change of one of them.

use std::path::Path;

/// Compares a text with `tests/snapshots/NAME.txt` of the package. `FERRITE_UPDATE=1` writes the
/// file anew.
#[macro_export]
macro_rules! snapshot {
    ($name:expr, $text:expr) => {
        $crate::snapshot::check(env!("CARGO_MANIFEST_DIR"), $name, $text)
    };
}

/// What [`crate::snapshot!`] does, for the package in `package`.
#[track_caller]
pub fn check(package: &str, name: &str, text: &str) {
    let path = Path::new(package).join("tests/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("a folder");
        std::fs::write(&path, text).expect("written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        text == expected,
        "{} is not what is shown now (FERRITE_UPDATE=1 writes it anew):\n{text}",
        path.display()
    );
}
