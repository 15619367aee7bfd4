"""Exit codes of the programs, as the table in docs/operators.md has them, and the line on standard error that goes with each."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from .errors import Invalid
from .signals import raised_as_interrupt

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


def write_and_print(write: Callable[[], None], summary: str, folder: Path) -> None:
    """Writes a report into `folder`, then prints its summary. The summary is printed even if the report cannot be written, and the
    report is written even if standard output is closed."""
    failed = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write()
    except OSError as error:
        failed = error
    print(summary)
    if failed:
        raise Invalid(f"the report was not written to {folder}: {failed.strerror}") from failed
    print(f"report: {folder / 'report.md'}")
