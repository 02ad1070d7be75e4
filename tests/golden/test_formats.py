"""The bytes of every format stay the same while its number does, and this version reads what
earlier ones wrote.

support/golden_formats.py writes the files. If a test fails because bytes have changed, append a
version to the format's `since` in nsqcy/formats.py, keep a reader for the number before, and write
the next generation. If earlier versions ignore the change without harm, only write the next one.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from nsqcy import formats
from nsqcy.nsqd.copies import completeness
from nsqcy.nsqd.copies.node import memberships
from nsqcy.nsqd.data import command
from nsqcy.nsqd.master import metadata, policy_file
from support import golden_formats
from support.golden_formats import FOLDER, GROUP_ID, LIVES
from support.worker_core import Log

GENERATIONS = sorted(path.name for path in golden_formats.generations())
ADVICE = "see tests/golden/test_formats.py"
generation = pytest.mark.parametrize("generation", GENERATIONS)
life = pytest.mark.parametrize("life", LIVES)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def tree(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_newest_generation_has_the_current_numbers() -> None:
    newest = golden_formats.newest()
    assert newest is not None
    assert read_json(newest / "numbers.json") == golden_formats.numbers(), ADVICE


def test_the_bytes_have_not_changed(tmp_path: Path) -> None:
    newest = golden_formats.newest()
    assert newest is not None
    golden_formats.write(tmp_path)
    expected, found = tree(newest), tree(tmp_path)
    assert found.keys() == expected.keys(), ADVICE
    changed = [name for name, content in sorted(found.items()) if content != expected[name]]
    assert changed == [], ADVICE


@generation
def test_this_version_reads_its_numbers(generation: str) -> None:
    """A generation that this version no longer reads is deleted."""
    by_name = {each.name: each for each in formats.FORMATS}
    found = read_json(FOLDER / generation / "numbers.json")
    assert [name for name, number in found.items() if not by_name[name].reads(number)] == []


@life
@generation
def test_every_message_is_received(generation: str, life: str, tmp_path: Path) -> None:
    path = golden_formats.data_path_of(generation, life, tmp_path)
    expected = read_json(FOLDER / generation / "expected.json")[life]
    assert golden_formats.received(path) == expected


@life
@generation
def test_the_state_files_are_read(generation: str, life: str, tmp_path: Path) -> None:
    path = golden_formats.data_path_of(generation, life, tmp_path)
    lines = Log()
    known = metadata.load(str(path), lines)
    assert sorted(known) == list(golden_formats.TOPICS)
    plain = known.get("plain")
    assert plain is not None and plain.channels == {"c": False, "d": False, "e": True}
    policies = policy_file.look(str(path)).value
    assert policies is not None and policies.version == ("0123456789abcdef", 3)
    assert policies.names("plain") == ["plain", "plain/c"]
    assert lines.lines == []
    assert memberships(path / "copies") == [(0, GROUP_ID)]
    assert list(completeness.faults(path)) == []


@generation
def test_the_journal_is_decoded(generation: str) -> None:
    content = golden_formats.journal_of(generation)
    assert golden_formats.decoded_journal(content) == golden_formats.expected_journal()


@life
@generation
def test_the_check_finds_the_numbers(
    generation: str, life: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = golden_formats.data_path_of(generation, life, tmp_path)
    numbers = read_json(FOLDER / generation / "numbers.json")
    command.data.main(["check", "--json", str(path)], standalone_mode=False)
    found = json.loads(capfd.readouterr().out)["formats"]
    on_disk = {
        each.name
        for each in formats.FORMATS
        if each.place is formats.Place.DISK and each is not formats.MANIFEST
    }
    assert {each["format"]: each["number"] for each in found["numbers"]} == {
        name: number for name, number in numbers.items() if name in on_disk
    }
    assert (found["since"], found["unsupported"]) == (formats.FIRST, [])
