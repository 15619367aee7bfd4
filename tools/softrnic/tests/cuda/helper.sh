#!/bin/sh
# Stands for the program `softrnic` in SOFTRNIC_GPU_HELPER: the same, on the CUDA driver that the process which starts it has built.
LD_PRELOAD="$SOFTRNIC_TEST_DRIVERS/fake-cuda-$PPID.so" exec "$SOFTRNIC_TEST_PROGRAM" "$@"
