"""The flags that this load test adds to locust's.

Each has an environment variable: NSQ_LOAD_ followed by its name. In distributed runs, the master's
flags apply. Independent of locust; opens no connections.
"""

import argparse
import ssl
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Self

from loadtest.soak.bodies import Sizes
from loadtest.swarm import stages
from loadtest.swarm.thresholds import Threshold, parse
from nsqcy.client.options import Address, ConnectionKeywords, tls_context
from nsqcy.cluster.discovery import daemon_url
from nsqcy.names import is_valid_name

ENV = "NSQ_LOAD_"
TCP, HTTP = "127.0.0.1:4150", "127.0.0.1:4151"
CONNECT = 5.0  # seconds


def flag(default: Any, about: str, *, secret: bool = False) -> Any:
    return field(default=default, metadata={"about": about, "secret": secret})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Raises ValueError for contradictory options."""

    nsqd_tcp_address: str = flag("", f"host:port,...; where there are no lookupds {TCP}")
    nsqd_http_address: str = flag("", "host:port or URL,... for HttpUser; else as lookupds say")
    lookupd_http_address: str = flag("", "host:port or URL,...: nsqds are found there")
    topics: str = flag("nsqcy-load", "topics, separated by commas")
    channels: str = flag("load", "channels of each topic, separated by commas")
    publish_rate: float = flag(50.0, "publishes per second of a user; 0: each after the OK before")
    size: str = flag("200", "bytes of a body: 200, 100-2000, or by weight 200:9,1000-65536:1")
    batch: int = flag(10, "messages of an MPUB")
    defer: int = flag(1000, "milliseconds a DPUB defers its message")
    consumers: int = flag(2, "ConsumeUsers, the first users to start; each has all channels")
    rdy: int = flag(200, "messages in flight of a consumer of a channel")
    requeue_share: float = flag(0.0, "share of first deliveries that go back by REQ")
    requeue_delay: int = flag(100, "milliseconds until these come again")
    auth_secret: str = flag("", "what AUTH sends", secret=True)
    nsqd_tls: bool = flag(False, "TLS to nsqd")
    nsqd_tls_ca: str = flag("", "file of certificates to trust, instead of the system's")
    nsqd_tls_cert: str = flag("", "file of the certificate that nsqd is shown")
    nsqd_tls_key: str = flag("", "file of its key")
    nsqd_tls_insecure: bool = flag(False, "do not verify nsqd's certificate")
    shape: str = flag("steady", f"users over time: {', '.join(stages.SHAPES)}")
    knee_step_users: int = flag(5, "users that a step adds")
    knee_step_seconds: float = flag(10.0, "how long a step is")
    knee_p99: float = flag(100.0, "milliseconds of p99 that are too much")
    knee_failures: float = flag(0.01, "share of failures that is too much")
    drain: float = flag(30.0, "seconds that consumers have at the end for what was published")
    thresholds: str = flag("", "'p99 deliver=50, rate PUB=100', or a file that ends in .toml")
    report: str = flag("build/load/report.html", "the report; beside it a .json with its figures")

    def __post_init__(self) -> None:
        for name in self.all_topics + self.all_channels:
            if not is_valid_name(name):
                raise ValueError(f"{name!r} is not a valid topic or channel name")
            if name.endswith("#ephemeral"):
                raise ValueError(f"{name} may drop messages: nothing could be called lost")
        if not (self.all_topics and self.all_channels):
            raise ValueError("no topic or no channel: set at least one of each")
        for name in ("batch", "consumers", "rdy", "knee_step_users", "knee_step_seconds"):
            self._check(name, 1)
        for name in ("publish_rate", "defer", "requeue_delay", "knee_p99", "drain"):
            self._check(name, 0)
        for name in ("requeue_share", "knee_failures"):
            self._check(name, 0, 1)
        if self.shape not in stages.SHAPES:
            raise ValueError(f"no shape {self.shape!r} (there are {', '.join(stages.SHAPES)})")
        for address in self.nsqds:
            Address.parse(address)
        for address in self.lookupds + self.https:
            daemon_url(address)
        _ = self.sizes, self.bars, self.connection  # raise

    def _check(self, name: str, minimum: float, maximum: float = float("inf")) -> None:
        if not minimum <= getattr(self, name) <= maximum:
            allowed = (
                f"{minimum:g} or more" if maximum == float("inf") else f"{minimum:g} to {maximum:g}"
            )
            raise ValueError(f"{_flag(name)} cannot be {getattr(self, name)} (allowed: {allowed})")

    @classmethod
    def of(cls, found: argparse.Namespace) -> Self:
        return cls(**{each.name: getattr(found, each.name) for each in fields(cls)})

    def shown(self) -> dict[str, Any]:
        """Return the options for a report, excluding secrets."""
        secret = {each.name for each in fields(self) if each.metadata["secret"]}
        return {name: value for name, value in asdict(self).items() if name not in secret}

    # -- derived values

    @property
    def lookupds(self) -> list[str]:
        return _split(self.lookupd_http_address)

    @property
    def nsqds(self) -> list[str]:
        return _split(self.nsqd_tcp_address) or ([] if self.lookupds else [TCP])

    @property
    def https(self) -> list[str]:
        """Return the HTTP addresses of the nsqds, as given."""
        given = _split(self.nsqd_http_address)
        return given or ([HTTP] if self.nsqds == [TCP] else [])

    @property
    def all_topics(self) -> list[str]:
        return _split(self.topics)

    @property
    def all_channels(self) -> list[str]:
        return _split(self.channels)

    @property
    def places(self) -> list[tuple[str, str]]:
        return [(topic, channel) for topic in self.all_topics for channel in self.all_channels]

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes.parse(self.size)

    @cached_property
    def bars(self) -> list[Threshold]:
        return parse(self.thresholds)

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """Return the TLS context: how to verify nsqds, and the client's certificate. Created once,
        because all connections share it."""
        if not self.nsqd_tls:
            return None
        options: dict[str, Any] = {}
        if self.nsqd_tls_ca:
            options["ca_certs"] = self.nsqd_tls_ca
        if self.nsqd_tls_cert:
            options |= {"certfile": self.nsqd_tls_cert, "keyfile": self.nsqd_tls_key or None}
        if self.nsqd_tls_insecure:
            options["cert_reqs"] = ssl.CERT_NONE
        return tls_context(options)

    @cached_property
    def connection(self) -> ConnectionKeywords:
        """Return keyword arguments for clients."""
        told: ConnectionKeywords = {"timeout": CONNECT, "user_agent": "nsqcy-load"}
        if self.tls:
            told |= {"tls_v1": True, "tls_options": self.tls}
        if self.auth_secret:
            told["auth_secret"] = self.auth_secret
        return told


def add(parser: argparse.ArgumentParser) -> None:
    """Add the flags to locust's parser, which also reads the environment and shows the flags on
    locust's web page."""
    for each in fields(Options):
        kind = type(each.default)
        about = each.metadata["about"].replace("%", "%%")
        extra: dict[str, Any] = {"action": "store_true"}
        if kind is not bool:
            extra = {"type": kind, "metavar": f"<{kind.__name__}>"}
            about += f" [{each.default}]" if each.default != "" else ""
        if each.metadata["secret"]:
            extra["is_secret"] = True
        parser.add_argument(
            _flag(each.name),
            default=each.default,
            env_var=ENV + each.name.upper(),
            help=about,
            **extra,
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _split(text: str) -> list[str]:
    return list(filter(None, map(str.strip, text.split(","))))
