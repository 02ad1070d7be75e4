"""Three nsqds that replicate messages on one machine, and an nsqadmin that shows them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsqcy.testing.http_requests import eventually
from support.copying_nsqds import BUDGET, copying_nsqds
from support.etcd_process import Etcd
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd

POLICIES = """\
[topic orders]
copies = 3
[topic mails]
copies = 2
durability = fsync
"""


class CopiesWithAdmin:
    def __init__(self, etcd: Etcd, nsqds: list[Nsqd], admin: Admin) -> None:
        self.etcd = etcd
        self.nsqds = nsqds
        self.admin = admin

    @property
    def nodes(self) -> list[str]:
        return [f"127.0.0.1:{each.http_port}" for each in self.nsqds]

    def copies(self) -> dict[str, Any]:
        """Return the groups and risks that nsqadmin shows."""
        base = self.admin.options.get("base_path", "")
        return self.admin.get(f"{base}/api/copies")

    def await_health(self, *topics: str) -> None:
        """Wait until these topics, each listed once per nsqd, have all of their copies."""

        def is_healthy() -> bool:
            found = self.copies()
            names = sorted(name for each in found["groups"] for name in each["topics"])
            return names == sorted(topics) and not found["risks"] and not found["message"]

        try:
            eventually(is_healthy, BUDGET)
        except AssertionError:
            raise AssertionError(f"not healthy: {self.copies()}") from None


@contextlib.contextmanager
def copies_with_admin(home: Path, **options: Any) -> Iterator[CopiesWithAdmin]:
    """Run a cluster whose first two nsqds have `orders` with three copies, and the first one also
    `mails` with two. options: nsqadmin's options"""
    with contextlib.ExitStack() as stack:
        etcd = stack.enter_context(Etcd())
        lookupd = stack.enter_context(Lookupd())
        nsqds = stack.enter_context(
            copying_nsqds(home, etcd, POLICIES, lookupd_tcp_address=lookupd.tcp_address)
        )
        admin = stack.enter_context(Admin(lookupd_http_address=lookupd.http_address, **options))
        found = CopiesWithAdmin(etcd, nsqds, admin)
        for nsqd, topics in zip(nsqds, (("orders", "mails"), ("orders",), ()), strict=True):
            for topic in topics:
                nsqd.web.create(topic, "archive")
        found.await_health("mails", "orders", "orders")
        yield found
