"""A connection, as exposed by readers and writers."""

from collections.abc import Iterable, Mapping
from typing import Any

from nsqcy.client.connection import Connection, State


class AsyncConn:
    """Read-only view of the connection to one nsqd."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def id(self) -> str:
        return str(self._connection.address)

    @property
    def host(self) -> str:
        return self._connection.address.host

    @property
    def port(self) -> int:
        return self._connection.address.port

    @property
    def in_flight(self) -> int:
        return self._connection.in_flight

    @property
    def rdy(self) -> int:
        return self._connection.ready

    last_rdy = rdy

    @property
    def max_rdy_count(self) -> int:
        return self._connection.max_ready

    def connected(self) -> bool:
        return self._connection.state in (State.READY, State.CLOSING)

    def connecting(self) -> bool:
        return self._connection.state in (State.CONNECTING, State.HANDSHAKE)

    def closed(self) -> bool:
        return self._connection.state is State.CLOSED

    def __str__(self) -> str:
        return self.id


def connected(connections: Iterable[Connection]) -> dict[str, AsyncConn]:
    """Return the connections that have completed their handshake, by id."""
    found = map(AsyncConn, connections)
    return {each.id: each for each in found if each.connected()}


def addresses(given: str | Iterable[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def connection_options(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the TLS options for nsqcy.client. TLS has pynsq's defaults: it verifies the
    certificate chain, but not the server's name."""
    options = dict(keywords)
    if isinstance(options.get("auth_secret"), bytes):
        options["auth_secret"] = options["auth_secret"].decode()
    tls = options.get("tls_options")
    if options.get("tls_v1") and (tls is None or isinstance(tls, Mapping)):
        tls = {"check_hostname": False, **(tls or {})}
        tls.pop("ssl_version", None)
        options["tls_options"] = tls
    return options
