"""How a consumer discovers nsqds."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.cluster.discovery import lookup_url
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Aio, Face, Kept
from support.fake_lookup_http import LookupPages
from support.fake_nsqd import MockNsqd
from support.nsqd_process import free_port
from support.nsqlookupd_process import Lookupd

pytestmark = pytest.mark.usefixtures("soon")


@one_worker
@pytest.mark.case("CL-037")
def test_a_real_lookupd(face: Face, nsqd: Starter, topic: str) -> None:
    with Lookupd() as lookupd:
        daemon = nsqd(lookupd_tcp_address=lookupd.tcp_address, broadcast_address="127.0.0.1")
        daemon.web.post(f"/pub?topic={topic}", b"hello")
        kept = Kept()
        eventually(lambda: topic.encode() in lookupd.web.get("/topics").body)
        consumer = face.consumer(
            topic, "c", lookupd_http_addresses=lookupd.http_address, message_handler=kept
        )
        eventually(lambda: kept.bodies == [b"hello"])
        face.call(kept.messages[0].finish)
        assert list(consumer.connections) == [f"127.0.0.1:{daemon.tcp_port}"]
        producer = face.producer(lookupd_http_addresses=[lookupd.http_address])
        assert face.call(producer.publish, topic, b"more") == b"OK"
        eventually(lambda: kept.bodies == [b"hello", b"more"])


def test_every_nsqd_is_subscribed_to_before_it_has_the_topic(
    face: Face, nsqd: Starter, topic: str
) -> None:
    with Lookupd() as lookupd:
        daemons = [
            nsqd(lookupd_tcp_address=lookupd.tcp_address, broadcast_address="127.0.0.1")
            for _ in range(2)
        ]
        eventually(lambda: len(lookupd.web.get("/nodes").json()["producers"]) == 2)
        kept = Kept()
        face.consumer(
            topic,
            "c",
            lookupd_http_addresses=lookupd.http_address,
            message_handler=kept,
            every_nsqd=True,
            max_in_flight=2,
        )
        for each in daemons:
            eventually(lambda each=each: topic.encode() in each.web.get("/stats").body)
            each.web.post(f"/pub?topic={topic}", b"hello")
        eventually(lambda: kept.bodies == [b"hello"] * 2)


def two(
    face: Face, mock: Callable[..., MockNsqd], stack: ExitStack
) -> tuple[list[MockNsqd], list[LookupPages]]:
    nsqds = [mock(), mock()]
    pages = [stack.enter_context(LookupPages(("127.0.0.1", each.port))) for each in nsqds]
    return nsqds, pages


@pytest.mark.case("CL-038")
def test_what_lookupds_know_is_united(face: Face, mock: Callable[..., MockNsqd]) -> None:
    with ExitStack() as stack:
        nsqds, pages = two(face, mock, stack)
        face.consumer("t", "c", (), [each.address for each in pages], max_in_flight=2)
        for nsqd in nsqds:
            nsqd.subscriber()
        assert [len(each.asked) for each in pages] == [1, 1]


@pytest.mark.case("CL-039")
def test_a_lookupd_that_is_down(
    face: Face, mock: Callable[..., MockNsqd], caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = mock()
    down = f"127.0.0.1:{free_port()}"
    with LookupPages(("127.0.0.1", nsqd.port)) as pages, LookupPages(status=500) as broken:
        lookupds = [down, broken.address, pages.address]
        face.consumer("t", "c", lookupd_http_addresses=lookupds)
        nsqd.subscriber()
    assert f"lookupd: {down}: " in caplog.text
    assert f"lookupd: {broken.address}: " in caplog.text


@pytest.mark.case("CL-040")
def test_the_path_of_lookup_queries(face: Face, mock: Callable[..., MockNsqd]) -> None:
    nsqd = mock()
    with LookupPages(("127.0.0.1", nsqd.port)) as pages:
        for address, path in {
            pages.address: "/lookup?topic=t",
            f"http://{pages.address}": "/lookup?topic=t",
            f"http://{pages.address}/": "/lookup?topic=t",
            f"http://{pages.address}/p/look?x=1": "/p/look?x=1&topic=t",
        }.items():
            pages.asked.clear()
            consumer = face.consumer("t", "c", lookupd_http_addresses=address)
            eventually(lambda: pages.asked)
            assert pages.asked[0][0] == path
            assert pages.asked[0][1]["accept"] == "application/vnd.nsq; version=1.0"
            face.call(consumer.close, graceful=False)
    assert lookup_url("10.0.0.1:4161", "t") == "http://10.0.0.1:4161/lookup?topic=t"


@pytest.mark.case("CL-041")
def test_an_unknown_topic(
    face: Face, mock: Callable[..., MockNsqd], caplog: pytest.LogCaptureFixture
) -> None:
    nsqd = mock()
    with LookupPages(status=404) as pages:
        face.consumer("t", "c", lookupd_http_addresses=pages.address, lookupd_poll_interval=0.02)
        eventually(lambda: len(pages.asked) > 2)
        assert f"{pages.address} has no topic t" in caplog.text
        pages.producers, pages.status = [("127.0.0.1", nsqd.port)], 200
        nsqd.subscriber()


@pytest.mark.case("CL-043")
@pytest.mark.parametrize(
    ("options", "header"),
    [
        ({"auth_secret": "s3"}, "Bearer s3"),
        ({"auth_secret": "s3", "lookupd_authorization": False}, None),
        ({}, None),
    ],
)
def test_the_secret_of_a_lookupd(face: Face, options: dict[str, Any], header: str | None) -> None:
    with LookupPages() as pages:
        face.consumer("t", "c", lookupd_http_addresses=pages.address, **options)
        eventually(lambda: pages.asked)
        assert pages.asked[0][1].get("authorization") == header


@pytest.mark.parametrize(("host", "port"), [("a..b", 4150), ("::bad", 1), ("ü" * 99, 2)])
def test_addresses_that_are_none(
    face: Face, mock: Callable[..., MockNsqd], host: str, port: int
) -> None:
    nsqd = mock()
    errors: list[Any] = []
    with LookupPages((host, port), ("127.0.0.1", nsqd.port)) as pages:
        face.consumer("t", "c", lookupd_http_addresses=pages.address, on_error=errors.append)
        nsqd.subscriber()
        eventually(lambda: errors)


@pytest.mark.parametrize("host", ["\0", "x" * 300, "a b", "a/b"])
def test_impossible_addresses_are_left_out(
    face: Face, mock: Callable[..., MockNsqd], host: str
) -> None:
    nsqd = mock()
    with LookupPages((host, 4150), ("127.0.0.1", nsqd.port)) as pages:
        consumer = face.consumer("t", "c", lookupd_http_addresses=pages.address)
        nsqd.subscriber()
        eventually(lambda: list(consumer.connections) == [nsqd.address])


def test_query_now(face: Face) -> None:
    with LookupPages() as pages:
        consumer = face.consumer("t", "c", lookupd_http_addresses=pages.address)
        eventually(lambda: len(pages.asked) == 1)
        face.call(consumer.query_lookupd)
        eventually(lambda: len(pages.asked) == 2)


@pytest.fixture(params=["full", "shut down"])
def no_executor(request: pytest.FixtureRequest) -> Iterator[Aio]:
    """An event loop whose default executor does not run any of the client's functions."""
    face, release = Aio(), threading.Event()

    def occupy() -> None:
        executor = ThreadPoolExecutor(1)
        asyncio.get_running_loop().set_default_executor(executor)
        executor.submit(release.wait)
        if request.param == "shut down":
            executor.shutdown(wait=False)

    face.call(occupy)
    yield face
    release.set()
    face.end()


@one_worker
def test_the_default_executor_is_not_used(
    no_executor: Aio, nsqd: Starter, topic: str, mock: Callable[..., MockNsqd]
) -> None:
    face, fake = no_executor, mock()
    with LookupPages(("localhost", fake.port)) as pages:
        face.consumer("t", "c", lookupd_http_addresses=pages.address)
        fake.subscriber()
    daemon = nsqd()
    admin = face.module.NsqdAdmin(f"localhost:{daemon.http_port}")
    face.call(admin.create_channel, topic, "c")
    assert face.call(face.module.cancel, topic, "c", "k", f"localhost:{daemon.http_port}") == 0
    producer = face.producer(f"localhost:{daemon.tcp_port}", local_address="localhost:0")
    assert face.call(producer.publish, topic, b"hello") == b"OK"
