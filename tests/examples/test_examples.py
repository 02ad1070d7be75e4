"""Every program in examples/ works as its docstring states, with a separate nsqd."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from nsqcy import testing
from nsqcy.client import Consumer, Producer
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.ports import Ports
from support.nsqd_process import environment

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT = 60.0  # seconds, enough for a busy machine
ELSEWHERE = {
    "pipeline.py": "tests/pipeline/test_example.py",
    "parquet.py": "tests/spark/test_examples.py",
    "spark_json.py": "tests/spark/test_examples.py",
    "spark_windows.py": "tests/spark/test_examples.py",
}


@pytest.fixture
def daemon() -> Iterator[testing.Nsqd]:
    with testing.nsqd() as found:
        yield found


def environment_of(daemon: testing.Nsqd) -> dict[str, str]:
    addresses = {"NSQD_TCP_ADDRESS": daemon.tcp_address, "NSQD_HTTP_ADDRESS": daemon.http_address}
    return environment() | addresses


def run(daemon: testing.Nsqd, name: str) -> str:
    """Run an example to completion, and return its output."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Running:
    """Program that runs until it is stopped."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: Queue[str] = Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def line(self, pattern: str) -> str:
        """Wait for a line that matches the pattern, and return it."""
        seen = []
        while True:
            try:
                seen.append(self._lines.get(timeout=TIMEOUT))
            except Empty:
                raise AssertionError(f"no line matches {pattern!r}: {seen}") from None
            if re.search(pattern, seen[-1]):
                return seen[-1]

    def stop(self, code: int = 0) -> None:
        self.process.terminate()
        assert self.process.wait(TIMEOUT) == code


@contextmanager
def started(daemon: testing.Nsqd, *command: str | Path) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment_of(daemon) | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # including its child processes
        process.wait()


def publish(daemon: testing.Nsqd, topic: str, *bodies: bytes) -> None:
    with Producer(daemon.tcp_address) as producer:
        producer.multipublish(topic, list(bodies))


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urlopen(Request(url, method=method), timeout=TIMEOUT) as answer:
            return answer.status, answer.read().decode()
    except URLError as error:
        return getattr(error, "code", 0), str(error)


def when(wanted: Callable[[], bool]) -> None:
    eventually(wanted, timeout=TIMEOUT)


def test_every_example_has_a_test_and_a_row() -> None:
    names = {path.name for path in EXAMPLES.glob("*.py")}
    text = Path(__file__).read_text()
    assert [name for name in sorted(names) if Path(name).stem not in text] == []
    assert all((EXAMPLES.parent / path).exists() for path in ELSEWHERE.values())
    rows = set(re.findall(r"^\| \[([\w.]+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    assert rows == names


def test_the_worker(daemon: testing.Nsqd) -> None:
    with started(daemon, EXAMPLES / "worker.py") as worker:
        orders = [{"id": 1, "total": 25}, {"id": 2, "total": -1}]
        publish(daemon, "orders", *(json.dumps(each).encode() for each in orders))
        worker.line("order 1: invoice over 25 sent")
        peek = f"http://{daemon.http_address}/channel/peek?topic=orders-dead&channel=inspect"
        when(lambda: bool(json.loads(fetch(f"{peek}&state=queued")[1])["messages"]))
        worker.stop()
        worker.line("stopped")
    printed = run(daemon, "dead_letters.py")
    assert printed == (
        'from orders/billing: 3 attempts, reason attempts: b\'{"id": 2, "total": -1}\'\n'
        "messages to put back: 1\n"
    )


def test_the_celery_app(daemon: testing.Nsqd) -> None:
    pytest.importorskip("celery")
    celery = ("-m", "celery", "--workdir", str(EXAMPLES), "-A", "celery_app")
    with started(
        daemon, *celery, "worker", "--concurrency", "2", "--loglevel", "WARNING"
    ) as worker:
        assert run(daemon, "celery_app.py") == "published 3 tasks\n"
        worker.line("hello, Ada")
        worker.line("mail for grace@example.org sent after 1 retry")
        worker.line("hello, the future")
        worker.stop()


def test_the_dramatiq_app(daemon: testing.Nsqd) -> None:
    pytest.importorskip("dramatiq")
    limits = ("--path", str(EXAMPLES), "--processes", "1", "--threads", "2")
    with started(daemon, "-m", "dramatiq", "dramatiq_app", *limits) as worker:
        assert run(daemon, "dramatiq_app.py") == "published 3 tasks\n"
        worker.line("hello, Ada")
        worker.line("mail for grace@example.org sent after 1 retry")
        worker.line("hello, the future")
        worker.stop()


def test_the_taskiq_app(daemon: testing.Nsqd) -> None:
    pytest.importorskip("taskiq")
    taskiq = ("-m", "taskiq", "worker", "--workers", "1", "--app-dir", str(EXAMPLES))
    with started(daemon, *taskiq, "taskiq_app:broker") as worker:
        assert run(daemon, "taskiq_app.py") == "published 4 tasks\n"
        worker.line("hello, Ada")
        worker.line("mail for grace@example.org sent after 1 retry")
        worker.line("hello, the near future")
        worker.line("hello, the future")
        worker.stop()


def test_the_faststream_app(daemon: testing.Nsqd) -> None:
    pytest.importorskip("faststream")
    faststream = ("-m", "faststream", "run", "--app-dir", str(EXAMPLES))
    with started(daemon, *faststream, "faststream_app:app") as worker:
        for _ in ("bill", "send"):
            worker.line("waiting for messages")
        assert run(daemon, "faststream_app.py") == "published 2 orders\n"
        worker.line("invoice for order 1: 12.00")
        worker.line("invoice for order 2: 24.00")
        worker.stop()


def ask(daemon: testing.Nsqd, method: str, path: str, body: str = "") -> bytes:
    request = Request(f"http://{daemon.http_address}{path}", body.encode() or None, method=method)
    with urlopen(request, timeout=10) as answer:
        return bytes(answer.read())


def test_the_worker_on_asyncio(daemon: testing.Nsqd) -> None:
    publish(daemon, "pictures", b"cat", b"busy", b"broken")
    with started(daemon, EXAMPLES / "async_worker.py") as worker:
        worker.line("busy: resized, attempt 2")
        with Consumer("pictures-dead", "test", daemon.tcp_address) as dead_letters:
            message = dead_letters.get(timeout=20)
            assert message is not None and message.body == b"broken"
            message.finish()
        worker.stop()
        worker.line("stopped")


def test_publishing(daemon: testing.Nsqd) -> None:
    assert "published 10,103 messages" in run(daemon, "publish.py")
    stats = json.loads(fetch(f"http://{daemon.http_address}/stats?format=json&topic=events")[1])
    assert stats["topics"][0]["message_count"] == 10_103


def test_delays(daemon: testing.Nsqd) -> None:
    assert run(daemon, "delays.py").splitlines() == [
        "2 reminders are deferred",
        "1 is cancelled",
        "due now: call the dentist",
        "0 reminders are deferred",
    ]


def test_replay(daemon: testing.Nsqd) -> None:
    assert run(daemon, "replay.py").splitlines() == [
        "live: ['first', 'second', 'third']",
        "report: ['first', 'second', 'third']",
        "again: ['second', 'third']",
    ]


def test_request_and_reply(daemon: testing.Nsqd) -> None:
    assert run(daemon, "request_reply.py").splitlines() == [
        "3 squared is 9",
        "12 squared is 144",
        "no answer in time",
    ]


def test_cron(daemon: testing.Nsqd) -> None:
    assert run(daemon, "cron.py").splitlines() == [
        "report: run 1",
        "report: run 2",
        "report: run 3",
        "scheduled: 1",
    ]


def test_fairness(daemon: testing.Nsqd) -> None:
    assert run(daemon, "fairness.py").splitlines() == ["small is done", "big is done"]


def test_order(daemon: testing.Nsqd) -> None:
    lines = run(daemon, "order.py").splitlines()
    assert len(lines) == 5
    assert [line for line in lines if line.startswith("ada")] == [
        "ada: opened",
        "ada: paid in 10",
        "ada: withdrew 5",
    ]
    assert [line for line in lines if line.startswith("bob")] == ["bob: opened", "bob: paid in 20"]


def test_account_events(daemon: testing.Nsqd) -> None:
    assert run(daemon, "account_events.py").splitlines() == [
        "events that failed first: 15",
        "each account in order: True",
        *(f"account-{number}: 20" for number in range(5)),
    ]


def test_the_mailer_of_many_tenants(daemon: testing.Nsqd) -> None:
    """The rate is a maximum, which a busy machine may not reach."""
    *lines, rate = run(daemon, "tenant_mailer.py").splitlines()
    assert lines == [
        "mails of tenant-0 that still waited after the last of the others: most",
        "mails of tenant-0 that were being sent at a time: at most 3",
    ]
    assert int(rate.removeprefix("mails of tenant-0 per second: ")) <= 102


def test_webhooks(daemon: testing.Nsqd) -> None:
    assert run(daemon, "webhooks.py").splitlines() == [
        "answers: [200, 200, 200, 200]",
        "received: evt-1",
        "received: evt-2",
        "more: None",
        "duplicates: 2",
    ]


def test_urgent_first(daemon: testing.Nsqd) -> None:
    assert run(daemon, "urgent_first.py").splitlines() == [
        "deliveries until the last password reset: 111",
        "share of newsletters among them: 10%",
    ]


def test_several_topics(daemon: testing.Nsqd) -> None:
    """The consumer also receives messages of the topic that appears later."""
    assert run(daemon, "several_topics.py").splitlines() == [
        "shop.orders: 100",
        "shop.refunds: 1",
        "shop.returns: 1",
    ]


def test_priorities(daemon: testing.Nsqd) -> None:
    """The urgent messages, which were published last, are all handled before the last of the
    others."""
    *urgent, last = run(daemon, "priorities.py").splitlines()
    assert [line.partition(": ")[2] for line in urgent] == ["password reset"] * 5
    assert last == "message 105: newsletter"


def test_idempotency(daemon: testing.Nsqd) -> None:
    assert run(daemon, "idempotency.py").splitlines() == [
        "order-1: charged",
        "order-1: charged before",
        "order-1: charged before",
        "total: 25 euros",
    ]


def test_headers(daemon: testing.Nsqd) -> None:
    assert run(daemon, "headers.py") == "the same trace id: True\n"


def test_the_traced_worker(daemon: testing.Nsqd) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")
    lines = [line.split(maxsplit=1) for line in run(daemon, "traced_worker.py").splitlines()]
    assert len({trace for trace, _ in lines}) == 1
    assert [text for _, text in lines] == [
        "publish orders",
        "process orders: attempt 1, requeued",
        "process orders: attempt 2, finished",
    ]


def test_pynsq(daemon: testing.Nsqd) -> None:
    publish(daemon, "greetings", b"hello")
    with started(daemon, EXAMPLES / "drop_in_pynsq.py") as reader:
        reader.line("hello")


def test_fastapi(daemon: testing.Nsqd) -> None:
    pytest.importorskip("fastapi")
    with Ports() as ports:
        port = ports.take()
        uvicorn = ["-m", "uvicorn", "fastapi_app:app", "--app-dir", str(EXAMPLES)]
        with started(daemon, *uvicorn, f"--port={port}") as server:
            server.line("Uvicorn running")
            orders = f"http://127.0.0.1:{port}/orders/7"
            assert fetch(f"{orders}?total=25", "POST") == (202, '{"id":7}')
            when(lambda: fetch(orders) == (200, '{"id":7,"invoiced":25}'))
            # After an orderly shutdown, uvicorn raises the signal again.
            server.stop(-signal.SIGTERM)


def test_django(daemon: testing.Nsqd) -> None:
    pytest.importorskip("django")
    example = EXAMPLES / "django_app.py"
    with Ports() as ports:
        port = ports.take()
        address = f"127.0.0.1:{port}"
        with (
            started(daemon, example, "runserver", "--noreload", address) as server,
            started(daemon, example, "nsqcy_consume") as worker,
        ):
            server.line("development server at")
            orders = f"http://{address}/orders/7"
            answers: list[tuple[int, str]] = []

            def is_accepted() -> bool:
                with suppress(ConnectionError):
                    answers.append(fetch(orders, "POST"))
                return bool(answers) and answers[-1] == (202, '{"id": 7}')

            when(is_accepted)
            worker.line("order 7: invoice sent")
            worker.stop()


def test_flask(daemon: testing.Nsqd) -> None:
    pytest.importorskip("flask")
    flask = ("-m", "flask", "--app", str(EXAMPLES / "flask_app"))
    with Ports() as ports:
        port = ports.take()
        with (
            started(daemon, *flask, "run", "--port", str(port)) as server,
            started(daemon, *flask, "nsqcy", "consume") as worker,
        ):
            server.line("Running on")
            status, body = fetch(f"http://127.0.0.1:{port}/orders/7", "POST")
            assert (status, json.loads(body)) == (202, {"id": 7})
            worker.line("order 7: invoice sent")
            worker.stop()


def test_the_tests() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "nsqcy.testing.plugin"]
    done = subprocess.run(
        [*command, "-c", "/dev/null", EXAMPLES / "test_orders.py"],
        env=environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
