//! The table of docs/rxe.md, held against what is seen.

use super::observed::LIST;

const PAGE: &str = include_str!("../../docs/rxe.md");

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
        let seen = std::panic::catch_unwind(look).unwrap_or_else(|_| "it panics".into());
        println!("{what}: {seen}");
        let told = row(what).and_then(|row| row.get(1 + column)).copied().unwrap_or("no row");
        if told != seen {
            wrong.push(format!("{what}: {seen}, where the page has: {told}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rows.len(), LIST.len() + 1, "every row is looked at");
}
