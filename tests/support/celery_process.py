"""Celery workers and programs as processes: the application in celery_shop.py on any broker."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import Web
from support import fork_server
from support.shop_process import LIMIT, Shop, until

__all__ = ["LIMIT", "CeleryShop", "broker_and_shop", "in_flight", "shop_on", "until"]


class CeleryShop(Shop):
    """The application in celery_shop.py."""

    def __init__(self, home: Path, *addresses: str, **options: object) -> None:
        broker = addresses[0] if "://" in addresses[0] else f"nsqcy://{','.join(addresses)}"
        self.options = {"msg_timeout": 2.0} | options
        super().__init__(home, "celery_shop", broker=broker, options=json.dumps(self.options))

    def celery(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        with fork_server.prepared(self.environment, self.imported):
            return subprocess.run(
                [sys.executable, "-m", "celery", "-A", "celery_shop", *arguments],
                env=self.environment,
                cwd=self.home,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )

    def web(self) -> Web:
        """Return a client of the nsqd's HTTP port."""
        return Web(int(str(self.options["nsqd_http_addresses"]).rpartition(":")[2]))

    def start(self, *arguments: str, pool: str = "prefork") -> "subprocess.Popen[bytes]":
        """Start a worker and wait until it is ready."""
        command = ["celery", "-A", "celery_shop", "worker"]
        command += ["--pool", pool, "--concurrency", "2", "--loglevel", "INFO", *arguments]
        command += ["--hostname", f"w{len(self.workers)}@test"]
        return self.worker(*command, ready=" ready.")


@contextlib.contextmanager
def shop_on(home: Path, *addresses: str, **options: object) -> Iterator[CeleryShop]:
    shop = CeleryShop(home, *addresses, **options)
    try:
        yield shop
    finally:
        for worker in shop.workers:
            shop.kill(worker)


@contextlib.contextmanager
def broker_and_shop(home: Path, **options: object) -> Iterator[tuple[Nsqd, CeleryShop]]:
    """Start an nsqd; yield it and the application on it."""
    with (
        nsqd() as daemon,
        shop_on(
            home, daemon.tcp_address, nsqd_http_addresses=daemon.http_address, **options
        ) as shop,
    ):
        yield daemon, shop


def in_flight(shop: CeleryShop) -> int:
    """Return the number of messages that the worker has received but not acknowledged."""
    topics = shop.web().stats()["topics"]
    return sum(each["in_flight_count"] for topic in topics for each in topic["channels"])
