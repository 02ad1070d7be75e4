"""nsqds that authenticate to nsqlookupd. False nsqds do no harm."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nsqcy import Consumer, Producer
from nsqcy.testing.http_requests import eventually
from support import users_file
from support.fake_auth_server import AuthServer, Reply
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd
from support.users_file import section, token

pytestmark = pytest.mark.ours


@dataclass
class Cluster:
    lookupd: Lookupd
    nsqd: Nsqd
    file: Path
    folder: Path


def users(*more: str) -> list[str]:
    return [section("boss", admin="*", publish="*", subscribe="*"), *more]


@pytest.fixture(params=[False, True], ids=["listed", "refused"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    file = users_file.write(tmp_path / "users.ini", *users(section("nsqd", register="*")))
    for name in ("boss", "nsqd"):
        (tmp_path / name).write_text(token(name) + "\n")
    (tmp_path / "data").mkdir()
    with Lookupd(auth_file=file, require_registration_auth=request.param) as lookupd:
        nsqd = Nsqd(
            tmp_path / "data",
            workers=1,
            auth_file=file,
            lookupd_tcp_address=lookupd.tcp_address,
            lookupd_auth_token_file=tmp_path / "nsqd",
            broadcast_address="127.0.0.1",
        )
        nsqd.start()
        try:
            yield Cluster(lookupd, nsqd, file, tmp_path)
        finally:
            nsqd.destroy()


@pytest.fixture
def false() -> Iterator[AuthServer]:
    server = AuthServer()
    server.default = Reply(b'{"message":"UNAUTHORIZED"}', 401)
    yield server
    server.close()


def proved(lookupd: Lookupd) -> list[tuple[int, Any]]:
    return [(each["http_port"], each.get("authenticated")) for each in lookupd.nodes()]


def test_no_program_gives_its_token_to_a_false_nsqd(cluster: Cluster, false: AuthServer) -> None:
    lookupd, nsqd = cluster.lookupd, cluster.nsqd
    eventually(lambda: proved(lookupd) == [(nsqd.http_port, True)])
    producer = Producer(f"127.0.0.1:{nsqd.tcp_port}", auth_secret=token("boss"))
    producer.publish("t", b"x")
    eventually(lambda: lookupd.producers("t") == ["127.0.0.1"])
    intruder = lookupd.connect()
    intruder.identify("127.0.0.1", http_port=false.port, tcp_port=false.port)
    intruder.command("REGISTER t")
    requires = lookupd.options["require_registration_auth"]
    expected = [(nsqd.http_port, True)] + ([] if requires else [(false.port, None)])
    assert sorted(proved(lookupd), key=str) == sorted(expected, key=str)

    address = f"127.0.0.1:{lookupd.http_port}"
    with Admin(lookupd_http_address=address, auth_token_file=cluster.folder / "boss") as admin:
        answer = admin.get("/api/topics/t")
        assert (answer["depth"], "token withheld" in answer["message"]) == (1, not requires)
    with Consumer("t", "c", lookupd_http_addresses=address, auth_secret=token("boss")) as consumer:
        message = consumer.get(timeout=30)
        assert message is not None and message.body == b"x"
        message.finish()
    producer.close()
    options = [f"--lookupd-http-address={address}", f"--auth-token-file={cluster.folder / 'boss'}"]
    tool = subprocess.run(
        [sys.executable, "-m", "nsqcy", "topic", "list", *options],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "t" in tool.stdout.split()
    assert all("authorization" not in each.headers for each in false.requests)
    assert token("boss").encode() not in b"".join(each.body for each in false.requests)
    assert bool(false.requests) != requires


def test_a_changed_user_must_authenticate_again(cluster: Cluster) -> None:
    lookupd = cluster.lookupd
    eventually(lambda: proved(lookupd) == [(cluster.nsqd.http_port, True)])
    users_file.write(cluster.file, *users())
    lookupd.process.send_signal(signal.SIGHUP)
    eventually(lambda: (cluster.nsqd.http_port, True) not in proved(lookupd))
    eventually(lambda: "AUTH - E_AUTH_FAILED" in cluster.nsqd.log_text())
    users_file.write(cluster.file, *users(section("nsqd", register="*")))
    lookupd.process.send_signal(signal.SIGHUP)
    eventually(lambda: proved(lookupd) == [(cluster.nsqd.http_port, True)], timeout=60)
    assert token("nsqd") not in cluster.nsqd.log_text() + lookupd.log_text()
