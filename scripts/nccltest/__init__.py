"""The parts of scripts/matrix.py. Python's standard library only: NCCL and the CUDA driver are called through ctypes."""
