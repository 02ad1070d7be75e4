"""The command: `nsqcy-pipeline JOB [FLAGS]`.

Exit codes:

    0  done; or SIGTERM or SIGINT has stopped a job that runs until it is stopped
    1  the job reported findings, failed, or was stopped before it finished: stderr gives the
       reason in one line
    2  the command line or the file could not be read
"""

import importlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import click

from nsqcy import __version__
from nsqcy.errors import UsageError
from nsqcy.options.option import suggestion
from nsqcy.pipeline.options import OUTPUT, Options, Table, parse, with_remedy
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.session import Missing
from nsqcy.spark.failures import reason
from nsqcy.util.standard_streams import guarded

JOBS = ("archive", "verify", "compact", "orphans", "replay", "rollup", "dlq", "stats", "doctor")
COMMAND = "nsqcy-pipeline"
CREDENTIALS = re.compile(r"://[^/@\s]+@")
ENDS = ("once", "polls")  # options without which a job runs until it is stopped


class Job(Protocol):
    """Interface of a job module."""

    HELP: str  # the first line is the summary
    OPTIONS: Table
    run: Callable[[Options, Report], int]


def load(name: str) -> Job:
    return cast(Job, importlib.import_module(f"nsqcy.pipeline.{name}"))


def table(name: str) -> Table:
    return (*load(name).OPTIONS, *OUTPUT)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(COMMAND, lambda: _run(words))


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), end="")
        return 0 if words else 2
    if words[0] in ("--version", "version"):
        print(f"{COMMAND} {__version__}")
        return 0
    name, *rest = words
    if name not in JOBS:
        return refuse(COMMAND, f"unknown job {name!r}{suggestion(name, JOBS)}")
    asked = threading.Event()  # to stop
    options = None
    try:
        options = parse(name, {each: table(each) for each in JOBS}, rest, load(name).HELP)
        json_lines = options["json"] or not os.isatty(1)
        with terminable(asked), Report(name, json_lines=json_lines) as report:
            return load(name).run(options, report)
    except click.exceptions.Exit:  # after the help
        return 0
    except UsageError as error:
        return refuse(f"{COMMAND} {name}", str(error))
    except Missing as error:
        return fail(name, str(error))
    except KeyboardInterrupt:
        return stopped(name, options)
    except Exception as error:
        if asked.is_set():  # an interrupted call to the JVM; nothing was partially written
            return stopped(name, options)
        code = fail(name, with_remedy(reason(error)))
        if options is not None and options["verbose"]:
            traceback.print_exception(error)
        return code


@contextmanager
def terminable(asked: threading.Event) -> Iterator[None]:
    """Make SIGTERM act like ^C, and set `asked`."""

    def interrupt(_number: int, _frame: object) -> None:
        asked.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def refuse(who: str, what: str) -> int:
    print(f"{who}: {without_credentials(what)}", file=sys.stderr)
    return 2


def stopped(name: str, options: Options | None) -> int:
    """Return the exit code of a job that a signal has stopped: a job with an end has not reached
    it."""
    flags = {option.flag for option in options.table} if options is not None else set()
    if options is not None and any(end in flags and not options[end] for end in ENDS):
        return 0
    return fail(name, "stopped before it finished; run the command again")


def fail(name: str, what: str) -> int:
    print(f"{COMMAND} {name}: {without_credentials(what)}", file=sys.stderr)
    return 1


def without_credentials(text: str) -> str:
    """Hide the user and password of a URL, such as `s3a://KEY:SECRET@bucket`."""
    return CREDENTIALS.sub("://***@", text)


def overview() -> str:
    width = max(map(len, JOBS)) + 2
    jobs = "\n".join(f"  {name:<{width}}{load(name).HELP.splitlines()[0]}" for name in JOBS)
    return f"Usage: {COMMAND} JOB [FLAGS]\n\n{jobs}\n\n{COMMAND} JOB --help shows a job's flags.\n"


if __name__ == "__main__":
    sys.exit(main())
