"""python -m nccl_net_ferrite.package."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
