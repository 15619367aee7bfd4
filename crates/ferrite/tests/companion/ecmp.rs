//! `ferrite ecmp` as a user calls it.

use crate::common::ferrite;
use serde_json::Value;

const SMALL: [&str; 12] =
    ["--hosts", "8", "--rails", "1", "--leaf", "4", "--seeds", "1", "--warm-up", "2", "--measure", "2"];

#[test]
fn two_runs_give_the_same_table_with_a_row_for_each_policy() {
    let words = [&["ecmp", "--policy", "turns:1,even:2,shares:2"], &SMALL[..]].concat();
    let (code, first, stderr) = ferrite(&words, &[]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(ferrite(&words, &[]).1, first);
    for policy in ["turns:1", "even:2", "shares:2"] {
        assert!(first.contains(&format!("\n| {policy} | ")), "{first}");
    }
}

#[test]
fn as_json_there_are_the_same_numbers_with_names() {
    let (code, stdout, stderr) = ferrite(&[&["ecmp", "--json", "--policy", "even:2"], &SMALL[..]].concat(), &[]);
    assert_eq!(code, 0, "{stderr}");
    let all: Value = serde_json::from_str(&stdout).expect("JSON");
    let row = &all["rows"][0];
    assert_eq!((all["schema"].as_str(), row["policy"].as_str()), (Some("ferrite-ecmp/1"), Some("even:2")));
    assert_eq!(row["work_requests"].as_f64(), Some(2.0));
    let [slowest, mean] = ["slowest", "mean"].map(|name| row[name].as_f64().expect(name));
    assert!(0.0 < slowest && slowest <= mean && mean < 1.05, "{row}");
}

#[test]
fn what_makes_no_fabric_is_refused_with_the_argument_and_the_value() {
    for (words, expected) in [
        (&["ecmp", "--policy", "stock:1"][..], "stock:1 is no policy"),
        (&["ecmp", "--fault", "slow:2"], "slow:2 is no fault"),
        (&["ecmp", "--workload", "tree"], "tree is no workload"),
        (&["ecmp", "--hosts", "8", "--rails", "1", "--leaf", "8"], "8 NICs fit one leaf of 8"),
        (&["ecmp", "--leaf", "7", "--oversubscription", "2"], "--leaf 7"),
    ] {
        let (code, _, stderr) = ferrite(words, &[]);
        assert!(code == 2 && stderr.contains(expected), "{words:?}: {code} {stderr}");
    }
}
