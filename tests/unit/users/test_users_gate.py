"""Users as daemons see them: their permissions, and the gate's answers to other requests."""

import base64
import mmap

import pytest

from nsqcy.http.parser import Body, Head, Reply
from nsqcy.http.router import Handler, Later, Need, Request, Route
from nsqcy.ipc.core import QuotaTable
from nsqcy.users import file
from nsqcy.users.credentials import Known
from nsqcy.users.failures import MAX_FAILURES, RECOVERY
from nsqcy.users.gate import Gate
from nsqcy.users.quotas import Quotas
from nsqcy.users.user import User
from support.users_file import section, token


@pytest.mark.parametrize(
    ("patterns", "topic", "channel", "expected"),
    [
        (("a",), "a", "c", True),
        (("a",), "aa", "c", False),
        (("a*",), "aa", "", True),
        (("a/c",), "a", "c", True),
        (("a/c",), "a", "cc", False),
        (("a/c",), "a", "", False),  # the topic's log needs access to all channels
        (("a/*",), "a", "", True),
        (("a/c*", "b"), "b", "x", True),
        (("*",), "x#ephemeral", "c#ephemeral", True),
        (("A",), "a", "c", False),
        ((), "a", "c", False),
    ],
)
def test_subscribe_permissions(
    patterns: tuple[str, ...], topic: str, channel: str, expected: bool
) -> None:
    user = User("u", publish=("*",), subscribe=patterns, admin=("*",))
    assert user.may_subscribe(topic, channel) is expected


def test_one_permission_is_not_another() -> None:
    user = User("u", publish=("a",), admin=("b*",))
    assert user.may_publish("a") and not user.may_publish("b")
    assert user.may_administer("bb") and not user.may_administer("a")
    assert not user.may_administer_all and User("u", admin=("x", "*")).may_administer_all


def test_users_are_found_by_their_credentials() -> None:
    known = Known({"a": User("a", token=None, certificate="x"), "b": User("b", certificate="y")})
    assert known.of_certificate(["-", "y", "x"]) == known.users["b"]
    assert known.of_certificate([]) is None and known.of_certificate([""]) is None
    assert known.of_token(b"") is None
    known.users = file.parse("f", section("c", role="view"))
    assert known.of_certificate(["x"]) is None
    assert known.of_token(token("c").encode()) == known.users["c"]
    assert known.of_token(token("c").encode() + b" ") is None
    assert known.of_token(b"\xff") is None


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def warn(self, text: str, /, **fields: object) -> None:
        self.lines.append(text)

    info = error = warn


class Door:
    """A gate with its clock and its log."""

    def __init__(self) -> None:
        self.time = 0.0
        self.log = Log()
        text = section("a", publish="t") + section("b", admin="*")
        text += section("slow", publish="t", publish_rate="10")
        text += section("one", publish="t", max_connections="1")
        quotas = Quotas(QuotaTable(memoryview(mmap.mmap(-1, 4096)), 0))
        self.gate = Gate(
            Known(file.parse("f", text)),
            "nsqd",
            self.log,
            lambda: round(self.time * 1e9),
            quotas.of,
        )

    def ask(
        self,
        need: Need,
        header: str = "",
        query: str = "topic=t",
        plain: bool = False,
        handler: Handler = lambda api, request: None,
    ) -> Route | Reply:
        headers = (("authorization", header),) if header else ()
        route = Route("GET", "/x", handler, plain=plain, need=need)
        head = Head("GET", f"/x?{query}", headers=headers)
        found = self.gate.admit(route, head, "1.2.3.4:5", ())
        if need is not Need.NOTHING:
            assert self.gate.admits(route, head, ()) is (found is route)
        return found

    def publish(self, name: str, messages: int) -> Route | Reply:
        """Send a request; publish if the request is admitted."""
        header = f"Bearer {token(name)}"
        found = self.ask(Need.PUBLISH, header, handler=lambda *_: Published(messages))
        if isinstance(found, Route):
            found.handler(None, Request(Head(), Body(b"")))
        return found


class Published(Later):
    def __init__(self, messages: int) -> None:
        self.messages = messages

    def publishes(self) -> tuple[int, int]:
        return self.messages, 1


def status(found: Route | Reply) -> int:
    return found.status if isinstance(found, Reply) else 200


def test_the_gate() -> None:
    door = Door()
    assert status(door.ask(Need.NOTHING)) == 200
    for need, expected in ((Need.PUBLISH, 200), (Need.KNOWN, 200), (Need.ADMIN, 403)):
        assert status(door.ask(need, f"Bearer {token('a')}")) == expected
        assert status(door.ask(need)) == 401
    assert status(door.ask(Need.ADMIN_OF_ALL, f"bearer  {token('b')} ")) == 200
    assert status(door.ask(Need.PUBLISH, f"Bearer {token('a')}", "topic=tt")) == 403
    assert status(door.ask(Need.PUBLISH, f"Bearer {token('a')}", "Topic=t")) == 200  # a 400 follows
    assert status(door.ask(Need.KNOWN, "Bearer")) == 401
    coded = base64.b64encode(f":{token('a')}".encode()).decode()
    assert status(door.ask(Need.KNOWN, f"Basic {coded}")) == 200
    assert status(door.ask(Need.KNOWN, f"Digest {token('a')}")) == 401


def test_a_plain_route_says_no_in_plain_words() -> None:
    refusal = Door().ask(Need.KNOWN, plain=True)
    assert isinstance(refusal, Reply) and refusal.body == b"UNAUTHORIZED"


def test_only_a_client_with_repeated_failures_has_to_wait() -> None:
    door = Door()
    for _ in range(MAX_FAILURES):
        assert status(door.ask(Need.KNOWN, "Bearer s3cret")) == 401
    waits = door.ask(Need.KNOWN, "Bearer s3cret")
    assert isinstance(waits, Reply) and waits.status == 429
    assert ("Retry-After", str(int(RECOVERY) + 1)) in waits.headers
    assert status(door.ask(Need.KNOWN)) == 401
    assert status(door.ask(Need.KNOWN, f"Bearer {token('a')}")) == 200
    assert len(door.log.lines) == MAX_FAILURES  # unchecked attempts (429) are not logged
    assert not any("s3cret" in line or token("a") in line for line in door.log.lines)
    door.time += RECOVERY
    assert status(door.ask(Need.KNOWN, "Bearer s3cret")) == 401


def test_a_publish_over_the_quota_is_rejected_with_retry_after() -> None:
    door = Door()
    assert [status(door.publish("slow", 4)) for _ in range(4)] == [200, 200, 200, 429]
    refused = door.publish("slow", 1)
    assert isinstance(refused, Reply) and ("Retry-After", "1") in refused.headers
    assert refused.body == b'{"message":"QUOTA_REACHED"}'
    assert door.log.lines == ["AUTH: user slow is exceeding its publish quota"]
    door.time += 0.3
    assert status(door.publish("slow", 100)) == 200
    refused = door.publish("slow", 1)
    assert isinstance(refused, Reply) and ("Retry-After", "10") in refused.headers
    for name in ("a", "one"):
        assert [status(door.publish(name, 1000)) for _ in range(3)] == [200] * 3
