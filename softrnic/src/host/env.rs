//! Environment variables.

/// The value of a variable. An empty value counts as absent.
pub(crate) fn text(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(raw)) => Err(format!("{name}={raw:?}: must be UTF-8 text")),
    }
}
