"""One option: its name, kind, default, help and bounds, and the error for a value it cannot have.

Owns no grammar of a command line or a file, and no particular option. A kind reads one value from
text and shows it; `nsqcy.options.kinds` and `nsqcy.config.options` have the kinds there are.

dataclasses would import inspect and cost a tenth of a daemon's start, so the classes are plain.
"""

from collections.abc import Callable, Iterable
from typing import Any

Value = bool | int | float | str | tuple[str, ...] | tuple[float, ...]


class Expected(ValueError):
    """What a kind expects instead of a text, if `Kind.allowed` does not say it all."""


class InvalidOption(ValueError):
    """A value that an option cannot have: the option as the user wrote it, and what is allowed."""

    def __init__(self, name: str, text: str, allowed: str) -> None:
        shown = "" if "secret" in f"{name}{text}".lower() else f" is {text!r}:"
        super().__init__(f"{name}{shown} expected {allowed}")


class Rule:
    """What a value must be beyond its kind: `--flag must be TEXT`."""

    __slots__ = ("holds", "text")

    def __init__(self, text: str, holds: Callable[..., bool]) -> None:
        self.text = text
        self.holds = holds


class Kind:
    """A type of option: how each source writes a value, and how a value is shown.

    values    what a text may be, in a word or two, for help and documentation
    allowed   the same to end an error with
    typed     the type of a value in Python
    ini       reads the text of an INI file, where it differs from the command line's
    toml      reads a value of a TOML file
    bare      whether the option alone, without a value, means true
    combine   joins the values of an option that may be given many times
    """

    __slots__ = ("allowed", "bare", "combine", "ini", "parse", "show", "toml", "typed", "values")

    def __init__(
        self,
        values: str,
        allowed: str,
        parse: Callable[[str], Any],
        show: Callable[..., str] = str,
        *,
        typed: str = "str",
        ini: Callable[[str], Any] | None = None,
        toml: Callable[[Any], Any] | None = None,
        bare: bool = False,
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.values = values
        self.allowed = allowed
        self.parse = parse
        self.show = show
        self.typed = typed
        self.ini = ini
        self.toml: Callable[[Any], Any] = toml or parse
        self.bare = bare
        self.combine = combine

    @property
    def many(self) -> bool:
        return self.combine is not None


class Option:
    """One option, declared once; everything else about it is derived.

    default       the value, or what finds it out on this machine; None: there is none
    default_text  how the documents put a default that differs from machine to machine
    example       what they show in its stead
    toml_key      its key in NSQ's own file, where that is not its name
    in_file       whether a file may set it
    runtime       whether it may change while the daemon runs
    guard         whether a mistake may leave a door open: it must not be ignored
    notice        a warning for whoever sets it, as it has no effect
    """

    __slots__ = (
        "_default",
        "default_text",
        "example",
        "flag",
        "guard",
        "help",
        "in_file",
        "kind",
        "name",
        "notice",
        "rule",
        "runtime",
        "toml_key",
    )

    def __init__(
        self,
        flag: str,
        kind: Kind,
        default: Any,
        help: str,
        *,
        default_text: str = "",
        example: Value = "",
        toml_key: str = "",
        rule: Rule | None = None,
        in_file: bool = True,
        runtime: bool = False,
        guard: bool = False,
        notice: str = "",
    ) -> None:
        self.flag = flag
        self.name = flag.replace("-", "_")
        self.toml_key = toml_key or self.name
        self.kind = kind
        self._default = default
        self.default_text = default_text
        self.example = example
        self.help = help
        self.rule = rule
        self.in_file = in_file
        self.runtime = runtime
        self.guard = guard
        self.notice = notice

    @property
    def default(self) -> Any:
        return self._default() if callable(self._default) else self._default

    def parse(self, text: str, name: str) -> Any:
        """Return the value of `text`; raise InvalidOption, which calls the option `name`."""
        try:
            value = self.kind.parse(text)
        except Expected as expected:
            raise InvalidOption(name, text, str(expected)) from None
        except ValueError:
            raise InvalidOption(name, text, self.kind.allowed) from None
        if self.rule and not self.rule.holds(value):
            raise InvalidOption(name, text, self.rule.text)
        return value

    def show(self, value: Any) -> str:
        """`value` as text that gives it back."""
        return self.kind.show(value)


def suggestion(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the name that was meant, or all there are, to end an error with."""
    import difflib  # costs a daemon's start more than this module

    known = list(names)
    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; there are {', '.join(prefix + each for each in known)}"
