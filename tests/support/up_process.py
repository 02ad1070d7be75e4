"""`nsqcy up` under test: its daemons, their output, and all of their processes."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from nsqcy.testing.http_requests import Web, eventually
from support import fork_server
from support.nsqd_process import environment

PORTS = (
    "--tcp-address",
    "--http-address",
    "--nsqlookupd-tcp-address",
    "--nsqlookupd-http-address",
    "--nsqadmin-http-address",
)
WELCOME = re.compile(
    r"nsqd: +TCP on 127.0.0.1:(\d+), HTTP on 127.0.0.1:(\d+), data in (\S+)\n"
    r" +nsqlookupd: TCP on 127.0.0.1:\d+, HTTP on 127.0.0.1:(\d+)\n"
    r"(?: +nsqadmin:   (http://127.0.0.1:(\d+)/\S*)\n)?\n"
)
DEMO = re.compile(
    r"nsqd: +TCP on 127.0.0.1:\d+, HTTP on 127.0.0.1:(\d+), data in (\S+)\n.*"
    r" Watch it in nsqadmin: http://127.0.0.1:(\d+)/\n\Z",
    re.DOTALL,
)
NODE = re.compile(
    r"node(\d): +TCP on 127.0.0.1:\d+, HTTP on 127.0.0.1:(\d+), data in (\S+), process (\d+)\n"
)
STATUS = re.compile(r"nsqcy copies status --lookupd-http-address=127.0.0.1:(\d+)\n")
BUDGET = 90.0  # seconds, on a busy machine


class UpNode(NamedTuple):
    """A node as the welcome describes it."""

    web: Web
    data: str
    process: psutil.Process


class Up:
    """One run, in a directory."""

    def __init__(self, path: Path, *args: str, ports: Sequence[str] = PORTS) -> None:
        """Uses free ports unless `args` set others."""
        self._out, self._log = path / "out", path / "log"
        words = [f"{name}=127.0.0.1:0" for name in ports]
        with self._out.open("w") as out, self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nsqcy", "up", "--workers=1", *words, *args],
                cwd=path,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                process_group=0,
            )
        self._family: list[psutil.Process] = []

    def serving(self) -> "Up":
        found = eventually(lambda: WELCOME.search(self.said()) or self.ended(), BUDGET)
        assert isinstance(found, re.Match), self.log()
        tcp, http, self.data, lookupd, self.page, admin = found.groups()
        self.tcp_port, self.nsqd, self.lookupd = int(tcp), Web(int(http)), Web(int(lookupd))
        self.admin = Web(int(admin)) if admin else None
        self.family()
        return self

    def serving_demo(self) -> "Up":
        """Wait until the demo of `--demo` is running."""
        found = eventually(lambda: DEMO.search(self.said()) or self.ended(), BUDGET)
        assert isinstance(found, re.Match), self.log()
        http, self.data, admin = found.groups()
        self.nsqd, self.admin = Web(int(http)), Web(int(admin))
        self.family()
        return self

    def serving_nodes(self) -> list["UpNode"]:
        """Wait until all nodes of `--nodes` are ready, and return them."""
        found = eventually(lambda: STATUS.search(self.said()) or self.ended(), BUDGET)
        assert isinstance(found, re.Match), self.log()
        self.lookupd = Web(int(found[1]))
        self.family()
        return [
            UpNode(Web(int(port)), path, psutil.Process(int(pid)))
            for _, port, path, pid in NODE.findall(self.said())
        ]

    def said(self) -> str:
        return self._out.read_text()

    def log(self) -> str:
        return self._log.read_text()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> int:
        try:
            return self.process.wait(BUDGET)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log()) from None

    def family(self) -> list[psutil.Process]:
        """Return all descendants of this process that were seen so far, even if they have
        exited, except servers that fork the daemons for the tests."""
        if not self.ended():
            found = psutil.Process(self.process.pid).children(recursive=True)
            self._family += [
                each for each in found if each not in self._family and not _is_server(each)
            ]
        return self._family

    def child(self, name: str) -> psutil.Process:
        words, ours = f"nsqcy.{name}.main", self.process.pid
        return next(
            each for each in self.family() if each.ppid() == ours and words in each.cmdline()
        )

    def nothing_left(self) -> bool:
        return not any(
            each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in self._family
        )

    def destroy(self) -> None:
        for each in [*self.family(), self.process]:
            try:
                each.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                pass
        self.process.wait()


def _is_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # for example, a zombie
        return fork_server.__file__ in process.cmdline()
    return False
