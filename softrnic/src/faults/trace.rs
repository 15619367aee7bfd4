//! A record of the faults that were injected, one line each, appended to the file that `SOFTRNIC_TRACE` names. Lines of one
//! connection come in its order; sorted, the traces of two runs with the same seed and the same messages are equal.

use std::io::Write;

use crate::faults::matching::Transmission;
use crate::process::fabric::Fabric;
use crate::rules::action::Action;
use crate::rules::known::Connection;

/// Writes down that `action` was applied to a transmission.
pub(crate) fn write(fabric: &Fabric, connection: &Connection, sent: &Transmission, action: Action) {
    let Some(path) = &fabric.settings.trace else { return };
    let Connection { from, to, flow, .. } = connection;
    let line = format!(
        "softrnic{}/{} > softrnic{}/{} flow {flow} message {} transmission {}: {action}\n",
        from.device,
        from.port,
        to.device,
        to.port,
        sent.number,
        sent.attempt + 1
    );
    // One write per line: what several processes append does not mix.
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
