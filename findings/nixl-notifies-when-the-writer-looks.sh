#!/usr/bin/env bash
# The notification of a NIXL transfer leaves when the writer calls check_xfer_state, not when the data have arrived.
#
# One expects: "notification message to send after transfer is done", as NIXL's Python API says. An agent has a progress thread by default,
#   so the target gets the notification without further calls of the writer.
# What happens: the data arrive, and the notification does not. It leaves only when the writer asks for the state of the transfer, or
#   releases its handle. A notification of its own (send_notif) needs no further call.
# What follows: a writer that starts a transfer and then waits for the target's answer waits for ever. Its loop has to call
#   check_xfer_state until DONE first.
#
# Seen with nixl-cu12 1.5.1, with its backend UCX over TCP, between two agents of one process. The script waits two seconds for what does not
# come.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

python3 -m pip install --quiet --no-deps --target "$folder/nixl" nixl-cu12==1.5.1 numpy==2.2.6 2>/dev/null
cat >"$folder/agents.py" <<'PYTHON'
import ctypes
import os
import sys
import time

from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 1 << 16
writer, target = (nixl_agent(name, nixl_agent_config(enable_prog_thread=True, backends=["UCX"])) for name in ("writer", "target"))
memory = [ctypes.create_string_buffer(b"\1" * SIZE, SIZE), ctypes.create_string_buffer(SIZE)]
for agent, bytes_ in zip((writer, target), memory):
    agent.register_memory([(ctypes.addressof(bytes_), SIZE, 0, "")], "DRAM")
writer.add_remote_agent(target.get_agent_metadata())
here, there = (writer.get_xfer_descs([(ctypes.addressof(bytes_), SIZE, 0)], "DRAM") for bytes_ in memory)


def notified(seconds: float) -> str:
    end, seen = time.monotonic() + seconds, []
    while not seen and time.monotonic() < end:
        seen = target.get_new_notifs().get("writer", [])
        time.sleep(0.01)
    return " ".join(one.decode() for one in seen) or "nothing"


for end in ("check_xfer_state", "release_xfer_handle"):
    memory[1].raw = bytes(SIZE)
    handle = writer.initialize_xfer("WRITE", here, there, "target", b"written")
    print("seen: transfer:", writer.transfer(handle))
    print("seen: two seconds later:", notified(2), "and", "all" if memory[1].raw == memory[0].raw else "not all", "bytes")
    getattr(writer, end)(handle)
    print(f"seen: after {end}:", notified(60))
writer.send_notif("target", b"own")
print("seen: after send_notif:", notified(60))
sys.stdout.flush()
os._exit(0)
PYTHON
seen=$(env -u UCX_NET_DEVICES UCX_TLS=tcp PYTHONPATH="$folder/nixl" python3 "$folder/agents.py" 2>&1 | sed -n 's/^seen: //p')
compare "nixl-cu12 1.5.1" "$seen" "transfer: PROC
two seconds later: nothing and all bytes
after check_xfer_state: written
transfer: PROC
two seconds later: nothing and all bytes
after release_xfer_handle: written
after send_notif: own"
exit "$status"
