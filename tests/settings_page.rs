//! The page of settings is the table in the code.
//! `FERRITE_UPDATE=1 cargo test --test settings_page` writes it.

use nccl_net::inspect::variables::{IGNORED, Kind, VARIABLES};
use std::path::Path;

const BEGIN: &str = "<!-- settings: written by tests/settings_page.rs -->\n";
const END: &str = "<!-- end of settings -->";
const BEGIN_IGNORED: &str = "<!-- ignored: written by tests/settings_page.rs -->\n";
const END_IGNORED: &str = "<!-- end of ignored -->";

fn table() -> String {
    let mut lines = String::from("| variable | allowed | default | effect |\n|---|---|---|---|\n");
    for variable in VARIABLES {
        let (allowed, default) = match variable.kind {
            Kind::Number(low, high, default) => (format!("{low} to {high}"), default.to_string()),
            Kind::Text => ("text".into(), "unset".into()),
            Kind::Choice(choices) => {
                let named: Vec<_> =
                    choices.iter().filter(|c| !c.is_empty()).map(|c| format!("`{c}`")).collect();
                let default = choices
                    .first()
                    .filter(|c| !c.is_empty())
                    .map_or_else(|| "unset".into(), |c| format!("`{c}`"));
                (named.join(", "), default)
            }
        };
        lines +=
            &format!("| `{}` | {allowed} | {default} | {} |\n", variable.name, variable.effect);
    }
    lines
}

fn ignored() -> String {
    let mut lines =
        String::from("| variable | why Ferrite ignores it | what you lose |\n|---|---|---|\n");
    for ignored in IGNORED {
        let lost = ignored.lost.map_or("nothing", |(lost, _)| lost);
        lines += &format!("| `{}` | {} | {lost} |\n", ignored.name, ignored.why);
    }
    lines
}

#[test]
fn the_tables_of_settings_are_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let mut page = std::fs::read_to_string(&path).expect("the page");
    for (begin, table, end) in [(BEGIN, table(), END), (BEGIN_IGNORED, ignored(), END_IGNORED)] {
        let (head, rest) = page.split_once(begin).expect("the begin mark");
        let (written, tail) = rest.split_once(end).expect("the end mark");
        if std::env::var_os("FERRITE_UPDATE").is_some() {
            page = format!("{head}{begin}{table}{end}{tail}");
            std::fs::write(&path, &page).expect("written");
        } else {
            assert!(
                written == table,
                "write it anew: FERRITE_UPDATE=1 cargo test --test settings_page"
            );
        }
    }
}
