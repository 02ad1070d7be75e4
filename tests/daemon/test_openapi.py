"""The OpenAPI files in docs/reference/http describe every route and every answer of the daemons."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker, three_workers
from nsqcy.http.router import Route
from nsqcy.nsqadmin import metrics as admin_metrics
from nsqcy.nsqadmin.api import actions, queries, service
from nsqcy.nsqd.http import api as nsqd_api
from nsqcy.nsqlookupd import api as lookupd_api
from nsqcy.testing.http_requests import Answer, Web, eventually
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd

yaml = pytest.importorskip("yaml")

FILES = Path(__file__).parents[2] / "docs" / "reference" / "http"
METHODS = ("get", "post", "put", "delete")
# Pages for browsers and their static files are not part of the API.
PAGES = ("/static", "/fonts")


@dataclass(frozen=True)
class Call:
    """A request for an operation, and the status that the daemon must return."""

    operation: str
    query: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    names: dict[str, str] = field(default_factory=dict)
    status: int = 200


def spec(name: str) -> Any:
    return yaml.safe_load((FILES / f"{name}.yaml").read_text())


def operations(described: Any) -> Iterator[tuple[str, str, Any]]:
    for path, item in described["paths"].items():
        yield from ((path, method, item[method]) for method in METHODS if method in item)


@pytest.mark.parametrize("name", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_a_file_is_valid(name: str) -> None:
    openapi = pytest.importorskip("openapi_spec_validator")  # imported late: it takes two seconds
    openapi.validate(spec(name))
    ids = [operation["operationId"] for _, _, operation in operations(spec(name))]
    assert len(ids) == len(set(ids))


ADMIN = (*queries.ROUTES, *actions.ROUTES, *service.ROUTES)


@pytest.mark.parametrize(
    ("name", "routes"),
    [("nsqd", nsqd_api.ROUTES), ("nsqlookupd", lookupd_api.ROUTES), ("nsqadmin", ADMIN)],
)
def test_every_route_is_described(name: str, routes: tuple[Route, ...]) -> None:
    described = {(method.upper(), path) for path, method, _ in operations(spec(name))}
    wanted = {
        (route.method, "/".join(f"{{{each[1:]}}}" if each[:1] == ":" else each for each in parts))
        for route in routes
        if not route.path.startswith(PAGES)
        for parts in [route.path.split("/")]
    }
    if name == "nsqadmin":
        assert callable(admin_metrics.route)  # /metrics is a separate route
        wanted.add(("GET", "/metrics"))
    assert described == wanted


def play(web: Web, name: str, calls: list[Call]) -> None:
    """Send these requests, at least one for each operation, and compare the answers with the
    file."""
    described = spec(name)
    found = {
        each["operationId"]: (path, method, each) for path, method, each in operations(described)
    }
    for call in calls:
        path, method, operation = found[call.operation]
        answer = web.request(method.upper(), path.format(**call.names), call.body, **call.query)
        assert answer.status == call.status, (call, answer)
        check(described, operation, answer, call)
    assert found.keys() - {call.operation for call in calls} == set()


def check(described: Any, operation: Any, answer: Answer, call: Call) -> None:
    declared = operation["responses"].get(str(answer.status))
    assert declared is not None, f"{call}: {answer.status} is not described"
    if "$ref" in declared:
        declared = described["components"]["responses"][declared["$ref"].rpartition("/")[2]]
    content = declared.get("content", {})
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if not answer.body:
        assert not content or "text/plain" in content, call
        return
    wanted = "application/json" if kind == "application/json" else "text/plain"
    assert wanted in content, (call, answer)
    if wanted == "application/json":
        schemas = pytest.importorskip("openapi_schema_validator")
        schema = content[wanted]["schema"] | {"components": described["components"]}
        schemas.validate(json.loads(answer.body), schema, cls=schemas.OAS30Validator)


TOPIC = {"topic": "orders"}
CHANNEL = {"topic": "orders", "channel": "billing"}
POLICY = b'{"max_attempts": 5}'


def calls_of_nsqd(deferred: str) -> list[Call]:
    none = {"topic": "none"}
    return [
        Call("publish", TOPIC, b"one"),
        Call("publish", {}, b"one", status=400),
        Call("publishMany", TOPIC, b"two\nthree"),
        Call("publishMany", {"topic": "a b"}, b"x", status=400),
        Call("describeLog", TOPIC, status=200),
        Call("describeLog", none, status=404),
        Call("peekTopic", {"topic": "alone"}),
        Call("peekChannel", CHANNEL),
        Call("peekChannel", CHANNEL | {"state": "deferred"}),
        Call("peekChannel", CHANNEL | {"state": "gone"}, status=400),
        Call("listDeferred", CHANNEL),
        Call("listDeferred", CHANNEL | {"limit": "0"}, status=400),
        Call("cancelMessage", CHANNEL | {"id": deferred}),
        Call("cancelMessage", CHANNEL | {"id": deferred}, status=404),
        Call("cancelMessage", CHANNEL | {"id": "x"}, status=400),
        Call("redrive", CHANNEL),
        Call("redrive", CHANNEL | {"limit": "x"}, status=400),
        Call("redrive", CHANNEL | {"id": "0" * 16}, status=404),
        Call("deleteMessage", CHANNEL | {"id": "x"}, status=400),
        Call("deleteMessage", CHANNEL | {"id": "0" * 16}, status=404),
        Call("getTopicPolicy", TOPIC),
        Call("setTopicPolicy", TOPIC, b'{"msg_timeout": "30s"}'),
        Call("setTopicPolicy", TOPIC, b'{"msg_timout": "30s"}', status=400),
        Call("resetTopicPolicy", TOPIC),
        Call("getChannelPolicy", CHANNEL),
        Call("setChannelPolicy", CHANNEL, POLICY),
        Call("resetChannelPolicy", CHANNEL),
        Call("setRate", CHANNEL | {"rate": "100"}),
        Call("setRate", CHANNEL | {"rate": "-1"}, status=400),
        Call("createTopic", {"topic": "other"}),
        Call("createChannel", {"topic": "other", "channel": "c"}),
        Call("createChannel", {"topic": "other", "channel": "d", "start": "earliest"}),
        Call("createChannel", {"topic": "other", "channel": "d", "start": "earliest"}, status=409),
        Call("seekChannel", {"topic": "other", "channel": "d", "to": "latest"}),
        Call("seekChannel", {"topic": "other", "channel": "d", "to": "x"}, status=400),
        Call("pauseChannel", CHANNEL),
        Call("unpauseChannel", CHANNEL),
        Call("setChannelPolicy", CHANNEL, b'{"fair": true}'),
        Call("pauseKey", CHANNEL | {"key": "k"}),
        Call("listKeys", CHANNEL),
        Call("listKeys", CHANNEL | {"limit": "x"}, status=400),
        Call("unpauseKey", CHANNEL | {"key": "k"}),
        Call("emptyKey", CHANNEL | {"key": "k"}),
        Call("resetChannelPolicy", CHANNEL),
        Call("pauseKey", CHANNEL | {"key": "k"}, status=400),
        Call("pauseKey", CHANNEL | {"key": ""}, status=400),
        Call("pauseKey", CHANNEL | {"channel": "none", "key": "k"}, status=404),
        Call("unpauseKey", CHANNEL | {"key": "k"}, status=400),
        Call("emptyKey", CHANNEL | {"key": "k"}, status=400),
        Call("emptyChannel", CHANNEL),
        Call("deleteChannel", {"topic": "other", "channel": "c"}),
        Call("deleteChannel", {"topic": "other", "channel": "c"}, status=404),
        Call("pauseTopic", TOPIC),
        Call("unpauseTopic", TOPIC),
        Call("emptyTopic", TOPIC),
        Call("deleteTopic", {"topic": "other"}),
        Call("deleteTopic", {"topic": "other"}, status=404),
        *(Call(each) for each in ("ping", "ready", "live", "info", "stats", "node", "copies")),
        Call("metrics"),
        Call("stats", {"format": "json", "ledger": "true"}),
        Call("getOption", names={"opt": "log_level"}),
        Call("getOption", names={"opt": "no_such"}, status=400),
        Call("setOption", body=b"debug", names={"opt": "log_level"}),
        Call("setOption", body=b"loud", names={"opt": "log_level"}, status=400),
        Call("getDrain"),
        Call("reload", body=b""),
        Call("getUpgrade"),
        Call("beginUpgrade", {"to": "/no/python3"}, b""),
        Call("setDrain", body=b"false"),
        Call("setDrain", body=b"maybe", status=400),
        *DEBUG,
        Call("setBlockRate", {"rate": "1"}, b""),
        Call("setBlockRate", {"rate": "x"}, b"", status=400),
        Call("freeMemory", body=b""),
    ]


DEBUG = [
    Call("debugIndex"),
    Call("debugCommandLine"),
    Call("debugSymbol"),
    Call("debugSymbolPost", body=b""),
    Call("debugStacks"),
    Call("debugMemory"),
    Call("debugThreads"),
    Call("debugBlock"),
]


@three_workers
def test_nsqd_answers_as_described(nsqd: Starter) -> None:
    daemon = nsqd(retention_time="1h")
    web = daemon.web
    web.create("orders", "billing")
    web.pub("alone", b"x")
    web.pub("orders", b"later", defer=3_600_000)
    listed = web.get("/channel/deferred", **CHANNEL).json()["deferred"]
    calls = [*calls_of_nsqd(listed[0]["id"]), Call("debugProfile", {"seconds": "301"}, status=400)]
    play(web, "nsqd", calls)


@one_worker
def test_nsqlookupd_answers_as_described(nsqd: Starter) -> None:
    with Lookupd() as lookupd:
        daemon = nsqd(lookupd_tcp_address=lookupd.tcp_address, broadcast_address="127.0.0.1")
        daemon.web.create("orders", "billing")
        eventually(lambda: lookupd.channels("orders") == ["billing"])
        node = f"127.0.0.1:{daemon.http_port}"
        calls = [
            Call("lookup", TOPIC),
            Call("lookup", status=400),
            Call("lookup", {"topic": "none"}, status=404),
            *(
                Call(each)
                for each in (
                    "topics",
                    "nodes",
                    "lostNodes",
                    "ping",
                    "info",
                    "metrics",
                    "everything",
                )
            ),
            Call("channels", TOPIC),
            Call("channels", status=400),
            Call("createTopic", {"topic": "other"}),
            Call("createTopic", {"topic": "a b"}, status=400),
            Call("createChannel", {"topic": "other", "channel": "c"}),
            Call("deleteChannel", {"topic": "other", "channel": "c"}),
            Call("deleteChannel", {"topic": "other", "channel": "c"}, status=404),
            Call("deleteTopic", {"topic": "other"}),
            Call("tombstone", TOPIC | {"node": node}),
            Call("tombstone", TOPIC, status=400),
            *DEBUG,
            Call("debugProfile", {"seconds": "301"}, status=400),
        ]
        play(lookupd.web, "nsqlookupd", calls)


def encoded(**fields: str) -> bytes:
    return json.dumps(fields).encode()


def calls_of_nsqadmin(daemon: Nsqd) -> list[Call]:
    node = {"node": f"127.0.0.1:{daemon.http_port}"}
    return [
        Call("topics"),
        Call("topics", {"inactive": "true"}),
        Call("create", body=encoded(topic="other", channel="c")),
        Call("create", body=encoded(topic="a b"), status=400),
        Call("topic", names=TOPIC),
        Call("topic", names={"topic": "none"}, status=404),
        Call("channel", names=CHANNEL),
        Call("actOnTopic", body=encoded(action="pause"), names=TOPIC),
        Call("actOnTopic", body=encoded(action="unpause"), names=TOPIC),
        Call("actOnTopic", body=encoded(action="x"), names=TOPIC, status=400),
        Call("actOnChannel", body=encoded(action="pause"), names=CHANNEL),
        Call("actOnChannel", body=encoded(action="rate", rate="10"), names=CHANNEL),
        Call("nodes"),
        Call("node", names=node),
        Call("node", names={"node": "127.0.0.1:1"}, status=404),
        Call("actOnNode", body=encoded(action="drain"), names=node),
        Call("drainState", names=node),
        Call("actOnNode", body=encoded(action="undrain"), names=node),
        Call("counter"),
        Call("copies"),
        Call("peekTopic", names=TOPIC),
        Call("peekChannel", names=CHANNEL),
        Call("previewSeek", {"to": "earliest"}, names=CHANNEL),
        Call("history"),
        Call("history", {"topic": "none"}, status=404),
        Call("getTopicPolicy", names=TOPIC),
        Call("setTopicPolicy", body=b'{"msg_timeout": "30s"}', names=TOPIC),
        Call("resetTopicPolicy", names=TOPIC),
        Call("getChannelPolicy", names=CHANNEL),
        Call("setChannelPolicy", body=POLICY, names=CHANNEL),
        Call("resetChannelPolicy", names=CHANNEL),
        Call("graphite", status=400),
        Call("ping"),
        Call("metrics"),
        Call("getOption", names={"opt": "log_level"}),
        Call("getOption", names={"opt": "no_such"}, status=400),
        Call("setOption", body=b"debug", names={"opt": "log_level"}),
        Call("tombstone", body=encoded(topic="orders"), names=node),
        Call("deleteChannel", names={"topic": "other", "channel": "c"}),
        Call("deleteTopic", names={"topic": "other"}),
    ]


@one_worker
def test_nsqadmin_answers_as_described(nsqd: Starter) -> None:
    with Lookupd() as lookupd:
        daemon = nsqd(
            lookupd_tcp_address=lookupd.tcp_address,
            broadcast_address="127.0.0.1",
            retention_time="1h",
        )
        daemon.web.create("orders", "billing")
        daemon.web.pub("orders", b"one")
        eventually(lambda: lookupd.channels("orders") == ["billing"])
        with Admin(lookupd_http_address=lookupd.http_address, history_interval="1s") as admin:
            play(admin.web, "nsqadmin", calls_of_nsqadmin(daemon))
