"""How the programs of this folder end: one table of exit codes, and words for whoever reads standard error."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from .plan import Invalid

# The README's table. GOOD: as good or better, all right. WRONG: worse, or a check that failed. INVALID: bad usage, or it could not
# be tried. UNTOLD: too few runs to tell.
GOOD, WRONG, INVALID, UNTOLD, INTERRUPTED = 0, 1, 2, 3, 130


def exit_code(run: Callable[[], int]) -> int:
    """What `run` returns; INVALID or INTERRUPTED, with a line that says why, if it did not get to its end."""
    try:
        with interruptible():
            code = run()
            sys.stdout.flush()
            return code
    except Invalid as why:
        print(f"not valid: {why}", file=sys.stderr)
        return INVALID
    except OSError as error:
        # Of standard output, or a file that is not the user's choice. What Python still holds back would fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"not valid: the result could not be told: {error}", file=sys.stderr)
        return INVALID
    except KeyboardInterrupt as why:
        print(f"interrupted: {str(why) or 'no report'}; no process of this run is left", file=sys.stderr)
        return INTERRUPTED
    except Exception as why:
        # Python would end with 1, which is WRONG.
        traceback.print_exc()
        print(f"not valid: {why!r}", file=sys.stderr)
        return INVALID


@contextlib.contextmanager
def telling(what: str, folder: Path) -> Iterator[None]:
    """Writes a report, then says `what` it has: neither a full disk nor a reader of standard output who has gone takes the other."""
    failed = None
    try:
        yield
    except OSError as error:
        failed = error
    print(what)
    if failed:
        raise Invalid(f"the report was not written to {folder}: {failed.strerror}") from failed
    print(f"report: {folder / 'report.md'}")


@contextlib.contextmanager
def interruptible():
    """A launcher that ends this process is answered as Ctrl-C is: the ranks have sessions of their own, and get no signal."""
    def interrupt(*_):
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
def undisturbed() -> Iterator[set]:
    """Signals that would interrupt wait until this is over. Gives what was held back before."""
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
