"""The options of connections, consumers and producers, and their defaults.

Owns what a value may be: nonsense is a ValueError (a wrong name a TypeError) where the consumer or
producer is made, and not an error of some nsqd later. Durations are seconds. Knows no connection.

Source: the table "options side by side" of NSQ's clients; the names are pynsq's where it has one.
"""

import math
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self, TypedDict

from nsqcy import __version__
from nsqcy.client.flow import FlowSettings
from nsqcy.config.policies import DURABILITIES
from nsqcy.names import quote

DEFAULT_PORT = 4150
USER_AGENT = f"nsqcy/{__version__}"

Addresses = str | Iterable[str]
TlsOptions = Mapping[str, Any] | ssl.SSLContext


class ConnectionKeywords(TypedDict, total=False):
    """What a connection can be told, by keyword; see ConnectionOptions."""

    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval: float
    output_buffer_size: int
    output_buffer_timeout: int
    msg_timeout: float | None
    sample_rate: int
    tls_v1: bool
    tls_options: TlsOptions | None
    deflate: bool
    deflate_level: int
    snappy: bool
    auth_secret: str | None
    timeout: float
    local_address: str | None
    max_msg_size: int
    durability: str | None
    headers: bool
    topology_region: str
    topology_zone: str


class ConsumerKeywords(ConnectionKeywords, total=False):
    """What a consumer can be told, by keyword; see ConsumerOptions."""

    max_tries: int
    max_attempts: int
    max_in_flight: int
    requeue_delay: float
    max_requeue_delay: float
    backoff_on_requeue: bool
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_connect_timeout: float
    lookupd_request_timeout: float
    lookupd_authorization: bool
    low_rdy_idle_timeout: float
    low_rdy_timeout: float
    rdy_redistribute_interval: float
    max_backoff_duration: float
    backoff_multiplier: float
    backoff_strategy: str
    close_timeout: float


class ProducerKeywords(ConnectionKeywords, total=False):
    """What a producer can be told, by keyword; see ProducerOptions."""

    retries: int
    max_pending: int
    reconnect_interval: float
    max_reconnect_interval: float
    lookupd_poll_interval: float
    lookupd_poll_jitter: float
    lookupd_connect_timeout: float
    lookupd_request_timeout: float
    lookupd_authorization: bool
    close_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What IDENTIFY says, and how the connection is made.

    heartbeat_interval       seconds between nsqd's heartbeats; -1 for none
    output_buffer_size       bytes nsqd may gather before it sends; -1 for none
    output_buffer_timeout    milliseconds it may wait for that; -1 not to
    msg_timeout              seconds until nsqd delivers an unanswered message again; None: nsqd's
    sample_rate              percent of the channel's messages wanted; 0: all
    tls_v1, tls_options      TLS, verified unless told otherwise: an ssl.SSLContext, or a mapping of
                             ca_certs, certfile, keyfile, cert_reqs, check_hostname, ciphers
    deflate, snappy          compression; one of them
    auth_secret              sent if nsqd asks for it
    timeout                  seconds to connect, and to send what is left at the end; a handshake
                             has as many, and 10 at least
    local_address            host[:port] to connect from
    max_msg_size             bytes of the longest message accepted; 0: any
    durability               what a publish has to survive before it is answered: "memory", "os" or
                             "fsync", if its topic does not promise more; None: what that promises.
                             An nsqd that does not know of it is refused
    headers                  whether messages have headers: those of delivered messages are there,
                             and publishes may have some. An nsqd that does not know of them is
                             refused
    """

    client_id: str = ""
    hostname: str = ""
    user_agent: str = USER_AGENT
    heartbeat_interval: float = 30.0
    output_buffer_size: int = 16384
    output_buffer_timeout: int = 250
    msg_timeout: float | None = None
    sample_rate: int = 0
    tls_v1: bool = False
    tls_options: TlsOptions | None = None
    deflate: bool = False
    deflate_level: int = 6
    snappy: bool = False
    auth_secret: str | None = None
    timeout: float = 1.0
    local_address: str | None = None
    max_msg_size: int = 0
    durability: str | None = None
    headers: bool = False
    topology_region: str = ""
    topology_zone: str = ""
    # Made once of tls_options: all connections have it.
    tls_context: ssl.SSLContext | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("client_id", "hostname", "user_agent", "topology_region", "topology_zone"):
            _of_type(name, getattr(self, name), str)
        for name in ("auth_secret", "local_address"):
            if getattr(self, name) is not None:
                _of_type(name, getattr(self, name), str)
        if self.deflate and self.snappy:
            raise ValueError("deflate and snappy exclude each other")
        _whole("output_buffer_size", self.output_buffer_size, -1)
        _whole("output_buffer_timeout", self.output_buffer_timeout, -1)
        _whole("deflate_level", self.deflate_level, 1, 9)
        _whole("sample_rate", self.sample_rate, 0, 99)
        _whole("max_msg_size", self.max_msg_size, 0, 0x7FFFFFFF - 64)
        if self.durability is not None:
            known = self.durability in DURABILITIES
            _check(known, "durability", self.durability, ", ".join(DURABILITIES))
        if self.heartbeat_interval != -1:
            _positive("heartbeat_interval", self.heartbeat_interval, " or -1")
        _positive("timeout", self.timeout)
        if self.msg_timeout is not None:
            _not_negative("msg_timeout", self.msg_timeout)
        if self.tls_options is not None and not self.tls_v1:
            raise ValueError("tls_options needs tls_v1=True")
        context = tls_context(self.tls_options) if self.tls_v1 else None
        object.__setattr__(self, "tls_context", context)
        _ = self.local  # raises

    @property
    def local(self) -> tuple[str, int] | None:
        """Host and port to connect from. Raises ValueError."""
        if self.local_address is None:
            return None
        if self.local_address.endswith(":0"):  # any port, which is nobody's address
            return Address.parse(self.local_address[:-2]).host, 0
        address = Address.parse(self.local_address, 0)
        return address.host, address.port

    @property
    def identity(self) -> dict[str, object]:
        """What IDENTIFY sends."""
        hostname = self.hostname or socket.gethostname()
        short = self.client_id or hostname.partition(".")[0]
        identity: dict[str, object] = {
            "client_id": short,
            "hostname": hostname,
            "short_id": short,
            "long_id": hostname,
            "user_agent": self.user_agent,
            "feature_negotiation": True,
            "heartbeat_interval": _milliseconds(self.heartbeat_interval),
            "output_buffer_size": self.output_buffer_size,
            "output_buffer_timeout": self.output_buffer_timeout,
            "tls_v1": self.tls_v1,
            "deflate": self.deflate,
            "deflate_level": self.deflate_level,
            "snappy": self.snappy,
            "sample_rate": self.sample_rate,
        }
        if self.msg_timeout:
            identity["msg_timeout"] = _milliseconds(self.msg_timeout)
        if self.topology_region or self.topology_zone:
            identity["topology_region"] = self.topology_region
            identity["topology_zone"] = self.topology_zone
        if self.durability is not None:
            identity["durability"] = self.durability
        if self.headers:
            identity["headers"] = True
        return identity


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """How lookupds are asked.

    lookupd_poll_interval    seconds between rounds
    lookupd_poll_jitter      share of the interval by which the rounds of one program are shifted
    lookupd_connect_timeout, lookupd_request_timeout    seconds of one request
    lookupd_authorization    whether auth_secret is sent to them
    """

    lookupd_poll_interval: float = 60.0
    lookupd_poll_jitter: float = 0.3
    lookupd_connect_timeout: float = 1.0
    lookupd_request_timeout: float = 2.0
    lookupd_authorization: bool = True

    def __post_init__(self) -> None:
        _positive("lookupd_poll_interval", self.lookupd_poll_interval)
        _within("lookupd_poll_jitter", self.lookupd_poll_jitter, 0, 1)
        _positive("lookupd_connect_timeout", self.lookupd_connect_timeout)
        _positive("lookupd_request_timeout", self.lookupd_request_timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How a consumer answers for its messages.

    max_tries            deliveries after which a message is given up; 0: none
    requeue_delay        seconds, times its attempts: when a failed message comes again
    max_requeue_delay    seconds that delay has at most
    backoff_on_requeue   whether a handler that returns False slows the consumer down, or only one
                         that fails
    close_timeout        seconds a graceful close waits for messages in flight
    """

    max_tries: int = 5
    requeue_delay: float = 90.0
    max_requeue_delay: float = 900.0
    backoff_on_requeue: bool = True
    close_timeout: float = 30.0

    def __post_init__(self) -> None:
        _whole("max_tries", self.max_tries, 0)
        _not_negative("requeue_delay", self.requeue_delay)
        _not_negative("max_requeue_delay", self.max_requeue_delay)
        _not_negative("close_timeout", self.close_timeout)

    def delay_of(self, attempts: int) -> int:
        """Milliseconds until a failed message of so many attempts comes again."""
        return _milliseconds(min(self.requeue_delay * attempts, self.max_requeue_delay))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer reacts.

    retries                   how often a publish that failed is tried on another nsqd
    max_pending               bytes of publishes without an answer; beyond, publishers wait
    reconnect_interval, max_reconnect_interval    seconds; the first doubles up to the second
    close_timeout             seconds a close waits for answers
    """

    retries: int = 3
    max_pending: int = 64 << 20
    reconnect_interval: float = 0.5
    max_reconnect_interval: float = 15.0
    close_timeout: float = 30.0

    def __post_init__(self) -> None:
        _whole("retries", self.retries, 0)
        _whole("max_pending", self.max_pending, 1)
        _positive("reconnect_interval", self.reconnect_interval)
        _positive("max_reconnect_interval", self.max_reconnect_interval)
        _not_negative("close_timeout", self.close_timeout)


def consumer_options(
    keywords: Mapping[str, Any],
) -> tuple[ConsumerOptions, FlowSettings, LookupOptions, ConnectionOptions]:
    """Keywords of a consumer, sorted by whom they concern."""
    given = dict(keywords)
    if "max_attempts" in given:
        if "max_tries" in given:
            raise TypeError("max_tries and max_attempts are two names of one option")
        given["max_tries"] = given.pop("max_attempts")
    parts = (ConsumerOptions, FlowSettings, LookupOptions, ConnectionOptions)
    sorted_ = _sort("Consumer", given, *parts)
    return (
        parts[0](**sorted_[0]),
        parts[1](**sorted_[1]),
        parts[2](**sorted_[2]),
        parts[3](**sorted_[3]),
    )


def producer_options(
    keywords: Mapping[str, Any],
) -> tuple[ProducerOptions, LookupOptions, ConnectionOptions]:
    """Keywords of a producer, sorted by whom they concern."""
    first, second, third = _sort(
        "Producer", keywords, ProducerOptions, LookupOptions, ConnectionOptions
    )
    return ProducerOptions(**first), LookupOptions(**second), ConnectionOptions(**third)


def _sort(what: str, given: Mapping[str, Any], *parts: Any) -> list[dict[str, Any]]:
    left = dict(given)
    found = [
        {each.name: left.pop(each.name) for each in fields(part) if each.init and each.name in left}
        for part in parts
    ]
    if left:
        raise TypeError(f"{what} has no option {quote(min(left))}")
    return found


@dataclass(frozen=True, slots=True)
class Address:
    """Where an nsqd listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, default_port: int = DEFAULT_PORT) -> Self:
        """`host`, `host:port`, `[v6]:port`. Raises ValueError."""
        host, port = text, ""
        if text.startswith("["):
            host, closed, port = text[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise ValueError(f"{quote(text)} is no address: [v6-address]:port is one")
            port = port[1:]
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        if not host or "/" in host or "," in host:
            raise ValueError(f"{quote(text)} is no address: host:port is one")
        number = int(port) if port.isdecimal() and len(port) < 6 else -1
        if port and not 0 < number < 65536:
            raise ValueError(f"{quote(text)} has no port of 1 to 65535")
        return cls(host, number if port else default_port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def nsqd_addresses(addresses: Addresses) -> tuple[Address, ...]:
    """One address or several, each once, in order. Raises ValueError and TypeError."""
    return tuple(dict.fromkeys(Address.parse(each) for each in as_strings(addresses)))


def as_strings(addresses: Addresses) -> tuple[str, ...]:
    given = (addresses,) if isinstance(addresses, str) else tuple(addresses)
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"an address is a str, not {type(each).__name__}")
    return tuple(each.strip() for each in given)


def lookupd_addresses(addresses: Addresses) -> tuple[str, ...]:
    """host:port or URL of one or several. Raises ValueError and TypeError."""
    given = tuple(dict.fromkeys(as_strings(addresses)))
    if given:
        # Whoever has fixed nsqds does without an HTTP client.
        from nsqcy.cluster.discovery import lookup_url

        for each in given:
            lookup_url(each, "topic")
    return given


def tls_context(options: TlsOptions | None) -> ssl.SSLContext:
    """How servers are verified and who we are. Raises ValueError for an unknown option, and for
    files that cannot be read."""
    if isinstance(options, ssl.SSLContext):
        return options
    left = dict(options or {})
    allowed = ("ca_certs", "certfile", "keyfile", "cert_reqs", "check_hostname", "ciphers")
    for name in left.keys() - set(allowed):
        raise ValueError(f"tls_options has no {quote(name)} (allowed: {', '.join(allowed)})")
    try:
        return _make_context(left)
    except OSError as error:  # that of OpenSSL is one too
        raise ValueError(f"tls_options: {error}") from error


def _make_context(left: dict[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=left.pop("ca_certs", None))
    if "check_hostname" in left:
        context.check_hostname = bool(left.pop("check_hostname"))
    if "cert_reqs" in left:
        required = left.pop("cert_reqs")
        if required != ssl.CERT_REQUIRED:
            context.check_hostname = False
        context.verify_mode = required
    certificate, key = left.pop("certfile", None), left.pop("keyfile", None)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    if (ciphers := left.pop("ciphers", None)) is not None:
        context.set_ciphers(ciphers)
    return context


def _milliseconds(seconds: float) -> int:
    return -1 if seconds == -1 else round(seconds * 1000)


def _check(good: bool, name: str, value: object, allowed: str) -> None:
    if not good:
        raise ValueError(f"{name} cannot be {value!r} (allowed: {allowed})")


def _of_type(name: str, value: object, *types: type) -> None:
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{name} cannot be {value!r} (allowed: {types[0].__name__})")


def _whole(name: str, value: int, least: int, most: int | None = None) -> None:
    _of_type(name, value, int)
    allowed = f"{least} or more" if most is None else f"{least} to {most}"
    _check(least <= value and (most is None or value <= most), name, value, allowed)


def _within(name: str, value: float, least: float, most: float) -> None:
    _of_type(name, value, float, int)
    _check(least <= value <= most, name, value, f"{least} to {most}")


def _positive(name: str, value: float, more: str = "") -> None:
    _of_type(name, value, float, int)
    _check(0 < value < math.inf, name, value, f"more than 0{more}")


def _not_negative(name: str, value: float) -> None:
    _of_type(name, value, float, int)
    _check(0 <= value < math.inf, name, value, "0 or more")


Callback = Callable[..., object]
