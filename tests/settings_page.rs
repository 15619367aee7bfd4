//! The page of settings is the table in the code. `FERRITE_UPDATE=1 cargo test --test settings_page` writes it.

use nccl_net::testing::host::variables::{Kind, VARIABLES};
use std::path::Path;

const BEGIN: &str = "<!-- settings: written by tests/settings_page.rs -->\n";
const END: &str = "<!-- end of settings -->";

fn table() -> String {
    let mut lines = String::from("| variable | allowed | default | effect |\n|---|---|---|---|\n");
    for variable in VARIABLES {
        let (allowed, default) = match variable.kind {
            Kind::Number(low, high, default) => (format!("{low} to {high}"), default.to_string()),
            Kind::WordOr(word, low, high, default) => (format!("{low} to {high}, `{word}`"), default.to_string()),
            Kind::Text => ("text".into(), "unset".into()),
            Kind::Choice(choices) => {
                let named: Vec<_> = choices.iter().filter(|c| !c.is_empty()).map(|c| format!("`{c}`")).collect();
                let default =
                    choices.first().filter(|c| !c.is_empty()).map_or_else(|| "unset".into(), |c| format!("`{c}`"));
                (named.join(", "), default)
            }
        };
        lines += &format!("| `{}` | {allowed} | {default} | {} |\n", variable.name, variable.effect);
    }
    lines
}

#[test]
fn the_table_of_settings_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (head, rest) = page.split_once(BEGIN).expect("the begin mark");
    let (written, tail) = rest.split_once(END).expect("the end mark");
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{}{END}{tail}", table())).expect("written");
    } else {
        assert!(written == table(), "write it anew: FERRITE_UPDATE=1 cargo test --test settings_page");
    }
}
