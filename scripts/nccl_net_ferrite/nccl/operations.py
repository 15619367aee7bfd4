"""Every operation of NCCL, in place and out of place: what each rank puts in, and what must come out."""

from collections.abc import Callable

from .library import Communicator
from .pattern import ELEMENT, DeviceData

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
