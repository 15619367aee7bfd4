#!/usr/bin/env bash
# NCCL fuses cards without a PCI path: four at a time become one device, whatever their GUIDs and speeds.
#
# One expects: by default NCCL fuses the ports of one card (NCCL_NET_MERGE_LEVEL=PORT). Where it cannot know, it fuses nothing. In each case
#   the GUIDs, which plugins give, tell cards from each other.
# What happens: if a plugin leaves pciPath NULL, or names a path that is not there, NCCL attaches the device to the first processor. All
#   these devices get one card. So they are ports of one card, and NCCL asks the plugin to fuse them, in groups of four in the order of their
#   numbers. A card of 25 Gb/s becomes a part of a device of 125 Gb/s. GUIDs are not compared. If the plugin refuses, NCCL leaves the first
#   device out and asks again. Of two cards with two ports each, the second becomes one device, and the first stays two.
# What follows: eight cards become two devices, which share each message among unequal or distant cards. A plugin should refuse that in
#   makeVDevice; users can set NCCL_NET_MERGE_LEVEL=LOC. The log at INFO says "TOPO/NET : Made vNic".
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the functions that read the level and add a plugin's devices to the topology. The
# plugin agrees to all that NCCL asks, and in the last case to ports of one GUID.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/devices.py" <<'P'
import sys
from topology import Device, Topology

for devices in (
    [Device("a", 7), Device("b", 8, speed=25000)],
    [Device(name, ord(name), path=f"/sys/devices/none/{name}") for name in "cd"],
    [Device(name, number) for number, name in enumerate("efghijkl")],
):
    print(*Topology(sys.argv[1], devices).nets("name", "speed"), sep="\n")
two_cards = [Device("m", 1, 1), Device("n", 1, 2), Device("o", 2, 1), Device("p", 2, 2)]
print("agrees to one card:", *Topology(sys.argv[1], two_cards, same_card=True).nets("name"))
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    run() { env -u NCCL_NET_MERGE_LEVEL -u NCCL_NET_FORCE_MERGE "$@" python3 "$folder/devices.py" "$(nccl_library "$release")"; }
    compare "NCCL $release" "$(run)"$'\n'"NCCL_NET_MERGE_LEVEL=LOC: $(run NCCL_NET_MERGE_LEVEL=LOC | sed 's/^name \(.\) .*/\1/' | xargs)" "name a+b speed 125000
name c+d speed 200000
name e+f+g+h speed 400000
name i+j+k+l speed 400000
agrees to one card: name m name n name o+p
NCCL_NET_MERGE_LEVEL=LOC: a b c d e f g h i j k l agrees to one card: name m name n name o name p"
done
exit "$status"
