"""NSQ's disk queues: names, metadata, records, and continuing after damage."""

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from nsqcy.nsqd.data import diskqueue
from nsqcy.nsqd.data.diskqueue import (
    Damage,
    FileReader,
    Meta,
    QueueReader,
    QueueWriter,
    find_queues,
    parse_meta,
)
from support import nsq_diskqueue
from support.nsq_diskqueue import (
    data_file,
    image,
    message,
    messages,
    meta_file,
    record,
    write_meta,
    write_queue,
)
from support.runs import runs

MUCH = settings(max_examples=runs(40), suppress_health_check=[HealthCheck.function_scoped_fixture])

bodies = st.one_of(st.binary(max_size=60), st.integers(60, 3000).map(bytes))
stored = st.builds(
    nsq_diskqueue.Message,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 65535),
    st.integers(0, diskqueue.LARGEST_ID - 1).map(lambda number: b"%016x" % number),
    bodies,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks, so most records cross the end of a buffer."""
    monkeypatch.setattr(diskqueue, "CHUNK", 256)


def as_stored(one: diskqueue.Record) -> nsq_diskqueue.Message:
    return nsq_diskqueue.Message(one.timestamp, one.attempts, b"%016x" % one.id, one.body)


def read_file(path: Path, start: int = 0) -> tuple[list[nsq_diskqueue.Message], list[Damage]]:
    damages: list[Damage] = []
    found = [as_stored(one) for one in FileReader(str(path), damages.append).records(start)]
    return found, damages


def read_bytes(path: Path, content: bytes) -> tuple[list[nsq_diskqueue.Message], list[Damage]]:
    """Read a file; every byte must belong to a record or be reported."""
    path.write_bytes(content)
    found, damages = read_file(path)
    assert sum(len(record(one)) for one in found) + sum(each.bytes for each in damages) == len(
        content
    )
    return found, damages


def read_all(data: Path, **how: Any) -> dict[str, tuple[list[nsq_diskqueue.Message], list[str]]]:
    """Return the messages in each queue, and the reports about it."""
    result = {}
    for queue in find_queues(str(data)):
        said: list[str] = []
        reader = QueueReader(queue, lambda each: said.append(str(each)), said.append)  # noqa: B023
        result[queue.name] = ([as_stored(one) for one in reader.records(**how)], said)
    return result


# ---- names ----


def test_queues_are_found_by_their_names(tmp_path: Path) -> None:
    names = [
        "t.diskqueue.000000.dat",
        "t.diskqueue.000012.dat",
        "t.diskqueue.1234567.dat",
        "t.diskqueue.meta.dat",
        "t.diskqueue.meta.dat.9182736455.tmp",
        "t:c.diskqueue.000003.dat.bad",
        "t:c#ephemeral.diskqueue.000000.dat",
        "...diskqueue.000000.dat",
        "a.diskqueue.000001.dat.diskqueue.000002.dat",
        "win;chan.diskqueue.000000.dat",
        "bad name:c.diskqueue.000000.dat",
        "a:b:c.diskqueue.000000.dat",
        "t.diskqueue.0000001.dat",
        "t.diskqueue.00001.dat",
        "t.diskqueue.000000.dat.gz",
        "nsqd.dat",
        ".diskqueue.000000.dat",
    ]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / "dir.diskqueue.000000.dat").mkdir()
    found = {queue.name: queue for queue in find_queues(str(tmp_path))}
    assert set(found) == {
        "t",
        "t:c",
        "t:c#ephemeral",
        "..",
        "a.diskqueue.000001.dat",
        "win;chan",
        "bad name:c",
        "a:b:c",
    }
    t = found["t"]
    assert sorted(t.files) == [0, 12, 1234567]
    assert t.meta == "t.diskqueue.meta.dat"
    # nsqd never uses a number of this form: the file is not read, but is moved with the others.
    assert t.leftovers == ["t.diskqueue.0000001.dat", "t.diskqueue.meta.dat.9182736455.tmp"]
    assert len(t.names) == 6
    assert (found["t:c"].topic, found["t:c"].channel, list(found["t:c"].bad)) == ("t", "c", [3])
    assert (found["win;chan"].topic, found["win;chan"].channel) == ("win", "chan")
    assert found["a.diskqueue.000001.dat"].files == {
        2: "a.diskqueue.000001.dat.diskqueue.000002.dat"
    }
    assert not found["bad name:c"].valid and not found["a:b:c"].valid
    assert found[".."].valid and found["t:c#ephemeral"].valid


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"3\n0,0\n0,110\n", Meta(3, 0, 0, 0, 110)),
        (b"-2\n7,12\n9,0\n", Meta(-2, 7, 12, 9, 0)),
        (b"", None),
        (b"3\n0,0\n0,11", None),
        (b"3\n0,0\n", None),
        (b"3\n-1,0\n0,0\n", None),
        (b"0\n1,0\n0,0\n", None),
        (b"0\n0,9\n0,8\n", None),
        (b"\0" * 30, None),
        (b"9" * 30 + b"\n0,0\n0,0\n", None),
    ],
)
def test_metadata(content: bytes, expected: Meta | None) -> None:
    assert parse_meta(content) == expected


@given(st.binary(max_size=60))
def test_metadata_of_any_bytes(content: bytes) -> None:
    parse_meta(content)


# ---- records ----


@pytest.mark.slow
@MUCH
@given(st.lists(stored, max_size=20), st.integers(1, 4000))
def test_written_and_read_by_the_letter(
    tmp_path_factory: pytest.TempPathFactory, several: list[nsq_diskqueue.Message], limit: int
) -> None:
    data = tmp_path_factory.mktemp("q")
    write_queue(data, "t", several, limit=limit)
    assert read_all(data).get("t", ([], [])) == (several, [])

    writer = QueueWriter(str(data), "out:c", limit)
    for one in several:
        writer.put(one.timestamp, one.attempts, int(one.id, 16), one.body)
    writer.close()
    assert nsq_diskqueue.read_queue(data, "out:c") == several
    if several:
        assert meta_file(data, "t").read_bytes() == meta_file(data, "out:c").read_bytes()
        assert (writer.depth, writer.largest) == (
            len(several),
            max(len(one.body) for one in several),
        )


@pytest.mark.parametrize("read", [0, 1, 9, 10, 11, 29, 30])
@pytest.mark.parametrize("unsynced", [0, 4])
def test_reading_goes_on_where_it_stopped(tmp_path: Path, read: int, unsynced: int) -> None:
    several = messages(0, 30)
    unsynced = min(unsynced, 30 - read)
    write_queue(tmp_path, "t:c", several, read=read, limit=500, unsynced=unsynced)
    found, said = read_all(tmp_path)["t:c"]
    assert found == several[read:]
    assert len(said) == (unsynced > 0), said


@MUCH
@given(st.binary(max_size=3000))
@example(b"\0" * 3000)
@example(b"0" * 3000)
@example(image(messages(0, 40))[7:])
def test_any_bytes_are_records_or_reported(tmp_path: Path, content: bytes) -> None:
    read_bytes(tmp_path / "any", content)


@MUCH
@given(st.data(), st.integers(0, 2999), st.sampled_from([1 << bit for bit in range(8)] + [0xFF]))
def test_one_damaged_byte_costs_one_message_at_most(
    tmp_path: Path, data: st.DataObject, at: int, mask: int
) -> None:
    sizes = data.draw(st.lists(st.integers(8, 120), min_size=2, max_size=20))
    several = [message(number, size) for number, size in enumerate(sizes)]
    content = bytearray(image(several))
    at %= len(content)
    content[at] ^= mask
    ends = {0}
    for one in several:
        ends.add(max(ends) + len(record(one)))
    hit = sum(end <= at for end in ends) - 1
    start = sorted(ends)[hit]
    (length,) = struct.unpack_from(">i", content, start)
    # A length that leads to the beginning of another record looks correct.
    assume(at >= start + 4 or start + 4 + length not in ends)
    found, _ = read_bytes(tmp_path / "damaged", bytes(content))
    others = several[:hit] + several[hit + 1 :]
    assert [one for one in found if one in others] == others
    assert len(found) <= len(several)


@pytest.mark.slow
@MUCH
@given(st.lists(st.integers(8, 120), min_size=1, max_size=12), st.integers(0, 3000))
def test_a_torn_file_costs_the_torn_message(tmp_path: Path, sizes: list[int], cut: int) -> None:
    several = [message(number, size) for number, size in enumerate(sizes)]
    content = image(several)
    cut %= len(content)
    found, damages = read_bytes(tmp_path / "torn", content[:cut])
    whole = 0
    while len(image(several[: whole + 1])) <= cut:
        whole += 1
    assert found == several[:whole]
    rest = cut - len(image(found))
    assert [(each.offset, each.bytes) for each in damages] == [(cut - rest, rest)] * (rest > 0)


def test_a_length_that_swallows_messages_is_found_out(tmp_path: Path) -> None:
    several = messages(0, 40, 100)
    content = bytearray(image(several))
    struct.pack_into(">i", content, 10 * 130, 1000)
    found, damages = read_bytes(tmp_path / "f", bytes(content))
    assert found == several[:10] + several[11:]
    assert [(each.offset, each.bytes) for each in damages] == [(1300, 130)]


def test_a_record_in_a_body_is_no_record(tmp_path: Path) -> None:
    nested = message(1)._replace(body=image(messages(50, 10)))
    several = [message(0), nested, message(2), message(3)]
    assert read_bytes(tmp_path / "f", image(several)) == (several, [])
    # The next record is damaged: the nested record is still part of the body.
    content = bytearray(image(several))
    at = len(image(several[:2]))
    content[at + 20] = 0xFF
    found, damages = read_bytes(tmp_path / "f", bytes(content))
    assert found == [message(0), nested, message(3)]
    assert [(each.offset, each.bytes) for each in damages] == [(at, 50)]


def test_damage_right_before_a_torn_end(tmp_path: Path) -> None:
    several = messages(0, 4)
    content = bytearray(image(several))
    struct.pack_into(">i", content, 50, -1)
    found, damages = read_bytes(tmp_path / "f", bytes(content[:-1]))
    assert found == [several[0], several[2]]
    assert [(each.offset, each.bytes) for each in damages] == [(50, 50), (150, 49)]


@pytest.mark.slow
def test_good_records_are_found_wherever_they_begin(tmp_path: Path) -> None:
    several = messages(0, 5)
    for lost in range(1, 600):
        found, damages = read_bytes(tmp_path / "f", b"\xff" * lost + image(several))
        assert found == several, lost
        assert [(each.offset, each.bytes) for each in damages] == [(0, lost)]


@pytest.mark.parametrize("id", [b"7000000000000000", b"ffffffffffffffff", b"18A1d16a9f669000"])
def test_an_id_out_of_bounds_costs_the_message(tmp_path: Path, id: bytes) -> None:
    several = messages(0, 3)
    several[1] = several[1]._replace(id=id)
    found, damages = read_bytes(tmp_path / "f", image(several))
    assert found == [several[0], several[2]]
    assert len(damages) == 1


def test_a_hole_of_zeros_is_passed(tmp_path: Path) -> None:
    several = messages(0, 200, 100)
    content = bytearray(image(several))
    content[1000:9000] = bytes(8000)
    found, damages = read_bytes(tmp_path / "f", bytes(content))
    # The header of the message that begins before the hole is complete: only its body is lost.
    assert found[:7] == several[:7] and found[8:] == several[70:]
    assert [(each.offset, each.bytes) for each in damages] == [(1040, 8060)]


def test_an_unreadable_sector_costs_the_rest_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = messages(0, 100)
    path = tmp_path / "f"
    path.write_bytes(image(several))
    pread = os.pread

    def failing(fd: int, n: int, offset: int) -> bytes:
        if offset + n > 2000:
            raise OSError(errno.EIO, "Input/output error")
        return pread(fd, n, offset)

    monkeypatch.setattr(os, "pread", failing)
    found, damages = read_file(path)
    assert found == several[: len(found)] and len(found) >= 20
    assert damages[0].offset + damages[0].bytes == 5000
    assert "cannot be read: Input/output error" in str(damages[0])
    monkeypatch.setattr(os, "pread", lambda *_: (_ for _ in ()).throw(OSError(errno.EACCES, "no")))
    with pytest.raises(OSError, match="no"):
        read_file(path)


# ---- queues ----


def test_missing_files_are_named(tmp_path: Path) -> None:
    several = messages(0, 60)
    write_queue(tmp_path, "t:c", several, limit=500)
    for number in (1, 2, 4):
        data_file(tmp_path, "t:c", number).unlink()
    found, said = read_all(tmp_path)["t:c"]
    assert found == several[:10] + several[30:40] + several[50:]
    path = data_file(tmp_path, "t:c", 1)
    assert said[0] == f"{path} at 0: the file is missing, as are all files up to number 2"
    assert said[1] == f"{data_file(tmp_path, 't:c', 4)} at 0: the file is missing"
    assert said[2] == "t:c: depth is 60 in the metadata, but 30 messages were found"


def test_a_missing_last_file_is_named(tmp_path: Path) -> None:
    write_queue(tmp_path, "t:c", messages(0, 15), limit=500)
    data_file(tmp_path, "t:c", 1).unlink()
    assert (
        f"{data_file(tmp_path, 't:c', 1)} at 0: the file is missing" in read_all(tmp_path)["t:c"][1]
    )
    data_file(tmp_path, "t:c", 0).unlink()
    assert "at 0: the file is missing" in read_all(tmp_path)["t:c"][1][0]


def test_a_file_that_was_read_may_be_gone(tmp_path: Path) -> None:
    """NSQ's nsqd deleted the file, and was killed before it updated the metadata."""
    several = messages(0, 20)
    write_queue(tmp_path, "t:c", several, read=4, limit=500)
    data_file(tmp_path, "t:c", 0).unlink()
    found, said = read_all(tmp_path)["t:c"]
    assert found == several[10:]
    assert said == ["t:c: depth is 16 in the metadata, but 10 messages were found"]


def test_an_empty_queue_has_nothing_to_say(tmp_path: Path) -> None:
    write_meta(tmp_path, "t:c", 0, (3, 0), (3, 0))
    write_meta(tmp_path, "t:d", 0, (0, 0), (0, 0))
    assert read_all(tmp_path) == {"t:c": ([], []), "t:d": ([], [])}


def test_a_read_position_that_cannot_be(tmp_path: Path) -> None:
    several = messages(0, 5)
    data_file(tmp_path, "t:c").write_bytes(image(several))
    write_meta(tmp_path, "t:c", 5, (900, 0), (900, 250))
    found, said = read_all(tmp_path)["t:c"]
    assert found == several and "read position beyond all data files" in said[0]
    write_meta(tmp_path, "t:c", 5, (0, 9999), (0, 10249))
    found, said = read_all(tmp_path)["t:c"]
    assert found == [] and "at 9999: the file ends earlier, at 250" in said[0]


def test_bad_files_are_read_on_request(tmp_path: Path) -> None:
    aside, rest = messages(0, 5), messages(5, 5)
    data_file(tmp_path, "t:c", 0).with_name("t:c.diskqueue.000000.dat.bad").write_bytes(
        image(aside)[:-1]
    )
    data_file(tmp_path, "t:c", 1).write_bytes(image(rest))
    write_meta(tmp_path, "t:c", 5, (1, 0), (1, 250))
    assert read_all(tmp_path)["t:c"] == (rest, [])
    found, said = read_all(tmp_path, bad=True)["t:c"]
    assert found == aside[:-1] + rest
    assert "no complete record in the last 49 bytes" in said[0]
