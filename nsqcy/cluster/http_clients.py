"""HTTP API clients for nsqd and nsqlookupd, with one method per request.

JSON responses are decoded; other responses are bytes. Failures raise RequestError. Invalid topic
and channel names raise InvalidName before anything is sent.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

from urllib3.util import Url

from nsqcy.cluster import discovery, stats
from nsqcy.cluster.answer_forms import (
    CHANNELS,
    DEFERRED,
    DRAIN,
    KEYS,
    LOOKUP,
    NODES,
    PEEKED,
    POLICY,
    STATS,
    TOPICS,
    UPGRADE,
    Form,
    anything,
    having,
    is_number,
)
from nsqcy.cluster.budget import decoding
from nsqcy.cluster.discovery import daemon_url
from nsqcy.cluster.web_client import MAX_ERROR, Answer, Terms, WebClient
from nsqcy.errors import InvalidName, RequestError
from nsqcy.names import host_port, is_valid_name, one_line, quote
from nsqcy.util import gojson

MAX_ANSWER = discovery.MAX_ANSWER
MAX_SHOWN = 100  # maximum bytes of an invalid response that an error shows


def _named(*names: str) -> dict[str, str]:
    """Return the query parameters that select a topic or one of its channels."""
    found = dict(zip(("topic", "channel"), names, strict=False))
    for kind, name in found.items():
        if not (isinstance(name, str) and is_valid_name(name)):
            raise InvalidName(f"{quote(str(name))} is not a valid {kind} name")
    return found


class DaemonClient:
    """Requests common to all daemons. Thread-safe."""

    PORT: ClassVar[int]

    def __init__(
        self,
        host: str = "localhost",
        port: int = 0,
        *,
        scheme: str = "http",
        terms: Terms | None = None,
    ) -> None:
        """port: 0 means the daemon's default port."""
        url = daemon_url(f"{scheme}://{host_port(host, port or self.PORT)}")
        self._url = url._replace(path="/")
        self._web = WebClient(terms or Terms(request_timeout=60.0))

    @classmethod
    def from_url(cls, url: str, *, terms: Terms | None = None) -> Self:
        """Return a client for the daemon at a URL or at host:port. Raises ValueError."""
        found = daemon_url(url)
        assert found.host is not None and found.scheme is not None
        client = cls(found.host.strip("[]"), found.port or 0, scheme=found.scheme, terms=terms)
        client._url = client._url._replace(auth=found.auth)
        return client

    @property
    def scheme(self) -> str:
        return str(self._url.scheme)

    @property
    def host(self) -> str:
        return str(self._url.host).strip("[]")

    @property
    def port(self) -> int:
        return self._url.port or self.PORT

    @property
    def address(self) -> str:
        return f"{self.scheme}://{host_port(self.host, self.port)}/"

    def ping(self) -> bytes:
        """Return `OK`. Raises RequestError if the daemon is unhealthy."""
        return self._bytes("GET", "/ping")

    def info(self) -> dict[str, Any]:
        return self._object("GET", "/info")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address!r}>"

    def _bytes(
        self, method: str, path: str, query: dict[str, str] | None = None, body: bytes | None = None
    ) -> bytes:
        return self._request(method, path, query, body).body

    def _object(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: bytes | None = None,
        *,
        form: Form = anything,
        what: str = "a JSON object",
        maximum: int = MAX_ANSWER,
    ) -> dict[str, Any]:
        """Return the response's JSON object. form: the form of a valid object. what: its name in
        errors."""
        answer = self._request(method, path, query, body, maximum=maximum)
        try:
            with decoding(answer.body):
                value = gojson.decode_any(answer.body)
        except ValueError:
            value = None
        if isinstance(value, dict) and isinstance(value.get("data"), dict):
            value = value["data"]  # responses before 1.0 were wrapped
        if not isinstance(value, dict) or not form(value):
            shown = quote(answer.body[:MAX_SHOWN])
            text = f"the response is not {what}: {shown}"
            raise RequestError(text, answer.status, answer.body[:MAX_ERROR], path)
        return value

    def _post(self, path: str, query: dict[str, str]) -> None:
        self._bytes("POST", path, query, b"")

    def _request(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        maximum: int = MAX_ANSWER,
    ) -> Answer:
        url: Url = self._url._replace(path=path, query=urlencode(query) if query else None)
        try:
            return self._web.fetch(url, method, headers, body, maximum=maximum)
        except RequestError as error:
            error.path = path
            raise


class NsqdHTTPClient(DaemonClient):
    """HTTP client for an nsqd."""

    PORT = 4151

    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """Publish a message. defer: delay in milliseconds. headers: message headers; nsqcy only."""
        query = _named(topic)
        if defer is not None:
            query["defer"] = str(defer)
        sent = {f"X-Nsq-{name}": value for name, value in (headers or {}).items()}
        return self._request("POST", "/pub", query, data, sent).body

    def multipublish(self, topic: str, messages: Iterable[bytes], binary: bool = False) -> bytes:
        """Publish several messages atomically. Messages that contain a newline need `binary`."""
        query = _named(topic)
        bodies = list(messages)
        if binary:
            parts = [struct.pack(">i", len(bodies))]
            for each in bodies:
                parts += [struct.pack(">i", len(each)), each]
            return self._bytes("POST", "/mpub", {**query, "binary": "true"}, b"".join(parts))
        if any(b"\n" in each for each in bodies):
            raise ValueError(
                "a message that contains a newline can only be published with binary=true"
            )
        return self._bytes("POST", "/mpub", query, b"\n".join(bodies))

    def create_topic(self, topic: str) -> None:
        self._post("/topic/create", _named(topic))

    def delete_topic(self, topic: str) -> None:
        self._post("/topic/delete", _named(topic))

    def empty_topic(self, topic: str) -> None:
        self._post("/topic/empty", _named(topic))

    def pause_topic(self, topic: str) -> None:
        self._post("/topic/pause", _named(topic))

    def unpause_topic(self, topic: str) -> None:
        self._post("/topic/unpause", _named(topic))

    def topic_config(
        self, topic: str, values: Mapping[str, Any] | None = None, *, reset: bool = False
    ) -> dict[str, Any]:
        """Return a topic's policy, after setting the given keys or resetting all keys; nsqcy only.
        A value of None resets its key."""
        return self._config("/topic/config", _named(topic), values, reset)

    def topic_log(self, topic: str) -> dict[str, Any]:
        """Describe a topic's log; nsqcy only."""
        return self._object("GET", "/topic/log", _named(topic))

    def create_channel(self, topic: str, channel: str, start: str | None = None) -> None:
        """Create a channel. start: position in the topic's log; nsqcy only."""
        self._post("/channel/create", _named(topic, channel) | ({"start": start} if start else {}))

    def delete_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/delete", _named(topic, channel))

    def empty_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/empty", _named(topic, channel))

    def pause_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/pause", _named(topic, channel))

    def unpause_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/unpause", _named(topic, channel))

    def keys(
        self,
        topic: str,
        channel: str,
        *,
        limit: int = 100,
        key: str | None = None,
        search: str = "",
        blocked: bool = False,
        paused: bool = False,
    ) -> dict[str, Any]:
        """Return the keys of a channel with the most waiting messages; nsqcy only. key: only this
        key. search: only keys that contain this text."""
        query = {"limit": str(limit)} | _named(topic, channel)
        query |= {"search": search} if search else {}
        query |= {} if key is None else {"key": key}
        query |= {name: "true" for name, only in (("blocked", blocked), ("paused", paused)) if only}
        return self._object("GET", "/channel/keys", query, form=KEYS, what="a list of keys")

    def pause_key(self, topic: str, channel: str, key: str) -> None:
        """Pause a key of a channel; nsqcy only."""
        self._post("/channel/key/pause", _named(topic, channel) | {"key": key})

    def unpause_key(self, topic: str, channel: str, key: str) -> None:
        """Unpause a key of a channel; nsqcy only."""
        self._post("/channel/key/unpause", _named(topic, channel) | {"key": key})

    def empty_key(self, topic: str, channel: str, key: str) -> None:
        """Drop the waiting messages of a key in a channel; nsqcy only."""
        self._post("/channel/key/empty", _named(topic, channel) | {"key": key})

    def channel_config(
        self,
        topic: str,
        channel: str,
        values: Mapping[str, Any] | None = None,
        *,
        reset: bool = False,
    ) -> dict[str, Any]:
        """Return a channel's policy, with the same arguments as topic_config()."""
        return self._config("/channel/config", _named(topic, channel), values, reset)

    def seek_channel(self, topic: str, channel: str, to: str) -> int:
        """Move a channel to a position in its topic's log; return the position. nsqcy only."""
        query = _named(topic, channel) | {"to": to}
        return self._number("/channel/seek", query, "seq")

    def redrive_channel(self, topic: str, channel: str, limit: int | None = None) -> int:
        """Redrive dead letters to their original channels, and return their number; nsqcy only."""
        query = _named(topic, channel) | ({"limit": str(limit)} if limit else {})
        return self._number("/channel/redrive", query, "redriven")

    def redrive_message(self, topic: str, channel: str, id: str) -> None:
        """Redrive one dead letter to its original channel; nsqcy only."""
        self._post("/channel/redrive", _named(topic, channel) | {"id": id})

    def deferred(
        self, topic: str, channel: str, *, limit: int = 100, after: str | None = None
    ) -> dict[str, Any]:
        """Return a page of a channel's deferred messages in order of due time; nsqcy only. after:
        `next` of the previous page."""
        query = {"limit": str(limit)} | ({"after": after} if after else {})
        query |= _named(topic, channel)
        return self._object(
            "GET", "/channel/deferred", query, form=DEFERRED, what="a page of deferred messages"
        )

    def peek_topic(
        self,
        topic: str,
        state: str = "backlog",
        *,
        count: int = 20,
        place: str | None = None,
        start: str | None = None,
        max_body: int = 65536,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Return a page of a topic's messages without consuming them; nsqcy only.

        state: `backlog`, messages that are not in any channel yet, or `log`, all messages that the
        topic retains. place: position in the log at which to begin. start: `next` of the previous
        page. max_body: as for peek_channel().
        """
        query = {"state": state, "count": str(count), "bytes": str(max_body)}
        query |= _named(topic) | ({"start": start} if start else {})
        query |= {"from": place} if place and not start else {}
        query |= {} if key is None else {"key": key}
        return self._object("GET", "/topic/peek", query, form=PEEKED, what="a page of messages")

    def peek_channel(
        self,
        topic: str,
        channel: str,
        state: str = "queued",
        *,
        count: int = 20,
        start: str | None = None,
        max_body: int = 65536,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Return a page of a channel's messages without consuming them; nsqcy only.

        state: `queued`, `in_flight` or `deferred`. start: `next` of the previous page. max_body:
        maximum bytes of each body, which is encoded in base64. key: only messages with this key.
        """
        query = {"state": state, "count": str(count), "bytes": str(max_body)}
        query |= _named(topic, channel) | ({"start": start} if start else {})
        query |= {} if key is None else {"key": key}
        return self._object("GET", "/channel/peek", query, form=PEEKED, what="a page of messages")

    def node(self) -> dict[str, Any]:
        """Return the health of nsqd's processes and its disk; nsqcy only."""
        return self._object("GET", "/node")

    def not_ready_because(self) -> list[str]:
        """Return the reasons why clients should not use this nsqd; empty if it is ready. nsqcy
        only."""
        try:
            self._bytes("GET", "/ready")
        except RequestError as error:
            if error.status != 503:
                raise
            return [one_line(each) for each in error.body.decode("utf-8", "replace").splitlines()]
        return []

    def drain_state(self) -> dict[str, Any]:
        """Return whether nsqd is draining, and what is left; nsqcy only."""
        return self._drain_answer("GET", {})

    def drain(
        self, on: bool = True, *, timeout: str | None = None, hand_over: bool = False
    ) -> dict[str, Any]:
        """Begin or end a drain and return its state; nsqcy only. timeout: duration after which nsqd
        exits even if messages are left. hand_over: whether other nodes take over the topics with
        copies."""
        query = {"timeout": timeout} if timeout else {}
        query |= {"hand_over": "true"} if hand_over else {}
        return self._drain_answer("PUT", query, b"true" if on else b"false")

    def _drain_answer(
        self, method: str, query: dict[str, str], body: bytes | None = None
    ) -> dict[str, Any]:
        return self._object(
            method, "/config/drain", query, body, form=DRAIN, what="the state of a drain"
        )

    def reload(self) -> None:
        """Reload the configuration, as SIGHUP does; nsqcy only."""
        self._post("/config/reload", {})

    def upgrade_state(self) -> dict[str, Any]:
        """Return the state of the latest upgrade in place; nsqcy only."""
        return self._object("GET", "/upgrade", form=UPGRADE, what="the state of an upgrade")

    def upgrade(self, python: str = "") -> dict[str, Any]:
        """Start an upgrade in place, and return its state; nsqcy only. python: the path of the
        interpreter of the next version on nsqd's machine; by default, the one that runs nsqd"""
        query = {"to": python} if python else {}
        form = UPGRADE
        return self._object("POST", "/upgrade", query, form=form, what="the state of an upgrade")

    def cancel_message(self, topic: str, channel: str, id: str) -> None:
        """Drop a deferred message; nsqcy only."""
        self._post("/message/cancel", _named(topic, channel) | {"id": id})

    def stats(
        self, topic: str | None = None, channel: str | None = None, text: bool = False
    ) -> dict[str, Any] | bytes:
        """Return the statistics of all topics, or of one topic or channel; with `text`, as bytes in
        NSQ's text format."""
        query = {"format": "text" if text else "json"}
        if topic is not None:
            query |= _named(topic) if channel is None else _named(topic, channel)
        maximum = stats.MAX_ANSWER
        if text:
            return self._request("GET", "/stats", query, maximum=maximum).body
        return self._object("GET", "/stats", query, form=STATS, what="statistics", maximum=maximum)

    def _number(self, path: str, query: dict[str, str], name: str) -> int:
        """Send a POST request, and return this number from the response."""
        form, what = having(**{name: is_number}), f'an object with a numeric "{name}"'
        return int(self._object("POST", path, query, form=form, what=what)[name])

    def _config(
        self, path: str, query: dict[str, str], values: Mapping[str, Any] | None, reset: bool
    ) -> dict[str, Any]:
        method = "DELETE" if reset else "PUT" if values else "GET"
        body = json.dumps(dict(values), allow_nan=False).encode() if values and not reset else None
        return self._object(method, path, query, body, form=POLICY, what="a policy")


class LookupdClient(DaemonClient):
    """HTTP client for an nsqlookupd."""

    PORT = 4161

    def lookup(self, topic: str) -> dict[str, Any]:
        """Return a topic's producers and channels. Raises RequestError with status 404 if the topic
        is unknown."""
        return self._object("GET", "/lookup", _named(topic), form=LOOKUP, what="a list of nsqds")

    def topics(self) -> dict[str, Any]:
        return self._object("GET", "/topics", form=TOPICS, what="a list of topics")

    def channels(self, topic: str) -> dict[str, Any]:
        return self._object(
            "GET", "/channels", _named(topic), form=CHANNELS, what="a list of channels"
        )

    def nodes(self) -> dict[str, Any]:
        return self._object("GET", "/nodes", form=NODES, what="a list of nsqds")

    def create_topic(self, topic: str) -> None:
        self._post("/topic/create", _named(topic))

    def delete_topic(self, topic: str) -> None:
        self._post("/topic/delete", _named(topic))

    def create_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/create", _named(topic, channel))

    def delete_channel(self, topic: str, channel: str) -> None:
        self._post("/channel/delete", _named(topic, channel))

    def tombstone_topic(self, topic: str, node: str) -> None:
        """Hide a producer of a topic for a while. node: `broadcast-address:http-port`."""
        self._post("/topic/tombstone", {**_named(topic), "node": node})
