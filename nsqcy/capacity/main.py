"""The `nsqcy capacity` command line: prints a table or JSON.

Exit codes:

    0  success
    1  no number of such hosts can handle the load
    2  invalid command line
"""

from typing import Any

import click

from nsqcy.capacity import model, report
from nsqcy.capacity.model import Host, Impossible, Load
from nsqcy.config.commands import TableCommand
from nsqcy.config.durations import HOUR, MILLISECOND, SECOND
from nsqcy.config.options import BOOL, DURATION, FLOAT, INT, STRING
from nsqcy.config.policies import NOT_NEGATIVE, POSITIVE
from nsqcy.logging.logger import write
from nsqcy.options.option import Option, Rule
from nsqcy.util.standard_streams import show

CLASSES = ("memory", "os", "fsync")
GB, MB, MBIT = 1e9, 1e6, 125_000.0

SHARE = Rule("between 0 and 1", lambda value: 0 <= value <= 1)
PERCENT = Rule("between 0 and 95", lambda value: 0 <= value <= 95)
CLASS = Rule("memory, os, fsync", lambda value: value in CLASSES)

LOAD = (
    Option("rate", INT, None, "messages published per second, in total; required", rule=POSITIVE),
    Option("body-bytes", INT, 1000, "message size", rule=POSITIVE),
    Option("topics", INT, 1, "number of topics that share the load", rule=POSITIVE),
    Option("channels", INT, 1, "channels per topic", rule=NOT_NEGATIVE),
    Option(
        "connections", INT, 100, "number of publisher and consumer connections", rule=NOT_NEGATIVE
    ),
    Option("batch", INT, 1, "messages per publish; 1 for PUB, more for MPUB", rule=POSITIVE),
    Option("ready", INT, 100, "RDY count of each consumer, or its max_in_flight", rule=POSITIVE),
    Option("durability", STRING, "memory", "durability class of the topics", rule=CLASS),
    Option("tls", BOOL, False, "clients use TLS"),
    Option(
        "consumers-away",
        DURATION,
        HOUR,
        "maximum time that consumers may be offline or behind",
        rule=NOT_NEGATIVE,
    ),
    Option(
        "handling",
        DURATION,
        100 * MILLISECOND,
        "time that a consumer needs to finish a message",
        rule=NOT_NEGATIVE,
    ),
    Option(
        "retention",
        DURATION,
        0,
        "how long messages are retained, as in --retention-time",
        rule=NOT_NEGATIVE,
    ),
    Option("deferred", FLOAT, 0.0, "share of messages that are deferred", rule=SHARE),
    Option("delay", DURATION, 60 * SECOND, "delay of deferred messages", rule=NOT_NEGATIVE),
    Option(
        "sync-time",
        DURATION,
        5 * MILLISECOND,
        "duration of a disk sync, as measured by nsqcy doctor",
        rule=POSITIVE,
    ),
)
HOSTS = (
    Option("host-cores", INT, 4, "cores per nsqd", rule=POSITIVE),
    Option("host-memory-gb", FLOAT, 8.0, "memory per host", rule=POSITIVE),
    Option("host-disk-gb", FLOAT, 500.0, "disk size per host", rule=POSITIVE),
    Option("host-disk-mb", FLOAT, 200.0, "disk write throughput per host, in MB/s", rule=POSITIVE),
    Option(
        "host-network-mbit", FLOAT, 1000.0, "network bandwidth in each direction", rule=POSITIVE
    ),
    Option("core-speed", FLOAT, 1.0, "core speed relative to the benchmark machine", rule=POSITIVE),
    Option("headroom", INT, 50, "percentage of every resource to keep free", rule=PERCENT),
    Option("spare", INT, 1, "number of nsqds that may be offline", rule=NOT_NEGATIVE),
)
OUTPUT = (Option("json", BOOL, False, "print JSON"),)
SECTIONS = {"load": LOAD, "hosts": HOSTS, "output": OUTPUT}


@click.command(cls=TableCommand, sections=SECTIONS)
def capacity(**flags: Any) -> int:
    """Compute how many hosts a load needs."""
    if flags["rate"] is None:
        raise click.UsageError("--rate is required: messages published per second")
    try:
        found = model.plan(load_of(flags), host_of(flags), flags["headroom"] / 100)
    except Impossible as error:
        write(2, f"nsqcy capacity: {error}\n")
        return 1
    show((report.as_json if flags["json"] else report.as_text)(flags, found))
    return 0


def load_of(flags: dict[str, Any]) -> Load:
    return Load(
        rate=flags["rate"],
        body=flags["body_bytes"],
        topics=flags["topics"],
        channels=flags["channels"],
        connections=flags["connections"],
        batch=flags["batch"],
        ready=flags["ready"],
        durability=flags["durability"],
        tls=flags["tls"],
        away=flags["consumers_away"] / SECOND,
        handling=flags["handling"] / SECOND,
        retention=flags["retention"] / SECOND,
        deferred=flags["deferred"],
        delay=flags["delay"] / SECOND,
        sync=flags["sync_time"] / SECOND,
    )


def host_of(flags: dict[str, Any]) -> Host:
    return Host(
        cores=flags["host_cores"],
        speed=flags["core_speed"],
        memory=flags["host_memory_gb"] * GB,
        disk=flags["host_disk_gb"] * GB,
        disk_rate=flags["host_disk_mb"] * MB,
        network=flags["host_network_mbit"] * MBIT,
    )
