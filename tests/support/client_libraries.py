"""Third-party client libraries, each in a separate process, controlled by a test.

Owns the processes and the pipes to them (programs/common.py defines the messages); does not depend
on how a library works.
"""

import contextlib
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Message, sized
from support.nsqd_process import Nsqd

PROGRAMS = Path(__file__).parents[1] / "clients" / "programs"
NODE_MODULES = Path(
    os.environ.get("NSQCY_NODE_MODULES") or Path(__file__).parents[2] / "node_modules"
).absolute()
LIBRARIES = ("pynsq", "gnsq", "nsqjs")
NEST = "nest-nsq-transport"
STRATEGIES = "nsq-strategies"
CONSUMERS = (*LIBRARIES, NEST, STRATEGIES)
PUBLISHERS = (*LIBRARIES, "squeaky", NEST, STRATEGIES)
JAVASCRIPT = ("nsqjs", "squeaky", NEST, STRATEGIES)
# The same programs with a different import line.
IMPORTS = {
    "pynsq": ("import nsq\n", "from nsqcy.compat import pynsq as nsq\n"),
    "gnsq": ("import gnsq", "from nsqcy.compat import gnsq"),
}
SHIMS = tuple(f"{name}-shim" for name in IMPORTS)


def absent(library: str) -> str:
    """Return the reason why a library cannot be used here; empty if it can be used."""
    if library not in JAVASCRIPT:
        return ""
    if shutil.which("node") is None:
        return "node is not installed"
    if not (NODE_MODULES / library).is_dir():
        return f"no {library} in {NODE_MODULES}: npm install {library}, or set NSQCY_NODE_MODULES"
    return ""


def libraries(names: tuple[str, ...] = LIBRARIES) -> list[Any]:
    """One parameter for each library, skipped if it is absent."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(bool(absent(name)), reason=absent(name)))
        for name in names
    ]


def need_all() -> None:
    """Skip the test unless every library is installed."""
    for name in LIBRARIES:
        if reason := absent(name):
            pytest.skip(reason)


def command_of(library: str, script: str) -> list[str]:
    """Return the command that runs a program, given without its file extension."""
    if library in JAVASCRIPT:
        return ["node", str(PROGRAMS / f"{script}.js")]
    path = PROGRAMS / f"{script}.py"
    if library not in SHIMS:
        return [sys.executable, str(path)]
    theirs, ours = IMPORTS[library.removesuffix("-shim")]
    text = path.read_text()
    assert theirs in text
    # Run the text as if it were that file, because it imports modules next to the file.
    start = f"import sys; sys.path[0] = {str(PROGRAMS)!r}\n"
    return [sys.executable, "-c", start + text.replace(theirs, ours)]


class Program:
    """One run of a client program."""

    def __init__(self, library: str, daemon: Nsqd | None, mode: str, **options: Any) -> None:
        command = command_of(library, f"{library.removesuffix('-shim')}_client")
        words = [f"--address=127.0.0.1:{daemon.tcp_port}"] if daemon else []
        for name, value in options.items():
            words.append(f"--{name}" if value is True else f"--{name}={value}")
        self.library = library
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            [*command, mode, *words],
            env=os.environ | {"NSQCY_NODE_MODULES": str(NODE_MODULES)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._threads = [self._follow(self._read_errors), self._follow(self._read)]

    def _follow(self, read: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread

    def _read(self) -> None:
        raise NotImplementedError

    def _read_errors(self) -> None:
        for line in self._stream(self.process.stderr):
            self.errors.append(line.decode(errors="replace"))

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream

    def await_that(self, predicate: Callable[[], Any], timeout: float = 30.0) -> None:
        def happened() -> bool:
            assert self.process.poll() is None or predicate(), self.story()
            return bool(predicate())

        try:
            eventually(happened, timeout)
        except AssertionError:
            raise AssertionError(self.story()) from None

    def story(self) -> str:
        return f"{self.library} ({self.process.poll()}): {''.join(self.errors[-30:])}"

    def close(self) -> None:
        """Make the program exit, by closing its input."""
        with contextlib.suppress(BrokenPipeError):
            self._stream(self.process.stdin).close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise AssertionError(f"did not exit: {self.story()}") from None
        for thread in self._threads:
            thread.join(10)

    def destroy(self) -> None:
        self.process.kill()
        self.process.wait()


class Consumer(Program):
    """Program that collects received messages."""

    def __init__(
        self, library: str, daemon: Nsqd | None, topic: str, channel: str, **options: Any
    ) -> None:
        self.raw: list[bytes] = []
        super().__init__(library, daemon, "consume", topic=topic, channel=channel, **options)

    def _read(self) -> None:
        stream = self._stream(self.process.stdout)
        while len(head := stream.read(4)) == 4:
            self.raw.append(stream.read(*struct.unpack(">i", head)))

    def messages(self, count: int, timeout: float = 30.0) -> list[Message]:
        """Return all messages so far, once there are at least `count`."""
        self.await_that(lambda: len(self.raw) >= count, timeout)
        return [Message.parse(raw) for raw in self.raw]

    def bodies(self) -> list[bytes]:
        return [raw[26:] for raw in self.raw]


class Producer(Program):
    """Program that publishes messages one after another."""

    def __init__(self, library: str, daemon: Nsqd | None, topic: str, **options: Any) -> None:
        self.answers: list[str] = []
        super().__init__(library, daemon, "publish", topic=topic, **options)

    def _read(self) -> None:
        for line in self._stream(self.process.stdout):
            self.answers.append(line.decode().strip())

    def publish(self, bodies: Iterable[bytes]) -> None:
        stream = self._stream(self.process.stdin)
        stream.write(b"".join(sized(body) for body in bodies))
        stream.flush()

    def finish(self) -> list[str]:
        """Return the answers, once the program has published all messages."""
        self.close()
        assert self.process.returncode == 0, self.story()
        return self.answers
