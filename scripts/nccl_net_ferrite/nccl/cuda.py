"""The CUDA driver: a device, its memory, a stream. No call here stays inside of the driver for longer than a copy takes."""

import ctypes
import time
from collections.abc import Callable
from typing import Any

NOT_READY = 600
NON_BLOCKING = 1


class CudaError(Exception):
    """A call of the driver failed."""


class Driver:
    """The library itself."""

    def __init__(self, library: str):
        self.driver = ctypes.CDLL(library)

    def count(self) -> int:
        """GPUs of this machine."""
        self.call("cuInit", ctypes.c_uint(0))
        found = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.driver, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'').decode() or 'error'} ({code})")


class Cuda(Driver):
    """Device `ordinal` modulo their number, its primary context current to this thread."""

    def __init__(self, library: str, ordinal: int):
        super().__init__(library)
        count = self.count()
        if count == 0:
            raise CudaError(f"{library} sees no GPU")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal % count))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        self.name = name.value.decode()
        self.stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(self.stream), ctypes.c_uint(NON_BLOCKING))

    def allocate(self, size: int) -> int:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def allocate_host(self, size: int) -> int:
        """Memory of this process that the device reads and writes by itself."""
        at = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(size), ctypes.c_uint(0))
        return at.value or 0

    def fill(self, at: int, byte: int, size: int) -> None:
        self.call("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(byte), ctypes.c_size_t(size), self.stream)

    def upload(self, at: int, host: int, size: int) -> None:
        self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), ctypes.c_void_p(host), ctypes.c_size_t(size), self.stream)

    def download(self, host: int, at: int, size: int) -> None:
        self.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(host), ctypes.c_uint64(at), ctypes.c_size_t(size), self.stream)

    def copy(self, to: int, at: int, size: int) -> None:
        self.call("cuMemcpyDtoDAsync_v2", ctypes.c_uint64(to), ctypes.c_uint64(at), ctypes.c_size_t(size), self.stream)

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), ctypes.c_uint(0))
        return made

    def record(self, event: ctypes.c_void_p) -> None:
        """Notes the time when the stream gets here."""
        self.call("cuEventRecord", event, self.stream)

    def elapsed_us(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Between two events that have passed."""
        milliseconds = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value * 1000

    def is_idle(self) -> bool:
        code: int = self.driver.cuStreamQuery(self.stream)
        if code not in (0, NOT_READY):
            self.call("cuStreamQuery", self.stream)
        return code == 0

    def wait(self, check: Callable[[], None] = lambda: None, limit: float = 300.0) -> None:
        """Until the stream is idle. `check` is called before each pause, and may raise."""
        begin = time.monotonic()
        while not self.is_idle():
            waited = time.monotonic() - begin
            if waited > limit:
                raise CudaError(f"the stream is not idle after {limit:.0f} s")
            check()
            time.sleep(0.0 if waited < 0.002 else 0.0005)
