"""PyTorch's own tests of torch.distributed over NCCL's transports."""
