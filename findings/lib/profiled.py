"""Communicators that have nothing but a profiler (profiler.c)."""

import ctypes
import os
import struct

from nccl import Nccl


class Profiled:
    def __init__(self, library: str, count: int) -> None:
        self._nccl = Nccl(library)
        self._communicators = [ctypes.create_string_buffer(8 << 20) for _ in range(count)]
        # It stays in the process even if NCCL unloads it.
        contexts = (ctypes.c_int * 8).in_dll(ctypes.CDLL(os.environ["NCCL_PROFILER_PLUGIN"]), "contexts")
        self._contexts = [ctypes.addressof(contexts) + 4 * i for i in range(8)]

    def begin(self, index: int) -> None:
        self._call("ncclProfilerPluginInit", self._communicators[index], f"init for {index}")

    def end(self, index: int) -> None:
        self._call("ncclProfilerPluginFinalize", self._communicators[index], f"end of {index}")

    def event(self, index: int) -> None:
        """One event of the kind ProxyCtrl, with the context that the communicator holds."""
        content, handle = self._communicators[index].raw, ctypes.c_void_p()
        held = [context for context in self._contexts if struct.pack("<Q", context) in content]
        if held:
            self._call("ncclProfilerStartProxyCtrlEvent", ctypes.c_void_p(held[0]), "event", ctypes.byref(handle))

    def _call(self, name: str, first: object, what: str, *others: object) -> None:
        function = self._nccl.function(name, ctypes.c_int, *[ctypes.c_void_p] * (1 + len(others)))
        result = function(first, *others)
        ctypes.CDLL(None).fflush(None)
        if result:
            print(f"{what}: result {result}", flush=True)
