"""Every case id has a test or a documented reason for lacking one, and every deviation is
documented."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from conformance.cases import CASES, DEVIATIONS, NEXT

TESTS = Path(__file__).parents[1]
COMPATIBILITY = TESTS.parent / "docs" / "COMPATIBILITY.md"
ROW = re.compile(r"^\| ([A-Z][A-Z0-9, -]*\d) \|(.*)\|$", re.MULTILINE)


def is_case_mark(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.case"


@cache
def marks() -> dict[str, list[str]]:
    """Return the tests for each case id."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in TESTS.rglob("test_*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for mark in filter(is_case_mark, function.decorator_list):
                assert isinstance(mark, ast.Call)
                for argument in mark.args:
                    found[ast.literal_eval(argument)].append(f"{path.name}::{function.name}")
    return found


def rows() -> dict[str, list[str]]:
    """Return NSQ's behaviour, ours and the reason for each case id in the table in
    docs/COMPATIBILITY.md."""
    found: dict[str, list[str]] = {}
    for ids, rest in ROW.findall(COMPATIBILITY.read_text()):
        for case in ids.split(", "):
            assert case not in found, f"{case} has two rows"
            found[case] = [cell.strip() for cell in re.split(r"(?<!\\)\|", rest)]
    return found


def test_every_case_has_a_test_or_a_reason() -> None:
    missing = CASES - marks().keys() - NEXT.keys()
    assert not missing, sorted(missing)


def test_every_mark_is_a_case() -> None:
    unknown = marks().keys() - CASES
    assert not unknown, {case: marks()[case] for case in unknown}


def test_a_case_that_has_a_test_is_not_put_off() -> None:
    both = marks().keys() & NEXT.keys()
    assert not both, sorted(both)
    assert NEXT.keys() <= CASES
    assert all(len(reason) > 10 for reason in NEXT.values())


def test_every_deviation_is_written_down() -> None:
    written = rows()
    assert written.keys() & CASES == DEVIATIONS
    for case, cells in written.items():
        assert len(cells) == 3 and all(cells), (case, cells)
