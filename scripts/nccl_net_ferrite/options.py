"""Types of command-line options that several programs have."""

import argparse
from collections.abc import Callable


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
