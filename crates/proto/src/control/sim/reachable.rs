//! Which event can come in which state of a stream, and why the others cannot.

use crate::sim::visits::Machine;

pub(super) const MACHINE: Machine = Machine {
    rows: &[
        ("dials", "Setup"),
        ("dials", "Setup, lost"),
        ("dials", "Established"),
        ("dials", "Established, lost"),
        ("dials", "Established, resuming"),
        ("dials", "Closing"),
        ("dials", "Over"),
        ("accepts", "Setup"),
        ("accepts", "Setup, lost"),
        ("accepts", "Established"),
        ("accepts", "Established, lost"),
        ("accepts", "Established, asking"),
        ("accepts", "Over"),
    ],
    events: &[
        "Hello",
        "Reply",
        "Commit",
        "Goodbye",
        "Refuse",
        "Resume",
        "recovery",
        "inquiry",
        "send",
        "establish",
        "fail",
        "close",
        "lost",
        "closed",
        "unreachable",
        "wrong",
        "refused",
        "dialled again",
        "asked to resume",
        "asked to dial",
        "answered",
        "expired",
        "given up",
    ],
    impossible,
};

const NO_CONNECTION: &str =
    "It comes over the control connection that carries the stream, or is the end of that, and there is none.";
const ROLE: &str = "It is said to the other end, or happens to it.";
const ORDER: &str =
    "Frames come in the order in which they are sent, and what has brought this end into this state was sent later.";
const ONCE: &str = "It is said once.";
const NOT_YET: &str = "The end that says it has to be established, and the commit comes before.";
const OWNER: &str =
    "The owner does that to a stream that is established, or once, to establish it, or when it has it no more.";
const ANSWER: &str = "It answers an end that asks the peer to dial.";
const WAITING: &str = "It happens to streams that wait for a control connection, or are kept for a time.";
const DIALLING: &str = "While the connection is dialled, only streams that are being set up are on it.";
const FOREIGN: &str = "No Ferrite says it after it has shown what it is.";

fn impossible(end: &str, state: &str, event: &str) -> Option<&'static str> {
    let (dials, is) = (end == "dials", |states: &[&str]| states.contains(&state));
    let is_carried = is(&["Setup", "Established", "Established, resuming"]);
    match event {
        "answered" if state != "Established, asking" => Some(ANSWER),
        // Of the control connection over which it asks.
        "lost" | "closed" | "wrong" | "refused" if state == "Established, asking" => None,
        "asked to dial" if !dials => Some(ROLE),
        "asked to dial" if is(&["Setup", "Setup, lost"]) => Some(NOT_YET),
        "Hello" | "Reply" | "Commit" | "Goodbye" | "Refuse" | "Resume" | "recovery" | "inquiry" | "lost" | "closed"
        | "unreachable" | "wrong" | "refused"
            if !is_carried =>
        {
            Some(NO_CONNECTION)
        }
        "Hello" | "Commit" if dials => Some(ROLE),
        "unreachable" | "refused" if !dials => Some(ROLE),
        // Somebody who knows a token alone says anything.
        _ if !dials && state == "Setup" && is_frame(event) => None,
        "Reply" if !dials => Some(ROLE),
        "Hello" | "Reply" | "Commit" if state != "Setup" => Some(ONCE),
        "Refuse" | "Resume" if state == "Established" => Some(ONCE),
        "Resume" | "recovery" | "inquiry" if dials && state == "Setup" => Some(NOT_YET),
        "Goodbye" | "recovery" | "inquiry" if state == "Established, resuming" => Some(ORDER),
        "unreachable" if state != "Setup" => Some(DIALLING),
        "wrong" | "refused" if state == "Established" => Some(FOREIGN),
        "send" if state == "Closing" || !dials && state == "Setup, lost" => Some(OWNER),
        "establish" if !is(&["Setup", "Setup, lost"]) => Some(OWNER),
        "fail" if is(&["Setup", "Setup, lost", "Closing"]) => Some(OWNER),
        "close" if state == "Closing" => Some(OWNER),
        "dialled again" | "given up" if !is(&["Established, lost", "Closing"]) => Some(WAITING),
        "asked to resume" if dials => Some(ROLE),
        "expired" if !(state == "Closing" || !dials && is(&["Setup, lost", "Established, lost"])) => Some(WAITING),
        _ => None,
    }
}

fn is_frame(event: &str) -> bool {
    ["Hello", "Reply", "Commit", "Goodbye", "Refuse", "Resume", "recovery", "inquiry"].contains(&event)
}
