"""Three nsqds on this machine that replicate messages among themselves, with one etcd."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsqcy.testing.http_requests import eventually
from support.etcd_process import Etcd
from support.nsqd_process import Nsqd, free_port

NAMES = "abc"
LEASE = "3s"  # short, but a busy machine can still renew the lease
BUDGET = 60.0  # seconds within which the cluster must reach a new state


@contextlib.contextmanager
def copying_nsqds(
    home: Path,
    etcd: Etcd,
    policies: str,
    environs: dict[str, dict[str, str]] | None = None,
    kind: type[Nsqd] = Nsqd,
    **options: Any,
) -> Iterator[list[Nsqd]]:
    """Run the nsqds. The name of each nsqd is also the name of its data path.

    policies: sections of the configuration file
    environs: environment variables by nsqd
    kind: class of the nsqds
    """
    options.setdefault("workers", 1)
    options |= {"copies_lease": LEASE, "copies_timeout": LEASE} | options
    (home / "nsqd.ini").write_text(policies)
    (home / "secret").write_text("secret\n")
    with contextlib.ExitStack() as stack:
        nsqds = []
        for name in NAMES:
            (home / name).mkdir(exist_ok=True)
            if environs:
                options["environ"] = environs.get(name)
            nsqd = kind(
                home / name,
                config=home / "nsqd.ini",
                tcp_address=f"127.0.0.1:{free_port()}",  # unchanged by a restart
                http_address=f"127.0.0.1:{free_port()}",
                broadcast_address="127.0.0.1",
                etcd_endpoints=etcd.members[0].client_url,
                copies_address="127.0.0.1:0",
                copies_secret_file=home / "secret",
                **options,
            )
            stack.callback(nsqd.destroy)
            nsqds.append(nsqd)
        for nsqd in nsqds:
            nsqd.launch()
        for nsqd in nsqds:
            nsqd.await_ready()
        yield nsqds


def groups(nsqd: Nsqd) -> list[dict[str, Any]]:
    """Return the groups that an nsqd owns or keeps a copy of."""
    workers = nsqd.web.get("/copies").json()["workers"]
    return [group for worker in workers for group in worker["groups"]]


def await_copies(nsqd: Nsqd, topic: str) -> None:
    """Wait until an nsqd owns a topic that has all of its copies."""

    def has_all() -> bool:
        return any(
            topic in group["topics"]
            and group["role"] == "owner"
            and group["responding"] == group["copies"]
            and group["accepts"]
            for group in groups(nsqd)
        )

    eventually(has_all, BUDGET)
