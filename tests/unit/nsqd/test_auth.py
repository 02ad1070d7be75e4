"""Responses of auth servers: which are accepted or refused, and how they affect clients."""

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.nsqd.auth import authorizations
from nsqcy.nsqd.auth.authorizations import MAX_ANSWER, MAX_TTL, AuthFailure, parse
from support.fake_auth_server import answer, grant


def refusal(body: bytes) -> str:
    with pytest.raises(AuthFailure) as failure:
        parse(body)
    return str(failure.value)


def test_what_an_answer_says() -> None:
    body = answer(grant(), grant(), ttl=7, identity="a&b", identity_url="http://é")
    found = parse(body)
    assert (found.ttl, found.identity, found.identity_url) == (7, "a&b", "http://é")
    assert found.source == body
    response = '{"identity":"a\\u0026b","identity_url":"http://é","permission_count":2}'
    assert found.response == response.encode()


def test_what_may_be_missing() -> None:
    found = parse(b'{"TTL": 5, "other": [1.5], "identity": null, "authorizations": null}')
    assert (found.identity, found.identity_url, found.grants) == ("", "", ())


@pytest.mark.case("C134", "C136")
@pytest.mark.parametrize(
    ("grants", "allowed", "denied"),
    [
        ([grant()], [("t", ""), ("t", "c")], []),
        ([grant(channels=[""])], [("t", ""), ("t", "c")], []),
        ([grant(channels=[])], [], [("t", ""), ("t", "c")]),
        ([grant(channels=["^c$"])], [("t", "c")], [("t", ""), ("t", "cc")]),
        ([grant(topic="foo")], [("xfoox", "")], [("bar", "")]),
        ([grant(permissions=["publish"])], [("t", "")], [("t", "c")]),
        ([grant(permissions=["subscribe"])], [("t", "c")], [("t", "")]),
        ([grant(permissions=[])], [], [("t", ""), ("t", "c")]),
        # A single grant must cover everything.
        ([grant("^a$", ["^$"]), grant("^b$", ["^c$"])], [("a", ""), ("b", "c")], [("a", "c")]),
        ([{"topic": "t"}], [], [("t", ""), ("t", "c")]),
        ([None], [], [("t", ""), ("t", "c")]),
    ],
)
def test_decisions(
    grants: list[Any], allowed: list[tuple[str, str]], denied: list[tuple[str, str]]
) -> None:
    found = parse(answer(*grants))
    for _ in range(2):  # the second answer is from the cache
        assert [each for each in allowed if not found.permits(*each)] == []
        assert [each for each in denied if found.permits(*each)] == []


def test_decisions_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizations, "MAX_DECISIONS", 10)
    found = parse(answer(grant("^t")))
    for number in range(100):
        assert found.permits(f"t{number}", "")
        assert not found.permits(f"u{number}", "")
    assert len(found._decisions) <= 10


@pytest.mark.parametrize(
    "ttl", [0, -1, 1.5, 1.0, True, "60", None, [], 10**30], ids=lambda ttl: repr(ttl)
)
def test_ttl_is_a_positive_integer(ttl: Any) -> None:
    refusal(answer(ttl=ttl))


def test_a_long_ttl_is_as_good_as_for_ever() -> None:
    assert parse(answer(ttl=2**63 - 1)).ttl == MAX_TTL


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"yes",
        b"\xff\xfe",
        answer() + b"x",
        answer(identity=5),
        answer(identity_url={}),
        answer(authorizations={}),
        answer(authorizations=[[]]),
        answer(authorizations=[{"topic": 5}]),
        answer(authorizations=[{"channels": "c"}]),
        answer(authorizations=[{"channels": [5]}]),
        answer(authorizations=[{"permissions": {}}]),
        answer(grant(permissions=["Publish"])),
        answer(grant(topic="(")),
        answer(grant(channels=["a", "(?=b)"])),
        b'{"ttl": NaN}',
        b'{"ttl": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"authorizations":' * 50_000,
    ],
)
def test_unusable(body: bytes) -> None:
    refusal(body)


@pytest.mark.parametrize("topic", [{}, {"topics": "^a$"}, {"topic": None}])
def test_an_authorization_without_a_topic_is_not_one_for_all_topics(topic: Any) -> None:
    without = {"channels": [".*"], "permissions": ["publish"]} | topic
    assert refusal(answer(without)) == "an authorization has no topic"
    assert parse(answer(grant(topic=""))).permits("any", "")


@pytest.mark.slow
def test_size_is_bounded() -> None:
    parse(answer(identity="x" * (MAX_ANSWER - 500)))
    assert "bytes" in refusal(answer(identity="x" * MAX_ANSWER))
    assert "too large" in refusal(answer(grant("(a{1000})" * 30)))
    assert "in total" in refusal(answer(*[grant("(a{1000})")] * 200))
    assert "more than 2000" in refusal(
        b'{"ttl":1,"authorizations":[' + b"null," * 200_000 + b"null]}"
    )


def test_nothing_of_an_answer_is_in_the_reason() -> None:
    """The response of a server may contain the secret."""
    for body in (
        answer(grant("sesame(")),
        answer(grant(channels=[r"\p{sesame}"])),
        answer(grant(permissions=["sesame"])),
        answer(ttl="sesame"),
        b"sesame",
        b'{"sesame": sesame}',
    ):
        assert "sesame" not in refusal(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["ttl", "Identity", "authorizations", "topic", "channels", "other"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(json_values | st.fixed_dictionaries({"ttl": st.just(1), "authorizations": json_values}))
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        found = parse(json.dumps(value).encode())
    except AuthFailure:
        return
    assert found.ttl > 0
    found.permits("topic", "channel")
    json.loads(found.response)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    try:
        parse(body)
    except AuthFailure:
        pass
