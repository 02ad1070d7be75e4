"""nsqd's options: the table, their types, and the checks that values must pass at startup.

Owns every flag and its default. nsqcy.config reads flags and files; nothing here opens a file or a
socket.
"""

import os
import re
import zlib
from collections.abc import Iterator, Mapping

from nsqcy.config.daemon_options import (
    CONFIG,
    DEBUG_REMOTE,
    HTTP_IDLE_TIMEOUT,
    LOG_FORMAT,
    LOG_LEVEL,
    VERBOSE,
    VERSION,
    auth_file,
    check_auth_file,
    hostname,
    log_prefix,
    obey_rules,
    refuse,
)
from nsqcy.config.durations import HOUR, MILLISECOND, MINUTE, SECOND
from nsqcy.config.file_settings import PatternSection
from nsqcy.config.loader import Settings
from nsqcy.config.options import (
    BOOL,
    DURATION,
    FLOAT,
    FLOATS,
    INT,
    STRING,
    TLS_NOT_REQUIRED,
    TLS_REQUIRED,
    TLS_REQUIREMENT,
    TLS_VERSION,
    WORDS,
    Options,
    Section,
)
from nsqcy.config.policies import (
    CHANNEL_KEYS,
    CHANNEL_PATTERN_ALLOWED,
    DURABILITY,
    MAX_DEFER_TIMEOUT,
    MAX_MSG_SIZE,
    MEM_QUEUE_SIZE,
    MSG_TIMEOUT,
    NOT_NEGATIVE,
    PATTERN_ALLOWED,
    POSITIVE,
    RETENTION_BYTES,
    RETENTION_TIME,
    TOPIC_KEYS,
    UNORDERED,
    Policies,
    TopicPolicy,
    can_match,
    can_match_channels,
)
from nsqcy.errors import ConfigError, all_of
from nsqcy.names import EVENTS_TOPIC, host_port, is_valid_name, quote
from nsqcy.nsqd.address_warnings import suspicious_addresses
from nsqcy.options.option import Option, Rule
from nsqcy.process.limits import available_memory, usable_cpus

TOPOLOGY_AWARE_CONSUMPTION = "topology-aware-consumption"
EXPERIMENTS = frozenset({TOPOLOGY_AWARE_CONSUMPTION})
REQUIRE_VERIFY = "require-verify"
CLIENT_AUTH_POLICIES = frozenset({"", "require", REQUIRE_VERIFY})
TLS_1_0 = 769

MAX_WORKERS = 64
# More than four workers pay off only with a large number of connections: set --workers in that
# case.
DEFAULT_MAX_WORKERS = 4
# Limit for incomplete commands per worker: fifty bodies of the default --max-body-size.
# Well-behaved clients send far less at the same time, and machines that run a queue have this much
# memory.
DEFAULT_MAX_INPUT_BYTES = 256 << 20


def default_node_id() -> int:
    """Return NSQ's hash of the host name, so that a node keeps its ID when it migrates to nsqcy."""
    import hashlib

    digest = hashlib.md5(os.fsencode(hostname()), usedforsecurity=False).digest()
    return zlib.crc32(digest) % 1024


def default_workers() -> int:
    return min(usable_cpus(), DEFAULT_MAX_WORKERS)


NO_SCAN = "has no effect: timeouts are exact, so queues are not scanned"


class NsqdOptions(
    Options, program="nsqd", by_pattern={"topic": TOPIC_KEYS, "channel": CHANNEL_KEYS}
):
    """Every option of a running nsqd. Durations are in nanoseconds, the level is log.DEBUG to
    FATAL, tls_required is 0, 1 (all but plain HTTP) or 2, tls_min_version is TLS's own number."""

    _basic = Section("Basic")
    version = VERSION
    config = CONFIG
    log_level = LOG_LEVEL
    log_prefix = log_prefix("nsqd")
    log_format = LOG_FORMAT
    verbose = VERBOSE
    node_id = Option(
        "node-id",
        INT,
        default_node_id,
        "this node's number; part of every message id",
        default_text="hash of the host name",
        example=0,
        toml_key="id",
        rule=Rule("[0,1024)", lambda value: 0 <= value < 1024),
    )
    worker_id = Option(
        "worker-id",
        BOOL,
        False,
        "deprecated, no effect; use --node-id",
        in_file=False,
        notice="is deprecated and has no effect; use --node-id",
    )
    workers = Option(
        "workers",
        INT,
        default_workers,
        "number of worker processes",
        default_text="usable CPUs, at most 4",
        example=DEFAULT_MAX_WORKERS,
        rule=Rule(f"[1,{MAX_WORKERS}]", lambda value: 1 <= value <= MAX_WORKERS),
    )
    move_sessions = Option(
        "move-sessions",
        BOOL,
        True,
        "migrate plain connections to the worker that owns their topic, and producers away from a "
        "busy worker",
    )

    _network = Section("Network")
    tcp_address = Option(
        "tcp-address", STRING, "0.0.0.0:4150", "host:port or unix socket path for TCP clients"
    )
    http_address = Option(
        "http-address",
        STRING,
        "0.0.0.0:4151",
        "host:port or unix socket path for HTTP clients; if empty, HTTP is disabled",
    )
    https_address = Option(
        "https-address",
        STRING,
        "0.0.0.0:4152",
        "host:port for HTTPS clients, used only with a certificate; if empty, HTTPS is disabled",
    )
    debug_remote = DEBUG_REMOTE
    broadcast_address = Option(
        "broadcast-address",
        STRING,
        hostname,
        "address announced to nsqlookupd",
        default_text="the host name",
        example="localhost",
    )
    broadcast_tcp_port = Option(
        "broadcast-tcp-port", INT, 0, "TCP port announced to nsqlookupd; 0 for the bound port"
    )
    broadcast_http_port = Option(
        "broadcast-http-port", INT, 0, "HTTP port announced to nsqlookupd; 0 for the bound port"
    )
    lookupd_tcp_address = Option(
        "lookupd-tcp-address",
        WORDS,
        (),
        "host:port of an nsqlookupd to register with",
        toml_key="nsqlookupd_tcp_addresses",
        runtime=True,
    )
    lookupd_auth_token_file = Option(
        "lookupd-auth-token-file",
        STRING,
        "",
        "file with the token that authenticates this nsqd to nsqlookupds that use an --auth-file",
    )
    auth_file = auth_file("nsqd")
    auth_http_address = Option(
        "auth-http-address",
        WORDS,
        (),
        "host:port or URL of an auth server; clients then need AUTH",
        toml_key="auth_http_addresses",
        guard=True,
    )
    auth_http_request_method = Option(
        "auth-http-request-method",
        STRING,
        "get",
        "HTTP method of requests to auth servers",
        rule=Rule("post or get", lambda value: value in ("post", "get")),
    )
    peek_without_auth = Option(
        "peek-without-auth",
        BOOL,
        False,
        "allow viewing messages over HTTP even if consumers need AUTH",
        guard=True,
    )
    http_client_connect_timeout = Option(
        "http-client-connect-timeout",
        DURATION,
        2 * SECOND,
        "connect timeout for outgoing HTTP requests",
    )
    http_client_request_timeout = Option(
        "http-client-request-timeout",
        DURATION,
        5 * SECOND,
        "total timeout for outgoing HTTP requests",
    )
    http_idle_timeout = HTTP_IDLE_TIMEOUT
    topology_region = Option("topology-region", STRING, "", "this node's region")
    topology_zone = Option("topology-zone", STRING, "", "this node's zone")
    enable_experiment = Option(
        "enable-experiment",
        WORDS,
        (),
        f"experiment to enable: {TOPOLOGY_AWARE_CONSUMPTION}",
    )

    _storage = Section("Storage")
    data_path = Option(
        "data-path",
        STRING,
        "",
        "existing directory for all data; by default, the working directory",
    )
    mem_queue_size = MEM_QUEUE_SIZE
    max_bytes_per_file = Option(
        "max-bytes-per-file",
        INT,
        100 << 20,
        "maximum file size in bytes; a larger log continues in a new file",
    )
    sync_every = Option(
        "sync-every",
        INT,
        2500,
        "number of messages after which a file is synced; topics of class os use only sync-timeout",
    )
    sync_timeout = Option(
        "sync-timeout", DURATION, 2 * SECOND, "time after which a file is synced", rule=POSITIVE
    )
    memory_bytes = Option(
        "memory-bytes",
        INT,
        0,
        "bytes of messages that each worker may keep in memory; 0: half of the free memory, "
        "divided among the workers",
        rule=NOT_NEGATIVE,
    )
    key_index_bytes = Option(
        "key-index-bytes",
        INT,
        256 << 20,
        "bytes that a worker may use to index channels with rules for keys; of a large key, the "
        "oldest messages are indexed",
        rule=POSITIVE,
    )
    durability = DURABILITY
    retention_time = RETENTION_TIME
    retention_bytes = RETENTION_BYTES
    log_hold_max_bytes = Option(
        "log-hold-max-bytes",
        INT,
        10 << 30,
        "maximum bytes that named cursors keep beyond a topic's retention, per topic",
        rule=NOT_NEGATIVE,
    )
    log_cursor_expiry = Option(
        "log-cursor-expiry",
        DURATION,
        7 * 24 * HOUR,
        "time after which an unused named cursor is deleted",
        rule=POSITIVE,
    )
    min_free_disk = Option(
        "min-free-disk",
        INT,
        0,
        "minimum free disk space in bytes; below it, publishes that must be written to disk are "
        "refused",
        rule=NOT_NEGATIVE,
    )
    hung_disk_timeout = Option(
        "hung-disk-timeout",
        DURATION,
        30 * SECOND,
        "time that a publish waits for a hung disk before nsqd disconnects the client; "
        "an exiting nsqd waits twice as long",
        rule=POSITIVE,
    )
    upgrade_drain = Option(
        "upgrade-drain",
        DURATION,
        10 * MINUTE,
        "time after an upgrade until connections that an old process encrypts are closed; 0: never",
        rule=NOT_NEGATIVE,
    )
    queue_scan_worker_pool_max = Option(
        "queue-scan-worker-pool-max",
        INT,
        4,
        "accepted for compatibility; no effect",
        notice=NO_SCAN,
    )
    queue_scan_selection_count = Option(
        "queue-scan-selection-count",
        INT,
        20,
        "accepted for compatibility; no effect",
        notice=NO_SCAN,
    )

    _messages = Section("Messages and commands")
    msg_timeout = MSG_TIMEOUT
    max_msg_timeout = Option(
        "max-msg-timeout",
        DURATION,
        15 * MINUTE,
        "maximum message timeout that a client may request, or reach with TOUCH",
    )
    max_msg_size = MAX_MSG_SIZE
    max_req_timeout = Option(
        "max-req-timeout", DURATION, HOUR, "maximum delay of a requeue or of a deferred publish"
    )
    max_defer_timeout = MAX_DEFER_TIMEOUT
    max_body_size = Option(
        "max-body-size", INT, 5 << 20, "maximum size of a command body, in bytes"
    )
    max_input_bytes = Option(
        "max-input-bytes",
        INT,
        DEFAULT_MAX_INPUT_BYTES,
        "maximum bytes of partially received commands in each worker; further clients wait",
        rule=POSITIVE,
    )

    _clients = Section("Limits for client requests")
    max_heartbeat_interval = Option(
        "max-heartbeat-interval",
        DURATION,
        MINUTE,
        "maximum heartbeat interval that a client may request",
    )
    max_rdy_count = Option("max-rdy-count", INT, 2500, "maximum RDY count of a client")
    max_output_buffer_size = Option(
        "max-output-buffer-size",
        INT,
        64 << 10,
        "maximum output buffer size that a client may request, in bytes",
    )
    max_output_buffer_timeout = Option(
        "max-output-buffer-timeout",
        DURATION,
        30 * SECOND,
        "maximum time between flushes that a client may request",
    )
    min_output_buffer_timeout = Option(
        "min-output-buffer-timeout",
        DURATION,
        25 * MILLISECOND,
        "minimum time between flushes that a client may request",
    )
    output_buffer_timeout = Option(
        "output-buffer-timeout",
        DURATION,
        250 * MILLISECOND,
        "time between flushes for clients that request none",
        rule=POSITIVE,
    )
    max_channel_consumers = Option(
        "max-channel-consumers",
        INT,
        0,
        "maximum number of consumers per channel on this node; 0 for no limit",
    )
    max_topics = Option(
        "max-topics",
        INT,
        0,
        "maximum number of topics, 0 for no limit; topics on disk are always loaded",
        rule=NOT_NEGATIVE,
    )

    _statistics = Section("Statistics")
    events = Option(
        "events",
        BOOL,
        False,
        f"publish events about messages in channels to the {EVENTS_TOPIC} topic",
    )
    events_sample = Option(
        "events-sample",
        FLOAT,
        1.0,
        "share of messages whose events are published: all events of a message, or none",
        example=0.01,
        rule=Rule("[0,1]", lambda value: 0 <= value <= 1),
    )
    statsd_address = Option(
        "statsd-address",
        STRING,
        "",
        "host:port of a statsd server (UDP); if empty, nothing is pushed",
    )
    statsd_prefix = Option(
        "statsd-prefix",
        STRING,
        "nsq.%s",
        "prefix of statsd keys; %s is replaced with host and port",
    )
    statsd_interval = Option("statsd-interval", DURATION, MINUTE, "time between pushes to statsd")
    statsd_mem_stats = Option("statsd-mem-stats", BOOL, True, "also push memory statistics")
    statsd_udp_packet_size = Option(
        "statsd-udp-packet-size", INT, 508, "maximum size of a statsd packet, in bytes"
    )
    statsd_exclude_ephemeral = Option(
        "statsd-exclude-ephemeral", BOOL, False, "exclude ephemeral topics and channels"
    )
    metrics_max_series = Option(
        "metrics-max-series",
        INT,
        10_000,
        "maximum number of topics and channels with their own series in /metrics; all others are "
        "summed",
        rule=NOT_NEGATIVE,
    )
    e2e_processing_latency_percentile = Option(
        "e2e-processing-latency-percentile",
        FLOATS,
        (),
        "percentiles of the time from publish to finish, each in (0,1]",
        toml_key="e2e_processing_latency_percentiles",
    )
    e2e_processing_latency_window_time = Option(
        "e2e-processing-latency-window-time",
        DURATION,
        10 * MINUTE,
        "time window of the end-to-end latency percentiles",
    )

    _encryption = Section("TLS and compression")
    tls_cert = Option("tls-cert", STRING, "", "path to the TLS certificate (PEM)", guard=True)
    tls_key = Option("tls-key", STRING, "", "path to the TLS key (PEM)", guard=True)
    tls_client_auth_policy = Option(
        "tls-client-auth-policy",
        STRING,
        "",
        "client certificates: require, require-verify, or empty if not required",
        rule=Rule("require, require-verify or empty", lambda value: value in CLIENT_AUTH_POLICIES),
        guard=True,
    )
    tls_root_ca_file = Option(
        "tls-root-ca-file",
        STRING,
        "",
        "path to the CA certificates (PEM) that client certificates are verified against",
        guard=True,
    )
    tls_required = Option(
        "tls-required",
        TLS_REQUIREMENT,
        TLS_NOT_REQUIRED,
        "require clients to use TLS: false, true, or tcp-https (plain HTTP is still allowed)",
        guard=True,
    )
    tls_min_version = Option(
        "tls-min-version",
        TLS_VERSION,
        TLS_1_0,
        "minimum TLS version: tls1.0 to tls1.3; by default, versions before tls1.2 are refused",
        guard=True,
    )
    deflate = Option("deflate", BOOL, True, "allow deflate compression")
    max_deflate_level = Option(
        "max-deflate-level",
        INT,
        6,
        "maximum deflate level that a client may request",
        rule=Rule("[1,9]", lambda value: 1 <= value <= 9),
    )
    snappy = Option("snappy", BOOL, True, "allow snappy compression")

    _copies = Section("Copies")
    etcd_endpoints = Option(
        "etcd-endpoints",
        WORDS,
        (),
        "URL of an etcd server that coordinates topics with copies on other machines",
    )
    etcd_user = Option(
        "etcd-user", STRING, "", "etcd user name; if empty, nsqd does not authenticate"
    )
    etcd_password_file = Option(
        "etcd-password-file", STRING, "", "path to a file that contains the etcd user's password"
    )
    etcd_ca_file = Option(
        "etcd-ca-file",
        STRING,
        "",
        "path to the CA certificates (PEM) that etcd is verified against; if empty, the system's "
        "CAs are used",
        guard=True,
    )
    etcd_cert_file = Option(
        "etcd-cert-file", STRING, "", "path to the client certificate for etcd (PEM)"
    )
    etcd_key_file = Option(
        "etcd-key-file", STRING, "", "path to the key of the client certificate for etcd (PEM)"
    )
    cluster = Option(
        "cluster",
        STRING,
        "default",
        "name of the cluster of nsqds that keep copies of each other's messages; clusters can "
        "share an etcd",
        rule=Rule("a valid topic name", is_valid_name),
    )
    copies_address = Option(
        "copies-address",
        STRING,
        "0.0.0.0:4154",
        "host:port for copies from other nsqds; worker N listens on port + N, or on any free "
        "port if the port is 0",
    )
    copies_broadcast_address = Option(
        "copies-broadcast-address",
        STRING,
        "",
        "address to which other nsqds connect to send copies to this one; if empty, "
        "--broadcast-address is used",
    )
    copies_secret_file = Option(
        "copies-secret-file",
        STRING,
        "",
        "path to a file that contains the secret shared by all nsqds in the cluster",
        guard=True,
    )
    copies_tls_cert = Option(
        "copies-tls-cert",
        STRING,
        "",
        "path to this node's certificate for copies (PEM); if set, both sides verify each other",
        guard=True,
    )
    copies_tls_key = Option(
        "copies-tls-key",
        STRING,
        "",
        "path to the key of this node's certificate for copies (PEM)",
        guard=True,
    )
    copies_tls_root_ca_file = Option(
        "copies-tls-root-ca-file",
        STRING,
        "",
        "path to the CA certificates (PEM) that verify all nodes' certificates",
        guard=True,
    )
    copies_lease = Option(
        "copies-lease",
        DURATION,
        10 * SECOND,
        "time after which other machines take over the topics of an unresponsive node",
        rule=Rule("[2s,10m]", lambda value: 2 * SECOND <= value <= 10 * MINUTE),
    )
    copies_timeout = Option(
        "copies-timeout",
        DURATION,
        10 * SECOND,
        "time that a machine may take to confirm messages before it is replaced",
        rule=Rule("[1s,10m]", lambda value: SECOND <= value <= 10 * MINUTE),
    )
    copies_scrub_rate = Option(
        "copies-scrub-rate",
        INT,
        4 << 20,
        "bytes per second that each worker reads in the background to repair damaged copies; "
        "0 for none",
        rule=Rule("[0,1073741824]", lambda value: 0 <= value <= 1 << 30),
    )

    @property
    def wants_auth(self) -> bool:
        return bool(self.auth_file or self.auth_http_address)

    @property
    def may_peek(self) -> bool:
        """Return whether HTTP may show messages.

        Auth servers do not cover HTTP; without a users file, peeking would bypass AUTH.
        """
        return self.peek_without_auth or bool(self.auth_file) or not self.auth_http_address


NSQD = NsqdOptions.table


def resolve(settings: Settings) -> NsqdOptions:
    """Check and complete nsqd's options, and return them; raise StartError if an option is invalid.

    Problems that do not prevent startup are added to the warnings in `settings`.
    """
    options = NsqdOptions(settings.values)
    # In NSQ's order, because only the first error is reported.
    obey_rules(settings, ("max_deflate_level", "node_id", "tls_client_auth_policy"))
    options = _check_tls(settings, options)
    obey_rules(settings, ("auth_http_request_method",))
    _check_percentiles(settings, options)
    obey_rules(settings, settings.values)
    check_auth_file(settings)
    _check_statsd(settings, options)
    errors = [error for each in settings.patterns for error in _pattern_errors(options, each)]
    if errors:
        raise all_of(errors)
    _warn(settings, options)
    return options.replace(
        max_input_bytes=_input_bytes(settings, options),
        memory_bytes=options.memory_bytes or available_memory() // 2 // options.workers,
    )


def policies(settings: Settings, options: NsqdOptions) -> Policies:
    """Combine the options with the file's [topic] and [channel] sections."""
    sections = settings.patterns
    return Policies(
        TopicPolicy(options.durability, options.retention_time, options.retention_bytes),
        [(each.pattern, each.values) for each in sections if each.kind == "topic"],
        [(each.pattern, each.values) for each in sections if each.kind == "channel"],
    )


_DEFER_RULE = Rule(  # the sum with the time since 1970 fits into 64 bits
    "[1ms,876000h]", lambda value: MILLISECOND <= value <= 876_000 * HOUR
)


def policy_rule(options: NsqdOptions, keys: Mapping[str, Option], key: str) -> Rule | None:
    """Return the rule for a policy value: the key's own rule, or the limit set by a daemon
    option. `keys`: those of topics or those of channels."""
    if key == "max_msg_size":
        larger = options.max_body_size >= options.max_msg_size
        flag = "--max-body-size" if larger else "--max-msg-size"
        return _between(1, max(options.max_msg_size, options.max_body_size), flag)
    if key == "min_msg_size":
        return _between(0, options.max_msg_size, "--max-msg-size")
    if key == "max_defer_timeout":
        return _DEFER_RULE
    if key == "copies" and not options.etcd_endpoints:
        return Rule("1, because --etcd-endpoints is not set", lambda value: value == 1)
    if key == "msg_timeout":
        return _between(MILLISECOND, options.max_msg_timeout, "--max-msg-timeout")
    return keys[key].rule


def _between(minimum: int, maximum: int, flag: str) -> Rule:
    kind = NSQD.by_flag[flag[2:]].kind
    text = f"[{kind.show(minimum)},{kind.show(maximum)}], as {flag} is {kind.show(maximum)}"
    return Rule(text, lambda value: minimum <= value <= maximum)


def derive(options: NsqdOptions, ports: Mapping[str, int]) -> NsqdOptions:
    """Complete the options once the sockets are bound; `ports` is keyed by listener kind."""
    options = options.replace(
        broadcast_tcp_port=options.broadcast_tcp_port or ports["tcp"],
        broadcast_http_port=options.broadcast_http_port or ports.get("http", 0),
    )
    return options.replace(statsd_prefix=_statsd_prefix(options))


def _statsd_prefix(options: NsqdOptions) -> str:
    """Replace each %s with the address, in statsd key characters, and end with a dot."""
    host, port = options.broadcast_address, options.broadcast_http_port
    address = host_port(host, port)
    prefix = options.statsd_prefix.replace("%s", re.sub("[.:]", "_", address))
    return prefix if not prefix or prefix.endswith(".") else prefix + "."


def _check_tls(settings: Settings, options: NsqdOptions) -> NsqdOptions:
    """Check that a client policy implies TLS, and that TLS has a certificate and its key."""
    if options.tls_client_auth_policy and options.tls_required == TLS_NOT_REQUIRED:
        options = options.replace(tls_required=TLS_REQUIRED)
    if bool(options.tls_cert) != bool(options.tls_key):
        given, missing = ("cert", "key") if options.tls_cert else ("key", "cert")
        text = f"failed to build TLS config - --tls-{given} needs --tls-{missing}"
        raise refuse(settings, text, f"tls_{given}")
    if options.tls_required != TLS_NOT_REQUIRED and not options.tls_cert:
        name = "tls_required" if "tls_required" in settings.given else "tls_client_auth_policy"
        text = "cannot require TLS client connections without TLS key and cert"
        raise refuse(settings, text, name)
    if _trusts_the_system(options) and "tls_root_ca_file" in settings.given:
        text = (
            "--tls-root-ca-file is empty: set it to a file, or omit the option to accept "
            "certificates from all CAs that the system trusts"
        )
        raise refuse(settings, text, "tls_root_ca_file")
    return options.replace(tls_min_version=options.tls_min_version or TLS_1_0)


def _trusts_the_system(options: NsqdOptions) -> bool:
    """Return whether client certificates are verified against the system's CAs."""
    return options.tls_client_auth_policy == REQUIRE_VERIFY and not options.tls_root_ca_file


def asks_for_tls_version(settings: Settings) -> bool:
    """Return whether the minimum TLS version was set explicitly."""
    return "tls_min_version" in settings.given and bool(settings["tls_min_version"])


def _check_percentiles(settings: Settings, options: NsqdOptions) -> None:
    name = "e2e_processing_latency_percentile"
    window = options.e2e_processing_latency_window_time
    for percentile in options.e2e_processing_latency_percentile:
        if not 0 < percentile <= 1:  # written so that NaN also fails
            shown = str(percentile).removesuffix(".0")
            text = f"invalid E2E processing latency percentile: {shown}"
            raise refuse(settings, text, name)
    if options.e2e_processing_latency_percentile and window <= 0:
        text = "--e2e-processing-latency-window-time must be > 0"
        raise refuse(settings, text, "e2e_processing_latency_window_time")


def _check_statsd(settings: Settings, options: NsqdOptions) -> None:
    if options.statsd_address and options.statsd_interval <= SECOND:
        raise refuse(settings, "--statsd-interval must be > 1s", "statsd_interval")


def _pattern_errors(options: NsqdOptions, section: PatternSection) -> Iterator[ConfigError]:
    of_topics = section.kind == "topic"
    if not (can_match if of_topics else can_match_channels)(section.pattern):
        problem = f"no {section.kind} can match {quote(section.pattern)}"
        allowed = PATTERN_ALLOWED if of_topics else CHANNEL_PATTERN_ALLOWED
        yield ConfigError(section.path, section.line, problem, allowed)
    keys = NSQD.by_pattern[section.kind]
    for name, value in section.values.items():
        rule = policy_rule(options, keys, name)
        if section.values.get("order") and name == "urgent_first":
            rule = UNORDERED
        if rule and not rule.holds(value):
            problem = f"{name}: invalid value {quote(keys[name].show(value))}"
            yield ConfigError(section.path, section.lines[name], problem, rule.text)


def _warn(settings: Settings, options: NsqdOptions) -> None:
    settings.warnings += suspicious_addresses(settings)
    if _trusts_the_system(options):
        settings.warnings.append(
            "--tls-client-auth-policy=require-verify without --tls-root-ca-file accepts "
            "certificates from all CAs that the system trusts"
        )
    for experiment in options.enable_experiment:
        if experiment not in EXPERIMENTS:
            settings.warnings.append(
                f"--enable-experiment {quote(experiment)} is unknown and ignored"
                f" (allowed: {', '.join(sorted(EXPERIMENTS))}){settings.where('enable_experiment')}"
            )


def _input_bytes(settings: Settings, options: NsqdOptions) -> int:
    """Return a limit no smaller than the largest command, which otherwise could never arrive."""
    largest = max(options.max_msg_size, options.max_body_size)
    if options.max_input_bytes >= largest:
        return options.max_input_bytes
    if "max_input_bytes" in settings.given:
        text = f"--max-input-bytes must be >= --max-msg-size and --max-body-size ({largest})"
        raise refuse(settings, text, "max_input_bytes")
    return largest
