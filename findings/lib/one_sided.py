"""The one-sided operations of NCCL's built-in InfiniBand transport: one rank that puts to itself, over fabric.c."""

import ctypes
import mmap
from typing import Any

from nccl import Nccl

POINTER, SIZE, U64, U32, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_int


class Rank:
    def __init__(self, library: str) -> None:
        self.nccl = Nccl(library)
        version = INT()
        self.nccl.library.ncclGetVersion(ctypes.byref(version))
        # Up to 2.29 they are part of GIN and belong to the communicator; from 2.31 on they have flags.
        self._old, self._flags = version.value < 23000, [U32(0)] if version.value >= 23100 else []
        self._prefix = "ncclGinIbProxy" if self._old else "ncclRmaIbProxy"
        context, listening, self._coll, self._begin = POINTER(), POINTER(), POINTER(), POINTER()
        handle = ctypes.create_string_buffer(128)
        self._call(f"{self._prefix}Init", ctypes.byref(context), U64(1), None)
        self._call("ncclIbListen", context, INT(0), handle, ctypes.byref(listening))
        handles = (POINTER * 1)(ctypes.addressof(handle))
        extra = [INT(1), INT(0)] if self._old else []
        self._call("ncclGinIbConnect", context, handles, INT(1), INT(0), *extra, listening, ctypes.byref(self._coll))
        self._begin = self._coll
        if not self._old:
            self._begin = POINTER()
            self._call(f"{self._prefix}CreateContext", self._coll, (INT * 3)(1, -1, 1), ctypes.byref(self._begin))

    def window(self, size: int) -> tuple[mmap.mmap, Any]:
        """Memory that is allocated when it is first used, and its registration."""
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        address, window, unused = ctypes.addressof(ctypes.c_char.from_buffer(memory)), POINTER(), POINTER()
        extra = [ctypes.byref(unused)] if self._old else []
        self._call(f"{self._prefix}RegMrSym", self._coll, POINTER(address), SIZE(size), INT(1), U64(0), ctypes.byref(window), *extra)
        return memory, window

    def put(self, source: Any, target: Any, size: int, signals: Any = None) -> Any:
        """Begins a put, with a signal of 1 at the start of `signals`."""
        request, context = POINTER(), [] if self._old else [INT(0)]
        data = [self._begin, *context, U64(0), source, SIZE(size), U64(0), target, U32(0)]
        last = [INT(0)] if self._old else self._flags
        if signals is None:
            self._call(f"{self._prefix}IPut", *data, *last, ctypes.byref(request))
        else:
            strong = [] if self._old else [ctypes.c_bool(True)]
            self._call(f"{self._prefix}IPutSignal", *data, U64(0), signals, U64(1), U32(2), *strong, *last, ctypes.byref(request))
        return request

    def test(self, request: Any) -> str:
        """`done`, or the error that NCCL returns."""
        done = INT(0)
        for _ in range(1000):  # fabric.c executes a request at once
            result = self._result(f"{self._prefix}Test", self._coll, request, ctypes.byref(done))
            if result or done.value:
                return f"result {result}" if result else "done"
        return "not done"

    def _result(self, name: str, *arguments: Any) -> int:
        return int(self.nccl.function(name, INT)(*arguments))

    def _call(self, name: str, *arguments: Any) -> None:
        result = self._result(name, *arguments)
        if result:
            raise RuntimeError(f"{name}: result {result}")
