"""FastAPI and Starlette: a real uvicorn, and TestClient for tests without processes."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Queue
from typing import Annotated, Any

import pytest

pytest.importorskip("fastapi")

from fastapi import APIRouter, Depends, FastAPI, WebSocket
from fastapi.testclient import TestClient
from pydantic import BaseModel
from starlette.requests import Request

from nsqcy.client.aio import Message, Producer
from nsqcy.integrations.fastapi import NsqLifespan, get_producer
from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import Web
from nsqcy.testing.ports import Ports
from support.shop_process import Shop, shop_of, until

pytestmark = pytest.mark.slow

STARLETTE = """
import sys
sys.modules["fastapi"] = None  # not installed

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from nsqcy.integrations.fastapi import NsqLifespan, get_producer

async def publish(request):
    await (await get_producer(request)).publish("orders", b"1")
    return PlainTextResponse("published")

app = Starlette(routes=[Route("/", publish)], lifespan=NsqLifespan(sys.argv[1]))
with TestClient(app) as client:
    print(client.get("/").text)
"""


@pytest.fixture(scope="module")
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


class Server:
    """The application of fastapi_shop.py on uvicorn."""

    def __init__(self, shop: Shop, *arguments: str) -> None:
        self._shop = shop
        with Ports() as ports:
            self._web = Web(ports.take())
            command = ("uvicorn", "fastapi_shop:app", f"--port={self._web.port}", *arguments)
            self.process = shop.worker(*command, ready="Uvicorn running on")

    def publish(self, topic: str, body: str) -> int:
        answer = self._web.request("POST", f"/publish/{topic}?body={body}")
        assert answer.status == 200, self._shop.log()
        return int(answer.json())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with nsqd() as found, shop_of(tmp_path, "fastapi_shop", nsqd=found.tcp_address) as shop:
        yield shop


def test_each_worker_of_uvicorn_publishes_and_consumes(shop: Shop) -> None:
    server = Server(shop, "--workers=2")
    until(lambda: shop.log().count("Application startup complete") == 2, "both workers start")
    pids: set[int] = set()

    def both_have_published() -> bool:
        pids.add(server.publish("orders", str(len(pids))))
        return len(pids) == 2

    until(both_have_published, "both workers publish")
    shop.has_notes("order", 2)
    server.process.terminate()
    server.process.wait(60)


def test_a_handler_finishes_and_publishes_after_sigterm(shop: Shop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = Server(shop)
    server.publish("slow", str(gate))
    shop.has_notes("hang", 1)
    server.process.terminate()
    until(lambda: "Waiting for application shutdown" in shop.log(), "the app stops")
    gate.touch()
    server.process.wait(60)
    assert [each["state"] for each in shop.notes("hang")] == ["begun", "done"]
    Server(shop)
    assert shop.has_notes("order", 1)[0]["body"] == "after the stop"


def test_a_message_is_redelivered_after_its_app_is_killed(shop: Shop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    server = Server(shop)
    server.publish("slow", str(gate))
    shop.has_notes("hang", 1)
    shop.kill(server.process)
    gate.touch()
    Server(shop)
    assert [each["state"] for each in shop.has_notes("hang", 3)] == ["begun", "begun", "done"]


def test_starlette_alone_is_enough(daemon: Nsqd) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARLETTE, daemon.tcp_address],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("published\n", 0), done.stderr


def test_the_inner_lifespan_is_open_while_handlers_run(daemon: Nsqd) -> None:
    events: list[str] = []
    nsq = NsqLifespan(daemon.tcp_address)
    web = Web.at(daemon.http_address)

    def is_queued() -> bool:
        (topic,) = web.get("/stats", format="json", topic="inner").json()["topics"]
        return [each["depth"] for each in topic["channels"]] == [1]

    @nsq.consumer("inner", "c")
    def handle(message: Message) -> None:
        events.append(f"handled {message.body.decode()}")

    @asynccontextmanager
    async def database(app: Any) -> AsyncIterator[dict[str, str]]:
        events.append("open")
        await nsq.producer.publish("inner", b"1")
        yield {"database": "shop"}
        await nsq.producer.publish("inner", b"2")
        await asyncio.to_thread(until, lambda: len(events) > 2 or is_queued(), "2 is somewhere")
        events.append("closed")

    app = FastAPI(lifespan=nsq.around(database))

    @app.get("/")
    async def name(request: Request) -> str:
        assert (await get_producer(request)) is nsq.producer
        return str(request.state.database)

    with TestClient(app) as client:
        assert client.get("/").json() == "shop"
        until(lambda: len(events) == 2, "the message is handled")
    assert events == ["open", "handled 1", "closed"]


class Order(BaseModel):
    id: int


def test_values_instead_of_bytes(daemon: Nsqd) -> None:
    nsq = NsqLifespan(daemon.tcp_address, codec="json")
    received: Queue[tuple[Order, int]] = Queue()

    @nsq.consumer("values", "readers", dead_letter_topic="values-dead")
    async def handle(order: Order, message: Message) -> None:
        received.put((order, message.attempts))

    app = FastAPI(lifespan=nsq)

    @app.post("/")
    async def create(order: Order, producer: Annotated[Producer, Depends(get_producer)]) -> None:
        await producer.publish("values", order)

    with TestClient(app) as client:
        assert client.post("/", json={"id": 7}).status_code == 200
        assert received.get(timeout=60) == (Order(id=7), 1)


def test_an_app_may_start_repeatedly_but_not_twice_at_a_time(daemon: Nsqd) -> None:
    nsq = NsqLifespan(daemon.tcp_address)
    router = APIRouter(lifespan=nsq)  # FastAPI combines the lifespans of routers
    ProducerDependency = Annotated[Producer, Depends(get_producer)]

    @router.websocket("/")
    async def publish(websocket: WebSocket, producer: ProducerDependency) -> None:
        await websocket.accept()
        await producer.publish("sockets", b"1")
        await websocket.send_text("published")

    app = FastAPI()
    app.include_router(router)
    for _ in range(2):
        with TestClient(app) as client:
            with client.websocket_connect("/") as socket:
                assert socket.receive_text() == "published"
            with pytest.raises(RuntimeError, match="create one NsqLifespan for each app"):
                TestClient(app).__enter__()
    with pytest.raises(RuntimeError, match="the app's lifespan is not running"):
        _ = nsq.producer


def test_a_missing_lifespan_is_explained_and_a_dependency_replaced() -> None:
    app = FastAPI(lifespan=NsqLifespan("127.0.0.1:1"))

    @app.get("/")
    async def publish(producer: Annotated[Producer, Depends(get_producer)]) -> None: ...

    with pytest.raises(RuntimeError, match="with TestClient"):
        TestClient(app).get("/")
    app.dependency_overrides[get_producer] = lambda: "another producer"
    assert TestClient(app).get("/").status_code == 200


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="NsqLifespan: specify the TCP address of an nsqd"):
        NsqLifespan()
    with pytest.raises(TypeError, match="NsqLifespan has no option 'snapy': did you mean 'snap"):
        NsqLifespan("127.0.0.1:1", snapy=True)
    nsq = NsqLifespan("127.0.0.1:1")
    with pytest.raises(TypeError, match='no option "concurency"'):
        nsq.consumer("orders", "billing", concurency=2)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match='"a b" is not a valid topic name'):
        nsq.consumer("a b", "billing")
    nsq.consumer("orders", "billing")(test_mistakes_are_refused)
    with pytest.raises(ValueError, match="orders/billing has two handlers"):
        nsq.consumer("orders", "billing")(Server.publish)
