#!/usr/bin/env python3
"""Starts the program ab of this repository; --help says what it does."""

import sys

from nccl_net_ferrite.ab import main

if __name__ == "__main__":
    sys.exit(main())
