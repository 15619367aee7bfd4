"""One rank of one run: trains, and writes losses and parameters to the last bit. AB_TASK says what to do."""

import ctypes
import gc
import hashlib
import json
import os
import subprocess
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from .. import evidence
from ..launch.torch_gather import gather, use_gpu, versions
from . import model as models

SEED = 1
BATCH = 16
# How long threads of a destroyed process group may take to end.
SETTLE_S = 10


class Job:
    """A model, its optimiser and its data on `device`; outlives the process groups, unless its parameters are shared out."""

    def __init__(self, steps: int, rank: int, device: str, is_sharded: bool):
        models.make_repeatable(SEED)
        self.model = models.Model().to(device)
        self.is_sharded = is_sharded
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = models.samples(steps, BATCH, SEED + 1 + rank).to(device).long()
        self.losses = torch.zeros(steps, device=device)

    def train(self, first: int, last: int) -> None:
        """Steps `first` to `last`, without the last, in the present process group. Nothing waits for the GPU before the end."""
        parallel = self.shared_out() if self.is_sharded else DistributedDataParallel(self.model, bucket_cap_mb=2)
        for step in range(first, last):
            text = self.data[step]
            guess = parallel(text[:, :-1])
            loss = functional.cross_entropy(guess.reshape(-1, models.BYTES), text[:, 1:].reshape(-1))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.losses[step] = loss.detach()

    def shared_out(self) -> Any:
        """The model with each layer's parameters divided among the ranks of the present process group."""
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        return self.model

    def digest(self) -> str:
        """SHA-256 of all parameters. All ranks ask for it at the same time."""
        parameters = [parameter.detach() for parameter in self.model.parameters()]
        parts = [getattr(parameter, "full_tensor", lambda whole=parameter: whole)() for parameter in parameters]
        whole = torch.cat([part.reshape(-1) for part in parts]).cpu()
        return hashlib.sha256(ctypes.string_at(whole.data_ptr(), whole.nbytes)).hexdigest()


def usage() -> dict[str, int]:
    """What this process holds: file descriptors, threads, and on the software device queue pairs."""
    held = {"fds": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}
    tool = os.environ.get("DDP_SOFTRNIC_TOOL")
    if tool:
        done = subprocess.run([tool, "stat", "--json"], capture_output=True, text=True, check=False)
        devices = json.loads(done.stdout)["devices"] if done.returncode == 0 else []
        held["qps"] = sum(qp["pid"] == os.getpid() for device in devices for qp in device["queue_pairs"])
    return held


def settled_usage() -> dict[str, int]:
    """What this process holds, once that no longer changes."""
    gc.collect()
    before, deadline = usage(), time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        time.sleep(0.5)
        now = usage()
        if now == before:
            break
        before = now
    return before


def cycles(job: Job, task: dict[str, Any], store: Any, rank: int, world: int, backend: str) -> tuple[list[dict[str, int]], dict[str, Any]]:
    """Sets up a process group, trains, and destroys it, `task["cycles"]` times. What this rank holds after each, and what all
    ranks found."""
    held, found = [], {}
    each = task["steps"] // task["cycles"]
    for cycle in range(task["cycles"]):
        is_last = cycle == task["cycles"] - 1
        dist.init_process_group(backend, store=dist.PrefixStore(f"cycle{cycle}", store), rank=rank, world_size=world)
        job.train(cycle * each, task["steps"] if is_last else (cycle + 1) * each)
        if backend == "nccl":
            torch.cuda.synchronize()
        if is_last:
            found = {
                "losses": gather([loss.hex() for loss in job.losses.tolist()], world),
                "digests": gather(job.digest(), world),
                "evidence": gather(asdict(evidence.of_file(Path(os.environ["NCCL_DEBUG_FILE"]))), world),
                "gpus": gather(f"{os.uname().nodename}: {torch.cuda.get_device_name()}", world),
            }
        dist.destroy_process_group()
        held.append(settled_usage())
    return held, found


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_gpu()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, rank == 0, timedelta(seconds=120))
    job = Job(task["steps"], rank, "cuda", task["sharded"])
    begin = time.monotonic()
    held, found = cycles(job, task, store, rank, world, "nccl")
    took = time.monotonic() - begin
    # Each rank counts its own: it may be on another machine than rank 0.
    store.set(f"held{rank}", json.dumps(held))
    if rank == 0:
        all_held = [json.loads(store.get(f"held{other}")) for other in range(world)]
        Path(task["result"]).write_text(json.dumps({**found, "held": all_held, "versions": versions(), "seconds": took}))
    # The store is in rank 0's process, which ends last.
    store.set(f"done{rank}", "")
    if rank == 0:
        store.wait([f"done{other}" for other in range(world)])


if __name__ == "__main__":
    main()
