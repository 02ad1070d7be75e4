"""Logs of daemons at the most detailed level contain no tokens, no passwords, and no hashes of
either."""

import base64
import re
import signal
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from nsqcy.testing.http_requests import Answer, eventually
from nsqcy.users.hashes import hash_password, hash_token
from support import users_file
from support.logged_process import Logged
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd
from support.users_file import bearer, section, token

pytestmark = pytest.mark.ours

PASSWORD, WRONG = "anna's password", "a wrong secret"
TORN = "a hash that a line break has torn off"
HASH = hash_password(PASSWORD, log_cost=10)
ANNA = section("anna", with_token=False, role="operate", password=str(HASH))
ROOT = section("root", role="operate", publish="*", subscribe="*", admin="*")


def forms(secret: str) -> set[str]:
    """Return the forms that a secret takes in requests and files."""
    basic = base64.b64encode(f"anna:{secret}".encode()).decode()
    return {secret, quote(secret), urlencode({"": secret})[1:], basic, str(hash_token(secret))}


SECRETS = {form for secret in (PASSWORD, WRONG, TORN, token("root")) for form in forms(secret)} | {
    str(HASH),
    HASH.hash.hex(),
    base64.b64encode(HASH.hash).decode().rstrip("="),
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Nsqd, Lookupd, Admin]]:
    options = {
        "auth_file": users_file.write(tmp_path / "users.ini", ANNA, ROOT),
        "log_level": "debug",
    }
    (tmp_path / "token").write_text(token("root"))
    (tmp_path / "data").mkdir()
    nsqd = Nsqd(tmp_path / "data", workers=2, **options)
    lookupd = Lookupd(**options)
    admin = Admin(nsqd_http_address="127.0.0.1:1", auth_token_file=tmp_path / "token", **options)
    daemons = (nsqd, lookupd, admin)
    try:
        for daemon in daemons:
            daemon.start()
        yield daemons
    finally:
        for daemon in daemons:
            daemon.destroy()


def test_no_log_has_a_secret(cluster: tuple[Nsqd, Lookupd, Admin], tmp_path: Path) -> None:
    nsqd, _, admin = cluster
    speak(nsqd)
    for daemon, path in zip(cluster, ("/stats", "/debug", "/api/nodes"), strict=True):
        for header in ({}, bearer("root"), basic(token("root")), basic(WRONG), basic(PASSWORD)):
            daemon.web.request("GET", path, headers=header)
    assert enter(admin, WRONG).status == 401
    cookie = enter(admin, PASSWORD).headers["set-cookie"].partition(";")[0]
    assert admin.web.request("GET", "/api/nodes", headers={"Cookie": cookie}).status != 401
    read_again(cluster, tmp_path / "users.ini")
    secrets = SECRETS | {cookie.partition("=")[2]}
    for daemon in cluster:
        daemon.stop()
        told = daemon.log_text()
        assert "http_unauthorized" in told or "invalid credentials" in told or daemon is admin
        assert [each for each in secrets if each in told] == []


def speak(nsqd: Nsqd) -> None:
    """Authenticate over TCP, in valid and invalid ways."""
    nsqd.connect().auth(token("root")).pub("t", b"m")
    refused = nsqd.connect()
    refused.command("AUTH", body=WRONG.encode())
    refused.expect_error("E_AUTH_FAILED AUTH failed")
    garbled = nsqd.connect()
    garbled.command("AUTH", token("root"))
    garbled.expect_error("E_INVALID AUTH invalid number of parameters")
    garbled = nsqd.connect()
    garbled.send(b"AUTH\n\0\0\1\0", token("root").encode())
    garbled.half_close()
    garbled.expect_error("E_BAD_BODY AUTH failed to read body")


def basic(secret: str) -> dict[str, str]:
    coded = base64.b64encode(f"anna:{secret}".encode()).decode()
    return {"Authorization": f"Basic {coded}"}


def enter(admin: Admin, password: str) -> Answer:
    """Log in as a browser does."""
    form = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://127.0.0.1:{admin.http_port}",
    }
    fields = urlencode({"user": "anna", "password": password})
    return admin.web.request("POST", "/login", fields.encode(), headers=form)


def read_again(daemons: Sequence[Logged], file: Path) -> None:
    """Make the daemons reload an invalid users file, and then the valid one again."""
    good = file.read_text()
    for text, says in (
        (f"{good}{TORN}\n", "unchanged"),
        (good, r"reloaded the|\d users"),
    ):
        file.write_text(text)
        for daemon in daemons:
            daemon.process.send_signal(signal.SIGHUP)
        for daemon in daemons:
            eventually(partial(has, daemon, says))


def has(daemon: Logged, pattern: str) -> bool:
    return re.search(pattern, daemon.log_text()) is not None
