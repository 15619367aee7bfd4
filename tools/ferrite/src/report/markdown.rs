//! `report.md`: who ran, how, what came out, and how to read it.

use std::fmt::Write;

use crate::record::{Record, Side};
use crate::report::{busy, repetitions, table, verdict};
use crate::verbs::Verbs;

/// The whole page.
pub fn write(record: &Record) -> String {
    let mut page = String::new();
    // Writing to a String does not fail.
    page_into(record, &mut page).unwrap_or_default();
    page
}

fn page_into(record: &Record, page: &mut String) -> std::fmt::Result {
    let two = record.sides.len() > 1;
    writeln!(page, "# {}\n", if two { "A against B" } else { "One transport" })?;
    for side in &record.sides {
        writeln!(page, "- **{}** = {}", side.label, side.title())?;
    }
    writeln!(page, "\n{}.\n", capital(&verdict(record)))?;
    writeln!(page, "![Latency and bandwidth over size, with ratios](report.svg)\n")?;
    for table in table::tables(record) {
        writeln!(page, "{}", table.markdown())?;
    }
    if two {
        reading(record, page)?;
    }
    writeln!(page, "## What ran\n")?;
    for side in &record.sides {
        evidence(side, page)?;
    }
    machine(record, page)
}

fn reading(record: &Record, page: &mut String) -> std::fmt::Result {
    writeln!(
        page,
        "## How to read it\n\n\
         Each value is the median over {}, each a fresh pair of processes a side. B/A is the median of the ratios of \
         neighbouring sessions, with an interval of order statistics that covers the true median with the chance in \
         the column's head. A/A is the same ratio between two sessions of A: what the machine does by itself. \
         \"better\" and \"worse\" need a B/A interval that lies beyond 1 and beyond the A/A interval; else no \
         difference is shown, and none is claimed at all from fewer than five repetitions. `typ` is the median, `p99` \
         the 99th percentile, within a session.\n\n\
         Latency is half the round trip of a ping-pong whose receives are posted beforehand. Streams keep 8 messages \
         in flight; their time is that of the slower side; `typ` is the median and `peak` the best of five parts of a \
         session. `#wrong` counts the messages of that size with a wrong byte, size, or byte beyond the end in the \
         verification pass, both sides together.\n",
        repetitions(record)
    )
}

fn evidence(side: &Side, page: &mut String) -> std::fmt::Result {
    let identity = &side.identity;
    writeln!(page, "**{}**: vtable name `{}`, from symbol `{}`\n", side.label, identity.name, identity.symbol)?;
    writeln!(page, "- file `{}`, sha256 `{}`", identity.file.display(), side.sha256)?;
    writeln!(page, "- {} functions of the vtable lie in that file's mapping", identity.functions)?;
    for verbs in &side.verbs {
        writeln!(page, "- libibverbs mapped in its processes: `{}`", verbs.display())?;
    }
    for (rank, device) in side.devices.iter().enumerate() {
        writeln!(
            page,
            "- rank {rank}: device `{}` port {}, guid {:#x}, {} Mbit/s, on {}",
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
    writeln!(
        page,
        "## Where\n\n- {}, {} CPUs, Linux {}\n- libibverbs: {}{}\n- ferrite {}, {:.0} s, `{}`",
        machine.processor,
        machine.cpus,
        machine.kernel,
        record.verbs.name(),
        counters(record),
        record.tool,
        record.seconds,
        record.command.join(" ")
    )?;
    if let Some(warning) = busy(record) {
        writeln!(page, "- {warning}")?;
    }
    for (name, value) in &machine.environment {
        writeln!(page, "- `{name}={value}`")?;
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
        (Verbs::System, true) if all.all(|traffic| traffic.moved()) => "; the devices' counters moved in every session",
        (Verbs::System, true) => "; a device's counters stood still, as they may when it talks to itself",
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
