"""One rank of one run: does what its task says, and writes down what came out. Started by runs.py with all in its environment."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from nccltest.collective import OPERATIONS, Bench  # noqa: E402
from nccltest.cuda import Cuda, CudaError  # noqa: E402
from nccltest.nccl import Communicator, Library, NcclError  # noqa: E402
from nccltest.pattern import ELEMENT, Painter  # noqa: E402

# Operations that are right before a rank dies, those that it still takes part in, after how long it dies, and bytes of each.
BEFORE, AMID, DEATH_S, ABORTED_BYTES = 3, 4, 0.02, 256 << 20
# Bytes that are sent from and into registered memory, the last in one piece too long for a step of NCCL's.
REGISTERED = [4, 4096, (1 << 20) + 4, 64 << 20]


class Rank:
    def __init__(self, task: dict):
        self.task, self.rank, self.world = task, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = Cuda(task["libcuda"], int(os.environ["LOCAL_RANK"]))
        self.library = Library(task["libnccl"])

    def join(self) -> Communicator:
        """Rank 0 leaves the communicator's name in a file."""
        path = Path(self.task["id"])
        if self.rank == 0:
            fresh = path.with_suffix(".new")
            fresh.write_bytes(self.library.unique_id())
            fresh.rename(path)
        while not path.exists():
            time.sleep(0.01)
        return Communicator(self.library, self.cuda, path.read_bytes(), self.rank, self.world)

    def collectives(self) -> dict:
        most = max(*self.task["sizes"], ELEMENT * self.world)
        painter = Painter(self.cuda, most)
        a, b = self.cuda.allocate(most), self.cuda.allocate(most)
        comm = self.join()
        bench, rows = Bench(comm, painter, a, b), []
        for name in self.task["operations"]:
            for size in self.task["sizes"]:
                for in_place in [False, True][:1 + OPERATIONS[name][0]]:
                    begin = time.monotonic()
                    wrong = bench.wrong(name, size, in_place)
                    took = time.monotonic() - begin
                    rows.append({"operation": name, "size": size, "in_place": in_place, "wrong": wrong, "s": round(took, 4)})
        comm.destroy()
        return {"rows": rows}

    def registered(self) -> dict:
        """Sends from registered memory into registered memory, at odd places of it too."""
        most = max(REGISTERED) + 4096
        painter = Painter(self.cuda, most)
        a, b = self.library.allocate(most), self.library.allocate(most)
        comm = self.join()
        handles = [comm.register(at, most) for at in (a, b)]
        rows = []
        for size in REGISTERED:
            for offset in (0, 68):
                wrong = Bench(comm, painter, a + offset, b + offset).wrong("send_recv", size, False)
                rows.append({"operation": f"send_recv at +{offset}", "size": size, "in_place": False, "wrong": wrong})
        for handle in handles:
            comm.deregister(handle)
        comm.destroy()
        return {"rows": rows, "registered_bytes": 2 * most}

    def abort(self) -> dict:
        """The last rank dies in the middle of an operation. What do the others see, and when?"""
        size = min(ABORTED_BYTES, self.task["most"])
        painter = Painter(self.cuda, size)
        a, b = self.cuda.allocate(size), self.cuda.allocate(size)
        comm = self.join()
        bench = Bench(comm, painter, a, b)
        rows = [{"operation": "all_reduce", "size": size, "in_place": False, "wrong": bench.wrong("all_reduce", size, False)}
                for _ in range(BEFORE)]
        is_doomed = self.rank == self.world - 1
        if is_doomed:
            threading.Timer(DEATH_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        begin = time.monotonic()
        try:
            # One that the dead one never begins: however fast the others were, it is not done without it.
            for _ in range(AMID if is_doomed else AMID + 1):
                comm.all_reduce(a, b, size // ELEMENT)
            if is_doomed:
                time.sleep(self.task["limit"])
            comm.wait(self.task["limit"] / 2)
            found = {"code": 0, "error": "no error: all operations ended"}
        except NcclError as error:
            found = {"code": error.code, "error": str(error)}
        except CudaError as error:
            found = {"code": 0, "error": f"no error of NCCL: {error}"}
        found["error_s"] = time.monotonic() - begin
        begin = time.monotonic()
        comm.abort()
        found["abort_s"] = time.monotonic() - begin
        # The kernels that waited for the dead have ended too.
        self.cuda.wait(limit=30)
        return {"rows": rows, "abort": found}


def main() -> None:
    task = json.loads(os.environ["MATRIX_TASK"])
    print(f"process {os.getpid()}", flush=True)
    rank = Rank(task)
    begin = time.monotonic()
    found = getattr(rank, task["scenario"])()
    found |= {"gpu": rank.cuda.name, "version": rank.library.version(), "s": time.monotonic() - begin}
    Path(f"{task['result']}{rank.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
