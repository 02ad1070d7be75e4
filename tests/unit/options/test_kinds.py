"""Kinds of value: accepted strings, rejected strings, and the conversion of a value back to a
string."""

import pytest

from nsqcy.config.options import INT, STRING
from nsqcy.options import kinds
from nsqcy.options.option import InvalidOption, Kind, Option, Rule, suggestion

DURATION = kinds.duration(r"[0-9.]+", "ms|s|m|h|d", "a duration")
ADDRESS = kinds.address("host:port", "an address")
NAMES = kinds.separated("name,...", kinds.NAME)
MANY = kinds.repeated(kinds.SIZE)


@pytest.mark.parametrize(
    ("kind", "text", "value", "shown"),
    [
        (kinds.BOOLEAN, "TRUE", True, "true"),
        (kinds.BOOLEAN, "false", False, "false"),
        (kinds.SIZE, "8M", 8 << 20, "8m"),
        (kinds.SIZE, "1024kb", 1 << 20, "1m"),
        (kinds.SIZE, "1000", 1000, "1000"),
        (kinds.SIZE, "007b", 7, "7"),
        (DURATION, "90s", 90.0, "90s"),
        (DURATION, "120s", 120.0, "2m"),
        (DURATION, "1.5H", 5400.0, "90m"),
        (DURATION, "2d", 172800.0, "48h"),
        (DURATION, "250ms", 0.25, "250ms"),
        (DURATION, "0s", 0.0, "0s"),
        (kinds.whole(1), "0010", 10, "10"),
        (ADDRESS, " a:1 ", "a:1", "a:1"),
        (ADDRESS, "[::1]:65535", "[::1]:65535", "[::1]:65535"),
        (NAMES, " b,a, b", ("b", "a"), "b,a"),
        (MANY, "1k", (1024,), "1k"),
        (kinds.INSTANT, "1714557600000", 1714557600 * 10**9, "1714557600000000000"),
    ],
)
def test_values(kind: Kind, text: str, value: object, shown: str) -> None:
    found = kind.parse(text)
    assert (found, type(found), kind.show(found)) == (value, type(value), shown)


@pytest.mark.parametrize(
    "text", ["2024-05-01T10:00:00Z", "2024-05-01T10:00", "2024-05-01T12:00:00+02:00"]
)
def test_instants(text: str) -> None:
    assert kinds.INSTANT.parse(text) == 1714557600 * 10**9


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (kinds.BOOLEAN, ["", "yes", "true\n"]),
        (kinds.SIZE, ["0", "-1", "1.5k", "k", "1t"]),
        (DURATION, ["5", "5 s", "-5s", "s"]),
        (kinds.whole(2), ["1", "-3", "x", "1_0", "9" * 19]),
        (ADDRESS, ["a", "a:", ":1", "a:0", "a:65536", "http://a:1", "a:1,b:2", "::1:5"]),
        (NAMES, ["", "a,,b", "a b"]),
        (
            kinds.NAME,
            ["", "a" * 65, "a#ephemeral", "\N{KELVIN SIGN}", "\N{LATIN SMALL LETTER LONG S}"],
        ),
        (kinds.EXPRESSION, ["("]),
        (kinds.INSTANT, ["", "now", "1" * 15]),
    ],
)
def test_what_is_refused(kind: Kind, texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ValueError):
            kind.parse(text)


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        (Option("a", kinds.NAME, None, ""), "?", "--a is '?': expected a name of 1 to 64"),
        (Option("a", INT, None, ""), "x", "--a is 'x': expected an integer such as"),
        (Option("a", INT, 1, "", rule=Rule("> 0", bool)), "0", "--a is '0': expected > 0"),
        (Option("a", kinds.EXPRESSION, "", ""), "(", "--a is '(': expected a regular expression ("),
        (Option("a", STRING, "", "", rule=Rule("b", str.isdigit)), "my-secret", "--a expected b"),
    ],
)
def test_an_error_names_the_option_the_value_and_the_allowed_values(
    option: Option, text: str, said: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        option.parse(text, "--a")
    assert str(caught.value).startswith(said)


def test_suggestions() -> None:
    assert suggestion("rat", ["size", "rate"], "--") == "; did you mean --rate?"
    assert suggestion("x", ["size", "rate"]) == "; allowed: size, rate"
