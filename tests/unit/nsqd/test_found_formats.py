"""The formats that `nsqcy data check` finds, and the versions of nsqcy that read them."""

import json
from pathlib import Path

import pytest

from nsqcy import formats
from nsqcy.broker.core import ids_head
from nsqcy.formats import Format, Place
from nsqcy.nsqd.data import command, found_formats
from nsqcy.nsqd.data.found_formats import NumberedFile, judge, lines
from nsqcy.storage import state_file
from nsqcy.storage.core import IoThread, Log, LogProbe
from support.disk_format import IDS_HEADER, JOURNAL_HEADER, renumbered

SEGMENT = Format("segment", Place.DISK, "x", ("0.1.0", "0.3.0"))
POLICIES = Format("policies", Place.DISK, "x", ("0.1.0", "0.2.0", "0.3.0"))
LATER = Format("later", Place.DISK, "x", ("0.2.0",))
KNOWN = (SEGMENT, POLICIES, LATER)


def segment(topic: str, number: int) -> NumberedFile:
    return NumberedFile(SEGMENT, number, f"{topic}.topic/1.seg", topic)


def text(*files: NumberedFile) -> list[str]:
    return list(lines(judge(files, KNOWN, "0.3.0"), "0.3.0"))


def test_old_numbers_can_go_back_all_the_way() -> None:
    policies = NumberedFile(POLICIES, 1, "policies.json")
    assert text(segment("a", 1), policies) == [
        "formats: policies 1, segment 1",
        "versions that read these formats: 0.1.0 to 0.3.0",
    ]
    assert text() == []


def test_a_new_number_names_what_an_earlier_version_would_lose() -> None:
    policies = NumberedFile(POLICIES, 2, "policies.json")
    files = [segment("b", 2), segment("a", 2), segment("a", 2), segment("c", 1), policies]
    assert text(*files) == [
        "formats: policies 2, segment 1, segment 2",
        "versions that read these formats: 0.3.0",
        "version 0.2.0 would lose: topic a, topic b (segment format version 2)",
        "version 0.1.0 would lose: policies.json (policies format version 2); "
        "topic a, topic b (segment format version 2)",
    ]
    found = judge(files, KNOWN, "0.3.0")
    assert [each.files for each in found.numbers] == [1, 1, 3]


def test_a_format_is_unknown_to_the_versions_before_it() -> None:
    assert text(NumberedFile(LATER, 1, "later.json")) == [
        "formats: later 1",
        "versions that read these formats: 0.2.0 to 0.3.0",
        "version 0.1.0 would lose: later.json (later format version 1)",
    ]


def test_many_topics_are_cut_in_text_only() -> None:
    files = [segment(f"t{number:02d}", 2) for number in range(12)]
    found = judge(files, KNOWN, "0.3.0")
    assert len(found.earlier[0].too_new[0].loses) == 12
    assert text(*files)[-1].endswith("topic t09 and 2 more (segment format version 2)")


def test_a_number_that_is_too_new_is_an_error() -> None:
    found = judge([segment("a", 3), segment("b", 1)], KNOWN, "0.3.0")
    assert found.since is None
    assert found.unsupported == [
        "a.topic/1.seg: segment format version 3 is newer than this nsqcy supports (1 to 2): "
        "run the version that wrote it, or a later one"
    ]
    assert list(lines(found, "0.3.0")) == ["formats: segment 1, segment 3"]


# -- the files


def signed(**fields: object) -> bytes:
    return state_file.signed(json.dumps(fields).encode())


@pytest.fixture
def data_path(tmp_path: Path) -> Path:
    """Data path with one file of each format except segments."""
    io = IoThread()
    probe = LogProbe(Log(io, str(tmp_path), "t"))
    probe.write_snapshot(b"x")
    io.drain_now()
    io.close()
    (tmp_path / "t.topic" / f"{1:020d}.ids").write_bytes(ids_head())
    (tmp_path / "nsqd.dat").write_text('{"topics":[],"version":"1.3.0"}')
    (tmp_path / "nsqd.dat.changes").write_bytes(signed(version=1) + b"\n")
    (tmp_path / "policies.json").write_bytes(signed(version=1, set={}))
    group = tmp_path / "copies" / "0" / "0f1e2d3c4b5a6978"
    group.mkdir(parents=True)
    (tmp_path / "copies" / "machine.json").write_bytes(signed(id="m"))
    (tmp_path / "copies" / "node.0.json").write_bytes(signed(processes=[]))
    (group / "copy.json").write_bytes(signed(whole=False))
    (group / "files.list").write_bytes(signed(format=1) + b"\n")
    return tmp_path


GROUP = "copies/0/0f1e2d3c4b5a6978"
NEWER = {
    f"t.topic/{1:020d}.ids": ("ids", lambda old: renumbered(old, IDS_HEADER, 2)),
    "t.topic/journal": ("journal", lambda old: renumbered(old, JOURNAL_HEADER.size, 2)),
    "nsqd.dat.changes": ("nsqd.dat.changes", lambda old: signed(version=2) + b"\n"),
    "policies.json": ("policies", lambda old: signed(version=2, set={})),
    "copies/machine.json": ("machine", lambda old: signed(id="m", format=2)),
    "copies/node.0.json": ("node", lambda old: signed(processes=[], format=2)),
    f"{GROUP}/copy.json": ("copy", lambda old: signed(whole=False, format=2)),
    f"{GROUP}/files.list": ("file list", lambda old: signed(format=2) + b"\n"),
    "import.done/manifest": ("import manifest", lambda old: signed(version=2)),
}


def test_every_file_has_its_number(data_path: Path) -> None:
    found = found_formats.find(str(data_path))
    on_disk = {each.name for each in formats.FORMATS if each.place is Place.DISK}
    assert {each.format: each.number for each in found.numbers} == dict.fromkeys(
        on_disk - {"segment", "import manifest"}, 1
    )


@pytest.mark.parametrize("name", NEWER)
def test_a_newer_number_is_an_error_that_names_the_file(
    data_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = data_path / name
    each, change = NEWER[name]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    assert command.data.main(["check", str(data_path)], standalone_mode=False) == 2
    err = capfd.readouterr().err
    assert f"{name}: {each} format version 2 is newer than this nsqcy supports (1): run" in err
    assert err.count(f"{each} format version 2") == 1


def test_damaged_files_have_no_number(data_path: Path) -> None:
    for path in data_path.rglob("*"):
        if path.is_file() and path.name != "nsqd.dat":
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    for name in (f"{1:020d}.ids", "journal"):
        path = data_path / "t.topic" / name
        path.write_bytes(b"x" + path.read_bytes()[1:])
    (data_path / "t.topic" / f"{1:020d}.seg").write_bytes(b"")
    found = found_formats.find(str(data_path))
    assert [each.format for each in found.numbers] == ["nsqd.dat"]
    assert found.unsupported == []
