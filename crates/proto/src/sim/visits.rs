//! Which event has come in which state of a machine, and which cannot: a table of docs/schedules.md.

use std::collections::BTreeMap;
#[cfg(test)]
use std::path::Path;

/// How often each event has come in each state: by end, state and event.
pub(crate) type Visits = BTreeMap<(&'static str, &'static str, &'static str), u64>;

/// What there is to be visited.
#[cfg(test)]
pub(crate) struct Machine {
    /// Each end with each of its states.
    pub(crate) rows: &'static [(&'static str, &'static str)],
    pub(crate) events: &'static [&'static str],
    /// Why that event cannot come in that state of that end, if it cannot.
    pub(crate) impossible: fn(&str, &str, &str) -> Option<&'static str>,
}

#[cfg(test)]
impl Machine {
    /// The table with an `x` where `visits` has something, and elsewhere the number of the reason why there is nothing, which follow.
    fn table(&self, visits: &Visits) -> String {
        let mut reasons: Vec<&str> = Vec::new();
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut table = line(&[words(&["end", "state"]), words(self.events)].concat());
        table += &line(&vec!["---".to_owned(); 2 + self.events.len()]);
        for (end, state) in self.rows {
            let mut cells = words(&[end, state]);
            for event in self.events {
                let impossible = (self.impossible)(end, state, event);
                cells.push(match impossible {
                    None => "x".to_owned(),
                    Some(why) => {
                        let known = reasons.iter().position(|reason| *reason == why);
                        let at = known.unwrap_or_else(|| {
                            reasons.push(why);
                            reasons.len() - 1
                        });
                        (at + 1).to_string()
                    }
                });
            }
            table += &line(&cells);
        }
        table += "\n";
        for (i, reason) in reasons.iter().enumerate() {
            table += &format!("{}. {reason}\n", i + 1);
        }
        assert_eq!(self.differences(visits), Vec::<String>::new());
        table
    }

    /// Where what has come is not what can come.
    fn differences(&self, visits: &Visits) -> Vec<String> {
        let is_known =
            |(end, state, event): &(&str, &str, &str)| self.rows.contains(&(end, state)) && self.events.contains(event);
        let unknown =
            visits.keys().filter(|visit| !is_known(visit)).map(|visit| format!("{visit:?} is not in the table"));
        let all = self.rows.iter().flat_map(|(end, state)| self.events.iter().map(move |event| (*end, *state, *event)));
        let wrong = all.filter_map(|visit @ (end, state, event)| {
            match ((self.impossible)(end, state, event), visits.contains_key(&visit)) {
                (None, false) => Some(format!("{visit:?} can come, and has not")),
                (Some(why), true) => Some(format!("{visit:?} has come, and cannot: {why}")),
                _ => None,
            }
        });
        unknown.chain(wrong).collect()
    }

    /// Checks that all has come that can, and nothing else, and that the page has this table after the line `marker`.
    pub(crate) fn check(&self, visits: &Visits, marker: &str) {
        check_page(marker, &self.table(visits));
    }
}

/// Checks that docs/schedules.md has `table` after the line `marker`.
#[cfg(test)]
pub(crate) fn check_page(marker: &str, table: &str) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schedules.md");
    let text = std::fs::read_to_string(&page).expect("the page");
    let (before, rest) = text.split_once(marker).expect("where the table begins");
    let (_, after) = rest.split_once("<!-- end -->").expect("where it ends");
    let made = format!("{before}{marker}\n{table}<!-- end -->{after}");
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(&page, made).expect("the page can be written");
    } else {
        assert!(
            text == made,
            "run `FERRITE_UPDATE=1 cargo test -p nccl-net-ferrite --lib -- --test-threads=1 the_page_says no_schedule_of_losses`:\n{table}"
        );
    }
}

#[test]
fn a_cell_that_can_be_reached_and_is_not_is_told_and_one_that_cannot_and_is() {
    let machine = Machine {
        rows: &[("end", "A"), ("end", "B")],
        events: &["one", "two"],
        impossible: |_, state, event| (state == "B" && event == "two").then_some("it never does"),
    };
    let visits = Visits::from([(("end", "A", "one"), 1), (("end", "B", "two"), 1), (("end", "C", "two"), 1)]);
    let told = machine.differences(&visits).join("\n");
    for part in
        ["\"C\", \"two\") is not in the table", "\"A\", \"two\") can come, and has not", "\"B\", \"one\") can come"]
    {
        assert!(told.contains(part), "{told}");
    }
    assert!(told.contains("\"B\", \"two\") has come, and cannot: it never does"), "{told}");
    assert!(!told.contains("\"A\", \"one\")"), "{told}");
}
