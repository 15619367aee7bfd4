"""Runs of one side: starts this machine's ranks, waits for them, and leaves none behind."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .plan import Invalid, Side
from .seat import Seat

WORKER = Path(__file__).resolve().parent / "worker.py"
# Variables of the environment that would decide for one side what has to be the same for both, or is set here.
OURS = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "AB_TASK")


@dataclass(frozen=True)
class Setup:
    """What is the same for all runs."""

    collectives: list[str]
    sizes: list[int]
    dtype: str
    both: tuple[tuple[str, str], ...]
    softrnic: Path | None
    folder: Path
    limit: int


def environment(setup: Setup, side: Side, seat: Seat, name: str) -> dict[str, str]:
    """Of the worker in `seat` of run `name`."""
    inherited = {key: value for key, value in os.environ.items() if key not in OURS}
    task = {"collectives": setup.collectives, "sizes": setup.sizes, "dtype": setup.dtype,
            "result": str(result_of(setup, name))}
    given = {
        "RANK": str(seat.rank), "WORLD_SIZE": str(seat.world), "LOCAL_RANK": str(seat.local_rank),
        "MASTER_ADDR": seat.master, "MASTER_PORT": str(seat.port),
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(setup.folder / f"{name}-rank{seat.rank}.nccl.log"),
        "AB_TASK": json.dumps(task), "PYTHONUNBUFFERED": "1",
    }
    if setup.softrnic:
        given |= on_softrnic(setup.softrnic, inherited, seat, name)
    return inherited | given | dict(setup.both) | dict(side.variables)


def on_softrnic(library: Path, inherited: dict[str, str], seat: Seat, name: str) -> dict[str, str]:
    """Two ranks of one machine are two nodes to NCCL, on a software network that no other run shares."""
    path = [str(library.resolve()), *filter(None, [inherited.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(path), "NCCL_IBVERBS_LIB": str(library.resolve() / "libibverbs.so.1"),
        "SOFTRNIC_FABRIC": f"ab-{os.getpid()}-{name}", "SOFTRNIC_QUIET": "1",
        "NCCL_HOSTID": f"rank{seat.rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_MERGE_NICS": "0", "NCCL_GIN_TYPE": "0",
    }


def result_of(setup: Setup, name: str) -> Path:
    return setup.folder / f"{name}.json"


def go(setup: Setup, side: Side, seats: list[Seat], name: str) -> dict | None:
    """Runs `side` with this machine's `seats`; what rank 0 measured, if it is among them."""
    workers = []
    try:
        for seat in seats:
            with open(setup.folder / f"{name}-rank{seat.rank}.out", "w") as log:
                workers.append(subprocess.Popen(
                    [sys.executable, str(WORKER)], env=environment(setup, side, seat, name),
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True))
        wait(workers, seats, setup, name)
    finally:
        end(workers)
    if all(seat.rank for seat in seats):
        return None
    return json.loads(result_of(setup, name).read_text())


def wait(workers: list[subprocess.Popen], seats: list[Seat], setup: Setup, name: str) -> None:
    """Until all have ended well; the first that has not ends the comparison."""
    deadline = time.monotonic() + setup.limit
    while any(worker.poll() is None for worker in workers):
        for worker, seat in zip(workers, seats):
            if worker.poll() not in (None, 0):
                raise Invalid(failure(setup, name, seat.rank, f"ended with {worker.returncode}"))
        if time.monotonic() > deadline:
            raise Invalid(failure(setup, name, seats[0].rank, f"not done after {setup.limit} s (--limit)"))
        time.sleep(0.05)
    for worker, seat in zip(workers, seats):
        if worker.returncode:
            raise Invalid(failure(setup, name, seat.rank, f"ended with {worker.returncode}"))


def failure(setup: Setup, name: str, rank: int, what: str) -> str:
    """What went wrong, with the last words of the rank."""
    words = [f"run {name}, rank {rank}: {what}"]
    for path in (setup.folder / f"{name}-rank{rank}.out", setup.folder / f"{name}-rank{rank}.nccl.log"):
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        warnings = [line for line in lines if "WARN" in line or "Error" in line][-6:]
        words += [f"{path}:", *(warnings or lines[-6:])]
    return "\n  ".join(words)


def end(workers: list[subprocess.Popen]) -> None:
    """No process of ours stays."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        alive = [worker for worker in workers if worker.poll() is None]
        for worker in alive:
            try:
                os.killpg(worker.pid, number)
            except ProcessLookupError:
                pass
        for worker in alive:
            try:
                worker.wait(timeout=5)
            except subprocess.TimeoutExpired:
                pass
