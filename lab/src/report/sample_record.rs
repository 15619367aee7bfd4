//! A small record for the tests of the report.

use crate::measure::sample::Estimate;
use crate::results::judgement::{Finding, Judgement};
use crate::results::record::Record;

/// Of twenty sets.
pub(crate) fn judgement(finding: Finding, low: f64, high: f64) -> Judgement {
    let ratio = Estimate { median: (low * high).sqrt(), low, high, coverage: 0.999 };
    let within = Some(high.max(1.0 / low) - 1.0);
    Judgement { ratio: Some(ratio), sets: 20, finding, within, visible: Some(0.04) }
}

/// Two sides that are the same, and a row of latency and one of bandwidth.
pub(crate) fn sample_record() -> Record {
    let judged = serde_json::json!({"ratio": {"median": 1.0, "low": 0.99, "high": 1.02, "coverage": 0.999},
        "sets": 20, "finding": "same", "within": 0.02, "visible": 0.03});
    let with = |mut object: serde_json::Value| {
        for (name, value) in judged.as_object().expect("an object") {
            object[name] = value.clone();
        }
        object
    };
    let row = |metric: &str, bytes: u64, unit: &str, direction: &str| {
        with(
            serde_json::json!({"metric": metric, "bytes": bytes, "direction": direction, "depth": 8,
            "unit": unit, "a": 1.5, "b": 1.5}),
        )
    };
    let device = serde_json::json!({"name": "x0", "pci_path": null, "guid": 1, "pointer_support": 1,
        "registration_is_global": 0, "speed_mbps": 1, "port": 1, "latency_us": 0.0, "max_comms": 1, "max_receives": 8,
        "device_type": 0, "device_version": 0, "fused": []});
    let side = |label: &str| {
        serde_json::json!({"label": label, "source": {"kind": "plugin", "path": "x.so"}, "identity": {"name": "X",
            "file": "x.so", "symbol": "s", "nccl_version": null, "interface": 8, "functions": 15}, "version": "1",
            "sha256": format!("{label}123456789abcdef"), "verbs": [], "devices": [device, device], "cpus": [0, 1],
            "load_ms": 1.0, "init_ms": 1.0, "checks": []})
    };
    let record = serde_json::json!({"schema": "s", "tool": "0", "complete": true, "command": [], "started_unix": 0,
        "seconds": 1.0, "machine": {"kernel": "", "processor": "", "cpus": 2, "busy_cpus": null, "environment": {}},
        "verbs": {"kind": "system"}, "settings": {}, "scope": crate::measure::plan::Scope::default(), "sets": [],
        "groups": [with(serde_json::json!({"name": "latency", "metric": "latency"})),
            with(serde_json::json!({"name": "bandwidth", "metric": "bandwidth"}))],
        "rows": [row("latency", 8, "us", "both"), row("bandwidth", 1 << 20, "GB/s", "forward")],
        "sides": [side("A"), side("B")]});
    serde_json::from_value(record).expect("a record")
}
