//! The table of rows, in the order in which they are looked at: what the first need is what the
//! later ones stand on.

mod devices;
mod host;
pub(crate) mod software;

use crate::doctor::report::Row;
use lab::error::{Error, Result};

/// All rows.
pub(crate) fn all() -> Vec<&'static Row> {
    let groups: [&'static [Row]; 15] = [
        devices::ROWS,
        devices::PORT_ROWS,
        devices::GID_ROWS,
        devices::TRAFFIC_ROWS,
        host::MEMORY_ROWS,
        devices::MESSAGE_ROWS,
        software::CONTROL_ROWS,
        software::SETTING_ROWS,
        software::ROWS,
        software::VERSION_ROWS,
        devices::COUNTER_ROWS,
        host::BUS_ROWS,
        host::GPU_ROWS,
        host::ISOLATION_ROWS,
        host::ROWS,
    ];
    groups.into_iter().flatten().collect()
}

/// The rows of these names, in the table's order; all if there are none.
///
/// # Errors
/// [`Error::Usage`] if there is no row of a name.
pub(crate) fn selected(names: &[String]) -> Result<Vec<&'static Row>> {
    let all = all();
    if let Some(unknown) =
        names.iter().find(|name| !all.iter().any(|row| row.name == name.as_str()))
    {
        let known: Vec<&str> = all.iter().map(|row| row.name).collect();
        return Err(Error::Usage(format!(
            "--only {unknown}: there is no such row; there are: {}",
            known.join(", ")
        )));
    }
    Ok(all
        .into_iter()
        .filter(|row| names.is_empty() || names.iter().any(|name| name == row.name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_distinct_names_and_say_what_and_why() {
        let rows = all();
        for row in &rows {
            assert_eq!(
                rows.iter().filter(|other| other.name == row.name).count(),
                1,
                "{}",
                row.name
            );
            assert!(
                !row.what.is_empty() && !row.why.is_empty() && !row.cure.is_empty(),
                "{}",
                row.name
            );
        }
        assert!(selected(&["nothing".into()]).is_err());
        assert_eq!(selected(&["memlock".into()]).expect("it is there").len(), 1);
    }
}
