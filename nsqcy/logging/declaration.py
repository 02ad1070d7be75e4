"""Declaration of a log event: a function that returns its line.

The decorators here turn the function into an `Event`, which is called with a log:

    @warn(NSQD)
    def worker_died(how: str, /, *, worker: int, code: int) -> str:
        \"\"\"A worker exited; `code` is its exit code.\"\"\"
        return f"worker {worker}: {how}"

    events.worker_died(log, describe(code), worker=index, code=code)

The keyword parameters are the event's fields; those before the slash appear only in the text. Knows
nothing about single events: those are in nsqcy.logging.events.
"""

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from nsqcy.logging.types import FatalLines, Lines

P = ParamSpec("P")
L = TypeVar("L", bound=Lines, contravariant=True)


class Event(Generic[L, P]):
    """A log event; `of` is the daemon that logs it."""

    __slots__ = ("_text", "level", "of")

    def __init__(self, level: str, of: str, text: Callable[P, str]) -> None:
        self.level = level
        self.of = of
        self._text = text

    def __call__(self, log: L, /, *parts: P.args, **fields: P.kwargs) -> None:
        write = getattr(log, self.level)
        write(self._text(*parts, **fields), event=self.name, **fields)

    @property
    def name(self) -> str:
        return self._text.__name__

    @property
    def fields(self) -> tuple[str, ...]:
        return self._parameters()[1]

    @property
    def text(self) -> str:
        """The line, with … for variable parts."""
        parts, fields = self._parameters()
        blank: Any = _Blank()
        return str(self._text(*[blank for _ in parts], **dict.fromkeys(fields, blank)))

    @property
    def meaning(self) -> str:
        return " ".join((self._text.__doc__ or "").split())

    def _parameters(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the parts of the text, and of the fields."""
        code: Any = self._text.__code__
        names = code.co_varnames
        first = code.co_argcount
        return names[:first], names[first : first + code.co_kwonlyargcount]


class _Blank:
    """Stands for a value in the text of an event."""

    __slots__ = ()

    def __str__(self) -> str:
        return "…"

    def __format__(self, spec: str) -> str:
        return "…"


def info(of: str) -> Callable[[Callable[P, str]], Event[Lines, P]]:
    return lambda text: Event("info", of, text)


def warn(of: str) -> Callable[[Callable[P, str]], Event[Lines, P]]:
    return lambda text: Event("warn", of, text)


def error(of: str) -> Callable[[Callable[P, str]], Event[Lines, P]]:
    return lambda text: Event("error", of, text)


def fatal(of: str) -> Callable[[Callable[P, str]], Event[FatalLines, P]]:
    return lambda text: Event("fatal", of, text)
