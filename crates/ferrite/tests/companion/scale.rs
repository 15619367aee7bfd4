//! `ferrite scale` as a user calls it, and its page. `FERRITE_UPDATE=1 cargo test -p ferrite --test companion scale` writes the tables
//! of docs/scale.md.

use std::path::Path;

use crate::common::{dist, ferrite, stock_nccl};
use serde_json::Value;
use testkit::require;

/// What stands between the marks of the page that have these names: all that the command prints, or the part with this heading.
const TABLES: [(&str, &[&str], Option<&str>); 5] = [
    ("all", &["scale", "--constants"], None),
    (
        "many",
        &["scale", "--communicators", "8", "--ranks", "1024,16384,131072", "--groups", "ring,tree,all-to-all,hybrid"],
        Some("Queue pairs of a rank of Ferrite"),
    ),
    (
        "many-limits",
        &["scale", "--communicators", "8", "--groups", "ring,tree,all-to-all,hybrid"],
        Some("Ranks from which a limit is exceeded"),
    ),
    (
        "lanes",
        &["scale", "--queue-pairs", "4", "--ranks", "1024,16384,131072", "--groups", "all-to-all"],
        Some("all-to-all"),
    ),
    (
        "lanes-limits",
        &["scale", "--queue-pairs", "4", "--groups", "ring,tree,all-to-all,hybrid"],
        Some("Ranks from which a limit is exceeded"),
    ),
];

fn printed(words: &[&str]) -> String {
    let (code, stdout, stderr) = ferrite(words, &[]);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

fn tables(words: &[&str], heading: Option<&str>) -> String {
    let all = printed(words);
    let Some(heading) = heading else { return all };
    let blocks: Vec<&str> = all.trim_end().split("\n\n").collect();
    let at = blocks.iter().position(|block| block.starts_with(heading)).expect("the heading is printed");
    format!("{}\n", blocks[at + 1])
}

#[test]
fn the_page_has_the_tables_that_the_command_prints() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scale.md");
    let mut page = std::fs::read_to_string(&path).expect("the page");
    for (name, words, heading) in TABLES {
        let (begin, end) =
            (format!("<!-- {name}: ferrite {} -->\n", words.join(" ")), format!("<!-- end of {name} -->"));
        let (head, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{begin}"));
        let (written, tail) = rest.split_once(&end).unwrap_or_else(|| panic!("{end}"));
        let now = format!("\n{}\n", tables(words, heading));
        let update = std::env::var_os("FERRITE_UPDATE").is_some();
        assert!(
            update || written == now,
            "{name}: write it anew: FERRITE_UPDATE=1 cargo test -p ferrite --test companion scale"
        );
        page = format!("{head}{begin}{now}{end}{tail}");
    }
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        std::fs::write(&path, page).expect("written");
    }
}

#[test]
fn as_json_there_are_the_same_numbers_with_names_and_their_sources() {
    let all: Value =
        serde_json::from_str(&printed(&["scale", "--json", "--ranks", "131072", "--groups", "all-to-all"]))
            .expect("JSON");
    assert_eq!(all["schema"], "ferrite-scale/1");
    let row = &all["rows"][0];
    assert_eq!((row["ranks"].as_u64(), row["parts"][0]["peers"].as_u64()), (Some(131_072), Some(16_383)));
    assert_eq!(row["ferrite"]["queue_pairs"].as_f64(), Some(32_766.0));
    assert_eq!(row["built_in"]["queue_pairs"].as_f64(), Some(49_149.0));
    for list in ["constants", "limits"] {
        let list = all[list].as_array().expect(list);
        assert!(!list.is_empty() && list.iter().all(|entry| !entry["source"].as_str().expect("a source").is_empty()));
    }
}

#[test]
fn what_is_not_allowed_is_refused_with_the_option_the_value_and_what_is() {
    for (words, expected) in [
        (&["--ranks", "12"][..], &["--ranks", "12 is no number of ranks", "powers of two from 8 to 1048576"][..]),
        (&["--ranks", "8,2097152"], &["--ranks", "2097152"]),
        (&["--groups", "star"], &["--groups", "star is no group", "all-to-all-direct"]),
        (&["--queue-pairs", "129"], &["--queue-pairs", "129", "1..=128"]),
        (&["--channels", "0"], &["--channels", "0 is not in 1..=32"]),
        (&["--communicators", "0"], &["--communicators", "1..=1024"]),
        (&["--command-us", "-1"], &["-1"]),
    ] {
        let (code, _, stderr) = ferrite(&[&["scale"], words].concat(), &[]);
        assert!(code == 2 && expected.iter().all(|part| stderr.contains(part)), "{words:?}: {code} {stderr}");
    }
}

/// A constant of both transports, by the beginning of what it is.
fn constant(all: &Value, what: &str) -> [f64; 2] {
    let mut list = all["constants"].as_array().expect("constants").iter();
    let found = list.find(|constant| constant["what"].as_str().expect("text").starts_with(what)).expect(what);
    ["stock", "ferrite"].map(|side| found[side].as_f64().expect(side))
}

#[test]
fn the_counted_constants_are_what_the_software_device_counts() {
    let dist = require!(dist(&["lib/libnccl-net.so", "softrnic/libibverbs.so.1", "bin/ferrite", "bin/softrnic"]));
    let stock = require!(stock_nccl());
    let path = |part: &str| dist.join(part).display().to_string();
    let (plugin, softrnic, stock) = (path("lib/libnccl-net.so"), path("softrnic"), stock.display().to_string());
    let cost = ["cost", "--plugin", &plugin, "--stock", &stock, "--softrnic", &softrnic, "--json", "--size", "8"];
    let counted: Value =
        serde_json::from_str(&printed(&[&cost[..], &["--queue-pairs", "1,4"]].concat())).expect("JSON");
    let all: Value = serde_json::from_str(&printed(&["scale", "--json"])).expect("JSON");
    // Registering one buffer at each end, and what is made once for two devices: the built-in transport's protection domains, and the memory that
    // Ferrite tests paths with.
    let once = [2.0 + 2.0, 2.0 + 2.0];
    for (case, queue_pairs) in counted["cases"].as_array().expect("cases").iter().zip([1.0, 4.0]) {
        for side in 0..2 {
            let per = |name: &str| case["transports"][side]["connection"][name].as_f64().expect(name);
            let of = |what: &str| constant(&all, what)[side];
            assert_eq!(per("queue_pairs"), 2.0 * queue_pairs * of("queue pairs of an end"), "{case}");
            let commands =
                of("commands of both ends: ") + queue_pairs * of("commands of both ends for each queue pair");
            assert_eq!(per("commands"), commands + once[side], "{case}");
            let bytes = case["transports"][side]["connection"]["queue_bytes"]["mlx5"].as_f64().expect("mlx5");
            assert_eq!(bytes, 1024.0 * queue_pairs * of("queues of both ends, mlx5"), "{case}");
        }
    }
}
