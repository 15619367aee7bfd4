"""PyTorch's own tests of torch.distributed with NCCL: runs those that its arguments name; without arguments it lists all names."""

import os
import sys
import unittest
from pathlib import Path

from nccl_net_ferrite.launch import PARENT

# Behind all packages: PyTorch imports one that is called `coverage`, as a program of this folder is.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != PARENT] + [str(PARENT)]
# PyTorch's tests look at these when they are imported.
os.environ.setdefault("BACKEND", "nccl")
os.environ.setdefault("WORLD_SIZE", "2")
os.environ.setdefault("TEMP_DIR", "/tmp")

import torch  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402


class Suite(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    """Each test in as many processes as WORLD_SIZE says, which PyTorch starts."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
        torch.backends.cuda.matmul.allow_tf32 = False


def main() -> None:
    names = unittest.defaultTestLoader.getTestCaseNames(Suite)
    if len(sys.argv) == 1:
        print("\n".join(names))
        return
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite([Suite(name) for name in sys.argv[1:]]))
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
