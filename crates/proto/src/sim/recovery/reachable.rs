//! Which event can come in which state of a recovery, and why the others cannot.

use crate::sim::visits::Machine;

pub(super) const MACHINE: Machine = Machine {
    rows: &[
        ("sender", "Running"),
        ("sender", "Draining"),
        ("sender", "Halted"),
        ("sender", "Creating"),
        ("sender", "Offered"),
        ("sender", "Connecting"),
        ("sender", "AwaitingMissingList"),
        ("sender", "Resuming"),
        ("sender", "Failed"),
        ("receiver", "Running"),
        ("receiver", "Halted"),
        ("receiver", "Connecting"),
        ("receiver", "Answered"),
        ("receiver", "Resuming"),
        ("receiver", "Failed"),
    ],
    events: &[
        "Halt",
        "Ports",
        "Offer",
        "Answer",
        "Ready",
        "Ask",
        "Heard",
        "MissingList",
        "lost",
        "back",
        "fault",
        "unreported",
        "usable",
        "timeout",
        "request",
        "fenced",
        "created",
        "connected",
        "unreachable",
        "resumed",
        "acknowledged",
        "drained",
    ],
    impossible,
};

const ROLE: &str = "It is said to the other end, or asked of it.";
const ORDER: &str = "Frames come in the order in which they are sent, and what has brought this end into this state was sent later.";
const JOB: &str = "It reports the end of what the machine asks for in another state, and waits for before it goes on.";
const TEST: &str =
    "The sender tests its queue pairs when they are connected, the receiver when it is to go on.";
const LOOK: &str =
    "A receiver checks that its attempt is still the current one right before it continues.";
const WAITS: &str = "A receiver checks for it only while it waits for the sender's fence.";
const AFTER: &str = "It is said right after `resumed`.";

fn impossible(end: &str, state: &str, event: &str) -> Option<&'static str> {
    let is_sender = end == "sender";
    let unless = |states: &[&str], why| (!states.contains(&state)).then_some(why);
    let if_any = |states: &[&str], why| states.contains(&state).then_some(why);
    match event {
        "Offer" | "Ready" | "unreported" if is_sender => Some(ROLE),
        "Answer" | "MissingList" | "lost" | "created" | "drained" if !is_sender => Some(ROLE),
        "Answer" => if_any(&["Running", "Draining", "Creating", "Resuming"], ORDER),
        "MissingList" => if_any(&["Creating", "Offered", "Connecting"], ORDER),
        "Ports" if is_sender => {
            if_any(&["Creating", "Offered", "Connecting", "AwaitingMissingList"], ORDER)
        }
        "Ports" => if_any(&["Connecting", "Answered", "Resuming"], ORDER),
        "unreported" => unless(&["Halted"], WAITS),
        "Ask" => {
            if_any(&["Creating", "Offered", "Connecting", "AwaitingMissingList", "Answered"], ORDER)
                .or_else(|| if_any(&["Resuming"], ORDER).filter(|_| !is_sender))
        }
        "Heard" => unless(&["Running", "Draining", "Halted", "Failed"], ORDER),
        "Offer" => if_any(&["Running", "Resuming"], ORDER),
        "Ready" => if_any(&["Connecting"], ORDER),
        "fenced" => unless(&["Halted", "Failed"], JOB),
        "created" => unless(&["Creating", "Halted", "Failed"], JOB),
        "connected" => unless(&["Connecting", "Halted", "Failed"], JOB),
        "drained" => unless(&["Draining", "Halted", "Failed"], JOB),
        "unreachable" => match (is_sender, state) {
            (true, "Resuming") | (false, "Connecting") => Some(TEST),
            _ => unless(&["Connecting", "Resuming", "Halted", "Failed"], JOB),
        },
        "resumed" | "acknowledged" if !is_sender && ["Halted", "Failed"].contains(&state) => {
            Some(LOOK)
        }
        "resumed" => unless(&["Resuming", "Halted", "Failed"], JOB),
        "acknowledged" => unless(&["Running", "Halted", "Failed"], AFTER),
        _ => None,
    }
}
