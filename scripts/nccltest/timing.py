"""One rank of one run of scripts/ab.py without PyTorch: as abtest/worker.py, but it calls NCCL's library itself. Started by run.py
with all in its environment."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from abtest import evidence, plan  # noqa: E402
from nccltest.collective import Bench  # noqa: E402
from nccltest.cuda import Cuda  # noqa: E402
from nccltest.meeting import Meeting  # noqa: E402
from nccltest.nccl import Communicator, Library  # noqa: E402
from nccltest.pattern import ELEMENT, Painter  # noqa: E402


class Clock:
    """Times calls on the device's own clock, as the slowest rank sees them."""

    def __init__(self, comm: Communicator, meeting: Meeting):
        self.comm, self.cuda, self.meeting = comm, comm.cuda, meeting
        self.begin, self.end = self.cuda.event(), self.cuda.event()
        self.flag = self.cuda.allocate(ELEMENT)

    def batch(self, call: Callable[[], None], calls: int) -> float:
        """Time of a call in microseconds."""
        self.meeting.gather(None)
        # The device of no rank begins before all are there.
        self.comm.all_reduce(self.flag, self.flag, 1)
        self.cuda.record(self.begin)
        for _ in range(calls):
            call()
        self.cuda.record(self.end)
        self.comm.wait()
        return max(self.meeting.gather(self.cuda.elapsed_us(self.begin, self.end) / calls))

    def measure(self, call: Callable[[], None]) -> float:
        """Median over batches, after one that warms up and one that tells how many calls a batch may have."""
        self.batch(call, 3)
        calls = max(1, min(plan.MOST_CALLS, int(plan.BATCH_US / self.batch(call, 3))))
        times = [self.batch(call, calls) for _ in range(plan.BATCHES)]
        return sorted(times)[plan.BATCHES // 2]


def row_of(bench: Bench, clock: Clock, name: str, size: int) -> dict:
    """Right before it is timed, and after."""
    found = [bench.wrong(name, size, name == "all_reduce")]
    call, moved = bench.timed(name, size)
    time = clock.measure(call)
    found.append(bench.wrong(name, size, name == "all_reduce"))
    said = clock.meeting.gather([what for what in found if what])
    for rank, wrongs in enumerate(said):
        for what in wrongs:
            print(f"Error: rank {rank}, {name} of {plan.text_of(size)}: {what}", flush=True)
    return {"collective": name, "size": size, "bytes": moved, "us": time, "wrong": sum(map(len, said))}


def main() -> None:
    task, number = json.loads(os.environ["AB_TASK"]), {name: int(os.environ[name]) for name in
                                                       ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
    rank, world = number["RANK"], number["WORLD_SIZE"]
    cuda, library = Cuda(task["libcuda"], number["LOCAL_RANK"]), Library(task["libnccl"])
    meeting = Meeting(rank, world, os.environ["MASTER_ADDR"], number["MASTER_PORT"], task["limit"])
    made = meeting.gather(library.unique_id().hex() if rank == 0 else None)[0]
    most = max(*task["sizes"], ELEMENT * world)
    painter = Painter(cuda, most)
    a, b = cuda.allocate(most), cuda.allocate(most)
    comm = Communicator(library, cuda, bytes.fromhex(made), rank, world)
    bench, clock = Bench(comm, painter, a, b), Clock(comm, meeting)
    rows = [row_of(bench, clock, name, size) for name in task["collectives"] for size in task["sizes"]]
    found = meeting.gather(evidence.of_file(Path(os.environ["NCCL_DEBUG_FILE"])))
    gpus = meeting.gather(f"{os.uname().nodename}: {cuda.name}")
    if rank == 0:
        result = {"rows": rows, "evidence": found, "gpus": gpus, "versions": {"nccl": library.version()}}
        Path(task["result"]).write_text(json.dumps(result))
    comm.destroy()
    meeting.close()


if __name__ == "__main__":
    main()
