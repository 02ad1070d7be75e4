"""The `nsqcy doctor` command line: prints lines or JSON.

Exit codes:

    0  no problems; warnings and notes do not count
    1  problems found
    2  invalid command line
"""

from collections.abc import Sequence
from typing import Any

from nsqcy.cluster.web_client import WebClient
from nsqcy.config import files, loader
from nsqcy.config.arguments import Parser
from nsqcy.config.durations import SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, DURATION, STRING, WORDS
from nsqcy.config.policies import NOT_NEGATIVE
from nsqcy.doctor import (
    cluster,
    copies,
    disk,
    host,
    look_cluster,
    look_config,
    look_host,
    report,
    topics,
)
from nsqcy.doctor.checks import Judged, run
from nsqcy.doctor.look_cluster import Addresses
from nsqcy.errors import Stop
from nsqcy.logging.logger import write
from nsqcy.options.option import Option, Rule
from nsqcy.tools import cluster_flags

HOST = (
    Option("host", BOOL, True, "check this host"),
    Option("config", STRING, "", "INI or TOML configuration file of a daemon on this host"),
    Option(
        "daemon",
        STRING,
        "",
        "daemon that the configuration file is for; default: the daemon named in it, or nsqd",
        rule=Rule(f"one of {', '.join(files.DAEMONS)}", ("", *files.DAEMONS).__contains__),
    ),
    Option("data-path", STRING, "", "nsqd's data path; overrides the configuration file"),
)
CLUSTER = (
    Option("cluster", BOOL, True, "check the cluster"),
    Option("lookupd-http-address", WORDS, (), "host:port or URL of an nsqlookupd to query"),
    Option("nsqd-http-address", WORDS, (), "host:port or URL of an nsqd to query"),
    Option(
        "watch",
        DURATION,
        2 * SECOND,
        "time between two queries to each nsqd, to detect changes; 0 queries once",
        rule=NOT_NEGATIVE,
    ),
    *cluster_flags.REQUESTS,
)
OUTPUT = (
    Option("json", BOOL, False, "print JSON"),
    Option("quiet", BOOL, False, "print only checks that are not ok"),
    Option("checks", BOOL, False, "print the table of all checks and exit"),
)
SECTIONS = {"host": HOST, "cluster": CLUSTER, "output": OUTPUT}


def main(words: Sequence[str]) -> int:
    """Collect facts, run the checks and print the findings. Return the exit code."""
    try:
        flags = parse(words)
        if flags["checks"]:
            write(1, report.table())
            return 0
        found = look_and_judge(flags)
    except Stop as stop:
        return loader.report(stop, "nsqcy doctor")
    shown = report.not_ok(found) if flags["quiet"] else found
    if flags["json"]:
        write(1, report.as_json(shown))
    else:
        write(1, report.lines(shown) + ("" if flags["quiet"] else report.summary(found)))
    return report.exit_code(found)


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the parsed flags. Raises Stop."""
    parser = Parser("nsqcy doctor", "Check this host and a cluster, and give advice.", SECTIONS)
    flags = parser.values(words)
    cluster_flags.check_addresses(flags)
    return flags


def look_and_judge(flags: dict[str, Any]) -> list[Judged]:
    settings, file = look_config.read(flags["config"], flags["daemon"])
    if flags["data_path"] and "data_path" in settings.values:
        settings.values["data_path"] = flags["data_path"]
    found = []
    if flags["host"]:
        facts = look_host.look(look_config.wanted(settings), settings, file)
        found += run((*host.CHECKS, *disk.CHECKS, *copies.OF_HOST), facts)
    if flags["cluster"]:
        asked = _addresses(flags, settings)
        web = WebClient(cluster_flags.terms(flags))
        seen = look_cluster.look(asked, web, flags["watch"] / SECOND)
        found += run((*cluster.CHECKS, *topics.CHECKS, *copies.OF_CLUSTER), seen)
    return found


def _addresses(flags: dict[str, Any], settings: Settings) -> Addresses:
    lookupds, nsqds = flags["lookupd_http_address"], flags["nsqd_http_address"]
    if lookupds or nsqds:
        return Addresses(lookupds, nsqds)
    return look_config.addresses(settings, given=bool(flags["config"]))
