"""Checks a schema in Spark's DDL, without Spark: `a INT, b ARRAY<STRUCT<c: STRING>>`.

Finds missing and unknown type names, and unmatched brackets, before Java starts. Leaves other
checks, such as those of a type's arguments, to Spark.
"""

import re
from collections.abc import Iterator

from nsqcy.options.option import suggestion

TOKEN = re.compile(r"\s+|(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\w+|[^\w\s])")
NAME = re.compile(r"`.+`|[A-Za-z0-9_]+", re.DOTALL)
NESTED = {"array": 1, "map": 2}  # types, with the number of their arguments
_NAMES = """
    bigint binary boolean byte char character date dec decimal double float geography geometry int
    integer interval long numeric real short smallint string time timestamp timestamp_ltz
    timestamp_ntz tinyint varchar variant void
"""
TYPES = frozenset(_NAMES.split())
ALLOWED = (*sorted(TYPES), *NESTED, "struct")


class Invalid(Exception):
    """The text is not a schema."""


def check(text: str) -> None:
    """Raise Invalid if a text is not a list of columns with their types."""
    tokens = _Tokens(text)
    _columns(tokens, "")
    if tokens.next:
        raise Invalid(f"unexpected {tokens.next!r}")


class _Tokens:
    def __init__(self, text: str) -> None:
        self._left: Iterator[str] = (each[1] for each in TOKEN.finditer(text) if each[1])
        self.next = ""
        self.take()

    def take(self) -> str:
        taken, self.next = self.next, next(self._left, "")
        return taken

    def expect(self, wanted: str, after: str) -> None:
        if self.next != wanted:
            found = repr(self.next) if self.next else "the end"
            raise Invalid(f"expected {wanted!r} after {after}, found {found}")
        self.take()


def _columns(tokens: _Tokens, separator: str) -> None:
    """Parse `name TYPE, ...`; in a struct, a colon may follow the name."""
    while True:
        name = tokens.take()
        if not NAME.fullmatch(name):
            found = repr(name) if name else "the end"
            hint = f"; write it as `{name}`" if name.isalnum() else ""
            raise Invalid(f"expected the name of a column, found {found}{hint}")
        if separator and tokens.next == separator:
            tokens.take()
        _type(tokens, name)
        if tokens.next != ",":
            return
        tokens.take()


def _type(tokens: _Tokens, column: str) -> None:
    """Parse a type and its attributes: its arguments, NOT NULL, COMMENT '...'."""
    name = tokens.take()
    kind = name.lower()
    if kind in NESTED:
        tokens.expect("<", name)
        for number in range(NESTED[kind]):
            if number:
                tokens.expect(",", f"the first type of {name}")
            _type(tokens, column)
        tokens.expect(">", f"the types of {name}")
    elif kind == "struct":
        tokens.expect("<", name)
        if tokens.next != ">":
            _columns(tokens, ":")
        tokens.expect(">", f"the columns of {name}")
    elif not NAME.fullmatch(name):
        raise Invalid(f"column {column} has no type")
    elif kind not in TYPES:
        raise Invalid(f"column {column} has the unknown type {name!r}{suggestion(kind, ALLOWED)}")
    if tokens.next == "(":
        while tokens.next not in ("", ")"):
            tokens.take()
        tokens.expect(")", f"the arguments of {name}")
    while NAME.fullmatch(tokens.next) or tokens.next.startswith(("'", '"')):
        tokens.take()
