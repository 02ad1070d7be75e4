"""Answers that daemons receive from nsqlookupds, nsqds and auth servers: each is read or refused,
and every value in it can be shown.

The first byte of an input selects the kind of the rest.
"""

import json
from collections.abc import Callable
from typing import Any

from fuzz.garbage import ODD_JSON
from nsqcy.cluster import answer_forms, copies
from nsqcy.cluster import answers as rules
from nsqcy.cluster.connections import parse_connections
from nsqcy.cluster.discovery import (
    lookup_url,
    parse_channels,
    parse_lookup,
    parse_nodes,
    parse_topics,
)
from nsqcy.cluster.stats import parse_stats, sum_topics
from nsqcy.cluster.web_client import Answer
from nsqcy.errors import NsqError, RequestError
from nsqcy.http.parser import Reply
from nsqcy.nsqadmin.api.stats_json import StatsJson
from nsqcy.nsqadmin.cluster import answers
from nsqcy.nsqadmin.cluster.nodes import Clients
from nsqcy.nsqadmin.html import message_bodies
from nsqcy.nsqd.auth import authorizations as auth
from nsqcy.nsqd.lookup.protocol import Answers, PeerFailure, parse_info, split
from nsqcy.tools.json_filter import JsonFilter
from nsqcy.util.gotext import json_bytes
from support.fake_auth_server import answer, grant

COVERS = ["cluster/answers.py", "cluster/discovery.py", "cluster/stats.py", "cluster/latency.py"]
COVERS += ["cluster/answer_forms.py", "cluster/connections.py"]
COVERS += [
    "util/gojson.py",
    "nsqd/auth/authorizations.py",
    "nsqd/lookup/protocol.py",
    "tools/json_filter.py",
]
COVERS += ["nsqadmin/html/message_bodies.py"]
PRODUCER = {"broadcast_address": "a", "tcp_port": 1, "http_port": 2, "hostname": "h"}
NODE = PRODUCER | {"topics": ["t"], "tombstones": [True]}
LATENCY = {"count": 3, "percentiles": [{"quantile": 0.99, "value": 5.5}]}
CLIENT = {"client_id": "i", "hostname": "h", "connect_ts": 5, "tls": True, "remote_address": "a:1"}
CHANNEL = {
    "channel_name": "c",
    "depth": 5,
    "message_count": 7,
    "paused": False,
    "clients": [CLIENT],
}
CHANNEL |= {"e2e_processing_latency": LATENCY}
TOPIC = {"topic_name": "t", "channels": [CHANNEL], "depth": 1, "e2e_processing_latency": LATENCY}
ALL = {"producers": [NODE], "topics": [TOPIC], "channels": ["c"], "data": None}
MESSAGE = {"id": "0123456789abcdef", "seq": 5, "timestamp": 5, "attempts": 1, "size": 2}
MESSAGE |= {"body": "aGk=", "cut": False, "headers": {"a": "b"}, "start": "5.0", "due": 5}
MESSAGE |= {"consumer": {"client_id": "i", "remote_address": "a:1"}}
PAGE = {"messages": [MESSAGE], "next": "6.0", "previous": "4.0"}
CONNECTED = {"topics": [TOPIC], "producers": [CLIENT | {"pub_counts": [{"topic": "t"}]}]}
KEYS = {key for each in (NODE, TOPIC, CHANNEL, CLIENT, LATENCY, ALL) for key in each}
WORDS = [json.dumps(key).encode() + b":" for key in sorted(KEYS)]
WORDS += [b"\\r\\nSet-Cookie: a=b", b"\\u001b[2J", b"\\u0000", b'"id":"x"', b"../", b"65536"]
WORDS += [b"null", b"1e999", b"-1", b"[[", b"{}", b"\\ud800", b'"permissions":', b'"ttl":', b".*"]


def seeds() -> list[bytes]:
    plain = json.dumps(ALL).encode()
    found = [bytes([kind]) + plain for kind in range(3)]
    found += [b"\1" + json.dumps({"status_code": 200, "data": ALL}).encode()]
    found += [b"\1" + json.dumps({"topics": ["t", "bad name"]}).encode()]
    found += [b"\3" + answer(grant("a.*b?", ["c[de]+"]), grant(permissions=["publish"]), ttl=9)]
    found += [b"\4" + b"\0\0\0\2OK\0\0\0\x11" + b'{"tcp_port":4160}' + b"\0\0\0\2OK"]
    found += [
        b"\5" + each
        for each in (b'{"a":[1,{"b":"c"}],"n":1e5}', b"text\n", b"\xff\0", "ä".encode())
    ]
    found += [b"\7" + json.dumps(PAGE).encode(), b"\x08" + json.dumps(CONNECTED).encode()]
    found += [b"\7" + json.dumps(PAGE | {"messages": [MESSAGE | {"id": "\r\nX: y"}]}).encode()]
    found += [b"\6a:4161", b"\6http://u:p@h:1/x?y=z", b"\6[::1]:80"]
    return found + [bytes([kind]) + each[:300] for kind, each in enumerate(ODD_JSON)]


def one(data: bytes) -> None:
    reads: list[Callable[[bytes], None]] = [
        _stats,
        _lookupd,
        _other,
        _auth,
        _protocol,
        _body,
        _address,
        _page,
        _connections,
    ]
    if data:
        reads[data[0] % len(reads)](data[1:])


def read_or_refused(read: Callable[..., Any], body: bytes) -> Any:
    try:
        return read(body, {})
    except RequestError as error:
        assert "cannot be read" in str(error)
        return []


def _stats(body: bytes) -> None:
    rows = read_or_refused(lambda body, headers: parse_stats(body, headers, clients=True), body)
    stats = StatsJson(Clients({}, 0.0))
    for topic in sum_topics([*rows, *rows]).values():
        json.loads(json_bytes(stats.topic(topic)))
        for channel in topic.channels.values():
            json.loads(json_bytes(stats.channel(channel)))


def _lookupd(body: bytes) -> None:
    for read in (parse_lookup, parse_nodes):
        for each in read_or_refused(read, body):
            assert_one_line(each.broadcast_address, each.hostname, each.version, *each.topics)
            url = each.url.url if each.http_port else ""
            assert not set(each.broadcast_address) & set(" /?#@"), url
            assert 0 <= each.tcp_port < 65536 and 0 <= each.http_port < 65536
    for read in (parse_topics, parse_channels):
        json_bytes({"names": read_or_refused(read, body)})


def assert_one_line(*texts: str) -> None:
    assert all(len(each) <= 1024 and each.isprintable() for each in texts), texts


def _page(body: bytes) -> None:
    """Every value of a page is safe to use in a link, a header or the next request."""
    for form in (
        answer_forms.PEEKED,
        answer_forms.POLICY,
        answers.LOG,
        answers.NODE,
        answers.COPIES,
    ):
        found = answers.read_answer("n", Answer(200, {}, body), form)
        assert_one_line(found.message)
        for message in found.value.get("messages", ()) if form is answer_forms.PEEKED else ():
            Reply(200, headers=[("X", f"{message['id']} {message['start']}")])
            assert message["id"] is None or len(message["id"]) == 16


def _connections(body: bytes) -> None:
    for each in read_or_refused(lambda body, headers: parse_connections(body, headers, "n"), body):
        client = each.client
        assert_one_line(each.topic, each.channel, *each.published, client.client_id)
        assert_one_line(client.user_agent, client.hostname, client.remote_address)
    read_or_refused(lambda body, headers: rules.read(body, headers, copies.FIELDS), body)


def _other(body: bytes) -> None:
    for status in (200, 404):
        found = answers.read_answer("n", Answer(status, {}, body))
        json_bytes({"value": found.value, "reason": found.reason, "missing": found.is_missing})
    for wanted in (("a", "5", ()), ("a", "", ("a", "n")), ("", "", ("b",))):
        JsonFilter(*wanted).apply(body)


def _auth(body: bytes) -> None:
    try:
        found = auth.parse(body)
    except NsqError:
        return
    assert found.permits("ab", "cd") in (True, False)
    json.loads(found.response)


def _protocol(data: bytes) -> None:
    answers = Answers(1000)
    answers.feed(data)
    try:
        while (each := answers.next()) is not None:
            try:
                str(parse_info(each)).encode()
            except ValueError:
                pass
    except PeerFailure:
        pass


def _body(data: bytes) -> None:
    for cut, as_hex in ((False, False), (True, False), (False, True)):
        found = message_bodies.body_text(data, cut=cut, as_hex=as_hex)
        found.text.encode()
        assert len(found.text) <= 6 * len(data) + 4096


def _address(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for read in (split, lambda text: lookup_url(text, "t")):
        try:
            read(text)
        except ValueError:
            pass
