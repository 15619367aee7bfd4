"""The software RDMA device: what a rank that runs on it finds in its environment."""

import os
from pathlib import Path

from ..errors import Invalid


def check(folder: Path | None) -> None:
    if folder and not (folder / "libibverbs.so.1").is_file():
        raise Invalid(f"--softrnic {folder}: no libibverbs.so.1 there; scripts/build.sh makes it")


def environment(folder: Path, rank: int, fabric: str) -> dict[str, str]:
    """Each rank of this machine is a node of its own to NCCL, on a software network `fabric` that no other run shares."""
    path = [str(folder.resolve()), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(path),
        "NCCL_IBVERBS_LIB": str(folder.resolve() / "libibverbs.so.1"),
        "SOFTRNIC_FABRIC": f"ab-{fabric}",
        "SOFTRNIC_QUIET": "1",
        "NCCL_HOSTID": f"rank{rank}",
        # In network namespaces of their own the ranks need an interface between these.
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
        "NCCL_IB_MERGE_NICS": "0",
        "NCCL_GIN_TYPE": "0",
    }


def tool(folder: Path) -> Path:
    """The program `softrnic` beside the library in `folder`."""
    found = folder.resolve().parent / "bin/softrnic"
    if not found.is_file():
        raise Invalid(f"--softrnic {folder}: {found} is not there; scripts/build.sh makes both")
    return found


def gpu_helper(folder: Path) -> tuple[str, str]:
    """The device copies by calls of the CUDA driver, which would wait in a process while PyTorch waits there inside of the driver."""
    return "SOFTRNIC_GPU_HELPER", str(tool(folder))
