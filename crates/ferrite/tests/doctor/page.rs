//! The page of the doctor is the table in the code. `FERRITE_UPDATE=1 cargo test -p ferrite --test doctor` writes it.

use std::path::Path;

use serde_json::Value;

use crate::common::ferrite;

const BEGIN: &str = "<!-- rows: written by crates/ferrite/tests/doctor/page.rs -->\n";
const END: &str = "<!-- end of rows -->";

fn table() -> String {
    let (code, stdout, stderr) = ferrite(&["doctor", "--list", "--json"], &[]);
    assert_eq!(code, 0, "{stderr}");
    let rows: Value = serde_json::from_str(&stdout).expect("JSON");
    let mut lines = String::from("| row | what is looked at | why | cure |\n|---|---|---|---|\n");
    for row in rows.as_array().expect("rows") {
        let cell = |name: &str| row[name].as_str().expect("text").replace('|', "\\|");
        lines += &format!("| `{}` | {} | {} | {} |\n", cell("name"), cell("what"), cell("why"), cell("cure"));
    }
    lines
}

#[test]
fn the_page_has_each_row_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/doctor.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (head, rest) = page.split_once(BEGIN).expect("the begin mark");
    let (written, tail) = rest.split_once(END).expect("the end mark");
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{}{END}{tail}", table())).expect("written");
    } else {
        assert!(written == table(), "write it anew: FERRITE_UPDATE=1 cargo test -p ferrite --test doctor page");
    }
}
