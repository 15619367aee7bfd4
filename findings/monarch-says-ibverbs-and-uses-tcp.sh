#!/usr/bin/env bash
# Monarch's RDMABuffer reports the backend `ibverbs`, does not warn, and uses TCP where a ConnectX is listed but cannot be used.
#
# One expects: `ibverbs` means that data goes over RDMA. Monarch promises RDMATcpFallbackWarning where it does not.
# What happens: get_rdma_backend() and RDMABuffer.backend are `ibverbs` as soon as a device is listed; no device is opened for it. The warning
#   depends on the list too. If no device can be used later, Monarch uses TCP. Here the device moves no byte, and all bytes arrive.
#   With rdma_allow_tcp_fallback=False the buffer fails: "no RDMA backend available". Monarch links rdma-core with the drivers of
#   mlx5 and efa alone. With another card, which libibverbs lists, the backend is `tcp`, and the warning is that there is no hardware.
# What follows: a job is slow, without a warning, in a container that may not open its card, or if the ports of the card are down. Set
#   rdma_allow_tcp_fallback=False.
#
# Seen with torchmonarch 0.7.0, with a stand-in for the kernel's side of a ConnectX without ports, and of Alibaba's card.
# shellcheck source=lib/findings.sh
. "$(dirname "$0")/lib/findings.sh"
# shellcheck source=lib/verbs.sh
. "$here/verbs.sh"

verbs_get bookworm 44.0-2
python3 -m venv "$folder/python"
"$folder/python/bin/pip" install --quiet --disable-pip-version-check --only-binary=:all: torchmonarch==0.7.0 \
    numpy'<2.5' pyarrow==26.0.1 opentelemetry-api==1.45.2 clusterscope==0.0.32 xxhash==4.1.0
cat >"$folder/list.c" <<'C'
#include "card.h"
int main(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  puts(list && *list ? ibv_get_device_name(*list) : "none");
}
C
verbs_build bookworm list
cat >"$folder/buffers.py" <<'PYTHON'
import asyncio
import sys
import warnings

from monarch.actor import Actor, endpoint, this_host
from monarch.config import configured
from monarch.rdma import RDMABuffer

SIZE = 1 << 20


class End(Actor):
    def __init__(self):
        self.data = bytearray(b"\1" * SIZE)

    @endpoint
    async def make(self):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            self.buffer = RDMABuffer(memoryview(self.data))
        return self.buffer, self.buffer.backend, [one.category.__name__ for one in said]

    @endpoint
    async def read(self, buffer):
        found = bytearray(SIZE)
        await buffer.read_into(memoryview(found))
        return found == b"\1" * SIZE


async def main():
    with configured(**({"rdma_allow_tcp_fallback": False} if "strict" in sys.argv else {})):
        ends = [this_host().spawn_procs(per_host={"processes": 1}).spawn("end", End) for _ in range(2)]
        buffer, backend, said = await ends[0].make.call_one()
        print(f"seen: backend {backend}, warnings {said}, right bytes: {await ends[1].read.call_one(buffer)}")


try:
    asyncio.run(main())
except Exception as error:
    known = ("no RDMA backend available", "RDMA is not available on this platform")
    print("seen:", next((text for text in known if text in str(error)), error))
PYTHON
seen=$(for card in mlx5 erdma; do
    echo "$card: libibverbs lists $(verbs_run bookworm "$card" list 2>/dev/null)"
    for way in default strict; do
        output=$(CARD=$card SYSFS_PATH=$folder/bookworm/tree/card/$card LD_PRELOAD=$folder/bookworm/tree/card/card.so timeout 120 \
            "$folder/python/bin/python" "$folder/buffers.py" "$way" 2>/dev/null) || true
        echo "$way: $(sed -n 's/^seen: //p' <<<"$output")"
    done
done)
compare "torchmonarch 0.7.0" "$seen" "mlx5: libibverbs lists mlx5_0
default: backend ibverbs, warnings [], right bytes: True
strict: no RDMA backend available
erdma: libibverbs lists erdma_0
default: backend tcp, warnings ['RDMATcpFallbackWarning'], right bytes: True
strict: RDMA is not available on this platform"
exit "$status"
