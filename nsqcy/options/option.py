"""Declaration of an option: name, kind, default, help and bounds; and the error for an invalid
value.

A kind parses a value from text and formats it: see `nsqcy.options.kinds` for our own options,
`nsqcy.config.options` for daemon options. Independent of command-line and file syntax, and of
particular options.

The classes are plain: dataclasses would import inspect, which takes a tenth of a daemon's startup
time.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, overload

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")

Value = bool | int | float | str | tuple[str, ...] | tuple[float, ...]


class Expected(ValueError):
    """Invalid text whose allowed values depend on the text itself. In all other cases, a kind
    raises a plain ValueError."""


class InvalidOption(ValueError):
    """An invalid option value. The text contains the option, the value and the allowed values."""

    def __init__(self, name: str, text: str, allowed: str) -> None:
        shown = "" if "secret" in f"{name}{text}".lower() else f" is {text!r}:"
        super().__init__(f"{name}{shown} expected {allowed}")


class Rule:
    """Bounds for a value: `--flag must be TEXT`."""

    __slots__ = ("holds", "text")

    def __init__(self, text: str, holds: Callable[..., bool]) -> None:
        self.text = text
        self.holds = holds

    @property
    def phrase(self) -> str:
        """The bounds after `must be` in a sentence; `text` is worded as in NSQ's errors."""
        return f"in {self.text}" if self.text.startswith("[") else self.text


class Kind(Generic[T]):
    """An option type: how each source writes a value, and how to format a value.

    values    allowed texts in a word or two, for help and documentation
    allowed   allowed texts, worded for the end of an error
    typed     the Python type of a value
    ini       parses the text in an INI file, if its syntax differs from the command line's
    toml      converts a value of a TOML file
    bare      whether the option without a value means true
    combine   joins the values of an option that may be given multiple times
    """

    __slots__ = ("allowed", "bare", "combine", "ini", "parse", "show", "toml", "typed", "values")

    def __init__(
        self,
        values: str,
        allowed: str,
        parse: Callable[[str], T],
        show: Callable[..., str] = str,
        *,
        typed: str = "str",
        ini: Callable[[str], T] | None = None,
        toml: Callable[[Any], T] | None = None,
        bare: bool = False,
        combine: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.values = values
        self.allowed = allowed
        self.parse = parse
        self.show = show
        self.typed = typed
        self.ini = ini
        self.toml: Callable[[Any], T] = toml or parse
        self.bare = bare
        self.combine = combine

    @property
    def many(self) -> bool:
        return self.combine is not None


class Option(Generic[T]):
    """One option, declared once; everything else is derived from this declaration.

    As a class attribute, it provides the typed value as an attribute of each object. The attribute
    has the name of the option.

    default       the value, or a function that returns it; None if there is none
    default_text  documentation of a default that differs from machine to machine
    example       the value that a sample file shows instead
    toml_key      its key in NSQ's own file, if different from its name
    in_file       whether a file may set it
    runtime       whether it may change while the daemon runs
    guard         whether it restricts access, so that a misplaced or misspelt one is an error
    notice        a warning if it is set, because it has no effect
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
        kind: Kind[T],
        default: T | Callable[[], T] | None,
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

    def __set_name__(self, owner: type, name: str) -> None:
        if name != self.name:
            raise TypeError(
                f"{owner.__name__}.{name} holds the option {self.name!r}: the attribute and the "
                "option must have the same name"
            )

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type) -> Self: ...

        @overload
        def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object, owner: type) -> Any:
        return self if instance is None else instance.__dict__[self.name]

    @property
    def default(self) -> Any:
        return self._default() if callable(self._default) else self._default

    def parse(self, text: str, name: str) -> T:
        """Return the value of `text`; raise InvalidOption, whose message refers to the option as
        `name`."""
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
        """Return text that parses to `value`."""
        return self.kind.show(value)


def suggestion(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return the end of an error about an unknown name: the most similar name, or all names."""
    import difflib  # slow to import, and daemons need it only for errors

    known = list(names)
    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; allowed: {', '.join(prefix + each for each in known)}"
