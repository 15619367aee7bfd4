"""scripts/heap.py."""

import unittest

import heap


class Heap(unittest.TestCase):
    def test_memory_is_the_first_librarys_from_inside_out(self) -> None:
        lines = ["[root]", "0x1: malloc (in /x/vgpreload_dhat.so)", "0x2: create_qp (in /x/libibverbs.so.1)",
                 "0x3: connect (in /x/libnccl-net.so)", "0x4: ncclIbMalloc (alloc.h:262)", "0x5: main (in /x/ferrite)"]  # fmt: skip

        def told(device: int, plugin: int, other: int) -> dict[str, object]:
            stacks = [([1, 2, 3, 5], device), ([1, 3, 5], plugin), ([1, 4, 5], plugin), ([1, 5], other)]
            return {"ftbl": lines, "pps": [{"fs": stack, "gb": size} for stack, size in stacks]}

        text = heap.report(told(100, 10, 1), told(500, 90, 1), 4)
        rows = [row.split() for row in text.splitlines()]
        self.assertEqual(rows[:3], [["100", "B", "device"], ["40", "B", "transport"], ["0", "B", "other"]])
        self.assertEqual(rows[3], ["100", "B", "device:", "create_qp", "(in", "/x/libibverbs.so.1)"])


if __name__ == "__main__":
    unittest.main()
