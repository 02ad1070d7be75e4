"""A cluster whose daemons have a users file, and programs that authenticate with a token."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsqcy import Error, cancel
from nsqcy.errors import ConfigError
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import Web, eventually
from nsqcy.users import token_file
from support import users_file
from support.fake_auth_server import AuthServer, Reply
from support.fake_http_destination import Destination
from support.metrics_scraper import scrape
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd, environment
from support.nsqlookupd_process import Lookupd
from support.users_file import bearer, section, token

pytestmark = pytest.mark.ours


@dataclass
class Cluster:
    lookupd: Lookupd
    nsqd: Nsqd
    file: Path
    token: Path

    def web(self, name: str, of: Lookupd | Nsqd) -> Web:
        return Web(of.http_port, headers=bearer(name))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("users")
    file = users_file.write(
        folder / "users.ini",
        section("admin", admin="*", subscribe="*"),
        section("some", admin="a.*"),
        section("looks", role="view"),
        section("writes", publish="*"),
        section("nsqds", register="*"),
    )
    (folder / "nsqds").write_text(token("nsqds") + "\n")
    (folder / "token").write_text(token("admin") + "\n")
    (folder / "data").mkdir()
    with Lookupd(auth_file=file) as lookupd:
        nsqd = Nsqd(
            folder / "data",
            workers=1,
            auth_file=file,
            lookupd_tcp_address=lookupd.tcp_address,
            lookupd_auth_token_file=folder / "nsqds",
            broadcast_address="127.0.0.1",
        )
        nsqd.start()
        try:
            yield Cluster(lookupd, nsqd, file, folder / "token")
        finally:
            nsqd.destroy()


def test_nsqlookupd(cluster: Cluster) -> None:
    """Lookups need no authentication, but changes to registrations do."""
    lookupd = cluster.lookupd
    for path in ("/ping", "/info", "/topics", "/nodes", "/channels?topic=t"):
        assert lookupd.web.get(path).status == 200, path
    assert lookupd.web.get("/debug").status == lookupd.web.get("/metrics").status == 401
    for path in ("/topic/create", "/topic/delete", "/channel/create", "/channel/delete"):
        target = f"{path}?topic=b&channel=c"
        assert lookupd.web.post(target).status == 401, path
        assert cluster.web("some", lookupd).post(target).status == 403, path
    assert lookupd.web.post("/topic/tombstone?topic=b&node=x").status == 401
    assert lookupd.web.get("/debug/pprof/cmdline").status == 401
    assert cluster.web("some", lookupd).post("/topic/create?topic=a.b").status == 200
    assert cluster.web("looks", lookupd).get("/debug").status == 200
    assert token("some") not in lookupd.log_text()


def test_prometheus_is_a_user_who_looks(cluster: Cluster) -> None:
    for daemon, name in ((cluster.lookupd, "nsqlookupd"), (cluster.nsqd, "nsqd")):
        found = scrape(daemon.web, token=token("looks"))
        assert list(found.labels(f"{name}_build_info")) != []


def test_nsqlookupd_reads_the_file_again(tmp_path: Path) -> None:
    file = users_file.write(tmp_path / "users.ini", section("old", admin="*"))
    with Lookupd(auth_file=file) as lookupd:
        old = Web(lookupd.http_port, headers=bearer("old"))
        new = Web(lookupd.http_port, headers=bearer("new"))
        assert (old.get("/debug").status, new.get("/debug").status) == (200, 401)
        users_file.write(file, section("new", admin="*"))
        lookupd.process.send_signal(signal.SIGHUP)
        eventually(lambda: new.get("/debug").status == 200)
        assert old.get("/debug").status == 401
        file.write_text("[user new]\ntoken = s3cret\n")
        lookupd.process.send_signal(signal.SIGHUP)
        eventually(lambda: "the users stay unchanged" in lookupd.log_text())
        assert new.get("/debug").status == 200 and "s3cret" not in lookupd.log_text()


@pytest.fixture
def elsewhere() -> Iterator[Destination]:
    """Server that gets nsqadmin's notifications, but must not get its token."""
    destination = Destination()
    yield destination
    destination.close()


def test_nsqadmin_shows_its_token_to_daemons_alone(
    cluster: Cluster, elsewhere: Destination
) -> None:
    cluster.web("admin", cluster.nsqd).create("seen")
    lookupd = f"127.0.0.1:{cluster.lookupd.http_port}"
    eventually(lambda: "seen" in cluster.lookupd.web.get("/topics").json()["topics"])
    options = {"lookupd_http_address": lookupd, "notification_http_endpoint": elsewhere.url()}
    with Admin(auth_token_file=cluster.token, **options) as admin:
        answer = admin.post("/api/topics/seen", action="pause")
        assert answer.status == 200, answer
        assert cluster.web("looks", cluster.nsqd).counts("seen")["paused"]
        assert eventually(lambda: elsewhere.requests)
        assert all("authorization" not in each.headers for each in elsewhere.requests)
        assert token("admin") not in admin.log_text()
    with Admin(**options) as stranger:
        said = stranger.post("/api/topics/seen", action="unpause").json()["message"]
        assert "UNAUTHORIZED" in said
        assert cluster.web("looks", cluster.nsqd).counts("seen")["paused"]


def test_cancelling_needs_a_token(cluster: Cluster) -> None:
    web = cluster.web("admin", cluster.nsqd)
    web.create("later", "mail")
    for key in ("a", "b"):
        headers = {**bearer("writes"), "X-Nsq-cancel-key": key}
        answer = Web(cluster.nsqd.http_port, headers=headers).post(
            "/pub", b"hello", topic="later", defer="3600000"
        )
        assert answer.status == 200, answer
    address = f"127.0.0.1:{cluster.nsqd.http_port}"
    with pytest.raises(Error, match="401"):
        cancel("later", "mail", "a", address)
    assert cancel("later", "mail", "a", address, auth_secret=token("admin")) == 1
    assert web.channel("later", "mail")["deferred_count"] == 1


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_programs_show_a_token(cluster: Cluster) -> None:
    cluster.web("admin", cluster.nsqd).create("shown", "c")
    where = f"--nsqd-http-address=127.0.0.1:{cluster.nsqd.http_port}"
    stat = ("nsqcy.tools.nsq_stat", "--topic=shown", "--channel=c", "--count=1", "--interval=10ms")
    assert run(*stat, where).returncode != 0
    assert run(*stat, where, f"--auth-token-file={cluster.token}").returncode == 0
    doctor = ("nsqcy", "doctor", "--host=false", "--sample=0s", where)
    assert "UNAUTHORIZED" in run(*doctor).stdout
    told = run(*doctor, f"--auth-token-file={cluster.token}").stdout
    assert "UNAUTHORIZED" not in told and "nsqds: all nsqds answer" in told


def commands(where: str, root: Path) -> list[tuple[str, ...]]:
    return [
        ("nsqcy", "topic", "list", where),
        ("nsqcy", "doctor", "--host=false", "--sample=0s", where),
        (
            "nsqcy.tools.nsq_stat",
            "--topic=shown",
            "--channel=c",
            "--count=1",
            "--interval=1ms",
            where,
        ),
        ("nsqcy.pipeline", "stats", "--polls=1", "--format=json", f"--root={root}", where),
    ]


def test_commands_take_the_token_from_the_environment(cluster: Cluster, tmp_path: Path) -> None:
    cluster.web("admin", cluster.nsqd).create("shown", "c")
    where = f"--nsqd-http-address=127.0.0.1:{cluster.nsqd.http_port}"
    for words in commands(where, tmp_path):
        for variables in (
            {"NSQCY_AUTH_TOKEN": token("admin")},
            {"NSQCY_AUTH_TOKEN_FILE": str(cluster.token)},
        ):
            done = run(*words, **variables)
            assert done.returncode == 0, done
        for variables, said in (({}, ""), ({"NSQCY_AUTH_TOKEN": "wrong"}, "wrong")):
            done = run(*words, **variables)
            assert done.returncode == 1, done
            assert not said or said not in done.stdout + done.stderr
        done = run(*words, NSQCY_AUTH_TOKEN="two words")
        assert done.returncode != 0 and "NSQCY_AUTH_TOKEN" in done.stderr, done


def test_commands_name_the_missing_token(cluster: Cluster, tmp_path: Path) -> None:
    where = f"--nsqd-http-address=127.0.0.1:{cluster.nsqd.http_port}"
    topics = ("nsqcy", "topic", "list", where)
    token_options = "--auth-token-file or NSQCY_AUTH_TOKEN"
    assert run(*topics).stderr.endswith(f"a token is required: set {token_options}\n")
    wrong = run(*topics, NSQCY_AUTH_TOKEN="wrong")
    assert wrong.stderr.endswith(f"the token is not valid: check {token_options}\n")
    stats = run("nsqcy.pipeline", "stats", "--every=1ms", f"--root={tmp_path}", where)
    assert stats.returncode == 1 and token_options in stats.stderr, "it does not poll on"


def test_sub_ends_if_it_is_denied(tmp_path: Path) -> None:
    server = AuthServer()
    server.default = Reply(b"{}", 403)
    nsqd = Nsqd(tmp_path, workers=1, auth_http_address=server.address)
    nsqd.start()
    try:
        sub = ("nsqcy", "sub", "t", "c", f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}")
        missing = run(*sub)
        assert missing.returncode == 1
        assert "requires a token: set --auth-token-file or NSQCY_AUTH_TOKEN" in missing.stderr
        wrong = run(*sub, NSQCY_AUTH_TOKEN="wrong")
        assert wrong.returncode == 1
        assert "E_AUTH_FAILED AUTH failed: check --auth-token-file" in wrong.stderr
    finally:
        nsqd.destroy()
        server.close()


def test_commands_name_what_tls_needs(tmp_path: Path) -> None:
    files = make("server").save(tmp_path)
    nsqd = Nsqd(
        tmp_path, workers=1, tls_required="true", https_address="127.0.0.1:0", **files.options
    )
    nsqd.start()
    try:
        where = f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}"
        trusted = f"--tls-root-ca-file={files.certificate}"
        stats = ("nsqcy.pipeline", "stats", "--format=json", f"--root={tmp_path}", where)
        for words in (("nsqcy", "topic", "list", where), stats):
            done = run(*words)
            assert done.returncode == 1 and "--tls-root-ca-file" in done.stderr, done
        assert run(*stats, trusted, "--polls=1").returncode == 0
        done = run("nsqcy", "sub", "t", "c", where, trusted)
        assert done.returncode == 1 and "(TLS required): set --tls" in done.stderr
    finally:
        nsqd.destroy()


@pytest.mark.parametrize("text", ["", "two words", "a\x00b", "é"])
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        token_file.read(str(path))
    assert not text or text not in str(caught.value)


def test_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("  abc\n")
    assert token_file.read(str(tmp_path / "token")) == "abc"
    assert token_file.read("") == ""
