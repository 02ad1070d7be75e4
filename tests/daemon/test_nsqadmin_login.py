"""nsqadmin with a users file: the log-in, the permissions of each role, and the headers for
browsers."""

import base64
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import pytest

from nsqcy.testing.http_requests import Answer, eventually
from nsqcy.users.failures import MAX_FAILURES
from nsqcy.users.hashes import hash_password, hash_token
from support.fake_http_daemon import Upstream
from support.fake_http_destination import Destination
from support.metrics_scraper import scrape
from support.nsqadmin_process import Admin, done, refused
from support.strict_html import read

ANNA, BEN, BOT = "anna's password", "ben's password", "token-of-the-bot"
LOOKER = "token-of-prometheus"
CHEAP = 10  # hash cost that takes almost no time
PAGE = {"Accept": "text/html,*/*"}


def section(name: str, role: str, secret: str) -> str:
    return f"[user {name}]\nrole = {role}\n{secret}\n"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with Upstream(topics={"topics": ["t"]}, channels={"channels": []}) as upstream:
        node = upstream.producer() | {"topics": ["t"], "tombstones": [False]}
        upstream.pages |= {"/lookup": {"producers": [node]}, "/nodes": {"producers": [node]}}
        upstream.pages["/stats"] = {"topics": [{"topic_name": "t", "channels": []}]}
        upstream.pages["/topic/pause"] = {}
        yield upstream


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Destination]:
    endpoint = Destination()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.ini"
    path.write_text(
        section("anna", "operate", f"password = {hash_password(ANNA, CHEAP)}")
        + section("ben", "view", f"password = {hash_password(BEN, CHEAP)}")
        + section("bot", "operate", f"token = {hash_token(BOT)}")
        + section("prometheus", "view", f"token = {hash_token(LOOKER)}")
    )
    path.chmod(0o644)
    return path


@pytest.fixture(scope="module")
def admin(upstream: Upstream, endpoint: Destination, file: Path) -> Iterator[Admin]:
    with Admin(
        lookupd_http_address=upstream.address,
        base_path="/b",
        auth_file=file,
        notification_http_endpoint=endpoint.url(),
    ) as admin:
        yield admin
        log = admin.log_text()
        assert not [each for each in (ANNA, BEN, BOT) if each in log or quote(each) in log]
        assert "Traceback" not in log


def enter(admin: Admin, user: str, password: str, **more: str) -> Answer:
    """Submit the log-in page as a browser does."""
    fields = {"user": user, "password": password} | {"next": more.pop("next", "")}
    headers = {
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://127.0.0.1:{admin.http_port}",
        "X-Forwarded-For": "10.0.0.1",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    return admin.web.request("POST", "/b/login", urlencode(fields).encode(), headers=headers)


def cookie(answer: Answer) -> str:
    assert answer.status == 303, answer
    return answer.headers["set-cookie"].partition(";")[0]


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def pause(admin: Admin, headers: dict[str, str]) -> Answer:
    return admin.web.request("POST", "/b/api/topics/t", b'{"action": "pause"}', headers=headers)


def press_pause(admin: Admin, headers: dict[str, str]) -> Answer:
    form = {"Content-Type": "application/x-www-form-urlencoded"} | headers
    return admin.web.request("POST", "/b/topics/t", b"action=pause", headers=PAGE | form)


def notified(endpoint: Destination) -> list[dict[str, str]]:
    return [json.loads(each) for each in endpoint.bodies()]


def test_nobody_sees_anything(admin: Admin) -> None:
    for path in ("/api/topics", "/api/topics/t", "/config/base_path", "/api/counter"):
        answer = admin.web.get(f"/b{path}")
        refused(answer, 401, "UNAUTHORIZED")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("", "/topics/t", "/nodes", "/lookup?x=1"):
        answer = admin.web.request("GET", f"/b{path}", headers=PAGE)
        assert (answer.status, answer.body) == (303, b"")
        there = urlsplit(answer.headers["location"])
        assert (there.path, parse_qs(there.query)) == ("/b/login", {"next": [f"/b{path}"]})
        assert admin.web.get(f"/b{path}").status == 401  # a script is not redirected
    unknown = admin.web.request("GET", "/b/nope", headers=PAGE)
    assert (unknown.status, unknown.headers["location"]) == (303, "/b/login?next=%2Fb%2Fnope")
    refused(pause(admin, {}), 401, "UNAUTHORIZED")
    answer = press_pause(admin, {})
    assert (answer.status, answer.headers["location"]) == (303, "/b/login")


def test_metrics_are_for_those_who_may_look(admin: Admin) -> None:
    """A program sends a token. A logged-in browser can read the metrics as well."""
    answer = admin.web.get("/b/metrics")
    assert (answer.status, answer.body) == (401, b"UNAUTHORIZED")
    before = scrape(admin.web, "/b/metrics", token=LOOKER).value("nsqadmin_sessions")
    mine = cookie(enter(admin, "ben", BEN))
    assert scrape(admin.web, "/b/metrics", token=LOOKER).value("nsqadmin_sessions") == before + 1
    answer = admin.web.request("GET", "/b/metrics", headers={"Cookie": mine})
    assert answer.status == 200


def test_some_things_are_open(admin: Admin) -> None:
    assert admin.web.get("/b/ping").body == b"OK"
    assert admin.web.get("/b/static/nsqadmin.css").status == 200
    answer = admin.web.request("GET", "/b/login?next=%2Fb%2Fnodes", headers=PAGE)
    form = read(answer.body).one("form")
    assert answer.status == 200 and answer.headers["cache-control"] == "no-store"
    assert (form.attributes["method"], form.attributes["action"]) == ("post", "/b/login")
    assert form.one("input", name="password").attributes["type"] == "password"
    assert form.one("input", name="next").attributes["value"] == "/b/nodes"


def test_a_browser_logs_in_and_out(admin: Admin) -> None:
    answer = enter(admin, "anna", ANNA, next="/b/topics/t")
    assert answer.headers["location"] == "/b/topics/t"
    name, *flags = answer.headers["set-cookie"].split("; ")
    assert sorted(flags) == ["HttpOnly", "Path=/b", "SameSite=Strict"]
    mine = {"Cookie": name}
    page = read(admin.web.request("GET", "/b/topics/t", headers=PAGE | mine).body)
    assert page.one("form", action="/b/logout").text == "Log out anna"
    assert len(page.all("form")) > 1  # action forms
    assert press_pause(admin, mine).headers["location"] == "/b/topics/t"
    assert admin.web.request("GET", "/b/login", headers=mine).headers["location"] == "/b"

    out = admin.web.request("POST", "/b/logout", b"", headers=mine)
    assert (out.status, out.headers["location"]) == (303, "/b/login")
    assert "nsqadmin_session=;" in out.headers["set-cookie"]
    assert out.headers["set-cookie"].endswith("Max-Age=0")
    assert admin.web.request("GET", "/b/api/topics", headers=mine).status == 401


@pytest.mark.parametrize("header", ["X_Forwarded_Proto", "X_Scheme"])
def test_behind_https_the_cookie_stays_there(admin: Admin, header: str) -> None:
    assert "; Secure" in enter(admin, "anna", ANNA, **{header: "https"}).headers["set-cookie"]


@pytest.mark.parametrize(
    "there", ["//evil.com", "http://evil.com", "/\\evil.com", "/other", "/b\r\nA: b"]
)
def test_it_leads_nowhere_else(admin: Admin, there: str) -> None:
    assert enter(admin, "anna", ANNA, next=there).headers["location"] == "/b"
    page = admin.web.get("/b/login", next=there)
    assert b"evil" not in page.body and not read(page.body).all("input", name="next")


def test_who_views_does_nothing(admin: Admin, upstream: Upstream) -> None:
    session = {"Cookie": cookie(enter(admin, "ben", BEN))}
    for mine in (session, basic("ben", BEN)):
        assert admin.web.request("GET", "/b/api/topics", headers=mine).json()["topics"] == ["t"]
        upstream.asked.clear()
        refused(pause(admin, mine), 403, "FORBIDDEN")
        assert press_pause(admin, mine).status == 403
        level = admin.web.request("PUT", "/b/config/log_level", b"debug", headers=mine)
        refused(level, 403, "FORBIDDEN")
        delete = admin.web.request("DELETE", "/b/api/topics/t", headers=mine)
        refused(delete, 403, "FORBIDDEN")
        assert upstream.asked == []
    for path in ("/topics/t", "/lookup", "/nodes"):
        page = read(admin.web.request("GET", f"/b{path}", headers=PAGE | session).body)
        assert [each.attributes["action"] for each in page.all("form", method="post")] == [
            "/b/logout"
        ]


def test_programs_and_what_is_told_of_them(admin: Admin, endpoint: Destination) -> None:
    for mine, name in (({"Authorization": f"Bearer {BOT}"}, "bot"), (basic("anna", ANNA), "anna")):
        done(pause(admin, mine))
        told = {"action": "pause_topic", "user": name}
        eventually(
            lambda told=told: any(told.items() <= each.items() for each in notified(endpoint))
        )


def test_what_is_wrong(admin: Admin) -> None:
    far = {"X-Forwarded-For": "10.9.9.9"}
    for mine in (basic("anna", BEN), basic("nobody", ANNA), {"Authorization": "Bearer x"}):
        refused(admin.web.request("GET", "/b/api/topics", headers=mine | far), 401, "UNAUTHORIZED")
        page = admin.web.request("GET", "/b/nodes", headers=PAGE | mine | far)
        assert page.status == 401 and b"UNAUTHORIZED" in page.body
    answer = enter(admin, "anna", "wrong", X_Forwarded_For="10.9.9.8", next="/b/nodes")
    page = read(answer.body)
    assert answer.status == 401 and "set-cookie" not in answer.headers
    assert "Wrong name or password" in page.one("div", role="alert").text
    assert page.one("input", name="next").attributes["value"] == "/b/nodes"
    eventually(lambda: "log-in as anna failed, from 10.9.9.8" in admin.log_text())


def test_pages_of_other_sites_cannot_log_a_user_in_or_out(admin: Admin) -> None:
    assert enter(admin, "anna", ANNA, Origin="http://evil.com").status == 403
    mine = {"Cookie": cookie(enter(admin, "anna", ANNA))}
    for other in ({"Origin": "http://evil.com"}, {"Sec-Fetch-Site": "cross-site"}):
        assert admin.web.request("POST", "/b/logout", b"", headers=mine | other).status == 403
        assert press_pause(admin, mine | other).status == 403
    assert admin.web.request("GET", "/b/api/topics", headers=mine).status == 200


def test_too_many_failures(admin: Admin) -> None:
    far = {"X_Forwarded_For": "10.1.1.1"}
    # Failures expire over time, but these arrive faster.
    statuses = [enter(admin, "anna", "wrong", **far).status for _ in range(MAX_FAILURES)]
    assert set(statuses) == {401}
    eventually(lambda: enter(admin, "anna", "wrong", **far).status == 429)
    answer = enter(admin, "anna", ANNA, **far)
    assert answer.status == 429 and int(answer.headers["retry-after"]) > 0
    assert "Too many" in read(answer.body).one("div", role="alert").text


def test_the_file_is_read_again(admin: Admin, file: Path) -> None:
    before = file.read_text()
    mine = {"Cookie": cookie(enter(admin, "ben", BEN))}
    file.write_text(before.replace("role = view", "role = operate"))
    admin.process.send_signal(signal.SIGHUP)
    eventually(lambda: "SIGHUP: 4 users" in admin.log_text())
    done(pause(admin, mine))
    file.write_text("[user ben]\nrole = king\n")
    admin.process.send_signal(signal.SIGHUP)
    eventually(lambda: 'line 2: user ben has an unknown role "king"' in admin.log_text())
    done(pause(admin, mine))
    file.write_text(before)
    admin.process.send_signal(signal.SIGHUP)
    eventually(lambda: pause(admin, mine).status == 403)
    assert f"{file} has mode 0644" in admin.log_text()


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("[user a]\nrole = view\npassword = s3cret\n", {}, "line 3: the password of user a is not"),
        (None, {}, "no such file"),
        ("", {"admin_user": "me"}, "use --auth-file or --admin-user not both"),
        ("", {"auth_session_time": "5s"}, "--auth-session-time must be >= 1m"),
    ],
)
def test_it_does_not_start(
    tmp_path: Path, text: str | None, more: dict[str, str], says: str
) -> None:
    path = tmp_path / "users.ini"
    if text is not None:
        path.write_text(text)
    admin = Admin(lookupd_http_address="127.0.0.1:1", auth_file=path, **more)
    admin.launch()
    assert admin.wait() == 1
    assert says in admin.log_text() and "s3cret" not in admin.log_text()
