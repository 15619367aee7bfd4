#!/bin/sh
# Stands for the program `softrnic` in SOFTRNIC_GPU_HELPER: the same, on the CUDA driver of the tests.
LD_PRELOAD="$SOFTRNIC_TEST_DRIVER" exec "$SOFTRNIC_TEST_PROGRAM" "$@"
