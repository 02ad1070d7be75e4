"""Kinds of option values, and the table type for a daemon's options.

Owns the parsing of one value of each kind, from Go's command line, an INI file or TOML. Independent
of particular options (each daemon has its own table) and of flag syntax (config/flags.py); reads no
files (config/configuration_file.py).
"""

import operator
import re
from collections.abc import Iterator, Mapping, Sequence

from nsqcy.config import durations
from nsqcy.config.durations import parse_duration
from nsqcy.logging import logger
from nsqcy.names import quote
from nsqcy.options.option import Kind, Option, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

_INT64 = 1 << 63

# --- one value, from text ---------------------------------------------------------------------

TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
# Compiled on first use, because a daemon that is started with few flags needs none of them.
_INTEGER = (
    r"[+-]?(?:0[xX](?:_?[0-9a-fA-F])+|0[oO]?(?:_?[0-7])+|0[bB](?:_?[01])+|[1-9](?:_?[0-9])*|0)"
)
_FLOAT = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"

TLS_NOT_REQUIRED, TLS_REQUIRED_EXCEPT_HTTP, TLS_REQUIRED = range(3)
_TLS_REQUIRED_NAMES = ("false", "tcp-https", "true")
# Empty is the default and does not request a version.
_TLS_VERSIONS = {"": 0, "tls1.0": 769, "tls1.1": 770, "tls1.2": 771, "tls1.3": 772}


def parse_bool(text: str) -> bool:
    if text in TRUE:
        return True
    if text in FALSE:
        return False
    raise ValueError("parse error")


def parse_int(text: str) -> int:
    """Parse a Go integer literal: decimal, 0x, 0o, 0b, leading-zero octal, underscores."""
    # No int64 needs more digits; int() would refuse 4,300 digits with its own error text.
    if len(text) > 200 or re.fullmatch(_INTEGER, text) is None:
        raise ValueError("parse error")
    digits = text.lstrip("+-")
    octal = re.match("0[0-9_]", digits)
    number = int(digits.replace("_", ""), 8) if octal else int(digits, 0)
    return int64(-number if text[0] == "-" else number)


def int64(number: int) -> int:
    if not -_INT64 <= number < _INT64:
        raise ValueError("value out of range")
    return number


def parse_strings(text: str) -> tuple[str, ...]:
    """Return one occurrence of a list flag as a single element, even if it contains commas."""
    return (text,)


def parse_floats(text: str) -> tuple[float, ...]:
    return tuple(parse_float(part) for part in text.split(","))


def parse_float(text: str) -> float:
    number = float(text) if re.fullmatch(_FLOAT, text) else float("inf")
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"Could not parse: {text}")
    return number


def parse_level(text: str) -> int:
    try:
        return logger.LEVELS[text.lower()]
    except KeyError:
        raise ValueError(f"invalid log level {quote(text)}") from None


def parse_tls_required(text: str) -> int:
    text = text.lower()
    if text == "tcp-https":
        return TLS_REQUIRED_EXCEPT_HTTP
    return TLS_REQUIRED if parse_bool(text) else TLS_NOT_REQUIRED


def parse_tls_version(text: str) -> int:
    """Return TLS's own number for a version; 0 for an empty string."""
    try:
        return _TLS_VERSIONS[text.lower()]
    except KeyError:
        raise ValueError(f"unknown TLS version {quote(text)}") from None


# --- one value, from an INI file --------------------------------------------------------------


def unquoted(text: str) -> str:
    """Return `"text"` without its quotes, which preserve blanks around a value. There are no
    escapes."""
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return text[1:-1]
    return text


def _elements(text: str) -> list[str]:
    if text.startswith("[") and text.endswith("]"):  # and not an address such as [::1]:4160
        raise ValueError("arrays are TOML syntax: separate values with commas")
    found = [unquoted(part.strip()) for part in text.split(",") if part.strip()]
    if text and not found:
        raise ValueError("a value is missing between the commas")
    return found


def ini_strings(text: str) -> tuple[str, ...]:
    return tuple(_elements(text))


def ini_floats(text: str) -> tuple[float, ...]:
    return tuple(parse_float(part) for part in _elements(text))


# --- one value, from TOML ---------------------------------------------------------------------
#
# Accepts what NSQ accepts for each kind, except where NSQ does so by mistake.


def toml_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    # NSQ reads 0 as true and any other integer as false, which is surely a mistake.
    return parse_bool(_toml_text(value))


def toml_int(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int64(value)
    text = _toml_text(value)
    if len(text) > 20 or not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError("parse error")
    return int64(int(text))


def toml_float(value: object) -> float:
    return parse_float(value) if isinstance(value, str) else _toml_float(value)


def toml_duration(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int64(int64(value) * durations.MILLISECOND)
    return parse_duration(_toml_text(value))


def toml_strings(value: object) -> tuple[str, ...]:
    """Return an array of strings as is, or a single string split at commas."""
    if isinstance(value, list):
        return tuple(_toml_text(element) for element in value)
    return tuple(_toml_text(value).split(","))


def toml_floats(value: object) -> tuple[float, ...]:
    """Return the numbers in file order."""
    if isinstance(value, list):
        return tuple(_toml_float(element) for element in value)
    return tuple(parse_float(part.strip()) for part in _toml_text(value).split(","))


def _toml_float(value: object) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(int64(value))
    raise ValueError("invalid value type")


def toml_tls_required(value: object) -> int:
    if isinstance(value, int):  # includes bool
        value = str(int(value)) if abs(value) <= 1 else ""
    return parse_tls_required(_toml_text(value))


def _toml_text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("invalid value type")


# --- one value, as text -----------------------------------------------------------------------


def show_bool(value: bool) -> str:
    return "true" if value else "false"


def show_string(value: str) -> str:
    """Return the text that yields the same value in an INI file."""
    plain = value == value.strip() and value == unquoted(value)
    return value if plain else f'"{value}"'


def show_strings(value: Sequence[str]) -> str:
    return ", ".join(value)


def show_float(value: float) -> str:
    return str(value).removesuffix(".0")


def show_floats(value: Sequence[float]) -> str:
    return ", ".join(map(show_float, value))


def show_level(value: int) -> str:
    return logger.NAMES[value]


def show_tls_required(value: int) -> str:
    return _TLS_REQUIRED_NAMES[value]


def show_tls_version(value: int) -> str:
    return next(name for name, number in _TLS_VERSIONS.items() if number == value)


# --- kinds ------------------------------------------------------------------------------------
#
# `values` is the word that Go's usage text shows after a flag's name.


def _stripped(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each.strip() for each in texts)


def _decreasing(found: tuple[float, ...], more: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(found + more, reverse=True))


BOOL = Kind("", "true or false", parse_bool, show_bool, typed="bool", toml=toml_bool, bare=True)
INT = Kind("int", "an integer such as 2500, 1_000 or 0x10", parse_int, typed="int", toml=toml_int)
FLOAT = Kind(
    "float", "a number such as 0.5", parse_float, show_float, typed="float", toml=toml_float
)
DURATION = Kind(
    "duration",
    durations.ALLOWED,
    parse_duration,
    durations.short_duration,
    typed="int",
    toml=toml_duration,
)
STRING = Kind("string", "text", str, show_string, toml=_toml_text)
STRINGS = Kind(
    "value",
    "values separated by commas",
    parse_strings,
    show_strings,
    typed="tuple[str, ...]",
    ini=ini_strings,
    toml=toml_strings,
    combine=operator.add,
)
# Addresses and names; surrounding blanks are removed.
WORDS = Kind(
    "value",
    STRINGS.allowed,
    lambda text: _stripped(parse_strings(text)),
    show_strings,
    typed=STRINGS.typed,
    ini=lambda text: _stripped(ini_strings(text)),
    toml=lambda value: _stripped(toml_strings(value)),
    combine=operator.add,
)
FLOATS = Kind(
    "value",
    "numbers separated by commas",
    parse_floats,
    show_floats,
    typed="tuple[float, ...]",
    ini=ini_floats,
    toml=toml_floats,
    combine=_decreasing,
)
LEVEL = Kind(
    "value",
    "debug, info, warn, error or fatal",
    parse_level,
    show_level,
    typed="int",
    toml=lambda value: parse_level(_toml_text(value)),
)
TLS_REQUIREMENT = Kind(
    "",
    "false, true or tcp-https",
    parse_tls_required,
    show_tls_required,
    typed="int",
    toml=toml_tls_required,
    bare=True,
)
TLS_VERSION = Kind(
    "value",
    "tls1.0, tls1.1, tls1.2, tls1.3 or empty",
    parse_tls_version,
    show_tls_version,
    typed="int",
    toml=lambda value: parse_tls_version(_toml_text(value)),
)


# --- the table --------------------------------------------------------------------------------


class OptionTable:
    """One program's options, by section. `by_pattern` are the options that an INI file may set for
    objects of a kind ("topic") if their names match a pattern."""

    def __init__(
        self,
        daemon: str,
        sections: Mapping[str, Sequence[Option]],
        by_pattern: Mapping[str, Mapping[str, Option]] | None = None,
    ) -> None:
        self.daemon = daemon
        self.sections = sections
        self.by_flag = {option.flag: option for option in self}
        self.by_name = {option.name: option for option in self}
        self.by_toml_key = {option.toml_key: option for option in self if option.in_file}
        # INI files may use either name.
        named = {option.name: option for option in self if option.in_file}
        self.by_ini_key = {**self.by_toml_key, **named}
        self.by_pattern = by_pattern or {}

    def __iter__(self) -> Iterator[Option]:
        for options in self.sections.values():
            yield from options

    def defaults(self) -> dict[str, Value]:
        return {option.name: option.default for option in self}


class Section:
    """Begins a section of the options in a class."""

    def __init__(self, title: str) -> None:
        self.title = title


class Options:
    """The values of a program's options as typed attributes. Subclasses declare the options, by
    section; `table` contains them.

    Attributes cannot be assigned. replace() returns a modified copy, and change() sets the few
    options that may change while the daemon runs.
    """

    table: OptionTable

    def __init_subclass__(
        cls, program: str, by_pattern: Mapping[str, Mapping[str, Option]] | None = None
    ) -> None:
        sections: dict[str, list[Option]] = {}
        for value in vars(cls).values():
            if isinstance(value, Section):
                section = sections[value.title] = []
            elif isinstance(value, Option):
                section.append(value)
        cls.table = OptionTable(program, sections, by_pattern)

    def __init__(self, values: Mapping[str, Value]) -> None:
        for name in self.table.by_name:
            self.__dict__[name] = values[name]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"option {name} cannot be assigned; use replace() or change()")

    def dump(self) -> dict[str, Value]:
        """Return data for json.dumps; restore() reads it in another process."""
        return dict(self.__dict__)

    @classmethod
    def restore(cls, values: Mapping[str, object]) -> "Self":
        # JSON turns tuples into lists and keeps all other values.
        thawed: dict[str, Value] = {}
        for name, value in values.items():
            thawed[name] = tuple(value) if isinstance(value, list) else value  # type: ignore[assignment]
        return cls(thawed)

    def replace(self, **values: Value) -> "Self":
        unknown = values.keys() - self.__dict__.keys()
        if unknown:
            raise AttributeError(f"no option {', '.join(sorted(unknown))}")
        return type(self)({**self.__dict__, **values})

    def change(self, name: str, value: Value) -> None:
        """Change an option while the daemon runs."""
        option = self.table.by_name[name]
        if not option.runtime:
            raise AttributeError(f"option {name} cannot be changed at run time")
        self.__dict__[name] = value
