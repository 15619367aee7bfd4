//! The Python programs, `scripts/ab.py`, `ddp.py` and `matrix.py`: their own tests, which need neither torch nor a GPU. Each file of
//! them is a test here, so that they run side by side.

use std::process::Command;

/// Runs tests/ab/test_`name`.py; shows which of its tests were left out, and why.
fn run(name: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ab");
    let file = format!("test_{name}.py");
    let run = Command::new("python3").args(["-m", "unittest", "-v", &file]).current_dir(folder).output();
    let Ok(output) = run else {
        eprintln!("skipped: python3");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    for line in said.lines().filter(|line| line.contains("... skipped ")) {
        eprintln!("skipped: {file}: {line}");
    }
    assert!(output.status.success(), "{file}: {said}");
}

macro_rules! files {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        /// No file is forgotten here.
        #[test]
        fn every_file_is_a_test() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ab");
            let mut there: Vec<String> = std::fs::read_dir(folder)
                .unwrap_or_else(|error| panic!("{folder}: {error}"))
                .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_prefix("test_")?.strip_suffix(".py")?.to_owned()))
                .collect();
            there.sort();
            assert_eq!(there, [$(stringify!($name)),*]);
        }
    };
}

files! { ab container counting ddp matrix reading stats summary timing }
