"""Regular expressions from auth servers: RE2 syntax, searched for anywhere in a name."""

import pytest

from nsqcy.nsqd.auth.authorizations import AuthFailure, parse
from nsqcy.util.gojson import encode


def permits(expression: str, name: str) -> bool:
    grant = {"topic": expression, "channels": [".*"], "permissions": ["subscribe"]}
    return parse(encode({"ttl": 1, "authorizations": [grant]})).permits(name, "c")


@pytest.mark.parametrize(
    ("expression", "yes", "no"),
    [
        ("", ["a"], []),
        ("op", ["topic", "op"], ["po"]),
        ("^op", ["ops"], ["topic"]),
        ("op$", ["stop"], ["ops"]),
        (r"\Aop\z", ["op"], ["ops", "sop"]),
        ("^(?P<x>a)(?<y>b)$", ["ab"], ["a"]),
        (r"^[[:alpha:]]+\.\d{2}$", ["a.12"], ["a.1", "1.12"]),
        (r"^\pL+$", ["topic"], ["t1"]),
        ("(?i)^ORDERS", ["orders.eu"], ["border"]),
        ("(a*)*$", ["a" * 64], []),
        ("^(a|aa)+$", ["a" * 64], ["a" * 63 + "b"]),  # would take hours with backtracking
    ],
)
def test_what_is_found(expression: str, yes: list[str], no: list[str]) -> None:
    assert [permits(expression, name) for name in yes] == [True] * len(yes)
    assert [permits(expression, name) for name in no] == [False] * len(no)


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "a**",
        "[z-a]",
        r"\1",
        "(?=a)",
        "(?<!a)",
        r"\Z",
        "(a{1000}){1000}",
        "x" * 100_000,
        "[[:no:]]",
    ],
)
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(AuthFailure, match="invalid expression"):
        permits(expression, "a")
