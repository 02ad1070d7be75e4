"""Options of connections, consumers and producers (table: docs/CLIENT.md).

Owns the allowed values. An invalid value raises ValueError, and an unknown name TypeError, when the
consumer or producer is created, rather than causing an nsqd error later. Durations are timedeltas
or numbers of seconds. Does not depend on connections.

Source: the "options side by side" table for NSQ's clients; options from pynsq keep their names.
"""

import inspect
import math
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from types import NoneType
from typing import Any, Literal, Self, TypedDict, TypeVar

from nsqcy import __version__
from nsqcy.client.flow import FlowSettings
from nsqcy.client.times import Duration, Milliseconds, without_timedeltas
from nsqcy.config.options import BOOL, FLOAT, INT, STRING
from nsqcy.config.policies import DURABILITIES
from nsqcy.names import host_port, quote
from nsqcy.options.fields import check, declared, option, refusal
from nsqcy.options.option import Rule

T = TypeVar("T")

DEFAULT_PORT = 4150
USER_AGENT = f"nsqcy/{__version__}"

POSITIVE = Rule("more than 0", lambda value: 0 < value < math.inf)
POSITIVE_OR_OFF = Rule("more than 0, or -1", lambda value: value == -1 or 0 < value < math.inf)
NOT_NEGATIVE = Rule("0 or more", lambda value: 0 <= value < math.inf)
STRATEGIES = ("exponential", "linear")  # how the delay of a failed message grows

Addresses = str | Iterable[str]
TlsOptions = Mapping[str, Any] | ssl.SSLContext


def at_least(low: int) -> Rule:
    return Rule(f"{low} or more", lambda value: value >= low)


def between(low: int, high: int) -> Rule:
    return Rule(f"{low} to {high}", lambda value: low <= value <= high)


class ConnectionKeywords(TypedDict, total=False):
    """Keyword arguments for a connection; see ConnectionOptions."""

    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval: Duration
    output_buffer_size: int
    output_buffer_timeout: Milliseconds
    msg_timeout: Duration | None
    sample_rate: int
    tls_v1: bool
    tls_options: TlsOptions | None
    deflate: bool
    deflate_level: int
    snappy: bool
    auth_secret: str | None
    timeout: Duration
    local_address: str | None
    max_msg_size: int
    durability: str | None
    headers: bool
    topology_region: str
    topology_zone: str


class ConsumerKeywords(ConnectionKeywords, total=False):
    """Keyword arguments for a consumer; see ConsumerOptions."""

    max_tries: int | None
    max_attempts: int | None
    max_in_flight: int
    requeue_delay: Duration
    max_requeue_delay: Duration
    requeue_strategy: str
    backoff_on_requeue: bool
    every_nsqd: bool
    lookupd_poll_interval: Duration
    lookupd_poll_jitter: float
    lookupd_connect_timeout: Duration
    lookupd_request_timeout: Duration
    lookupd_authorization: bool
    low_rdy_idle_timeout: Duration
    low_rdy_timeout: Duration
    rdy_redistribute_interval: Duration
    max_backoff_duration: Duration
    backoff_multiplier: float
    backoff_strategy: str
    close_timeout: Duration


class ProducerKeywords(ConnectionKeywords, total=False):
    """Keyword arguments for a producer; see ProducerOptions."""

    retries: int
    strict_key: bool
    max_pending: int
    reconnect_interval: Duration
    max_reconnect_interval: Duration
    lookupd_poll_interval: Duration
    lookupd_poll_jitter: float
    lookupd_connect_timeout: Duration
    lookupd_request_timeout: Duration
    lookupd_authorization: bool
    close_timeout: Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Options of IDENTIFY and of the connection itself."""

    client_id: str = option("", STRING, "name of this client; default: the short host name")
    hostname: str = option(
        "", STRING, "host name that nsqd shows; default: this machine's host name"
    )
    user_agent: str = option(
        USER_AGENT,
        STRING,
        "program name and version",
        Rule("Latin-1 text, as in HTTP headers", lambda value: max(value, default="") < "\u0100"),
    )
    heartbeat_interval: float = option(
        30.0, FLOAT, "seconds between nsqd's heartbeats; -1 for none", POSITIVE_OR_OFF
    )
    output_buffer_size: int = option(
        16384,
        INT,
        "bytes that nsqd may buffer before it sends them; -1 for no buffering",
        at_least(-1),
    )
    output_buffer_timeout: int = option(
        250, INT, "milliseconds that nsqd may buffer output; -1 for no limit", at_least(-1)
    )
    msg_timeout: float | None = option(
        None,
        FLOAT,
        "seconds until nsqd redelivers an unanswered message; default: nsqd's --msg-timeout",
        NOT_NEGATIVE,
    )
    sample_rate: int = option(
        0, INT, "percentage of the channel's messages to receive; 0 for all", between(0, 99)
    )
    tls_v1: bool = option(
        False,
        BOOL,
        "use TLS, and verify servers unless tls_options specifies otherwise; tls_options is an "
        "ssl.SSLContext, or a mapping with ca_certs, certfile, keyfile, cert_reqs, check_hostname "
        "and ciphers",
    )
    tls_options: TlsOptions | None = None
    deflate: bool = option(False, BOOL, "compress with deflate")
    deflate_level: int = option(6, INT, "deflate level", between(1, 9))
    snappy: bool = option(False, BOOL, "compress with snappy; cannot be combined with deflate")
    auth_secret: str | None = option(
        None, STRING, "secret for nsqds that require AUTH; also sent to lookupds"
    )
    trust_lookupd: bool = option(
        False,
        BOOL,
        "send auth_secret to every nsqd that lookupds list, even if the nsqd has not "
        "authenticated to them",
    )
    timeout: float = option(
        1.0,
        FLOAT,
        "timeout in seconds for connecting, and for sending the remaining output on close; a "
        "handshake is always allowed at least 10 s",
        POSITIVE,
    )
    local_address: str | None = option(None, STRING, "local address (host[:port]) to connect from")
    max_msg_size: int = option(
        0, INT, "maximum message size to accept; 0 for no limit", between(0, 0x7FFFFFFF - 64)
    )
    durability: str | None = option(
        None,
        STRING,
        "durability that a publish must reach before nsqd answers, if the topic's durability is "
        "lower: memory, os or fsync. Connecting to an nsqd that does not support it fails",
        Rule(", ".join(DURABILITIES), DURABILITIES.__contains__),
    )
    headers: bool = option(
        False,
        BOOL,
        "send and receive message headers. Connecting to an nsqd that does not support them fails",
    )
    topology_region: str = option("", STRING, "this client's region")
    topology_zone: str = option("", STRING, "this client's zone")
    # All connections share this context, which is created from tls_options.
    tls_context: ssl.SSLContext | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.deflate and self.snappy:
            raise ValueError("deflate and snappy cannot be combined")
        if self.tls_options is not None and not self.tls_v1:
            raise ValueError("tls_options requires tls_v1=True")
        context = tls_context(self.tls_options) if self.tls_v1 else None
        object.__setattr__(self, "tls_context", context)
        _ = self.local  # raises

    @property
    def verifies_with_own_ca(self) -> bool:
        """Return whether servers must have a certificate for their name from a CA in
        tls_options. Anyone can get a certificate from a public CA."""
        context, given = self.tls_context, self.tls_options
        names_ca = isinstance(given, ssl.SSLContext) or bool(given and given.get("ca_certs"))
        if context is None or not names_ca:
            return False
        return context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname

    @property
    def local(self) -> tuple[str, int] | None:
        """Return the local host and port to connect from. Raises ValueError."""
        if self.local_address is None:
            return None
        if self.local_address.endswith(":0"):  # 0 means any port; Address.parse() rejects it
            return Address.parse(self.local_address[:-2]).host, 0
        address = Address.parse(self.local_address, 0)
        return address.host, address.port

    @property
    def identity(self) -> dict[str, object]:
        """Return the fields of IDENTIFY."""
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
        identity["limits"] = True
        identity["dead_letters"] = True
        identity["goodbye"] = True
        return identity


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """Options for querying nsqlookupds."""

    lookupd_poll_interval: float = option(60.0, FLOAT, "seconds between queries", POSITIVE)
    lookupd_poll_jitter: float = option(
        0.3,
        FLOAT,
        "maximum random shift of the queries, as a fraction of the interval",
        between(0, 1),
    )
    lookupd_connect_timeout: float = option(
        1.0, FLOAT, "timeout for connecting, in seconds", POSITIVE
    )
    lookupd_request_timeout: float = option(
        2.0, FLOAT, "timeout for a response, in seconds", POSITIVE
    )
    lookupd_authorization: bool = option(True, BOOL, "send auth_secret to lookupds")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options for answering messages."""

    max_tries: int | None = option(
        None,
        INT,
        "maximum number of deliveries before the consumer gives up on a message; 0 for no limit; "
        "default: 5 with dead_letter_topic or on_giving_up, which keep the message, otherwise no "
        "limit",
        at_least(0),
    )
    requeue_delay: float = option(
        1.0,
        FLOAT,
        "seconds until a message that has failed once is redelivered; the delay grows with the "
        "number of attempts",
        NOT_NEGATIVE,
    )
    max_requeue_delay: float = option(
        900.0, FLOAT, "maximum redelivery delay, in seconds", NOT_NEGATIVE
    )
    requeue_strategy: Literal["exponential", "linear"] = option(
        "exponential",
        STRING,
        "exponential: each further attempt doubles requeue_delay; linear: requeue_delay is "
        "multiplied by the number of attempts",
        Rule(" or ".join(STRATEGIES), STRATEGIES.__contains__),
    )
    backoff_on_requeue: bool = option(
        True, BOOL, "also back off when a handler returns False, not only when it fails"
    )
    every_nsqd: bool = option(
        False,
        BOOL,
        "subscribe on every nsqd that the lookupds list, not only on those that have the topic, "
        "and create the topic there: for replies and broadcasts, which cannot wait for the next "
        "lookupd query",
    )
    close_timeout: float = option(
        30.0, FLOAT, "seconds to wait for messages in flight when closing", NOT_NEGATIVE
    )

    def __post_init__(self) -> None:
        check(self)

    def delay_of(self, attempts: int) -> int:
        """Return the delay for a failed message after `attempts` deliveries, in milliseconds."""
        growth = attempts if self.requeue_strategy == "linear" else 2.0 ** min(attempts - 1, 63)
        return _milliseconds(min(self.requeue_delay * growth, self.max_requeue_delay))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Options for producers only."""

    retries: int = option(
        3,
        INT,
        "retries of a failed publish; if an nsqd may have executed the publish, it is retried "
        "only on other nsqds",
        at_least(0),
    )
    strict_key: bool = option(
        False,
        BOOL,
        "with several nsqds: a publish with a key or a deduplication id fails if its nsqd is "
        "unavailable, instead of going to another one",
    )
    max_pending: int = option(
        64 << 20, INT, "maximum bytes of unanswered publishes; further publishes wait", at_least(1)
    )
    reconnect_interval: float = option(
        0.5,
        FLOAT,
        "seconds before the first reconnect; doubled for each further attempt",
        POSITIVE,
    )
    max_reconnect_interval: float = option(
        15.0, FLOAT, "maximum seconds before a reconnect", POSITIVE
    )
    close_timeout: float = option(
        30.0, FLOAT, "seconds to wait for responses when closing", NOT_NEGATIVE
    )

    def __post_init__(self) -> None:
        check(self)


def consumer_options(
    keywords: Mapping[str, Any],
) -> tuple[ConsumerOptions, FlowSettings, LookupOptions, ConnectionOptions]:
    """Group a consumer's keywords by the part that they belong to."""
    given = dict(keywords)
    if "max_attempts" in given:
        if "max_tries" in given:
            raise TypeError("max_tries and max_attempts are the same option: pass only one")
        given["max_tries"] = given.pop("max_attempts")
    first, second, third, fourth = _sort("Consumer", given, *CONSUMER_PARTS)
    return (
        ConsumerOptions(**first),
        FlowSettings(**second),
        LookupOptions(**third),
        ConnectionOptions(**fourth),
    )


def producer_options(
    keywords: Mapping[str, Any],
) -> tuple[ProducerOptions, LookupOptions, ConnectionOptions]:
    """Group a producer's keywords by the part that they belong to."""
    first, second, third = _sort("Producer", keywords, *PRODUCER_PARTS)
    return ProducerOptions(**first), LookupOptions(**second), ConnectionOptions(**third)


def with_options(*parts: Any) -> Callable[[type[T]], type[T]]:
    """Return a decorator that adds the options of `parts`, with their defaults, to the docstring
    of a class, so that help() shows them."""
    lines = [
        f"- {each.name}={each.default!r}: {each.help}" for part in parts for each in declared(part)
    ]

    def document(cls: type[T]) -> type[T]:
        doc = inspect.cleandoc(cls.__doc__ or "")  # None with python -OO
        cls.__doc__ = "\n".join([doc, "", "Options, with their defaults:", "", *lines, ""])
        return cls

    return document


CONSUMER_PARTS: tuple[type, ...] = (ConsumerOptions, FlowSettings, LookupOptions, ConnectionOptions)
PRODUCER_PARTS: tuple[type, ...] = (ProducerOptions, LookupOptions, ConnectionOptions)


def _sort(what: str, given: Mapping[str, Any], *parts: Any) -> list[dict[str, Any]]:
    left = dict(given)
    known = {part: [each.name for each in fields(part) if each.init] for part in parts}
    found = [
        without_timedeltas({name: left.pop(name) for name in names if name in left}, part)
        for part, names in known.items()
    ]
    if left:
        name = min(left)
        hint = _suggestion(name, [each for names in known.values() for each in names])
        raise TypeError(f"{what} has no option {quote(name)}{hint}")
    return found


def _suggestion(name: str, known: list[str]) -> str:
    import difflib  # slow to import, and needed only for errors

    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {quote(near[0])}?" if near else ""


@dataclass(frozen=True, slots=True)
class Address:
    """An nsqd's address. A consumer of several topics has one for each topic of an nsqd."""

    host: str
    port: int
    proved: bool = field(default=False, compare=False)
    """Whether an nsqlookupd has listed it as an nsqd that has authenticated."""
    topic: str = ""
    """The topic, if the consumer has several."""

    @classmethod
    def parse(cls, text: str, default_port: int = DEFAULT_PORT) -> Self:
        """Parse `host`, `host:port` or `[v6]:port`. Raises ValueError."""
        host, port = text, ""
        if text.startswith("["):
            host, closed, port = text[1:].partition("]")
            if not closed or (port and not port.startswith(":")):
                raise ValueError(f"{quote(text)} is not an address (expected [IPv6 address]:port)")
            port = port[1:]
        elif text.count(":") == 1:
            host, _, port = text.partition(":")
        if not host or not host.isprintable() or set("/, ") & set(host):
            raise ValueError(f"{quote(text)} is not an address (expected host:port)")
        number = int(port) if port.isdecimal() and len(port) < 6 else -1
        if port and not 0 < number < 65536:
            raise ValueError(f"{quote(text)} has no port from 1 to 65535")
        return cls(host, number if port else default_port)

    @property
    def nsqd(self) -> str:
        """The nsqd, without the topic."""
        return host_port(self.host, self.port)

    def of_topic(self, topic: str) -> Self:
        """Return the address for one of several topics."""
        return replace(self, topic=topic)

    def __str__(self) -> str:
        return f"{self.nsqd}/{self.topic}" if self.topic else self.nsqd


Answer = tuple[list[Address], list[str]]  # nsqds known to nsqlookupds, and query errors


def nsqd_addresses(addresses: Addresses) -> tuple[Address, ...]:
    """Parse one or more addresses. Duplicates are removed; the order is kept. Raises ValueError and
    TypeError."""
    return tuple(dict.fromkeys(Address.parse(each) for each in as_strings(addresses)))


def as_strings(addresses: Addresses) -> tuple[str, ...]:
    if isinstance(addresses, bytes | Mapping) or not isinstance(addresses, Iterable):
        raise TypeError(f"an address must be a str, not {type(addresses).__name__}")
    given = (addresses,) if isinstance(addresses, str) else tuple(addresses)
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"an address must be a str, not {type(each).__name__}")
    return tuple(each.strip() for each in given)


def lookupd_addresses(addresses: Addresses) -> tuple[str, ...]:
    """Parse one or more host:port addresses or URLs. Raises ValueError and TypeError."""
    given = tuple(dict.fromkeys(as_strings(addresses)))
    if given:
        # Fixed nsqds need no HTTP client.
        from nsqcy.cluster.discovery import lookup_url

        for each in given:
            lookup_url(each, "topic")
    return given


def tls_context(options: TlsOptions | None) -> ssl.SSLContext:
    """Return the TLS context, with the trusted CAs and the client's certificate. Raises ValueError
    for an unknown option or an unreadable file."""
    if isinstance(options, ssl.SSLContext):
        return options
    if not isinstance(options, Mapping | None):
        raise TypeError(refusal("tls_options", options, "a mapping or an ssl.SSLContext"))
    left = dict(options or {})
    for name in left.keys() - _TLS_OPTIONS.keys():
        allowed = ", ".join(_TLS_OPTIONS)
        raise ValueError(f"tls_options has no {quote(str(name))} (allowed: {allowed})")
    for name, value in left.items():
        types = _TLS_OPTIONS[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            allowed = " or ".join(each.__name__ for each in types)
            raise TypeError(refusal(f"tls_options[{quote(name)}]", value, allowed))
    try:
        return _make_context(left)
    except (OSError, ValueError) as error:  # OpenSSL's errors are also OSErrors
        raise ValueError(f"tls_options: {error}") from error


_TLS_OPTIONS: dict[str, tuple[type, ...]] = {
    "ca_certs": (str, PathLike, NoneType),
    "certfile": (str, PathLike, NoneType),
    "keyfile": (str, PathLike, NoneType),
    "cert_reqs": (int,),
    "check_hostname": (bool,),
    "ciphers": (str, NoneType),
}


def _make_context(left: dict[str, Any]) -> ssl.SSLContext:
    authorities = left.pop("ca_certs", None)
    try:
        context = ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise OSError(f"cannot read ca_certs {authorities}: {error.strerror or error}") from error
    context.hostname_checks_common_name = False  # only subject alternative names count
    if "check_hostname" in left:
        context.check_hostname = left.pop("check_hostname")
    if "cert_reqs" in left:
        required = left.pop("cert_reqs")
        if required != ssl.CERT_REQUIRED:
            context.check_hostname = False
        context.verify_mode = required
    certificate, key = left.pop("certfile", None), left.pop("keyfile", None)
    if certificate is not None:
        try:
            context.load_cert_chain(certificate, key)
        except OSError as error:
            from nsqcy.util import pem_files  # slow to import

            raise OSError(pem_files.explain(certificate, key or certificate, error)) from error
    if (ciphers := left.pop("ciphers", None)) is not None:
        context.set_ciphers(ciphers)
    return context


def _milliseconds(seconds: float) -> int:
    return -1 if seconds == -1 else round(seconds * 1000)


Callback = Callable[..., object]
