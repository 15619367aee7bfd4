"""One rank of one run, with PyTorch: does the collectives, checks every value, times them. AB_TASK says what to do."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from . import ab, evidence, options
from .torch_gather import gather, use_gpu, versions


class Collective:
    """Buffers of one collective and size, the call, and what must come out."""

    def __init__(self, name: str, size: int, dtype: str, rank: int, world: int):
        self.rank, self.world, self.name = rank, world, name
        self.dtype = getattr(torch, dtype)
        elements = max(1, size // ab.DTYPES[dtype])
        split = name in ab.SPLIT
        self.each = max(1, elements // world) if split else elements
        self.bytes = self.each * ab.DTYPES[dtype] * (world if split else 1)
        whole = self.each * (world if split else 1)
        shapes = {"all_gather": (self.each, whole), "reduce_scatter": (whole, self.each)}
        given, got = shapes.get(name, (whole, whole))
        self.input = self.fill(given, rank)
        self.output = self.input if name == "all_reduce" else torch.zeros(got, dtype=self.dtype, device="cuda")

    def fill(self, count: int, seed: int) -> torch.Tensor:
        """Small whole numbers: sums of them are exact in every type."""
        return ((torch.arange(count, device="cuda") + 3 * seed) % 7).to(self.dtype)

    def call(self) -> None:
        if self.name == "all_reduce":
            dist.all_reduce(self.output)
        elif self.name == "all_gather":
            dist.all_gather_into_tensor(self.output, self.input)
        elif self.name == "reduce_scatter":
            dist.reduce_scatter_tensor(self.output, self.input)
        elif self.name == "alltoall":
            dist.all_to_all_single(self.output, self.input)
        else:
            right, left = (self.rank + 1) % self.world, (self.rank - 1) % self.world
            both = [dist.P2POp(dist.isend, self.input, right), dist.P2POp(dist.irecv, self.output, left)]
            for request in dist.batch_isend_irecv(both):
                request.wait()

    def expected(self) -> torch.Tensor:
        part = slice(self.rank * self.each, (self.rank + 1) * self.each)
        if self.name == "all_gather":
            return torch.cat([self.fill(self.each, rank) for rank in range(self.world)])
        if self.name == "alltoall":
            return torch.cat([self.fill(self.each * self.world, rank)[part] for rank in range(self.world)])
        if self.name == "send_recv":
            return self.fill(self.each, (self.rank - 1) % self.world)
        total = sum(self.fill(self.input.numel(), rank) for rank in range(self.world))
        return total[part] if self.name == "reduce_scatter" else total

    def is_right(self) -> bool:
        """Does it once more, on data filled in anew, and compares every element."""
        self.input.copy_(self.fill(self.input.numel(), self.rank))
        if self.output is not self.input:
            self.output.zero_()
        self.call()
        torch.cuda.synchronize()
        return bool(torch.equal(self.output, self.expected()))


def batch(one: Collective, calls: int) -> float:
    """Time of a call in microseconds, of the slowest rank."""
    dist.barrier()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        one.call()
    end.record()
    torch.cuda.synchronize()
    slowest = torch.tensor([begin.elapsed_time(end) * 1000 / calls], device="cuda", dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest.item())


def measure(one: Collective) -> float:
    """Median over batches, after one that warms up and one that tells how many calls a batch may have."""
    batch(one, 3)
    calls = ab.calls_in_batch(batch(one, 3))
    times = [batch(one, calls) for _ in range(ab.BATCHES)]
    return sorted(times)[ab.BATCHES // 2]


def main() -> None:
    task = json.loads(os.environ["AB_TASK"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    use_gpu()
    dist.init_process_group("nccl", rank=rank, world_size=world)
    rows = []
    for name in task["collectives"]:
        for size in task["sizes"]:
            one = Collective(name, size, task["dtype"], rank, world)
            wrong = torch.tensor([not one.is_right()], device="cuda", dtype=torch.int32)
            # It is timed when it is known to be right.
            time = measure(one)
            wrong += not one.is_right()
            dist.all_reduce(wrong)
            rows.append({"collective": name, "size": size, "bytes": one.bytes, "us": time, "wrong": int(wrong.item())})
            if rank == 0:
                print(f"{name} {options.size_text(size)}", flush=True)
    found = gather(asdict(evidence.of_file(Path(os.environ["NCCL_DEBUG_FILE"]))), world)
    gpus = gather(f"{os.uname().nodename}: {torch.cuda.get_device_name()}", world)
    if rank == 0:
        result = {"rows": rows, "evidence": found, "gpus": gpus, "versions": versions()}
        Path(task["result"]).write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
