"""Sizes in bytes, as options and reports write them: 8, 4K, 1M, 1G."""

import argparse

SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse(text: str) -> int:
    digits = text.rstrip("KMG")
    suffix = text[len(digits) :]
    if not digits.isdigit() or suffix not in SUFFIXES or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 8, 4K, 1M or 1G")
    return int(digits) * SUFFIXES[suffix]


def parse_list(text: str) -> list[int]:
    """A list, or a range in steps of four, both ends included."""
    first, dots, last = text.partition("..")
    if not dots:
        return sorted({parse(part) for part in text.split(",")})
    low, high = parse(first), parse(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r}: the first size must not be above the last")
    found = []
    while low < high:
        found.append(low)
        low *= 4
    return [*found, high]


def text_of(size: int) -> str:
    for suffix, factor in reversed(SUFFIXES.items()):
        if size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
