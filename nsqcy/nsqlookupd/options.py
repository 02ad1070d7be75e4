"""nsqlookupd's options: the table and their types.

Owns every flag and its default. nsqcy.config parses flags and files. Opens no file or socket.
"""

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
from nsqcy.config.durations import MINUTE, SECOND
from nsqcy.config.loader import Settings
from nsqcy.config.options import BOOL, DURATION, INT, STRING, Options, Section
from nsqcy.options.option import Option, Rule

MIN_INPUT_BYTES = 4 << 20


class LookupdOptions(Options, program="nsqlookupd"):
    """The option values of one nsqlookupd. Durations are int nanoseconds."""

    _basic = Section("Basic")
    version = VERSION
    config = CONFIG
    log_level = LOG_LEVEL
    log_prefix = log_prefix("nsqlookupd")
    log_format = LOG_FORMAT
    verbose = VERBOSE

    _network = Section("Network")
    tcp_address = Option(
        "tcp-address", STRING, "0.0.0.0:4160", "host:port for TCP connections from nsqds"
    )
    http_address = Option("http-address", STRING, "0.0.0.0:4161", "host:port for HTTP clients")
    broadcast_address = Option(
        "broadcast-address",
        STRING,
        hostname,
        "address of this nsqlookupd, as announced to nsqds",
        default_text="the host name",
        example="localhost",
    )
    debug_remote = DEBUG_REMOTE
    auth_file = auth_file("nsqlookupd")
    require_registration_auth = Option(
        "require-registration-auth",
        BOOL,
        False,
        "refuse nsqds that do not authenticate as a user who may register; needs --auth-file",
        guard=True,
    )
    max_input_bytes = Option(
        "max-input-bytes",
        INT,
        64 << 20,
        "maximum bytes of partially received commands and requests, across all connections",
        rule=Rule(f">= {MIN_INPUT_BYTES}", lambda value: value >= MIN_INPUT_BYTES),
    )
    http_idle_timeout = HTTP_IDLE_TIMEOUT

    _producers = Section("Producers")
    inactive_producer_timeout = Option(
        "inactive-producer-timeout",
        DURATION,
        5 * MINUTE,
        "time without a ping after which a producer is hidden",
    )
    tombstone_lifetime = Option(
        "tombstone-lifetime",
        DURATION,
        45 * SECOND,
        "how long a tombstone hides a topic's producer",
    )


NSQLOOKUPD = LookupdOptions.table


def resolve(settings: Settings) -> LookupdOptions:
    """Return the validated options. Raises StartError."""
    obey_rules(settings, settings.values)
    check_auth_file(settings)
    options = LookupdOptions(settings.values)
    if options.require_registration_auth and not options.auth_file:
        raise refuse(settings, "--require-registration-auth needs --auth-file")
    return options
