"""One run of one side of a comparison, each rank a fresh process: their environment, and rank 0's result."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import read_json
from ..networks import Side, Variables
from . import processes, softrnic
from .placement import Placement

# Variables of the environment that are set here, or that would decide for one side what has to be the same for both.
OVERRIDDEN = ("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "AB_TASK")


@dataclass(frozen=True)
class Setup:
    """What is the same for all runs."""

    module: str  # what each rank runs
    task: dict[str, Any]  # what the ranks are to do, in AB_TASK
    both: Variables
    softrnic: Path | None
    folder: Path
    limit: int  # seconds for one run
    fabric: str  # name of the software network, to which each run adds its own name


def environment(setup: Setup, side: Side, placement: Placement, run: str) -> dict[str, str]:
    """Of the rank at `placement`; `run` is the name of the run."""
    # TORCHELASTIC_USE_AGENT_STORE would have PyTorch connect to torchrun's store rather than make one at our port.
    inherited = {key: value for key, value in os.environ.items() if key not in OVERRIDDEN and not key.startswith("TORCHELASTIC_")}
    given = {
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(placement.world),
        "LOCAL_RANK": str(placement.local_rank),
        "MASTER_ADDR": placement.master,
        "MASTER_PORT": str(placement.port),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH,ENV",
        "NCCL_DEBUG_FILE": str(processes.nccl_log_of(setup.folder, run, placement.rank)),
        "AB_TASK": json.dumps({**setup.task, "result": str(result_of(setup, run))}),
        "PYTHONUNBUFFERED": "1",
    }
    if setup.softrnic:
        given |= softrnic.environment(setup.softrnic, placement.rank, f"{setup.fabric}-{run}")
    return inherited | given | dict(setup.both) | dict(side.variables)


def result_of(setup: Setup, run: str) -> Path:
    """The file that rank 0 writes."""
    return setup.folder / f"{run}.json"


def run_side(setup: Setup, side: Side, placements: list[Placement], run: str) -> dict[str, Any] | None:
    """Runs `side` with the ranks of this machine; rank 0's result, if it is one of them."""
    begin = time.monotonic()
    setup.folder.mkdir(parents=True, exist_ok=True)
    ranks = [processes.Rank(one.rank, setup.module, environment(setup, side, one, run)) for one in placements]
    processes.run_ranks(ranks, setup.folder, run, setup.limit)
    if all(one.rank for one in placements):
        return None
    # "seconds" is the whole run with its start, unless the rank has measured it.
    return {"seconds": time.monotonic() - begin, **read_json(result_of(setup, run))}
