"""A query's failure as one line, for programs that run queries.

Owns the search for that line in Spark's exceptions. Imports neither pyspark nor pyarrow.
"""

import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

TRACEBACK = "Traceback (most recent call last)"
JAVA_CALL = re.compile(r"An error occurred while calling \S+\.\n: ([\w.$]+)(?:: (.+))?")
STREAM = re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ")
SQLSTATE = re.compile(r" SQLSTATE: \w{5}(?:; line \d+ pos \d+;?)?")
# PySpark logs some errors here, with their JVM stack, before it raises them.
_LOGGER = "SQLQueryContextLogger"


def reason(error: BaseException) -> str:
    """Return an error as one line: the source's own message, the end of the Python traceback that
    Spark passes on, or Spark's message without the ids of the query."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    text = str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    ours = [line[line.index("nsq: ") :].strip() for line in lines if "nsq: " in line]
    if ours:
        return ours[-1]
    if raised := _raised(lines):
        name, _, message = raised.partition(": ")
        if name.startswith("py4j.") and (cause := _cause(lines)):
            return cause
        return message if message and name.startswith("nsqcy.") else raised
    if found := JAVA_CALL.match(text):
        return found[2] or found[1]
    if not lines:
        return type(error).__name__
    return SQLSTATE.sub("", STREAM.sub("", lines[0].strip()))


def _cause(lines: list[str]) -> str:
    """Return the JVM's innermost error; empty if there is none."""
    found = [line.partition("Caused by: ")[2] for line in lines if "Caused by: " in line]
    _, _, message = found[-1].partition(": ") if found else ("", "", "")
    return message or (found[-1] if found else "")


def _raised(lines: list[str]) -> str:
    """Return the line after the last Python traceback; empty if there is none."""
    starts = [number for number, line in enumerate(lines) if TRACEBACK in line]
    if not starts:
        return ""
    after = (line for line in lines[starts[-1] + 1 :] if not line[0].isspace())
    return next(after, "")


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
