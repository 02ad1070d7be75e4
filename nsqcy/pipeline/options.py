"""Job options: tables, value types, flags and the TOML file.

A job's table lists its own options after the shared ones: `SPARK` for jobs that start Spark,
`SOURCE` for jobs that read topics, `OUTPUT` for all jobs. Values are checked here one by one; each
job checks their combinations. Imports neither pyspark nor pyarrow.
"""

import datetime
import operator
import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

from nsqcy.cli.main import describe
from nsqcy.config.commands import TableCommand
from nsqcy.errors import UsageError
from nsqcy.options import kinds
from nsqcy.options.kinds import BOOLEAN, EXPRESSION, TOPIC_NAME, matching
from nsqcy.options.option import Expected, InvalidOption, Kind, Option, suggestion
from nsqcy.users import token_file

Table = Sequence[Option]


# --- kinds of value ---------------------------------------------------------------------------


def _port(found: re.Match[str]) -> int:
    if int(found[0]) > 65535:
        raise ValueError
    return int(found[0])


def _moment(text: str) -> datetime.datetime:
    nanoseconds = kinds.INSTANT.parse(text)
    return kinds.EPOCH + datetime.timedelta(microseconds=nanoseconds // 1000)


def _topics(text: str) -> str:
    return ",".join(TOPIC_NAME.parse(name.strip()) for name in text.split(","))


def _root(text: str) -> str:
    """Accept a directory that the driver and executors share."""
    found = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]+):/", text)
    if found and found[1].lower() == "file":
        text = re.sub(r"^[^:]+:(//)?", "", text)
    elif found:
        raise Expected(
            f"a local path, because {found[1]}:// is not supported: mount the storage and specify "
            "the mount point"
        )
    read: str = TEXT.parse(text)
    return read


def choice(*words: str) -> Kind:
    def parse(text: str) -> str:
        if text not in words:
            raise Expected(f"one of {', '.join(words)}{suggestion(text, words)}")
        return text

    return Kind(", ".join(words), f"one of {', '.join(words)}", parse)


TEXT = matching("text", r".*\S.*", "a non-empty string")
POSITIVE = kinds.whole(1, "number of at least 1")
PORT = matching("port", "[0-9]{1,5}", "a port: 0 to 65535", _port)
DURATION = kinds.duration(
    r"[0-9]{1,9}(?:\.[0-9]{1,6})?", "ms|s|m|h|d", "a duration, such as 500ms, 30s, 15m, 1h or 7d"
)
INSTANT = Kind(kinds.INSTANT.values, kinds.INSTANT.allowed, _moment)
# In Spark's notation.
MEMORY = matching(
    "size",
    "[1-9][0-9]{0,8}[kmgt]",
    "a memory size, such as 512m or 2g",
    lambda found: found[0].lower(),
)
PATH = Kind("path", TEXT.allowed, _root)
TOPIC_NAMES = Kind("name,...", TOPIC_NAME.allowed, _topics)
ADDRESSES = kinds.repeated(kinds.address("host:port", "host:port, without http://"))
PAIRS = matching(
    "NAME=VALUE",
    r"\s*([^=\s](?:[^=]*[^=\s])?)\s*=(.*)",
    "NAME=VALUE",
    lambda found: {found[1]: found[2]},
    lambda pairs: ", ".join(f"{name}={value}" for name, value in pairs.items()),
    combine=operator.or_,
)


# --- tables that jobs share ---------------------------------------------------------------


OUTPUT = (
    Option("config", TEXT, None, "TOML file with a [common] table and one table per job"),
    Option("json", BOOLEAN, False, "print JSON lines even on a terminal"),
    Option("verbose", BOOLEAN, False, "after an error, also print its traceback; short: -v"),
)
SPARK = (
    Option("master", TEXT, None, "Spark master; local[*] unless spark-submit sets it"),
    Option("driver-memory", MEMORY, "2g", "driver heap; in local mode, the heap of the entire job"),
    Option("conf", PAIRS, {}, "any Spark setting; overrides the job's own settings"),
    Option("metrics-port", PORT, 0, "port for Prometheus metrics; 0 for none"),
)
AUTH_TOKEN_FILE = Option(
    "auth-token-file",
    TEXT,
    "",
    "file with the token for nsqds that require AUTH; default: the file in "
    "NSQCY_AUTH_TOKEN_FILE, or the token in NSQCY_AUTH_TOKEN",
)


def with_remedy(text: str) -> str:
    """Return an error of the source; if a token is missing, with the setting for it."""
    if "requires authSecret" not in text:
        return text
    return f"{text}: set {token_file.SETTINGS}"


SOURCE = (
    Option("topic", TOPIC_NAME, None, "one topic"),
    Option("topics", TOPIC_NAMES, None, "several topics"),
    Option("topics-pattern", EXPRESSION, None, "topics whose entire name matches"),
    Option("lookupd-http-address", ADDRESSES, (), "nsqlookupds that list the nsqds"),
    Option(
        "nsqd-tcp-address",
        ADDRESSES,
        (),
        "nsqds; 127.0.0.1:4150 by default, if no lookupd is given",
    ),
    Option("option", PAIRS, {}, 'any option of format("nsq"); see docs/SPARK.md'),
    AUTH_TOKEN_FILE,
)
COMMON = (*OUTPUT, *SPARK, *SOURCE)


# --- values that were set ----------------------------------------------------------------------


class Options:
    """Return a value for every option of a job.

    Flags override the job's table in the file; that table overrides [common], and [common]
    overrides the defaults. `given` contains the options that were set.
    """

    def __init__(self, table: Table, given: Mapping[str, Any]) -> None:
        self.table = table
        self.given = frozenset(given)
        self._values = {option.flag: option.default for option in table} | dict(given)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def require(self, *names: str) -> None:
        """Raise UsageError for the first of these options without a value."""
        for name in names:
            if self[name] in (None, ()):
                raise UsageError(f"--{name} is required")

    def require_one_subject(self) -> None:
        """Raise UsageError unless exactly one option selects the topics."""
        names = [name for name in ("topic", "topics", "topics-pattern") if self[name]]
        if len(names) != 1:
            what = " and ".join(f"--{name}" for name in names) or "none"
            raise UsageError(
                f"exactly one of --topic, --topics and --topics-pattern is required: {what} is set"
            )
        if self["topics-pattern"] and not self["lookupd-http-address"]:
            raise UsageError("--topics-pattern requires --lookupd-http-address")

    @property
    def nsqds(self) -> tuple[str, ...]:
        """Return the addresses of nsqds; the local address if none is set."""
        found: tuple[str, ...] = self["nsqd-tcp-address"]
        return found or (() if self["lookupd-http-address"] else ("127.0.0.1:4150",))

    def for_writing(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return the `format("nsq")` options for a sink: those from `--to-option`, and those from
        `--option` that also apply to a sink; `names` maps each option to its scope."""
        shared = {
            name: value
            for name, value in self["option"].items()
            if names.get(name.lower()) in ("all", "write")
        }
        found = shared | dict(self["to-option"])
        return self._token_unless({name.lower() for name in found}) | found

    def source(self, **more: str) -> dict[str, str]:
        """Return the `format("nsq")` options; `more` contains the job's own defaults."""
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
        return self._token_unless(theirs) | wanted | dict(self["option"])

    def _token_unless(self, given: Collection[str]) -> dict[str, str]:
        """Return the option for the token; empty if the options (in lower case) have it. Raises
        ConfigError."""
        token = "" if "authsecret" in given else token_file.of_command(self["auth-token-file"])
        return {"authSecret": token} if token else {}


# --- flags ------------------------------------------------------------------------------------


def parse(
    job: str, tables: Mapping[str, Table], argv: Sequence[str], description: str = ""
) -> Options:
    """Return a job's options; `tables` contains the tables of all jobs, because the file may have
    tables for other jobs."""
    table = tables[job]
    command = TableCommand(f"nsqcy-pipeline {job}", sections={"flags": table}, help=description)
    words = ["--verbose" if word == "-v" else word for word in argv]
    try:
        flags = {name.replace("_", "-"): value for name, value in command.given(words).items()}
    except click.UsageError as error:
        raise UsageError(describe(error)) from None
    given: dict[str, Any] = {}
    if "config" in flags:
        given = from_file(job, tables, flags["config"])
    return Options(table, given | flags)


# --- the file ---------------------------------------------------------------------------------


def from_file(job: str, tables: Mapping[str, Table], path: str) -> dict[str, Any]:
    """Return the file's options for this job. The entire file is checked, so errors in other tables
    are found early."""
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
            raise UsageError(f"{path}: no table [{name}]{suggestion(name, known)}")
        if not isinstance(values, dict):
            raise UsageError(f"{path}: {name} is not a table; write [{name}]")
        found[name] = read_table(known[name], values, f"{path}, [{name}]")
    names = {option.flag for option in tables[job]}
    common = {name: value for name, value in found.get("common", {}).items() if name in names}
    return common | found.get(job, {})


def read_table(table: Table, values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Accept _ instead of - in names."""
    by_flag = {option.flag: option for option in table if option.flag != "config"}
    found = {}
    for key, value in values.items():
        name = key.replace("_", "-")
        if name not in by_flag:
            raise UsageError(f"{place}: unknown key {key!r}{suggestion(name, by_flag)}")
        option = by_flag[name]
        where = f"{place}, {key}"
        try:
            read = [option.parse(text, where) for text in as_texts(option, value, where)]
        except InvalidOption as error:
            raise UsageError(str(error)) from None
        combine = option.kind.combine
        found[name] = reduce(combine, read, option.default) if combine else read[0]
    return found


def as_texts(option: Option, value: Any, place: str) -> list[str]:
    """Convert values from the file to flags."""
    if option.kind is PAIRS and isinstance(value, dict):
        return [f"{name}={as_text(each, place)}" for name, each in value.items()]
    if option.kind.many and isinstance(value, list):
        return [as_text(each, place) for each in value]
    return [as_text(value, place)]


def as_text(value: Any, place: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        raise UsageError(f"{place}: expected a single value")
    return str(value)
