"""Configuration files in nsqcy's INI format.

`key = value` lines in the daemon's section, and in `[topic PATTERN]` and `[channel PATTERN]`
sections if the daemon has options for these. There are no escapes and no interpolation. `#` starts
a comment only at the start of a line. Independent of particular options.
"""

from collections.abc import Iterable, Mapping

from nsqcy.config import hints
from nsqcy.config.file_settings import (
    FileSettings,
    PatternSection,
    Section,
    keys_of,
    violations,
)
from nsqcy.config.options import OptionTable, unquoted
from nsqcy.errors import ConfigError, all_of
from nsqcy.names import quote
from nsqcy.options.option import Option, Value

_MAX_LISTED = 40  # keys that an error lists


def read_ini(table: OptionTable, path: str, text: str) -> FileSettings:
    """Read the settings in an INI text; raise StartError with all errors in it."""
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
        raise all_of(_in_order([*errors, *violations(table, found)]))
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
    keys = keys_of(table, found)
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
    problem, allowed = hints.unknown_key(key, keys)
    if "did you mean" in problem:
        return problem, ""
    if len(keys) > _MAX_LISTED:
        allowed = f"the keys that nsqcy config sample {table.daemon} prints"
    return problem, allowed
