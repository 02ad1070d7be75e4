"""One topic's files on a real disk: opening, rotating, syncing, moving, repairing."""

import errno
import fcntl
import gzip
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.tools.common import ToolError
from nsqcy.tools.files import disk as disks
from nsqcy.tools.files.codecs import Codec, Gzip, Plain, Zstd
from nsqcy.tools.files.disk import Disk
from nsqcy.tools.files.names import FileNames
from nsqcy.tools.files.note_encoding import Note
from nsqcy.tools.files.writer import FileInUse, Moment, Rules, TopicFiles
from support.memory_disk import MemoryDisk

zstandard: Any = pytest.importorskip("zstandard")

NOON = 1_700_000_000  # 22:13:20, twenty seconds into a minute
FORMAT = "<TOPIC><REV>.log"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


class Lines:
    """Log that keeps its lines."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def info(self, text: str, /, **fields: object) -> None:
        self.texts.append(text)

    warn = error = info

    def count(self, part: str) -> int:
        return sum(part in text for text in self.texts)


class Topic:
    """The files of topic `t`, a clock, and the content of the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = path / "out"
        self.work = path / "work"
        self.log = Lines()
        self.seconds = 0.0

    def open(
        self,
        format: str = FORMAT,
        datetime_format: str = "%Y-%m-%d_%H",
        codec: Codec | None = None,
        work: bool = False,
        disk: Disk | None = None,
        **changes: Any,
    ) -> TopicFiles:
        rules = Rules(
            output_dir=str(self.out),
            work_dir=str(self.work if work else self.out),
            codec=codec or Plain(),
            **changes,
        )
        file_names = FileNames(
            format,
            datetime_format,
            topic="t",
            host="h",
            revisions=rules.revisions,
            suffix=rules.codec.suffix,
        )
        files = TopicFiles("[t/c]", file_names, rules, disk or Disk(), self.log)
        files.start()
        return files

    @property
    def now(self) -> Moment:
        return Moment(NOON + self.seconds, int(self.seconds * 1e9))

    def later(self, seconds: float) -> Moment:
        self.seconds += seconds
        return self.now

    def files(self, folder: Path | None = None) -> dict[str, bytes]:
        root = folder or self.out
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    return Topic(tmp_path)


def unpacked(data: bytes) -> bytes:
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        return reader.read()


CODECS = [pytest.param(Gzip(6), id="gzip"), pytest.param(Zstd(3), id="zstd")]


# --- plain --------------------------------------------------------------------------------------


def test_lines(topic: Topic) -> None:
    files = topic.open()
    files.write([b"one", b"two"], topic.now)
    assert topic.files() == {"t.log": b"one\ntwo\n"}
    assert (files.written, files.synced) == (2, 1)  # opening a file syncs the first message
    files.sync()
    assert files.synced == 2
    files.finish()
    assert topic.files() == {"t.log": b"one\ntwo\n"}


def test_a_full_buffer_is_synced(topic: Topic) -> None:
    files = topic.open(buffer=3)
    files.write([b"x"] * 9, topic.now)
    assert (files.written, files.synced) == (9, 7)
    assert topic.log.count("syncing 3 records to disk") == 2


@pytest.mark.case("FILE-004")
def test_a_tick_opens_a_file(topic: Topic) -> None:
    topic.open().tick(topic.now)
    assert topic.files() == {"t.log": b""}


@pytest.mark.case("FILE-005")
def test_without_empty_files_it_does_not(topic: Topic) -> None:
    files = topic.open(skip_empty=True)
    files.tick(topic.now)
    assert topic.files() == {}
    files.write([b"one"], topic.now)
    files.tick(topic.later(3600))
    files.tick(topic.later(3600))
    assert topic.files() == {"t.log": b"one\n"}


@pytest.mark.case("FILE-014")
def test_a_plain_file_goes_on_after_a_hangup(topic: Topic) -> None:
    files = topic.open()
    files.write([b"one"], topic.now)
    files.finish()
    files.write([b"two"], topic.now)
    files.finish()
    assert topic.files() == {"t.log": b"one\ntwo\n"}


def test_a_file_moved_away_by_somebody_is_made_again(topic: Topic) -> None:
    files = topic.open()
    files.write([b"one"], topic.now)
    (topic.out / "t.log").rename(topic.out / "t.log.1")
    files.finish()
    files.write([b"two"], topic.now)
    files.finish()
    assert topic.files() == {"t.log": b"two\n", "t.log.1": b"one\n"}


def test_a_file_cut_by_somebody_is_counted_anew(topic: Topic) -> None:
    files = topic.open()
    files.write([b"first"], topic.now)
    os.truncate(topic.out / "t.log", 0)  # as logrotate's copytruncate does
    files.write([b"longer than the first", b"and safe"], topic.now)
    files.sync()
    crashed(files)
    topic.open()
    assert topic.files() == {"t.log": b"longer than the first\nand safe\n"}


# --- rotation -----------------------------------------------------------------------------------


@pytest.mark.case("FILE-006")
def test_rotation_by_size(topic: Topic) -> None:
    files = topic.open(rotate_size=10)
    for number in range(5):
        files.write([b"message%d" % number], topic.now)
    files.finish()
    sizes = {name: len(data) for name, data in topic.files().items()}
    assert sizes == {"t-000000.log": 18, "t-000001.log": 18, "t-000002.log": 9}
    assert topic.log.count("currently 18 bytes (> 10), rotating...") == 2


@pytest.mark.case("FILE-007")
def test_a_small_file_is_appended_to(topic: Topic) -> None:
    files = topic.open(rotate_size=10)
    files.write([b"12345678"] * 5, topic.now)
    files.finish()
    again = topic.open(rotate_size=10)
    again.write([b"last"], topic.now)
    again.finish()
    assert topic.files()["t-000002.log"] == b"12345678\nlast\n"
    assert len(topic.files()) == 3


def test_rotation_inside_a_batch(topic: Topic) -> None:
    files = topic.open(rotate_size=10)
    files.write([b"12345678"] * 5, topic.now)
    files.finish()
    assert list(map(len, topic.files().values())) == [18, 18, 9]
    assert files.synced == 5


def test_rotation_by_time(topic: Topic) -> None:
    files = topic.open(rotate_interval=1_000_000_000)
    files.write([b"one"], topic.now)
    files.write([b"two"], topic.later(1.0))
    files.write([b"three"], topic.later(0.5))
    assert topic.log.count("1.5s since last open, rotating...") == 1
    files.tick(topic.later(2))
    files.finish()
    assert topic.files() == {
        "t-000000.log": b"one\ntwo\n",
        "t-000001.log": b"three\n",
        "t-000002.log": b"",
    }


@pytest.mark.case("FILE-020")
def test_a_new_minute_starts_again_at_revision_0(topic: Topic) -> None:
    files = topic.open("<TOPIC>.<DATETIME><REV>", "%H%M", rotate_size=1)
    files.write([b"one", b"two"], topic.now)
    files.write([b"three"], topic.later(60))
    files.finish()
    assert topic.files() == {
        "t.2213-000000": b"one\n",
        "t.2213-000001": b"two\n",
        "t.2214-000000": b"three\n",
    }
    assert topic.log.count("new filename t.2214<REV>, rotating...") == 1


def test_folders_are_made(topic: Topic) -> None:
    files = topic.open("<TOPIC>/<DATETIME><REV>/x", "%Y/%m", work=True)
    files.write([b"one"], topic.now)
    assert topic.files(topic.work) == {"t/2023/11-000000/x": b"one\n"}
    files.finish()
    assert topic.files() == {"t/2023/11-000000/x": b"one\n"}
    assert (topic.out / "t").stat().st_mode & 0o007 == 0


# --- compression --------------------------------------------------------------------------------


@pytest.mark.case("FILE-009")
def test_a_member_for_each_sync(topic: Topic) -> None:
    files = topic.open(codec=Gzip(6))
    for body in (b"one", b"two", b"three"):
        files.write([body], topic.now)
        files.sync()
    data = topic.files()["t-000000.log.gz"]
    header = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"  # no name, no time, unknown system
    assert data.startswith(header) and data.count(header) == 3
    assert gzip.decompress(data) == b"one\ntwo\nthree\n"
    files.sync()
    files.finish()
    assert topic.files()["t-000000.log.gz"] == data


@pytest.mark.case("FILE-010")
@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_file_is_never_appended_to(topic: Topic, codec: Codec) -> None:
    for body in (b"one", b"two"):
        files = topic.open(codec=codec)
        files.write([body], topic.now)
        files.finish()
    assert [unpacked(data) for data in topic.files().values()] == [b"one\n", b"two\n"]
    assert topic.log.count("working file already exists") == 1


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_compressed_file_can_be_read(topic: Topic, codec: Codec) -> None:
    files = topic.open(codec=codec)
    files.tick(topic.now)
    files.finish()
    [data] = topic.files().values()
    assert data and unpacked(data) == b""


def test_zstd_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ToolError, match=r'pip install "nsqcy\[tools\]"'):
        Zstd(3)


# --- a work directory ---------------------------------------------------------------------------


@pytest.mark.case("FILE-011")
def test_finished_files_are_moved(topic: Topic) -> None:
    files = topic.open(work=True)
    files.write([b"one"], topic.now)
    assert topic.files() == {} and list(topic.files(topic.work)) == ["t-000000.log"]
    files.finish()
    assert topic.files(topic.work) == {} and topic.files() == {"t-000000.log": b"one\n"}
    assert not os.listxattr(topic.out / "t-000000.log")


@pytest.mark.parametrize("work", [False, True])
@pytest.mark.parametrize("codec", [Plain(), Gzip(6)])
def test_a_removed_directory_is_created_again(topic: Topic, codec: Codec, work: bool) -> None:
    """Unsynced messages are not lost with the directory."""
    files = topic.open(work=work, codec=codec)
    files.write([b"synced", b"first", b"second"], topic.now)
    assert files.synced == 1
    shutil.rmtree(topic.work if work else topic.out)
    files.write([b"third"], topic.now)
    files.sync()
    shutil.rmtree(topic.out, ignore_errors=True)
    files.write([b"fourth"], topic.now)
    files.finish()
    assert files.written == files.synced == 5
    assert topic.log.count("was removed: opening a new file") == (1 if work else 2)
    found = b"".join(topic.files().values())
    lines = (unpacked(found) if found[:2] == b"\x1f\x8b" else found).splitlines()
    assert lines == ([b"first", b"second", b"third"] if work else []) + [b"fourth"]


def test_a_file_is_removed_while_it_is_synced(topic: Topic) -> None:
    class Removing(Disk):
        def sync(self, fd: int) -> None:
            super().sync(fd)
            if armed:
                armed.pop().unlink()

    armed: list[Path] = []
    files = topic.open(disk=Removing())
    files.write([b"synced", b"first"], topic.now)
    armed.append(topic.out / "t.log")
    files.sync()
    assert topic.files() == {"t.log": b"first\n"} and files.synced == 2


def test_a_file_is_removed_after_its_last_sync(topic: Topic) -> None:
    files = topic.open(work=True)
    files.write([b"synced"], topic.now)
    shutil.rmtree(topic.work)
    files.finish()
    files.write([b"next"], topic.now)
    files.finish()
    assert topic.files() == {"t-000001.log": b"next\n"}


@pytest.mark.case("FILE-012")
def test_nothing_is_overwritten(topic: Topic) -> None:
    files = topic.open(work=True)
    files.write([b"ours"], topic.now)
    (topic.out / "t-000000.log").write_bytes(b"theirs")
    files.finish()
    assert topic.files() == {"t-000000.log": b"theirs", "t-000001.log": b"ours\n"}
    assert topic.files(topic.work) == {}
    assert topic.log.count("destination file already exists") == 1


@pytest.mark.case("FILE-013")
def test_revisions_go_on_behind_those_that_are_there(topic: Topic) -> None:
    topic.out.mkdir()
    (topic.out / "t-000000.log").write_bytes(b"theirs")
    files = topic.open(work=True)
    files.write([b"ours"], topic.now)
    assert list(topic.files(topic.work)) == ["t-000001.log"]


@pytest.mark.case("FILE-015")
def test_a_hangup_moves_and_goes_on(topic: Topic) -> None:
    files = topic.open(work=True)
    files.write([b"one"], topic.now)
    files.finish()
    files.write([b"two"], topic.now)
    assert topic.files() == {"t-000000.log": b"one\n"}
    assert topic.files(topic.work) == {"t-000001.log": b"two\n"}


def test_one_folder_by_two_names_loses_nothing(topic: Topic) -> None:
    topic.out.mkdir()
    topic.work.symlink_to(topic.out)
    files = topic.open(work=True)
    files.write([b"one"], topic.now)
    files.finish()
    assert list(topic.files().values()) == [b"one\n"]


# --- after a crash ------------------------------------------------------------------------------


def crashed(files: TopicFiles) -> None:
    """Leave the state of a killed process: everything unchanged, but unlocked."""
    files.abandon()


def test_what_was_not_synced_is_cut(topic: Topic) -> None:
    files = topic.open()
    files.write([b"safe"], topic.now)
    files.write([b"a line\nand a ha"], topic.now)
    with open(topic.out / "t.log", "ab") as file:
        file.write(b"lf")
    crashed(files)
    topic.open()
    assert topic.files() == {"t.log": b"safe\n"}
    assert topic.log.count("a crash left 18 bytes that were never acknowledged; 5 bytes") == 1


@pytest.mark.parametrize("work", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_a_torn_member_is_cut_and_the_file_finished(topic: Topic, codec: Codec, work: bool) -> None:
    files = topic.open(codec=codec, work=work)
    for body in (b"one", b"two"):
        files.write([body], topic.now)
        files.sync()
    [path] = (topic.work if work else topic.out).iterdir()
    sound = path.read_bytes()
    with path.open("ab") as file:
        file.write(sound[:-3])
    crashed(files)
    topic.open(codec=codec, work=work)
    assert topic.files() == {path.name: sound}
    assert not work or topic.files(topic.work) == {}
    assert not os.listxattr(topic.out / path.name)


@pytest.mark.parametrize("codec", CODECS)
def test_what_another_program_left_in_the_work_folder(topic: Topic, codec: Codec) -> None:
    member = codec.member()
    whole = member.add(b"whole\n") + member.end()
    topic.work.mkdir()
    (topic.work / f"t-000004.log{codec.suffix}").write_bytes(whole * 2 + whole[:-1])
    (topic.work / "other-000004.log").write_bytes(b"not ours")
    topic.open(codec=codec, work=True)
    assert topic.files() == {f"t-000004.log{codec.suffix}": whole * 2}
    assert list(topic.files(topic.work)) == ["other-000004.log"]


def test_a_long_last_line_that_was_never_ended(topic: Topic) -> None:
    topic.out.mkdir()
    (topic.out / "t.log").write_bytes(b"whole\n" + b"x" * 200_000)
    files = topic.open()
    files.write([b"next"], topic.now)
    assert topic.files() == {"t.log": b"whole\nnext\n"}


def test_a_file_that_was_linked_and_not_unlinked(topic: Topic) -> None:
    files = topic.open(work=True)
    files.write([b"one"], topic.now)
    crashed(files)
    topic.out.mkdir(exist_ok=True)
    os.link(topic.work / "t-000000.log", topic.out / "t-000000.log")
    topic.open(work=True)
    assert topic.files() == {"t-000000.log": b"one\n"} and topic.files(topic.work) == {}


def test_empty_files_of_a_crash_are_removed_if_none_are_wanted(topic: Topic) -> None:
    files = topic.open(work=True)
    files.tick(topic.now)
    crashed(files)
    topic.open(work=True, skip_empty=True)
    assert topic.files() == topic.files(topic.work) == {}


def test_finished_files_are_not_looked_into(topic: Topic) -> None:
    topic.out.mkdir()
    (topic.out / "t-000000.log.gz").write_bytes(b"whatever this is")
    topic.open(codec=Gzip(6))
    assert topic.files() == {"t-000000.log.gz": b"whatever this is"}


def test_without_attributes_the_last_file_is_looked_into(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    for call in ("getxattr", "setxattr", "removexattr"):
        monkeypatch.setattr(disks.os, call, unsupported)
    files = topic.open(codec=Gzip(6))
    files.write([b"one"], topic.now)
    files.sync()
    [path] = topic.out.iterdir()
    with open(path, "ab") as file:
        file.write(b"\x1f\x8b")
    crashed(files)
    topic.open(codec=Gzip(6))
    assert gzip.decompress(path.read_bytes()) == b"one\n"


@pytest.mark.parametrize("work", [False, True])
def test_nobody_touches_what_a_living_process_writes(topic: Topic, work: bool) -> None:
    one = topic.open(work=work, rotate_size=100)
    one.write([b"one"], topic.now)
    two = topic.open(work=work, rotate_size=100)
    two.write([b"two"], topic.now)
    one.write([b"more of one"], topic.now)
    one.finish()
    two.finish()
    assert topic.files() == {"t-000000.log": b"one\nmore of one\n", "t-000001.log": b"two\n"}


def test_a_file_without_revisions_has_one_writer(topic: Topic) -> None:
    one = topic.open()
    one.write([b"one"], topic.now)
    with pytest.raises(FileInUse, match=r"t\.log is being written by another process"):
        topic.open().write([b"two"], topic.now)
    assert topic.files() == {"t.log": b"one\n"}


def test_what_we_may_not_open_stays(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.work.mkdir()
    (topic.work / "t-000000.log").write_bytes(b"theirs")

    def refused(path: str) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    disk = Disk()
    monkeypatch.setattr(disk, "reopen", refused)
    topic.open(work=True, disk=disk)
    assert topic.files(topic.work) == {"t-000000.log": b"theirs"}
    assert topic.log.count("not repaired: Permission denied") == 1


# --- failures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_what_fails_is_not_counted_as_safe(topic: Topic, error: int) -> None:
    disk = MemoryDisk(lambda maximum: maximum)
    files = topic.open(disk=disk)
    files.write([b"one"], topic.now)
    files.write([b"two"], topic.now)
    disk.error, disk.fail_at = error, disk.calls + 2  # the sync after the note
    with pytest.raises(OSError, match=os.strerror(error)):
        files.sync()
    assert (files.written, files.synced) == (2, 1)


# --- the disk -----------------------------------------------------------------------------------


def test_locks_end_with_their_descriptor(tmp_path: Path) -> None:
    disk = Disk()
    path = str(tmp_path / "file")
    first, second = disk.open(path, exclusive=True), disk.open(path, exclusive=False)
    assert disk.lock(first) and not disk.lock(second)
    disk.close(first)
    assert disk.lock(second)
    with open(path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    disk.close(second)


def test_without_locks_and_syncs_of_folders_it_works_too(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(number: int) -> Any:
        def refuse(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return refuse

    monkeypatch.setattr(disks.fcntl, "flock", refusing(errno.ENOLCK))
    monkeypatch.setattr(disks.files, "sync_directory", refusing(errno.EINVAL))
    files = topic.open(work=True)
    files.write([b"one"], topic.now)
    files.finish()
    assert topic.files() == {"t-000000.log": b"one\n"}
    for broken in ((disks.fcntl, "flock"), (disks.files, "sync_directory")):
        monkeypatch.setattr(*broken, refusing(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            files.write([b"two"], topic.now)
        monkeypatch.undo()
        files.abandon()


def test_short_writes_and_reads_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, pread = os.write, os.pread
    monkeypatch.setattr(disks.os, "write", lambda fd, data: write(fd, data[:3]))
    monkeypatch.setattr(disks.os, "pread", lambda fd, count, at: pread(fd, min(count, 2), at))
    disk = Disk()
    fd = disk.open(str(tmp_path / "file"), exclusive=True)
    disk.write(fd, b"0123456789")
    assert disk.read(fd, 0, 100) == b"0123456789"
    disk.close(fd)


def test_other_errors_of_attributes_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    for call in ("getxattr", "setxattr", "removexattr"):
        monkeypatch.setattr(disks.os, call, broken)
    disk = Disk()
    fd = disk.open(str(tmp_path / "file"), exclusive=True)
    for failing in (
        lambda: disk.note(fd),
        lambda: disk.set_note(fd, b""),
        lambda: disk.drop_note(fd),
        lambda: disk.has_notes(str(tmp_path)),
    ):
        with pytest.raises(OSError, match="Input/output"):
            failing()
    disk.close(fd)


@pytest.mark.parametrize(
    "raw", [b"", b"2 0 0 00000000", b"1 0 0", b"1 -1 0 00000000", b"1 0 0 0000000g", b"\xff"]
)
def test_what_is_no_note(raw: bytes) -> None:
    assert Note.decoded(raw) is None
    note = Note(1, 2**40, 0xABC)
    assert Note.decoded(note.encoded()) == note
