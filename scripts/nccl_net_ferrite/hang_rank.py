"""One rank of one case: sums a tensor some times, and once is held up, if it is the culprit. AB_TASK says what to do."""

import json
import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .hang import AFTER, BEFORE
from .torch_gather import gather, use_gpu, versions

ELEMENTS = 1 << 20


def hold_up(how: str, seconds: float) -> None:
    """Before the culprit begins its operation."""
    if how in ("absent", "late"):
        time.sleep(seconds)
    elif how == "stopped":
        # Somebody else has to let it go on.
        subprocess.Popen(["sh", "-c", f"sleep {seconds}; kill -CONT {os.getpid()}"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "gpu":
        rate_khz = torch.cuda.get_device_properties(torch.cuda.current_device()).clock_rate
        torch.cuda._sleep(int(seconds * rate_khz * 1000))


def run(task: dict[str, Any], rank: int, world: int, device: str) -> bool:
    """Whether every sum is right."""
    data = torch.empty(ELEMENTS, device=device)
    right = True
    for number in range(BEFORE + 1 + AFTER):
        data.fill_(rank + number)
        if device == "cuda":
            torch.cuda.synchronize()
        if number == BEFORE and rank == task["culprit"]:
            hold_up(task["how"], task["hold_s"])
        dist.all_reduce(data)
        expected = sum(other + number for other in range(world))
        right = right and bool((data == expected).all())
    return right


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_gpu()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0, timedelta(seconds=120))
    dist.init_process_group("nccl", store=dist.PrefixStore("hang", store), rank=rank, world_size=world)
    right = run(task, rank, world, "cuda")
    ranks = gather({"pid": os.getpid(), "right": right}, world)
    dist.destroy_process_group()
    if rank == 0:
        Path(task["result"]).write_text(json.dumps({"ranks": ranks, "versions": versions()}))
    # The store is in rank 0's process, which ends last.
    store.set(f"done{rank}", "")
    if rank == 0:
        store.wait([f"done{other}" for other in range(world)])


if __name__ == "__main__":
    main()
