"""Log-in with OpenID Connect, against a provider in this process."""

import gzip
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("authlib")

from joserfc.jwk import ECKey

from nsqcy.nsqadmin.auth.oidc import MAX_AGE, Provider, Settings
from nsqcy.nsqadmin.auth.provider import Refused
from support import fake_oidc_provider
from support.fake_auth_server import AuthServer, Reply


@pytest.fixture
def fake() -> Iterator[fake_oidc_provider.Provider]:
    found = fake_oidc_provider.Provider()
    found.claims = {"email": "anna@example.com", "roles": ["staff", "nsq-admins"]}
    yield found
    found.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(fake: fake_oidc_provider.Provider, clock: Clock | None = None) -> Provider:
    redirect = "http://127.0.0.1:4171/login/callback"
    names = ("nsqadmin", "s3cret", redirect, "email", "roles", ("nsq-admins",), ("nsq-viewers",))
    return Provider(Settings(fake.issuer, *names), clock or Clock(), time.time)


def test_a_user_logs_in(fake: fake_oidc_provider.Provider) -> None:
    ours = client(fake)
    url, state = ours.begin("/topics")
    code, returned = fake.authorize(url)
    assert returned == state
    user, there = ours.finish(state, state, code)
    assert (user.name, user.role, there) == ("anna@example.com", "operate", "/topics")
    with pytest.raises(Refused, match="unknown"):  # an attempt can be used once
        ours.finish(state, state, code)


@pytest.mark.parametrize(
    ("roles", "role"), [("nsq-viewers", "view"), (["nsq-viewers", "nsq-admins"], "operate")]
)
def test_roles(fake: fake_oidc_provider.Provider, roles: Any, role: str) -> None:
    fake.claims["roles"] = roles
    assert log_in(fake).role == role


@pytest.mark.parametrize(
    "claims",
    [
        {"roles": ["staff"]},
        {"roles": None},
        {"email": None},
        {"nonce": "other"},
        {"aud": "other"},
        {"azp": "other"},
        {"iss": "http://other"},
        {"exp": 1},
    ],
)
def test_claims_that_are_refused(fake: fake_oidc_provider.Provider, claims: dict[str, Any]) -> None:
    fake.claims |= claims
    with pytest.raises(Refused):
        log_in(fake)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(b"", 302, {"Location": "/elsewhere"}), "redirects are not followed"),
        (Reply(b"[" + b"1," * 1_000_000), "more than 1048576 bytes"),
        (Reply(gzip.compress(b"x" * 100), headers={"Content-Encoding": "gzip"}), "Expecting|codec"),
        (Reply(b"[]"), "not a JSON object"),
        (Reply(b"[" * 100_000), "recursion|nested"),
    ],
)
def test_answers_of_a_false_provider(reply: Reply, why: str) -> None:
    server = AuthServer()
    server.default = reply
    names = ("nsqadmin", "s3cret", "http://127.0.0.1/", "email", "roles", ("a",), ("b",))
    ours = Provider(Settings(f"http://{server.address}", *names), Clock(), time.time)
    try:
        with pytest.raises(Refused, match=why):
            ours.begin("/")
        (asked,) = server.requests
        assert asked.headers["accept-encoding"] == "identity"
    finally:
        server.close()


def test_a_foreign_signature_is_refused(fake: fake_oidc_provider.Provider) -> None:
    fake.key = ECKey.generate_key("P-256", {"kid": "k"})
    with pytest.raises(Refused, match="BadSignature"):
        log_in(fake)


def test_an_attempt_belongs_to_one_browser(fake: fake_oidc_provider.Provider) -> None:
    ours = client(fake)
    url, state = ours.begin("")
    code, _ = fake.authorize(url)
    for kept in ("", "other", "\udcff"):
        with pytest.raises(Refused, match="another browser"):
            ours.finish(state, kept, code)
    _, other = ours.begin("")
    with pytest.raises(Refused, match="invalid_grant"):  # the code belongs to another verifier
        ours.finish(other, other, code)


def test_attempts_end(fake: fake_oidc_provider.Provider) -> None:
    clock = Clock()
    ours = client(fake, clock)
    _, state = ours.begin("")
    clock.now = MAX_AGE + 1
    with pytest.raises(Refused, match="too old"):
        ours.finish(state, state, "code")


def log_in(fake: fake_oidc_provider.Provider) -> Any:
    ours = client(fake)
    url, state = ours.begin("")
    code, _ = fake.authorize(url)
    return ours.finish(state, state, code)[0]
