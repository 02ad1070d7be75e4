"""Which nsqds there are, as nsqlookupds know them.

All lookupds are asked at once, and what they say is united: one that fails does not hide what the
others know. Reading an answer and making a URL are pure functions; lookup(), nodes()
and topics() wait.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import parse_qsl, urlencode

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from nsqcy.cluster import answers
from nsqcy.cluster.parallel import Outcome, ask_all
from nsqcy.cluster.web_client import PORTS, WebClient, unwanted
from nsqcy.errors import RequestError
from nsqcy.names import is_valid_name
from nsqcy.util import gojson

MAX_ANSWER = 32 << 20  # bytes
NOT_FOUND = 404

Key = TypeVar("Key")
Item = TypeVar("Item")


# --- producers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Producer:
    """An nsqd, where its clients reach it. A port of 0 is one it does not have."""

    broadcast_address: str
    tcp_port: int
    http_port: int
    hostname: str = ""
    version: str = ""
    remote_address: str = ""  # the address the lookupd has it from
    topology_region: str = ""
    topology_zone: str = ""
    # Its topics, and whether each has a tombstone; only /nodes tells.
    topics: Mapping[str, bool] = field(default_factory=dict, compare=False)

    @property
    def address(self) -> tuple[str, int]:
        """Where to connect to, and what tells one producer from another."""
        return self.broadcast_address, self.tcp_port

    @property
    def tcp_address(self) -> str:
        return host_port(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        return host_port(self.broadcast_address, self.http_port)

    @property
    def url(self) -> Url:
        """Where it is asked; made of its parts, as an address is whatever its nsqd says it is."""
        if not self.http_port:
            raise RequestError("it has no HTTP port")
        return Url("http", host=self.broadcast_address, port=self.http_port)


def host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


_TEXT = (gojson.text, "")
_PORT = (answers.port, 0)
PRODUCER: gojson.Fields = {
    "broadcast_address": _TEXT,
    "tcp_port": _PORT,
    "http_port": _PORT,
    "hostname": _TEXT,
    "version": _TEXT,
    "remote_address": _TEXT,
    "topology_region": _TEXT,
    "topology_zone": _TEXT,
}
_NODE: gojson.Fields = {
    **PRODUCER,
    "topics": (gojson.array(gojson.text, ""), []),
    "tombstones": (gojson.array(gojson.flag, False), []),
}


def _producers(fields: gojson.Fields) -> gojson.Fields:
    return {"producers": (gojson.array(gojson.structure(fields), gojson.EMPTY), [])}


_TOPICS: gojson.Fields = {"topics": (gojson.array(gojson.text, ""), [])}
_CHANNELS: gojson.Fields = {"channels": (gojson.array(gojson.text, ""), [])}
_LOOKUP = _producers(PRODUCER)
_NODES = _producers(_NODE)


def parse_lookup(body: bytes, headers: Mapping[str, str]) -> list[Producer]:
    """The producers of an answer of /lookup; raises RequestError. Names of headers are in lower
    case."""
    found = answers.read(body, headers, _LOOKUP)
    return _addressed(Producer(**each) for each in found["producers"])


def parse_nodes(body: bytes, headers: Mapping[str, str]) -> list[Producer]:
    """The same of /nodes, with the topics of each."""
    producers = []
    for each in answers.read(body, headers, _NODES)["producers"]:
        names, tombstones = each.pop("topics"), each.pop("tombstones")
        tombstones += [False] * len(names)  # some lookupds give fewer of them
        producers.append(Producer(**each, topics=dict(zip(names, tombstones, strict=False))))
    return _addressed(producers)


def parse_topics(body: bytes, headers: Mapping[str, str]) -> list[str]:
    """The names in an answer of /topics, without those no topic can have."""
    return list(filter(is_valid_name, answers.read(body, headers, _TOPICS)["topics"]))


def parse_channels(body: bytes, headers: Mapping[str, str]) -> list[str]:
    """The same of /channels."""
    return list(filter(is_valid_name, answers.read(body, headers, _CHANNELS)["channels"]))


def _addressed(producers: Iterable[Producer]) -> list[Producer]:
    found = list(producers)
    if not all(each.broadcast_address for each in found):
        raise RequestError("the answer cannot be read: a producer without an address", 200)
    return found


# --- where to ask -------------------------------------------------------------------------------


def daemon_url(address: str) -> Url:
    """The URL of an HTTP address, which may be just host:port; raises ValueError."""
    bare = "://" not in address
    try:
        url = parse_url(f"http://{address}" if bare else address)
    except LocationParseError:
        raise ValueError(f"address {address!r} cannot be read") from None
    if not url.host or url.scheme not in PORTS:
        raise ValueError(f"address {address!r} is neither host:port nor an HTTP URL")
    if bare and not url.port:
        raise ValueError(f"address {address!r} has no port")
    return url._replace(fragment=None)


def lookup_url(address: str, topic: str) -> str:
    """Where a lookupd is asked for the producers of a topic; raises ValueError.

    A path other than `/` is where its /lookup is, and parameters stay.
    """
    url = daemon_url(address)
    path = url.path if url.path not in (None, "", "/") else "/lookup"
    others = parse_qsl(url.query or "", keep_blank_values=True)
    query = [(name, value) for name, value in others if name != "topic"]
    return url._replace(path=path, query=urlencode([*query, ("topic", topic)])).url


def lookupd_url(address: str, name: str) -> str:
    """Where a lookupd is asked for its /nodes, say: beside its /lookup; raises ValueError."""
    url = daemon_url(address)
    folder = (url.path or "/").rpartition("/")[0]
    return url._replace(path=f"{folder}/{name}").url


def bearer(secret: str | bytes | None) -> dict[str, str]:
    """The headers that tell a lookupd the secret of an nsqd's client, if there is one."""
    if not secret:
        return {}
    if isinstance(secret, str):
        secret = secret.encode()
    return {"Authorization": f"Bearer {secret.decode('latin-1')}"}


# --- asking -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What lookupds said, by their addresses."""

    answers: Mapping[str, Sequence[Producer]]
    # Lookupds that have not heard of the topic, and how they say so.
    unknown: Mapping[str, RequestError] = field(default_factory=dict)
    errors: Mapping[str, RequestError] = field(default_factory=dict)

    @property
    def producers(self) -> list[Producer]:
        """All of them, each once."""
        return union(self.answers.values())


def union(lists: Iterable[Iterable[Producer]]) -> list[Producer]:
    """Each producer once, as the first who has it tells it."""
    found: dict[tuple[str, int], Producer] = {}
    for producers in lists:
        for each in producers:
            found.setdefault((each.broadcast_address, each.tcp_port or -each.http_port), each)
    return list(found.values())


def lookup(
    addresses: Sequence[str],
    topic: str,
    *,
    web: WebClient,
    auth_secret: str | bytes | None = None,
) -> Found:
    """The producers of a topic. Raises ValueError for an address that cannot be one; whatever
    happens with a lookupd is in the result."""
    urls = {address: lookup_url(address, topic) for address in addresses}
    outcome = _ask(urls, parse_lookup, web, auth_secret)
    unknown: dict[str, RequestError] = {}
    errors: dict[str, RequestError] = {}
    for address, error in outcome.errors.items():
        (unknown if error.status == NOT_FOUND else errors)[address] = error
    return Found(outcome.values, unknown, errors)


def nodes(
    addresses: Sequence[str],
    topic: str | None = None,
    *,
    web: WebClient,
    auth_secret: str | bytes | None = None,
) -> Found:
    """All nsqds, of whatever topics; given one, without those that a tombstone hides from it."""
    urls = {address: lookupd_url(address, "nodes") for address in addresses}
    outcome = _ask(urls, parse_nodes, web, auth_secret)
    shown = {
        address: [each for each in found if topic is None or not each.topics.get(topic)]
        for address, found in outcome.values.items()
    }
    return Found(shown, {}, outcome.errors)


def topics(
    addresses: Sequence[str], *, web: WebClient, auth_secret: str | bytes | None = None
) -> Outcome[str, list[str]]:
    """The names of all topics, as each of the lookupds knows them."""
    urls = {address: lookupd_url(address, "topics") for address in addresses}
    return _ask(urls, parse_topics, web, auth_secret)


def channels(
    addresses: Sequence[str], topics: Iterable[str], *, web: WebClient
) -> Outcome[tuple[str, str], list[str]]:
    """The names of these topics' channels, by lookupd and topic."""
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
    """What lookupds answer, by the keys of the URLs they are asked at."""
    headers = bearer(auth_secret)

    def ask(key: Key) -> list[Item]:
        answer = web.ask(parse_url(urls[key]), headers=headers, maximum=MAX_ANSWER)
        if answer.status != 200:
            raise unwanted(answer)
        return read(answer.body, answer.headers)

    return ask_all(list(urls), ask, web.terms.whole)
