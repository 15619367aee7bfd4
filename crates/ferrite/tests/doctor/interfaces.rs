//! The interface for connection set-up is the one that stock NCCL takes for its bootstrap: on a host of its own, a network namespace
//! with interfaces of all kinds.

use std::path::Path;
use std::process::Command;

use testkit::{Missing, program, require};

use crate::common::cached_nccl;

/// Makes the interfaces that `$1` names, runs NCCL and the doctor with each setting behind it, and prints what each takes: a name, or
/// nothing.
const SCRIPT: &str = r#"
ip link set lo up
for one in $1; do
    name=${one%%=*}
    ip link add name $name type veth peer name z$name || exit 9
    # A peer that is up makes it run; its own address is of no use.
    echo 1 > /proc/sys/net/ipv6/conf/z$name/disable_ipv6
    ip link set z$name up
    ip link set $name up
    ip address add ${one#*=} dev $name
done
shift
[ "$1" != cut ] || { shift; ip link set zetha down; }
id='import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclGetUniqueId(ctypes.create_string_buffer(128))'
for setting; do
    nccl=$(env $setting NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL python3 -c "$id" "$LIBNCCL" | sed -n 's/.*Bootstrap *: Using \([a-z0-9]*\):.*/\1/p')
    doctor=$(env $setting "$FERRITE" doctor --only control | sed -n 's/^[okwarn]* *control *\([a-z0-9]*\) (.*/\1/p')
    echo "$setting|$nccl|$doctor"
done
"#;

const ALL: &str =
    "etha=10.0.1.1/24 docker0=172.17.0.1/16 virbr0=192.168.122.1/24 ethb=10.0.2.1/24 ib0=10.8.0.1/24 ethc=10.0.3.1/24";

/// What both take, on a host with these interfaces, with each setting.
fn taken(nccl: &Path, interfaces: &str, settings: &[&str]) -> Vec<(String, String, String)> {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", SCRIPT, "sh", interfaces]).args(settings);
    command.env("LIBNCCL", nccl).env("FERRITE", env!("CARGO_BIN_EXE_ferrite"));
    for name in ["NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY", "NCCL_COMM_ID"] {
        command.env_remove(name);
    }
    let printed = program::run(&mut command);
    let split = |line: &str| line.split('|').map(str::to_owned).collect::<Vec<_>>();
    let lines = printed.stdout.lines().map(split).filter(|parts| parts.len() == 3);
    let found: Vec<_> = lines.map(|parts| (parts[0].clone(), parts[1].clone(), parts[2].clone())).collect();
    assert_eq!(found.len(), settings.iter().filter(|setting| **setting != "cut").count(), "{printed}");
    found
}

/// Whether this process may make a host of its own.
fn hosts() -> Result<(), Missing> {
    let made =
        Command::new("unshare").args(["--net", "sh", "-c", "ip link add name eth0 type veth peer name zeth0"]).output();
    let is_made = made.is_ok_and(|output| output.status.success());
    if is_made {
        Ok(())
    } else {
        Err(Missing("a network namespace with interfaces of its own (root, iproute2)".into()))
    }
}

/// Before 2.28 NCCL also takes interfaces that do not run, and takes `virbr` as any other: over these it reaches no other host.
fn agrees_with(release: &str, is_old: bool) {
    let nccl = require!(cached_nccl(release));
    require!(hosts());
    let agree = |interfaces: &str, cases: &[(&str, &str)]| {
        let settings: Vec<&str> = cases.iter().map(|(setting, _)| *setting).collect();
        let found = taken(&nccl, interfaces, &settings);
        let cases = cases.iter().filter(|(setting, _)| *setting != "cut");
        for ((setting, expected), (_, theirs, ours)) in cases.zip(found) {
            assert_eq!((theirs.as_str(), ours.as_str()), (*expected, *expected), "NCCL {release}, {setting}");
        }
    };
    let family = "NCCL_SOCKET_FAMILY=AF_INET";
    agree(
        ALL,
        &[
            (family, "ib0"),
            ("NCCL_SOCKET_IFNAME=^docker,lo", "etha"),
            ("NCCL_SOCKET_IFNAME=^ib", "lo"),
            ("NCCL_SOCKET_IFNAME=ethb,etha", "etha"),
            ("NCCL_SOCKET_IFNAME==ethc", "ethc"),
            ("NCCL_SOCKET_IFNAME==eth", ""),
            ("NCCL_SOCKET_IFNAME=ethb:1", "ethb"),
            ("NCCL_SOCKET_IFNAME=e", "ib0"),
            ("NCCL_SOCKET_IFNAME=^=etha,=ethb", "lo"),
            ("NCCL_SOCKET_IFNAME=lo", "lo"),
            ("NCCL_COMM_ID=10.0.2.77:5000", "ethb"),
            ("NCCL_COMM_ID=10.0.2.77:70000", "ethb"),
        ],
    );
    agree("etha=10.0.1.1/24 docker0=172.17.0.1/16", &[(family, "etha"), ("NCCL_SOCKET_IFNAME=^eth,lo", "docker0")]);
    if !is_old {
        agree("docker0=172.17.0.1/16 virbr0=192.168.122.1/24", &[(family, "docker0")]);
        agree("virbr0=192.168.122.1/24", &[(family, "lo")]);
        agree("etha=10.0.1.1/24 ethb=10.0.2.1/24", &[("cut", ""), (family, "ethb")]);
    }
}

#[test]
fn control_agrees_with_nccl_2_21() {
    agrees_with("2.21.5", true);
}

#[test]
fn control_agrees_with_nccl_2_28() {
    agrees_with("2.28.9", false);
}

#[test]
fn control_agrees_with_nccl_2_32() {
    agrees_with("2.32.3", false);
}
