"""Options of command lines and their types, sizes among them: 8, 4K, 1M, 1G, as reports write them too."""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from . import repository

# -- sizes in bytes, as options and reports write them: 8, 4K, 1M, 1G --

SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    digits = text.rstrip("KMG")
    suffix = text[len(digits) :]
    if not digits.isdigit() or suffix not in SUFFIXES or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 8, 4K, 1M or 1G")
    return int(digits) * SUFFIXES[suffix]


def parse_sizes(text: str) -> list[int]:
    """A list, or a range in steps of four, both ends included."""
    first, dots, last = text.partition("..")
    if not dots:
        return sorted({parse_size(part) for part in text.split(",")})
    low, high = parse_size(first), parse_size(last)
    if low > high:
        raise argparse.ArgumentTypeError(f"{text!r}: the first size must not be above the last")
    found = []
    while low < high:
        found.append(low)
        low *= 4
    return [*found, high]


def size_text(size: int) -> str:
    for suffix, factor in reversed(SUFFIXES.items()):
        if size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)


# -- command-line options that several programs have, and types of options --


def parser(about: str) -> argparse.ArgumentParser:
    """Of a program, `about` which this is the help. It shows the program of the repository, `scripts/NAME.py`; the one of the package is
    started in another way, and its help shows that."""
    if Path(sys.argv[0]).name.startswith("nccl-net-ferrite "):
        about = re.sub(r"python scripts/(\w+)\.py", r"nccl-net-ferrite \1", about)
        about = re.sub(r"\bscripts/(\w+)\.py", r"-m nccl_net_ferrite \1", about)
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def number(low: int, high: int) -> Callable[[str], int]:
    """From `low` to `high`, both included."""

    def parse(text: str) -> int:
        if not text.isdigit() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{text!r} must be a number from {low} to {high}")
        return int(text)

    return parse


def variable(text: str) -> tuple[str, str]:
    """NAME=VALUE, of the environment."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value


def add_gdr(parser: argparse.ArgumentParser, text: str) -> None:
    """--gdr, with `text` as its help."""
    parser.add_argument("--gdr", choices=["as-is", "on", "off"], default="as-is", help=text)


def add_both(parser: argparse.ArgumentParser, runs: str) -> None:
    """--both, for variables of the `runs` that are compared."""
    parser.add_argument(
        "--both", type=variable, action="append", default=[], metavar="NAME=VALUE", help=f"a variable for {runs}; may be repeated"
    )


def add_softrnic(parser: argparse.ArgumentParser, text: str = "on the software device in DIR") -> None:
    """--softrnic, with `text` as its help."""
    parser.add_argument("--softrnic", nargs="?", type=Path, const=repository.SOFTRNIC, metavar="DIR", help=text)


def add_limit(parser: argparse.ArgumentParser, least: int, default: int, of: str) -> None:
    """--limit: at least so many seconds `of` what is given up after them."""
    parser.add_argument("--limit", type=number(least, 86400), default=default, help=f"seconds for {of}; default {default}")


def add_out(parser: argparse.ArgumentParser, folder: str) -> None:
    """--out: a folder for the report, by default `folder`."""
    parser.add_argument("--out", type=Path, default=Path(folder), help=f"folder for the report; default {folder}")
