"""The parts of scripts/ab.py. Python's standard library only, but for worker.py, which needs the torch that is compared."""
