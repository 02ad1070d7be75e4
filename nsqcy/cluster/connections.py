"""Connections to nsqds: consumers with their channels, and producers with their published messages.

Reads `/stats` with clients. An nsqd lists a connection as a producer from its first publish on. If
a connection also consumes, nsqd lists it twice; this module combines the two entries.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from urllib3.util import Url

from nsqcy.cluster import answers, stats
from nsqcy.cluster.stats import ClientStats
from nsqcy.cluster.web_client import WebClient
from nsqcy.util import gojson


class Connection(NamedTuple):
    """topic, channel: its subscription; empty if it has none. published: number of messages by
    topic."""

    client: ClientStats
    topic: str = ""
    channel: str = ""
    published: Mapping[str, int] = MappingProxyType({})


def _list(fields: gojson.Fields) -> tuple[gojson.Reader, list[Any]]:
    return gojson.array(gojson.structure(fields), gojson.EMPTY), []


_CHANNEL: gojson.Fields = {
    "channel_name": (answers.line, ""),
    "clients": _list(stats.CLIENT_FIELDS),
}
_TOPIC: gojson.Fields = {"topic_name": (answers.line, ""), "channels": _list(_CHANNEL)}
_COUNT: gojson.Fields = {"topic": (answers.line, ""), "count": (gojson.int64, 0)}
_PRODUCER: gojson.Fields = {**stats.CLIENT_FIELDS, "pub_counts": _list(_COUNT)}
_PAGE: gojson.Fields = {"topics": _list(_TOPIC), "producers": _list(_PRODUCER)}


def of_nsqd(url: Url, node: str, *, web: WebClient) -> list[Connection]:
    """Query the connections of the nsqd at this URL. node: its HTTP address. Raises
    RequestError."""
    answer = stats.answer_of(url, web=web, clients=True)
    return stats.Leased(parse_connections(answer.body, answer.headers, node), answer.lease)


def parse_connections(body: bytes, headers: Mapping[str, str], node: str) -> list[Connection]:
    """Return the connections in a response to /stats?format=json. Names in `headers` are lower
    case. Raises RequestError."""
    page = answers.read(body, headers, _PAGE, gojson.decode_large)
    found = [
        Connection(stats.client_of(client, node), topic["topic_name"], channel["channel_name"])
        for topic in page["topics"]
        for channel in topic["channels"]
        for client in channel["clients"]
    ]
    consumers = {
        each.client.remote_address: place
        for place, each in enumerate(found)
        if ":" in each.client.remote_address  # on a unix socket, clients may share an address
    }
    for values in page["producers"]:
        published = {each["topic"]: each["count"] for each in values.pop("pub_counts")}
        client = stats.client_of(values, node)
        place = consumers.get(client.remote_address)
        if place is None:
            found.append(Connection(client, published=published))
        else:
            found[place] = found[place]._replace(published=published)
    return found
