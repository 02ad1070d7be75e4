"""`nsqcy doctor --bundle`: a file for bug reports that contains no secret of any kind."""

import base64
import os
import stat
import tarfile
from pathlib import Path
from typing import cast
from urllib.parse import quote

import pytest
from urllib3.util import Url, parse_url

from nsqcy.cli.main import main
from nsqcy.cluster.web_client import Answer, WebClient
from nsqcy.doctor import bundle
from nsqcy.users.hashes import hash_password, hash_token
from support import users_file
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd
from support.users_file import section, token

pytestmark = pytest.mark.ours

BODY = b"the body of a message"
IN_FILES = {
    "etcd_password_file": "password of etcd",
    "copies_secret_file": "secret of the copies",
    "lookupd_auth_token_file": "token-for-nsqlookupd",
    "tls_key": "KEYDATAKEYDATAKEYDATA",
}
IN_URLS = ("pa/ss", "query-secret")
IN_LOGS = ("bearer-in-a-log", "cookie-in-a-log", "PEMPEMPEMPEM", "password-in-a-log")
SECRETS = {*IN_FILES.values(), *IN_URLS, *IN_LOGS, "mistaken-secret", token("root")}
LOG = f"""\
INFO: a request with Authorization: Bearer {IN_LOGS[0]}
INFO: Set-Cookie: session={IN_LOGS[1]}
-----BEGIN EC PRIVATE KEY-----
{IN_LOGS[2]}
-----END EC PRIVATE KEY-----
WARNING: cannot reach http://anna:{IN_LOGS[3]}@auth:4180/auth
INFO: {hash_token(token("root"))} {hash_password("x", log_cost=4)}
INFO: {base64.b64encode(IN_FILES["copies_secret_file"].encode()).decode()} is in base64
"""


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        assert {member.mode for member in tar} == {0o600}
        found = {member.name: tar.extractfile(member) for member in tar}
        return {
            name.removeprefix("nsqcy-bundle/"): file.read().decode()
            for name, file in found.items()
            if file is not None
        }


def config_with_secrets(tmp_path: Path, *wrong: str) -> Path:
    lines = [f"data_path = {tmp_path}/data", "max_msg_size = 12345"]
    for name, secret in IN_FILES.items():
        (tmp_path / name).write_text(f"{secret}\n")
        lines.append(f"{name} = {tmp_path}/{name}")
    user = f"anna:{quote(IN_URLS[0], '')}"
    lines.append(f"auth_http_address = http://{user}@127.0.0.1:1/auth?key={IN_URLS[1]}")
    lines += [f"tls_cert = {tmp_path}/cert.pem", *wrong]
    path = tmp_path / "nsqd.ini"
    text = "\n".join(["[nsqd]", "# a comment with mistaken-secret", *lines])
    path.write_text(f"{text}\n[topic orders]\nmax_bytes = 777\n")
    return path


def test_a_bundle_has_no_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "token").write_text(token("root"))
    (tmp_path / "old.log").write_text(LOG)
    root = section("root", role="operate", publish="*", subscribe="*", admin="*")
    users = users_file.write(tmp_path / "users.ini", root)
    nsqd = Nsqd(tmp_path / "data", auth_file=users, durability="os")
    try:
        nsqd.start()
        nsqd.connect().auth(token("root")).pub("orders", BODY)
        at = [f"--nsqd-http-address=127.0.0.1:{nsqd.http_port}"]
        at += [f"--config={config_with_secrets(tmp_path)}"]
        at += [f"--auth-token-file={tmp_path}/token", f"--log-file={tmp_path}/old.log"]
        file = tmp_path / "bundle.tar.gz"
        assert main(["doctor", f"--bundle={file}", "--sample=0", *at]) == 0
    finally:
        nsqd.destroy()
    assert capfd.readouterr().out.startswith(f"wrote {file}: ")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = read(file)
    assert secrets_in(found) == []
    assert "max_msg_size = 12345" in found["config.txt"]
    assert "[topic orders]\nmax_bytes = 777" in found["config.txt"]
    assert "orders.topic/" in found["data-path.txt"]
    at_nsqd = f"nsqd/127.0.0.1_{nsqd.http_port}"
    assert '"orders"' in found[f"{at_nsqd}/stats.json"]
    assert 'nsqd_topic_messages_total{topic="orders"} 1' in found[f"{at_nsqd}/metrics.txt"]
    assert '"durability": "os"' in found[f"{at_nsqd}/config.json"]
    (log,) = [name for name in found if name.endswith("_old.log")]
    assert "is in base64" in found[log]
    assert '"nsqcy"' in found["versions.json"] and '"findings"' in found["doctor.json"]


def test_a_configuration_with_errors(tmp_path: Path) -> None:
    """doctor still finds the secrets in the file, even one that was given instead of a path."""
    (tmp_path / "old.log").write_text(f"{LOG}mistaken-secret\n")
    wrong = ["no_such_option = 1", "copies_tls_key = mistaken-secret"]
    ini = config_with_secrets(tmp_path, *wrong)
    file = tmp_path / "bundle.tar.gz"
    words = [f"--bundle={file}", f"--config={ini}", f"--log-file={tmp_path}/old.log"]
    assert main(["doctor", *words, "--cluster=false"]) == 0
    found = read(file)
    assert secrets_in(found) == []
    assert "is not valid for nsqd" in found["config.txt"]
    assert "no_such_option = 1" in found["config.txt"]
    assert "no_such_option" in found["doctor.json"]


def secrets_in(found: dict[str, str]) -> list[str]:
    """Return the secrets and other forbidden texts in a bundle."""
    whole = "".join(f"{name}\n{text}" for name, text in found.items())
    forms = {form for each in SECRETS for form in forms_of(each)} | {BODY.decode(), "$sha256$"}
    return [each for each in forms if each in whole]


def forms_of(secret: str) -> set[str]:
    return {secret, quote(secret, ""), base64.b64encode(secret.encode()).decode()}


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    """An nsqlookupd, an nsqadmin and a data path may be missing as well."""
    ini = tmp_path / "nsqadmin.ini"
    ini.write_text("[nsqadmin]\nhttp_address = 127.0.0.1:1\nnsqd_http_address = 127.0.0.1:2\n")
    with Lookupd() as lookupd:
        at = [f"--lookupd-http-address={each}" for each in (lookupd.http_address, "127.0.0.1:3")]
        file = tmp_path / "bundle.tar.gz"
        words = [f"--bundle={file}", f"--config={ini}", f"--log-file={tmp_path}/none", "--sample=0"]
        assert main(["doctor", *words, *at, "--nsqd-http-address=127.0.0.1:2"]) == 0
    found = read(file)
    for each in ("nsqadmin/127.0.0.1_1/ping.txt", "nsqd/127.0.0.1_2/info.json"):
        assert f"{each}: Connection refused" in found["README.txt"]
    assert "nsqlookupd/127.0.0.1_3/info.json: Connection refused" in found["README.txt"]
    assert "_none: No such file or directory" in found["README.txt"]
    assert "data-path.txt: no data path" in found["README.txt"]
    assert '"producers"' in found[f"nsqlookupd/127.0.0.1_{lookupd.web.port}/nodes.json"]


def test_a_slow_nsqd_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        now = 0.0

        def ask(self, url: Url, *, maximum: int) -> Answer:
            self.now += 1.0
            return Answer(200, {}, b'"http://anna:password@host/"')

    web = Slow()
    monkeypatch.setattr(bundle.time, "monotonic", lambda: web.now)
    found = bundle.running_config(cast(WebClient, web), parse_url("http://127.0.0.1:1"))
    assert 0 < len(found) <= bundle.CONFIG_TIMEOUT + 1
    assert set(found.values()) == {"http://[removed]@host/", "[set]"}


def test_a_file_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there"
    there.write_text("kept")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for path, told in {
        there: f"{there} exists: choose another name, or delete it",
        link: f"{link} exists: choose another name, or delete it",
        tmp_path / "no/such": f"cannot write {tmp_path}/no/such: No such file or directory",
    }.items():
        assert main(["doctor", f"--bundle={path}", "--cluster=false"]) == 1
        assert capfd.readouterr().err == f"nsqcy: {told}\n"
    assert there.read_text() == "kept"
    assert sorted(os.listdir(tmp_path)) == ["link", "there"]
    assert main(["doctor", f"--bundle={tmp_path}/new", "--watch"]) == 2
    assert not (tmp_path / "new").exists()


def test_a_bundle_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is cut after its secrets are removed. The bundle lists the parts that exceed its
    maximum size."""
    monkeypatch.setattr(bundle, "MAX_PART", 1000)
    monkeypatch.setattr(bundle, "EDGE", 100)
    monkeypatch.setattr(bundle, "MAX_BYTES", 2000)
    monkeypatch.setattr(bundle, "MAX_LISTED", 3)
    parts = bundle.Parts(bundle.Redactor(["the secret"]))
    cut = "x" * 995 + "the secret" + "y" * 2000
    parts.add("beginning", cut)
    parts.add("end", cut[::-1].replace("terces eht", "the secret"), keep_end=True)
    for text in parts.files.values():
        assert 800 < len(text) < 1000 and b"[cut]" in text and b"the s" not in text
    parts.add("too much", "z" * 900)
    assert parts.missing == ["too much: the bundle would exceed 2.0 KiB"]
    for number in range(5):
        (tmp_path / str(number)).write_bytes(b"1234")
    assert bundle.listing(str(tmp_path)).splitlines()[0].split() == ["4", "0"]
    assert bundle.listing(str(tmp_path)).endswith("[cut: more than 3 files]\n")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("", "journalctl is not installed"),
        ("echo '-- No entries --'", "the journal has no entries for nsqd"),
        ("true", "the journal has no entries for nsqd"),
        ("echo 'no such journal' >&2; exit 1", "journalctl failed: no such journal"),
        ("echo 2026-01-01T00:00:00 h nsqd: ok", ""),
    ],
)
def test_a_journal_without_lines_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    if script:
        program = tmp_path / "journalctl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    parts = bundle.Parts(bundle.Redactor(()))
    parts.attempt("logs/nsqd.txt", lambda: bundle.journal("nsqd"))
    assert len(parts.files) == (not reason)
    expected = [f"logs/nsqd.txt: {reason}; {bundle.NAME_LOGS}"] if reason else []
    assert parts.missing == expected
