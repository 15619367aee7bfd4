"""One rank of one case: does what its task says, and writes what came out. MATRIX_TASK says what to do."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .matrix import AbortResult, OperationResult, RankResult
from .nccl import ELEMENT, OPERATIONS, Communicator, Cuda, CudaError, DeviceData, Library, NcclError, Operations

# Operations that are complete before a rank dies, those that it still takes part in, when it dies, and bytes of each.
BEFORE, AMID, DEATH_S, ABORTED_BYTES = 3, 4, 0.02, 256 << 20
# After an error of a send or receive ncclCommAbort never returns in these: the progress thread, which it waits for, repeats the call that
# failed without end (`ncclProxyProgress` in proxy.cc).
ABORT_NEVER_RETURNS_IN = ("2.23.", "2.24.", "2.25.")
# Bytes that are sent from and into registered memory; the last are more than NCCL sends in one step.
REGISTERED = [4, 4096, (1 << 20) + 4, 64 << 20]


class Rank:
    def __init__(self, task: dict[str, Any]):
        self.task, self.rank, self.world = task, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cuda = Cuda(task["libcuda"], int(os.environ["LOCAL_RANK"]))
        self.library = Library(task["libnccl"])

    def join(self) -> Communicator:
        """Makes the communicator. Rank 0 writes its unique ID to a file, in which the others read it."""
        path = Path(self.task["id"])
        if self.rank == 0:
            fresh = path.with_suffix(".new")
            fresh.write_bytes(self.library.unique_id())
            fresh.rename(path)
        while not path.exists():
            time.sleep(0.01)
        return Communicator(self.library, self.cuda, path.read_bytes(), self.rank, self.world)

    def result(self, rows: list[OperationResult], registered_bytes: int = 0, abort: AbortResult | None = None) -> RankResult:
        return RankResult(self.cuda.name, self.library.version(), rows, registered_bytes, abort)

    def collectives(self) -> RankResult:
        most = max(*self.task["sizes"], ELEMENT * self.world)
        data = DeviceData(self.cuda, most)
        a, b = self.cuda.allocate(most), self.cuda.allocate(most)
        comm = self.join()
        operations, rows = Operations(comm, data, a, b), []
        for name in self.task["operations"]:
            for size in self.task["sizes"]:
                for in_place in [False, True][: 1 + OPERATIONS[name][0]]:
                    begin = time.monotonic()
                    wrong = operations.error(name, size, in_place)
                    rows.append(OperationResult(name, size, in_place, wrong, round(time.monotonic() - begin, 4)))
        comm.destroy()
        return self.result(rows)

    def registered(self) -> RankResult:
        """Sends from registered memory into registered memory, also from an address in the middle of it."""
        most = max(REGISTERED) + 4096
        data = DeviceData(self.cuda, most)
        a, b = self.library.allocate(most), self.library.allocate(most)
        comm = self.join()
        handles = [comm.register(at, most) for at in (a, b)]
        rows = []
        for size in REGISTERED:
            for offset in (0, 68):
                wrong = Operations(comm, data, a + offset, b + offset).error("send_recv", size, False)
                rows.append(OperationResult(f"send_recv at +{offset}", size, False, wrong))
        for handle in handles:
            comm.deregister(handle)
        comm.destroy()
        return self.result(rows, registered_bytes=2 * most)

    def abort(self) -> RankResult:
        """The last rank dies in the middle of an operation: which error the others get, and when."""
        size = min(ABORTED_BYTES, self.task["most"])
        data = DeviceData(self.cuda, size)
        a, b = self.cuda.allocate(size), self.cuda.allocate(size)
        comm = self.join()
        operations = Operations(comm, data, a, b)
        rows = [OperationResult("all_reduce", size, False, operations.error("all_reduce", size, False)) for _ in range(BEFORE)]
        is_victim = self.rank == self.world - 1
        if is_victim:
            threading.Timer(DEATH_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
        begin = time.monotonic()
        # One more than the victim starts, which therefore cannot complete, however fast the others were.
        code, error = self.run_until_error(comm, a, b, size, AMID if is_victim else AMID + 1, is_victim)
        error_s = time.monotonic() - begin
        if self.library.version().startswith(ABORT_NEVER_RETURNS_IN):
            return self.result(rows, abort=AbortResult(code, error, error_s, None))
        begin = time.monotonic()
        comm.abort()
        abort_s = time.monotonic() - begin
        # The kernels that waited for the victim have ended too.
        self.cuda.wait(limit=30)
        return self.result(rows, abort=AbortResult(code, error, error_s, abort_s))

    def run_until_error(self, comm: Communicator, a: int, b: int, size: int, count: int, is_victim: bool) -> tuple[int, str]:
        """Starts `count` operations and waits for them; the code and text of the error."""
        try:
            for _ in range(count):
                comm.all_reduce(a, b, size // ELEMENT)
            if is_victim:
                time.sleep(self.task["limit"])
            comm.wait(self.task["limit"] / 2)
        except NcclError as error:
            return error.code, str(error)
        except CudaError as error:
            return 0, f"no error of NCCL: {error}"
        return 0, "no error: all operations ended"


def main() -> None:
    task = json.loads(os.environ["MATRIX_TASK"])
    print(f"process {os.getpid()}", flush=True)
    rank = Rank(task)
    scenario: Callable[[], RankResult] = getattr(rank, task["scenario"])
    result = scenario()
    Path(f"{task['result']}{rank.rank}.json").write_text(json.dumps(asdict(result)))
    if result.abort and result.abort.abort_s is None:
        # NCCL's threads are still at work, and what it does at the end of a process might wait for them.
        os._exit(0)


if __name__ == "__main__":
    main()
