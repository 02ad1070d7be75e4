"""The quick start of each framework's guide, in a new environment with a wheel and the extra.

The nsqd is from this tree. The programs are copies of those in examples/.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import eventually
from support.distribution_files import ROOT
from support.nsqd_process import free_port
from support.wheel_environment import WHEELS, Room

pytestmark = [pytest.mark.dist, pytest.mark.timeout(900)]

LIMIT = 60.0
TASKS = {  # for each extra: the example, the worker's command and its output
    "celery": ("celery_app.py", "celery -A celery_app worker -c 1", "hello, the future"),
    "dramatiq": ("dramatiq_app.py", "dramatiq dramatiq_app -p 1 -t 2", "hello, the future"),
    "faststream": ("faststream_app.py", "faststream run faststream_app:app", "order 2: 24.00"),
    "taskiq": ("taskiq_app.py", "taskiq worker taskiq_app:broker -w 1", "hello, the future"),
}
SITES = {  # for each extra: the example, the server's and the worker's command, and its output
    "django": (
        "django_app.py",
        "python django_app.py runserver --noreload {port}",
        "python django_app.py nsqcy_consume",
        "order 7: invoice sent",
    ),
    "flask": (
        "flask_app.py",
        "flask --app flask_app run -p {port}",
        "flask --app flask_app nsqcy consume",
        "order 7: invoice sent",
    ),
}


@pytest.fixture
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


def room_for(extra: str, example: str, daemon: Nsqd, folder: Path, *packages: str) -> Room:
    room = Room(WHEELS[-1], folder, extra, *packages)
    shutil.copy(ROOT / "examples" / example, room.folder)
    room.environ |= {"NSQD_TCP_ADDRESS": daemon.tcp_address, "PYTHONUNBUFFERED": "1"}
    return room


@contextmanager
def running(room: Room, command: str) -> Iterator[Path]:
    """Run a command; yield the file with its output."""
    name, *words = command.split()
    log = room.folder / f"{name}-{words[-1]}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [room.bin / name, *words],
            cwd=room.folder,
            env=room.environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield log
    finally:
        process.terminate()
        process.wait(LIMIT)


@pytest.mark.parametrize("extra", TASKS)
def test_tasks(extra: str, daemon: Nsqd, tmp_path: Path) -> None:
    example, worker, printed = TASKS[extra]
    room = room_for(extra, example, daemon, tmp_path)
    with running(room, worker) as log:
        assert "published" in room.run("python", example)
        eventually(lambda: printed in log.read_text(), LIMIT)


@pytest.mark.parametrize("extra", SITES)
def test_sites(extra: str, daemon: Nsqd, tmp_path: Path) -> None:
    example, server, worker, printed = SITES[extra]
    room = room_for(extra, example, daemon, tmp_path)
    port = free_port()
    with running(room, server.format(port=port)), running(room, worker) as log:
        request = ["curl", "-sf", "--retry-connrefused", "--retry", "60", "--retry-delay", "1"]
        url = f"http://127.0.0.1:{port}/orders/7"
        subprocess.run([*request, "-X", "POST", url], check=True, timeout=LIMIT)
        eventually(lambda: printed in log.read_text(), LIMIT)


def test_fastapi(daemon: Nsqd, tmp_path: Path) -> None:
    room = room_for("fastapi", "fastapi_app.py", daemon, tmp_path, "uvicorn")
    port = free_port()
    with running(room, f"uvicorn fastapi_app:app --port {port}"):
        request = ["curl", "-sf", "--retry-connrefused", "--retry", "60", "--retry-delay", "1"]
        url = f"http://127.0.0.1:{port}/orders/7"
        subprocess.run([*request, "-X", "POST", f"{url}?total=25"], check=True, timeout=LIMIT)
        found = subprocess.run(
            [*request, "--retry-all-errors", url], check=True, timeout=LIMIT, capture_output=True
        )
        assert found.stdout == b'{"id":7,"invoiced":25}'


def test_tracing(daemon: Nsqd, tmp_path: Path) -> None:
    room = room_for("otel", "traced_worker.py", daemon, tmp_path, "opentelemetry-sdk")
    assert "attempt 2, finished" in room.run("python", "traced_worker.py")
