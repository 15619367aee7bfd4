//! Which event has come in which state of a machine, and which cannot.

use std::collections::BTreeMap;

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
    /// Where what has come is not what can come.
    fn differences(&self, visits: &Visits) -> Vec<String> {
        let is_known = |(end, state, event): &(&str, &str, &str)| {
            self.rows.contains(&(end, state)) && self.events.contains(event)
        };
        let unknown = visits
            .keys()
            .filter(|visit| !is_known(visit))
            .map(|visit| format!("{visit:?} is not in the table"));
        let all = self
            .rows
            .iter()
            .flat_map(|(end, state)| self.events.iter().map(move |event| (*end, *state, *event)));
        let wrong = all.filter_map(|visit @ (end, state, event)| {
            match ((self.impossible)(end, state, event), visits.contains_key(&visit)) {
                (None, false) => Some(format!("{visit:?} can come, and has not")),
                (Some(why), true) => Some(format!("{visit:?} has come, and cannot: {why}")),
                _ => None,
            }
        });
        unknown.chain(wrong).collect()
    }

    /// Checks that all has come that can, and nothing else.
    pub(crate) fn check(&self, visits: &Visits) {
        assert_eq!(self.differences(visits), Vec::<String>::new());
    }
}

#[test]
fn a_cell_that_can_be_reached_and_is_not_is_reported_and_one_that_cannot_and_is() {
    let machine = Machine {
        rows: &[("end", "A"), ("end", "B")],
        events: &["one", "two"],
        impossible: |_, state, event| (state == "B" && event == "two").then_some("it never does"),
    };
    let visits = Visits::from([
        (("end", "A", "one"), 1),
        (("end", "B", "two"), 1),
        (("end", "C", "two"), 1),
    ]);
    let told = machine.differences(&visits).join("\n");
    for part in [
        "\"C\", \"two\") is not in the table",
        "\"A\", \"two\") can come, and has not",
        "\"B\", \"one\") can come",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(told.contains("\"B\", \"two\") has come, and cannot: it never does"), "{told}");
    assert!(!told.contains("\"A\", \"one\")"), "{told}");
}
