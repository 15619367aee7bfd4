#!/usr/bin/env bash
# NCCL takes two network devices of a plugin for one if they have the same name: only the last is used, with the properties of the first.
#
# One expects: the number identifies a device, since all calls take it. The name is for log lines. NCCL has GUID, port and PCI path as well.
# What happens: NCCL looks for devices in its topology by name alone. A second device of that name replaces the first one's number and
#   nothing else: the port of 25 Gb/s is one of 100 Gb/s to NCCL, with the first one's GUID. NCCL_DEBUG=WARN shows nothing. Two more
#   properties are not what they seem. A latency, although a float, loses its fraction, so that 0.9 us is 0. A speed of 0 or less is 10 Gb/s.
#   A name with a colon cannot be fused by NCCL_NET_FORCE_MERGE: the colon begins a port, and "a:1,a:2" is an error for devices so called.
# What follows: a plugin that names all its devices alike, or two ports by their card's name, has one device, unless NCCL fuses them. Each
#   needs its own name, without a colon.
#   The log says "TOPO/NET : Changing" at INFO, and in 2.32 at ATTN, where it blames an old plugin or topology file.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the functions that add a plugin's devices to the topology, and print it.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/devices.py" <<'P'
import sys
from topology import Device, Topology

for first, second in (
    (Device("a", 7), Device("b", 8, 2, 25000)),
    (Device("a", 7), Device("a", 8, 2, 25000)),
    (Device("a", 7, latency=0.9), Device("b", 8, 2, 0, 1.9)),
    (Device("a", 7), Device("b", 8, 2, -1)),
):
    topology = Topology(sys.argv[1], [first, second])
    print(f"{first.name}, {second.name}:", *topology.nets("dev", "port", "guid", "latency"), sep="\n  ", flush=True)
    topology.show()
P
cat >"$folder/force.py" <<'P'
import sys
from topology import Device, Topology

for names in sys.argv[2:]:
    first, second = names.split(",")
    try:
        print(f"forced {names}:", *Topology(sys.argv[1], [Device(first, 7, 1), Device(second, 7, 2)]).nets("name"), flush=True)
    except RuntimeError as error:
        print(f"forced {names}: {error}", flush=True)
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    # LOC: devices are not fused.
    run() { NCCL_DEBUG=$1 NCCL_DEBUG_SUBSYS=GRAPH NCCL_NET_MERGE_LEVEL=LOC python3 "$folder/devices.py" "$(nccl_library "$release")"; }
    force() { NCCL_NET_FORCE_MERGE=$1 python3 "$folder/force.py" "$(nccl_library "$release")" "${@:2}"; }
    seen=$(run INFO | sed -n '/^.,/p; /^  dev/p; s/.*NET\[\(.*\)\] - NET.0-\(.\).*/  dev \2: \1 GB\/s/p')
    compare "NCCL $release" "$seen"$'\n'"other lines at WARN: $(run WARN | grep -vE '^.,|^  dev|NCCL version' || true)
$(force a-1,a-2 a-1,a-2 && force a:1,a:2 a,a a:1,a:2)" "a, b:
  dev 0 port 1 guid 0x7 latency 0
  dev 1 port 2 guid 0x8 latency 0
  dev 0: 12.5 GB/s
  dev 1: 3.1 GB/s
a, a:
  dev 1 port 1 guid 0x7 latency 0
  dev 1: 12.5 GB/s
a, b:
  dev 0 port 1 guid 0x7 latency 0
  dev 1 port 2 guid 0x8 latency 1
  dev 0: 12.5 GB/s
  dev 1: 1.2 GB/s
a, b:
  dev 0 port 1 guid 0x7 latency 0
  dev 1 port 2 guid 0x8 latency 0
  dev 0: 12.5 GB/s
  dev 1: 1.2 GB/s
other lines at WARN: 
forced a-1,a-2: name a-1+a-2
forced a,a: name a+a
forced a:1,a:2: ncclTopoProcessNet: result 5"
done
exit "$status"
