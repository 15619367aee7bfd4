//! `report.md`: who ran, how, what came out, and how to read it.

use std::fmt::Write;

use crate::cost;
use crate::report::table;
use crate::report::table::{host_of, over_connections, percent, repetitions, variables, warnings};
use crate::report::verdict::{bias, change, tails, verdict};
use crate::results::judgement::{CHANCE, Earlier};
use crate::results::record::{Machine, Record, Side};
use crate::verbs::Verbs;

/// The whole page.
pub(crate) fn write(record: &Record) -> String {
    let mut page = String::new();
    // Writing to a String does not fail.
    page_into(record, &mut page).unwrap_or_default();
    page
}

fn page_into(record: &Record, page: &mut String) -> std::fmt::Result {
    let two = record.sides.len() > 1;
    writeln!(page, "# {}\n", if two { "A against B" } else { "One transport" })?;
    writeln!(page, "**{}.**\n", capital(&verdict(record)))?;
    for warning in warnings(record) {
        writeln!(page, "**{}.**\n", capital(&warning))?;
    }
    for side in &record.sides {
        writeln!(page, "- **{}** = {}{}", side.label, side.title(), variables(side))?;
    }
    writeln!(
        page,
        "- made by ferrite {}, {}, {:.0} s\n",
        record.tool,
        repetitions(record),
        record.seconds
    )?;
    writeln!(page, "![Latency and bandwidth over size, with ratios](report.svg)\n")?;
    for table in table::tables(record) {
        writeln!(page, "{}", table.markdown())?;
    }
    if two {
        if let Some(bias) = bias(record) {
            writeln!(page, "**{bias}.**\n")?;
        }
        if let Some(tails) = tails(record) {
            writeln!(page, "{tails}.\n")?;
        }
        reading(record, page)?;
    }
    if let Some(earlier) = &record.earlier {
        changes(record, earlier, page)?;
    }
    if !record.costs.is_empty() {
        let counted = cost::text(&record.costs);
        writeln!(
            page,
            "## What a message costs the card\n\nCounted by the software device, without a clock; each row is explained in \
             lab/docs/cost.md.\n\n```\n{}\n```\n",
            counted.trim_end()
        )?;
    }
    writeln!(page, "## What ran\n")?;
    for side in &record.sides {
        evidence(record, side, page)?;
    }
    machine(record, page)
}

fn reading(record: &Record, page: &mut String) -> std::fmt::Result {
    let coverage =
        record.rows.iter().find_map(|row| row.judgement.ratio).map_or(0.0, |ratio| ratio.coverage);
    writeln!(
        page,
        "## How to read it\n\n\
         Each value is the median over {}, each of them a session of A, one of B and one of A again, in fresh processes \
         and in an order that changes; all sessions move data in the same memory pages. B/A is the median of the ratios \
         of B to the geometric mean of both A; A/A is the ratio of the two sessions of A: what the machine does by itself. \
         [..] are intervals of order statistics, each of which covers the true median with a chance of {:.0} %. \"better\" and \
         \"worse\" are said if B/A differs from 1 and its median lies beyond the interval of A/A; the level is chosen so \
         that the chance of saying it of any row of this run although it is not so is {:.0} %, and the same of any group. \
         \"none found\" is no proof that there is none: a difference from the one in the last column on would have been \
         found. \"too noisy\": that is more than {}. \"likely\": the row's own interval excludes 1; of so many rows, one may by chance. \"A is not A\": the interval of A/A does not hold 1, so nothing is claimed. `typ` is the median, `p99` \
         the 99th percentile, within a session.\n\n\
         Latency is half the round trip of a ping-pong whose receives are posted beforehand. Streams keep 8 messages \
         in flight{}; their time is that of the slower side; `typ` is the median and `peak` the best of five parts of a \
         session. `#wrong` counts the messages of that size with a wrong byte, size, or byte beyond the end in the \
         verification pass, both sides together.\n",
        repetitions(record),
        coverage * 100.0,
        CHANCE * 100.0,
        percent(record.scope.find()),
        over_connections(&record.scope)
    )
}

fn changes(record: &Record, earlier: &Earlier, page: &mut String) -> std::fmt::Result {
    writeln!(
        page,
        "## Since an earlier run\n\n**{}.**\n",
        capital(&change(record).unwrap_or_default())
    )?;
    writeln!(
        page,
        "- that run: `{}`, made by ferrite {}, {:.1} days before this one",
        earlier.file.display(),
        earlier.tool,
        record.started_unix.saturating_sub(earlier.started_unix) as f64 / 86_400.0
    )?;
    for difference in &earlier.differences {
        writeln!(page, "- {difference}")?;
    }
    writeln!(page)?;
    for table in table::changes(record) {
        writeln!(page, "{}", table.markdown())?;
    }
    writeln!(
        page,
        "Times and rates of different days say little, so none are compared: now/then is the quotient of B/A in this run and B/A in that \
         one, where A is the same library. Its interval reaches from the lower end of the one over the upper end of the other to the \
         opposite, since nothing pairs repetitions of two runs. It covers what repetitions of a run differ by. What a machine does to B \
         and not to A from one day to the next is in no interval: make the comparison twice on one day to see how much that is.\n"
    )
}

fn evidence(record: &Record, side: &Side, page: &mut String) -> std::fmt::Result {
    let identity = &side.identity;
    writeln!(
        page,
        "**{}**: vtable name `{}`, from symbol `{}`\n",
        side.label, identity.name, identity.symbol
    )?;
    writeln!(page, "- file `{}`, sha256 `{}`", identity.file.display(), side.sha256)?;
    writeln!(page, "- {} functions of the vtable lie in that file's mapping", identity.functions)?;
    for verbs in &side.verbs {
        writeln!(page, "- libibverbs mapped in its processes: `{}`", verbs.display())?;
    }
    for (rank, device) in side.devices.iter().enumerate() {
        writeln!(
            page,
            "- rank {rank}: {}device `{}` port {}, guid {:#x}, {} Mbit/s, on {}",
            host_of(record, rank),
            device.name,
            device.port,
            device.guid,
            device.speed_mbps,
            side.cpus[rank].map_or_else(|| "any CPU".into(), |cpu| format!("CPU {cpu}"))
        )?;
    }
    writeln!(page, "- loaded in {:.0} ms, init took {:.0} ms", side.load_ms, side.init_ms)?;
    writeln!(page, "- verified: {} messages\n", side.checked())
}

fn machine(record: &Record, page: &mut String) -> std::fmt::Result {
    let machine = &record.machine;
    let host = |machine: &Machine| {
        if machine.host.is_empty() { String::new() } else { format!("{}: ", machine.host) }
    };
    writeln!(
        page,
        "## Where\n\n- {}{}, {} CPUs, Linux {}\n- libibverbs: {}{}\n- ferrite {}, {:.0} s, `{}`",
        host(machine),
        machine.processor,
        machine.cpus,
        machine.kernel,
        record.verbs.name(),
        counters(record),
        record.tool,
        record.seconds,
        record.command.join(" ")
    )?;
    for (name, value) in &machine.environment {
        writeln!(page, "- `{name}={value}`")?;
    }
    if let Some(other) = &record.other_machine {
        writeln!(
            page,
            "- rank 1 on {}{}, {} CPUs, Linux {}",
            host(other),
            other.processor,
            other.cpus,
            other.kernel
        )?;
        if let Verbs::Softrnic { .. } = record.verbs {
            writeln!(
                page,
                "- what a message costs the card is counted on one host only (`ferrite cost`)"
            )?;
        }
    }
    for (name, value) in &record.settings {
        writeln!(page, "- `{name}={value}`, set for both alike")?;
    }
    Ok(())
}

/// What the devices' own counters say of where the data went.
fn counters(record: &Record) -> &'static str {
    let mut all = record.sessions.iter().flat_map(|run| &run.traffic).peekable();
    match (&record.verbs, all.peek().is_some()) {
        (Verbs::Softrnic { .. }, _) => ", each pair of processes alone on a fabric of its own",
        (Verbs::System, false) => "; the devices keep no counters",
        (Verbs::System, true) if all.all(|traffic| traffic.moved()) => {
            "; the devices' counters moved in every session"
        }
        (Verbs::System, true) => {
            "; a device's counters stood still, as they may when it talks to itself"
        }
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
