"""Signals that interrupt a program."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn


@contextlib.contextmanager
def raised_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP, which a launcher ends a process with, raise KeyboardInterrupt as Ctrl-C does. The ranks are in sessions of
    their own and do not get these signals: this process ends them."""

    def interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def blocked() -> Iterator[set[signal.Signals]]:
    """SIGINT, SIGTERM and SIGHUP wait until this is over. Yields the signals that were blocked before."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield {signal.Signals(number) for number in before}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
