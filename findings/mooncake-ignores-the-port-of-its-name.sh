#!/usr/bin/env bash
# Mooncake's TransferEngine.initialize("HOST:PORT", "P2PHANDSHAKE", …) returns 0 and listens on another port.
#
# One expects: the engine listens on the port of its name, as its reference says of local_hostname, or the call fails.
# What happens: with P2PHANDSHAKE the engine chooses a port by itself. A second engine with the same name, the port 70000, and a host that does
#   not exist are accepted too. A transfer to the name as it was given fails; one to get_rpc_port() succeeds.
# What follows: a port that is opened in a firewall, or in a container, is not the one that is used. Tell each peer what get_rpc_port() returns.
#
# Seen with mooncake-transfer-engine-non-cuda 0.3.13.post1, over TCP on the loopback interface.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

python3 -m pip install --quiet --no-deps --target "$folder/mooncake" mooncake-transfer-engine-non-cuda==0.3.13.post1 2>/dev/null
cat >"$folder/ports.py" <<'PYTHON'
import ctypes
import socket

from mooncake.engine import TransferEngine

SIZE = 1 << 16
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
name = f"127.0.0.1:{port}"
engines = [TransferEngine() for _ in range(5)]
memory = [ctypes.create_string_buffer(b"\1" * SIZE, SIZE), ctypes.create_string_buffer(SIZE)]
for engine, given in zip(engines, ("127.0.0.1", name, name, "127.0.0.1:70000", "no-such-host.invalid")):
    result = engine.initialize(given, "P2PHANDSHAKE", "tcp", "")
    print(f"{given.replace(str(port), 'PORT')}: {result}{', listens on it' if engine.get_rpc_port() == port else ''}")
for engine, bytes_ in zip(engines, memory):
    engine.register_memory(ctypes.addressof(bytes_), SIZE)
here, there = (ctypes.addressof(bytes_) for bytes_ in memory)
print("transfer to PORT:", engines[0].transfer_sync_write(name, here, there, SIZE))
print("transfer to get_rpc_port():", engines[0].transfer_sync_write(f"127.0.0.1:{engines[1].get_rpc_port()}", here, there, SIZE))
print("bytes equal:", memory[1].raw == memory[0].raw)
PYTHON
compare "mooncake-transfer-engine-non-cuda 0.3.13.post1" "$(PYTHONPATH=$folder/mooncake python3 "$folder/ports.py" 2>/dev/null)" "127.0.0.1: 0
127.0.0.1:PORT: 0
127.0.0.1:PORT: 0
127.0.0.1:70000: 0
no-such-host.invalid: 0
transfer to PORT: -1
transfer to get_rpc_port(): 0
bytes equal: True"
exit "$status"
