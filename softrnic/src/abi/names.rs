//! Text for numbers (`ibv_*_str`).

use std::ffi::CStr;

const STATUS: [&CStr; 24] = [
    c"success", c"local length error", c"local QP operation error",
    c"local EE context operation error", c"local protection error", c"Work Request Flushed Error",
    c"memory management operation error", c"bad response error", c"local access error",
    c"remote invalid request error", c"remote access error", c"remote operation error",
    c"transport retry counter exceeded", c"RNR retry counter exceeded",
    c"local RDD violation error", c"remote invalid RD request", c"aborted error",
    c"invalid EE context number", c"invalid EE context state", c"fatal error",
    c"response timeout error", c"general error", c"TM error", c"TM software rendezvous",
];

const EVENT: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const PORT_STATE: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const NODE_TYPE: [&CStr; 8] = [
    c"unknown", c"InfiniBand channel adapter", c"InfiniBand switch", c"InfiniBand router",
    c"iWARP NIC", c"usNIC", c"usNIC UDP", c"unspecified",
];

fn pick(table: &'static [&'static CStr], number: i32) -> &'static CStr {
    usize::try_from(number).ok().and_then(|i| table.get(i).copied()).unwrap_or(c"unknown")
}

pub(crate) fn status(number: i32) -> &'static CStr {
    pick(&STATUS, number)
}

pub(crate) fn event(number: i32) -> &'static CStr {
    pick(&EVENT, number)
}

pub(crate) fn port_state(number: i32) -> &'static CStr {
    pick(&PORT_STATE, number)
}

pub(crate) fn node_type(number: i32) -> &'static CStr {
    pick(&NODE_TYPE, number)
}

/// The name of an `ibv_qp_type`.
pub(crate) fn transport(qp_type: u32) -> &'static str {
    const NAMES: [&str; 3] = ["RC", "UC", "UD"];
    qp_type.checked_sub(2).and_then(|index| NAMES.get(index as usize).copied()).unwrap_or("?")
}

/// The name of a queue pair state.
pub(crate) fn qp_state(state: u32) -> &'static str {
    const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    NAMES.get(state as usize).copied().unwrap_or("?")
}
