//! The numbers as text, with tables in Markdown, and as JSON.

use serde_json::{Value, json};

use crate::error::Result;
use crate::pair::message::json_error;
use crate::scale::constants::CONSTANTS;
use crate::scale::demand::{Demand, Setting, Sharing, Transport};
use crate::scale::group::Group;
use crate::scale::layout::Layout;
use crate::scale::layout::nodes;
use crate::scale::limits::{LIMITS, bends};

/// What is asked for.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) ranks: Vec<u64>,
    pub(crate) groups: Vec<Group>,
    pub(crate) setting: Setting,
    /// The table of constants too.
    pub(crate) has_constants: bool,
}

/// All tables.
pub(crate) fn text(request: &Request) -> String {
    let Setting { communicators, channels, queue_pairs, command_us } = request.setting;
    let mut text = format!(
        "Per rank, 8 ranks a node, a NIC each. Communicators of each kind: {communicators}. Channels of a communicator on a NIC: {channels}. \
         Queue pairs of a connection: {queue_pairs}. A command: {command_us} us\n"
    );
    for group in &request.groups {
        text += &format!("\n{}\n\n{}", group.name(), demands(*group, request));
    }
    text += &format!("\nRanks from which a limit is exceeded; - is never, up to 1,048,576\n\n{}", limits(request));
    text += &format!("\nQueue pairs of a rank of Ferrite if connections shared them\n\n{}", sharing(request));
    if request.has_constants {
        text += &format!("\nConstants\n\n{}\nLimits\n\n{}", constants(), sources_of_limits());
    }
    text
}

fn table(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let heads: Vec<String> = columns.iter().map(|&column| column.to_owned()).collect();
    let mut text = line(&heads) + &"|---".repeat(columns.len()) + "|\n";
    rows.for_each(|row| text += &line(&row));
    text
}

fn demands(group: Group, request: &Request) -> String {
    let columns = [
        "ranks",
        "transport",
        "ends",
        "queue pairs",
        "queues, MiB",
        "registered, MiB",
        "sockets",
        "descriptors",
        "threads",
        "TCP messages",
        "set-up, s",
        "recovery, s",
    ];
    let cases = request.ranks.iter().flat_map(|ranks| Transport::ALL.map(|transport| (*ranks, transport)));
    let rows = cases.map(|(ranks, transport)| {
        let demand = Demand::of(transport, &group.parts(ranks, request.setting.channels), &request.setting);
        let recovers = transport == Transport::Ferrite;
        vec![
            whole(ranks as f64),
            transport.name().to_owned(),
            whole(demand.ends),
            whole(demand.queue_pairs),
            short(demand.queue_kib / 1024.0),
            short(demand.registered_kib / 1024.0),
            whole(demand.sockets),
            whole(demand.descriptors),
            whole(demand.threads),
            whole(demand.messages),
            short(demand.setup_s),
            if recovers { short(demand.recovery_s) } else { "none".to_owned() },
        ]
    });
    table(&columns, rows)
}

fn limits(request: &Request) -> String {
    let cell = |ranks: Option<u64>| ranks.map_or_else(|| "-".to_owned(), |ranks| whole(ranks as f64));
    let rows = bends(&request.groups, &request.setting).into_iter();
    let rows =
        rows.map(|bend| vec![bend.group.to_owned(), bend.limit.to_owned(), cell(bend.stock), cell(bend.ferrite)]);
    table(&["group", "limit of a rank", "built-in", "Ferrite"], rows)
}

fn sharing(request: &Request) -> String {
    let columns = [
        "group",
        "ranks",
        "each its own",
        "shared, no peer in common",
        "shared, all peers in common",
        "the same, both ways in one",
        "set-up, s",
        "at best, s",
    ];
    let cases = request.groups.iter().flat_map(|group| request.ranks.iter().map(move |ranks| (*group, *ranks)));
    let rows = cases.map(|(group, ranks)| {
        let Sharing { own, apart, together, both_ways, own_s, together_s } =
            Sharing::of(&group.parts(ranks, request.setting.channels), &request.setting);
        let numbers = [own, apart, together, both_ways].map(whole);
        let times = [own_s, together_s].map(short);
        [vec![group.name().to_owned(), whole(ranks as f64)], numbers.to_vec(), times.to_vec()].concat()
    });
    table(&columns, rows)
}

fn constants() -> String {
    let rows = CONSTANTS.iter().map(|constant| {
        vec![constant.what.to_owned(), whole(constant.stock), whole(constant.ferrite), constant.source.to_owned()]
    });
    table(&["constant", "built-in", "Ferrite", "source"], rows)
}

fn sources_of_limits() -> String {
    table(&["limit", "source"], LIMITS.iter().map(|limit| vec![limit.what.to_owned(), limit.source.to_owned()]))
}

/// A whole number, with a comma at every thousand.
fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with three digits that count, or more before the point.
fn short(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        ..0.01 => format!("{number:.4}"),
        ..1.0 => format!("{number:.3}"),
        ..100.0 => format!("{number:.1}"),
        _ => whole(number),
    }
}

/// One JSON object; all constants and limits are in it.
///
/// # Errors
/// [`crate::error::Error::Unreadable`] if a number has no JSON.
pub(crate) fn json(request: &Request) -> Result<String> {
    let rows: Vec<Value> = request
        .groups
        .iter()
        .flat_map(|group| request.ranks.iter().map(|ranks| row(*group, *ranks, request)))
        .collect();
    let limits = LIMITS.map(|limit| json!({ "limit": limit.what, "most": limit.most, "source": limit.source }));
    let all = json!({
        "schema": "ferrite-scale/1",
        "setting": request.setting,
        "rows": rows,
        "exceeded_from": bends(&request.groups, &request.setting),
        "constants": CONSTANTS,
        "limits": limits,
    });
    serde_json::to_string_pretty(&all).map(|text| text + "\n").map_err(|e| json_error(&e))
}

fn row(group: Group, ranks: u64, request: &Request) -> Value {
    let parts = group.parts(ranks, request.setting.channels);
    let of = |transport| Demand::of(transport, &parts, &request.setting);
    let parts_json: Vec<Value> =
        parts.iter().map(|part| json!({ "name": part.name, "peers": part.peers, "sends": part.sends })).collect();
    let Layout { pipeline, data, expert } = Layout::of(nodes(ranks));
    let layout = (group == Group::Hybrid).then(|| json!({ "pipeline": pipeline, "data": data, "expert": expert }));
    json!({
        "group": group.name(),
        "ranks": ranks,
        "layout": layout,
        "parts": parts_json,
        "built_in": of(Transport::Stock),
        "ferrite": of(Transport::Ferrite),
        "sharing": Sharing::of(&parts, &request.setting),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_with_commas_and_few_digits() {
        assert_eq!(
            [0.0, 7.0, 999.0, 1000.0, 131_072.0, 1_048_576.0].map(whole),
            ["0", "7", "999", "1,000", "131,072", "1,048,576"]
        );
        assert_eq!(
            [0.0, 0.00284, 0.123_4, 1.26, 99.94, 1234.5].map(short),
            ["0", "0.0028", "0.123", "1.3", "99.9", "1,234"]
        );
    }
}
