"""One rank of one run, without PyTorch: as torch_rank.py, but it calls NCCL's library itself. AB_TASK says what to do."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import evidence, sizes
from ..nccl.cuda import Cuda
from ..nccl.library import Communicator, Library
from ..nccl.operations import Operations
from ..nccl.pattern import ELEMENT, DeviceData
from . import plan
from .rendezvous import Rendezvous


class Clock:
    """Times calls on the device's own clock, as the slowest rank sees them."""

    def __init__(self, comm: Communicator, rendezvous: Rendezvous):
        self.comm, self.cuda, self.rendezvous = comm, comm.cuda, rendezvous
        self.begin, self.end = self.cuda.event(), self.cuda.event()
        self.flag = self.cuda.allocate(ELEMENT)

    def batch(self, call: Callable[[], None], calls: int) -> float:
        """Time of a call in microseconds."""
        self.rendezvous.gather(None)
        # The device of no rank begins before all have begun.
        self.comm.all_reduce(self.flag, self.flag, 1)
        self.cuda.record(self.begin)
        for _ in range(calls):
            call()
        self.cuda.record(self.end)
        self.comm.wait()
        return max(map(float, self.rendezvous.gather(self.cuda.elapsed_us(self.begin, self.end) / calls)))

    def measure(self, call: Callable[[], None]) -> float:
        """Median over batches, after one that warms up and one that tells how many calls a batch may have."""
        self.batch(call, 3)
        calls = plan.calls_in_batch(self.batch(call, 3))
        times = [self.batch(call, calls) for _ in range(plan.BATCHES)]
        return sorted(times)[plan.BATCHES // 2]


def row_of(operations: Operations, clock: Clock, name: str, size: int) -> dict[str, Any]:
    """Its values are checked before it is timed, and after."""
    errors = [operations.error(name, size, name == "all_reduce")]
    call, moved = operations.timed(name, size)
    time = clock.measure(call)
    errors.append(operations.error(name, size, name == "all_reduce"))
    errors_of_ranks = clock.rendezvous.gather([error for error in errors if error])
    for rank, found in enumerate(errors_of_ranks):
        for error in found:
            print(f"Error: rank {rank}, {name} of {sizes.text_of(size)}: {error}", flush=True)
    return {"collective": name, "size": size, "bytes": moved, "us": time, "wrong": sum(map(len, errors_of_ranks))}


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda, library = Cuda(task["libcuda"], int(os.environ["LOCAL_RANK"])), Library(task["libnccl"])
    rendezvous = Rendezvous(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), task["limit"])
    unique_id = bytes.fromhex(rendezvous.gather(library.unique_id().hex() if rank == 0 else None)[0])
    most = max(*task["sizes"], ELEMENT * world)
    data = DeviceData(cuda, most)
    a, b = cuda.allocate(most), cuda.allocate(most)
    comm = Communicator(library, cuda, unique_id, rank, world)
    operations, clock = Operations(comm, data, a, b), Clock(comm, rendezvous)
    rows = [row_of(operations, clock, name, size) for name in task["collectives"] for size in task["sizes"]]
    found = rendezvous.gather(asdict(evidence.of_file(Path(os.environ["NCCL_DEBUG_FILE"]))))
    gpus = rendezvous.gather(f"{os.uname().nodename}: {cuda.name}")
    if rank == 0:
        result = {"rows": rows, "evidence": found, "gpus": gpus, "versions": {"nccl": library.version()}}
        Path(task["result"]).write_text(json.dumps(result))
    comm.destroy()
    rendezvous.close()


if __name__ == "__main__":
    main()
