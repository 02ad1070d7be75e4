"""A single-process daemon under test: its lifecycle, its log and its addresses."""

import os
import shlex
import sys
import time
from typing import Any, ClassVar, Self

from nsqcy.testing.http_requests import Web
from support.logged_process import Logged
from support.nsqd_process import START_BUDGET, environment, flags, free_port


class Service(Logged):
    """A daemon that keeps its ports when it is restarted.

    Options are flags with underscores; `args` come before them. `NAME_BINARY` in the environment
    sets a different command to test (for example a Go one).
    """

    name: ClassVar[str]
    wanted: ClassVar[frozenset[str]]  # the addresses that it announces

    def __init__(self, *, args: tuple[str, ...] = (), **options: Any) -> None:
        super().__init__()
        self.args = args
        self.options = {
            f"{each.lower()}_address": f"127.0.0.1:{free_port()}" for each in self.wanted
        } | options

    @classmethod
    def command(cls) -> list[str]:
        foreign = os.environ.get(f"{cls.name.upper()}_BINARY", "")
        return shlex.split(foreign) or [sys.executable, "-m", f"nsqcy.{cls.name}.main"]

    # lifecycle

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def start(self) -> Self:
        self.launch()
        try:
            self.await_ready()
        except BaseException:
            self.destroy()
            raise
        return self

    def launch(self) -> None:
        """Start the process and return immediately."""
        self._spawn([*self.command(), *self.args, *flags(self.options)], env=environment())

    def await_ready(self) -> None:
        """Wait for the listening lines."""
        deadline = time.monotonic() + START_BUDGET
        while not self.addresses.keys() >= self.wanted:
            self.still_starting(deadline)
        for title, address in self.addresses.items():
            self.options[f"{title.lower()}_address"] = address

    # addresses

    @property
    def http_address(self) -> str:
        return self.addresses["HTTP"]

    @property
    def http_port(self) -> int:
        return int(self.http_address.rpartition(":")[2])

    @property
    def web(self) -> Web:
        return Web(self.http_port)
