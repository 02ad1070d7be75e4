"""Configuration files in NSQ's TOML format: flat keys, as NSQ reads them.

Keys that NSQ ignores are also ignored here, with a warning, unless they resemble a security option.
Independent of particular options.
"""

import re

from nsqcy.config.durations import format_duration
from nsqcy.config.file_settings import FileSettings, place_of, violations
from nsqcy.config.options import DURATION, LEVEL, TLS_REQUIREMENT, TLS_VERSION, OptionTable
from nsqcy.errors import CoerceError, ConfigError, ParseError, all_of
from nsqcy.names import quote
from nsqcy.options.option import Option, Value

# NSQ checks these options before the others, with their own error texts.
_PARSED_FIRST = (LEVEL, TLS_REQUIREMENT, TLS_VERSION)

_NEARLY = 0.8  # similarity of two keys, above which one may be a typo of the other

# Words that Go's field names write in capitals.
_CAPITALS = {"nsqlookupd": "NSQLookupd"} | {
    word: word.upper() for word in ("id", "tcp", "http", "https", "tls", "udp", "e2e", "ca")
}


def read_toml(table: OptionTable, path: str, text: str) -> FileSettings:
    """Read the settings in a TOML text; raise StartError with all errors in it."""
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
            found.warnings.append(f"{place_of(path, line)}: {_ignored(table, key, value)}")
    known.sort(key=lambda pair: pair[0].kind not in _PARSED_FIRST)
    for option, value in known:
        try:
            found.values[option.name] = _toml_value(found, option, value)
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise all_of([*errors, *violations(table, found)])
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
            return f"unknown key {quote(shown)}; did you mean {option.toml_key}?"
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
        hint = f"for an INI file, begin the file with [{table.daemon}]"
        return f"table [{key}] is ignored ({hint})"
    hint = ""
    if option := table.by_ini_key.get(key.replace("-", "_")):
        hint = f" (the key of --{option.flag} is {option.toml_key})"
    elif (option := table.by_flag.get(key.replace("_", "-"))) and option.notice:
        hint = f" (--{option.flag} {option.notice})"
    elif option := _similar(table, key):
        hint = f"; did you mean {option.toml_key}?"
    return f"unknown key {quote(key)} is ignored{hint}"


def _toml_line(text: str, key: str) -> int | None:
    """Return the approximate line of a top-level key, because tomllib does not report lines."""
    match = re.search(rf"""^[ \t]*\[*[ \t]*["']?{re.escape(key)}["']?[ \t]*[=.\]]""", text, re.M)
    return text.count("\n", 0, match.start()) + 1 if match else None


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
