#!/usr/bin/env bash
# NCCL takes two network devices of a plugin for one if they have the same name: only the last is used, with the properties of the first.
#
# One expects: the number identifies a device, since all calls take it. The name is for log lines. NCCL has GUID, port and PCI path as well.
# What happens: NCCL looks for devices in its topology by name alone. A second device of that name replaces the first one's number and
#   nothing else: the port of 25 Gb/s is one of 100 Gb/s to NCCL, with the first one's GUID. NCCL_DEBUG=WARN shows nothing. Two more
#   properties are not what they seem. A latency, although a float, loses its fraction, so that 0.9 us is 0. A speed of 0 or less is 10 Gb/s.
# What follows: a plugin that names all its devices alike, or two ports by their card's name, has one device. Each needs its own name.
#   The log at INFO, and in 2.32 at ATTN, says "TOPO/NET : Changing", and blames an old plugin or topology file.
#
# Seen with nvidia-nccl-cu12 2.28.9, 2.30.7 and 2.32.3, by the functions that add a plugin's devices to the topology, and print it.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

cat >"$folder/devices.c" <<'C'
#include <stdint.h>
#include <stdio.h>
#include <string.h>
/* The beginning of a plugin's properties, which versions 11 and 12 share. */
struct properties {
  const char *name, *path;
  uint64_t guid;
  int pointers, global, flush, speed, port;
  float latency;
  int communicators, receives, type, version, parts, part;
};
/* Names; the second one's speed in Mb/s; the latency in us. */
static const struct { const char *names[2]; int speed; float latency; } *given, all[] = {
  {{"a", "b"}, 25000, 2}, {{"a", "a"}, 25000, 2}, {{"a", "b"}, 0, 0.9}, {{"a", "b"}, -1, 1.9}};
void use(int which) { given = &all[which]; }
int count(int *number) { *number = 2; return 0; }
int counts(int plugin, int *real, int *merged) { *real = 2, *merged = 0; return 0; }
int merged(int plugin, int number) { return 0; }
int merge(int *number, void *parts) { return 1; }
int properties(int device, void *out) {
  memset(out, 0, 112); /* to the end of version 11 */
  *(struct properties *)out = (struct properties){.name = given->names[device], .guid = 7 + device, .pointers = 1, .port = 1 + device,
    .speed = device ? given->speed : 100000, .latency = given->latency, .communicators = 1000, .receives = 8, .parts = 1, .part = device};
  return 0;
}
C
cc -shared -fPIC -w -o "$folder/devices.so" "$folder/devices.c"
cat >"$folder/topology.py" <<'P'
import ctypes, re, struct, sys
from nccl import Nccl

nccl, devices, path = Nccl(sys.argv[1]), ctypes.CDLL(sys.argv[2]), sys.argv[3]
version = ctypes.c_int()
nccl.library.ncclGetVersion(ctypes.byref(version))
at = [ctypes.cast(devices[name], ctypes.c_void_p).value for name in ("counts", "merged", "merge", "properties", "merge", "count")]
name = ctypes.create_string_buffer(b"Plugin")
at[2] = ctypes.addressof(name)
# ncclTopoNetInfo: flags, merge level, name and functions.
head = struct.pack("<4xi4xiQ", 0, 0, 0) if version.value < 23000 else struct.pack("<3x?ii4xiiQ", True, 0, 8, 0, 0, 0)
for which in range(4):
    print(f"case {which + 1}", flush=True)
    devices.use(which)
    with open(path, "w") as file:
        file.write('<system version="1"><cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1"></cpu></system>')
    xml, system, info = ctypes.create_string_buffer(64 << 20), ctypes.c_void_p(), ctypes.create_string_buffer(head + struct.pack("<6Q8x", *at))
    ctypes.cast(xml, ctypes.POINTER(ctypes.c_int))[1] = 64  # nodes that there is room for

    def call(name: str, *arguments: object) -> None:
        kinds = [ctypes.c_uint64 if isinstance(one, int) else ctypes.c_void_p for one in arguments]
        result = nccl.function(name, ctypes.c_int, *kinds)(*arguments)
        ctypes.CDLL(None).fflush(None)
        if result:
            print(f"{name}: result {result}", flush=True)

    call("ncclTopoGetXmlFromFile", path.encode(), xml, 1)
    call("ncclTopoProcessNet", xml, None, info)
    call("ncclTopoDumpXmlToFile", path.encode(), xml)
    with open(path) as file:
        for one in re.findall("<net .*>", file.read()):
            print(*(re.search(f"{key}=\"[^\"]*\"", one)[0] for key in ("name", "dev", "port", "guid", "latency")), flush=True)
    call("ncclTopoGetSystemFromXml", xml, ctypes.byref(system), 0)
    call("ncclTopoPrint", system)
P
for release in 2.28.9 2.30.7 2.32.3; do
    nccl_get "$release"
    run() { NCCL_DEBUG=$1 NCCL_DEBUG_SUBSYS=GRAPH python3 "$folder/topology.py" "$(nccl_library "$release")" "$folder/devices.so" "$folder/topology.xml"; }
    seen=$(run INFO | sed -n 's/.*NET\[\(.*\)\] - NET.0-\(.\).*/dev="\2": \1 GB\/s/p; /^case/p; /^name/p; /result/p')
    compare "NCCL $release" "$seen"$'\n'"other lines at WARN: $(run WARN | grep -vE '^(case|name)|NCCL version' || true)" \
        'case 1
name="a" dev="0" port="1" guid="0x7" latency="2"
name="b" dev="1" port="2" guid="0x8" latency="2"
dev="0": 12.5 GB/s
dev="1": 3.1 GB/s
case 2
name="a" dev="1" port="1" guid="0x7" latency="2"
dev="1": 12.5 GB/s
case 3
name="a" dev="0" port="1" guid="0x7" latency="0"
name="b" dev="1" port="2" guid="0x8" latency="0"
dev="0": 12.5 GB/s
dev="1": 1.2 GB/s
case 4
name="a" dev="0" port="1" guid="0x7" latency="1"
name="b" dev="1" port="2" guid="0x8" latency="1"
dev="0": 12.5 GB/s
dev="1": 1.2 GB/s
other lines at WARN: '
done
exit "$status"
