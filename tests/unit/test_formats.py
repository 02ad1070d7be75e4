"""The table of formats: its rules, its text in the docs, and its copies in compiled code."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from nsqcy import __version__, formats
from nsqcy.formats import FORMATS, Format, FormatError, Place
from nsqcy.spark import column_blocks

ROOT = Path(__file__).parents[2]
SECOND_OF_TWO = Format("ids", Place.DISK, "x", ("0.1.0", "0.2.0"))
THIRD_OF_THREE = Format("ids", Place.DISK, "x", ("0.1.0", "0.2.0", "0.3.0"), oldest=2)


def key(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_names_are_unique() -> None:
    assert len({each.name for each in FORMATS}) == len(FORMATS)


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.name)
def test_a_version_reads_the_number_before(each: Format) -> None:
    assert 1 <= each.oldest <= max(1, each.number - 1)
    versions = [key(one) for one in each.since]
    assert all(first < second for first, second in pairwise(versions))
    assert versions[-1] <= key(__version__)


def test_compiled_code_has_the_same_numbers() -> None:
    text = (ROOT / "cext/nsqcy/formats.pxd").read_text()
    found = re.findall(r"#define FORMAT_(\w+) (\d+)", text)
    assert len(found) == 6
    for name, number in found:
        assert getattr(formats, name).number == int(number), name
        assert re.search(rf"^        FORMAT_{name}$", text, re.MULTILINE), name


def test_readers_in_spark_have_the_same_number() -> None:
    """They cannot import the table, because they run without the rest of nsqcy."""
    assert formats.LOG_BLOCK.number == column_blocks.VERSION


def test_the_docs_list_all_formats() -> None:
    text = (ROOT / "docs/internals/formats.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and " | " in line]
    expected = [
        f"| {each.name} | {each.where} | {each.place.value} | {each.number} | {each.numbers} "
        f"| {each.since[-1]} |"
        for each in FORMATS
    ]
    assert [row for row in rows if row.count("|") == 7][2:] == expected


@pytest.mark.parametrize(
    ("each", "number", "text"),
    [
        (SECOND_OF_TWO, 1, ""),
        (SECOND_OF_TWO, 2, ""),
        (THIRD_OF_THREE, 3, ""),
        (
            SECOND_OF_TWO,
            3,
            "f: ids format version 3 is newer than this nsqcy supports (1 to 2): "
            "run the version that wrote it, or a later one",
        ),
        (
            THIRD_OF_THREE,
            1,
            "f: ids format version 1 is older than this nsqcy supports (2 to 3): "
            "run an earlier version first",
        ),
        (SECOND_OF_TWO, 0, "f: ids format has no valid version (supported: 1 to 2)"),
        (SECOND_OF_TWO, None, "f: ids format has no valid version (supported: 1 to 2)"),
        (SECOND_OF_TWO, True, "f: ids format has no valid version (supported: 1 to 2)"),
        (SECOND_OF_TWO, "1", "f: ids format has no valid version (supported: 1 to 2)"),
        (
            formats.COPIES_STREAM,
            2,
            "f: copies stream format version 2 is newer than this nsqcy supports (1): "
            "run compatible versions on all nodes",
        ),
    ],
)
def test_a_refusal_names_both_numbers(each: Format, number: object, text: str) -> None:
    if not text:
        each.check(number, "f")
        return
    with pytest.raises(FormatError) as caught:
        each.check(number, "f")
    assert str(caught.value) == text


def test_only_an_implied_number_may_be_missing() -> None:
    formats.COPY.check_fields({}, "f")
    formats.SESSION.check_fields({"format": 1}, "f")
    with pytest.raises(FormatError, match="copy format version 2 is newer"):
        formats.COPY.check_fields({"format": 2}, "f")
    with pytest.raises(FormatError, match="session format has no valid version"):
        formats.SESSION.check_fields({}, "f")


def test_a_process_reads_the_formats_of_its_master() -> None:
    formats.check_numbers_in_use(formats.numbers_in_use())
    for name in formats.numbers_in_use():
        with pytest.raises(FormatError) as caught:
            formats.check_numbers_in_use(formats.numbers_in_use() | {name: 2})
        text = f"the master: {name} format version 2 is newer than this nsqcy supports (1)"
        assert str(caught.value) == f"{text}: restart nsqd"
    for found in (None, [], {}):
        with pytest.raises(FormatError, match="boot format has no valid version"):
            formats.check_numbers_in_use(found)
