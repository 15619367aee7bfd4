"""What ranks with PyTorch have in common: the GPU of each, and what they tell each other about themselves."""

import ctypes
import json
import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from . import launch, nccl

# Bytes of what one rank may tell.
MOST_TEXT = 1 << 16


def use_gpu() -> None:
    """The rank uses the GPU of its number on this machine, modulo their count. Without one the process ends and says why."""
    count = torch.cuda.device_count()
    if count == 0:
        sys.exit(launch.no_gpu("PyTorch"))
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % count)


def gather(value: Any, world: int) -> list[Any]:
    """The values of all ranks, which go as JSON. No collective runs while the processor copies its result: a device that copies GPU
    memory in software cannot do so while a copy to pageable memory holds the driver."""
    text = json.dumps(value).encode()
    if len(text) > MOST_TEXT:
        raise ValueError(f"{len(text)} bytes to gather; at most {MOST_TEXT}")
    mine = torch.tensor(list(text.ljust(MOST_TEXT)), dtype=torch.uint8, device="cuda")
    of_all = torch.empty(world * MOST_TEXT, dtype=torch.uint8, device="cuda")
    dist.all_gather_into_tensor(of_all, mine)
    torch.cuda.synchronize()
    joined = bytes(of_all.tolist())
    return [json.loads(joined[rank * MOST_TEXT : (rank + 1) * MOST_TEXT]) for rank in range(world)]


def nccl_version() -> str:
    """The version of the loaded libnccl.so.2. With LD_PRELOAD it may differ from the one that PyTorch was built with and reports."""
    try:
        ctypes.CDLL("libnccl.so.2", os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return ".".join(map(str, torch.cuda.nccl.version()))
    return nccl.Library("libnccl.so.2").version()


def versions() -> dict[str, str]:
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl_version()}
