//! The table of docs/rxe.md, held against what is seen.

use std::time::Duration;

use super::observed::{LIST, be_patient};

const PAGE: &str = include_str!("../../docs/rxe.md");

/// What is seen by one who waits so many seconds for what comes at once. On a busy machine it may
/// take long until all of it is there: what is not as the page has it is looked at with a longer
/// time limit.
fn see(look: fn() -> String, told: &str, soon_s: u64) -> String {
    let look = |soon| {
        be_patient(soon);
        std::panic::catch_unwind(look).unwrap_or_else(|_| "it panics".into())
    };
    let seen = look(Duration::from_secs(soon_s));
    if seen == told { seen } else { look(Duration::from_secs(20)) }
}

/// Looks at everything in the list, and compares it with column `column` of the table.
pub fn compare(column: usize) {
    let rows: Vec<Vec<&str>> = PAGE
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let row = |what: &str| rows.iter().find(|row| row.get(1) == Some(&what));
    let mut wrong = Vec::new();
    for (what, look) in LIST {
        let told = row(what).and_then(|row| row.get(1 + column)).copied().unwrap_or("no row");
        let seen = see(*look, told, if column == 1 { 1 } else { 4 });
        println!("{what}: {seen}");
        if told != seen {
            wrong.push(format!("{what}: {seen}, where the page has: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rows.len(), LIST.len() + 1, "every row is looked at");
}
