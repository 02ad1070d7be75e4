"""The I/O threads: order, lanes, completions, sticky errors, the LRU, fault injection."""

import errno
import gc
import os
import select

import pytest

from nsqcy.storage.core import IoThread, crc32c
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import message, messages, run, walk


@pytest.fixture
def io():
    io = FaultyIoThread()
    yield io
    gc.collect()
    io.close()
    assert io.live() == {"ops": 0, "files": 0}


class Results(list):
    """Collects the errors of operations by name."""

    def named(self, name):
        return lambda error: self.append((name, error))


def test_a_file_that_may_not_be_written_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    io = FaultyIoThread()
    for number in (errno.EROFS, errno.EACCES):
        errors = []
        io.clear_faults()
        io.fault("open", 1, number)
        handle = io.open(path)
        into = bytearray(7)
        handle.read(into, 0, errors.append)
        io.drain_now()
        handle.write(b"changed", 0, errors.append)
        io.drain_now()
        assert (into, errors) == (b"content", [0, errno.EROFS])
    io.close()
    assert path.read_bytes() == b"content"


def test_ops_run_and_complete_in_order(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    for n in range(100):
        file.write(b"%03d." % n, n * 4, done.named(n))
    file.do("sync", done=done.named("sync"))
    into = bytearray(400)
    file.read(into, 0, done.named("read"))
    assert not done and io.outstanding == 102
    io.drain_now()
    assert done == [(n, 0) for n in range(100)] + [("sync", 0), ("read", 0)]
    assert into == b"".join(b"%03d." % n for n in range(100))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_eventfd_tells_of_completions(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    assert select.select([io.fileno()], [], [], 0)[0] == []
    file.write(b"x", 0, done.named("w"))
    io.kick_now()
    assert select.select([io.fileno()], [], [], 30)[0]
    io.poll_now()
    assert done == [("w", 0)]
    assert select.select([io.fileno()], [], [], 0)[0] == []


def test_nothing_runs_before_the_kick_and_a_busy_thread_is_not_woken(io, tmp_path):
    done = Results()
    io.hold("open")
    first = io.open(tmp_path / "a", create=True)
    first.write(b"x", 0, done.named("a"))
    io.wait_parked()
    wakeups = io.wakeups
    for _ in range(10):
        first.write(b"x", 0, done.named("b"))
        io.kick_now()
    assert io.wakeups == wakeups
    assert not (tmp_path / "a").exists()
    io.poll_now()
    assert not done
    io.release()
    io.drain_now()
    assert len(done) == 11


def test_a_raising_completion_leaves_the_others_to_the_next_poll(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)

    def boom(error):
        raise RuntimeError("boom")

    file.write(b"x", 0, boom)
    file.write(b"y", 1, done.named("y"))
    with pytest.raises(RuntimeError, match="boom"):
        io.drain_now()
    io.drain_now()
    assert done == [("y", 0)]


def test_completions_may_submit(io, tmp_path):
    left = [50]
    file = io.open(tmp_path / "a", create=True)

    def again(error):
        assert error == 0
        left[0] -= 1
        if left[0]:
            file.write(b"x", left[0], again)

    file.write(b"x", 0, again)
    io.drain_now()
    assert left == [0] and io.outstanding == 0


def held(io, file, lane, done):
    """Park the lane in a sync of the file."""
    io.hold("fdatasync")
    file.do("sync", done=done.named("sync"), lane=lane)
    io.wait_parked()


def until(io, done, count):
    """Wait for completions while a thread is parked, because draining is impossible then."""
    while len(done) < count:
        select.select([io.fileno()], [], [], 30)
        io.poll_now()


@pytest.mark.parametrize(("lane", "other"), [("awaited", "background"), ("background", "awaited")])
def test_nothing_waits_for_a_sync_of_another_lane(io, tmp_path, lane, other):
    done = Results()
    first, second = (io.open(tmp_path / name, create=True) for name in "ab")
    first.write(b"x", 0)
    second.write(b"x", 0)
    held(io, first, lane, done)
    first.write(b"y", 1, done.named("to the same file"))
    first.read(bytearray(2), 0, done.named("read"))
    second.do("fsync", done=done.named("another sync"), lane=other)
    io.kick_now()
    until(io, done, 3)
    assert sorted(done) == [("another sync", 0), ("read", 0), ("to the same file", 0)]
    first.do("sync", done=done.named("in its turn"), lane=lane)
    io.release()
    io.drain_now()
    assert done[3:] == [("sync", 0), ("in its turn", 0)]


def test_a_lane_begins_behind_what_was_submitted_before(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    io.hold("pwrite")
    file.write(b"x", 0, done.named("write"))
    file.do("sync", done=done.named("sync"), lane="background")
    io.wait_parked()
    assert io.calls_made("fdatasync") == 0
    io.release()
    io.drain_now()
    assert done == [("write", 0), ("sync", 0)]


@pytest.mark.slow
def test_a_mark_ends_behind_all_operations_in_its_lane(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    file.write(b"x", 0)
    held(io, file, "background", done)
    file.rename(tmp_path / "b", done.named("rename"), lane="background")
    io.on_path_now("mark", tmp_path, done.named("mark"), "background")
    io.on_path_now("mark", tmp_path, done.named("other mark"), "awaited")
    io.kick_now()
    until(io, done, 1)
    assert done == [("other mark", 0)] and os.listdir(tmp_path) == ["a"]
    io.release()
    io.drain_now()
    assert done == [("other mark", 0), ("sync", 0), ("rename", 0), ("mark", 0)]
    assert os.listdir(tmp_path) == ["b"]


def test_a_file_that_is_being_synced_stays_open(tmp_path):
    io = FaultyIoThread(open_limit=1)
    done = Results()
    files = [io.open(tmp_path / str(n), create=True) for n in range(3)]
    files[0].write(b"x", 0)
    held(io, files[0], "awaited", done)
    for file in files[1:]:
        file.write(b"x", 0, done.named("write"))
    io.kick_now()
    until(io, done, 2)
    assert io.open_files == 2 and io.calls_made("close") == 1
    files[0].write(b"y", 1)
    io.release()
    io.drain_now()
    assert io.calls_made("open") == 3  # each once
    del files, file
    io.close()


def test_a_sync_that_fails_elsewhere_fails_what_comes_after(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    file.write(b"x", 0)
    io.fault("fdatasync", 1, errno.EIO)
    held(io, file, "background", done)
    file.write(b"y", 1, done.named("meanwhile"))
    io.kick_now()
    until(io, done, 1)
    io.release()
    io.drain_now()
    file.write(b"z", 2, done.named("after"))
    file.rename(tmp_path / "b", done.named("rename"), lane="background")
    io.drain_now()
    assert done == [
        ("meanwhile", 0),
        ("sync", errno.EIO),
        ("after", errno.EIO),
        ("rename", errno.EIO),
    ]


def test_lanes_are_stepped_one_by_one(tmp_path):
    io = IoThread(stepped=True)
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    file.write(b"x", 0, done.named("first"))
    file.do("sync", done=done.named("sync"), lane="background")
    file.write(b"y", 1, done.named("second"))
    io.on_path_now("mark", tmp_path, done.named("mark"), "background")
    file.do("truncate", 1, done.named("truncate"))
    io.kick_now()
    assert not io.step_now("background")
    assert io.step_now("writes") and io.step_now("writes") and io.step_now("writes")
    assert not io.step_now("writes") and not io.step_now("awaited")
    assert io.step_now("background") and io.step_now("background")
    assert not io.step_now("background")
    io.drain_now()
    assert [name for name, _ in done] == ["first", "second", "truncate", "sync", "mark"]
    io.close()


@pytest.mark.slow
def test_a_failed_write_sticks_but_reading_goes_on(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    file.write(b"good", 0, done.named("first"))
    io.fault("pwrite", 2, errno.ENOSPC)
    file.write(b"bad", 4, done.named("second"))
    file.write(b"third", 4, done.named("third"))
    file.do("sync", done=done.named("sync"))
    file.rename(tmp_path / "b", done.named("rename"))
    into = bytearray(4)
    file.read(into, 0, done.named("read"))
    io.drain_now()
    assert done == [
        ("first", 0),
        ("second", errno.ENOSPC),
        ("third", errno.ENOSPC),
        ("sync", errno.ENOSPC),
        ("rename", errno.ENOSPC),
        ("read", 0),
    ]
    assert into == b"good"
    assert io.calls_made("pwrite") == 2 and io.calls_made("fdatasync") == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["sync", "fsync"])
def test_a_failed_sync_is_final(io, tmp_path, what):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    file.write(b"x", 0)
    io.fault("fdatasync" if what == "sync" else "fsync", 1, errno.EIO)
    file.do(what, done=done.named(1))
    file.do(what, done=done.named(2))
    file.write(b"y", 1, done.named(3))
    io.drain_now()
    assert done == [(1, errno.EIO), (2, errno.EIO), (3, errno.EIO)]
    assert io.calls_made("fsync") + io.calls_made("fdatasync") == 1


@pytest.mark.slow
def test_short_writes_and_reads_go_on_until_all_is_done(io, tmp_path):
    done = Results()
    io.fault("pwrite", 1, times=3, short=3)
    io.fault("pread", 1, times=2, short=5)
    file = io.open(tmp_path / "a", create=True)
    file.write(b"0123456789abcdef", 0, done.named("w"))
    into = bytearray(16)
    file.read(into, 0, done.named("r"))
    io.drain_now()
    assert done == [("w", 0), ("r", 0)] and into == b"0123456789abcdef"
    assert io.calls_made("pwrite") == 4 and io.calls_made("pread") == 3


def test_adjacent_writes_run_as_one(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    for n in range(20):
        file.write(b"%03d." % n, n * 4, done.named(n))
    file.write(b"overwritten", 0, done.named("not adjacent"))
    io.open(tmp_path / "b", create=True).write(b"b", 11, done.named("another file"))
    io.drain_now()
    names = [*range(20), "not adjacent", "another file"]
    assert done == [(name, 0) for name in names]
    # 16 of the writes, and the other four
    assert (io.calls_made("pwritev"), io.calls_made("pwrite")) == (2, len(names))
    content = b"".join(b"%03d." % n for n in range(20))
    assert (tmp_path / "a").read_bytes() == b"overwritten" + content[11:]


def test_large_writes_do_not_run_as_one(io, tmp_path):
    file = io.open(tmp_path / "a", create=True)
    half = 256 << 10
    for n in range(5):
        file.write(b"%d" % n * half, n * half)
    io.drain_now()
    assert (io.calls_made("pwritev"), io.calls_made("pwrite")) == (2, 5)
    assert (tmp_path / "a").read_bytes() == b"".join(b"%d" % n * half for n in range(5))


@pytest.mark.parametrize(
    ("short", "failing", "written"),
    [(-1, 1, 0), (-1, 2, 6), (-1, 3, 12), (-1, 4, 18), (3, 1, 0), (3, 2, 3), (3, 3, 6), (3, 4, 12)],
)
def test_writes_that_run_as_one_fail_separately(io, tmp_path, short, failing, written):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    if short > 0:
        io.fault("pwrite", 1, short=short)
    io.fault("pwrite", failing, errno.ENOSPC)
    for n in range(4):
        file.write(b"%05d." % n, n * 6, done.named(n))
    io.drain_now()
    assert done == [(n, 0 if n < written // 6 else errno.ENOSPC) for n in range(4)]
    content = b"".join(b"%05d." % n for n in range(4))
    assert (tmp_path / "a").read_bytes() == content[:written]


def test_a_short_write_then_a_full_disk(io, tmp_path):
    done = Results()
    io.fault("pwrite", 1, short=3)
    io.fault("pwrite", 2, errno.ENOSPC)
    io.open(tmp_path / "a", create=True).write(b"0123456789", 0, done.named("w"))
    io.drain_now()
    assert done == [("w", errno.ENOSPC)]
    assert (tmp_path / "a").read_bytes() == b"012"


def test_reading_past_the_end_says_so(io, tmp_path):
    done = Results()
    (tmp_path / "a").write_bytes(b"123")
    io.open(tmp_path / "a").read(bytearray(4), 0, done.named("r"))
    io.drain_now()
    assert done == [("r", errno.ENODATA)]


def test_creating_never_takes_an_existing_file(io, tmp_path):
    done = Results()
    (tmp_path / "a").write_bytes(b"precious")
    (tmp_path / "d").mkdir()
    io.open(tmp_path / "a", create=True).write(b"x", 0, done.named("file"))
    io.open(tmp_path / "d", create=True).write(b"x", 0, done.named("directory"))
    io.drain_now()
    assert done == [("file", errno.EEXIST), ("directory", errno.EISDIR)]
    assert (tmp_path / "a").read_bytes() == b"precious"


def test_replace_empties_once(io, tmp_path):
    (tmp_path / "a").write_bytes(b"longer than what comes")
    file = io.open(tmp_path / "a", replace=True)
    file.write(b"new", 0)
    file.do("close")
    file.write(b"er", 3)
    io.drain_now()
    assert (tmp_path / "a").read_bytes() == b"newer"


def test_parent_is_made_when_missing(io, tmp_path):
    done = Results()
    io.open(tmp_path / "d" / "a", create=True, parent=True).write(b"x", 0, done.named("a"))
    io.open(tmp_path / "d" / "b", create=True, parent=True).write(b"x", 0, done.named("b"))
    io.open(tmp_path / "e" / "f" / "c", create=True, parent=True).write(b"", 0)
    io.open(tmp_path / "e" / "f" / "c", create=True, parent=True).write(b"x", 0, done.named("c"))
    io.drain_now()
    assert done == [("a", 0), ("b", 0), ("c", errno.ENOENT)]
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


def test_paths(io, tmp_path):
    done = Results()
    io.on_path_now("mkdir", tmp_path / "d", done.named("mkdir"))
    io.on_path_now("mkdir", tmp_path / "d", done.named("again"))
    file = io.open(tmp_path / "d" / "a.tmp", create=True)
    file.write(b"x", 0)
    file.rename(tmp_path / "d" / "a", done.named("rename"))
    file.write(b"y", 1, done.named("under its new name"))
    io.on_path_now("sync", tmp_path / "d", done.named("sync"))
    io.drain_now()
    assert (tmp_path / "d" / "a").read_bytes() == b"xy"
    io.on_path_now("rmdir", tmp_path / "d", done.named("not empty"))
    file.do("unlink", done=done.named("unlink"))
    io.on_path_now("unlink", tmp_path / "d" / "a", done.named("gone"))
    io.on_path_now("rmdir", tmp_path / "d", done.named("rmdir"))
    io.drain_now()
    assert done == [
        ("mkdir", 0),
        ("again", errno.EEXIST),
        ("rename", 0),
        ("under its new name", 0),
        ("sync", 0),
        ("not empty", errno.ENOTEMPTY),
        ("unlink", 0),
        ("gone", errno.ENOENT),
        ("rmdir", 0),
    ]
    assert os.listdir(tmp_path) == []


def test_truncate(io, tmp_path):
    file = io.open(tmp_path / "a", create=True)
    file.write(b"0123456789", 0)
    file.do("truncate", 4)
    io.drain_now()
    assert (tmp_path / "a").read_bytes() == b"0123"


def test_only_so_many_files_are_open(tmp_path):
    io = FaultyIoThread(open_limit=4)
    files = [io.open(tmp_path / str(n), create=True) for n in range(20)]
    for turn in range(3):
        for n, file in enumerate(files):
            file.write(b"%d" % n, turn * 2)
        io.drain_now()
        assert io.open_files == 4
    assert io.calls_made("open") == 60
    files[19].write(b"x", 6)  # still open, because this file was used last
    io.drain_now()
    assert io.calls_made("open") == 60
    for n in range(20):
        assert (tmp_path / str(n)).read_bytes().startswith(b"%d" % n)
    del files, file
    io.drain_now()
    assert io.open_files == 0
    io.close()
    assert io.live() == {"ops": 0, "files": 0}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_idle_files_are_closed_for_want_of_descriptors(io, tmp_path, number):
    done = Results()
    files = [io.open(tmp_path / str(n), create=True) for n in range(5)]
    for file in files[:4]:
        file.write(b"x", 0)
    io.drain_now()
    io.fault("open", 1, number, times=2)
    files[4].write(b"x", 0, done.named("write"))
    io.drain_now()
    assert done == [("write", 0)] and io.open_files == 3  # the oldest two have been closed
    io.fault("open", 1, number, times=1)
    io.on_path_now("sync", tmp_path, done.named("sync"))
    io.drain_now()
    assert done[1:] == [("sync", 0)] and io.open_files == 2


def test_idle_files_are_closed_to_keep_the_reserve(tmp_path):
    """Every descriptor is in the reserve here, so each new file replaces an older one."""
    io = IoThread(first_reserved=0)
    done = Results()
    files = [io.open(tmp_path / str(n), create=True) for n in range(5)]
    for number in (0, 1, 2, 3, 4, 0):
        files[number].write(b"x", 0, done.named(number))
        io.drain_now()
    assert done == [(number, 0) for number in (0, 1, 2, 3, 4, 0)] and io.open_files == 1
    io.close()


def test_without_idle_files_the_error_is_reported(io, tmp_path):
    done = Results()
    io.fault("open", 1, errno.EMFILE)
    io.open(tmp_path / "a", create=True).write(b"x", 0, done.named("write"))
    io.drain_now()
    assert done == [("write", errno.EMFILE)]


def test_a_dropped_file_is_closed_after_its_ops(io, tmp_path):
    done = Results()
    io.open(tmp_path / "a", create=True).write(b"x", 0, done.named("w"))
    assert io.live()["files"] == 1
    io.drain_now()
    assert done == [("w", 0)] and io.live()["files"] == 0 and io.open_files == 0


def test_closed_thread_refuses(tmp_path):
    io = IoThread()
    io.close()
    io.close()
    with pytest.raises(ValueError, match="closed"):
        io.open(tmp_path / "a", create=True).write(b"x", 0)
    assert not hasattr(io, "fault")  # only a FaultyIoThread has faults
    del io


def test_a_forgotten_thread_still_carries_out_what_was_submitted(tmp_path):
    io = IoThread()
    io.open(tmp_path / "a", create=True).write(b"x", 0)
    del io
    assert (tmp_path / "a").read_bytes() == b"x"


def test_records_are_sealed_in_place(io, tmp_path):
    done = Results()
    batch = messages(1, 10)
    image = run(batch)
    io.open(tmp_path / "a", create=True).write_records(image, 0, done.named("w"))
    io.drain_now()
    assert done == [("w", 0)]
    assert image == run(batch, crc=True) == (tmp_path / "a").read_bytes()
    assert [found.message for found in walk(image)] == batch


@pytest.mark.parametrize("count", range(1, 9))
def test_records_of_any_sizes_are_sealed(io, tmp_path, count):
    sizes = [0, 200, 8, 1000, 1, 33, 64, 7]
    batch = [message(seq + 1, size) for seq, size in enumerate(sizes[:count])]
    file = io.open(tmp_path / "a", create=True)
    for order in batch, batch[::-1], [message(9, 500), *batch]:
        image = run(order)
        file.write_records(image, 0)
        io.drain_now()
        assert image == run(order, crc=True)


def test_what_is_not_records_stops_the_writes_behind_it(io, tmp_path):
    done = Results()
    file = io.open(tmp_path / "a", create=True)
    good = run(messages(1, 4))
    file.write_records(good, 0, done.named("good"))
    file.write_records(bytearray(64), len(good), done.named("zeros"))
    file.write_records(run(messages(5, 1)), len(good) + 64, done.named("behind"))
    io.drain_now()
    assert done == [("good", 0), ("zeros", errno.EINVAL), ("behind", errno.EINVAL)]
    assert (tmp_path / "a").read_bytes() == run(messages(1, 4), crc=True)


def test_what_is_not_records_is_not_written(io, tmp_path):
    done = Results()
    io.open(tmp_path / "a", create=True).write_records(bytearray(64), 0, done.named("w"))
    io.drain_now()
    assert done == [("w", errno.EINVAL)]


def test_unknown_call():
    io = FaultyIoThread()
    with pytest.raises(ValueError, match="unknown call"):
        io.fault("chmod")
    with pytest.raises(ValueError, match="counts from 1"):
        io.fault("open", 0)
    for _ in range(16):
        io.fault("open", 100)
    with pytest.raises(ValueError, match="too many"):
        io.fault("open", 100)
    io.close()


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (b"\0" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_crc32c_vectors(data, crc):
    assert crc32c(data) == crc
    assert crc32c(data, software=True) == crc


def test_crc32c_continues_and_both_ways_agree():
    data = os.urandom(300)
    for n in range(300):
        whole = crc32c(data[:n])
        assert whole == crc32c(data[:n], software=True)
        assert whole == crc32c(data[n // 3 : n], crc32c(data[: n // 3]))


def test_without_a_thread_ops_are_made_one_by_one(tmp_path):
    io = IoThread(stepped=True)
    file = io.open(tmp_path / "file", create=True)
    answers = []
    file.write(b"one", 0, answers.append)
    file.write(b"two", 3, answers.append)
    assert not io.step_now()
    io.kick_now()
    assert io.step_now()
    io.poll_now()
    assert (tmp_path / "file").read_bytes() == b"one" and answers == [0]
    io.drain_now()
    assert (tmp_path / "file").read_bytes() == b"onetwo" and answers == [0, 0]
    assert not io.step_now()
    file.write(b"three", 6)
    del file
    io.close()
    assert (tmp_path / "file").read_bytes() == b"onetwothree"


def test_a_record_of_what_was_changed(tmp_path):
    io = FaultyIoThread()
    path = str(tmp_path / "file")
    file = io.open(path, create=True)
    file.write(b"before", 0)
    io.drain_now()
    io.record()
    io.fault("pwrite", 1, short=2)
    io.fault("fdatasync", 1, errno.EIO)
    file.write(b"abc", 6)
    file.do("truncate", 8)
    file.rename(path + "2")
    file.do("sync")
    file.do("unlink")
    io.on_path_now("mkdir", path)
    io.drain_now()
    calls = [
        (name, at and at.removeprefix(path), to and to.removeprefix(path), data, offset, error)
        for name, _, at, to, data, offset, _, error in io.recorded()
    ]
    assert calls == [
        ("pwrite", None, None, b"ab", 6, 0),
        ("pwrite", None, None, b"c", 8, 0),
        ("ftruncate", None, None, b"", 8, 0),
        ("rename", "", "2", b"", 0, 0),
        ("fdatasync", None, None, b"", 0, errno.EIO),
        ("unlink", "2", None, b"", 0, 0),
        ("mkdir", "", None, b"", 0, 0),
    ]
    assert io.recorded() == []
    del file
    io.close()
