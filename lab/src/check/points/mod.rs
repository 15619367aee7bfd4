//! The points of the contract, a chapter a file, and the table of all of them.

/// `point!(number, name, environment => step, ...; claim)`; or `needs` and what is missing here.
macro_rules! point {
    ($number:expr, $name:expr, needs $what:expr; $claim:expr) => {
        point!(@ $number, $name, $claim, Needs($what))
    };
    ($number:expr, $name:expr, $($env:expr => $run:expr),+; $claim:expr) => {
        point!(@ $number, $name, $claim,
            Steps(&[$($crate::check::context::Step { env: $env, run: $run }),+]))
    };
    (@ $number:expr, $name:expr, $claim:expr, $kind:ident($trial:expr)) => {
        $crate::check::context::Point {
            number: $number,
            name: $name,
            claim: $claim,
            trial: $crate::check::context::Trial::$kind($trial),
        }
    };
}

mod connection;
mod datapath;
mod faults;
mod loading;
mod one_sided;

use crate::check::context::Point;
use crate::error::{Error, Result};

/// All points, by number.
pub(crate) fn all() -> Vec<Point> {
    let chapters = [
        loading::POINTS,
        loading::PROPERTY_POINTS,
        connection::POINTS,
        connection::PEER_POINTS,
        datapath::REGISTRATION_POINTS,
        datapath::POINTS,
        datapath::ORDER_POINTS,
        connection::TEARDOWN_POINTS,
        faults::POINTS,
        loading::SETTING_POINTS,
        loading::VERSION_POINTS,
    ];
    let mut all = chapters.concat();
    all.sort_by_key(|point| point.number);
    all
}

/// The points of one-sided operations, by numbers of their own.
pub(crate) fn one_sided() -> Vec<Point> {
    one_sided::POINTS.to_vec()
}

/// Names that points have had before, which select them as well: the former one and today's.
const FORMER_NAMES: &[(&str, &str)] = &[("strangers", "unauthenticated-clients")];

/// Whether `word` is the number of the point, its name or a former name of it.
fn is_named(point: &Point, word: &str) -> bool {
    let is_former = FORMER_NAMES.contains(&(word, point.name));
    point.name == word || is_former || word.parse() == Ok(point.number)
}

/// Those of `all` that `words` name, by number or by name; all for none.
///
/// # Errors
/// [`Error::Usage`] for a word that names none.
pub(crate) fn selected(all: Vec<Point>, words: &[String]) -> Result<Vec<Point>> {
    if let Some(unknown) = words.iter().find(|word| !all.iter().any(|point| is_named(point, word)))
    {
        return Err(Error::Usage(format!("there is no check {unknown}; --list names all")));
    }
    let is_selected =
        |point: &Point| words.is_empty() || words.iter().any(|word| is_named(point, word));
    Ok(all.into_iter().filter(is_selected).collect())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn points_are_numbered_without_gaps_and_have_names_of_their_own() {
        for all in [all(), one_sided()] {
            let numbers: Vec<usize> = all.iter().map(|point| point.number as usize).collect();
            assert_eq!(numbers, (1..=all.len()).collect::<Vec<_>>());
            let mut names: Vec<_> = all.iter().map(|point| point.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all.len());
            let tidy = |name: &str| {
                name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c.is_ascii_digit())
            };
            assert!(names.iter().all(|name| tidy(name) && name.parse::<u32>().is_err()));
        }
    }

    #[test]
    fn a_former_name_is_none_of_today_and_its_point_exists() {
        let is_todays = |name: &str| all().iter().any(|point| point.name == name);
        assert!(FORMER_NAMES.iter().all(|(former, name)| !is_todays(former) && is_todays(name)));
    }

    #[test]
    fn points_are_chosen_by_number_name_or_former_name() {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let numbers = |list: &[&str]| {
            selected(all(), &words(list)).map(|c| c.iter().map(|p| p.number).collect::<Vec<_>>())
        };
        assert_eq!(numbers(&["57", "abi-layout"]).ok(), Some(vec![1, 57]));
        assert_eq!(numbers(&["strangers", "unauthenticated-clients"]).ok(), Some(vec![21]));
        assert!(numbers(&["0"]).is_err() && numbers(&["nonsense"]).is_err());
        assert_eq!(numbers(&[]).map(|all| all.len()).ok(), Some(all().len()));
    }
}
