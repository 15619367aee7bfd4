#!/usr/bin/env bash
# Mooncake's TransferEngine.initialize(…, "rdma", DEVICE) returns 0 where there is no RDMA device, and all transfers go over TCP.
#
# One expects: an error, since RDMA was asked for, and for a device by its name.
# What happens: initialize returns 0, register_memory returns 0, and a transfer to another engine returns 0, with the right bytes. The engine
#   has opened a TCP port for data. Only the log reports it, by the warning "No RDMA devices found".
# What follows: a container without its RDMA device (no /dev/infiniband, or a misspelt name on a host without cards) works, and is slow. Look for
#   TcpTransport in the log, or count bytes at the port.
#
# Seen with mooncake-transfer-engine-non-cuda 0.3.13.post1, on a host without RDMA devices. Skipped where there are some.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"

if compgen -G '/sys/class/infiniband/*' >/dev/null; then echo "skipped: a host without RDMA devices"; exit 0; fi
python3 -m pip install --quiet --no-deps --target "$folder/mooncake" mooncake-transfer-engine-non-cuda==0.3.13.post1 2>/dev/null
cat >"$folder/engines.py" <<'PYTHON'
import ctypes

from mooncake.engine import TransferEngine

SIZE = 1 << 20
engines = [TransferEngine(), TransferEngine()]
memory = [ctypes.create_string_buffer(b"\1" * SIZE, SIZE), ctypes.create_string_buffer(SIZE)]
for number, (engine, bytes_) in enumerate(zip(engines, memory)):
    print("initialize:", engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", f"mlx5_{number}"))
    print("register_memory:", engine.register_memory(ctypes.addressof(bytes_), SIZE))
other = f"127.0.0.1:{engines[1].get_rpc_port()}"
print("transfer:", engines[0].transfer_sync_write(other, ctypes.addressof(memory[0]), ctypes.addressof(memory[1]), SIZE))
print("bytes equal:", memory[1].raw == memory[0].raw)
PYTHON
seen=$(PYTHONPATH=$folder/mooncake python3 "$folder/engines.py" 2>"$folder/log")
compare "mooncake-transfer-engine-non-cuda 0.3.13.post1" "$seen
in the log: $(grep -o 'No RDMA devices found' "$folder/log" | sort -u); $(grep -o TcpTransport "$folder/log" | sort -u)" \
    "initialize: 0
register_memory: 0
initialize: 0
register_memory: 0
transfer: 0
bytes equal: True
in the log: No RDMA devices found; TcpTransport"
exit "$status"
