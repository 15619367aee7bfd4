//! Reads variables, and checks each against the table of variables.

use super::variables::{Kind, VARIABLES};
use crate::error::{Error, Result};

/// Looks settings up.
#[derive(Debug)]
pub(super) struct Reader<F> {
    lookup: F,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    /// `lookup` returns the value of a variable that is set.
    pub(super) fn new(lookup: F) -> Self {
        Self { lookup }
    }

    fn kind(name: &str) -> Result<Kind> {
        let found = VARIABLES.iter().find(|v| v.name == name);
        found
            .map(|v| v.kind)
            .ok_or_else(|| Error::internal(format!("{name} is not in the table of variables")))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty())
    }

    pub(super) fn number(&self, name: &str) -> Result<i64> {
        let Kind::Number(low, high, default) = Self::kind(name)? else {
            return Err(Error::internal(format!("{name} is no number")));
        };
        let Some(value) = self.text(name) else { return Ok(default) };
        parse_number(&value).filter(|n| (low..=high).contains(n)).ok_or_else(|| {
            Error::usage(format!("{name}={value}: a whole number from {low} to {high} is expected"))
        })
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.number(name)? == 1)
    }

    pub(super) fn choice(&self, name: &str) -> Result<String> {
        let Kind::Choice(allowed) = Self::kind(name)? else {
            return Err(Error::internal(format!("{name} is no choice")));
        };
        let value = self
            .text(name)
            .unwrap_or_else(|| allowed.first().copied().unwrap_or_default().to_owned());
        if allowed.contains(&value.as_str()) {
            return Ok(value);
        }
        let allowed =
            allowed.iter().filter(|a| !a.is_empty()).copied().collect::<Vec<_>>().join(" or ");
        Err(Error::usage(format!("{name}={value}: {allowed} is expected")))
    }
}

/// As C's `strtoll` with base 0, which NCCL uses, but trailing characters are an error.
fn parse_number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.contains(['+', '-']) {
        return None;
    }
    let magnitude: i64 = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => i64::from_str_radix(hex, 16).ok()?,
        None if digits.len() > 1 && digits.starts_with('0') => {
            i64::from_str_radix(digits, 8).ok()?
        }
        None if digits.starts_with(|c: char| c.is_ascii_digit()) => digits.parse().ok()?,
        None => return None,
    };
    Some(if negative { -magnitude } else { magnitude })
}
