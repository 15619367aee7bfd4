"""How many GPUs a process sees here. A process of its own counts them: this one keeps neither PyTorch nor the CUDA driver loaded."""

import os
import subprocess
import sys
from pathlib import Path

from ..errors import Invalid
from . import python

COUNT_BY_TORCH = "import torch; print(torch.cuda.device_count())"


def seen_by_torch(advice: str = "") -> int:
    """`advice`: what else the user can do where there is no PyTorch."""
    done = output_of([sys.executable, "-c", COUNT_BY_TORCH])
    if done.returncode:
        raise Invalid(
            f"PyTorch cannot be used in {sys.executable}: {last_line(done.stderr)}; install it" + (f", {advice}" if advice else "")
        )
    return not_zero(int(done.stdout), "PyTorch")


def seen_by_driver(libcuda: str, libnccl: Path | str) -> int:
    """By the CUDA driver; `libnccl` has to be NCCL's library."""
    done = output_of(python.command("nccl_net_ferrite.nccl.count_gpus", libcuda, str(libnccl)))
    if done.returncode:
        raise Invalid(f"--libnccl {libnccl} with --libcuda {libcuda}: {last_line(done.stderr)}")
    return not_zero(int(done.stdout), libcuda)


def output_of(command: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def not_zero(count: int, who: str) -> int:
    if count == 0:
        raise Invalid(no_gpu(who))
    return count


def no_gpu(who: str) -> str:
    """What is missing, and what helps."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    given = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    return (
        f"{who} sees no GPU on {os.uname().nodename}{given}: check it with nvidia-smi; a container gets GPUs by --gpus all, a job of Slurm "
        "by srun --gpus-per-node, a pod by the resource nvidia.com/gpu"
    )


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it ended without a word"])[-1]
