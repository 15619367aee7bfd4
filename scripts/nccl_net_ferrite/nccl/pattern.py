"""Data that shows which rank it came from: whole numbers that repeat after a prime, so that no two pieces of a buffer are alike.

A buffer is a tile, over and over. To check it, its first tile is compared with what it must be and the rest with itself, one
tile further on: two comparisons at the speed of memory, whatever the size.
"""

import array
import ctypes

from .cuda import Cuda

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
