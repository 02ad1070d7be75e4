"""--consumer-opt and --producer-opt: maps options of NSQ's client to keywords of our client.

Owns the names, the ranges and the mapping. nsqcy.config.options parses flags; nsqcy.client
implements the keywords.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqcy.config.durations import (
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    format_duration,
    parse_duration,
)
from nsqcy.config.options import STRINGS, parse_bool, parse_float, parse_int, toml_strings
from nsqcy.options.option import Expected, Kind, Option, suggestion
from nsqcy.tools.common import ToolError
from nsqcy.users import token_file

if TYPE_CHECKING:
    import ssl

Scalar = bool | int | float | str
Read = Mapping[str, Any]  # the options given: name -> value, durations in nanoseconds

# Defaults of NSQ's client that differ from ours or that validation needs.
HEARTBEAT_INTERVAL = 30 * SECOND
READ_TIMEOUT = 60 * SECOND
GO_DEFAULTS: dict[str, Scalar] = {
    "max_tries": 5,
    "requeue_delay": 90.0,
    "requeue_strategy": "linear",
    "max_backoff_duration": 120.0,
}


class Bounded(NamedTuple):
    """The parser for an option's text, and the bounds for its value."""

    parse: Callable[[str], Scalar]
    low: float | None = None
    high: float | None = None
    show: Callable[[Any], str] = str


def _duration(low: int | None = None, high: int | None = None) -> Bounded:
    return Bounded(parse_duration, low, high, format_duration)


def _word(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _heartbeat(text: str) -> int:
    return -1 if text == "-1" else parse_duration(text)


def _local_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port[:6]) > 65535:
        raise ValueError("not host:port")
    return text


def _readable(path: str) -> str:
    try:
        with open(path, "rb"):
            return path
    except (OSError, ValueError) as error:
        raise ValueError(f"open {path}: {getattr(error, 'strerror', error)}".lower()) from None


_BOOL = Bounded(parse_bool)
_INT = Bounded(parse_int)
_TEXT = Bounded(str)
_FILE = Bounded(_readable)
_DELAY = _duration(0, HOUR)

OPTIONS: dict[str, Bounded] = {
    "dial_timeout": _duration(),
    "read_timeout": _duration(100 * MILLISECOND, 5 * MINUTE),
    "write_timeout": _duration(100 * MILLISECOND, 5 * MINUTE),
    "local_addr": Bounded(_local_address),
    "lookupd_poll_interval": _duration(10 * MILLISECOND, 5 * MINUTE),
    "lookupd_poll_jitter": Bounded(parse_float, 0, 1),
    "lookupd_poll_timeout": _duration(),
    "max_requeue_delay": _DELAY,
    "default_requeue_delay": _DELAY,
    "backoff_strategy": Bounded(_word("exponential", "full_jitter")),
    "max_backoff_duration": _DELAY,
    "backoff_multiplier": _DELAY,
    "max_attempts": Bounded(parse_int, 0, 65535),
    "low_rdy_idle_timeout": _duration(SECOND, 5 * MINUTE),
    "low_rdy_timeout": _duration(SECOND, 5 * MINUTE),
    "rdy_redistribute_interval": _duration(MILLISECOND, 5 * SECOND),
    "client_id": _TEXT,
    "hostname": _TEXT,
    "user_agent": _TEXT,
    "heartbeat_interval": Bounded(_heartbeat, show=format_duration),
    "sample_rate": Bounded(parse_int, 0, 99),
    "tls_v1": _BOOL,
    "tls_root_ca_file": _FILE,
    "tls_cert": _FILE,
    "tls_key": _FILE,
    "tls_insecure_skip_verify": _BOOL,
    "tls_min_version": Bounded(_word("ssl3.0", "tls1.0", "tls1.1", "tls1.2")),
    "deflate": _BOOL,
    "deflate_level": Bounded(parse_int, 1, 9),
    "snappy": _BOOL,
    "output_buffer_size": _INT,
    "output_buffer_timeout": _duration(),
    "max_in_flight": Bounded(parse_int, 0),
    "msg_timeout": _duration(0),
    "auth_secret": _TEXT,
    "trust_lookupd": _BOOL,
    "skip_lookupd_authorization": _BOOL,
    "lookupd_authorization": _BOOL,
}


def read_one(text: str) -> tuple[str, Any]:
    """Parse `option,value`, or `option` alone, which means `option,true`. Raises ValueError."""
    name, comma, value = text.partition(",")
    name = name.replace("-", "_")
    rule = OPTIONS.get(name)
    if rule is None:
        raise Expected(f"invalid option {name}{suggestion(name, OPTIONS)}")
    try:
        if not comma and rule is not _BOOL:
            raise ValueError("a value is required")
        read: Any = rule.parse(value if comma else "true")
    except ValueError as error:
        raise Expected(f"failed to coerce option {name} ({value}) - {error}") from None
    if rule.low is not None and read < rule.low:
        raise Expected(f"invalid {name} ! {rule.show(read)} < {rule.show(rule.low)}")
    if rule.high is not None and read > rule.high:
        raise Expected(f"invalid {name} ! {rule.show(read)} > {rule.show(rule.high)}")
    return name, read


def _parse_flag(text: str) -> tuple[str, ...]:
    read_one(text)
    return (text,)


CLIENT_OPTION = Kind(
    "value",
    "option,value",
    _parse_flag,
    STRINGS.show,
    typed=STRINGS.typed,
    toml=toml_strings,
    combine=STRINGS.combine,
)

CONSUMER_OPT = Option("consumer-opt", CLIENT_OPTION, (), "option,value for the consumer")
PRODUCER_OPT = Option("producer-opt", CLIENT_OPTION, (), "option,value for the producer")


def consumer_keywords(options: Sequence[str], **defaults: Scalar) -> dict[str, Any]:
    """Return the keywords for nsqcy.client's consumers. `defaults` replace those of NSQ's client.
    Raises ToolError for conflicting options."""
    given = _read(options)
    return GO_DEFAULTS | defaults | _connection(given) | _translated(given, _CONSUMER)


def producer_keywords(options: Sequence[str]) -> dict[str, Any]:
    """Return the keywords for producers. Consumer options have no effect."""
    return _connection(_read(options))


def _read(options: Sequence[str]) -> Read:
    """Parse the options. If an option is repeated, its last value applies."""
    given: dict[str, Any] = dict(map(read_one, options))
    beat = given.get("heartbeat_interval", HEARTBEAT_INTERVAL)
    patience = given.get("read_timeout", READ_TIMEOUT)
    if beat > patience:
        beat, patience = format_duration(beat), format_duration(patience)
        raise ToolError(f"HeartbeatInterval {beat} must be less than ReadTimeout {patience}")
    if given.get("deflate") and given.get("snappy"):
        raise ToolError("E_IDENTIFY_FAILED cannot enable both deflate and snappy compression")
    return given


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / SECOND


def _seconds_or_off(nanoseconds: int) -> float:
    return -1 if nanoseconds < 0 else nanoseconds / SECOND


def _milliseconds_or_off(nanoseconds: int) -> int:
    return -1 if nanoseconds < 0 else nanoseconds // MILLISECOND


def _same(value: Scalar) -> Scalar:
    return value


# Option -> keyword, and the conversion of its value.
_CONNECTION: dict[str, tuple[str, Callable[[Any], Scalar]]] = {
    "local_addr": ("local_address", _same),
    "client_id": ("client_id", _same),
    "hostname": ("hostname", _same),
    "heartbeat_interval": ("heartbeat_interval", _seconds_or_off),
    "sample_rate": ("sample_rate", _same),
    "tls_v1": ("tls_v1", _same),
    "deflate": ("deflate", _same),
    "deflate_level": ("deflate_level", _same),
    "snappy": ("snappy", _same),
    "output_buffer_size": ("output_buffer_size", _same),
    "output_buffer_timeout": ("output_buffer_timeout", _milliseconds_or_off),
    "msg_timeout": ("msg_timeout", _seconds),
    "auth_secret": ("auth_secret", _same),
    "trust_lookupd": ("trust_lookupd", _same),
}
_CONSUMER: dict[str, tuple[str, Callable[[Any], Scalar]]] = {
    "lookupd_poll_interval": ("lookupd_poll_interval", _seconds),
    "lookupd_poll_jitter": ("lookupd_poll_jitter", _same),
    "lookupd_poll_timeout": ("lookupd_request_timeout", _seconds),
    "max_requeue_delay": ("max_requeue_delay", _seconds),
    "default_requeue_delay": ("requeue_delay", _seconds),
    "backoff_strategy": ("backoff_strategy", _same),
    "max_backoff_duration": ("max_backoff_duration", _seconds),
    "backoff_multiplier": ("backoff_multiplier", _seconds),
    "max_attempts": ("max_tries", _same),
    "low_rdy_idle_timeout": ("low_rdy_idle_timeout", _seconds),
    "low_rdy_timeout": ("low_rdy_timeout", _seconds),
    "rdy_redistribute_interval": ("rdy_redistribute_interval", _seconds),
    # Despite its name, true means that the secret is sent to nsqlookupds.
    "skip_lookupd_authorization": ("lookupd_authorization", _same),
    "lookupd_authorization": ("lookupd_authorization", _same),
}
# Accepted but have no effect: reads end after two missed heartbeats, and the tool sets the other
# options itself.
_UNUSED = frozenset({"read_timeout", "user_agent", "max_in_flight"})
# Options that are combined into one keyword.
_TIMEOUTS = ("dial_timeout", "write_timeout")
_TLS = (
    "tls_root_ca_file",
    "tls_cert",
    "tls_key",
    "tls_insecure_skip_verify",
    "tls_min_version",
)


def _translated(
    given: Read, table: Mapping[str, tuple[str, Callable[[Any], Scalar]]]
) -> dict[str, Any]:
    return {table[name][0]: table[name][1](value) for name, value in given.items() if name in table}


def _connection(given: Read) -> dict[str, Any]:
    keywords = _translated(given, _CONNECTION)
    if "auth_secret" not in given and (token := token_file.of_command("")):
        keywords["auth_secret"] = token
    if timeouts := [given[name] for name in _TIMEOUTS if name in given]:
        keywords["timeout"] = max(timeouts) / SECOND
    if given.get("tls_v1") and any(name in given for name in _TLS):
        keywords["tls_options"] = _tls_context(given)
    return keywords


def _tls_context(given: Read) -> "ssl.SSLContext":
    import ssl

    versions = {
        "ssl3.0": ssl.TLSVersion.MINIMUM_SUPPORTED,
        "tls1.0": ssl.TLSVersion.TLSv1,
        "tls1.1": ssl.TLSVersion.TLSv1_1,
        "tls1.2": ssl.TLSVersion.TLSv1_2,
    }
    try:
        context = ssl.create_default_context(cafile=given.get("tls_root_ca_file"))
    except (OSError, ValueError) as error:
        file = given.get("tls_root_ca_file")
        raise ToolError(f"cannot load certificates: {file}: {error}") from None
    context.hostname_checks_common_name = False  # only subject alternative names count
    if "tls_cert" in given:
        certificate, key = given["tls_cert"], given.get("tls_key")
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ValueError) as error:
            from nsqcy.util import pem_files  # slow to import

            reason = pem_files.explain(certificate, key or certificate, error)
            raise ToolError(f"cannot load certificates: {reason}") from None
    if given.get("tls_insecure_skip_verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "tls_min_version" in given:
        context.minimum_version = versions[given["tls_min_version"]]
    return context
