//! A small record for the tests of the report.

use crate::results::record::Record;

/// Two sides of nothing much, and a row of bandwidth and one of latency.
pub(crate) fn sample_record() -> Record {
    use crate::measure::sample::Estimate;
    use crate::results::rows::Row;
    let estimate =
        |median: f64| Estimate { median, low: median - 0.05, high: median + 0.05, coverage: 0.96 };
    let row = |metric: &str, bytes: u64, unit: &str, direction: &str| -> Row {
        let key = serde_json::json!({"metric": metric, "bytes": bytes, "direction": direction, "depth": 8});
        let values = serde_json::json!({"min": 1.0, "typ": 1.5, "p99": 2.5, "peak": 1.5});
        let mut row = key;
        for (name, value) in [
            ("unit", unit.into()),
            ("headline", "typ".into()),
            ("a", values.clone()),
            ("b", values),
            ("ratio", serde_json::to_value(estimate(1.0)).expect("numbers")),
            ("noise", serde_json::to_value(estimate(0.9)).expect("numbers")),
            ("finding", "unclear".into()),
            ("least", 0.06.into()),
        ] {
            row[name] = value;
        }
        serde_json::from_value(row).expect("a row")
    };
    let device = serde_json::json!({"name": "x0", "pci_path": null, "guid": 1, "pointer_support": 1,
        "registration_is_global": 0, "speed_mbps": 1, "port": 1, "latency_us": 0.0, "max_comms": 1, "max_receives": 8,
        "device_type": 0, "device_version": 0, "fused": []});
    let side = |label: &str| {
        serde_json::json!({"label": label, "source": {"kind": "plugin", "path": "x.so"}, "identity": {"name": "X",
            "file": "x.so", "symbol": "s", "nccl_version": null, "interface": 8, "functions": 15}, "version": "1",
            "sha256": "0123456789abcdef", "verbs": [], "devices": [device, device], "cpus": [0, 1], "load_ms": 1.0,
            "init_ms": 1.0, "checks": []})
    };
    let mut record = serde_json::json!({"schema": "s", "tool": "0", "complete": true, "command": [], "started_unix": 0,
        "seconds": 1.0, "machine": {"kernel": "", "processor": "", "cpus": 2, "busy_cpus": null, "environment": {}},
        "verbs": {"kind": "system"}, "settings": {}, "scope": crate::measure::plan::Scope::quick(), "sessions": [], "groups": [],
        "sides": [side("A"), side("B")]});
    let rows = [row("bandwidth", 1 << 20, "GB/s", "forward"), row("latency", 8, "us", "both")];
    record["rows"] = serde_json::to_value(rows).expect("rows");
    serde_json::from_value(record).expect("a record")
}
