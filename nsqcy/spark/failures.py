"""A query's failure as one line, for programs that run queries.

Owns the search for that line in what Spark raises. Imports neither pyspark nor pyarrow.
"""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

TRACEBACK = "Traceback (most recent call last)"
# PySpark logs some errors here, with their JVM stack, before it raises them.
_LOGGER = "SQLQueryContextLogger"


def reason(error: BaseException) -> str:
    """Return an error as one line: the source's own message, or the end of the Python traceback
    that Spark passes on."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line[line.index("nsq: ") :] for line in lines if "nsq: " in line]
    if ours:
        return ours[-1]
    if any(TRACEBACK in line for line in lines):
        raised = [line for line in lines if re.match(r"[A-Za-z_][\w.]*: \S", line)]
        if raised:
            name, _, text = raised[-1].partition(": ")
            return text if name.startswith("nsqcy.") else raised[-1]
    return lines[0] if lines else type(error).__name__


def quiet_pyspark() -> None:
    """Let PySpark raise errors without logging them first."""
    logging.getLogger(_LOGGER).setLevel(logging.CRITICAL)


@contextmanager
def one_line_errors(*, verbose: bool = False) -> Iterator[None]:
    """Print an error as one line on stderr, and exit with status 1.

    verbose: print the traceback after that line
    """
    quiet_pyspark()
    try:
        yield
    except Exception as error:
        print(reason(error), file=sys.stderr)
        if verbose:
            traceback.print_exception(error)
        raise SystemExit(1) from None
