"""Runs of one side of the comparison: what its ranks are told, and what rank 0 brings back."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from . import ranks
from .plan import Side
from .seat import Seat

WORKER = Path(__file__).resolve().parent / "worker.py"
# Variables of the environment that would decide for one side what has to be the same for both, or is set here.
OURS = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "AB_TASK")


@dataclass(frozen=True)
class Setup:
    """What is the same for all runs."""

    task: dict  # what the worker is to do
    both: tuple[tuple[str, str], ...]
    softrnic: Path | None
    folder: Path
    limit: int
    fabric: str  # name of the software network, but for the run


def environment(setup: Setup, side: Side, seat: Seat, name: str) -> dict[str, str]:
    """Of the worker in `seat` of run `name`."""
    # What torchrun says of its own meeting place would keep the ranks from making theirs.
    inherited = {key: value for key, value in os.environ.items() if key not in OURS and not key.startswith("TORCHELASTIC_")}
    given = {
        "RANK": str(seat.rank), "WORLD_SIZE": str(seat.world), "LOCAL_RANK": str(seat.local_rank),
        "MASTER_ADDR": seat.master, "MASTER_PORT": str(seat.port),
        "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(ranks.nccl_log_of(setup.folder, name, seat.rank)),
        "AB_TASK": json.dumps({**setup.task, "result": str(result_of(setup, name))}), "PYTHONUNBUFFERED": "1",
    }
    if setup.softrnic:
        given |= ranks.on_softrnic(setup.softrnic, seat.rank, f"{setup.fabric}-{name}")
    return inherited | given | dict(setup.both) | dict(side.variables)


def result_of(setup: Setup, name: str) -> Path:
    return setup.folder / f"{name}.json"


def go(setup: Setup, side: Side, seats: list[Seat], name: str, worker: Path | None = None) -> dict | None:
    """Runs `side` with this machine's `seats`; what rank 0 has to say, if it is among them."""
    worker = worker or WORKER
    begin = time.monotonic()
    ranks.run([ranks.Rank(seat.rank, worker, environment(setup, side, seat, name)) for seat in seats],
              setup.folder, name, setup.limit)
    if all(seat.rank for seat in seats):
        return None
    # "seconds" of the whole run, with its start, unless the worker says better.
    return {"seconds": time.monotonic() - begin, **json.loads(result_of(setup, name).read_text())}
