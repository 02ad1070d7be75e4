"""Auth servers with TLS: which ones are trusted, and servers that require TLS."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.nsqd.auth.authorizations import AuthFailure
from nsqcy.nsqd.auth.client import Question, Servers
from nsqcy.testing import certificates
from support.fake_auth_server import AuthServer, Reply

SECOND = 1_000_000_000
SECRET = "sesame"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with ca.pem and the certificates that it signed for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = certificates.make("ca", authority=True)
    authority.save(folder)
    certificates.make("server", by=authority).save(folder)
    certificates.make("late", by=authority, expired=True).save(folder)
    certificates.make("other", authority=True).save(folder)
    return folder


@pytest.fixture
def serve(folder: Path) -> Iterator[Callable[..., AuthServer]]:
    servers: list[AuthServer] = []

    def serve(
        name: str = "server", newest: ssl.TLSVersion | None = None, **other: Any
    ) -> AuthServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        if newest is not None:
            context.maximum_version = newest
        servers.append(AuthServer(tls=context, **other))
        return servers[-1]

    yield serve
    for server in servers:
        server.close()


def settings(address: str, root: str, **other: Any) -> Any:
    values = {
        "auth_http_address": (address,),
        "auth_http_request_method": "get",
        "http_client_connect_timeout": 2 * SECOND,
        "http_client_request_timeout": 5 * SECOND,
        "tls_root_ca_file": root,
        "tls_min_version": 769,
    }
    return SimpleNamespace(**(values | other))


@pytest.fixture
def ask(folder: Path) -> Callable[..., str]:
    """Send a query; return the identity in the answer, or the error."""

    def ask(address: str, root: str = "ca", **other: Any) -> str:
        options = settings(address, root and str(folder / f"{root}.pem"), **other)
        try:
            return Servers(options).query(Question(SECRET.encode(), "", False, "")).identity
        except AuthFailure as failure:
            assert SECRET not in str(failure)
            return str(failure)

    return ask


def test_a_certificate_of_the_authority(serve: Any, ask: Any) -> None:
    server = serve()
    assert ask(f"https://{server.address}/auth") == "me"
    assert server.requests[0].headers["host"] == server.address


@pytest.mark.parametrize(
    ("name", "root"), [("server", "other"), ("server", ""), ("late", "ca"), ("other", "ca")]
)
def test_certificates_not_to_be_trusted(name: str, root: str, serve: Any, ask: Any) -> None:
    server = serve(name)
    assert "certificate" in ask(f"https://{server.address}/auth", root)
    assert server.requests == []


def test_a_certificate_for_another_name(serve: Any, ask: Any) -> None:
    assert ask(f"https://localhost:{serve().port}/") == "me"
    other = serve(host="127.0.0.2")
    assert "certificate" in ask(f"https://{other.address}/")
    assert other.requests == []


def test_the_oldest_version(serve: Any, ask: Any) -> None:
    server = serve(newest=ssl.TLSVersion.TLSv1_2)
    address = f"https://{server.address}/"
    assert ask(address, tls_min_version=771) == "me"
    assert ask(address, tls_min_version=772).startswith(f"{address}: ")
    assert len(server.requests) == 1


def test_an_authority_that_cannot_be_read(serve: Any, ask: Any) -> None:
    assert "missing.pem: No such file" in ask(f"https://{serve().address}/", "missing")


def test_the_authority_may_be_replaced(serve: Any, folder: Path, tmp_path: Path) -> None:
    server = serve()
    root = tmp_path / "root.pem"
    servers = Servers(settings(f"https://{server.address}/", str(root)))
    question = Question(SECRET.encode(), "", False, "")
    for name in ("other", "ca"):
        root.write_bytes((folder / f"{name}.pem").read_bytes())
        if name == "ca":
            assert servers.query(question).identity == "me"
        else:
            with pytest.raises(AuthFailure, match="certificate"):
                servers.query(question)


def test_time_is_limited(serve: Any, ask: Any) -> None:
    server = serve()
    quick = {"http_client_request_timeout": SECOND // 2}
    server.replies[SECRET] = Reply(trickle=0.05)
    assert ask(f"https://{server.address}/", **quick).endswith("timed out")
    with server.silent(SECRET):
        assert ask(f"https://{server.address}/", **quick).endswith("timed out")


def test_no_tls_there(serve: Any, ask: Any) -> None:
    plain = AuthServer()
    assert ask(f"https://{plain.address}/").startswith(f"https://{plain.address}/: ")
    assert plain.requests == []
    plain.close()


def required(port: int) -> Reply:
    """Return the response from an HTTP server that requires TLS."""
    return Reply(f'{{"message": "TLS_REQUIRED", "https_port": {port}}}'.encode(), status=403)


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_server_that_requires_tls_is_asked_again(method: str, serve: Any, ask: Any) -> None:
    plain, tls = AuthServer(), serve()
    plain.replies[SECRET] = required(tls.port)
    found = ask(f"http://u:p@{plain.address}/a?b=c", auth_http_request_method=method)
    assert found == "me"
    (first,), (second,) = plain.requests, tls.requests
    assert (first.method, first.path, first.body) == (second.method, second.path, second.body)
    assert second.headers["host"] == tls.address
    assert second.headers["authorization"] == first.headers["authorization"]
    plain.close()


def test_once(serve: Any, ask: Any) -> None:
    plain, tls = AuthServer(), serve()
    plain.replies[SECRET] = tls.replies[SECRET] = required(tls.port)
    assert ask(plain.address).endswith("status 403")
    assert (len(plain.requests), len(tls.requests)) == (1, 1)
    plain.close()
