"""The commands of docs/runbooks/tls-rotation.md, run while clients with certificates are
connected."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.client import ConnectionFailed, Producer
from nsqcy.testing.certificates import Files, Identity, make
from nsqcy.testing.http_requests import eventually
from support.simulated_host import Host, blocks

pytestmark = pytest.mark.ours

TLS = "etc/nsqcy/tls"


@pytest.fixture
def old() -> Identity:
    return make("old-ca", authority=True)


@pytest.fixture
def host(tmp_path: Path, old: Identity) -> Iterator[Host]:
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    folder = tmp_path / TLS
    files = Files(folder / "nsqd.pem", folder / "nsqd.key")
    flags = [f"--{name.replace('_', '-')}={path}" for name, path in files.options.items()]
    flags += [f"--tls-root-ca-file={folder}/ca.pem", "--tls-client-auth-policy=require-verify"]
    flags += ["--tls-required=tcp-https"]
    host = Host(tmp_path, 2, *flags)
    folder.mkdir()
    (folder / "ca.pem").write_text(old.certificate)
    make("first", by=old).save(folder)
    (folder / "first.pem").rename(files.certificate)
    (folder / "first.key").rename(files.key)
    try:
        host.type("systemctl start nsqd")
        yield host
    finally:
        host.end()


def client(host: Host, by: Identity, *believed: Identity) -> Producer:
    """Return a producer with a certificate from the authority `by`. The producer trusts the
    authorities `believed`."""
    folder = host.path / f"client-{by.name}"
    folder.mkdir(exist_ok=True)
    shown = make(f"of-{by.name}", by=by).save(folder)
    authorities = folder / "believed.pem"
    authorities.write_text("".join(each.certificate for each in believed))
    return Producer(
        f"127.0.0.1:{host.tcp_port}",
        tls_v1=True,
        tls_options={
            "ca_certs": str(authorities),
            "certfile": str(shown.certificate),
            "keyfile": str(shown.key),
        },
        retries=0,
    )


def takes(host: Host, by: Identity, *believed: Identity) -> bool:
    """Return whether the nsqd and a `client` with these authorities accept each other."""
    with client(host, by, *believed) as producer:
        try:
            return producer.publish("t", b"x") == b"OK"
        except ConnectionFailed:
            return False


def put_in_place(host: Host, name: str, by: Identity, act: str, verify: str) -> None:
    make(name, by=by).save(host.path / TLS)
    for suffix in ("pem", "key"):
        (host.path / TLS / f"{name}.{suffix}").rename(host.path / TLS / f"new.{suffix}")
    host.type(act)
    assert "reloaded the certificate files" in host.type(verify)


def test_new_certificates(host: Host, old: Identity) -> None:
    check, renew, verify, believe_both, believe_new, refused = blocks("tls-rotation")
    new = make("new-ca", authority=True)
    shown = host.type(check)
    assert shown.count("subject=CN = first") == shown.count("issuer=CN = old-ca") == 2, shown
    connected = client(host, old, old)
    connected.publish("t", b"x")

    put_in_place(host, "second", old, renew, verify)
    assert host.type(check).count("subject=CN = second") == 2
    assert takes(host, old, old)
    assert not takes(host, new, old, new)

    (host.path / TLS / "new-ca.pem").write_text(new.certificate)
    host.type(believe_both)
    put_in_place(host, "third", new, renew, verify)
    assert takes(host, old, old, new) and takes(host, new, new)
    assert not takes(host, old, old)  # a client that was not updated in the first step

    host.type(believe_new)
    eventually(lambda: not takes(host, old, old, new))
    assert "failed tls: certificate verify failed" in host.type(refused)
    assert takes(host, new, new)
    assert connected.publish("t", b"x") == b"OK"
    connected.close()
