#!/usr/bin/env bash
# NIXL's UCX backend cannot be created with shared memory alone: two agents of one host need a network device.
#
# One expects: with UCX_TLS=sm,self, or in a container without a network, agents of one host use shared memory.
# What happens: create_backend raises NIXL_ERR_BACKEND. NIXL asks UCX for handling of peer failures, which shared memory does not have.
#   UCX says so in its log. The error comes before any other agent is known. With ucx_error_handling_mode=none it succeeds.
# What follows: a list of transports that suffices for other users of UCX stops NIXL, even where no byte leaves the host. Add tcp to the
#   list, or set the mode if a lost peer may be found by other means.
#
# Seen with nixl-cu12 1.5.1, which brings UCX.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

python3 -m pip install --quiet --no-deps --target "$folder/nixl" nixl-cu12==1.5.1 numpy==2.2.6 2>/dev/null
cat >"$folder/agents.py" <<'PYTHON'
import ctypes
import os
import sys

from nixl_cu12._api import nixl_agent, nixl_agent_config

SIZE = 1 << 16
try:
    agents = [nixl_agent(name, nixl_agent_config(backends=[])) for name in ("one", "two")]
    memory = [ctypes.create_string_buffer(b"\1" * SIZE, SIZE), ctypes.create_string_buffer(SIZE)]
    lists = [[(ctypes.addressof(bytes_), SIZE, 0)] for bytes_ in memory]
    for agent, bytes_ in zip(agents, memory):
        agent.create_backend("UCX", {"ucx_error_handling_mode": sys.argv[1]} if sys.argv[1] else {})
        agent.register_memory([(ctypes.addressof(bytes_), SIZE, 0, "")], "DRAM")
    agents[0].add_remote_agent(agents[1].get_agent_metadata())
    here, there = (agents[0].get_xfer_descs(list_, "DRAM") for list_ in lists)
    handle = agents[0].initialize_xfer("WRITE", here, there, "two")
    state = agents[0].transfer(handle)
    while state == "PROC":
        state = agents[0].check_xfer_state(handle)
    print("seen:", state, "with the right bytes" if memory[1].raw == memory[0].raw else "with wrong bytes")
except Exception as error:
    print("seen:", type(error).__name__)
sys.stdout.flush()
os._exit(0)
PYTHON
seen=$(for case in sm,self= sm,self=none sm,self,tcp=; do
    output=$(env -u UCX_NET_DEVICES UCX_TLS="${case%=*}" PYTHONPATH="$folder/nixl" python3 "$folder/agents.py" "${case#*=}" 2>&1) || true
    echo "UCX_TLS=${case%=*}, mode ${case#*=}: $(sed -n 's/^seen: //p' <<<"$output")" \
        "$(grep -o 'no peer failure handler' <<<"$output" | sort -u || true)"
done | sed 's/ *$//; s/mode :/default mode:/')
compare "nixl-cu12 1.5.1" "$seen" "UCX_TLS=sm,self, default mode: nixlBackendError no peer failure handler
UCX_TLS=sm,self, mode none: DONE with the right bytes
UCX_TLS=sm,self,tcp, default mode: DONE with the right bytes"
exit "$status"
