//! What docs/faults.md shows as rules are rules.

use crate::rules::text::parse;

const PAGE: &str = include_str!("../../docs/faults.md");

#[test]
fn every_example_is_read() {
    let blocks: Vec<_> = PAGE.split("```faults\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 6, "{} blocks: too few to believe", blocks.len());
    for block in blocks {
        let rules = parse(block).unwrap_or_else(|e| panic!("{e}"));
        assert!(rules.len() >= block.lines().count(), "{block}");
    }
    let commands = ["softrnic run --faults '", "softrnic inject '"];
    let quoted = commands.map(|command| PAGE.split(command).nth(1).and_then(|rest| rest.split('\'').next()));
    for rule in quoted {
        assert_eq!(parse(rule.expect("an example")).map(|rules| rules.len()), Ok(1), "{rule:?}");
    }
}
