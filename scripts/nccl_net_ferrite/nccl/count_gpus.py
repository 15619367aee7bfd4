"""Prints the number of GPUs that the CUDA driver (argument 1) sees, where argument 2 is NCCL's library."""

import sys

from .cuda import Driver
from .library import Library


def main() -> None:
    libcuda, libnccl = sys.argv[1:]
    Library(libnccl).version()
    print(Driver(libcuda).count())


if __name__ == "__main__":
    main()
