"""libnccl.so.2 and the CUDA driver, called through ctypes: neither PyTorch nor a compiler is needed."""
