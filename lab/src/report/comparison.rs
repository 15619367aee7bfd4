//! The report of a comparison: who ran, how, what came out, and how to read it.

use crate::cost;
use crate::measure::metric::Metric;
use crate::report::chart::{self, Bar, date};
use crate::report::page::Part;
use crate::report::table::{self, Named, host_of, over_connections, percent, variables, warnings};
use crate::report::verdict::{data, verdict};
use crate::results::judgement::{CHANCE, NOTHING};
use crate::results::record::{Machine, Record, Side};
use crate::verbs::Verbs;

/// What the report is called.
pub(super) fn title(record: &Record) -> String {
    let titles: Vec<String> = record.sides.iter().rev().map(Side::short_title).collect();
    titles.join(" against ")
}

/// Groups and their rows, under the verdict.
pub(super) fn picture(record: &Record) -> String {
    let host = host_of(record, 0);
    let host = if host.is_empty() { record.machine.host.clone() } else { host };
    let head = [
        title(record),
        verdict(record),
        format!("{}, {}, ferrite {}", host.trim_end(), date(record.started_unix), record.tool),
    ];
    let mut bars = Vec::new();
    for group in &record.groups {
        let info = group.metric.info();
        let of_group = |name: String, is_group, judgement| Bar {
            words: Named::new((String::new(), info.better), judgement).words(),
            name,
            is_group,
            judgement,
        };
        bars.push(of_group(group.name.clone(), true, &group.judgement));
        let rows = record.rows.iter().filter(|row| row.key.metric == group.metric);
        let rows: Vec<_> = rows.collect();
        if rows.len() > 1 {
            bars.extend(rows.iter().map(|row| of_group(row.key.name(), false, &row.judgement)));
        }
    }
    chart::draw(&head, &bars)
}

/// The whole page.
pub(super) fn page(record: &Record) -> Vec<Part> {
    let two = record.sides.len() > 1;
    let mut parts = vec![
        Part::Heading(1, title(record)),
        Part::Text(format!("**{}.** {}.", verdict(record), data(record))),
    ];
    if let Some(problem) = &record.problem {
        let (first, lines) = problem.split_once('\n').unwrap_or((problem, ""));
        parts.push(Part::Text(format!("**Ended by**: {first}")));
        parts.extend((!lines.is_empty()).then(|| Part::Plain(lines.into())));
    }
    parts.extend(warnings(record).into_iter().map(Part::Text));
    let sides = record.sides.iter();
    let mut items: Vec<String> = sides
        .map(|side| format!("**{}** = {}{}", side.label, side.title(), variables(side)))
        .collect();
    items.push(format!(
        "{}, made by ferrite {}, {:.0} s",
        date(record.started_unix),
        record.tool,
        record.seconds
    ));
    parts.push(Part::Items(items));
    if two {
        parts.push(Part::Picture(picture(record), "Ratios of B to A with their intervals".into()));
    }
    parts.extend(table::tables(record).into_iter().map(Part::Table));
    parts.push(Part::Heading(2, "How to read it".into()));
    if two {
        parts.extend(reading(record).into_iter().map(Part::Text));
    }
    let meaning = |metric: &Metric| {
        let info = metric.info();
        record
            .rows
            .iter()
            .any(|row| row.key.metric == *metric)
            .then(|| format!("{}: {}; {}", info.name, info.meaning, info.unit))
    };
    parts.push(Part::Items(Metric::ALL.iter().filter_map(meaning).collect()));
    if !record.costs.is_empty() {
        parts.push(Part::Heading(2, "What a message costs the card".into()));
        let words =
            "Counted by the software device, without a clock; lab/docs/cost.md explains each row.";
        parts.push(Part::Text(words.into()));
        parts.push(Part::Plain(cost::text(&record.costs)));
    }
    parts.push(Part::Heading(2, "What ran".into()));
    record.sides.iter().for_each(|side| parts.extend(evidence(record, side)));
    parts.push(Part::Heading(2, "Where".into()));
    parts.push(Part::Items(machine(record)));
    parts
}

fn reading(record: &Record) -> [String; 2] {
    [
        format!(
            "Both sides ran in the same two processes, in the same memory{}. They took turns: blocks of about a millisecond, A B B A or \
             B A A B by chance. A set is a fresh pair of processes with fresh connections. Its ratio B/A is the median over pairs of \
             neighbouring blocks; pairs in which the kernel took a processor away are left out. B/A is the Hodges-Lehmann estimate over \
             the sets, [..] the interval of Wilcoxon's signed ranks. A group is the geometric mean of its rows.",
            over_connections(&record.scope)
        ),
        format!(
            "B is faster or slower where the interval lies beyond {} on one side of 1. The same within X: the interval reaches no further \
             than X, and X is {} or less. Undecided: it reaches further; a difference of the size that is named as visible is found in \
             four of five runs. If A and B do not differ, the chance that a run reports any difference is {:.1} %.",
            percent(NOTHING),
            percent(record.scope.find()),
            CHANCE * 100.0
        ),
    ]
}

fn evidence(record: &Record, side: &Side) -> [Part; 2] {
    let identity = &side.identity;
    let head = format!(
        "**{}**: vtable name `{}`, from symbol `{}`",
        side.label, identity.name, identity.symbol
    );
    let mut items = vec![
        format!("file `{}`, sha256 `{}`", identity.file.display(), side.sha256),
        format!("{} functions of the vtable lie in that file's mapping", identity.functions),
    ];
    let verbs = side.verbs.iter();
    items.extend(
        verbs.map(|verbs| format!("libibverbs mapped in its processes: `{}`", verbs.display())),
    );
    items.extend(side.devices.iter().enumerate().map(|(rank, device)| {
        format!(
            "rank {rank}: {}device `{}` port {}, guid {:#x}, {} Mbit/s, on {}",
            host_of(record, rank),
            device.name,
            device.port,
            device.guid,
            device.speed_mbps,
            side.cpus[rank].map_or_else(|| "any CPU".into(), |cpu| format!("CPU {cpu}"))
        )
    }));
    items.push(format!("loaded in {:.0} ms, init took {:.0} ms", side.load_ms, side.init_ms));
    items.push(format!("verified: {} messages", side.checked()));
    [Part::Text(head), Part::Items(items)]
}

fn machine(record: &Record) -> Vec<String> {
    let of = |machine: &Machine| {
        let host =
            if machine.host.is_empty() { String::new() } else { format!("{}: ", machine.host) };
        format!("{host}{}, {} CPUs, Linux {}", machine.processor, machine.cpus, machine.kernel)
    };
    let mut items = vec![
        of(&record.machine),
        format!("libibverbs: {}{}", record.verbs.name(), counters(record)),
        format!("`{}`", record.command.join(" ")),
    ];
    let variable = |(name, value): (&String, &String)| format!("`{name}={value}`");
    items.extend(record.machine.environment.iter().map(variable));
    items.extend(record.other_machine.iter().map(|other| format!("rank 1 on {}", of(other))));
    items.extend(record.settings.iter().map(|one| variable(one) + ", set for both alike"));
    items
}

/// What the devices' own counters say of where the data went.
fn counters(record: &Record) -> &'static str {
    let mut all = record.sets.iter().flat_map(|set| &set.traffic).peekable();
    match (&record.verbs, all.peek().is_some()) {
        (Verbs::Softrnic { .. }, _) => ", each pair of processes alone on a fabric of its own",
        (Verbs::System, false) => "; the devices keep no counters",
        (Verbs::System, true) if all.all(|traffic| traffic.moved()) => {
            "; the devices' counters moved in every set"
        }
        (Verbs::System, true) => {
            "; a device's counters stood still, as they may when it talks to itself"
        }
    }
}
