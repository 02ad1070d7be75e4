"""The settings in a configuration file of any format, and the line of each.

Independent of formats (config/ini_file.py, config/toml_file.py) and of particular options.
"""

from collections.abc import Iterator, Mapping

from nsqcy.config.options import OptionTable
from nsqcy.errors import ConfigError
from nsqcy.names import quote
from nsqcy.options.option import Option, Value


class Section:
    """Settings from one part of a file: values by option name, and each value's line."""

    __slots__ = ("lines", "path", "values")

    def __init__(self, path: str) -> None:
        self.path = path
        self.values: dict[str, Value] = {}
        self.lines: dict[str, int | None] = {}

    def place(self, name: str) -> str:
        return place_of(self.path, self.lines[name])


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


def violations(table: OptionTable, found: FileSettings) -> Iterator[ConfigError]:
    """Return the errors that the daemon would report once the file can be read."""
    for section in (found, *found.patterns):
        keys = keys_of(table, section)
        for name, value in section.values.items():
            option = keys[name]
            if option.rule and not option.rule.holds(value):
                problem = f"{name}: invalid value {quote(option.show(value))}"
                yield ConfigError(found.path, section.lines[name], problem, option.rule.text)


def keys_of(table: OptionTable, section: Section) -> Mapping[str, Option]:
    """Return the options that a section may set, by key."""
    return (
        table.by_pattern[section.kind] if isinstance(section, PatternSection) else table.by_ini_key
    )


def place_of(path: str, line: int | None) -> str:
    return path if line is None else f"{path}, line {line}"
