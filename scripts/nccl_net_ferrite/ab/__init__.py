"""The program ab: Ferrite against NCCL's built-in IB transport."""
