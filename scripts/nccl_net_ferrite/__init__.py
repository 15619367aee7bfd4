"""Programs that run NCCL on GPUs over Ferrite and over other networks: ab compares, ddp trains, matrix checks every operation, hang
plants hangs.

At run time the standard library is enough, but for the ranks that use PyTorch (ddp_rank.py, hang_rank.py).

    ab, ddp, matrix, hang    the programs; *_rank.py is what each rank of a run does
    nccl                     libnccl.so.2 and the CUDA driver, called through ctypes, and data whose origin can be told
    launch                   processes: ranks, their places, their environment
    the other files          what all of them use: files, exit codes, options, networks and what NCCL's log proves of them
"""
