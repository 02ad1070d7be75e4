"""User quotas in a daemon with several workers: they apply to all workers together."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import Web, eventually
from nsqcy.testing.wire_client import Conn, sized
from support import users_file
from support.metrics_scraper import Scrape, check_by_promtool, scrape
from support.nsqd_process import Nsqd
from support.users_file import bearer, section, token

pytestmark = pytest.mark.ours

SLOW = "0.001"  # one message, and then none for longer than a test takes
CONNECTIONS = 4


OTHERS = (
    section("large", publish="*", publish_bytes_rate="1"),
    section("few", publish="*", max_connections=str(CONNECTIONS)),
    section("root", publish="*", subscribe="*", admin="*"),
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    slow = section("slow", publish="*", publish_rate=SLOW)
    return users_file.write(tmp_path_factory.mktemp("users") / "users.ini", slow, *OTHERS)


@pytest.fixture(scope="module")
def daemon(file: Path) -> Iterator[Nsqd]:
    """Daemon shared by all tests; each test uses its own user."""
    data = file.with_name("data")
    data.mkdir()
    daemon = Nsqd(data, workers=2, auth_file=file).start()
    yield daemon
    daemon.destroy()


def web(daemon: Nsqd, name: str) -> Web:
    return Web(daemon.http_port, headers=bearer(name))


def connect(daemon: Nsqd, name: str) -> Conn:
    return daemon.connect().auth(token(name))


def figures(found: Scrape, name: str) -> dict[str, float]:
    """Return a user's values in /metrics."""
    prefix = "nsqd_user_"
    return {
        family.name.removeprefix(prefix): sample.value
        for family in found.families.values()
        for sample in family.samples
        if family.name.startswith(prefix) and sample.labels == {"user": name}
    }


def test_a_rate_holds_for_all_ways_in(daemon: Nsqd, file: Path) -> None:
    web(daemon, "root").create("t")
    one, other, free = (connect(daemon, name) for name in ("slow", "slow", "root"))
    one.pub("t", b"m")
    for conn in (one, other):
        conn.send(b"PUB t\n", sized(b"m"))
    eventually(lambda: "user slow is exceeding its publish quota" in daemon.log_text())
    refused = web(daemon, "slow").post("/pub", b"m", topic="t")
    assert (refused.status, refused.json()) == (429, {"message": "QUOTA_REACHED"})
    assert 900 < int(refused.headers["retry-after"]) <= 1000
    assert web(daemon, "slow").get("/ping").status == 200
    free.pub("t", b"m")
    assert web(daemon, "root").post("/pub", b"m", topic="t").status == 200
    assert web(daemon, "root").counts("t")["message_count"] == 3
    told = figures(scrape(web(daemon, "root")), "slow")
    assert told.pop("wait_seconds") > 0
    assert told == {
        "connections": 2,
        "refused_connections": 0,
        "messages": 1,
        "message_bytes": 1,
        "refused_publishes": 1,
    }
    users_file.write(file, section("slow", publish="*"), *OTHERS)
    daemon.process.send_signal(signal.SIGHUP)
    for conn in (one, other):
        conn.expect_ok()
    assert web(daemon, "slow").post("/pub", b"m", topic="t").status == 200
    eventually(lambda: figures(scrape(web(daemon, "root")), "slow") == {})


def test_bytes_have_a_rate(daemon: Nsqd) -> None:
    large = web(daemon, "large")
    assert large.post("/mpub", b"a\nb\nc" * 1000, topic="t").status == 200
    conn = connect(daemon, "large")
    conn.send(b"PUB t\n", sized(b"m"))
    eventually(lambda: "user large is exceeding its publish quota" in daemon.log_text())
    assert large.post("/pub", b"m", topic="t").status == 429


def test_the_connection_limit_counts_all_workers(daemon: Nsqd) -> None:
    conns = [connect(daemon, "few") for _ in range(CONNECTIONS)]
    refused = daemon.connect()
    refused.command("AUTH", body=token("few").encode())
    refused.expect_error(
        f"E_AUTH_FAILED AUTH failed: user few has reached its max_connections of {CONNECTIONS}"
    )
    for conn in conns:
        conn.pub("t", b"m")
    found = scrape(web(daemon, "root"))
    assert figures(found, "few") == {"connections": CONNECTIONS, "refused_connections": 1}
    assert figures(found, "root") == {}
    assert web(daemon, "few").post("/pub", b"m", topic="t").status == 200
    conns.pop().close()

    def is_let_in() -> bool:
        conn = daemon.connect()
        conn.command("AUTH", body=token("few").encode())
        return b"identity" in conn.frame().data

    assert eventually(is_let_in)
    check_by_promtool(found)
