//! What was found, as text.

use crate::ecmp::rate_control::RateControl;
use crate::ecmp::scenario::{Row, Scenario, Wrong};

/// The scenario in one line.
pub(crate) fn heading(scenario: &Scenario) -> String {
    let Scenario { hosts, rails, leaf_nics, tiers, oversubscription, others, seeds, budget_speed, .. } = scenario;
    let wrong = match scenario.wrong {
        Wrong::Nothing => String::new(),
        Wrong::Slow(share) => format!("; one link at {share} of its speed"),
        Wrong::Lossy(share) => format!("; one link of whose packets {share} arrive in time"),
        Wrong::Dead => "; one link down".to_owned(),
    };
    let others = if *others > 0 { format!("; {others} flows of others") } else { String::new() };
    let hash = if scenario.hashes_queue_pairs { "; switches hash the destination queue pair" } else { "" };
    let hash = if scenario.sprays { "; switches spread every packet" } else { hash };
    let budget =
        if *budget_speed > 1 { format!("; the budget of moves {budget_speed} times as fast") } else { String::new() };
    let control = match scenario.rate_control {
        RateControl::Fair => String::new(),
        control => format!("; rate control {}{}", control.name(), if scenario.pauses { ", pauses" } else { "" }),
    };
    format!(
        "{}, {} NICs ({hosts} hosts of {rails}), {tiers} tiers, leaves of {leaf_nics} NICs and {} uplinks{wrong}{others}{hash}{control}{budget}; {seeds} seeds",
        scenario.workload.name(),
        scenario.nics(),
        leaf_nics / oversubscription,
    )
}

/// The scenario, and a table in Markdown.
pub(crate) fn text(scenario: &str, rows: &[Row]) -> String {
    let mut text = scenario.to_owned() + "\n\n";
    text += "| policy | slowest | worst seed | mean | work requests a message | moves a connection: before, measured | new paths a lane and minute |\n";
    text += "|---|---|---|---|---|---|---|\n";
    for row in rows {
        let Row { policy, slowest, worst, mean, work_requests, moves, new_paths } = row;
        let moves = match policy.starts_with("moves") {
            true => format!("{:.1}, {:.2} | {new_paths:.2}", moves[0], moves[1]),
            false => " | ".to_owned(),
        };
        text += &format!("| {policy} | {slowest:.2} | {worst:.2} | {mean:.2} | {work_requests:.1} | {moves} |\n");
    }
    text
}
