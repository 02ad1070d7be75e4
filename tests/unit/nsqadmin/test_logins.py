"""Users of nsqadmin: their file, their sessions, and the rejection of other requests."""

import base64
import hmac
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.cli.main import main as nsqcy
from nsqcy.errors import ConfigError, HttpError
from nsqcy.http.parser import Body, Head
from nsqcy.http.router import Request
from nsqcy.nsqadmin.auth import access, logins
from nsqcy.nsqadmin.auth.logins import COOKIE, Logins, Sessions, address_of
from nsqcy.users import failures, hashes
from nsqcy.users.failures import MAX_FAILURES, RECOVERY, Failures
from nsqcy.users.file import parse
from nsqcy.users.hashes import Password, hash_password, hash_token
from nsqcy.users.user import PERMISSIONS, ROLES, User

SECRET, TOKEN = "correct horse", "token-of-a-program"


CHEAP = 10  # hash cost that takes almost no time


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "NOBODY", logins.NOBODY._replace(log_cost=CHEAP))


@pytest.fixture(scope="module")
def password() -> Password:
    return hash_password(SECRET, CHEAP)


class Now:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Lines:
    """Log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, /, **fields: object) -> None:
        self.lines.append(text)

    warn = error = info


# -- the file


def test_ini_and_toml_say_the_same(password: Password) -> None:
    token = hash_token(TOKEN)
    ini = f"# who\n\n[user anna]\nrole = operate\npassword = {password}\n[user bot]\nrole=view\n"
    toml = f'[user.anna]\nrole = "operate"\npassword = "{password}"\n[user.bot]\nrole="view"\n'
    found = parse("f", f'{ini}token = "{token}"\n')
    assert found == parse("f", f'{toml}token = "{token}"\n')
    assert found == {
        "anna": User("anna", "operate", password=password),
        "bot": User("bot", "view", token=token),
    }
    assert found["anna"].may_operate and not found["bot"].may_operate


GOOD = f"token = {hash_token(TOKEN)}"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", None, "no users in this file"),
        (
            f"[user a]\nrole = admin\n{GOOD}",
            2,
            'user a has an unknown role "admin" (allowed: view or op',
        ),
        (f"[user a]\n{GOOD}", 1, "user a has neither a role nor permissions"),
        ("[user a]\nrole = view", 1, "user a has no password, token or certificate"),
        (f"[user a]\n{GOOD}\npublish = a b", 3, 'publish: "a b" is not a valid pattern'),
        (f"[user a]\n{GOOD}\npublish = a/b", 3, 'publish: "a/b" is not a valid pattern'),
        (f"[user a]\n{GOOD}\nadmin =", 3, 'admin: "" is not a valid pattern'),
        (f"[user a]\n{GOOD}\nsubscribe = a/b/c", 3, 'subscribe: "a/b/c" is not a valid pattern'),
        (f"[user a]\n{GOOD}\npublish = {'a,' * 100}a", 3, "has 101 patterns (allowed: at most 100"),
        (f"[user a]\n{GOOD}\ncertificate = a\tb", 3, "is not a valid certificate name"),
        (f"[user a]\n{GOOD}\npublish_rate = fast", 3, "publish_rate of user a is not a number"),
        (f"[user a]\n{GOOD}\nmax_connections = -1", 3, "max_connections of user a is -1 (allowed"),
        (f"[user a]\n{GOOD}\npublish_bytes_rate = 1.5", 3, "publish_bytes_rate of user a is not a"),
        (
            f"[user a]\n{GOOD}\npublish=*\n[user b]\n{GOOD}\nrole=view",
            5,
            "user b has the same token as user a",
        ),
        (
            "[user a]\ncertificate = x\npublish=*\n[user b]\ncertificate = x\nadmin=*",
            5,
            "user b has the same certificate as user a",
        ),
        (
            "[user a]\nrole = view\npassword = s3cret",
            3,
            "the password of user a is not a valid hash",
        ),
        (
            "[user a]\nrole = view\ntoken = s3cret",
            3,
            "the token of user a is not a valid hash",
        ),
        (f"[user a]\nrole = view\nrole = view\n{GOOD}", 3, "role is already set at line 2"),
        (
            "[user a]\npasswort = s3cret",
            2,
            'unknown key "passwort"; did you mean password? (allowed: admin',
        ),
        ("[user a]\ns3cret", 2, "not a user setting"),
        ("[user a b]\n", 1, '"a b" is not a valid user name'),
        (f"[user a]\nrole = view\n{GOOD}\n[users]", 4, "not a user section"),
        (f"[user a]\nrole = view\n{GOOD}\n[user a]\n", 4, "user a is already defined at line 1"),
        ("[user.a]\nrole = 5", 2, "role of user a is not a string"),
        ('[user.a]\nrole = "view"\npassword = "s3cret"', 3, "the password of user a is not"),
        ("x = 1", 1, 'unknown key "x"'),
        ("user = 1", 1, "user is not a table"),
        ("\n[user]\na = 1", 2, "user a is not a table"),
        ('[user."a:b"]', 1, '"a:b" is not a valid user name'),
        ("role = [s3cret", 1, "invalid TOML"),
    ],
)
def test_errors_name_the_place_the_cause_and_the_allowed_values(
    text: str, line: int | None, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse("f", text)
    assert caught.value.line == line
    assert problem in str(caught.value) and caught.value.allowed
    assert "s3cret" not in str(caught.value)


WORDS = [
    "[user a]",
    "[user",
    "role = view",
    "certificate = a.b",
    *(f"{each} = a*, b" for each in PERMISSIONS),
    "subscribe = a/*",
    "publish_rate = 1.5",
    "max_connections = 3",
    "password = ",
    GOOD,
    "$scrypt$ln=10,r=8,p=1$",
    "=",
    "]",
]
WORDS += ["[user.a]", 'role = "view"', "\0", "\n", "é", "[[", '"""', "token = $sha256$"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=8).map("\n".join))
def test_any_text_is_users_or_an_error(text: str) -> None:
    with suppress(ConfigError):
        assert all(each.role in ("", *ROLES) for each in parse("f", text).values())


@pytest.mark.slow
@given(st.from_regex(hashes._SCRYPT, fullmatch=True))
def test_hashes_are_checked_at_a_sane_price(text: str) -> None:
    found = hashes.parse_password(text)
    if found is not None:
        assert 128 * found.blocks << found.log_cost <= hashes.MAX_MEMORY


@pytest.mark.parametrize(
    "text",
    [
        "$scrypt$ln=21,r=8,p=1$c2FsdHNhbHQ$MDEyMzQ1Njc4OWFiY2RlZg",
        "$scrypt$ln=20,r=32,p=1$c2FsdHNhbHQ$MDEyMzQ1Njc4OWFiY2RlZg",
        "$scrypt$ln=10,r=8,p=99$c2FsdHNhbHQ$MDEyMzQ1Njc4OWFiY2RlZg",
        "$scrypt$ln=10,r=8,p=1$c2Fs$MDEyMzQ1Njc4OWFiY2RlZg",
        "$scrypt$ln=10,r=8,p=1$c2FsdHNhbHQ$MDEy",
        "$scrypt$ln=10,r=8,p=1$c2FsdHNhbHQ$MDEyMzQ1Njc4OWFiY2RlZ",
        "$scrypt$ln=1٢,r=8,p=1$c2FsdHNhbHQ$MDEyMzQ1Njc4OWFiY2RlZg",
    ],
)
def test_hashes_that_cannot_be_checked(text: str) -> None:
    assert hashes.parse_password(text) is None


def test_a_hash_is_read_back(password: Password) -> None:
    assert hashes.parse_password(str(password)) == password
    assert password.is_of(SECRET) and not password.is_of(SECRET + " ")
    assert hash_password(SECRET, CHEAP).salt != password.salt
    token = hash_token(TOKEN)
    assert hashes.parse_token(str(token)) == token
    assert token.is_of(TOKEN) and not token.is_of("")


def test_secrets_are_compared_in_constant_time(
    password: Password, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return real(one, other)

    monkeypatch.setattr("nsqcy.users.hashes.hmac.compare_digest", compare)
    assert password.is_of(SECRET) and hash_token(TOKEN).is_of(TOKEN)
    assert compared == [password.hash, hash_token(TOKEN).hash]


@pytest.mark.slow
def test_passwd(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert nsqcy(["passwd", "bot", "--token", "--role=operate"]) == 0
    section, told = capfd.readouterr()
    token = told.split()[-1]
    user = parse("f", section)["bot"]
    assert user.may_operate and user.token is not None and user.token.is_of(token)
    assert token not in section

    def typed(text: str) -> int:
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        with open(read) as stdin:
            monkeypatch.setattr("sys.stdin", stdin)
            return nsqcy(["passwd", "anna"])

    assert typed(f"{SECRET}\n") == 0
    section, told = capfd.readouterr()
    user = parse("f", section)["anna"]
    assert user.role == "view" and user.password is not None and user.password.is_of(SECRET)
    assert SECRET not in section + told
    words = ["billing", "--token", "--publish=a, b*", "--subscribe=a/x", "--certificate=b.example"]
    assert nsqcy(["passwd", *words]) == 0
    user = parse("f", capfd.readouterr().out)["billing"]
    assert user.publish == ("a", "b*") and user.subscribe == ("a/x",) and user.role == ""
    assert user.certificate == "b.example" and user.admin == ()
    assert typed("short\n") == 1 and "8 characters" in capfd.readouterr().err
    assert nsqcy(["passwd", "a:b"]) == 2


def test_passwd_has_quotas(capfd: pytest.CaptureFixture[str]) -> None:
    words = ["bot", "--token", "--publish=*"]
    limits = ["--max-connections=20", "--publish-rate=2.5", "--publish-bytes-rate=1_000_000"]
    assert nsqcy(["passwd", *words, *limits]) == 0
    user = parse("f", capfd.readouterr().out)["bot"]
    assert (user.max_connections, user.publish_rate, user.publish_bytes_rate) == (20, 2.5, 10**6)
    assert nsqcy(["passwd", *words, "--publish-rate=0"]) == 0
    section = capfd.readouterr().out
    assert not parse("f", section)["bot"].has_quota and "rate" not in section


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("--max-connections=many", "--max-connections is 'many': expected an integer such as"),
        ("--max-connections=-1", "--max-connections is '-1': expected [0,1000000]"),
        ("--publish-rate=1e400", "--publish-rate is '1e400': expected a number such as 0.5"),
        ("--publish-bytes-rate=1.5", "--publish-bytes-rate is '1.5': expected an integer such as"),
    ],
)
def test_passwd_says_what_a_quota_may_be(
    capfd: pytest.CaptureFixture[str], word: str, problem: str
) -> None:
    assert nsqcy(["passwd", "bot", "--token", "--publish=*", word]) == 2
    out, told = capfd.readouterr()
    assert problem in told and out == "" and "token of" not in told


# -- sessions and failures


def test_sessions_end_when_they_are_not_used() -> None:
    now = Now()
    table, user = Sessions(60, now), User("anna", "view")
    key = table.begin(user)
    assert len(base64.urlsafe_b64decode(key + "=")) == 32
    for _ in range(3):
        now.time += 60
        assert table.find(key) == user
    now.time += 60.1
    assert table.find(key) is None
    now.time -= 60.1  # the session does not reappear
    assert table.find(key) is None
    other = table.begin(user)
    table.end(other)
    assert table.find(other) is None and table.find("") is None


def test_sessions_that_do_not_renew_end_although_they_are_used() -> None:
    now = Now()
    table, user = Sessions(60, now, renews=False), User("anna", "view")
    key = table.begin(user)
    now.time += 60
    assert table.find(key) == user
    now.time += 0.1
    assert table.find(key) is None


def test_there_are_so_many_sessions_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "MAX_SESSIONS", 2)
    table, user = Sessions(60, Now()), User("anna", "view")
    first, second = table.begin(user), table.begin(user)
    table.find(first)
    third = table.begin(user)
    assert [table.find(each) is not None for each in (first, second, third)] == [True, False, True]


def test_repeated_failures_cause_a_delay() -> None:
    now = Now()
    table = Failures(now)
    for _ in range(MAX_FAILURES):
        assert table.wait("a") == 0
        assert table.add("a") == 0
    assert table.wait("a") == RECOVERY and table.wait("b") == 0
    now.time += RECOVERY
    assert table.wait("a") == 0
    assert table.add("a") == 0
    for _ in range(5):  # the wait does not grow
        assert table.add("a") == RECOVERY
    assert table.wait("a") == RECOVERY
    now.time += MAX_FAILURES * RECOVERY
    for _ in range(MAX_FAILURES - 1):
        table.add("a")
    assert table.wait("a") == 0


def test_there_are_so_many_addresses_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MAX_ADDRESSES", 2)
    table = Failures(Now())
    for address in "abc" * MAX_FAILURES:
        table.add(address)
    assert len(table._empty_at) == 2


# -- the user of a request


@pytest.fixture
def file(tmp_path: Path, password: Password) -> Path:
    path = tmp_path / "users.ini"
    path.write_text(
        f"[user anna]\nrole = operate\npassword = {password}\n"
        f"[user bot]\nrole = view\ntoken = {hash_token(TOKEN)}\n"
    )
    path.chmod(0o600)
    return path


Made = tuple[Logins, Lines, Now]


@pytest.fixture
def made(file: Path) -> Made:
    log, now = Lines(), Now()
    return Logins(str(file), 3600, log, now), log, now


def request(peer: str = "10.0.0.1:5", target: str = "/", **headers: str) -> Request:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Request(Head("GET", target, headers=named), Body(b""), peer)


def by_name(name: str, secret: str) -> Request:
    encoded = base64.b64encode(f"{name}:{secret}".encode()).decode()
    return request(Authorization=f"Basic {encoded}")


def by_session(key: str) -> Request:
    return request(Cookie=f"a=b; {COOKIE}={key}; c=d")


def bearer(token: str) -> Request:
    return request(Authorization=f"Bearer {token}")


def status(ask: Callable[[], object]) -> int:
    with pytest.raises(HttpError) as caught:
        ask()
    return caught.value.status


def test_all_ways_in(made: Made) -> None:
    users_, _, _ = made
    anna = users_.admit(by_name("anna", SECRET))
    assert anna is not None and (anna.name, anna.may_operate) == ("anna", True)
    bot = users_.admit(bearer(TOKEN))
    assert bot is not None and (bot.name, bot.may_operate) == ("bot", False)
    assert users_.admit(by_name("bot", TOKEN)) == bot
    key = users_.enter(request(), "anna", SECRET)
    assert users_.admit(by_session(key)) == anna
    users_.leave(by_session(key).head)
    assert users_.admit(by_session(key)) is None


def test_simultaneous_attempts_do_not_exceed_the_limit(made: Made) -> None:
    users_, log, _ = made
    attempts = 4 * MAX_FAILURES
    together = threading.Barrier(attempts)

    def attempt(number: int) -> int:
        together.wait()
        name = ("anna", "unknown")[number % 2]
        return status(lambda: users_.enter(request(), name, f"wrong {number}"))

    with ThreadPoolExecutor(attempts) as pool:
        answers = list(pool.map(attempt, range(attempts)))
    assert Counter(answers) == {401: MAX_FAILURES, 429: attempts - MAX_FAILURES}
    assert len(log.lines) == MAX_FAILURES


def test_nobody(made: Made) -> None:
    users_, log, _ = made
    for asked in (request(), by_session(""), by_session("x"), request(Cookie="\udcff=; ;;=")):
        assert users_.admit(asked) is None and users_.user(asked.head) is None
    wrong = [by_name("anna", "wrong"), by_name("nobody", SECRET), by_name("bot", SECRET)]
    wrong += [bearer("wrong"), bearer(""), request(Authorization="Negotiate x")]
    wrong += [
        request(Authorization="Basic !"),
        by_name("anna", "\udcff".encode("utf-8", "replace").decode()),
    ]
    for asked in wrong:
        assert status(lambda asked=asked: users_.admit(asked)) == 401
        assert users_.user(asked.head) is None
    assert len(log.lines) == len(wrong)


def test_a_hash_is_no_way_in(made: Made, password: Password) -> None:
    users_, _, _ = made
    for secret in (str(password), str(hash_token(TOKEN)), hash_token(TOKEN).hash.hex()):
        assert status(lambda secret=secret: users_.admit(by_name("anna", secret))) == 401
        assert status(lambda secret=secret: users_.admit(bearer(secret))) == 401


def test_the_log_has_no_secret(made: Made) -> None:
    users_, log, _ = made
    key = users_.enter(request(), "anna", SECRET)
    for name, secret in (("anna", "s3cret"), ("s3cret", "anna")):
        assert status(lambda n=name, s=secret: users_.enter(request(), n, s)) == 401
    assert status(lambda: users_.admit(bearer("s3cret"))) == 401
    assert log.lines == [
        "log-in: anna (operate) from 10.0.0.1",
        "log-in as anna failed, from 10.0.0.1",
        "log-in as an unknown user failed, from 10.0.0.1",
        "log-in with a token failed, from 10.0.0.1",
    ]
    assert key not in str(vars(users_)) and SECRET not in str(vars(users_))


def test_failures_are_limited_and_those_who_are_in_stay_in(made: Made) -> None:
    users_, log, now = made
    key = users_.enter(request(), "anna", SECRET)
    users_.admit(by_name("bot", TOKEN))
    for _ in range(MAX_FAILURES):
        assert status(lambda: users_.enter(request(), "anna", "wrong")) == 401
    for attempt in (
        lambda: users_.enter(request(), "anna", SECRET),
        lambda: users_.enter(request(), "somebody", "else"),
        lambda: users_.admit(bearer("wrong")),
    ):
        assert status(attempt) == 429
    lines = len(log.lines)
    assert status(lambda: users_.admit(bearer("wrong"))) == 429 and len(log.lines) == lines
    # Requests from other addresses are still admitted, and so are requests with a session, a
    # token or verified credentials.
    assert users_.enter(request("10.0.0.2:5"), "anna", SECRET)
    assert users_.admit(by_session(key)) and users_.admit(bearer(TOKEN))
    assert users_.admit(by_name("bot", TOKEN))
    now.time += RECOVERY
    assert users_.enter(request(), "anna", SECRET)


def test_a_name_that_nobody_has_costs_as_much(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    users_, _, _ = made
    hashed = []
    real = hashes._scrypt

    def count(text: str, like: Password) -> bytes:
        hashed.append(text)
        return real(text, like)

    monkeypatch.setattr(hashes, "_scrypt", count)
    for name in ("anna", "bot", "nobody"):
        assert status(lambda name=name: users_.enter(request(), name, "wrong")) == 401
    assert len(hashed) == 3
    # Verified credentials are not hashed again.
    users_.admit(by_name("anna", SECRET))
    users_.admit(by_name("anna", SECRET))
    assert len(hashed) == 4


def test_a_file_that_changes(made: Made, file: Path) -> None:
    users_, log, _ = made
    key = users_.enter(request(), "anna", SECRET)
    known = by_name("anna", SECRET)
    users_.admit(known)
    file.write_text(file.read_text().replace("operate", "view"))
    users_.reload()
    anna = users_.user(by_session(key).head)
    assert anna is not None and not anna.may_operate

    file.write_text("[user anna]\nrole = king\n")
    users_.reload()
    assert 'line 2: user anna has an unknown role "king"' in log.lines[-1]
    assert users_.user(by_session(key).head) and users_.user(bearer(TOKEN).head)

    file.write_text(f"[user anna]\nrole = view\npassword = {hash_password('another one', CHEAP)}\n")
    users_.reload()
    assert users_.user(by_session(key).head) is None
    assert users_.user(known.head) is None and users_.user(bearer(TOKEN).head) is None
    assert status(lambda: users_.admit(known)) == 401

    file.unlink()
    users_.reload()
    assert "no such file" in log.lines[-1]


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 1), (0o660, 1)])
def test_a_file_that_others_read(file: Path, mode: int, warned: int) -> None:
    file.chmod(mode)
    log = Lines()
    Logins(str(file), 3600, log, Now())
    assert [f"mode {mode:04o}" in each for each in log.lines] == [True] * warned


@pytest.mark.parametrize(
    ("peer", "seen", "address"),
    [
        ("10.0.0.1:5", "", "10.0.0.1"),
        ("[::1]:5", "", "::1"),
        ("127.0.0.1:5", "1.2.3.4, 5.6.7.8", "5.6.7.8"),
        ("[::1]:5", "5.6.7.8", "5.6.7.8"),
        ("127.0.0.1:5", "garbage", "127.0.0.1"),
        ("10.0.0.1:5", "5.6.7.8", "10.0.0.1"),
        ("@", "5.6.7.8", ""),
    ],
)
def test_addresses(peer: str, seen: str, address: str) -> None:
    headers = {"X_Forwarded_For": seen} if seen else {}
    assert address_of(request(peer, **headers)) == address


# -- redirects


@pytest.mark.parametrize(
    ("text", "base", "path"),
    [
        ("/", "", "/"),
        ("/topics/a%2Fb?x=1&y=2", "", "/topics/a%2Fb?x=1&y=2"),
        ("/b", "/b", "/b"),
        ("/b?x", "/b", "/b?x"),
        ("/b/nodes", "/b", "/b/nodes"),
        ("/other", "/b", ""),
        ("/bad", "/b", ""),
        ("", "", ""),
        ("topics", "", ""),
        ("//evil.com", "", ""),
        ("/\\evil.com", "", ""),
        ("/\t/evil.com", "", ""),
        ("\t//evil.com", "", ""),
        ("/\r\nSet-Cookie: a=b", "", ""),
        ("http://evil.com/", "", ""),
        ("https:/evil.com", "", ""),
        ("javascript:alert(1)", "", ""),
        ("/é", "", ""),
        ('/"><script>', "", ""),
    ],
)
def test_only_own_paths_are_led_to(text: str, base: str, path: str) -> None:
    assert access.own_path(text, base) == path


@given(st.text(alphabet="/\\:.@ae?#\t\r\n %", max_size=12))
def test_a_path_is_never_another_place(text: str) -> None:
    found = access.own_path(text, "")
    assert not found or (found[0] == "/" and found[1:2] not in ("/", "\\") and found.isprintable())
