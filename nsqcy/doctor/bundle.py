"""`nsqcy doctor --bundle`: writes a file that contains what a bug report needs, but no secrets.

Every part is optional: if one cannot be collected, the bundle contains the reason. Message bodies
are not collected. The size of each part and of the bundle is limited.
"""

import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import distributions
from typing import NamedTuple

from urllib3.util import Url, parse_url

from nsqcy import NSQ_VERSION, __version__
from nsqcy.cluster import discovery
from nsqcy.cluster.discovery import daemon_url
from nsqcy.cluster.web_client import WebClient
from nsqcy.commit import commit
from nsqcy.config import configuration_file
from nsqcy.config.configuration_file import DAEMONS
from nsqcy.config.loader import Settings
from nsqcy.doctor import look_cluster, report
from nsqcy.doctor.checks import Judged, size
from nsqcy.doctor.facts import Cluster, ConfigFile, Nsqd
from nsqcy.doctor.redact import (
    REMOVED,
    SECRET_NAME,
    Redactor,
    option_value,
    secrets_of_value,
)
from nsqcy.errors import NsqError, RequestError
from nsqcy.names import printable
from nsqcy.nsqd.options import NSQD
from nsqcy.options.option import Option, Value

MAX_PART = 2 << 20  # maximum characters of one file in the bundle
EDGE = 16 << 10  # characters to drop next to a cut
MAX_BYTES = 24 << 20  # maximum bytes of all files: even uncompressed, below issue trackers' limits
MAX_FETCHED = 16 << 20  # maximum bytes of a response
MAX_NODES = 10  # maximum nsqds to query; likewise for nsqlookupds
MAX_LISTED = 10_000  # maximum files of the data path to list
MAX_SECRET = 64 << 10  # maximum bytes to read from a file that contains a secret
LOG_LINES = 2_000  # last lines of each unit's journal
LOG_TIMEOUT = 10.0  # seconds
NAME_LOGS = "if the daemon logs to a file, name it with --log-file"
CONFIG_TIMEOUT = 20.0  # maximum seconds for querying all options of an nsqd

_SETTING = re.compile(r"\s*([\w.-]+)\s*[=:]\s*(.*)")

README = """\
`nsqcy doctor --bundle` created this bundle. Attach it to a bug report.

It contains no message bodies. Tokens, passwords, keys, credentials in URLs and the paths of URLs
in options are replaced with {removed}. It does contain the names of topics, channels, users,
clients, hosts and files, and addresses: review it before you publish it.

Files:
{files}
Not collected:
{missing}
"""


class Seen(NamedTuple):
    """The results of all checks, and their facts. cluster and web are None if only the host was
    checked."""

    judged: list[Judged]
    settings: Settings
    file: ConfigFile | None = None
    logs: Sequence[str] = ()  # paths of log files
    cluster: Cluster | None = None
    web: WebClient | None = None
    admins: Sequence[str] = ()  # addresses of nsqadmins


class NotWritten(NsqError):
    """The bundle cannot be written."""


class MissingJournal(NsqError):
    """systemd's journal has no entries from a daemon, or cannot be read."""


class Parts:
    """The files of a bundle, and the reasons why other files are missing."""

    def __init__(self, redactor: Redactor) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []
        self._redactor = redactor
        self._bytes = 0

    def add(self, name: str, text: str, *, keep_end: bool = False) -> None:
        """Add a file. Truncate a long text to its beginning or its end."""
        cut = len(text) > MAX_PART
        if cut:
            text = text[-MAX_PART:] if keep_end else text[:MAX_PART]
        text = self._redactor.text(text)
        if cut:  # a secret at the cut may be incomplete, and therefore not recognized
            text = f"[cut]\n{text[EDGE:]}" if keep_end else f"{text[:-EDGE]}\n[cut]\n"
        data = text.encode("utf-8", "backslashreplace")
        if self._bytes + len(data) > MAX_BYTES:
            self.miss(name, f"the bundle would exceed {size(MAX_BYTES)}")
            return
        self._bytes += len(data)
        self.files[name] = data

    def miss(self, name: str, reason: object) -> None:
        self.missing.append(self._redactor.text(f"{name}: {reason}"))

    def attempt(self, name: str, text: Callable[[], str], *, keep_end: bool = False) -> None:
        """Add a file, or the reason why its text cannot be collected."""
        try:
            self.add(name, text(), keep_end=keep_end)
        except (RequestError, MissingJournal) as error:
            self.miss(name, error)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.miss(name, getattr(error, "strerror", None) or type(error).__name__)

    def with_readme(self) -> Iterator[tuple[str, bytes]]:
        files = "".join(f"  {name} ({size(len(data))})\n" for name, data in self.files.items())
        missing = "".join(f"  {each}\n" for each in self.missing) or "  nothing is missing\n"
        text = README.format(removed=REMOVED, files=files, missing=missing)
        yield "README.txt", text.encode()
        yield from self.files.items()


def write(path: str, look: Callable[[], Seen]) -> str:
    """Collect everything, write the bundle, and return a summary. The file must not exist. It is
    created first, so a wrong path is reported immediately."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise NotWritten(f"{path} exists: choose another name, or delete it") from None
    except OSError as error:
        raise NotWritten(f"cannot write {path}: {error.strerror}") from None
    try:
        with open(fd, "wb") as file:
            parts = collect(look())
            pack(file, parts)
            written = file.tell()
    except BaseException as error:
        with suppress(OSError):
            os.unlink(path)
        if isinstance(error, OSError):
            raise NotWritten(f"cannot write {path}: {error.strerror}") from None
        raise
    missing = f", {len(parts.missing)} not collected (see README.txt)" if parts.missing else ""
    return (
        f"wrote {path}: {len(parts.files) + 1} files, {size(written)}{missing}\n"
        "secrets are removed, but names and addresses are not: review the bundle before you"
        " publish it\n"
    )


def pack(file: io.BufferedWriter, parts: Parts) -> None:
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, data in parts.with_readme():
            member = tarfile.TarInfo(f"nsqcy-bundle/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
            tar.addfile(member, io.BytesIO(data))


def collect(seen: Seen) -> Parts:
    parts = Parts(Redactor(secrets_in(seen)))
    parts.add("versions.json", _json(versions()))
    parts.add("doctor.json", report.as_json(seen.judged))
    parts.add("config.txt", "".join(config_lines(seen)))
    for daemon in DAEMONS:
        parts.attempt(f"logs/{daemon}.txt", partial(journal, daemon), keep_end=True)
    for path in seen.logs:
        name = f"logs/{_as_name(path)}"
        parts.attempt(name, partial(end_of, path), keep_end=True)
    _add_data_path(parts, seen)
    if seen.cluster is not None and seen.web is not None:
        _add_cluster(parts, seen.cluster, seen.web)
        for address in seen.admins:
            _add_pages(parts, seen.web, "nsqadmin", address, daemon_url(address), ADMIN_PAGES)
    return parts


# --- secrets ------------------------------------------------------------------------------------


def secrets_in(seen: Seen) -> set[str]:
    """Return the secrets in this host's configuration, and in the files that it refers to."""
    values = [(name, text) for name, its in seen.settings.values.items() for text in _texts(its)]
    if seen.file is not None:
        values += as_written(seen.file.path)
    found: set[str] = set()
    for name, text in values:
        found |= _contents(text) if SECRET_NAME.search(name) else secrets_of_value(text)
    if seen.web is not None and seen.web.terms.token:
        found.add(seen.web.terms.token)
    return found


def as_written(path: str) -> Iterator[tuple[str, str]]:
    """Yield the names and values in a configuration file of either format, even if a daemon would
    not accept it."""
    try:
        text = configuration_file.read_text(path)
    except NsqError:
        return
    for line in text.splitlines():
        if found := _SETTING.match(line):
            for value in found[2].strip("[]").split(","):
                yield found[1], value.strip(" \t\"'")


def _contents(path: str) -> set[str]:
    """Return the lines of a file with a secret, or its name if there is no such file: the value of
    the option may be the secret itself."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_SECRET).decode("utf-8", "replace")
    except OSError:
        return set() if path.startswith("/") else {path}
    return {text.strip(), *(line.strip() for line in text.splitlines())}


# --- this host ----------------------------------------------------------------------------------


def versions() -> dict[str, object]:
    found = {each.name: each.version for each in distributions() if each.name}
    return {
        "nsqcy": __version__,
        "commit": commit(),
        "nsq": NSQ_VERSION,
        "python": sys.version,
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "packages": dict(sorted(found.items())),
    }


def config_lines(seen: Seen) -> Iterator[str]:
    """Yield the effective configuration: options that are set, then defaults, then policies. A file
    with errors is shown unchanged, without its comments."""
    settings, table = seen.settings, seen.settings.table
    if seen.file is not None and seen.file.error:
        yield f"# {seen.file.path} is not valid for {table.daemon}: see doctor.json\n"
        for name, value in as_written(seen.file.path):
            yield f"{name} = {option_value(name, value)}\n"
        return
    yield f"# {table.daemon}: {seen.file.path if seen.file else 'defaults, without --config'}\n"
    for option in sorted(table, key=lambda each: each.name not in settings.given):
        if option.name in settings.values:
            mark = "" if option.name in settings.given else "# "
            yield f"{mark}{option.name} = {_shown(option, settings.values[option.name])}\n"
    for section in settings.patterns:
        yield f"\n[{section.kind} {section.pattern}]\n"
        yield from (f"{name} = {value}\n" for name, value in section.values.items())


def _shown(option: Option, value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(option_value(option.name, str(each)) for each in value)
    return option_value(option.name, option.show(value))


def _texts(value: Value) -> Sequence[str]:
    if isinstance(value, str):
        return (value,)
    return [each for each in value if isinstance(each, str)] if isinstance(value, tuple) else ()


def journal(unit: str) -> str:
    """Return the end of a unit's journal. Raises MissingJournal if it has no entries."""
    command = ["journalctl", "-u", unit, "-n", str(LOG_LINES), "--no-pager", "-o", "short-iso"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOG_TIMEOUT
        )
    except FileNotFoundError:
        raise MissingJournal(f"journalctl is not installed; {NAME_LOGS}") from None
    found, told = (each.decode("utf-8", "replace") for each in (done.stdout, done.stderr))
    if done.returncode:
        reason = told.strip() or f"status {done.returncode}"
        raise MissingJournal(f"journalctl failed: {reason}; {NAME_LOGS}")
    # Lines such as "-- No entries --" are not entries.
    if not any(line and not line.startswith("-- ") for line in found.splitlines()):
        raise MissingJournal(f"the journal has no entries for {unit}; {NAME_LOGS}")
    return told + found


def end_of(path: str) -> str:
    """Return the end of a log file: up to twice the maximum size of a part."""
    with open(path, "rb") as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - 2 * MAX_PART))
        return file.read(2 * MAX_PART).decode("utf-8", "replace")


def _add_data_path(parts: Parts, seen: Seen) -> None:
    path = seen.settings.values.get("data_path")
    if path:
        parts.attempt("data-path.txt", partial(listing, str(path)))
    else:
        parts.miss("data-path.txt", "no data path: set --data-path or --config")


def listing(path: str) -> str:
    """Return the names and sizes of all files in a data path, or raise OSError."""
    os.listdir(path)  # os.walk would ignore the error
    lines: list[str] = []
    for folder, folders, files in os.walk(path):
        folders.sort()
        for name in sorted(files):
            if len(lines) == MAX_LISTED:
                return "".join([*lines, f"[cut: more than {MAX_LISTED} files]\n"])
            file = os.path.join(folder, name)
            with suppress(OSError):
                found = os.lstat(file)
                lines.append(f"{found.st_size:>15} {printable(os.path.relpath(file, path))}\n")
    return "".join(lines)


# --- the cluster --------------------------------------------------------------------------------

NSQD_PAGES = {
    "info.json": "/info",
    "stats.json": "/stats?format=json&include_clients=false",
    "clients.json": "/stats?format=json",
    "metrics.txt": "/metrics",
    "ready.txt": "/ready",
    "node.json": "/node",
    "copies.json": "/copies",
}
LOOKUPD_PAGES = {
    "info.json": "/info",
    "nodes.json": "/nodes",
    "topics.json": "/topics",
    "metrics.txt": "/metrics",
}
ADMIN_PAGES = {"ping.txt": "/ping", "metrics.txt": "/metrics"}


def _add_cluster(parts: Parts, cluster: Cluster, web: WebClient) -> None:
    for lookupd in cluster.lookupds[:MAX_NODES]:
        url = parse_url(discovery.lookupd_url(lookupd.address, "info"))
        _add_pages(parts, web, "nsqlookupd", lookupd.address, url, LOOKUPD_PAGES)
    for nsqd in cluster.nsqds[:MAX_NODES]:
        _add_nsqd(parts, nsqd, web)
    left = len(cluster.nsqds[MAX_NODES:]) + len(cluster.lookupds[MAX_NODES:])
    if left:
        parts.miss(
            "other daemons",
            f"{left} skipped, because a bundle has at most {MAX_NODES} nsqds and {MAX_NODES}"
            " nsqlookupds; to include the others, specify only their addresses",
        )


def _add_nsqd(parts: Parts, nsqd: Nsqd, web: WebClient) -> None:
    url = look_cluster.url_of(nsqd)
    name = nsqd.address or nsqd.node.http_address
    if _add_pages(parts, web, "nsqd", name, url, NSQD_PAGES):
        parts.attempt(f"nsqd/{_as_name(name)}/config.json", lambda: _json(running_config(web, url)))


def _add_pages(
    parts: Parts, web: WebClient, daemon: str, address: str, url: Url, pages: Mapping[str, str]
) -> bool:
    """Add a daemon's pages, and return whether it answers. If it does not, skip the remaining
    pages."""
    for name, page in pages.items():
        path, _, query = page.partition("?")
        where = f"{daemon}/{_as_name(address)}/{name}"
        there = url._replace(path=path, query=query or None)
        try:
            answer = web.ask(there, maximum=MAX_FETCHED)
        except RequestError as error:
            parts.miss(where, error)
            if not error.status:
                return False
            continue
        text = answer.body.decode("utf-8", "replace")
        if answer.status == 200 or name == "ready.txt":
            parts.add(where, text)
        else:
            parts.miss(where, f"status {answer.status} {text[:200]}".strip())
    return True


def running_config(web: WebClient, url: Url) -> dict[str, str]:
    """Return the options of a running nsqd. NSQ's own nsqd returns only some of them."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + CONFIG_TIMEOUT
    for option in NSQD:
        if time.monotonic() > deadline:
            break
        answer = web.ask(url._replace(path=f"/config/{option.name}"), maximum=MAX_PART)
        if answer.status == 200:
            text = answer.body.decode("utf-8", "replace").strip()
            with suppress(ValueError):
                value = json.loads(text)
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found[option.name] = option_value(option.name, text)
    return found


def _as_name(text: str) -> str:
    """Return the file name for an address, without its credentials, or for a path."""
    shown = text.rpartition("@")[2].rpartition("://")[2]
    return "".join(each if each.isalnum() or each in ".-" else "_" for each in shown)[-100:]


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
