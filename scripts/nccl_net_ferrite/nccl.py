"""libnccl.so.2 and the CUDA driver, called through ctypes: neither PyTorch nor a compiler is needed. And data whose origin can be told.

As a program it prints how many GPUs the driver (argument 1) sees, and the version of NCCL's library (argument 2); either may be ""."""

import array
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# -- the CUDA driver: a device, its memory, a stream. No call here stays inside of the driver for longer than a copy takes --

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

    def pci_bus_id(self, ordinal: int) -> str:
        """Of a GPU, such as 0000:3b:00.0."""
        text = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", text, ctypes.c_int(len(text)), ctypes.c_int(ordinal))
        return text.value.decode().lower()

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


# -- data that shows which rank it came from: whole numbers that repeat after a prime, so that no two pieces of a buffer are alike --

# Elements of a tile: a prime, so that pieces of 2^n elements all begin at different places of it. Sums over 1024 ranks are exact in
# float32.
TILE = 16381
ELEMENT = 4

libc = ctypes.CDLL(None)
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


def tile(ranks: list[int], phase: int = 0) -> "array.array[float]":
    """The sum of these ranks' data, from element `phase` on."""
    begins = [(phase + 977 * rank) % TILE for rank in ranks]
    return array.array("f", map(sum, zip(*([*range(begin, TILE), *range(begin)] for begin in begins))))


class DeviceData:
    """Fills and checks memory of the device, by way of a buffer of the host that the device can reach."""

    def __init__(self, cuda: Cuda, most: int):
        self.cuda, self.most = cuda, max(most, TILE * ELEMENT)
        self.host = cuda.allocate_host(self.most)
        self.tiles: dict[tuple[int, ...], array.array[float]] = {}

    def tile_of(self, ranks: list[int], phase: int) -> "array.array[float]":
        key = (*ranks, -1, phase % TILE)
        if key not in self.tiles:
            if len(self.tiles) > 64:
                self.tiles.clear()
            self.tiles[key] = tile(ranks, phase % TILE)
        return self.tiles[key]

    def fill(self, at: int, count: int, rank: int) -> None:
        """With `count` elements of `rank`'s data."""
        size = count * ELEMENT
        first = min(size, TILE * ELEMENT)
        ctypes.memmove(self.host, self.tile_of([rank], 0).buffer_info()[0], first)
        self.cuda.upload(at, self.host, first)
        done = first
        while done < size:
            more = min(done, size - done)
            self.cuda.copy(at + done, at, more)
            done += more
        self.cuda.wait()

    def difference(self, at: int, count: int, ranks: list[int], phase: int = 0) -> str:
        """Empty if there are `count` elements of the sum of `ranks`' data from element `phase` on; else what is wrong."""
        size = count * ELEMENT
        self.cuda.download(self.host, at, size)
        self.cuda.wait()
        right = self.tile_of(ranks, phase)
        first = min(size, TILE * ELEMENT)
        if libc.memcmp(self.host, right.buffer_info()[0], first):
            return self.quote(0, min(count, TILE), right)
        if size > first and libc.memcmp(self.host + first, self.host, size - first):
            return self.quote(0, count, right)
        return ""

    def quote(self, begin: int, count: int, right: "array.array[float]") -> str:
        """The first element that is wrong."""
        found = (ctypes.c_float * count).from_address(self.host)
        low, high = begin, count
        address = right.buffer_info()[0]
        # Whole tiles first: those before `low` are right.
        while low < high:
            part = min(TILE, high - low)
            if libc.memcmp(self.host + low * ELEMENT, address, part * ELEMENT):
                break
            low += part
        index = next((i for i in range(low, min(low + TILE, high)) if found[i] != right[i % TILE]), low)
        return f"element {index} of {count} is {found[index]:g}, not {right[index % TILE]:g}"


# -- NCCL's library, as an application calls it --

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


class Config(ctypes.Structure):
    """ncclConfig_t as it is since NCCL 2.17. Later releases have more at its end, and take defaults for that."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("blocking", "cgaClusterSize", "minCTAs", "maxCTAs")),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
    ]


def config_of(network: str) -> Config:
    """Everything as by default, but the network of that name."""
    undefined = -(1 << 31)
    return Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21700, *4 * [undefined], network.encode(), undefined)


class Library:
    """libnccl.so.2 at some path."""

    def __init__(self, path: str):
        self.calls = ctypes.CDLL(path)
        self.calls.ncclGetErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *arguments: Any, over: str = "") -> None:
        code = getattr(self.calls, name)(*arguments)
        if code:
            raise NcclError(name + over, code)

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
    """Of rank `rank` among `world`; `unique_id` is the same for all of them. It uses the network of that name, if there is one."""

    def __init__(self, library: Library, cuda: Cuda, unique_id: bytes, rank: int, world: int, network: str = ""):
        self.library, self.cuda, self.rank, self.world = library, cuda, rank, world
        self.over = f" over {network}" if network else ""
        self.handle = ctypes.c_void_p()
        init = f"ncclCommInitRank{'Config' if network else ''}"
        more = [ctypes.byref(config_of(network))] if network else []
        library.call(
            init,
            ctypes.byref(self.handle),
            ctypes.c_int(world),
            UniqueId.from_buffer_copy(unique_id),
            ctypes.c_int(rank),
            *more,
            over=self.over,
        )
        self.checked_at = 0.0

    def start(self, name: str, *arguments: Any) -> None:
        self.library.call(name, *arguments, self.handle, self.cuda.stream, over=self.over)

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
            raise NcclError(f"while it ran{self.over}", state.value)

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


# -- every operation of NCCL, in place and out of place: what each rank puts in, and what must come out --

# Whether there is a form of it in place, and whether it is NCCL_ALGO that decides how it is done.
OPERATIONS = {
    "all_reduce": (True, True),
    "reduce": (True, False),
    "broadcast": (True, False),
    "all_gather": (True, False),
    "reduce_scatter": (True, False),
    "send_recv": (False, False),
    "alltoall": (False, False),
}


class Operations:
    """Of one communicator, on two buffers of the device, at addresses `a` and `b`."""

    def __init__(self, comm: Communicator, data: DeviceData, a: int, b: int):
        self.comm, self.data, self.a, self.b = comm, data, a, b
        self.rank, self.world = comm.rank, comm.world
        self.all_ranks = list(range(self.world))
        self.root = self.world - 1

    def error(self, name: str, size: int, in_place: bool) -> str:
        """Does the operation once, on data that it fills in; what is wrong with the result, or ""."""
        elements = max(1, size // ELEMENT)
        operation: Callable[[int, int, bool], str] = getattr(self, name)
        return operation(elements, max(1, elements // self.world), in_place)

    def timed(self, name: str, size: int) -> tuple[Callable[[], None], int]:
        """The call of `name` as an application repeats it, all_reduce in place; and the bytes that it moves."""
        count = max(1, size // ELEMENT)
        each = max(1, count // self.world)
        calls = {
            "all_reduce": lambda: self.comm.all_reduce(self.a, self.a, count),
            "all_gather": lambda: self.comm.all_gather(self.a, self.b, each),
            "reduce_scatter": lambda: self.comm.reduce_scatter(self.a, self.b, each),
            "send_recv": lambda: self.shift(count),
            "alltoall": lambda: self.exchange(each),
        }
        is_split = name in ("all_gather", "reduce_scatter", "alltoall")
        return calls[name], (each * self.world if is_split else count) * ELEMENT

    def shift(self, count: int) -> None:
        """Sends to the next rank, receives from the one before."""
        with self.comm.group():
            self.comm.send(self.a, count, (self.rank + 1) % self.world)
            self.comm.receive(self.b, count, (self.rank - 1) % self.world)

    def exchange(self, each: int) -> None:
        with self.comm.group():
            for rank in self.all_ranks:
                self.comm.send(self.a + rank * each * ELEMENT, each, rank)
                self.comm.receive(self.b + rank * each * ELEMENT, each, rank)

    def prepare(self, at: int, count: int, got: int, got_count: int) -> None:
        """Our data into `at`, NaN into `got`."""
        if got_count:
            self.data.cuda.fill(got, 0xFF, got_count * ELEMENT)
        self.data.fill(at, count, self.rank)

    def check(self, *parts: tuple[int, int, list[int], int]) -> str:
        """Waits, then compares. `parts`: address, elements, ranks whose sum is expected, and from which of their elements on."""
        self.comm.wait()
        return next(filter(None, (self.data.difference(*part) for part in parts)), "")

    def all_reduce(self, count: int, _: int, in_place: bool) -> str:
        got = self.a if in_place else self.b
        self.prepare(self.a, count, got, 0 if in_place else count)
        self.comm.all_reduce(self.a, got, count)
        return self.check((got, count, self.all_ranks, 0))

    def reduce(self, count: int, _: int, in_place: bool) -> str:
        got = self.a if in_place else self.b
        self.prepare(self.a, count, got, 0 if in_place else count)
        self.comm.reduce(self.a, got, count, self.root)
        return self.check(*[(got, count, self.all_ranks, 0)] if self.rank == self.root else [])

    def broadcast(self, count: int, _: int, in_place: bool) -> str:
        got = self.a if in_place else self.b
        self.prepare(self.a, count, got, 0 if in_place else count)
        self.comm.broadcast(self.a, got, count, self.root)
        return self.check((got, count, [self.root], 0))

    def all_gather(self, _: int, each: int, in_place: bool) -> str:
        given = self.b + self.rank * each * ELEMENT if in_place else self.a
        self.prepare(given, each, self.b, each * self.world)
        self.comm.all_gather(given, self.b, each)
        return self.check(*[(self.b + rank * each * ELEMENT, each, [rank], 0) for rank in self.all_ranks])

    def reduce_scatter(self, _: int, each: int, in_place: bool) -> str:
        got = self.a + self.rank * each * ELEMENT if in_place else self.b
        self.prepare(self.a, each * self.world, got, 0 if in_place else each)
        self.comm.reduce_scatter(self.a, got, each)
        return self.check((got, each, self.all_ranks, self.rank * each))

    def send_recv(self, count: int, _: int, __: bool) -> str:
        self.prepare(self.a, count, self.b, count)
        self.shift(count)
        return self.check((self.b, count, [(self.rank - 1) % self.world], 0))

    def alltoall(self, _: int, each: int, __: bool) -> str:
        self.prepare(self.a, each * self.world, self.b, each * self.world)
        self.exchange(each)
        return self.check(*[(self.b + rank * each * ELEMENT, each, [rank], self.rank * each) for rank in self.all_ranks])


# -- prints the number of GPUs that the CUDA driver sees, and the version of NCCL's library --


def main() -> None:
    libcuda, libnccl = sys.argv[1:]
    version = Library(libnccl).version() if libnccl else "-"
    print(Driver(libcuda).count() if libcuda else 0, version)


if __name__ == "__main__":
    main()
