"""The program matrix: every operation, protocol and algorithm of NCCL, the ways to GPU memory, a killed rank."""
