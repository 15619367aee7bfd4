//! Lists of names, `[^][=]name,…`, as `NCCL_IB_HCA` and `NCCL_SOCKET_IFNAME` are.

/// The parsed list. Names may have blanks, as in NCCL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameList {
    /// The setting.
    pub text: String,
    /// It names what not to use.
    pub exclude: bool,
    exact: bool,
    /// The names.
    pub names: Vec<String>,
}

/// An entry that matches nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoEffect {
    /// Why.
    pub why: String,
    /// The user cannot have meant it. A list of exclusions may name what some hosts do not have.
    pub is_mistake: bool,
}

impl NameList {
    /// Parses the list.
    pub fn parse(text: &str) -> Self {
        let (exclude, rest) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let names = rest.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        Self { text: text.to_owned(), exclude, exact, names }
    }

    /// Whether `entry` of the list matches `name`.
    pub fn fits(&self, entry: &str, name: &str) -> bool {
        if self.exact { name == entry } else { name.starts_with(entry) }
    }

    /// Why `entry` matches none of the names `there`, which are of this `kind`.
    pub fn why_nothing(&self, kind: &str, entry: &str, there: &[&str]) -> NoEffect {
        if entry.starts_with(['^', '=']) {
            return NoEffect::mistake(format!(
                "{entry} counts as a name: only a ^ or = at the beginning of the list has a meaning, for the whole list"
            ));
        }
        let shown = if entry.contains(' ') { format!("{entry:?}") } else { entry.to_owned() };
        let named = if self.exact { "has the name" } else { "has a name that begins with" };
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        let why = format!("no {kind} {named} {shown}; there are: {there}");
        NoEffect { why, is_mistake: !self.exclude }
    }
}

impl NoEffect {
    /// An entry that the user cannot have meant.
    pub fn mistake(why: String) -> Self {
        Self { why, is_mistake: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_fits_nothing_is_reported_with_what_there_is() {
        let why = |text: &str, entry: &str| {
            NameList::parse(text).why_nothing("device", entry, &["x0", "x1"]).why
        };
        assert_eq!(why("=y", "y"), "no device has the name y; there are: x0, x1");
        assert_eq!(why("y", "y"), "no device has a name that begins with y; there are: x0, x1");
        assert!(why("^=x0,^=x1", "^=x1").starts_with("^=x1 counts as a name: "));
        let is_mistake =
            |text, entry| NameList::parse(text).why_nothing("device", entry, &["x0"]).is_mistake;
        assert_eq!(
            [is_mistake("y", "y"), is_mistake("^y", "y"), is_mistake("^x0,^x1", "^x1")],
            [true, false, true]
        );
        assert!(why("x0, x1", " x1").contains("begins with \" x1\""));
    }
}
