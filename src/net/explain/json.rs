//! A report for programs.

use super::set_up::SetUp;
use super::text::{EndName, Report, cause_text};
use crate::net::peer::recovery_progress::{RailStanding, RecoveryProgress};
use crate::proto::explain::inquiry::Finding;
use crate::proto::explain::message::Cause;
use crate::proto::explain::numbers::{End, Numbers};
use crate::proto::explain::operation::{Begun, Operation};
use crate::proto::identity::Identity;
use crate::version;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// One object on one line. Times are in seconds, `time_unix` since 1970.
pub fn json(report: &Report, host: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let waits: Vec<_> = report.findings.iter().map(|(finding, name)| wait(finding, name)).collect();
    let set_ups: Vec<_> = report.set_ups.iter().map(set_up).collect();
    let least_lead = report.least_lead.as_ref().map_or_else(
        || "null".into(),
        |least_lead| format!("{{\"who\":{},\"lead\":{}}}", who(&least_lead.who), least_lead.lead),
    );
    format!(
        "{{\"schema\":1,\"version\":{},\"time_unix\":{:.3},\"host\":{},\"pid\":{},\"rank\":{},\"number\":{},\"threshold_s\":{},\"text\":{},\
         \"waits\":[{}],\"waits_in_all\":{},\"least_lead\":{least_lead},\"set_ups\":[{}],\"set_ups_in_all\":{}}}",
        string(version::text()),
        now.as_secs_f64(),
        string(host),
        std::process::id(),
        number(report.me.rank),
        report.number,
        report.limit.as_secs(),
        string(&report.text()),
        waits.join(","),
        report.waits,
        set_ups.join(","),
        report.set_ups_in_all,
    )
}

fn wait(finding: &Finding, EndName { device, peer, recovery, .. }: &EndName) -> String {
    let theirs = finding.theirs.as_ref().map_or_else(|| "null".into(), |theirs| end(&theirs.end));
    let waits_for = finding.theirs.as_ref().and_then(|theirs| theirs.waits_for.as_ref());
    format!(
        "{{\"verdict\":\"{:?}\",\"device\":{},\"since_s\":{:.1},\"peer\":{},\"peer_name\":{},\"local\":{},\"remote\":{theirs},\
         \"peer_waits_for\":{},\"operation\":{},\"peer_has_begun\":{},\"cause\":{},\"recovery\":{}}}",
        finding.verdict,
        string(device),
        finding.age.as_secs_f64(),
        who(&finding.peer),
        string(peer),
        end(&finding.end),
        waits_for.map_or_else(|| "null".into(), who),
        operation(finding.operation.as_ref()),
        has_begun(finding.begun),
        finding.cause.as_ref().map_or_else(|| "null".into(), cause),
        recovery.as_ref().map_or_else(|| "null".into(), recovery_of),
    )
}

fn recovery_of(progress: &RecoveryProgress) -> String {
    let rails = progress.rails.iter().map(|RailStanding { number, port, is_usable, is_usable_by_peer }| {
        let port = string(port);
        format!("{{\"rail\":{number},\"port\":{port},\"usable\":{is_usable},\"usable_by_peer\":{is_usable_by_peer}}}")
    });
    format!(
        "{{\"since_s\":{:.1},\"attempts\":{},\"cause\":{},\"waits_for\":{},\"rails\":[{}]}}",
        progress.lasted().as_secs_f64(),
        progress.attempts,
        string(&progress.cause),
        string(&progress.waits_for),
        rails.collect::<Vec<_>>().join(","),
    )
}

fn set_up(set_up: &SetUp) -> String {
    let SetUp { call, device, address, stage, age, unasked, detail } = set_up;
    format!(
        "{{\"call\":\"{call:?}\",\"waits_for\":\"{stage:?}\",\"device\":{},\"address\":\"{address}\",\"since_s\":{:.1},\"called\":{},\
         \"uncalled_s\":{:.1},\"peer_name\":{},\"trouble\":{},\"text\":{}}}",
        string(device),
        age.as_secs_f64(),
        set_up.is_asked(),
        unasked.unwrap_or(*age).as_secs_f64(),
        string(&detail.peer),
        string(&detail.trouble),
        string(&set_up.to_string()),
    )
}

fn cause(cause: &Cause) -> String {
    format!(
        "{{\"verdict\":\"{:?}\",\"near\":{},\"far\":{},\"connections\":{},\"operation\":{},\"far_has_begun\":{},\"recovery\":{},\"text\":{}}}",
        cause.verdict,
        who(&cause.near),
        who(&cause.far),
        cause.depth,
        operation(cause.operation.as_ref()),
        has_begun(cause.begun),
        string(&cause.recovery),
        string(&cause_text(cause, None))
    )
}

fn operation(operation: Option<&Operation>) -> String {
    let Some(Operation { call, communicator, name, .. }) = operation else { return "null".into() };
    let count = call.number.map_or_else(|| "null".into(), |number| number.to_string());
    format!(
        "{{\"function\":\"{}\",\"number\":{count},\"communicator\":\"{communicator:#x}\",\"communicator_name\":{}}}",
        call.function.name(),
        string(name),
    )
}

fn has_begun(begun: Begun) -> &'static str {
    match begun {
        Begun::Unknown => "null",
        Begun::Yes => "true",
        Begun::No(_) => "false",
    }
}

fn who(who: &Identity) -> String {
    let (host, rank, label) = (string(&who.host), number(who.rank), number(who.label));
    format!("{{\"rank\":{rank},\"rank_in_job\":{label},\"host\":{host},\"pid\":{}}}", who.pid)
}

fn number(number: Option<u32>) -> String {
    number.map_or_else(|| "null".into(), |number| number.to_string())
}

fn end(end: &End) -> String {
    let numbers = match end.numbers {
        Numbers::Sender { seen, sent, acknowledged, wants } => {
            format!(
                "\"seen\":{seen},\"sent\":{sent},\"acknowledged\":{acknowledged},\"wants\":{wants}"
            )
        }
        Numbers::Receiver { posted, announced, arrived, flushes } => {
            format!(
                "\"posted\":{posted},\"announced\":{announced},\"arrived\":{arrived},\"flushes\":{flushes}"
            )
        }
    };
    format!("{{{numbers},\"recovers\":{},\"is_untested\":{}}}", end.recovers, end.is_untested)
}

/// A quoted string.
fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => drop(write!(quoted, "\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_any_characters_is_one_json_string() {
        let text = "a \"quoted\" \\ path\n\u{1}é";
        assert_eq!(serde_json::from_str::<String>(&string(text)).ok().as_deref(), Some(text));
    }
}
