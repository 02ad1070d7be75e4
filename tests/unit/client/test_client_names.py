"""Names and types that programs may import from the public packages."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import nsqcy
import nsqcy.aio
import nsqcy.client
import nsqcy.client.aio

PACKAGES = [
    "nsqcy",
    "nsqcy.aio",
    "nsqcy.client",
    "nsqcy.client.aio",
    "nsqcy.compat.gnsq",
    "nsqcy.compat.gnsq.contrib.batch",
    "nsqcy.compat.gnsq.contrib.giveup",
    "nsqcy.compat.gnsq.contrib.queue",
    "nsqcy.compat.gnsq.errors",
    "nsqcy.compat.pynsq",
    "nsqcy.compat.pynsq.event",
    "nsqcy.compat.pynsq.protocol",
    "nsqcy.spark",
    "nsqcy.testing",
    "nsqcy.testing.plugin",
]

# Callbacks that each interface accepts; lines with errors are marked.
CALLBACKS = """
import re
import nsqcy.client as blocking
from nsqcy.client import Connection, Error, Message, Producer, Publish, aio


def handle(message: Message) -> bool: return True
async def handle_later(message: Message) -> bool: return True
def save(message: Message) -> None: ...
async def save_later(message: Message) -> None: ...
def on_error(error: Error) -> None: ...
async def on_error_later(error: Error) -> None: ...
def on_exception(message: Message, error: BaseException) -> None: ...
async def on_exception_later(message: Message, error: BaseException) -> None: ...
def on_connection(connection: Connection) -> None: ...
async def on_connection_later(connection: Connection) -> None: ...
def on_retry(publish: Publish, error: Error) -> None: ...
async def on_retry_later(publish: Publish, error: Error) -> None: ...

def add(order: dict[str, int]) -> None: ...
def add_with_message(order: int, message: Message) -> bool: return True
async def add_later(order: list[int], message: Message) -> None: ...
def add_three(order: int, message: Message, more: int) -> None: ...

async def forgetful() -> None: ...

dead: list[bytes] = []
producer = Producer("a")
later = aio.Producer("a")

blocking.Consumer("t", "c", "a", message_handler=handle)
blocking.Consumer("t", "c", "a", message_handler=save)
blocking.Consumer("t", "c", "a", message_handler=handle_later)  # error
blocking.Consumer("t", "c", "a", on_giving_up=save, on_error=on_error, on_exception=on_exception)
blocking.Consumer("t", "c", "a", on_giving_up=lambda message: dead.append(message.body))
blocking.Consumer("t", "c", "a", on_giving_up=lambda message: producer.publish("d", message.body))
blocking.Consumer("t", "c", "a", on_giving_up=save_later)  # error
blocking.Consumer("t", "c", "a", on_giving_up=lambda message: later.publish("d", b"x"))  # error
blocking.Consumer("t", "c", "a", on_error=on_error_later)  # error
blocking.Consumer("t", "c", "a", on_exception=on_exception_later)  # error
blocking.Consumer("t", "c", "a", on_ready=on_connection, on_heartbeat=on_connection)
blocking.Consumer("t", "c", "a", on_ready=on_connection_later)  # error
blocking.Consumer("t", "c", "a", on_heartbeat=on_connection_later)  # error
blocking.Consumer("t", "c", "a", message_handler=add, codec="json")
blocking.Consumer("t", "c", "a", message_handler=add_with_message, codec="msgpack")
blocking.Consumer("t", "c", "a", message_handler=add_later, codec="json")  # error
blocking.Consumer("t", "c", "a", message_handler=add_three, codec="json")  # error
blocking.Consumer("t", "c", "a", codec="yaml")  # error
blocking.Consumer(["t", "u"], "c", "a").topics[0].upper()
blocking.Consumer(topics_pattern="t.*", channel="c", lookupd_http_addresses=["l:4161"])
blocking.Consumer(1, "c", "a")  # error
blocking.Consumer("t", "c", "a", topics_pattern=1)  # error
blocking.Producer("a", codec="json").publish("t", {"any": 1})
blocking.Producer("a", on_error=on_error, on_retry=on_retry)
blocking.Producer("a", on_error=on_error_later)  # error
blocking.Producer("a", on_retry=on_retry_later)  # error

aio.Consumer("t", "c", "a", message_handler=handle)
aio.Consumer("t", "c", "a", message_handler=handle_later)
aio.Consumer(("t", "u"), "c", "a", on_giving_up=lambda message: later.publish(message.topic, b""))
aio.Consumer(topics_pattern=re.compile("t.*"), channel="c", lookupd_http_addresses="l:4161")
aio.Consumer("t", "c", "a", message_handler=add, codec="json")
aio.Consumer("t", "c", "a", message_handler=add_later, codec="json")
aio.Consumer("t", "c", "a", on_giving_up=save, on_error=on_error, on_exception=on_exception)
aio.Consumer("t", "c", "a", on_giving_up=save_later, on_error=on_error_later)
aio.Consumer("t", "c", "a", on_giving_up=lambda message: later.publish("d", message.body))
aio.Consumer("t", "c", "a", on_giving_up=forgetful)  # error
aio.Consumer("t", "c", "a", on_exception=on_exception_later)
aio.Consumer("t", "c", "a", on_ready=on_connection_later, on_heartbeat=on_connection_later)
aio.Producer("a", on_error=on_error_later, on_retry=on_retry_later)
"""


def complaints(folder: Path, text: str) -> dict[int, str]:
    """Return mypy's errors for a program in strict mode, by line."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    program = folder / "program.py"
    program.write_text(text)
    options = ["--strict", "--no-error-summary", "--config-file=", "--follow-imports=silent"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(folder / "cache"), program],
        capture_output=True,
        text=True,
        cwd=Path(nsqcy.client.__file__).parents[2],
    )
    found = {}
    for line in (done.stdout + done.stderr).splitlines():
        path, _, rest = line.partition(":")
        assert path == str(program), line
        found[int(rest.partition(":")[0])] = line
    return found


def test_both_faces_have_the_same_names() -> None:
    assert nsqcy.client.__all__ == nsqcy.client.aio.__all__
    own = {"Consumer", "NsqdAdmin", "Producer", "cancel"}
    for name in nsqcy.client.__all__:
        same = getattr(nsqcy.client, name) is getattr(nsqcy.client.aio, name)
        assert same is (name not in own), name


def test_the_short_names_are_those_of_the_client() -> None:
    versions = ["NSQ_VERSION", "__version__"]
    assert sorted(nsqcy.__all__) == sorted([*versions, *nsqcy.client.__all__])
    assert nsqcy.aio.__all__ == nsqcy.client.aio.__all__
    for name in nsqcy.client.__all__:
        assert getattr(nsqcy, name) is getattr(nsqcy.client, name), name
        assert getattr(nsqcy.aio, name) is getattr(nsqcy.client.aio, name), name
        assert name in dir(nsqcy)
    with pytest.raises(AttributeError, match="no attribute 'Consumr'"):
        _ = nsqcy.Consumr  # type: ignore[attr-defined]


def test_nsqcy_does_not_import_the_client_before_it_is_used() -> None:
    code = "import sys, nsqcy; assert 'nsqcy.client' not in sys.modules; from nsqcy import Producer"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_exports(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name), name


@pytest.mark.slow
def test_types(tmp_path: Path) -> None:
    """Strict mypy knows the exported names, and which callbacks each interface awaits."""
    program = [
        f"from {package} import {name} as {package.replace('.', '_')}_{name}"
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
    ]
    program += CALLBACKS.splitlines()
    wanted = [number for number, line in enumerate(program, 1) if line.endswith("# error")]
    found = complaints(tmp_path, "\n".join(program) + "\n")
    assert sorted(found) == wanted, "\n".join(found.values())
