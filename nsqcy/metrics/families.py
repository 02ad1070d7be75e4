"""The table of all metrics: name, kind, labels and meaning of each family.

docs/METRICS.md is generated from it, tests check the dashboard and the alerts against it, and
daemons export no other metrics. Imports no slow module.
"""

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram", "info"]

OTHER, EPHEMERAL = "(other)", "#ephemeral"
"""Names for topics and channels without their own series; real topics cannot have these names."""


def _bounds(first: int) -> tuple[float, ...]:
    """Return the upper bounds of the buckets in seconds: powers of four, starting at 2^first ns."""
    return tuple((1 << first + 2 * number) / 1e9 for number in range(12))


AGE_BOUNDS = _bounds(18)
SYNC_BOUNDS = _bounds(16)
TURN_BOUNDS = _bounds(14)
REQUEST_BOUNDS = _bounds(16)


class Family(NamedTuple):
    """One family of metrics. `name` excludes the suffixes that a kind adds."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """Return the name of the family's samples. A histogram has three other names."""
        return self.name + {"counter": "_total", "info": "_info"}.get(self.kind, "")


def _topic(name: str, kind: Kind, help: str) -> Family:
    return Family(f"nsqd_topic_{name}", kind, help, ("topic",))


def _channel(name: str, kind: Kind, help: str) -> Family:
    return Family(f"nsqd_channel_{name}", kind, help, ("topic", "channel"))


# Families in the order of the figures in server/metrics.pyx.
TOPICS = (
    _topic("messages", "counter", "Messages published to the topic."),
    _topic("message_bytes", "counter", "Body bytes of messages published to the topic."),
    _topic(
        "dropped_messages",
        "counter",
        "Messages dropped before they reached a channel, because of a limit or their age.",
    ),
    _topic(
        "duplicates",
        "counter",
        "Publishes that were not kept, because they repeated a deduplication id; only for topics"
        " with dedup_window.",
    ),
    _topic(
        "dedup_ids_early",
        "counter",
        "Deduplication ids that nsqd forgot before the end of the window, because of dedup_ids;"
        " only for topics with dedup_window.",
    ),
    _topic("depth", "gauge", "Messages that are not in any channel yet."),
    _topic("disk_bytes", "gauge", "Size of the topic's files, in bytes."),
    _topic(
        "dedup_ids",
        "gauge",
        "Deduplication ids that nsqd remembers; only for topics with dedup_window.",
    ),
    _topic("paused", "gauge", "1 for a paused topic; other topics have no sample."),
)
AGES = _topic(
    "e2e_latency_seconds",
    "histogram",
    "Time from publish to FIN. FINs received together are all recorded with the time of the first"
    " message.",
)
CHANNELS = (
    _channel("messages", "counter", "Messages that the channel received."),
    _channel("deliveries", "counter", "Messages sent to consumers; each attempt counts."),
    _channel("finishes", "counter", "Messages finished by FIN."),
    _channel("requeues", "counter", "Messages requeued by REQ."),
    _channel("timeouts", "counter", "Messages that timed out in flight."),
    _channel("dead_letters", "counter", "Messages moved to the dead-letter topic."),
    _channel(
        "dropped_messages",
        "counter",
        "Messages dropped because of a limit or their age, or after the last attempt if there is no"
        " dead-letter topic.",
    ),
    _channel("depth", "gauge", "Messages waiting for a consumer."),
    _channel("in_flight_messages", "gauge", "Messages in flight: sent but not answered yet."),
    _channel("deferred_messages", "gauge", "Deferred messages, waiting for their due time."),
    _channel("consumers", "gauge", "Connected consumers."),
    _channel("paused", "gauge", "1 for a paused channel; other channels have no sample."),
    _channel(
        "keys_waiting",
        "gauge",
        "Keys with messages that could be delivered; only for channels with rules for keys.",
    ),
    _channel(
        "keys_blocked",
        "gauge",
        "Keys with messages that a rule or a pause forbids; only for channels with rules for keys.",
    ),
    _channel(
        "keys_blocked_long",
        "gauge",
        "Keys that are not paused, but blocked for 15 minutes or more; only for channels with rules"
        " for keys.",
    ),
    _channel("keys_paused", "gauge", "Paused keys; only for channels with rules for keys."),
)

SATURATED = _channel(
    "saturated_consumers",
    "gauge",
    "Consumers that have as many messages in flight as their RDY count while other messages are "
    "waiting, measured in the last 5 s; channels without such consumers have no sample.",
)

KEYS = CHANNELS[-4:]
PAUSED = (TOPICS[-1], CHANNELS[-5])
"""Exported only if they are 1, because most are always 0."""
OPTIONAL = (*PAUSED, *KEYS, *(each for each in TOPICS if "dup" in each.name))
"""Exported for all topics and channels together only if they are not 0."""

SUMMED = Family(
    "nsqd_metrics_summed",
    "gauge",
    "Topics and channels without their own series: those beyond --metrics-max-series are summed as "
    "(other), ephemeral ones as #ephemeral.",
    ("series", "kind"),
)
CONNECTIONS = Family("nsqd_connections", "gauge", "Open client connections.", ("worker", "kind"))
WORKER_UP = Family("nsqd_worker_up", "gauge", "1 while the worker serves clients.", ("worker",))
RESTARTS = Family("nsqd_worker_restarts", "counter", "Worker restarts.", ("worker",))
WORKER_BUILD = Family(
    "nsqd_worker_build",
    "info",
    "The nsqcy version that the worker runs; during an upgrade in place, workers may differ.",
    ("worker", "version"),
)
UPGRADES = Family(
    "nsqd_upgrades",
    "counter",
    "Upgrades in place by result: done; incomplete, if workers still run the previous version; "
    "reverted or failed, if all of nsqd does.",
    ("result",),
)
ACCEPT_PAUSES = Family(
    "nsqd_accept_pauses",
    "counter",
    "Pauses in accepting connections, because a process had no file descriptors left.",
)
TURNS = Family(
    "nsqd_turn_duration_seconds",
    "histogram",
    "Duration of the worker's event-loop iterations, from the first event to the next poll.",
    ("worker",),
)
SYNCS = Family(
    "nsqd_sync_duration_seconds",
    "histogram",
    "Duration of disk syncs, by I/O lane: syncs that publishers wait for, or background syncs.",
    ("worker", "lane"),
)
WRITES_FAIL = Family(
    "nsqd_write_failing",
    "gauge",
    "1 if the worker's latest write to a log failed; /ping then answers NOK.",
    ("worker",),
)
UNREADABLE = Family(
    "nsqd_unreadable_topics",
    "gauge",
    "Topics whose files cannot be read now. Their messages are not delivered until a read"
    " succeeds, and /ping answers NOK.",
    ("worker",),
)
DAMAGES = Family(
    "nsqd_damages",
    "counter",
    "Damaged parts that the worker has found in topic files; the records in them are lost.",
    ("worker",),
)
DISK_HANGS = Family(
    "nsqd_disk_hung",
    "gauge",
    "1 while one of the worker's disk operations has not returned for 5 s; /ping then answers NOK, "
    "and publishes that must be written are refused.",
    ("worker",),
)
TOPIC_COUNT = Family("nsqd_topics", "gauge", "Topics that the worker owns.", ("worker",))
MESSAGE_MEMORY = Family(
    "nsqd_message_memory_bytes", "gauge", "Memory used by messages, in bytes.", ("worker",)
)
MESSAGE_MEMORY_LIMIT = Family(
    "nsqd_message_memory_limit_bytes",
    "gauge",
    "Limit on the memory used by messages, in bytes; beyond it, messages are kept on disk only.",
    ("worker",),
)
RESIDENT = Family(
    "nsqd_process_resident_memory_bytes",
    "gauge",
    "Resident memory by process (a worker number, or master), in bytes.",
    ("process",),
)
CPU = Family(
    "nsqd_process_cpu_seconds",
    "counter",
    "User and system CPU time of a process, in seconds.",
    ("process",),
)
EVENTS = Family("nsqd_events", "counter", "Message events published, with --events.", ("worker",))
EVENTS_DROPPED = Family(
    "nsqd_events_dropped", "counter", "Message events dropped, with --events.", ("worker",)
)


def _copies(name: str, kind: Kind, help: str, *labels: str) -> Family:
    return Family(f"nsqd_copies_{name}", kind, help, ("worker", *labels))


COPIES_GROUPS = _copies("groups", "gauge", "Groups of copied topics, by this node's role.", "role")
# Families by their names in the worker's share.
COPIES = {
    "short": _copies(
        "short_groups", "gauge", "Owned groups that refuse publishes because copies are missing."
    ),
    "missing": _copies(
        "missing", "gauge", "Copies of owned groups that are missing or are not responding."
    ),
    "waiting": _copies(
        "waiting_changes", "gauge", "File changes not yet confirmed by all members."
    ),
    "bytes": _copies("bytes", "gauge", "Size of the files of all copies on this node, in bytes."),
    "draining": _copies(
        "draining_topics", "gauge", "Topics whose messages are being moved to another log."
    ),
    "damaged": _copies(
        "damaged_files",
        "gauge",
        "Damaged files of copies that could not yet be repaired from another copy.",
    ),
    "unreadable": _copies(
        "unreadable_files", "gauge", "Files of copies that could not be read when last verified."
    ),
    "mended": _copies(
        "mended", "counter", "Damaged parts of copies that were replaced from another node."
    ),
    "verified": _copies(
        "verified_bytes", "counter", "Bytes of copies that were read to verify them."
    ),
    "takeovers": _copies("takeovers", "counter", "Groups taken over from other nodes."),
    "etcd": _copies("etcd_up", "gauge", "1 while etcd responds."),
    "registry": _copies(
        "registry_ok",
        "gauge",
        "0 if the registry in etcd is missing, outdated or another cluster's.",
    ),
    "unregistered": _copies(
        "unregistered_groups", "gauge", "Groups of this node that are missing from the registry."
    ),
}


def _user(name: str, kind: Kind, help: str) -> Family:
    return Family(f"nsqd_user_{name}", kind, help, ("user",))


USER_WAITS = _user(
    "wait_seconds",
    "counter",
    "Total time that the user's TCP connections spent waiting because of the user's publish rate "
    "limit.",
)
# Families in the order of the quota figures.
USERS = (
    _user("connections", "gauge", "TCP connections of a user that has a quota."),
    _user(
        "refused_connections",
        "counter",
        "Connections refused because the user had reached the maximum number of connections.",
    ),
    _user("messages", "counter", "Messages published by the user, if the user has a rate limit."),
    _user(
        "message_bytes",
        "counter",
        "Body bytes of messages published by the user, if the user has a rate limit.",
    ),
    USER_WAITS,
    _user(
        "refused_publishes",
        "counter",
        "HTTP requests refused with 429 because of the user's rate limit.",
    ),
)
DISK_SIZE = Family(
    "nsqd_disk_size_bytes", "gauge", "Size of the data path's file system, in bytes."
)
DISK_FREE = Family(
    "nsqd_disk_free_bytes",
    "gauge",
    "Space on the data path's file system that is free for non-root users, in bytes.",
)
REFUSING = Family(
    "nsqd_refusing_publishes",
    "gauge",
    "1 while publishes are refused: all of them (draining), or those that must be written (disk).",
    ("reason",),
)
LOOKUPD_CONNECTED = Family(
    "nsqd_lookupd_connected",
    "gauge",
    "1 while all topics and channels of this nsqd are registered with the nsqlookupd.",
    ("lookupd",),
)
STARTED = Family("nsqd_start_time_seconds", "gauge", "Start time of nsqd, in seconds since 1970.")
BUILD = Family(
    "nsqd_build",
    "info",
    "The nsqcy version, the NSQ version that it is compatible with, and the commit that it was "
    "built from.",
    ("version", "nsq", "commit"),
)

OF_NSQD = (
    *TOPICS,
    AGES,
    *CHANNELS,
    SATURATED,
    SUMMED,
    CONNECTIONS,
    WORKER_UP,
    RESTARTS,
    WORKER_BUILD,
    UPGRADES,
    ACCEPT_PAUSES,
    TURNS,
    SYNCS,
    WRITES_FAIL,
    UNREADABLE,
    DAMAGES,
    DISK_HANGS,
    TOPIC_COUNT,
    MESSAGE_MEMORY,
    MESSAGE_MEMORY_LIMIT,
    RESIDENT,
    CPU,
    EVENTS,
    EVENTS_DROPPED,
    COPIES_GROUPS,
    *COPIES.values(),
    *USERS,
    DISK_SIZE,
    DISK_FREE,
    REFUSING,
    LOOKUPD_CONNECTED,
    STARTED,
    BUILD,
)


# Single-process daemons. These names and meanings are prometheus_client's.
PROCESS = (
    Family("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    Family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    ),
    Family("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds."),
    Family("process_max_fds", "gauge", "Maximum number of open file descriptors."),
    Family("process_open_fds", "gauge", "Number of open file descriptors."),
)


class OfHttp(NamedTuple):
    """Metrics for a daemon's HTTP server."""

    answers: Family
    times: Family
    connections: Family
    build: Family


def _of_http(daemon: str) -> OfHttp:
    return OfHttp(
        Family(
            f"{daemon}_http_requests",
            "counter",
            "Answered HTTP requests, by route; (none) for unknown paths.",
            ("method", "route", "status"),
        ),
        Family(
            f"{daemon}_http_request_duration_seconds",
            "histogram",
            "Time from a request's head to its response.",
            ("method", "route"),
        ),
        Family(
            f"{daemon}_connections", "gauge", "Open connections, by kind: tcp or http.", ("kind",)
        ),
        Family(f"{daemon}_build", "info", BUILD.help, BUILD.labels),
    )


HTTP_OF_NSQLOOKUPD = _of_http("nsqlookupd")
NODES = Family("nsqlookupd_nodes", "gauge", "nsqds that are registered and alive.")
TOPICS_KNOWN = Family("nsqlookupd_topics", "gauge", "Known topics.")
CHANNELS_KNOWN = Family("nsqlookupd_channels", "gauge", "Known channels of all topics.")
PRODUCERS = Family("nsqlookupd_producers", "gauge", "Pairs of a topic and a live nsqd that has it.")
TOMBSTONES = Family(
    "nsqlookupd_tombstones",
    "gauge",
    "Pairs of a topic and a live nsqd that are hidden by a tombstone.",
)

OF_NSQLOOKUPD = (
    NODES,
    TOPICS_KNOWN,
    CHANNELS_KNOWN,
    PRODUCERS,
    TOMBSTONES,
    *HTTP_OF_NSQLOOKUPD,
    *PROCESS,
)

HTTP_OF_NSQADMIN = _of_http("nsqadmin")
UPSTREAM_REQUESTS = Family(
    "nsqadmin_upstream_requests",
    "counter",
    "Requests to nsqds, nsqlookupds and other servers, by outcome: ok, timeout,"
    " unreachable (no answer), or bad (status 500 or higher, a redirect, or a response that is too"
    " long).",
    ("outcome",),
)
SESSIONS = Family("nsqadmin_sessions", "gauge", "Logged-in browsers, with --auth-file.")

OF_NSQADMIN = (UPSTREAM_REQUESTS, SESSIONS, *HTTP_OF_NSQADMIN, *PROCESS)

BY_DAEMON = {"nsqd": OF_NSQD, "nsqlookupd": OF_NSQLOOKUPD, "nsqadmin": OF_NSQADMIN}
