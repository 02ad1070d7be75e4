"""Configuration files: INI with nsqcy's own sections, and TOML in NSQ's form.

Independent of particular options; checks a value only for its kind. config/loader.py owns the
precedence of the sources.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from nsqcy.config.durations import format_duration
from nsqcy.config.options import (
    DURATION,
    LEVEL,
    TLS_REQUIREMENT,
    TLS_VERSION,
    OptionTable,
    unquoted,
)
from nsqcy.errors import CoerceError, ConfigError, ParseError, all_of
from nsqcy.names import quote
from nsqcy.options.option import Option, Value

DAEMONS = ("nsqd", "nsqlookupd", "nsqadmin")

# A file is INI if it starts with an nsqcy header. TOML names contain no blanks, and NSQ ignores
# TOML tables.
_INI_START = r"\[\s*(?:(" + "|".join(DAEMONS) + r")\s*\]|(?:topic|channel)\s)"

# NSQ checks these options before the others, with their own error texts.
_PARSED_FIRST = (LEVEL, TLS_REQUIREMENT, TLS_VERSION)

_MAX_LISTED = 40  # keys that an error lists
_NEARLY = 0.8  # similarity of two keys, above which one may be a typo of the other

# Words that Go's field names write in capitals.
_CAPITALS = {"nsqlookupd": "NSQLookupd"} | {
    word: word.upper() for word in ("id", "tcp", "http", "https", "tls", "udp", "e2e", "ca")
}


class Section:
    """Settings from one part of a file: values by option name, and each value's line."""

    __slots__ = ("lines", "path", "values")

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, Value] = {}
        self.lines: dict[str, int | None] = {}

    def place(self, name: str) -> str:
        return _place(self.path, self.lines[name])


class PatternSection(Section):
    """Section for the topics or channels (`kind`) whose names match `pattern`.

    Its header is on line `line`.
    """

    __slots__ = ("kind", "line", "pattern")

    def __init__(self, path: str, line: int, kind: str, pattern: str) -> None:
        super().__init__(path)
        self.line = line
        self.kind = kind
        self.pattern = pattern


class FileSettings(Section):
    """One file's settings for the daemon, topics and channels, and warnings about ignored keys."""

    __slots__ = ("patterns", "warnings")

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.patterns: list[PatternSection] = []
        self.warnings: list[str] = []


def read_file(table: OptionTable, path: str) -> FileSettings:
    """Read a file's settings in either format; raise StartError with all errors in the file."""
    text = read_text(path)
    if _first_header(text):
        return _read_ini(table, path, text)
    return _read_toml(table, path, text)


def read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise ConfigError(path, None, f"open {path}: {reason}") from None
    except ValueError:
        raise ConfigError(path, None, "a path cannot contain a zero byte") from None
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(path, line, "not UTF-8") from None


def daemon_of(text: str) -> str:
    """Return the daemon that a file configures: the first daemon that an INI file names, or nsqd
    for TOML."""
    header = _first_header(text)
    return (header and header[1]) or "nsqd"


def _first_header(text: str) -> re.Match[str] | None:
    for line in text.split("\n"):
        line = line.strip()
        if line and not line.startswith("#"):
            return re.match(_INI_START, line)
    return None


# INI: `key = value` lines in the daemon's section, and in `[topic PATTERN]` and `[channel PATTERN]`
# sections if the daemon has options for these. There are no escapes and no interpolation. `#`
# starts a comment only at the start of a line.


def _read_ini(table: OptionTable, path: str, text: str) -> FileSettings:
    found = FileSettings(path)
    section: Section | None = None  # None: the lines belong to a section with an invalid header
    first_lines: dict[str, int] = {}
    errors: list[ConfigError] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                section = None
                section = _begin_section(table, found, first_lines, number, line)
            elif section is not None:
                _read_ini_line(table, section, number, line)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise all_of(_in_order([*errors, *_violations(table, found)]))
    return found


def _begin_section(
    table: OptionTable, found: FileSettings, first_lines: dict[str, int], number: int, line: str
) -> Section:
    name = _section_name(table, found.path, number, line)
    if name in first_lines:
        problem = f"section [{name}] is already defined at line {first_lines[name]}"
        raise ConfigError(found.path, number, problem, "each section once")
    first_lines[name] = number
    if name == table.daemon:
        return found
    kind, _, pattern = name.partition(" ")
    section = PatternSection(found.path, number, kind, pattern)
    found.patterns.append(section)
    return section


def _violations(table: OptionTable, found: FileSettings) -> Iterator[ConfigError]:
    """Return the errors that the daemon would report once the file can be read."""
    for section in (found, *found.patterns):
        keys = _keys(table, section)
        for name, value in section.values.items():
            option = keys[name]
            if option.rule and not option.rule.holds(value):
                problem = f"{name}: invalid value {quote(option.show(value))}"
                yield ConfigError(found.path, section.lines[name], problem, option.rule.text)


def _keys(table: OptionTable, section: Section) -> Mapping[str, Option]:
    return (
        table.by_pattern[section.kind] if isinstance(section, PatternSection) else table.by_ini_key
    )


def _in_order(errors: Iterable[ConfigError]) -> list[ConfigError]:
    return sorted(errors, key=lambda error: error.line or 0)


def _section_name(table: OptionTable, path: str, number: int, line: str) -> str:
    """`nsqd`, `topic PATTERN` or `channel PATTERN`."""
    allowed = f"[{table.daemon}]"
    if table.by_pattern:
        allowed += ", [topic PATTERN] or [channel TOPICPATTERN/CHANNELPATTERN]"
    if not line.endswith("]"):
        raise ConfigError(path, number, f"not a section header: {line}", allowed)
    words = line[1:-1].split(None, 1)
    if words == [table.daemon]:
        return table.daemon
    if len(words) == 2 and words[0] in table.by_pattern:
        return f"{words[0]} {words[1].strip()}"
    raise ConfigError(path, number, f"unknown section {line}", allowed)


def _read_ini_line(table: OptionTable, found: Section, number: int, line: str) -> None:
    keys = _keys(table, found)
    key, equals, text = (part.strip() for part in line.partition("="))
    if not equals or not key:
        allowed = "key = value, or # and a comment"
        raise ConfigError(found.path, number, f"not a setting: {line}", allowed)
    option = keys.get(key)
    if option is None:
        raise ConfigError(found.path, number, *_misplaced_key(table, key, keys))
    if option.name in found.values:
        problem = f"{key} is already set at line {found.lines[option.name]}"
        raise ConfigError(found.path, number, problem, "each option once")
    try:
        found.values[option.name] = _ini_value(option, text)
    except ValueError as error:
        problem = f"{key}: invalid value {quote(text)}: {error}"
        raise ConfigError(found.path, number, problem, option.kind.allowed) from None
    found.lines[option.name] = number


def _ini_value(option: Option, text: str) -> Value:
    kind = option.kind
    value: Value = kind.ini(text) if kind.ini else kind.parse(unquoted(text))
    return value


def _misplaced_key(table: OptionTable, key: str, keys: Mapping[str, Option]) -> tuple[str, str]:
    """Return the problem of an unknown key, and the permitted keys unless one was clearly meant."""
    for kind, others in {table.daemon: table.by_ini_key, **table.by_pattern}.items():
        if key in others:
            section = f"[{kind}]" if kind == table.daemon else f"[{kind} …]"
            return f"unknown key {quote(key)}: it belongs in a section {section}", ""
    problem, allowed = unknown_key(key, keys)
    if "did you mean" in problem:
        return problem, ""
    if len(keys) > _MAX_LISTED:
        allowed = f"the keys that nsqcy config sample {table.daemon} prints"
    return problem, allowed


def unknown_key(key: str, allowed: Iterable[str]) -> tuple[str, str]:
    """Return the problem and the permitted keys."""
    import difflib

    names = sorted(allowed)
    near = difflib.get_close_matches(key.replace("-", "_").lower()[:64], names, 1)
    meant = f", did you mean {near[0]}?" if near else ""
    return f"unknown key {quote(key)}{meant}", ", ".join(names)


# TOML: flat keys, as NSQ reads them. Keys that NSQ ignores are also ignored here, with a warning.


def _read_toml(table: OptionTable, path: str, text: str) -> FileSettings:
    found = FileSettings(path)
    known: list[tuple[Option, object]] = []
    errors: list[ConfigError] = []
    for key, value in _parse_toml(table, path, text).items():
        line = _toml_line(text, key)
        if option := table.by_toml_key.get(key):
            known.append((option, value))
            found.lines[option.name] = line
        elif problem := _guard_problem(table, key, value):
            errors.append(ConfigError(path, line, problem))
        else:
            found.warnings.append(f"{_place(path, line)}: {_ignored(table, key, value)}")
    known.sort(key=lambda pair: pair[0].kind not in _PARSED_FIRST)
    for option, value in known:
        try:
            found.values[option.name] = _toml_value(found, option, value)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise all_of([*errors, *_violations(table, found)])
    return found


def _parse_toml(table: OptionTable, path: str, text: str) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigError(path, None, "arrays or tables nested too deeply") from None
    except ValueError as error:  # a TOMLDecodeError, or a number that int() refuses
        reason, _, position = str(error).partition(" (at line ")
        line = re.match("[0-9]+", position)
        allowed = f"TOML, or INI that starts with [{table.daemon}]"
        raise ConfigError(path, int(line[0]) if line else None, reason, allowed) from None


def _toml_value(found: FileSettings, option: Option, value: object) -> Value:
    try:
        read: Value = option.kind.toml(value)
    except ValueError as error:
        line = found.lines[option.name]
        allowed = option.kind.allowed
        shown = _go_value(value)
        if option.kind in _PARSED_FIRST:
            setting = f"{option.toml_key} {shown}"
            raise ParseError(found.path, line, str(error), allowed, setting) from None
        default = option.default
        if option.kind is DURATION and isinstance(default, int):
            default = format_duration(default)
        setting = f"{shown} ({_go_value(default)}) for field {_go_field(option)}"
        problem = f"{option.toml_key}: {error}"
        raise CoerceError(found.path, line, problem, allowed, setting) from None
    return read


def _guard_problem(table: OptionTable, key: str, value: object) -> str:
    """Return the problem if an unknown key resembles a security option, otherwise an empty
    string."""
    named = {f"{key}.{each}": each for each in value} if isinstance(value, dict) else {key: key}
    for shown, each in named.items():
        if option := _guard_meant(table, each):
            return f"unknown key {quote(shown)}, did you mean {option.toml_key}?"
    return ""


def _guard_meant(table: OptionTable, key: str) -> Option | None:
    """Return a security option with a similar name."""
    option = _similar(table, key)
    return option if option and option.guard else None


def _similar(table: OptionTable, key: str) -> Option | None:
    import difflib

    name = key.replace("-", "_").lower()[:64]
    near = difflib.get_close_matches(name, table.by_ini_key, 1, _NEARLY)
    return table.by_ini_key[near[0]] if near else None


def _ignored(table: OptionTable, key: str, value: object) -> str:
    if isinstance(value, dict):
        hint = f"an INI file starts with [{table.daemon}]"
        return f"table [{key}] is ignored ({hint})"
    hint = ""
    if option := table.by_ini_key.get(key.replace("-", "_")):
        hint = f" (the key of --{option.flag} is {option.toml_key})"
    elif (option := table.by_flag.get(key.replace("_", "-"))) and option.notice:
        hint = f" (--{option.flag} {option.notice})"
    elif option := _similar(table, key):
        hint = f", did you mean {option.toml_key}?"
    return f"unknown key {quote(key)} is ignored{hint}"


def _toml_line(text: str, key: str) -> int | None:
    """Return the approximate line of a top-level key, because tomllib does not report lines."""
    match = re.search(rf"""^[ \t]*\[*[ \t]*["']?{re.escape(key)}["']?[ \t]*[=.\]]""", text, re.M)
    return text.count("\n", 0, match.start()) + 1 if match else None


def _place(path: str, line: int | None) -> str:
    return path if line is None else f"{path}, line {line}"


def _go_value(value: object) -> str:
    """Format a value like Go's %v."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{' '.join(map(_go_value, value))}]"
    return str(value)


def _go_field(option: Option) -> str:
    words = option.toml_key.split("_")
    return "".join(_CAPITALS.get(word, word.capitalize()) for word in words)
