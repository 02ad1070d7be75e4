"""Settings for copies: the checks at startup, and the settings that the workers receive."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from OpenSSL import SSL

from nsqcy.config import loader
from nsqcy.errors import StartError, Stop
from nsqcy.formats import FormatError
from nsqcy.nsqd.copies.node import machine_id
from nsqcy.nsqd.copies.settings import etcd, prepare, settings
from nsqcy.nsqd.options import NSQD, NsqdOptions, policies, resolve
from nsqcy.storage import state_file
from nsqcy.testing import certificates
from nsqcy.testing.encoded_connection import saved
from support.gevent_hub import Lines


def options(tmp_path: Path, *flags: str) -> NsqdOptions:
    words = [f"--data-path={tmp_path}", "--etcd-endpoints=127.0.0.1:2379", "--workers=3", *flags]
    return resolve(loader.load(NSQD, words))


def test_each_worker_has_its_own_port(tmp_path: Path) -> None:
    found = options(tmp_path, "--copies-address=127.0.0.1:5000", "--broadcast-address=me")
    secrets = prepare(found, Lines())
    for worker in range(3):
        of_worker = settings(found, secrets, worker)
        assert of_worker.listen == ("127.0.0.1", 5000 + worker)
        assert of_worker.advertise == "me"
    any_port = settings(options(tmp_path, "--copies-address=127.0.0.1:0"), secrets, 2)
    assert any_port.listen == ("127.0.0.1", 0)


def test_secrets_are_read_once(tmp_path: Path) -> None:
    secret, password = tmp_path / "secret", tmp_path / "password"
    secret.write_text("s3cret\n")
    password.write_text("passw0rd\n")
    found = options(
        tmp_path,
        f"--copies-secret-file={secret}",
        f"--etcd-password-file={password}",
        "--etcd-user=nsqd",
    )
    secrets = prepare(found, Lines())
    secret.unlink()
    password.unlink()
    assert settings(found, secrets, 0).token == "s3cret"
    assert secrets["password"] == "passw0rd"
    assert "passw0rd" not in repr(etcd(found, secrets))


def test_the_id_of_the_machine_stays(tmp_path: Path) -> None:
    first = prepare(options(tmp_path), Lines())["machine"]
    assert prepare(options(tmp_path), Lines())["machine"] == first
    root = tmp_path / "copies"
    lines = Lines()
    for bad in ("{", None):
        file = root / "machine.json"
        file.write_text(bad) if bad else file.unlink()
        assert machine_id(root, lines) == first
        assert machine_id(root, Lines()) == first
    assert [line.split(";")[1] for line in lines.all] == [
        f" nsqd uses {root}/previous/machine.json, the previous version"
    ] * 2
    for name in ("machine.json", "previous/machine.json"):
        (root / name).write_text("{")
    with pytest.raises(StartError, match="is damaged"):
        machine_id(root, lines)


@pytest.mark.parametrize(
    ("name", "fields", "text"),
    [
        ("machine.json", {"id": "m"}, "machine"),
        ("node.0.json", {"processes": []}, "node"),
        ("0/0f1e2d3c4b5a6978/copy.json", {"whole": True}, "copy"),
        ("0/0f1e2d3c4b5a6978/files.list", {}, "file list"),
    ],
)
def test_a_newer_file_ends_the_start(
    tmp_path: Path, name: str, fields: dict[str, Any], text: str
) -> None:
    path = tmp_path / "copies" / name
    path.parent.mkdir(parents=True)
    content = state_file.signed(json.dumps(fields | {"format": 2}).encode()) + b"\n"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        prepare(options(tmp_path), Lines())
    refusal = f"{path}: {text} format version 2 is newer than this nsqcy supports (1): run"
    assert str(caught.value).startswith(refusal)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("--etcd-endpoints=ftp://x", "expected http://host:port"),
        ("--copies-address=/run/x", "expected host:port"),
        ("--copies-address=127.0.0.1:http", "expected host:port"),
        ("--copies-address=:65535", "worker 2 would listen on port 65537"),
        ("--copies-secret-file=/nowhere", "open /nowhere: no such file or directory"),
        ("--copies-tls-cert=/nowhere", "must be set together"),
    ],
)
def test_a_mistake_ends_the_start(tmp_path: Path, flag: str, text: str) -> None:
    with pytest.raises(Stop, match=text):
        prepare(options(tmp_path, flag), Lines())


def test_nodes_verify_each_other(tmp_path: Path) -> None:
    files = saved(tmp_path, certificates.make("node"))
    found = options(
        tmp_path,
        f"--copies-tls-cert={files.certificate}",
        f"--copies-tls-key={files.key}",
        f"--copies-tls-root-ca-file={files.certificate}",
    )
    of_worker: Any = settings(found, prepare(found, Lines()), 0)
    assert of_worker.client_tls.verify_mode.name == "CERT_REQUIRED"
    demanded = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT
    assert of_worker.server_tls.get_verify_mode() == demanded


@pytest.mark.parametrize("has_etcd", [True, False])
def test_copies_need_etcd(tmp_path: Path, has_etcd: bool) -> None:
    file = tmp_path / "nsqd.ini"
    etcd = "etcd_endpoints = http://127.0.0.1:2379\n" if has_etcd else ""
    file.write_text(f"[nsqd]\n{etcd}[topic orders]\ncopies = 3\n")
    words = [f"--config={file}"]
    if has_etcd:
        loaded = loader.load(NSQD, words)
        policy = policies(loaded, resolve(loaded)).topic("orders")
        assert (policy.copies, policy.min_copies, policy.durability) == (3, 2, "os")
    else:
        with pytest.raises(Stop, match="--etcd-endpoints is not set"):
            resolve(loader.load(NSQD, words))


def test_nothing_of_copies_is_imported_without_etcd() -> None:
    code = (
        "import sys, nsqcy.nsqd.main, nsqcy.nsqd.master.master, nsqcy.nsqd.worker.engine\n"
        "print([name for name in sys.modules if name.startswith(PACKAGES)])\n"
    ).replace("PACKAGES", "('nsqcy.copies', 'nsqcy.etcd', 'nsqcy.nsqd.copies')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
