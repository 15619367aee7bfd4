"""One rank of one run: trains, and writes losses and parameters to the last bit. AB_TASK says what to do."""

import argparse
import ctypes
import gc
import hashlib
import inspect
import json
import os
import subprocess
import time
import typing
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from . import evidence
from .torch_gather import gather, use_gpu, versions

# -- a small language model, the text that it learns, and settings that make each run of a training give the same numbers --

CONTEXT, WIDTH, HEADS, LAYERS, BYTES = 128, 256, 4, 4, 256
# Source text that every Python has.
SOURCES = [argparse, typing]


class Block(nn.Module):
    """One layer of the model: attention, then a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.attention_in(self.norm_attention(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = parts
        # Written out: fused attention may add up its gradients in another order each time.
        scores = (query @ key.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        weights = scores.masked_fill(self.future, float("-inf")).softmax(-1)
        x = x + self.attention_out((weights @ value).transpose(1, 2).reshape(x.shape))
        return x + self.feed_forward(self.norm_feed_forward(x))


class Model(nn.Module):
    """A decoder of bytes, 3 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(BYTES, WIDTH), nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(self.blocks(self.embedding(text) + self.position)))


def make_repeatable(seed: int) -> None:
    """Of PyTorch in this process: all that it computes from here on."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False


def samples(steps: int, batch: int, seed: int) -> torch.Tensor:
    """Text for all steps: [steps, batch, CONTEXT + 1] bytes, each passage from a random place."""
    text = b"".join(Path(inspect.getfile(source)).read_bytes() for source in SOURCES)
    corpus = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    places = torch.randint(len(corpus) - CONTEXT - 1, (steps, batch, 1), generator=torch.Generator().manual_seed(seed))
    return corpus[places + torch.arange(CONTEXT + 1)]


SEED = 1
BATCH = 16
# How long threads of a destroyed process group may take to end.
SETTLE_S = 10


class Job:
    """A model, its optimiser and its data on `device`; outlives the process groups, unless its parameters are shared out."""

    def __init__(self, steps: int, rank: int, device: str, is_sharded: bool):
        make_repeatable(SEED)
        self.model = Model().to(device)
        self.is_sharded = is_sharded
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = samples(steps, BATCH, SEED + 1 + rank).to(device).long()
        self.losses = torch.zeros(steps, device=device)

    def train(self, first: int, last: int) -> None:
        """Steps `first` to `last`, without the last, in the present process group. Nothing waits for the GPU before the end."""
        parallel = self.shared_out() if self.is_sharded else DistributedDataParallel(self.model, bucket_cap_mb=2)
        for step in range(first, last):
            text = self.data[step]
            guess = parallel(text[:, :-1])
            loss = functional.cross_entropy(guess.reshape(-1, BYTES), text[:, 1:].reshape(-1))
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
