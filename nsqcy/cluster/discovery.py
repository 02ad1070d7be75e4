"""Discovery of nsqds, topics and channels through nsqlookupds.

All nsqlookupds are queried in parallel and their responses are merged, so that one failure does not
hide the others' results. Parsing a response and building a URL are pure functions; lookup(),
nodes(), topics() and channels() block.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from nsqcy.cluster import answers
from nsqcy.cluster.parallel import Outcome, ask_all
from nsqcy.cluster.trust import Trust
from nsqcy.cluster.web_client import PORTS, WebClient
from nsqcy.errors import RequestError
from nsqcy.names import host_port, is_valid_name, valid_names
from nsqcy.util import gojson

MAX_ANSWER = 32 << 20  # bytes
MAX_PRODUCERS = 10_000  # maximum nsqds in a response
NOT_FOUND = 404

Key = TypeVar("Key")
Item = TypeVar("Item")


# --- producers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Producer:
    """An nsqd with its address for clients. A port of 0 means that there is none."""

    broadcast_address: str
    tcp_port: int
    http_port: int
    hostname: str = ""
    version: str = ""
    remote_address: str = ""  # the nsqd's address as seen by the nsqlookupd
    topology_region: str = ""
    topology_zone: str = ""
    # Whether the nsqlookupd reports that the nsqd has authenticated to it.
    authenticated: bool = field(default=False, compare=False)
    # Topic -> whether it has a tombstone. Only in responses to /nodes.
    topics: Mapping[str, bool] = field(default_factory=dict, compare=False)

    @property
    def address(self) -> tuple[str, int]:
        """The address to connect to; it identifies the producer."""
        return self.broadcast_address, self.tcp_port

    @property
    def tcp_address(self) -> str:
        return host_port(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        return host_port(self.broadcast_address, self.http_port)

    @property
    def url(self) -> Url:
        """The URL for HTTP requests, built from its parts: the announced address may be any
        text."""
        if not self.http_port:
            raise RequestError("the nsqd has no HTTP port")
        return Url("http", host=self.broadcast_address, port=self.http_port)


_TEXT = (answers.line, "")
# Omit a producer with an invalid address: every nsqd chooses the address that it announces, and one
# nsqd must not hide the others.
_ADDRESS = re.compile(r"[^\s/?#@\\\x00-\x1f\x7f-\x9f]{1,255}")


def _port(value: Any) -> int:
    number: int = gojson.int64(value)
    return number if 0 <= number < 65536 else -1


_PORT = (_port, 0)
PRODUCER: gojson.Fields = {
    "broadcast_address": (gojson.text, ""),
    "tcp_port": _PORT,
    "http_port": _PORT,
    "hostname": _TEXT,
    "version": _TEXT,
    "remote_address": _TEXT,
    "topology_region": _TEXT,
    "topology_zone": _TEXT,
    "authenticated": (gojson.flag, False),
}
_NODE: gojson.Fields = {
    **PRODUCER,
    "topics": (gojson.array(gojson.text, ""), []),
    "tombstones": (gojson.array(gojson.flag, False), []),
}


def _producers(fields: gojson.Fields) -> gojson.Fields:
    return {"producers": (gojson.array(gojson.structure(fields), gojson.EMPTY), [])}


_TOPICS: gojson.Fields = {"topics": (gojson.array(gojson.text, ""), [])}
_NSQD_TOPIC: gojson.Fields = {"topic_name": (gojson.text, "")}
_NSQD_TOPICS: gojson.Fields = {
    "topics": (gojson.array(gojson.structure(_NSQD_TOPIC), gojson.EMPTY), [])
}
_CHANNELS: gojson.Fields = {"channels": (gojson.array(gojson.text, ""), [])}
_LOOKUP = _producers(PRODUCER)
_NODES = _producers(_NODE)


def parse_lookup(body: bytes, headers: Mapping[str, str]) -> list[Producer]:
    """Return the producers in a /lookup response. Names in `headers` are lower case. Raises
    RequestError."""
    found = answers.read(body, headers, _LOOKUP)
    return _addressed(Producer(**each) for each in found["producers"])


def parse_nodes(body: bytes, headers: Mapping[str, str]) -> list[Producer]:
    """Return the producers in a /nodes response, with each producer's topics."""
    producers = []
    for each in answers.read(body, headers, _NODES)["producers"]:
        names, tombstones = each.pop("topics"), each.pop("tombstones")
        tombstones += [False] * len(names)  # some nsqlookupds return fewer tombstones than topics
        topics = dict(zip(names, tombstones, strict=False))
        valid = valid_names(topics)
        if len(valid) < len(topics):
            topics = {topic: topics[topic] for topic in valid}
        producers.append(Producer(**each, topics=topics))
    return _addressed(producers)


def parse_topics(body: bytes, headers: Mapping[str, str]) -> list[str]:
    """Return the valid names in a /topics response."""
    # Strings are scanned fast enough not to delay other threads, unlike objects.
    return valid_names(answers.read(body, headers, _TOPICS, gojson.decode)["topics"])


def parse_nsqd_topics(body: bytes, headers: Mapping[str, str]) -> list[str]:
    """Return the valid names of topics in an nsqd's response to /stats."""
    found = answers.read(body, headers, _NSQD_TOPICS)["topics"]
    return [each["topic_name"] for each in found if is_valid_name(each["topic_name"])]


def parse_channels(body: bytes, headers: Mapping[str, str]) -> list[str]:
    """Return the valid names in a /channels response."""
    return valid_names(answers.read(body, headers, _CHANNELS)["channels"])


def _addressed(producers: Iterable[Producer]) -> list[Producer]:
    found = list(producers)
    if len(found) > MAX_PRODUCERS:
        text = f"the response lists {len(found)} nsqds; the limit is {MAX_PRODUCERS}"
        raise RequestError(text, 200)
    if not all(each.broadcast_address for each in found):
        raise RequestError("the response cannot be read: a producer has no address", 200)
    return list(filter(is_addressed, found))


def is_addressed(producer: Producer) -> bool:
    """Return whether the address and ports of a producer are valid."""
    host = producer.broadcast_address
    ports = min(producer.tcp_port, producer.http_port)
    return ports >= 0 and host.isprintable() and _ADDRESS.fullmatch(host) is not None


# --- URLs ---------------------------------------------------------------------------------------


def daemon_url(address: str) -> Url:
    """Return the URL of an HTTP address, which may be just host:port. Raises ValueError."""
    bare = "://" not in address
    try:
        url = parse_url(f"http://{address}" if bare else address)
    except LocationParseError:
        raise ValueError(f"address {address!r} cannot be read") from None
    if not url.host or url.scheme not in PORTS:
        raise ValueError(f"address {address!r} is neither host:port nor an HTTP URL")
    if bare and not url.port:
        raise ValueError(f"address {address!r} has no port: write HOST:PORT")
    return url._replace(fragment=None)


def lookup_url(address: str, topic: str) -> str:
    """Return the URL that looks up a topic's producers. Raises ValueError.

    A path other than `/` replaces /lookup, and query parameters are kept.
    """
    url = daemon_url(address)
    path = url.path if url.path not in (None, "", "/") else "/lookup"
    others = parse_qsl(url.query or "", keep_blank_values=True)
    query = [(name, value) for name, value in others if name != "topic"]
    return url._replace(path=path, query=urlencode([*query, ("topic", topic)])).url


def lookupd_url(address: str, name: str) -> str:
    """Return the URL of a different endpoint, for example /nodes, next to /lookup. `name` may end
    in a query. Raises ValueError."""
    url = daemon_url(address)
    folder = (url.path or "/").rpartition("/")[0]
    path, _, query = name.partition("?")
    both = "&".join(filter(None, [query, url.query]))
    return url._replace(path=f"{folder}/{path}", query=both or None).url


def bearer(secret: str | bytes | None) -> dict[str, str]:
    """Return the headers that pass an nsqd client's secret, if any, to an nsqlookupd."""
    if not secret:
        return {}
    if isinstance(secret, str):
        secret = secret.encode()
    return {"Authorization": f"Bearer {secret.decode('latin-1')}"}


# --- queries ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Responses by nsqlookupd address."""

    answers: Mapping[str, Sequence[Producer]]
    # nsqlookupds that do not know the topic, with the errors they returned.
    unknown: Mapping[str, RequestError] = field(default_factory=dict)
    errors: Mapping[str, RequestError] = field(default_factory=dict)

    @property
    def producers(self) -> list[Producer]:
        """Return all producers, each once."""
        return union(self.answers.values())


def union(lists: Iterable[Iterable[Producer]]) -> list[Producer]:
    """Return each producer once, from the first list that contains it."""
    found: dict[tuple[str, int], Producer] = {}
    for producers in lists:
        for each in producers:
            key = each.broadcast_address, each.tcp_port or -each.http_port
            if each.authenticated and not found.get(key, each).authenticated:
                found[key] = replace(found[key], authenticated=True)
            found.setdefault(key, each)
    return list(found.values())


def lookup(
    addresses: Sequence[str],
    topic: str,
    *,
    web: WebClient,
    auth_secret: str | bytes | None = None,
) -> Found:
    """Query a topic's producers. Raises ValueError for an invalid address. The result includes
    failed nsqlookupd queries."""
    return lookup_all(addresses, [topic], web=web, auth_secret=auth_secret)[topic]


def lookup_all(
    addresses: Sequence[str],
    topics: Sequence[str],
    *,
    web: WebClient,
    auth_secret: str | bytes | None = None,
) -> dict[str, Found]:
    """Query the producers of several topics, in parallel; return them by topic."""
    urls = {
        (address, topic): lookup_url(address, topic) for topic in topics for address in addresses
    }
    outcome = _ask(urls, parse_lookup, web, auth_secret)
    answers: dict[str, dict[str, list[Producer]]] = {topic: {} for topic in topics}
    unknown: dict[str, dict[str, RequestError]] = {topic: {} for topic in topics}
    errors: dict[str, dict[str, RequestError]] = {topic: {} for topic in topics}
    for (address, topic), producers in outcome.values.items():
        answers[topic][address] = producers
    for (address, topic), error in outcome.errors.items():
        (unknown if error.status == NOT_FOUND else errors)[topic][address] = error
    for by_address in answers.values():
        note_proved(by_address, web, all_nodes=False)
    return {topic: Found(answers[topic], unknown[topic], errors[topic]) for topic in topics}


def nodes(
    addresses: Sequence[str],
    topic: str | None = None,
    *,
    web: WebClient,
    auth_secret: str | bytes | None = None,
    with_topics: bool = True,
) -> Found:
    """Query all nsqds, with or without their topics; NSQ's nsqlookupd always sends these. With a
    topic, omit nsqds that a tombstone hides from it."""
    path = "nodes" if with_topics else "nodes?topics=false"
    urls = {address: lookupd_url(address, path) for address in addresses}
    outcome = _ask(urls, parse_nodes if with_topics else parse_lookup, web, auth_secret)
    note_proved(outcome.values, web, all_nodes=True)
    shown = {
        address: [each for each in found if topic is None or not each.topics.get(topic)]
        for address, found in outcome.values.items()
    }
    return Found(shown, {}, outcome.errors)


def trust_in(addresses: Callable[[], Iterable[str]], *, all_listed: bool) -> Trust:
    """Return the servers that may receive a token. addresses: the servers currently set in
    options."""
    return Trust(lambda: map(daemon_url, addresses()), all_listed=all_listed)


def note_proved(
    answers: Mapping[str, Iterable[Producer]], web: WebClient, *, all_nodes: bool
) -> None:
    """Record which nsqds may receive the client's token. answers: by nsqlookupd."""
    if web.terms.trust is None:
        return
    for address, producers in answers.items():
        proved = [
            (each.broadcast_address, each.http_port) for each in producers if each.authenticated
        ]
        web.terms.trust.note(address, proved, all_nodes=all_nodes)


def topics(
    addresses: Sequence[str],
    *,
    web: WebClient,
    auth_secret: str | bytes | None = None,
    abandoned: bool = False,
) -> Outcome[str, list[str]]:
    """Query the names of all topics. The result is keyed by nsqlookupd. abandoned: only those that
    no active nsqd has; NSQ's nsqlookupd sends all of them even so."""
    path = "topics?abandoned=true" if abandoned else "topics"
    urls = {address: lookupd_url(address, path) for address in addresses}
    return _ask(urls, parse_topics, web, auth_secret)


def nsqd_topics(
    addresses: Sequence[str], *, web: WebClient, auth_secret: str | bytes | None = None
) -> Outcome[str, list[str]]:
    """Query the names of the topics of these nsqds. The result is keyed by nsqd."""
    query = urlencode({"format": "json", "include_clients": "false", "include_mem": "false"})
    urls = {address: f"{lookupd_url(address, 'stats')}?{query}" for address in addresses}
    return _ask(urls, parse_nsqd_topics, web, auth_secret)


def channels(
    addresses: Sequence[str], topics: Iterable[str], *, web: WebClient
) -> Outcome[tuple[str, str], list[str]]:
    """Query the channel names of these topics. The result is keyed by nsqlookupd and topic."""
    urls = {
        (address, topic): f"{lookupd_url(address, 'channels')}?{urlencode({'topic': topic})}"
        for topic in topics
        for address in addresses
    }
    return _ask(urls, parse_channels, web, None)


def _ask(
    urls: Mapping[Key, str],
    read: Callable[[bytes, Mapping[str, str]], list[Item]],
    web: WebClient,
    auth_secret: str | bytes | None,
) -> Outcome[Key, list[Item]]:
    """Query URLs; return each response under its URL's key."""
    headers = bearer(auth_secret)

    def ask(key: Key) -> list[Item]:
        answer = web.fetch(parse_url(urls[key]), headers=headers, maximum=MAX_ANSWER)
        return read(answer.body, answer.headers)

    return ask_all(list(urls), ask, web.terms.whole)
