"""The pages under /debug/pprof, which show the internals of a running process."""

from collections.abc import Callable
from typing import Any, Protocol

from nsqcy.config.options import parse_int
from nsqcy.errors import HttpError
from nsqcy.http.parser import HTML, Reply
from nsqcy.http.router import Handler, Request, Route
from nsqcy.util.debug import NoProfiler, ProfilerBusy, ProfilerFailed

MAX_PROFILE = 300  # seconds


class Inspected(Protocol):
    """The part of the daemon that the handlers use."""

    def command_line(self) -> str:
        """Return the daemon's command line, with a NUL between arguments."""

    def inspect(self, what: str) -> str:
        """Return the results of `debug.tell(what)` from all processes."""

    def profile(self, seconds: int) -> str:
        """Record a profile of this process. Raises the errors that `debug.Profiler` raises."""


def routes(index: str, inspected: Callable[[Any], Inspected]) -> list[Route]:
    """Return the routes, with the index page at `index`. `inspected` returns the daemon of an
    Api."""

    def page(path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(method, path, handler, plain=True, logged=False, local=True)

    def told(what: str) -> Handler:
        return lambda api, request: inspected(api).inspect(what)

    below = "/debug/pprof/"
    return [
        page(index, _index),
        page(below + "cmdline", lambda api, request: inspected(api).command_line()),
        page(below + "symbol", _symbol),
        page(below + "symbol", _symbol, "POST"),
        page(below + "goroutine", told("stacks")),
        page(below + "heap", told("memory")),
        page(below + "threadcreate", told("threads")),
        page(below + "block", _block),
        page(below + "profile", lambda api, request: _profile(inspected(api), request)),
    ]


def _index(api: Any, request: Request) -> Reply:
    return Reply(200, _PAGE.encode(), HTML, nsq=False, logged=False)


_PAGE = """\
<html><head><title>/debug/pprof/</title><base href="/debug/pprof/"></head><body>
<ul>
<li><a href="cmdline">cmdline</a>: the command line</li>
<li><a href="goroutine">goroutine</a>: stacks of all greenlets and threads</li>
<li><a href="heap">heap</a>: memory statistics</li>
<li><a href="threadcreate">threadcreate</a>: threads</li>
<li><a href="profile?seconds=5">profile</a>: where the process spends its time in Python</li>
</ul>
</body></html>
"""


def _symbol(api: Any, request: Request) -> str:
    return "num_symbols: 1\n"


def _block(api: Any, request: Request) -> str:
    return (
        "Blocking is not profiled; /debug/pprof/goroutine shows what each greenlet is waiting "
        "for.\n"
    )


def _profile(inspected: Inspected, request: Request) -> str:
    try:
        seconds = parse_int(request.params.get("seconds", ""))
    except ValueError:
        seconds = 0
    if seconds <= 0:
        seconds = 30
    if seconds > MAX_PROFILE:
        raise HttpError(400, f"seconds must not exceed {MAX_PROFILE}")
    try:
        return inspected.profile(seconds)
    except NoProfiler:
        raise HttpError(501, 'no profiler is installed: pip install "nsqcy[debug]"') from None
    except ProfilerBusy:
        raise HttpError(500, "another profile is running") from None
    except ProfilerFailed as error:
        raise HttpError(500, str(error)) from None
