"""Options of jobs: tables, kinds of value, flags and the TOML file.

A job's table is its own options behind those it shares: `SPARK` for jobs that start it, `SOURCE`
for those that read topics; `OUTPUT` is everybody's. Values are checked here, one by one; what they
mean together is the job's to check. Imports neither pyspark nor pyarrow.
"""

import datetime
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
TOPIC = r"[.a-zA-Z0-9_-]{1,64}"


class UsageError(Exception):
    """An option that cannot be, in one line; the exit code is 2."""


class BadValue(Exception):
    """What was expected instead."""


# --- kinds of value ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How one value is read from text. A `many` option may be given several times."""

    parse: Callable[[str], Any]
    values: str  # for help and documents
    many: bool = False


def text(value: str) -> str:
    if not value.strip():
        raise BadValue("a text that is not empty")
    return value


def boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise BadValue("true or false")
    return value.lower() == "true"


def whole(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value):
        raise BadValue("a whole number")
    return int(value)


def positive(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value) or not int(value):
        raise BadValue("a whole number of at least 1")
    return int(value)


def port(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", value) or int(value) > 65535:
        raise BadValue("a port: 0 to 65535")
    return int(value)


def seconds(value: str) -> float:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)", value.lower())
    if not found:
        raise BadValue("a duration as 500ms, 30s, 15m, 1h or 7d")
    return float(found[1]) * UNITS[found[2]]


def instant(value: str) -> datetime.datetime:
    """Without a zone it is UTC."""
    if re.fullmatch(r"[0-9]{1,14}", value):
        return datetime.datetime.fromtimestamp(int(value) / 1000, datetime.UTC)
    try:
        found = datetime.datetime.fromisoformat(value)
    except ValueError:
        raise BadValue("ISO 8601 as 2024-05-01T12:00:00Z, or milliseconds since 1970") from None
    return found.replace(tzinfo=found.tzinfo or datetime.UTC).astimezone(datetime.UTC)


def size(value: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([kmg]?)b?", value.lower())
    if not found or not int(found[1]):
        raise BadValue("a number of bytes as 512k, 256m or 2g")
    return int(found[1]) * SIZES[found[2]]


def memory(value: str) -> str:
    """As Spark has them."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}[kmgt]", value.lower()):
        raise BadValue("memory as 512m or 2g")
    return value.lower()


def topic(value: str) -> str:
    if not re.fullmatch(TOPIC, value):
        raise BadValue("a topic name: 1 to 64 of .a-zA-Z0-9_- (ephemeral topics have no log)")
    return value


def topics(value: str) -> str:
    for name in value.split(","):
        topic(name.strip())
    return ",".join(name.strip() for name in value.split(","))


def expression(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise BadValue(f"a regular expression ({error})") from None
    return text(value)


def address(value: str) -> str:
    value = value.strip()
    found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s,/\[\]]+):([0-9]{1,5})", value)
    if not found or not 0 < int(found[2]) < 65536:
        raise BadValue("host:port, without http://")
    return value


def pair(value: str) -> tuple[str, str]:
    name, equals, rest = value.partition("=")
    if not name.strip() or not equals:
        raise BadValue("NAME=VALUE")
    return name.strip(), rest


def root(value: str) -> str:
    """A folder that driver and executors share."""
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+)://", value)
    if found and found[1].lower() == "file":
        value = re.sub(r"^[^:]+://", "", value)
    elif found:
        raise BadValue(f"a path, and {found[1]}:// is none: mount it where it can be one")
    return text(value)


TEXT = Kind(text, "text")
FLAG = Kind(boolean, "true, false")
WHOLE = Kind(whole, "number")
POSITIVE = Kind(positive, "number of at least 1")
PORT = Kind(port, "port")
DURATION = Kind(seconds, "duration")
INSTANT = Kind(instant, "ISO 8601, ms since 1970")
SIZE = Kind(size, "size")
MEMORY = Kind(memory, "size")
PATH = Kind(root, "path")
TOPIC_NAME = Kind(topic, "name")
TOPIC_NAMES = Kind(topics, "name,...")
EXPRESSION = Kind(expression, "regular expression")
TEXTS = Kind(text, "text", many=True)
ADDRESSES = Kind(address, "host:port", many=True)
PAIRS = Kind(pair, "NAME=VALUE", many=True)


@dataclass(frozen=True)
class Option:
    """A row of a table. `default` is text, as a user would write it, or None for nothing; of an
    option that may be given several times it is a tuple of texts."""

    name: str
    kind: Kind
    default: str | tuple[str, ...] | None
    help: str
    choices: tuple[str, ...] = ()

    @property
    def values(self) -> str:
        return ", ".join(self.choices) if self.choices else self.kind.values

    def check(self, value: str) -> Any:
        """The value of this text; raises BadValue."""
        if self.choices and value not in self.choices:
            raise BadValue(f"one of {', '.join(self.choices)}{suggestion(value, self.choices)}")
        return self.kind.parse(value)

    def read(self, values: Iterable[str]) -> Any:
        """The value of these texts, of which the last one counts if there can be only one."""
        found = [self.check(value) for value in values]
        if not self.kind.many:
            return found[-1]
        return dict(found) if self.kind is PAIRS else tuple(found)

    def unset(self) -> Any:
        """The value if nobody gives one."""
        if self.kind.many:
            return self.read(self.default or ())
        assert not isinstance(self.default, tuple)
        return None if self.default is None else self.read([self.default])


OUTPUT = (
    Option("config", TEXT, None, "a TOML file with the tables [common] and one for each job"),
    Option("json", FLAG, "false", "JSON lines, also on a terminal"),
)
SPARK = (
    Option(
        "master", TEXT, None, "where Spark runs; local[*] unless spark-submit has said something"
    ),
    Option("driver-memory", MEMORY, "2g", "heap of the driver, which is all of it in local mode"),
    Option("conf", PAIRS, (), "any setting of Spark; wins over what the job would set"),
    Option("metrics-port", PORT, "0", "serve metrics to Prometheus there; 0: nowhere"),
)
SOURCE = (
    Option("topic", TOPIC_NAME, None, "one topic"),
    Option("topics", TOPIC_NAMES, None, "several topics"),
    Option("topics-pattern", EXPRESSION, None, "topics whose whole name it matches"),
    Option("lookupd-http-address", ADDRESSES, (), "nsqlookupds to ask for nsqds"),
    Option(
        "nsqd-tcp-address", ADDRESSES, (), "nsqds; 127.0.0.1:4150 if there is no lookupd either"
    ),
    Option("option", PAIRS, (), 'any option of format("nsq"): SPARK.md'),
)
COMMON = (*OUTPUT, *SPARK, *SOURCE)

Table = Sequence[Option]


# --- what was asked for -----------------------------------------------------------------------


class Options:
    """A value for every option of a job: flags over the job's table of the file over [common] over
    the defaults. `given` are those that somebody gave."""

    def __init__(self, table: Table, given: Mapping[str, Any]) -> None:
        self.table = table
        self.given = frozenset(given)
        self._values = {option.name: option.unset() for option in table} | dict(given)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def require(self, *names: str) -> None:
        """Raises UsageError for the first of these without a value."""
        for name in names:
            if self[name] is None or self[name] == ():
                raise UsageError(f"--{name} is needed")

    def require_one_subject(self) -> None:
        """Raises UsageError unless exactly one option says which topics are read."""
        names = [name for name in ("topic", "topics", "topics-pattern") if self[name]]
        if len(names) != 1:
            what = " and ".join(f"--{name}" for name in names) or "none"
            raise UsageError(
                f"exactly one of --topic, --topics, --topics-pattern is needed: {what} is given"
            )
        if self["topics-pattern"] and not self["lookupd-http-address"]:
            raise UsageError("--topics-pattern needs --lookupd-http-address: they know the topics")

    @property
    def nsqds(self) -> tuple[str, ...]:
        """Addresses of nsqds; the one on this machine if there are no others to ask."""
        found: tuple[str, ...] = self["nsqd-tcp-address"]
        return found or (() if self["lookupd-http-address"] else ("127.0.0.1:4150",))

    def for_writing(self, names: Mapping[str, str]) -> dict[str, str]:
        """Options of `format("nsq")` for a sink: those of `--to-option` and, of `--option`, those
        that a sink has as well: `names` says what each is for."""
        shared = {
            name: value
            for name, value in self["option"].items()
            if names.get(name.lower()) in ("all", "write")
        }
        return shared | dict(self["to-option"])

    def source(self, **more: str) -> dict[str, str]:
        """The options of `format("nsq")`; `more` are what the job wants unless the user says
        otherwise."""
        found = {
            "topic": self["topic"],
            "topics": self["topics"],
            "topicsPattern": self["topics-pattern"],
            "lookupdHttpAddresses": ",".join(self["lookupd-http-address"]),
            "nsqdTcpAddresses": ",".join(self.nsqds),
        }
        theirs = {name.lower() for name in self["option"]}
        found |= {name: value for name, value in more.items() if name.lower() not in theirs}
        wanted = {name: str(value) for name, value in found.items() if value}
        return wanted | dict(self["option"])


# --- flags ------------------------------------------------------------------------------------


def parse(job: str, tables: Mapping[str, Table], argv: Sequence[str]) -> Options:
    """The options of a job; `tables` are those of all jobs, as the file may have tables for
    them."""
    table = tables[job]
    flags = read_flags(table, argv)
    given: dict[str, Any] = {}
    if "config" in flags:
        given = from_file(job, tables, flags["config"])
    return Options(table, given | flags)


def read_flags(table: Table, argv: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`; `--name` alone for what is true or false."""
    by_name = {option.name: option for option in table}
    found: dict[str, list[str]] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not name:
            raise UsageError(f"{word!r} is no flag; flags begin with --")
        if name not in by_name:
            raise UsageError(f"there is no --{name}{suggestion(name, by_name, '--')}")
        if not equals:
            if by_name[name].kind is FLAG:
                value = "true"
            elif words and not words[0].startswith("--"):
                value = words.pop(0)
            else:
                raise UsageError(f"--{name} needs a value: {by_name[name].values}")
        found.setdefault(name, []).append(value)
    return {name: checked(by_name[name], values, f"--{name}") for name, values in found.items()}


def checked(option: Option, values: Sequence[str], place: str) -> Any:
    for value in values:
        try:
            option.check(value)
        except BadValue as expected:
            shown = "" if is_secret(option, value) else f" is {value!r}:"
            raise UsageError(f"{place}{shown} expected {expected}") from None
    return option.read(values)


def is_secret(option: Option, value: str) -> bool:
    return option.name == "option" and "secret" in value.lower()


def suggestion(name: str, names: Iterable[str], before: str = "") -> str:
    """The name that was meant, or all there are."""
    known = list(names)
    near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
    if near:
        return f"; did you mean {before}{near[0]}?"
    return f"; there are {', '.join(before + each for each in known)}"


# --- the file ---------------------------------------------------------------------------------


def from_file(job: str, tables: Mapping[str, Table], path: str) -> dict[str, Any]:
    """What the file says for this job. All of it is checked, as the next job would fail of it."""
    try:
        content = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    every = [option for table in tables.values() for option in table]
    known = {"common": (*every, *COMMON, *tables[job]), **tables}
    found: dict[str, dict[str, Any]] = {}
    for name, values in content.items():
        if name not in known:
            raise UsageError(f"{path}: there is no table [{name}]{suggestion(name, known)}")
        if not isinstance(values, dict):
            raise UsageError(f"{path}: {name} is no table; write [{name}]")
        found[name] = read_table(known[name], values, f"{path}, [{name}]")
    names = {option.name for option in tables[job]}
    common = {name: value for name, value in found.get("common", {}).items() if name in names}
    return common | found.get(job, {})


def read_table(table: Table, values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Names may be written with _ as well."""
    by_name = {option.name: option for option in table if option.name != "config"}
    found = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        if name not in by_name:
            raise UsageError(f"{place}: there is no {key!r}{suggestion(name, by_name)}")
        option = by_name[name]
        where = f"{place}, {key}"
        found[name] = checked(option, as_texts(option, value, where), where)
    return found


def as_texts(option: Option, value: Any, place: str) -> list[str]:
    """What flags would have said."""
    if option.kind is PAIRS and isinstance(value, dict):
        return [f"{name}={as_text(each, place)}" for name, each in value.items()]
    if option.kind.many and isinstance(value, list):
        return [as_text(each, place) for each in value]
    return [as_text(value, place)]


def as_text(value: Any, place: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        raise UsageError(f"{place}: one value is expected")
    return str(value)


# --- documents --------------------------------------------------------------------------------


def shown_default(option: Option) -> str:
    return option.default if isinstance(option.default, str) else ""


def usage(table: Table) -> str:
    """The flags, for `--help`."""
    width = max(len(option.name) for option in table) + 4
    lines = []
    for option in table:
        default = shown_default(option)
        notes = [option.values if option.choices else "", f"default {default}" if default else ""]
        if option.kind is FLAG and default == "false":
            notes = []
        if option.kind.many:
            notes.append("may be repeated")
        more = "; ".join(filter(None, notes))
        lines.append(f"  {'--' + option.name:<{width}}{option.help}{f' ({more})' if more else ''}")
    return "\n".join(lines)


def documentation(table: Table) -> str:
    """The table for docs/PIPELINE.md."""
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for option in table:
        default = f"`{shown_default(option)}`" if shown_default(option) else ""
        values = option.values.replace("|", "\\|") + (", repeatable" if option.kind.many else "")
        lines.append(f"| `--{option.name}` | {values} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"
