"""nsqadmin with an OpenID Connect provider: the log-in from the first page to the session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("authlib")

from nsqcy.testing.http_requests import Answer
from nsqcy.users.hashes import hash_token
from support.fake_http_daemon import Upstream
from support.fake_oidc_provider import Provider
from support.nsqadmin_process import Admin
from support.strict_html import read

REDIRECT = "http://127.0.0.1/login/callback"  # the tests follow this redirect themselves


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.close()


@pytest.fixture(scope="module")
def admin(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("oidc")
    users, secret = folder / "users.ini", folder / "secret"
    users.write_text(f"[user bot]\nrole = view\ntoken = {hash_token('of the bot')}\n")
    secret.write_text("s3cret\n")
    for each in (users, secret):
        each.chmod(0o600)
    with (
        Upstream(topics={"topics": []}, nodes={"producers": []}) as lookupd,
        Admin(
            lookupd_http_address=[lookupd.address],
            auth_file=users,
            oidc_issuer=provider.issuer,
            oidc_client_id="nsqadmin",
            oidc_client_secret_file=secret,
            oidc_redirect_url=REDIRECT,
            oidc_operate_value=["admins"],
            oidc_view_value=["viewers"],
        ) as found,
    ):
        yield found


def begin(admin: Admin) -> tuple[str, str]:
    """Return the provider's URL and the cookie with the state."""
    page = admin.web.get("/login?next=/nodes")
    (link,) = [
        each
        for each in read(page.body).all("a")
        if each.attributes["href"].startswith("/login/oidc")
    ]
    answer = admin.web.get(link.attributes["href"])
    assert answer.status == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie and "Path=/login" in cookie
    return answer.headers["location"], cookie.partition(";")[0]


def come_back(admin: Admin, provider: Provider, roles: str) -> Answer:
    provider.claims = {"email": "anna@example.com", "roles": [roles]}
    url, cookie = begin(admin)
    code, state = provider.authorize(url)
    path = f"/login/callback?code={code}&state={state}"
    return admin.web.get(path, headers={"Cookie": cookie})


@pytest.mark.parametrize(("roles", "status"), [("admins", 200), ("viewers", 403)])
def test_a_log_in(admin: Admin, provider: Provider, roles: str, status: int) -> None:
    answer = come_back(admin, provider, roles)
    assert answer.status == 200
    assert answer.headers["refresh"] == "0; url=/nodes"
    cookies = answer.headers["set-cookie"]
    session = cookies[cookies.index("nsqadmin_session=") :].partition(";")[0]
    assert "SameSite=Strict" in cookies
    page = admin.web.get("/nodes", headers={"Cookie": session})
    assert page.status == 200 and b"Log out anna@example.com" in page.body
    assert admin.web.get("/audit", headers={"Cookie": session}).status == status


def test_refusals(admin: Admin, provider: Provider) -> None:
    answer = come_back(admin, provider, "staff")
    assert answer.status == 403
    assert "The log-in failed" in read(answer.body).one("div", role="alert").text
    assert "set-cookie" not in answer.headers
    url, _ = begin(admin)
    code, state = provider.authorize(url)
    stolen = admin.web.get(f"/login/callback?code={code}&state={state}")
    assert stolen.status == 403 and "set-cookie" not in stolen.headers


def test_missing_options(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match="--oidc-issuer needs --auth-file"),
        Admin(oidc_issuer="http://127.0.0.1:1", nsqd_http_address=["127.0.0.1:1"]),
    ):
        pass
