"""Expressions in RE2's syntax: what matches, what is refused, and that none takes long."""

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.nsqd.patterns import DEPTH_MOST, SIZE_MOST, PatternError, Text, compile


def found(pattern: str, name: str) -> bool:
    return compile(pattern).found_in(Text(name))


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("", ["", "a"], []),
        (".*", ["", "a"], []),
        (".", ["a"], [""]),
        ("op", ["topic", "op"], ["", "po"]),
        ("^op", ["ops"], ["topic"]),
        ("op$", ["stop"], ["ops"]),
        ("^$", [""], ["a"]),
        (r"\Aop\z", ["op"], ["ops", "sop"]),
        ("a|b$", ["a.", ".b"], ["b."]),
        ("^(a|b)c$", ["ac", "bc"], ["abc"]),
        ("^(?:a|b)*$", ["", "abba"], ["abc"]),
        ("^(?P<x>a)(?<y>b)$", ["ab"], ["a"]),
        ("^a+b?c{2}$", ["aabcc", "acc"], ["bcc", "ac", "accc"]),
        ("^a{2,}$", ["aa", "aaaa"], ["a"]),
        ("^a{1,3}$", ["a", "aaa"], ["", "aaaa"]),
        ("^a{0}$", [""], ["a"]),
        ("^(a{2}){2}$", ["aaaa"], ["aaa"]),
        ("a*?", [""], []),
        ("^a+?$", ["aa"], [""]),
        ("^a??$", ["a", ""], ["aa"]),
        ("^*a", ["a"], ["ba"][:0]),
        ("{", [], ["a"]),
        ("^[a-c.-]+$", ["a.c-b"], ["d"]),
        ("^[^a-c]+$", ["xyz"], ["xaz"]),
        ("^[]a]$", ["a"], ["b"]),
        ("^[[:digit:]]$", ["5"], ["a"]),
        ("^[[:^digit:]]$", ["a"], ["5"]),
        (r"^[\d_]+$", ["1_2"], ["a"]),
        (r"^\w+$", ["aB3_"], ["a-b"]),
        (r"^\W$", ["-", "."], ["a"]),
        (r"^\D+$", ["a-b"], ["1"]),
        (r"\s", [], ["ab"]),
        (r"\bop\b", ["a-op-b", "op"], ["stop"]),
        (r"\Bop", ["stop"], ["op"]),
        (r"\B", ["", "ab", "--"], ["a"]),
        (r"\b", ["a"], ["", "--"]),
        (r"^a\.b\-c\#$", ["a.b-c#"], ["axb-c#"]),
        (r"^\x61\x{62}\143$", ["abc"], ["ab"]),
        (r"\Qa.b\E$", ["a.b"], ["axb"]),
        (r"^\Qa.b", ["a.b"], ["axb"]),
        (r"^\Qab\E+$", ["abb"], ["abab"]),
        ("(?i)ToP", ["stop"], ["sto"]),
        ("^(?i)a(?-i)b$", ["Ab", "ab"], ["aB"]),
        ("^(?i:a)b$", ["Ab"], ["AB"]),
        ("^((?i)a)b$", ["Ab"], ["AB"]),
        ("^(?i)[a-c]$", ["B"], ["D"]),
        ("^(?i)[^a-c]$", ["D"], ["B"]),
        ("^(?i)ſ$", ["s", "S"], ["t"]),
        ("^(?i)\u212a$", ["k", "K"], ["t"]),
        (r"^\pL+$", ["aB"], ["a1"]),
        (r"^\p{Lu}\P{Lu}\p{^Lu}$", ["Abc"], ["ABc"]),
        (r"^\p{Latin}\p{Common}$", ["a1"], ["1a"]),
        ("é", [], ["e"]),
        ("^[\x00-\U0010ffff]$", ["a"], [""]),
        ("(?)a", ["a"], ["b"]),
        ("a{,2}", [], ["a", "aa"]),
        ("a{01}", [], ["a"]),
        ("x}", [], ["x"]),
        ("^(|a)$", ["", "a"], ["b"]),
    ],
)
def test_matches(pattern: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes if not found(pattern, name)] == []
    assert [name for name in no if found(pattern, name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "(a", "[", "[a", "[]", "[^]", "[b-a]", "[[:foo:]]", "\\", "[\\", "*", "+a",
        "a|*", "(*)", "(?i)*", "a**", "a*+", "a*??", "a{2}{3}", "a{2,1}", "a{1001}", "a{1,1001}",
        "a{99999999999}", "(?=a)", "(?!a)", "(?<=a)", "(?>a)", "(?x)a", "(?P=a)",
        "(?P<>a)", "(?i-)a", "(a)\\1", "\\8", "\\Z", "\\E", "\\C", "\\h", "\\xg", "\\x{110000}",
        "(?P<a>x)(?P<a>y)", "\\p{Nothing}", "\\p{L", "\\p", "[a-\\d]", "{3}",
    ],
)  # fmt: skip
def test_refused(pattern: str) -> None:
    with pytest.raises(PatternError) as refused:
        compile(pattern)
    assert len(pattern) < 3 or pattern not in str(refused.value)


def test_size_and_depth_are_bounded() -> None:
    compile("a" * (SIZE_MOST // 2))
    for pattern in ("a" * 2 * SIZE_MOST, "((a{1000}){1000})", "(" * 5000 + ")" * 5000):
        with pytest.raises(PatternError):
            compile(pattern)
    compile("(" * (DEPTH_MOST - 1) + ")" * (DEPTH_MOST - 1))


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$x",
        "(a|aa)+x",
        "((((a*)*)*)*)*x",
        "(((a{9}){9}){9})*x",
        ".*.*.*.*.*.*.*x",
        "(a?){64}x",
    ],
)
def test_none_takes_long(pattern: str) -> None:
    """A backtracking matcher would be at it for years; the time limit of tests tells."""
    assert not found(pattern, "a" * 64)


atoms = st.sampled_from([*"abc", ".", "^", "$", "[ab]", "[^b]", r"\w", r"\b", r"\B", "(?:)", r"\."])
repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])
expressions = st.recursive(
    st.builds(lambda atom, repeat: f"(?:{atom}){repeat}", atoms, repeats),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: f"(?:{a}|{b})", inner, inner),
        st.builds(lambda a, repeat: f"({a}){repeat}", inner, repeats),
    ),
    max_leaves=8,
)


# Not the empty name, of which `re` thinks otherwise about \B, and not always.
@given(expressions, st.text("abc.", min_size=1, max_size=6))
def test_what_both_read_alike_matches_alike(pattern: str, name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # RE2's `$` is the very end.
        expected = re.search(pattern.replace("$", r"\Z"), name) is not None
    assert found(pattern, name) == expected


@given(st.text(st.sampled_from(r"ab|()[]{}*+?\^$.-,:?iP<>QEdpx019"), max_size=30))
def test_anything_is_read_or_refused(pattern: str) -> None:
    try:
        compile(pattern).found_in(Text("ab-1"))
    except PatternError:
        pass
