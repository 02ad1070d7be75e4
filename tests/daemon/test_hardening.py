"""The daemons under the restrictions of their systemd units: they need no forbidden
operation."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from support import nsqd_process as daemons
from support import systemd_sandbox
from support.daemon_process import Service
from support.nsqadmin_process import Admin
from support.nsqd_process import FOREIGN
from support.nsqlookupd_process import Lookupd

SYSTEMD = Path(__file__).parents[2] / "conf" / "systemd"

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(bool(FOREIGN), reason="the units are for nsqcy's daemons"),
    pytest.mark.skipif(bool(systemd_sandbox.missing()), reason=systemd_sandbox.missing()),
]


def confined(name: str) -> list[str]:
    script, unit = Path(systemd_sandbox.__file__), SYSTEMD / f"{name}.service"
    return [sys.executable, str(script), str(unit), sys.executable, "-m", f"nsqcy.{name}.main"]


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start daemons under the restrictions of their units."""
    monkeypatch.setattr(daemons, "command", lambda: confined("nsqd"))
    monkeypatch.setattr(Service, "command", classmethod(lambda cls: confined(cls.name)))


def test_the_filter_is_in_force() -> None:
    """Without an active filter, the other test would not test anything."""
    words = [*confined("nsqd")[:-2], "-c", "import os; os.chown('.', 0, 0)"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "PermissionError: [Errno 1]" in done.stderr


@pytest.mark.parametrize("workers", [2], indirect=True)
def test_all_three_live_with_it(nsqd: Starter, tmp_path: Path, topic: str) -> None:
    """All daemons work: they write to disk, require client certificates, and restart."""
    files = make("server").save(tmp_path)
    with Lookupd() as lookupd, Admin(lookupd_http_address=lookupd.http_address) as admin:
        one = nsqd(
            lookupd_tcp_address=lookupd.tcp_address,
            broadcast_address="127.0.0.1",
            durability="fsync",
            tls_client_auth_policy="require",
            tls_required="tcp-https",
            **files.options,
        )
        one.web.create(topic, "c")
        one.web.mpub(topic, [b"one", b"two"])
        eventually(lambda: topic in admin.get("/api/topics")["topics"])
        one.restart()
        one.web.await_counts(topic, "c", depth=2)
        one.stop()
