//! The example of `ferrite ecmp` on docs/paths.md, with its picture. `FERRITE_UPDATE=1 cargo test -p ferrite --test companion ecmp_page` writes
//! both.

use crate::common::dist;
use std::path::Path;
use std::process::Command;
use testkit::{Scratch, program, require};

/// How the example begins, and the line that ends it.
const PROMPT: &str = "$ ferrite ";
const BEGIN: &str = "```console\n$ ferrite ecmp ";
const END: &str = "```\n";

/// The built program, as the model takes ten times as long in one that is built for tests.
#[test]
fn the_page_and_its_picture_are_what_the_command_makes() {
    let ferrite = require!(dist(&["bin/ferrite"])).join("bin/ferrite");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let read = |name: &str| std::fs::read_to_string(docs.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let page = read("paths.md");
    let at = page.find(BEGIN).expect("the example");
    let (head, rest) = page.split_at(at + "```console\n".len());
    let (written, tail) = rest.split_once(END).expect("its end");
    let command = written.lines().next().and_then(|line| line.strip_prefix(PROMPT)).expect("a command");
    let picture = Scratch::new();
    let file = picture.path().join("paths.svg");
    let words = command.split(' ').map(|word| if word == "docs/paths.svg" { file.as_os_str() } else { word.as_ref() });
    let table = program::stdout_of(Command::new(ferrite).args(words));
    let (now, svg) = (format!("{PROMPT}{command}\n{table}"), std::fs::read_to_string(&file).expect("the picture"));
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(docs.join("paths.md"), format!("{head}{now}{END}{tail}")).expect("written");
        std::fs::write(docs.join("paths.svg"), svg).expect("written");
        return;
    }
    let advice = "write it anew: FERRITE_UPDATE=1 cargo test -p ferrite --test companion ecmp_page";
    assert!(written == now, "the table: {advice}\n{now}");
    assert!(read("paths.svg") == svg, "docs/paths.svg: {advice}");
}
