"""Addresses and options of a kombu connection, from its URL and its transport_options."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from nsqcy.client.arguments import DURATION, LIMIT, NAMED, TEXT, check_argument
from nsqcy.client.options import (
    Address,
    ConsumerKeywords,
    ProducerKeywords,
    nsqd_addresses,
)
from nsqcy.integrations.client_options import (
    demand_queue_pattern,
    demand_seconds,
    sorted_options,
)

DEFAULT_LOOKUPD_PORT = 4161

# Options of kombu and Celery that may be in transport_options but have no meaning here.
GENERAL_OPTIONS = {
    "callback",
    "client_properties",
    "confirm_publish",
    "connect_retries_timeout",
    "errback",
    "interval_max",
    "interval_start",
    "interval_step",
    "max_retries",
    "on_revive",
    "polling_interval",
}
OWN_CONSUMER_OPTIONS = frozenset({"max_in_flight", "max_tries", "max_attempts", "close_timeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The transport's own options, in broker_transport_options."""

    channel: str = "celery"
    topic_prefix: str = ""
    msg_timeout: float = 60.0
    max_defer: float = 3600.0
    publish_timeout: float = 30.0
    connect_timeout: float = 5.0
    get_timeout: float = 1.0
    rejected_queue: str | None = None
    nsqd_http_addresses: tuple[str, ...] = ()
    priority_steps: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        for name in ("msg_timeout", "max_defer", "publish_timeout"):
            demand_seconds(name, getattr(self, name))
        check_argument("connect_timeout", self.connect_timeout, LIMIT)
        check_argument("get_timeout", self.get_timeout, DURATION)
        check_argument("channel", self.channel, NAMED)
        check_argument("topic_prefix", self.topic_prefix, TEXT)
        demand_queue_pattern("rejected_queue", self.rejected_queue)
        steps = self.priority_steps
        if not steps or list(steps) != sorted({each for each in steps if 0 <= each <= 9}):
            raise ValueError(
                "priority_steps must be distinct numbers from 0 to 9 in ascending order,"
                f" not {steps!r}"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """A connection's addresses and options."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    options: Options
    consumer: ConsumerKeywords
    producer: ProducerKeywords


def settings(client: Any) -> Settings:
    """Read the addresses and options of a kombu connection. Raises ValueError, and
    TypeError for an unknown option."""
    nsqds: list[str] = []
    lookupds: list[str] = []
    secret = None
    for url in _urls(client):
        scheme, separator, rest = url.rpartition("://")
        found, password = _hosts(rest)
        secret = secret or password
        if separator and scheme.rpartition("+")[2] == "lookupd":
            lookupds += [str(Address.parse(each, DEFAULT_LOOKUPD_PORT)) for each in found]
        else:
            nsqds += found
    given = dict(client.transport_options or {})
    own = {each: given.pop(each) for each in Options.__dataclass_fields__ if each in given}
    if isinstance(http := own.get("nsqd_http_addresses", ()), str):
        http = (http,)
    own["nsqd_http_addresses"] = tuple(http)
    own["priority_steps"] = tuple(own.get("priority_steps", (0,)))
    options = Options(**own)
    given.setdefault("auth_secret", secret)
    if client.ssl:
        given.setdefault("tls_v1", True)
        if isinstance(client.ssl, Mapping) and client.ssl:
            given.setdefault("tls_options", dict(client.ssl))
    given = {name: given[name] for name in given.keys() - GENERAL_OPTIONS}
    consumer, producer = sorted_options(given, OWN_CONSUMER_OPTIONS, "broker_transport_options")
    return Settings(
        tuple(str(each) for each in nsqd_addresses(nsqds)),
        tuple(dict.fromkeys(lookupds)),
        options,
        consumer,
        producer,
    )


def _urls(client: Any) -> Iterator[str]:
    """Yield the broker's URL and its alternatives: all of their nsqds form one pool."""
    first = client.hostname or "127.0.0.1"
    if client.port and "://" not in first and ":" not in first:  # kombu has parsed the URL
        first = f"{first}:{client.port}"
    yield from dict.fromkeys(url.strip() for url in (first, *(client.alt or ())) if url.strip())


def _hosts(rest: str) -> tuple[list[str], str | None]:
    """Return the hosts in a URL, without the scheme, and the password."""
    netloc = rest.partition("/")[0]
    credentials, separator, hosts = netloc.rpartition("@")
    password = credentials.partition(":")[2] if separator else ""
    found = [each.strip() for each in hosts.split(",") if each.strip()]
    return found or ["127.0.0.1"], unquote(password) or None
