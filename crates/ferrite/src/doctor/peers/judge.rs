//! The rows about hosts together: from what they tell, and from how they reached each other.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::doctor::peers::message::{HostFacts, RailFacts};
use crate::doctor::peers::server::{Host, Speed, Tried};
use crate::doctor::report::{Finding, RowReport, Verdict};

/// Settings that are each host's own.
const OWN: [&str; 6] = [
    "NCCL_HOSTID", "NCCL_TOPO_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_DEBUG_FILE", "NCCL_COMM_ID",
    "NCCL_NET_PLUGIN",
];
/// A control round trip of more is named.
const SLOW_CONTROL: Duration = Duration::from_millis(5);

/// All rows, in order.
pub(super) fn all(hosts: &[Host], expected: usize, tried: &[Tried]) -> Vec<RowReport> {
    let facts: Vec<&HostFacts> = hosts.iter().map(|host| &host.facts).collect();
    vec![
        RowReport::named(
            "peer-hosts",
            "start the doctor on each host, with the same --token",
            of_hosts(hosts, expected),
        ),
        RowReport::named("peer-versions", "install the same files on every host", versions(&facts)),
        RowReport::named(
            "peer-settings",
            "set the variable alike on every host, or unset it",
            settings(&facts),
        ),
        RowReport::named(
            "peer-devices",
            "make the devices alike: containers that get fewer devices, ports that are down; choose them with NCCL_IB_HCA",
            devices(&facts),
        ),
        RowReport::named(
            "peer-networks",
            "nothing if the fabric routes between them; else NCCL_IB_ADDR_RANGE, or the addresses of the interfaces",
            networks(&facts),
        ),
        RowReport::named("peer-mtu", "set the same MTU on every host and switch", mtu(&facts)),
        RowReport::named(
            "peer-reach",
            "as the plugin's words say; where only rails of one number reach each other, NCCL_CROSS_NIC=0",
            reach(&facts, tried),
        ),
        RowReport::named(
            "peer-bandwidth",
            "see `speed`, `pcie`, `errors` and `retries` on both hosts",
            bandwidth(&facts, tried),
        ),
        RowReport::named(
            "peer-latency",
            "see `retries`, `cpus` and `clock` on both hosts",
            latency(&facts, tried),
        ),
    ]
}

fn of_hosts(hosts: &[Host], expected: usize) -> Vec<Finding> {
    let mut found: Vec<Finding> = hosts
        .iter()
        .map(|host| match &host.round_trip {
            Ok(time) => {
                let text = format!(
                    "there, {} rails, answers in {:.1} ms",
                    host.facts.rails.len(),
                    time.as_secs_f64() * 1e3
                );
                Finding::judge(*time <= SLOW_CONTROL, Verdict::Warn, host.facts.host.as_str(), text)
            }
            Err(why) => Finding::fail(host.facts.host.as_str(), why.as_str()),
        })
        .collect();
    if hosts.len() < expected {
        found.push(Finding::fail("", format!("{} of {expected} hosts came", hosts.len())));
    }
    found
}

/// The hosts that have each value, in words; more than one value is not alike.
fn by_value<'f>(
    facts: &[&'f HostFacts],
    value: impl Fn(&'f HostFacts) -> String,
) -> BTreeMap<String, Vec<&'f str>> {
    let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for host in facts {
        by.entry(value(host)).or_default().push(&host.host);
    }
    by
}

fn text(by: &BTreeMap<String, Vec<&str>>) -> String {
    let part = |(value, hosts): (&String, &Vec<&str>)| {
        let more = hosts.len().saturating_sub(4);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{value} on {}{more}", hosts[..hosts.len().min(4)].join(", "))
    };
    by.iter().map(part).collect::<Vec<_>>().join("; ")
}

fn versions(facts: &[&HostFacts]) -> Vec<Finding> {
    let protocol = by_value(facts, |host| format!("protocol {}", host.protocol));
    let plugin = by_value(facts, |host| {
        format!("plugin {}", host.plugin.chars().take(12).collect::<String>())
    });
    let doctor = by_value(facts, |host| format!("ferrite {}", host.version));
    vec![
        Finding::judge(protocol.len() < 2, Verdict::Fail, "", text(&protocol)),
        Finding::judge(plugin.len() < 2, Verdict::Warn, "", text(&plugin)),
        Finding::judge(doctor.len() < 2, Verdict::Warn, "", text(&doctor)),
    ]
}

fn settings(facts: &[&HostFacts]) -> Vec<Finding> {
    let names: BTreeSet<&String> = facts.iter().flat_map(|host| host.settings.keys()).collect();
    let names = names.into_iter().filter(|name| !OWN.contains(&name.as_str()));
    let mut found = taken_for_one(facts);
    let mut alike = 0;
    for name in names {
        let by = by_value(facts, |host| {
            host.settings.get(name).map_or_else(|| "unset".into(), |value| format!("{value:?}"))
        });
        if by.len() > 1 {
            found.push(Finding::warn("", format!("{name}: {}", text(&by))));
        } else {
            alike += 1;
        }
    }
    if found.is_empty() {
        vec![Finding::ok("", format!("{alike} variables are alike"))]
    } else {
        found
    }
}

/// Machines with one identity: NCCL refuses ranks of one host whose GPUs have the same address.
fn taken_for_one(facts: &[&HostFacts]) -> Vec<Finding> {
    let set: Vec<&HostFacts> =
        facts.iter().copied().filter(|host| host.settings.contains_key("NCCL_HOSTID")).collect();
    let by = by_value(&set, |host| format!("{:?}", host.settings["NCCL_HOSTID"]));
    let is_wrong = |hosts: &[&str]| {
        let boots = set.iter().filter(|host| hosts.contains(&host.host.as_str()));
        hosts.len() > 1 && boots.map(|host| &host.boot).collect::<BTreeSet<_>>().len() > 1
    };
    let wrong = by.into_iter().filter(|(_, hosts)| is_wrong(hosts));
    wrong
        .map(|one| {
            let text = format!(
                "NCCL_HOSTID: {}: NCCL takes them for one host, and refuses their GPUs as duplicates",
                text(&BTreeMap::from([one]))
            );
            Finding::fail("", text).cure("unset NCCL_HOSTID, or give each host its own value")
        })
        .collect()
}

fn devices(facts: &[&HostFacts]) -> Vec<Finding> {
    let count = by_value(facts, |host| format!("{} rails", host.rails.len()));
    let layer = |rail: &RailFacts| if rail.infiniband { "InfiniBand" } else { "RoCE" };
    let list = |host: &HostFacts, of: &dyn Fn(&RailFacts) -> String| {
        host.rails.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let layers = by_value(facts, |host| list(host, &|rail| layer(rail).to_owned()));
    let kinds = by_value(facts, |host| {
        list(host, &|rail| format!("{} {} Gb/s", rail.name, rail.speed_mbps / 1000))
    });
    let none = facts.iter().any(|host| host.rails.is_empty());
    let mut found = vec![Finding::judge(count.len() < 2 && !none, Verdict::Fail, "", text(&count))];
    if count.len() < 2 {
        found.push(Finding::judge(layers.len() < 2, Verdict::Fail, "", text(&layers)));
        found.push(Finding::judge(kinds.len() < 2, Verdict::Warn, "", text(&kinds)));
    }
    found
}

/// The first rails of all hosts, the second ones, and so on, as far as all have them.
fn columns<'f>(facts: &[&'f HostFacts]) -> Vec<Vec<(&'f str, &'f RailFacts)>> {
    let least = facts.iter().map(|host| host.rails.len()).min().unwrap_or(0);
    (0..least)
        .map(|i| facts.iter().map(|host| (host.host.as_str(), &host.rails[i])).collect())
        .collect()
}

/// The network of an address: 24 bits of an IPv4 one, 64 of an IPv6 one.
fn network(address: &str) -> String {
    use std::net::IpAddr;
    match address.parse() {
        Ok(IpAddr::V4(v4)) => {
            let [a, b, c, _] = v4.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        Ok(IpAddr::V6(v6)) => {
            let [a, b, c, d, ..] = v6.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        Err(_) => "no GID".into(),
    }
}

fn networks(facts: &[&HostFacts]) -> Vec<Finding> {
    let found = columns(facts)
        .into_iter()
        .enumerate()
        .filter(|(_, rails)| rails.iter().all(|(_, rail)| !rail.infiniband));
    let found: Vec<Finding> = found
        .map(|(i, rails)| {
            let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for (host, rail) in rails {
                by.entry(network(&rail.gid)).or_default().push(host);
            }
            Finding::judge(by.len() < 2, Verdict::Warn, format!("rail {i}"), text(&by))
        })
        .collect();
    if found.is_empty() { vec![Finding::ok("", "no RoCE rail in common")] } else { found }
}

fn mtu(facts: &[&HostFacts]) -> Vec<Finding> {
    let of_rail = |(i, rails): (usize, Vec<(&str, &RailFacts)>)| {
        let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (host, rail) in rails {
            by.entry(format!("{} bytes", rail.mtu)).or_default().push(host);
        }
        Finding::judge(by.len() < 2, Verdict::Warn, format!("rail {i}"), text(&by))
    };
    let found: Vec<Finding> = columns(facts).into_iter().enumerate().map(of_rail).collect();
    if found.is_empty() { vec![Finding::unknown("", "no rail in common")] } else { found }
}

/// `n1 mlx5_0:1 to n2 mlx5_0:1`.
fn name(facts: &[&HostFacts], tried: &Tried) -> String {
    let of = |(host, rail): (usize, usize)| {
        let host = facts.get(host)?;
        Some(format!("{} {}", host.host, host.rails.get(rail)?.name))
    };
    format!("{} to {}", of(tried.from).unwrap_or_default(), of(tried.to).unwrap_or_default())
}

fn reach(facts: &[&HostFacts], tried: &[Tried]) -> Vec<Finding> {
    let failed = tried.iter().filter_map(|tried| Some((tried, tried.outcome.as_ref().err()?)));
    let mut found: Vec<Finding> = failed
        .map(|(tried, why)| {
            let verdict = if tried.from.1 == tried.to.1 { Finding::fail } else { Finding::warn };
            verdict(name(facts, tried), why.clone())
        })
        .collect();
    if tried.is_empty() {
        found.push(Finding::unknown("", "no pair of rails was tried"));
    } else if found.is_empty() {
        found.push(Finding::ok(
            "",
            format!("{} pairs of rails, each with checked messages of 1 MiB", tried.len()),
        ));
    }
    found
}

/// What was measured, with who.
fn measured(tried: &[Tried]) -> Vec<(&Tried, Speed)> {
    tried.iter().filter_map(|tried| Some((tried, *tried.outcome.as_ref().ok()?))).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn bandwidth(facts: &[&HostFacts], tried: &[Tried]) -> Vec<Finding> {
    let measured = measured(tried);
    let usual = median(measured.iter().map(|(_, speed)| speed.gbps).collect());
    let of = |(host, rail): (usize, usize)| facts.get(host).and_then(|f| f.rails.get(rail));
    let nominal = |end| of(end).map_or(0, |rail| rail.speed_mbps);
    let is_software = |end| of(end).is_some_and(|rail| rail.is_software);
    let found: Vec<Finding> = measured
        .iter()
        .map(|(tried, speed)| {
            if is_software(tried.from) || is_software(tried.to) {
                let said = format!(
                    "{:.1} Gb/s; the median is {usual:.1}. A software device is as fast as its processor",
                    speed.gbps
                );
                return Finding::ok(name(facts, tried), said);
            }
            let best = f64::from(nominal(tried.from).min(nominal(tried.to))) / 1e3;
            let said = format!("{:.1} Gb/s of {best}; the median is {usual:.1}", speed.gbps);
            if speed.gbps < 0.7 * usual {
                return Finding::fail(name(facts, tried), said);
            }
            Finding::judge(speed.gbps >= 0.9 * best, Verdict::Warn, name(facts, tried), said)
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "nothing was measured")] } else { found }
}

fn latency(facts: &[&HostFacts], tried: &[Tried]) -> Vec<Finding> {
    let measured = measured(tried);
    let usual = median(measured.iter().map(|(_, speed)| speed.p50_us).collect());
    let found: Vec<Finding> = measured
        .iter()
        .map(|(tried, Speed { p50_us, p99_us, .. })| {
            let said =
                format!("8 bytes: {p50_us:.1} us, 99 of 100 within {p99_us:.1} us; the median of all is {usual:.1} us");
            let is_good = *p50_us <= 2.0 * usual && *p99_us <= 10.0 * p50_us;
            Finding::judge(is_good, Verdict::Warn, name(facts, tried), said)
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "nothing was measured")] } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> HostFacts {
        let rail = RailFacts {
            name: "x0:1".into(),
            speed_mbps: 400_000,
            mtu: 4096,
            gid: "10.0.0.1".into(),
            infiniband: false,
            is_software: false,
        };
        HostFacts { host: name.into(), protocol: 4, rails: vec![rail], ..HostFacts::default() }
    }

    fn tried(from: usize, to: usize, gbps: f64, p50_us: f64, p99_us: f64) -> Tried {
        Tried { from: (from, 0), to: (to, 0), outcome: Ok(Speed { gbps, p50_us, p99_us }) }
    }

    fn verdicts(findings: &[Finding]) -> Vec<Verdict> {
        findings.iter().map(|finding| finding.verdict).collect()
    }

    #[test]
    fn a_slow_path_warns_and_one_far_below_the_others_fails() {
        let (a, b) = (host("a"), host("b"));
        let all = [
            tried(0, 1, 390.0, 2.0, 5.0),
            tried(1, 0, 350.0, 2.0, 5.0),
            tried(0, 1, 370.0, 2.0, 5.0),
            tried(1, 0, 200.0, 2.0, 5.0),
        ];
        let found = bandwidth(&[&a, &b], &all);
        assert_eq!(verdicts(&found), [Verdict::Ok, Verdict::Warn, Verdict::Ok, Verdict::Fail]);
        assert_eq!(found[3].subject, "b x0:1 to a x0:1");
    }

    #[test]
    fn a_software_device_is_not_held_against_a_speed_that_it_only_claims() {
        let (mut a, b) = (host("a"), host("b"));
        a.rails[0].is_software = true;
        let all = [tried(0, 1, 390.0, 2.0, 5.0), tried(1, 0, 3.0, 2.0, 5.0)];
        assert_eq!(verdicts(&bandwidth(&[&a, &b], &all)), [Verdict::Ok, Verdict::Ok]);
    }

    #[test]
    fn a_late_path_and_one_that_is_late_at_times_warn() {
        let (a, b) = (host("a"), host("b"));
        let all =
            [tried(0, 1, 1.0, 2.0, 5.0), tried(1, 0, 1.0, 2.0, 21.0), tried(0, 1, 1.0, 4.1, 5.0)];
        assert_eq!(
            verdicts(&latency(&[&a, &b], &all)),
            [Verdict::Ok, Verdict::Warn, Verdict::Warn]
        );
    }

    #[test]
    fn hosts_that_are_not_alike_are_named() {
        let (a, mut b) = (host("a"), host("b"));
        let alike =
            [versions(&[&a, &b]), devices(&[&a, &b]), mtu(&[&a, &b]), networks(&[&a, &b])].concat();
        assert!(alike.iter().all(|finding| finding.verdict == Verdict::Ok), "{alike:?}");
        b.protocol = 5;
        b.plugin = "ab".into();
        b.rails[0] = RailFacts {
            name: "y0:1".into(),
            mtu: 1024,
            gid: "10.0.1.1".into(),
            ..a.rails[0].clone()
        };
        assert_eq!(verdicts(&versions(&[&a, &b])), [Verdict::Fail, Verdict::Warn, Verdict::Ok]);
        assert_eq!(verdicts(&devices(&[&a, &b])), [Verdict::Ok, Verdict::Ok, Verdict::Warn]);
        assert_eq!(
            verdicts(&[mtu(&[&a, &b]), networks(&[&a, &b])].concat()),
            [Verdict::Warn, Verdict::Warn]
        );
        b.rails[0].infiniband = true;
        assert_eq!(verdicts(&devices(&[&a, &b]))[1], Verdict::Fail);
    }

    #[test]
    fn hosts_that_nccl_takes_for_one_fail() {
        let with = |name: &str, id: Option<&str>| {
            let settings = id.map(|id| ("NCCL_HOSTID".to_owned(), id.to_owned()));
            let boot = name.to_owned();
            HostFacts { settings: settings.into_iter().collect(), boot, ..host(name) }
        };
        let look = |ids: [Option<&str>; 3]| {
            let [a, b, c] = ids;
            settings(&[&with("a", a), &with("b", b), &with("c", c)])
        };
        for distinct in [[None; 3], [Some("x"), Some("y"), Some("X")], [Some(""), Some("x"), None]]
        {
            assert_eq!(verdicts(&look(distinct)), [Verdict::Ok], "{distinct:?}");
        }
        for alike in [[Some("x"), Some("y"), Some("x")], [Some(""), None, Some("")]] {
            let found = look(alike);
            assert_eq!(verdicts(&found), [Verdict::Fail], "{alike:?}");
            assert!(found[0].fact.contains("on a, c: NCCL takes them for one host"), "{found:?}");
        }
        // Containers of one machine.
        let (a, b) = (with("a", Some("x")), HostFacts { host: "b".into(), ..with("a", Some("x")) });
        assert_eq!(verdicts(&settings(&[&a, &b])), [Verdict::Ok]);
    }

    #[test]
    fn only_rails_of_one_number_have_to_reach_each_other() {
        let (a, b) = (host("a"), host("b"));
        let failed = |to| Tried { from: (0, 0), to: (1, to), outcome: Err("no".into()) };
        assert_eq!(
            verdicts(&reach(&[&a, &b], &[failed(0), failed(1)])),
            [Verdict::Fail, Verdict::Warn]
        );
        assert_eq!(verdicts(&reach(&[&a, &b], &[])), [Verdict::Unknown]);
    }
}
