"""`nsqcy-pipeline doctor`: checks whether jobs can run here; one line per requirement."""

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsqcy.doctor.findings import ERROR, Finding, error, ok, warning
from nsqcy.options.option import Option
from nsqcy.pipeline import checkpoint, session
from nsqcy.pipeline.options import PATH, SOURCE, Options, with_remedy
from nsqcy.pipeline.report import Report

if TYPE_CHECKING:
    from nsqcy.spark.options import Options as SourceOptions

HELP = """\
checks whether jobs can run here: what is installed, which nsqds respond, how far jobs lag

Prints one line per check: ok, warning or error. Works without java and pyspark. Exits with code 1
if there is an error."""

OPTIONS = (
    Option("checkpoint", PATH, None, "a job's checkpoint, for reporting the job's lag"),
    *SOURCE,
)
OLDEST = {"pyspark": (4, 2), "pyarrow": (18, 0)}
HOURS = 3_600_000_000_000
NEAR_THE_END = 0.5  # fraction of the records that retention keeps


def run(options: Options, report: Report) -> int:
    failed = False
    for found in findings(options):
        failed |= found.level == ERROR
        report.line(f"{found.level:<8} {found.text}", level=found.level)
    return int(failed)


def findings(options: Options) -> Iterator[Finding]:
    yield ok(f"python {sys.version.split()[0]}")
    yield java()
    for name in session.PACKAGES:
        yield package(name)
    yield from reachability(options)


# --- what is installed ------------------------------------------------------------------------


def java() -> Finding:
    path = session.java()
    if path is None:
        return error(
            f"java is not installed, or not on PATH: install version {session.OLDEST_JAVA} or later"
        )
    found = session.java_version(path)
    if not found:
        return warning(f"java does not report its version ({path})")
    if session.major(found) < session.OLDEST_JAVA:
        return error(
            f"java {found} is too old: install version {session.OLDEST_JAVA} or later ({path})"
        )
    return ok(f"java {found} ({path})")


def package(name: str) -> Finding:
    oldest = ".".join(map(str, OLDEST[name]))
    try:
        found = version(name)
    except PackageNotFoundError:
        return error(f"{name} is not installed: {session.INSTALL}")
    if tuple(int(part) for part in re.findall(r"[0-9]+", found)[:2]) < OLDEST[name]:
        return error(f"{name} {found} is older than {oldest}: {session.INSTALL}")
    return ok(f"{name} {found}")


# --- what answers -----------------------------------------------------------------------------


def reachability(options: Options) -> Iterator[Finding]:
    if find_spec("pyarrow") is None:
        yield warning("nsqds are not checked, because pyarrow is not installed")
        return
    from nsqcy.spark.discovery import Discovery
    from nsqcy.spark.errors import NsqError
    from nsqcy.spark.options import parse

    given = options.source()
    subject = given.keys() & {"topic", "topics", "topicsPattern"}
    try:
        asked = parse(given if subject else given | {"topic": "any"})
        discovery = Discovery(asked)
        discovery.refresh(tries=1)
    except NsqError as reason:
        yield error(with_remedy(reason.args[0]))
        return
    if asked.lookupds:
        yield ok(f"lookupd {', '.join(asked.lookupds)}")
    state = checkpoint.Checkpoint(-1, -1, {})
    if options["checkpoint"]:
        state, found = saved(Path(options["checkpoint"]))
        yield found
    topics = discovery.topics() if subject else []
    addresses = sorted({each for topic in topics for each in discovery.nsqds(topic)})
    if not addresses and not asked.nsqds:
        yield error("no nsqlookupd lists an nsqd that has the topic")
    for address in addresses or asked.nsqds:
        yield from nsqd(address, asked, topics, state)
    if topics:
        yield from copied_disks(asked)


def saved(path: Path) -> tuple[checkpoint.Checkpoint, Finding]:
    try:
        found = checkpoint.read(path)
    except checkpoint.Unreadable as reason:
        return checkpoint.Checkpoint(-1, -1, {}), error(f"checkpoint: {reason}")
    if found.planned < 0:
        return found, warning(f"checkpoint {path}: no batch yet")
    return found, ok(f"checkpoint {path}: batch {found.committed} has been written")


def nsqd(
    address: str, asked: "SourceOptions", topics: list[str], state: checkpoint.Checkpoint
) -> Iterator[Finding]:
    from nsqcy.spark.errors import NoTopic, NsqError
    from nsqcy.spark.log_client import Connection

    try:
        connection = Connection(address, asked.access)
    except NsqError as reason:
        yield error(with_remedy(reason.args[0]))
        return
    try:
        yield ok(f"nsqd {address} has logs to read")
        for topic in topics:
            try:
                yield from log(address, connection.meta(topic), state.pos.get(topic, {}))
            except NoTopic:
                yield warning(f"nsqd {address} has no topic {topic!r}")
    except NsqError as reason:
        yield error(with_remedy(reason.args[0]))
    finally:
        connection.close()


def copied_disks(asked: "SourceOptions") -> Iterator[Finding]:
    from nsqcy.spark.cluster import Cluster
    from nsqcy.spark.errors import CopiedDisk, NsqError

    cluster = Cluster(asked)
    try:
        cluster.view()
    except CopiedDisk as reason:
        yield error(reason.args[0])
    except NsqError:
        return  # the checks of the nsqds have reported the error
    finally:
        cluster.close()


def log(address: str, meta: dict[str, Any], pos: dict[str, int]) -> Iterator[Finding]:
    """Check one log of a topic: the records that it keeps, and the lag of a job."""
    who = f"topic {meta['topic']!r} on {address}"
    first, following = meta["first_seq"], meta["next_seq"]
    retention = meta["retention"]
    if retention is None and not meta["cursors"]:
        yield error(
            f"{who} keeps no log: start nsqd with --retention-time, or set a retention policy"
        )
        return
    yield ok(f"{who}: {following - first:,} records in {meta['bytes']:,} bytes, {kept(retention)}")
    for cursor in meta["cursors"]:
        say = error if cursor["overrun"] else ok
        yield say(
            f"{who}: cursor {cursor['name']!r} is {cursor['lag']:,} records behind"
            f"{', and retention has removed records after it' if cursor['overrun'] else ''}"
        )
    seq = pos.get(meta["log_id"])
    if seq is not None:
        yield lag(who, seq, first, following)


def kept(retention: dict[str, int] | None) -> str:
    if retention is None:
        return "kept for cursors only"
    limits = []
    if retention["time"]:
        limits.append(f"kept for {retention['time'] / HOURS:g} h")
    if retention["bytes"]:
        limits.append(f"kept up to {retention['bytes']:,} bytes")
    return " and ".join(limits) or "kept without limit"


def lag(who: str, seq: int, first: int, following: int) -> Finding:
    """Check the job to which the checkpoint belongs: retention removes records before `first`."""
    if seq < first:
        return error(f"{who}: retention removed {first - seq:,} records that the job has not read")
    behind = following - seq
    text = f"{who}: the job is {behind:,} records behind"
    if following > first and behind > NEAR_THE_END * (following - first):
        return warning(f"{text}, more than half of the kept records")
    return ok(text)
