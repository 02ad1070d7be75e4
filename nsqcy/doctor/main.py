"""The `nsqcy doctor` command line: prints lines or JSON.

Exit codes:

    0  no errors; warnings and notes do not count, except with --fail-on=warning
    1  errors found
    2  invalid command line
"""

import time
from dataclasses import replace
from typing import Any

import click

from nsqcy.cluster.web_client import WebClient
from nsqcy.config.commands import TableCommand
from nsqcy.config.configuration_file import DAEMONS
from nsqcy.config.durations import SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, DURATION, STRING, WORDS
from nsqcy.config.policies import NOT_NEGATIVE
from nsqcy.doctor import (
    bundle,
    cluster,
    copies,
    disk,
    host,
    look_cluster,
    look_config,
    look_host,
    report,
    speed,
    topics,
)
from nsqcy.doctor.bundle import Seen
from nsqcy.doctor.checks import Judged, run
from nsqcy.doctor.findings import ERROR, WARNING
from nsqcy.doctor.look_cluster import Addresses
from nsqcy.doctor.watch import Watch
from nsqcy.options.option import Kind, Option, Rule
from nsqcy.tools import cluster_flags
from nsqcy.util.standard_streams import show

DEFAULT_INTERVAL = 10 * SECOND

HOST = (
    Option("host", BOOL, True, "check this host"),
    Option("config", STRING, "", "INI or TOML configuration file of a daemon on this host"),
    Option(
        "daemon",
        STRING,
        "",
        "daemon that the configuration file is for; default: the daemon named in it, or nsqd",
        rule=Rule(f"one of {', '.join(DAEMONS)}", ("", *DAEMONS).__contains__),
    ),
    Option("data-path", STRING, "", "nsqd's data path; overrides the configuration file"),
)
CLUSTER = (
    Option("cluster", BOOL, True, "check the cluster"),
    Option("lookupd-http-address", WORDS, (), "host:port or URL of an nsqlookupd to query"),
    Option("nsqd-http-address", WORDS, (), "host:port or URL of an nsqd to query"),
    Option(
        "sample",
        DURATION,
        2 * SECOND,
        "time between two queries to each nsqd, to detect changes; 0 queries once",
        rule=NOT_NEGATIVE,
    ),
    *cluster_flags.REQUESTS,
)
FAIL_ON = (WARNING, ERROR)
INTERVAL = Kind(
    "interval",
    DURATION.allowed,
    lambda text: DEFAULT_INTERVAL if text == "true" else DURATION.parse(text),
    DURATION.show,
    typed="int",
    bare=True,
)
OUTPUT = (
    Option(
        "watch",
        INTERVAL,
        0,
        "check repeatedly until ^C, at this interval (10s if no value is given), and print new and"
        " resolved findings",
        rule=NOT_NEGATIVE,
    ),
    Option(
        "fail-on",
        STRING,
        ERROR,
        f"the least severe level at which the exit code is 1: {' or '.join(FAIL_ON)}",
        rule=Rule(f"one of {', '.join(FAIL_ON)}", FAIL_ON.__contains__),
    ),
    Option("json", BOOL, False, "print JSON"),
    Option("quiet", BOOL, False, "print only checks that are not ok"),
    Option("checks", BOOL, False, "print the table of all checks and exit"),
)
BUNDLE = (
    Option(
        "bundle",
        STRING,
        "",
        "write a .tar.gz for a bug report to this new file, without secrets or message bodies",
    ),
    Option(
        "log-file",
        WORDS,
        (),
        "log file whose end is included; the systemd journal is always included",
    ),
)
SECTIONS = {"host": HOST, "cluster": CLUSTER, "output": OUTPUT, "bundle": BUNDLE}


@click.command(cls=TableCommand, sections=SECTIONS)
def doctor(**flags: Any) -> int:
    """Check this host and a cluster, and give advice."""
    cluster_flags.complete(flags)
    if flags["checks"]:
        show(report.list_of_checks())
        return 0
    if not flags["bundle"]:
        return watch(flags) if flags["watch"] else check(flags)
    if flags["watch"]:
        raise click.UsageError("--bundle cannot be combined with --watch")
    show(bundle.write(flags["bundle"], lambda: look(flags)))
    return 0


def check(flags: dict[str, Any]) -> int:
    found, fail_on = look_and_judge(flags), flags["fail_on"]
    shown = report.by_level(report.not_ok(found) if flags["quiet"] else found)
    if flags["json"]:
        show(report.as_json(shown, fail_on))
    else:
        scopes = [scope for scope in ("host", "cluster") if flags[scope]]
        summary = "" if flags["quiet"] else report.summary(found, scopes)
        show(report.lines(shown) + summary)
    return report.exit_code(found, fail_on)


def watch(flags: dict[str, Any]) -> int:
    """Check until ^C. Return the exit code for the latest findings."""
    rounds = Watch()
    changes = rounds.as_json if flags["json"] else rounds.lines
    found: list[Judged] = []
    try:
        while True:
            found = look_and_judge(flags)
            show(changes(found, time.strftime("%Y-%m-%d %H:%M:%S")))
            time.sleep(flags["watch"] / SECOND)
    except KeyboardInterrupt:
        return report.exit_code(found, flags["fail_on"])


def look_and_judge(flags: dict[str, Any]) -> list[Judged]:
    return look(flags).judged


def look(flags: dict[str, Any]) -> Seen:
    settings, file = look_config.read(flags["config"], flags["daemon"])
    if flags["data_path"] and "data_path" in settings.values:
        settings.values["data_path"] = flags["data_path"]
    found: list[Judged] = []
    seen = Seen(found, settings, file, logs=flags["log_file"])
    if flags["host"]:
        facts = look_host.look(look_config.wanted(settings), settings, file)
        found += run((*host.CHECKS, *disk.CHECKS, *copies.OF_HOST), facts)
    if flags["cluster"]:
        asked = _addresses(flags, settings)
        web = WebClient(cluster_flags.terms(flags, (*asked.lookupds, *asked.nsqds)))
        facts_of_cluster = look_cluster.look(asked, web, flags["sample"] / SECOND)
        checks = (*cluster.CHECKS, *topics.CHECKS, *speed.CHECKS, *copies.OF_CLUSTER)
        found += run(checks, facts_of_cluster)
        admins = look_config.admins(settings, given=file is not None)
        seen = seen._replace(cluster=facts_of_cluster, web=web, admins=admins)
    return seen


def _addresses(flags: dict[str, Any], settings: Settings) -> Addresses:
    lookupds, nsqds = flags["lookupd_http_address"], flags["nsqd_http_address"]
    if lookupds or nsqds:
        return Addresses(lookupds, nsqds)
    found = look_config.addresses(settings, given=bool(flags["config"]))
    # With --host=false, only the cluster is checked, so its addresses must be given.
    return replace(found, assumed=found.assumed and flags["host"])
