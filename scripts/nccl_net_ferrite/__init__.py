"""Programs that run NCCL on GPUs over Ferrite and over other networks: ab compares, ddp trains, matrix checks every operation.

At run time the standard library is enough, but for the ranks that use PyTorch (ab/torch_rank.py, ddp/rank.py, ddp/model.py).

    ab, ddp, matrix      one folder for each program; command.py has its options
    nccl                 libnccl.so.2 and the CUDA driver, called through ctypes, and data whose origin can be told
    launch               processes: ranks, their places, their environment
    the other files      what all of them use: errors, exit codes, signals, what NCCL's log proves, pictures
"""
