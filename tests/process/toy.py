"""A master with toy engines: start it, watch its log, and talk to it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
DEADLINE = 30.0


def wait_until(condition, what="a condition"):
    """Wait until `condition()` is true, and return its value. `what` may be a function, for a
    description that is known only at the end."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"timed out waiting for {what() if callable(what) else what}")


def environment():
    root = str(HERE.parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(HERE)])}


class Client:
    """Client connection that exchanges lines."""

    def __init__(self, where):
        family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
        self.sock = socket.socket(family)
        self.sock.settimeout(DEADLINE)
        self.sock.connect(where)
        self._file = self.sock.makefile("rb")

    def send(self, text):
        self.sock.sendall(text.encode() + b"\n")

    def line(self):
        """Return the next line; "" at the end of the stream."""
        try:
            return self._file.readline().decode().rstrip("\n")
        except ConnectionResetError:
            return ""

    def ask(self, text):
        self.send(text)
        return self.line()

    def worker(self):
        """Return the worker that serves this connection."""
        return int(self.ask("which").split()[0])

    def close(self):
        self._file.close()
        self.sock.close()


class Toy:
    """A running master and its workers."""

    def __init__(
        self,
        data_path,
        workers=2,
        addresses=(("tcp", "127.0.0.1:0"),),
        environ=None,
        **settings,
    ):
        self.data_path = Path(data_path)
        settings |= {"data_path": str(data_path), "workers": workers, "addresses": addresses}
        self.workers = workers
        self.clients = []
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "toy_nsqd.py"), json.dumps(settings)],
            stderr=subprocess.PIPE,
            env={**environment(), **(environ or {})},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def seen(self, pattern):
        """Return the first log line that matches the pattern."""
        return next((line for line in list(self.lines) if re.search(pattern, line)), None)

    def wait_line(self, pattern):
        return wait_until(lambda: self.seen(pattern), lambda: f"a line {pattern!r} in {self.lines}")

    def ready(self):
        self.wait_line("TCP: listening on")
        return self

    def address(self, kind="TCP"):
        host, _, port = self.wait_line(f"{kind}: listening on").rpartition(" ")[2].rpartition(":")
        return host.strip("[]"), int(port)

    def connect(self, kind="TCP"):
        client = Client(self.address(kind))
        self.clients.append(client)
        return client

    def connect_and_ask(self, timeout=0.5):
        """Return whether a new connection is served within the timeout."""
        client = self.connect()
        client.sock.settimeout(timeout)
        try:
            return client.ask("hello").endswith("hello")
        except TimeoutError:
            return False

    def client_of(self, worker):
        """Return a client that is served by this worker."""
        return wait_until(lambda: self._try_client_of(worker), f"a client of worker {worker}")

    def _try_client_of(self, worker):
        client = self.connect()
        return client if client.worker() == worker else None

    def state(self):
        """Return the master's state of its workers."""
        client = self.connect()
        line = client.ask("!workers")
        client.close()
        return eval(line)

    def worker_pids(self):
        """Return the live workers, oldest first. A killed one stays a zombie until it is reaped."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [pid for pid in map(int, path.read_text().split()) if is_alive(pid)]

    def pid_of(self, worker):
        return self.state()[worker]["pid"]

    def stop(self, signum=signal.SIGTERM):
        """Send a signal, and return the exit code."""
        self.process.send_signal(signum)
        return self.wait()

    def wait(self):
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def close(self):
        for client in self.clients:
            client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._reader.join(DEADLINE)
        self.process.stderr.close()


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def count_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))
