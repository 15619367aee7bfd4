//! Which event can come in which state of a control connection, and why the others cannot.

use crate::sim::visits::Machine;

pub(super) const MACHINE: Machine = Machine {
    rows: &[("dials", "Dialling"), ("dials", "Dialled"), ("accepts", "Unauthenticated"), ("accepts", "Accepted")],
    events: &[
        "connected",
        "Hello",
        "Resume",
        "Redial",
        "Refuse of all",
        "frame of a stream",
        "other frame",
        "no frame",
        "closed",
        "lost",
        "unreachable",
        "timeout",
        "crowded out",
        "nobody listens",
        "idle",
    ],
    impossible,
};

const ONCE: &str = "It is dialled by one end, and comes about once.";
const BEFORE: &str = "Before it has come about nothing comes; if it does not, that is `unreachable` or `timeout`.";
const CALLERS: &str = "It happens to who calls at the port and has not shown that it knows a listener or a connection.";
const NO_STREAM: &str = "Its first stream makes it `Accepted`.";

fn impossible(_end: &str, state: &str, event: &str) -> Option<&'static str> {
    match (event, state) {
        ("connected" | "unreachable", _) if state != "Dialling" => Some(ONCE),
        ("connected" | "unreachable" | "timeout" | "idle", "Dialling") => None,
        ("crowded out" | "nobody listens", _) if state != "Unauthenticated" => Some(CALLERS),
        ("timeout", "Dialled") => Some(ONCE),
        ("timeout", "Accepted") => Some(CALLERS),
        (_, "Dialling") => Some(BEFORE),
        ("frame of a stream" | "idle", "Unauthenticated") => Some(NO_STREAM),
        _ => None,
    }
}
