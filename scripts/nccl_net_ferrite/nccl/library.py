"""NCCL's library, as an application calls it."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .cuda import Cuda

FLOAT, SUM = 7, 0
IN_PROGRESS = 7
RESULTS = [
    "success",
    "unhandled CUDA error",
    "system error",
    "internal error",
    "invalid argument",
    "invalid usage",
    "remote error",
    "in progress",
]


class NcclError(Exception):
    """A call of NCCL failed, or an operation did while it ran."""

    def __init__(self, what: str, code: int, detail: str = ""):
        name = RESULTS[code] if code < len(RESULTS) else "unknown"
        super().__init__(f"{what}: {name} ({code}){': ' + detail if detail else ''}")
        self.code = code


class UniqueId(ctypes.Structure):
    """Names a communicator that is about to be made."""

    _fields_ = [("bytes", ctypes.c_char * 128)]


class Library:
    """libnccl.so.2 at some path."""

    def __init__(self, path: str):
        self.calls = ctypes.CDLL(path)
        self.calls.ncclGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.calls, name)(*arguments)
        if code:
            raise NcclError(name, code)

    def version(self) -> str:
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"

    def unique_id(self) -> bytes:
        unique_id = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique_id))
        return bytes(unique_id)

    def allocate(self, size: int) -> int:
        """Memory that is fit for registration."""
        at = ctypes.c_void_p()
        self.call("ncclMemAlloc", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value or 0

    def free(self, at: int) -> None:
        self.call("ncclMemFree", ctypes.c_void_p(at))


class Communicator:
    """Of rank `rank` among `world`; `unique_id` is the same for all of them."""

    def __init__(self, library: Library, cuda: Cuda, unique_id: bytes, rank: int, world: int):
        self.library, self.cuda, self.rank, self.world = library, cuda, rank, world
        self.handle = ctypes.c_void_p()
        library.call(
            "ncclCommInitRank",
            ctypes.byref(self.handle),
            ctypes.c_int(world),
            UniqueId.from_buffer_copy(unique_id),
            ctypes.c_int(rank),
        )
        self.checked_at = 0.0

    def start(self, name: str, *arguments: Any) -> None:
        self.library.call(name, *arguments, self.handle, self.cuda.stream)

    def all_reduce(self, given: int, got: int, count: int) -> None:
        self.start("ncclAllReduce", *pointers(given, got), ctypes.c_size_t(count), *numbers(FLOAT, SUM))

    def reduce(self, given: int, got: int, count: int, root: int) -> None:
        self.start("ncclReduce", *pointers(given, got), ctypes.c_size_t(count), *numbers(FLOAT, SUM, root))

    def broadcast(self, given: int, got: int, count: int, root: int) -> None:
        self.start("ncclBroadcast", *pointers(given, got), ctypes.c_size_t(count), *numbers(FLOAT, root))

    def all_gather(self, given: int, got: int, count: int) -> None:
        """`count` is what each rank gives."""
        self.start("ncclAllGather", *pointers(given, got), ctypes.c_size_t(count), *numbers(FLOAT))

    def reduce_scatter(self, given: int, got: int, count: int) -> None:
        """`count` is what each rank gets."""
        self.start("ncclReduceScatter", *pointers(given, got), ctypes.c_size_t(count), *numbers(FLOAT, SUM))

    def send(self, given: int, count: int, peer: int) -> None:
        self.start("ncclSend", *pointers(given), ctypes.c_size_t(count), *numbers(FLOAT, peer))

    def receive(self, got: int, count: int, peer: int) -> None:
        self.start("ncclRecv", *pointers(got), ctypes.c_size_t(count), *numbers(FLOAT, peer))

    @contextmanager
    def group(self) -> Iterator[None]:
        """Makes one operation of those that are started within it."""
        self.library.call("ncclGroupStart")
        yield
        self.library.call("ncclGroupEnd")

    def check(self) -> None:
        """Raises if an operation that was started has failed."""
        state = ctypes.c_int()
        self.library.call("ncclCommGetAsyncError", self.handle, ctypes.byref(state))
        if state.value not in (0, IN_PROGRESS):
            raise NcclError("while it ran", state.value)

    def wait(self, limit: float = 300.0) -> None:
        """Until all that was started is done."""

        def check_at_times() -> None:
            now = time.monotonic()
            if now - self.checked_at > 0.01:
                self.checked_at = now
                self.check()

        self.cuda.wait(check_at_times, limit)
        self.check()

    def register(self, at: int, size: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.library.call("ncclCommRegister", self.handle, ctypes.c_void_p(at), ctypes.c_size_t(size), ctypes.byref(handle))
        return handle

    def deregister(self, handle: ctypes.c_void_p) -> None:
        self.library.call("ncclCommDeregister", self.handle, handle)

    def abort(self) -> None:
        self.library.call("ncclCommAbort", self.handle)

    def destroy(self) -> None:
        self.library.call("ncclCommDestroy", self.handle)


def pointers(*addresses: int) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(at) for at in addresses]


def numbers(*values: int) -> list[ctypes.c_int]:
    return [ctypes.c_int(value) for value in values]
