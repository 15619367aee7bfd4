"""Exit codes of the programs, as the table in docs/operate.md has them, and the line on standard error that goes with each."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

# -- the error that all programs end with when there is no result --


class Invalid(Exception):
    """The program cannot do what it was asked to, or the result proves nothing. The text says why. Exit code 2."""


# -- signals that interrupt a program --


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


# -- exit codes of the programs, as the table in docs/operate.md has them, and the line on standard error that goes with each --

# GOOD: as good or better, all right. WRONG: worse, or a check that failed. INVALID: bad usage, or it could not be tried.
# TOO_FEW_RUNS: too few runs to tell.
GOOD, WRONG, INVALID, TOO_FEW_RUNS, INTERRUPTED = 0, 1, 2, 3, 130


def of_program(run: Callable[[], int]) -> int:
    """What `run` returns; INVALID or INTERRUPTED, with a line that says why, if it did not get to its end."""
    try:
        with raised_as_interrupt():
            code = run()
            sys.stdout.flush()
            return code
    except Invalid as why:
        print(f"not valid: {why}", file=sys.stderr)
        return INVALID
    except OSError as error:
        # Of standard output, or of a file that the user did not name. Flushing what is buffered would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"not valid: the result could not be printed: {error}", file=sys.stderr)
        return INVALID
    except KeyboardInterrupt as why:
        print(f"interrupted: {str(why) or 'no report'}; no process of this run is left", file=sys.stderr)
        return INTERRUPTED
    except Exception as why:
        # Python would end with 1, which is WRONG.
        traceback.print_exc()
        print(f"not valid: {why!r}", file=sys.stderr)
        return INVALID
