//! How a port gets its addresses back after an outage.

/// What a port has after an outage in place of each address that it had before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum GidChange {
    /// The same, in the same entry of the GID table.
    #[default]
    Same = 0,
    /// The same, in another entry.
    Moved = 1,
    /// Another one, in the same entry.
    Other = 2,
}

/// Names of those that rules can ask for.
const CHANGES: [(GidChange, &str); 2] = [(GidChange::Moved, "move"), (GidChange::Other, "other")];

/// When and how the GIDs of a port return that are no link-local ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GidReturn {
    /// So many nanoseconds after the port has become active; 0: before it does.
    pub(crate) after: u64,
    /// What they are then.
    pub(crate) change: GidChange,
}

impl GidReturn {
    /// Whether the table is as it was during the whole outage.
    pub(crate) fn is_untouched(self) -> bool {
        self == Self::default()
    }
}

impl GidChange {
    /// The one with this number, or else none.
    pub(crate) fn decode(number: u32) -> Self {
        CHANGES.into_iter().find(|(change, _)| *change as u32 == number).map_or(Self::Same, |(change, _)| change)
    }

    /// What a rule calls it; `None`: nothing.
    pub(crate) fn name(self) -> Option<&'static str> {
        CHANGES.into_iter().find(|(change, _)| *change == self).map(|(_, name)| name)
    }

    /// Reads a name. The error is a sentence.
    pub(crate) fn parse(value: &str) -> Result<Self, String> {
        let known = CHANGES.into_iter().find(|(_, name)| *name == value);
        known.map(|(change, _)| change).ok_or_else(|| format!("gid={value}: must be move or other"))
    }
}
