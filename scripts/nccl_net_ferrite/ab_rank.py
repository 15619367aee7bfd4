"""One rank of one run: communicators that live at once, each checked and then timed in turn. AB_TASK says what to do."""

import json
import os
import random
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from . import evidence, options
from .nccl import ELEMENT, Communicator, Cuda, DeviceData, Library, Operations
from .rendezvous import Rendezvous

# How long a turn takes, about, in microseconds; its most calls; turns that each communicator has at each row, however long it takes.
TURN_US = 5_000
MOST_CALLS = 200
LEAST_TURNS = 6


def calls_in_turn(microseconds: float) -> int:
    """Calls that a turn may have if one takes that long."""
    return max(1, min(MOST_CALLS, int(TURN_US / max(microseconds, 0.1))))


class Rank:
    """All communicators use the same buffers, and the same stream."""

    def __init__(self, task: dict[str, Any]):
        self.begin = time.monotonic()
        self.task, self.rank, self.world = task, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda, self.library = Cuda(task["libcuda"], int(os.environ["LOCAL_RANK"])), Library(task["libnccl"])
        port = int(os.environ["MASTER_PORT"])
        self.rendezvous = Rendezvous(self.rank, self.world, os.environ["MASTER_ADDR"], port, task["limit"])
        self.rows = [(name, size) for name in task["collectives"] for size in task["sizes"]]
        most = max(*task["sizes"], ELEMENT * self.world)
        self.data = DeviceData(self.cuda, most)
        self.a, self.b, self.flag = self.cuda.allocate(most), self.cuda.allocate(most), self.cuda.allocate(ELEMENT)
        self.first, self.last = self.cuda.event(), self.cuda.event()

    def join(self, network: str) -> Operations:
        """Makes a communicator, which uses that network; what NCCL_NET names if this is empty."""
        text = self.rendezvous.gather(self.library.unique_id().hex() if self.rank == 0 else None)[0]
        comm = Communicator(self.library, self.cuda, bytes.fromhex(text), self.rank, self.world, network)
        comm.all_reduce(self.flag, self.flag, 1)
        return Operations(comm, self.data, self.a, self.b)

    def errors(self, operations: Operations) -> list[list[int]]:
        """Compares every element of each row. Of each row 1 for each rank where one is wrong, and 0 for the others."""
        wrong = []
        for name, size in self.rows:
            error = operations.error(name, size, name == "all_reduce")
            if error:
                print(f"Error: rank {self.rank}, {name} of {options.size_text(size)}{operations.comm.over}: {error}", flush=True)
            wrong.append(bool(error))
        return [list(map(int, ranks)) for ranks in zip(*self.rendezvous.gather(wrong))]

    def turn(self, operations: Operations, name: str, size: int, calls: int) -> float:
        """Time of a call in microseconds by the device's own clock, as the slowest rank sees it."""
        call, _ = operations.timed(name, size)
        # The device of no rank begins before all have begun.
        operations.comm.all_reduce(self.flag, self.flag, 1)
        self.cuda.record(self.first)
        for _ in range(calls):
            call()
        self.cuda.record(self.last)
        operations.comm.wait()
        return max(map(float, self.rendezvous.gather(self.cuda.elapsed_us(self.first, self.last) / calls)))

    def times(self, all_operations: list[Operations]) -> list[list[list[float]]]:
        """Of each row the times of each communicator's turns. Passes over all rows until rank 0 says that the time is over; in each,
        the communicators take turns in an order of its own. It takes at least as long as what came before: what is measured within a
        moment differs from the next moment."""
        seconds = self.task["seconds"] and max(self.task["seconds"], 2 * (time.monotonic() - self.begin))
        for name, size in self.rows:
            self.turn(all_operations[0], name, size, 3)
        calls = [calls_in_turn(self.turn(all_operations[0], name, size, 3)) for name, size in self.rows]
        found: list[list[list[float]]] = [[[] for _ in all_operations] for _ in self.rows]
        chance = random.Random(self.task["seed"])
        for passes in range(1 << 30):
            if not self.rendezvous.gather(passes < LEAST_TURNS or time.monotonic() - self.begin < seconds)[0]:
                break
            for row, (name, size) in enumerate(self.rows):
                for place in chance.sample(range(len(all_operations)), len(all_operations)):
                    found[row][place].append(self.turn(all_operations[place], name, size, calls[row]))
        return found

    def run(self) -> dict[str, Any]:
        """Runs the task. Returns the result, which rank 0 writes."""
        log = Path(os.environ["NCCL_DEBUG_FILE"])
        joined, proofs, wrong = [], [], []
        read = 0
        for network in self.task["networks"]:
            joined.append(self.join(network))
            wrong.append(self.errors(joined[-1]))
            # What NCCL has written since then is about this communicator.
            content = log.read_bytes()
            proofs.append(self.rendezvous.gather(asdict(evidence.read(content[read:].decode(errors="replace")))))
            read = len(content)
        found = self.times(joined)
        for place, operations in enumerate(joined):
            wrong[place] = [[*before, *after] for before, after in zip(wrong[place], self.errors(operations))]
        rows = [
            {
                "collective": name,
                "size": size,
                "bytes": joined[0].timed(name, size)[1],
                "us": [median(times) for times in found[row]],
                "turns_us": [[round(us, 3) for us in times] for times in found[row]],
                "wrong": [sum(of_comm[row]) for of_comm in wrong],
            }
            for row, (name, size) in enumerate(self.rows)
        ]
        gpus = self.rendezvous.gather(f"{os.uname().nodename}: {self.cuda.name}")
        for operations in joined:
            operations.comm.destroy()
        self.rendezvous.close()
        return {"rows": rows, "evidence": proofs, "gpus": gpus, "versions": {"nccl": self.library.version()}}


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank = Rank(task)
    result = rank.run()
    if rank.rank == 0:
        Path(task["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
