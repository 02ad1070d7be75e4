"""One topic's log: appending, rolling, reading, releasing, failing, recovering."""

import errno
import gc
import os
import random
import select
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsqcy.formats import FormatError
from nsqcy.storage.core import (
    Log,
    LogProbe,
    RunHandle,
    Unreadable,
    live,
    parse_journal,
    recover_log,
    recovered_runs,
    scan_segment,
    topic_directory,
    verify_run,
)
from nsqcy.storage.io_faults import FaultyIoThread
from support import disk_format
from support.disk_format import Message, message, messages, record, run, segment_messages, walk
from support.runs import runs

SURVIVORS, HAS_DELAYED = 1, 2
STOPPED: list[FaultyIoThread] = []


class Disk:
    """A log on real files, with everything that it reports."""

    def __init__(self, path, topic="t", make=True, **options):
        self.path = Path(path)
        if make:
            self.path.mkdir(exist_ok=True)
        self.directory = self.path / f"{topic}.topic"
        self.io = FaultyIoThread()
        self.damages = []
        self.errors = []
        self.log = Log(self.io, path, topic, on_damage=self._damage, **options)
        self.probe = LogProbe(self.log)

    def _damage(self, path, offset, text):
        self.damages.append((Path(path).name, offset, text))

    def append(self, batch, flags=0, into=None, done=None, **more):
        handle = self.probe.append(
            run(batch),
            batch[0].seq,
            batch[-1].seq,
            len(batch),
            flags,
            into,
            self.errors.append if done is None else done,
            **more,
        )
        return handle

    def wrote(self, batch, **more):
        """Append and wait."""
        handle = self.append(batch, **more)
        self.io.drain_now()
        return handle

    def synced(self):
        """Sync; wait for it and for the footers that it writes."""
        answers = []
        self.probe.sync(answers.append)
        self.io.drain_now()
        assert answers == [0]

    def read(self, handle):
        got = []
        self.probe.read(handle, lambda error, data: got.append((error, data)))
        self.io.drain_now()
        ((error, data),) = got
        assert error == 0, os.strerror(error)
        return walk(data)

    def messages(self, handle):
        found = self.read(handle)
        assert not any(one.damaged for one in found)
        return [one.message for one in found]

    def segments(self):
        return sorted(self.directory.glob("*.seg"))

    def durable(self, batch, done):
        """Append; `done` gets the first seq and the error."""
        first = batch[0].seq
        handle = self.probe.append(
            run(batch),
            first,
            batch[-1].seq,
            len(batch),
            done=lambda error: done.append((first, error)),
            durable=True,
        )
        self.probe.commit()
        return handle

    def run(self, seq, done):
        """Append a single record that is not durable."""
        return self.append(messages(seq, 1), done=lambda error: done.append((seq, error)))

    def wait_for(self, answers, count=1):
        """Wait for answers while a thread is parked, because draining is impossible then."""
        while len(answers) < count:
            assert select.select([self.io.fileno()], [], [], 30)[0]
            self.io.poll_now()

    def wait_for_calls(self, call, count):
        """Check the number of calls, for which there is no completion to wait for."""
        answers = []
        self.io.on_path_now("unlink", self.path / "nothing", answers.append)
        self.io.kick_now()
        self.wait_for(answers)
        assert self.io.calls_made(call) == count

    def close(self):
        """Exit cleanly."""
        answers = []
        self.probe.close(answers.append)
        self.io.drain_now()
        self.stop()
        return answers

    def stop(self):
        """End the process without closing the log; submitted operations have been carried out."""
        self.probe = self.log = None
        self.io.release()  # a failed test may have left a thread parked
        self.io.close()
        STOPPED.append(self.io)


@pytest.fixture
def disk(tmp_path):
    disk = Disk(tmp_path)
    yield disk
    if disk.log is not None:
        disk.stop()


@pytest.fixture(autouse=True)
def balanced():
    yield
    gc.collect()
    assert live() == {"tasks": 0, "segments": 0, "pieces": 0}
    for io in STOPPED:
        assert io.live() == {"ops": 0, "files": 0}
    STOPPED.clear()


def recovered(path, topic="t"):
    """Return the messages that are readable at startup, the recovered log, and the damage found."""
    disk = Disk(path, topic)
    found = recover_log(disk.log)
    readable = {}
    for first, last, count, _flags, _first_time, _last_time, handle in recovered_runs(found):
        records = disk.read(handle)
        assert len(records) == count
        assert [r.message.seq for r in records] == sorted({r.message.seq for r in records})
        assert first <= records[0].message.seq and records[-1].message.seq <= last
        for one in records:
            if not one.damaged:
                readable[one.message.seq] = one.message
        del handle
    damages = disk.damages
    disk.stop()
    return readable, found, damages


# ---- durable runs ----


def durable(disk, first, count=10):
    return disk.probe.append(
        run(messages(first, count)), first, first + count - 1, count, done=disk.errors.append,
        durable=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_durable_run_is_done_when_it_is_synced(disk):
    disk.io.hold("fdatasync")
    durable(disk, 1)
    disk.probe.commit()
    disk.io.kick_now()
    disk.io.wait_parked()
    disk.io.poll_now()
    assert disk.errors == []
    disk.io.release()
    disk.io.drain_now()
    assert disk.errors == [0]


@pytest.mark.slow
def test_writes_during_a_sync_share_the_next_sync(disk):
    disk.io.hold("fdatasync")
    durable(disk, 1)
    disk.probe.commit()
    disk.io.kick_now()
    disk.io.wait_parked()
    for first in (11, 21, 31):
        durable(disk, first)
        disk.probe.commit()
    disk.io.release()
    disk.io.drain_now()
    assert disk.errors == [0] * 4
    assert disk.io.calls_made("fdatasync") == 2


@pytest.mark.slow
def test_a_durable_run_needs_no_asking(disk):
    durable(disk, 1)
    disk.io.drain_now()
    assert disk.errors == [0]


@pytest.mark.slow
def test_a_failed_sync_fails_all_that_waited_for_it(tmp_path):
    disk = Disk(tmp_path)
    first = durable(disk, 1)
    disk.io.drain_now()
    disk.io.fault("fdatasync", 1, errno.EIO)
    second, third = durable(disk, 11), durable(disk, 21)
    disk.io.drain_now()
    assert disk.errors == [0, errno.EIO, errno.EIO]
    assert disk.log.last_error_text.endswith("00000000000000000001.seg: input/output error")
    for handle, seq in ((second, 11), (third, 21)):
        disk.probe.retract(handle, handle.bytes, seq, 10)
    durable(disk, 11, 5)
    disk.io.drain_now()
    assert disk.errors == [0, errno.EIO, errno.EIO, 0]
    assert len(disk.segments()) == 2 and first.bytes
    del first
    disk.stop()
    readable, _, _ = recovered(tmp_path)
    assert sorted(readable) == list(range(1, 16))  # the file was truncated to the synced part


@pytest.mark.slow
def test_failures_are_reported_in_the_order_of_the_runs(disk):
    disk.io.hold("fdatasync")
    told = []
    for first in (1, 11):
        disk.probe.append(
            run(messages(first, 10)), first, first + 9, 10, durable=True,
            done=lambda error, first=first: told.append((first, error)),
        )  # fmt: skip
        if first == 1:
            disk.probe.commit()
            disk.io.kick_now()
            disk.io.wait_parked()
            disk.io.fault("pwrite", 1, errno.ENOSPC)
    disk.io.kick_now()
    disk.io.release()
    disk.io.drain_now()
    assert told == [(1, 0), (11, errno.ENOSPC)]


# ---- runs that the next run continues ----


def parts(disk, count, durable=False):
    """Append this number of runs of 10 messages that form a single run, and then a separate run."""
    return [
        disk.append(messages(10 * n + 1, 10, 33), goes_on=n < count - 1, durable=durable)
        for n in range(count + 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_runs_that_go_on_are_done_with_the_last_of_them(disk, durable):
    disk.io.hold("pwrite", 4)  # after the header and two runs
    handles = parts(disk, 3, durable)
    disk.io.kick_now()
    disk.io.wait_parked()
    disk.io.poll_now()
    assert disk.errors == []
    disk.io.release()
    disk.io.drain_now()
    assert disk.errors == [0] * 4
    assert [one.seq for each in handles for one in disk.messages(each)] == [*range(1, 41)]
    for handle in handles:
        disk.probe.release(handle)


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_runs_that_go_on_fail_together(tmp_path, durable, nth):
    disk = Disk(tmp_path)
    before = disk.wrote(messages(100, 1), durable=durable)
    disk.io.fault("pwrite", nth - 1, errno.ENOSPC)
    handles = parts(disk, 3, durable)
    disk.io.drain_now()
    assert disk.errors == [0] + [errno.ENOSPC] * 4
    assert disk.log.last_error_text.endswith(".seg: no space left on device")
    for n, handle in enumerate(handles):
        disk.probe.retract(handle, handle.bytes, 10 * n + 1, 10)
    disk.io.drain_now()
    assert disk.messages(before) == messages(100, 1)
    del before, handles
    disk.stop()
    readable, _, _ = recovered(tmp_path)
    assert list(readable) == [100]


def test_runs_that_go_on_lie_in_one_segment(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=1000)
    handles = parts(disk, 3)
    disk.io.drain_now()
    assert [[piece[0] for piece in each.pieces] for each in handles] == [[1], [1], [1], [31]]
    for handle in handles:
        disk.probe.release(handle)
    disk.io.drain_now()
    disk.stop()


# ---- appending and reading ----


def test_appended_messages_are_read_back(disk):
    batch = messages(1, 100, 33)
    handle = disk.append(batch)
    assert handle.pieces == [(1, 64, 100 * 80, 1, 100, 100)]  # the position is known immediately
    assert not disk.directory.exists()
    disk.io.drain_now()
    assert disk.errors == [0]
    assert disk.messages(handle) == batch
    assert [p.name for p in disk.segments()] == ["00000000000000000001.seg"]
    assert disk.log.disk_bytes == 8000
    disk.probe.release(handle)


@pytest.mark.slow
@pytest.mark.parametrize("topic", [".", "..", "...", "a.b-c_D9", "x#ephemeral", "-"])
def test_every_topic_name_is_a_directory_name(tmp_path, topic):
    disk = Disk(tmp_path, topic)
    disk.wrote(messages(1, 1))
    assert os.listdir(tmp_path) == [f"{topic}.topic"]
    assert (tmp_path / f"{topic}.topic" / "00000000000000000001.seg").exists()
    disk.stop()


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["", "a/b", "../x", "a#b", "é", "a\0", "#ephemeral", "a\n"])
def test_other_names_are_refused(tmp_path, topic):
    with pytest.raises(ValueError, match="not a topic name"):
        topic_directory(topic)


def test_a_run_that_follows_extends_its_extent_and_a_roll_chains_it(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=64 + 48 * 10)
    handle = None
    for seq in range(1, 26):
        handle = disk.append(messages(seq, 1, 8), into=handle)
    disk.io.drain_now()
    assert handle.pieces == [
        (1, 64, 480, 1, 10, 10),
        (11, 64, 480, 11, 20, 10),
        (21, 64, 240, 21, 25, 5),
    ]
    assert disk.messages(handle) == messages(1, 25, 8)
    disk.synced()
    assert segment_messages(disk.segments()[0]) == messages(1, 10, 8)
    disk.probe.release(handle)
    disk.io.drain_now()
    assert handle.pieces == [] and [p.name[18:20] for p in disk.segments()] == ["21"]
    disk.stop()


def test_other_runs_between_chain_the_extent(disk):
    first = disk.append(messages(1, 2))
    other = disk.append(messages(3, 2))
    disk.append(messages(5, 2), into=first)
    disk.io.drain_now()
    assert len(first.pieces) == 2
    assert disk.messages(first) == messages(1, 2) + messages(5, 2)
    assert disk.messages(other) == messages(3, 2)


def test_footer_of_a_rolled_segment(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=4096)
    kept = [
        disk.append(messages(1, 10)),
        disk.append(messages(11, 5)),
        disk.append([message(2), message(7)], flags=SURVIVORS),
        disk.append([message(16, 30, delay=5)]),
    ]
    kept.append(disk.append(messages(17, 100)))
    disk.synced()
    footer = disk_format.footer(disk.segments()[0].read_bytes())
    stamp = 1_700_000_000_000_000_000
    size = len(record(message(1)))
    wide = len(record(message(16, 30, delay=5)))
    assert footer.records == 18 and (footer.first_seq, footer.last_seq) == (1, 16)
    assert footer.max_id == 16 * 16 + 1
    assert footer.data_end == 64 + 17 * size + wide
    assert footer.runs == [
        (1, 15, 64, 15 * size, 15, 0, stamp + 1, stamp + 15),
        (2, 7, 64 + 15 * size, 2 * size, 2, SURVIVORS, stamp + 2, stamp + 7),
        (16, 16, 64 + 17 * size, wide, 1, HAS_DELAYED, stamp + 16, stamp + 16),
    ]
    del kept
    disk.stop()


def test_one_record_a_segment(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=1)
    kept = [disk.append(messages(seq, 1, 5)) for seq in range(1, 51)]
    disk.io.drain_now()
    assert len(disk.segments()) == 50
    for handle, seq in zip(kept, range(1, 51), strict=True):
        assert disk.messages(handle) == messages(seq, 1, 5)
    assert disk.close() == [0]
    readable, found, damages = recovered(tmp_path)
    assert sorted(readable) == list(range(1, 51)) and found.clean and not damages


@pytest.mark.slow
@pytest.mark.parametrize("backlog", [0, 1, 2])
def test_rolling_a_drained_queue_leaves_nothing_behind(tmp_path, backlog):
    disk = Disk(tmp_path, max_bytes_per_file=64 + 48 * 4)
    queue = []
    for seq in range(1, 101):
        queue.append((seq, disk.wrote(messages(seq, 1, 8))))
        while len(queue) > backlog:
            one, handle = queue.pop(0)
            assert disk.messages(handle) == messages(one, 1, 8)
            disk.probe.release(handle)
        disk.io.drain_now()
        assert len(disk.segments()) <= 2
    assert not disk.damages and disk.log.last_error_text == ""
    assert disk.close() == [0]
    readable, found, _ = recovered(tmp_path)
    assert set(range(101 - backlog, 101)) <= set(readable)
    assert found.clean and not found.damages and found.next_seq == 101


@pytest.mark.slow
def test_ten_thousand_runs(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=100_000)
    kept = [disk.append(messages(seq, 1, 8)) for seq in range(1, 10_001)]
    disk.io.drain_now()
    assert disk.errors == [0] * 10_000
    for handle in kept[::97]:
        disk.messages(handle)
    assert disk.close() == [0]
    readable, found, damages = recovered(tmp_path)
    assert readable == {seq: message(seq, 8) for seq in range(1, 10_001)}
    assert len(recovered_runs(found)) < 20  # the index is sparse
    assert found.next_seq == 10_001 and found.max_id == 160_001 and not damages


@pytest.mark.slow
def test_a_record_larger_than_a_segment_has_one_of_its_own(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=1000)
    kept = [disk.append([message(seq, size)]) for seq, size in ((1, 10), (2, 100_000), (3, 10))]
    disk.synced()
    assert [len(segment_messages(p)) for p in disk.segments()[:2]] == [1, 1]
    assert disk.messages(kept[1]) == [message(2, 100_000)]
    assert disk.close() == [0]


@pytest.mark.slow
def test_a_malformed_run_is_rejected(disk):
    for image, first, last, count in (
        (b"", 1, 1, 1),
        (b"x" * 47, 1, 1, 1),
        (b"x" * 48, 2, 1, 1),
        (b"x" * 48, 1, 1, 0),
    ):
        with pytest.raises(ValueError, match="not a run"):
            disk.probe.append(bytearray(image), first, last, count)
    with pytest.raises(ValueError, match="empty extent"):
        disk.probe.read(RunHandle(disk.log), None)


# ---- names ----


@pytest.mark.slow
def test_survivors_at_a_roll_get_a_name_of_their_own(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=300)
    old = disk.append(messages(1, 4, 8))
    mid = disk.append(messages(5, 4, 8))
    copies = disk.append([message(1, 8), message(3, 8), message(6, 8)], flags=SURVIVORS)
    more = disk.append(messages(9, 4, 8))
    disk.io.drain_now()
    assert [int(p.name[:20]) for p in disk.segments()] == [1, 5, 6, 9]
    disk.probe.release(old)
    disk.probe.release(mid)
    disk.io.drain_now()
    assert disk.messages(copies) == [message(1, 8), message(3, 8), message(6, 8)]
    assert disk.messages(more) == messages(9, 4, 8)
    assert disk.close() == [0]
    readable, found, _ = recovered(tmp_path)
    assert sorted(readable) == [1, 3, 6, 9, 10, 11, 12]
    assert [one[:4] for one in recovered_runs(found)] == [(1, 6, 3, SURVIVORS), (9, 12, 4, 0)]


@pytest.mark.slow
def test_a_start_never_writes_into_existing_segments(tmp_path):
    for start in range(4):
        disk = Disk(tmp_path)
        found = recover_log(disk.log)
        before = {p: p.read_bytes() for p in disk.segments()}
        assert found.next_seq == start * 3 + 1
        runs = [one[6] for one in recovered_runs(found)]
        disk.wrote(messages(found.next_seq, 3))
        assert {p: p.read_bytes() for p in before} == before
        assert len(disk.segments()) == start + 1
        del runs, found
        disk.close() if start % 2 else disk.stop()
    assert sorted(recovered(tmp_path)[0]) == list(range(1, 13))


@pytest.mark.slow
def test_without_recovery_existing_data_is_not_overwritten(tmp_path):
    disk = Disk(tmp_path)
    disk.wrote(messages(1, 3))
    disk.close()
    before = disk.segments()[0].read_bytes()
    disk = Disk(tmp_path)
    handle = disk.wrote(messages(1, 3, 50))
    assert disk.errors == [errno.EEXIST] and disk.log.last_error_text.endswith(": file exists")
    disk.probe.retract(handle, handle.bytes, 1, 3)
    handle = disk.wrote(messages(1, 3, 50))
    assert disk.errors[1:] == [0] and disk.messages(handle) == messages(1, 3, 50)
    assert disk.segments()[0].read_bytes() == before
    disk.stop()


# ---- syncing ----


@pytest.mark.slow
def test_sync_every(tmp_path):
    disk = Disk(tmp_path, sync_every=10)
    kept = [disk.append(messages(seq, 1)) for seq in range(1, 36)]
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 3
    assert disk.io.calls_made("fsync") == 2  # the new directory and its parent
    del kept
    disk.stop()


@pytest.mark.slow
def test_sync_timeout(disk):
    assert disk.probe.tick(5) == 0
    disk.wrote(messages(1, 1))
    assert disk.probe.tick(10) == 5 + 2_000_000_000
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 0
    assert disk.probe.tick(5 + 2_000_000_000) == 0
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 1
    assert disk.probe.tick(10**12) == 0  # nothing new, so nothing to sync
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 1


@pytest.mark.slow
def test_a_rolled_segment_gets_its_footer_with_the_next_sync(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=100)
    kept = [disk.wrote(messages(1, 1)), disk.wrote(messages(2, 1))]
    first = disk.segments()[0]
    assert disk.io.calls_made("fdatasync") == 0 and disk_format.footer(first.read_bytes()) is None
    assert disk.probe.tick(2_000_000_000) == 0
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 3  # both segments, and the footer
    assert segment_messages(first) == messages(1, 1)
    del kept
    disk.stop()


@pytest.mark.slow
def test_an_unneeded_rolled_segment_is_never_synced(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=100)
    handle = disk.wrote(messages(1, 1))
    kept = disk.wrote(messages(2, 1))
    disk.probe.release(handle)
    disk.io.drain_now()
    assert [path.name[18:20] for path in disk.segments()] == ["02"]
    assert disk.io.calls_made("fdatasync") == 0
    del kept
    disk.stop()


@pytest.mark.slow
def test_sync_answers_after_the_disk_did(disk):
    answers = []
    disk.append(messages(1, 1), done=lambda error: answers.append(("run", error)))
    disk.probe.sync(lambda error: answers.append(("sync", error)))
    disk.io.hold("fdatasync")
    disk.io.wait_parked()
    disk.io.poll_now()
    assert answers == [("run", 0)]
    disk.io.release()
    disk.io.drain_now()
    assert answers == [("run", 0), ("sync", 0)]


@pytest.mark.slow
def test_sync_of_nothing_answers(disk):
    answers = []
    disk.probe.sync(answers.append)
    disk.io.drain_now()
    assert answers == [0] and disk.io.calls_made("fdatasync") == 0


@pytest.mark.slow
def test_sync_covers_a_segment_that_was_just_rolled(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=100)
    answers = []
    disk.append(messages(1, 1))
    disk.io.fault("fdatasync", 1, errno.EIO)  # the sync of the rolled segment
    disk.append(messages(2, 1))
    disk.probe.sync(answers.append)
    disk.probe.sync(answers.append)
    disk.io.drain_now()
    assert answers == [errno.EIO, errno.EIO]
    disk.probe.sync(answers.append)
    disk.io.drain_now()
    assert answers[2:] == [0]
    disk.stop()


@pytest.mark.slow
def test_a_failed_background_sync_is_reported_to_the_next_caller(tmp_path):
    disk = Disk(tmp_path, sync_every=2)
    answers = []
    disk.io.fault("fdatasync", 1, errno.EIO)
    disk.wrote(messages(1, 2))
    disk.wrote(messages(3, 1))
    for _ in range(2):
        disk.probe.sync(answers.append)
        disk.io.drain_now()
    assert answers == [errno.EIO, 0]
    disk.stop()


@pytest.mark.slow
def test_records_after_a_sync_request_share_its_failure(disk):
    answers = []
    disk.append(messages(1, 1))
    disk.probe.sync(answers.append)
    disk.io.fault("fdatasync", 1, errno.EIO)
    disk.io.hold("fdatasync")
    disk.io.wait_parked()
    disk.append(messages(2, 1), done=lambda error: answers.append(("run", error)))
    disk.io.kick_now()
    disk.wait_for(answers)
    disk.io.release()
    disk.io.drain_now()
    disk.probe.sync(answers.append)
    disk.io.drain_now()
    assert answers == [("run", 0), errno.EIO, errno.EIO]


def test_no_write_waits_for_a_background_sync(disk, tmp_path):
    """Writes of the same log do not wait, and neither do durable runs of another log."""
    other = Log(disk.io, tmp_path, "other")
    done = []
    kept = [disk.wrote(messages(1, 1))]
    disk.io.hold("fdatasync")
    assert disk.probe.tick(2_000_000_000) == 0
    disk.io.wait_parked()
    kept.append(disk.append(messages(2, 1), done=done.append))
    kept.append(
        LogProbe(other).append(run(messages(1, 1)), 1, 1, 1, done=done.append, durable=True)
    )
    disk.io.kick_now()
    disk.wait_for(done, 2)
    assert done == [0, 0] and disk.io.calls_made("fdatasync") == 2
    assert disk.probe.tick(4_000_000_000) == 4_000_000_000  # one sync at a time
    disk.io.release()
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 2
    assert disk.probe.tick(4_000_000_000) == 0
    disk.io.drain_now()
    assert disk.io.calls_made("fdatasync") == 3


def test_a_sync_answers_for_nothing_that_was_written_meanwhile(disk):
    done = []
    disk.io.hold("fdatasync")
    kept = [disk.durable(messages(1, 1), done)]
    disk.io.wait_parked()
    kept.append(disk.durable(messages(2, 1), done))
    disk.wait_for_calls("pwrite", 3)  # the header and both runs
    disk.io.release()
    disk.io.hold("fdatasync")  # the next sync
    disk.wait_for(done)
    disk.io.wait_parked()
    disk.io.poll_now()
    assert done == [(1, 0)]
    disk.io.release()
    disk.io.drain_now()
    assert done == [(1, 0), (2, 0)]


def test_a_leading_snapshot_is_in_place_before_later_writes_are_done(disk):
    done = []
    kept = [disk.wrote(messages(1, 1))]
    disk.io.hold("rename")
    disk.probe.write_snapshot(b"it", lambda error: done.append("snapshot"), leads=True)
    disk.io.wait_parked()
    writes = disk.io.calls_made("pwrite")
    kept.append(disk.append(messages(2, 1), done=done.append))
    kept.append(disk.durable(messages(3, 1), done))
    disk.io.kick_now()
    disk.wait_for_calls("pwrite", writes + 2)
    disk.io.poll_now()
    assert done == []
    disk.io.release()
    disk.io.drain_now()
    assert done == [0, "snapshot", (3, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("durable", [False, True])
def test_writes_that_wait_for_a_failed_snapshot_fail_too(disk, durable):
    done = []
    kept = [disk.wrote(messages(1, 1))]
    disk.io.fault("rename", 1, errno.EIO)
    disk.io.hold("rename")
    disk.probe.write_snapshot(b"it", lambda error: done.append(("snapshot", error)), leads=True)
    disk.io.wait_parked()
    for seq in 2, 3:
        kept.append(disk.durable(messages(seq, 1), done) if durable else disk.run(seq, done))
    disk.io.release()
    disk.io.drain_now()
    assert sorted(done, key=str) == [("snapshot", errno.EIO), (2, errno.EIO), (3, errno.EIO)]
    assert disk.log.last_error_text == f"rename {disk.directory / 'journal'}: input/output error"
    disk.probe.write_snapshot(b"again")
    kept.append(disk.wrote(messages(4, 1)))
    assert disk.errors == [0, 0] and len(disk.segments()) == 2
    assert disk.segments()[0].stat().st_size == 64 + len(run(messages(1, 1)))


@pytest.mark.slow
def test_a_snapshot_that_does_not_lead_holds_nothing_up(disk):
    done = []
    kept = [disk.wrote(messages(1, 1))]
    disk.io.hold("rename")
    disk.probe.write_snapshot(b"it", lambda error: done.append("snapshot"))
    disk.io.wait_parked()
    kept.append(disk.append(messages(2, 1), done=done.append))
    disk.io.kick_now()
    disk.wait_for(done)
    disk.io.release()
    disk.io.drain_now()
    assert done == [0, "snapshot"]


@pytest.mark.slow
def test_a_delta_behind_a_snapshot_is_written_before_later_writes_are_done(disk):
    done = []
    kept = [disk.wrote(messages(1, 1))]
    disk.io.hold("rename")
    disk.probe.write_snapshot(b"snapshot", None)
    disk.io.wait_parked()
    writes = disk.io.calls_made("pwrite")
    assert disk.probe.append_delta(b"delta")
    kept.append(disk.append(messages(2, 1), done=done.append))
    disk.io.kick_now()
    disk.wait_for_calls("pwrite", writes + 1)
    disk.io.poll_now()
    assert done == []
    disk.io.release()
    disk.io.drain_now()
    assert done == [0]
    assert parse_journal((disk.directory / "journal").read_bytes())[0] == [
        b"snapshot",
        b"delta",
    ]


def test_snapshots_that_overtake_each_other_would_be_in_each_others_file(disk):
    kept = disk.wrote(messages(1, 1))
    disk.io.hold("fsync")
    for snapshot in b"first", b"second", b"third":
        disk.probe.write_snapshot(snapshot)
        disk.io.wait_parked()
    assert not (disk.directory / "journal").exists()
    disk.io.release()
    disk.io.drain_now()
    assert parse_journal((disk.directory / "journal").read_bytes())[0] == [b"third"]
    assert not (disk.directory / "journal.tmp").exists()
    del kept


def test_a_log_of_the_same_name_while_the_old_one_is_being_deleted(disk, tmp_path):
    done = []
    handle = disk.wrote(messages(1, 1))
    disk.io.hold("fdatasync")
    disk.probe.sync()
    disk.io.wait_parked()
    disk.probe.delete(done.append)
    again = Log(disk.io, tmp_path, "t")
    kept = LogProbe(again).append(run(messages(1, 2)), 1, 2, 2, done=done.append)
    disk.io.kick_now()
    disk.io.poll_now()
    assert done == []
    disk.io.release()
    disk.io.drain_now()
    assert done == [0, 0]
    (segment,) = disk.segments()
    assert [one.message for one in walk(segment.read_bytes()[64:])] == messages(1, 2)
    del kept, handle


def test_a_deletion_behind_a_slow_sync_delays_no_other_log(disk, tmp_path):
    done = []
    handle = disk.wrote(messages(1, 1))
    other = Log(disk.io, tmp_path, "other")
    disk.io.hold("fdatasync")
    disk.probe.sync()
    disk.io.wait_parked()
    disk.probe.delete(lambda error: done.append(("deleted", error)))
    kept = LogProbe(other).append(run(messages(1, 2)), 1, 2, 2, done=done.append)
    disk.io.kick_now()
    disk.wait_for(done)
    assert done == [0] and len(disk.segments()) == 1
    disk.io.release()
    disk.io.drain_now()
    assert done == [0, ("deleted", 0)] and not disk.directory.exists()
    del kept, handle


def test_a_deletion_does_not_sync_or_rename_what_it_removes(disk):
    done = []
    handle = disk.wrote(messages(1, 1))
    disk.io.hold("fdatasync")
    disk.probe.sync()
    disk.io.wait_parked()
    disk.probe.write_snapshot(b"journal", done.append)
    disk.io.kick_now()
    disk.probe.delete(lambda error: done.append(("deleted", error)))
    synced = [disk.io.calls_made(call) for call in ("fdatasync", "fsync")]
    disk.io.release()
    disk.io.drain_now()
    assert done == [0, ("deleted", 0)]
    assert disk.io.calls_made("rename") == 0
    assert disk.io.calls_made("fdatasync") == synced[0]
    assert disk.io.calls_made("fsync") == synced[1] + 1  # of the data path
    assert not disk.directory.exists()
    del handle


def test_a_deletion_is_done_once_the_data_path_has_been_synced(disk):
    done = []
    handle = disk.wrote(messages(1, 1))
    disk.synced()
    disk.io.hold("fsync")
    disk.probe.delete(done.append)
    disk.io.kick_now()
    disk.io.wait_parked()
    disk.io.poll_now()
    assert done == [] and not disk.directory.exists()
    disk.io.release()
    disk.io.drain_now()
    assert done == [0]
    del handle


def test_logs_of_one_name_that_are_deleted_one_after_another(disk, tmp_path):
    done = []
    disk.wrote(messages(1, 1))
    disk.io.hold("fdatasync")
    disk.probe.sync()
    disk.io.wait_parked()
    disk.probe.delete(lambda error: done.append(("first", error)))
    second = LogProbe(Log(disk.io, tmp_path, "t"))
    second.append(run(messages(1, 2)), 1, 2, 2, done=lambda error: done.append(("wrote", error)))
    second.write_snapshot(b"of the second")
    second.delete(lambda error: done.append(("second", error)))
    third = LogProbe(Log(disk.io, tmp_path, "t"))
    kept = third.append(run(messages(7, 1)), 7, 7, 1, done=lambda error: done.append((7, error)))
    third.write_snapshot(b"of the third")
    disk.io.kick_now()
    disk.io.poll_now()
    assert done == []
    disk.io.release()
    disk.io.drain_now()
    assert sorted(done, key=str) == [("first", 0), ("second", 0), ("wrote", 0), (7, 0)]
    assert sorted(os.listdir(disk.directory)) == ["00000000000000000007.seg", "journal"]
    assert parse_journal((disk.directory / "journal").read_bytes())[0] == [b"of the third"]
    del kept


@pytest.mark.slow
def test_a_failed_sync_is_final_and_service_goes_on_in_a_new_segment(disk):
    answers = []
    first = disk.append(messages(1, 2))
    disk.io.fault("fdatasync", 1, errno.EIO)
    disk.probe.sync(answers.append)
    disk.io.drain_now()
    path = disk.segments()[0]
    assert answers == [errno.EIO] and disk.errors == [0]
    assert disk.log.last_error_text == f"sync {path}: input/output error"
    second = disk.wrote(messages(3, 2))
    assert disk.log.last_error_text == f"sync {path}: input/output error"
    disk.probe.sync(answers.append)
    disk.io.drain_now()
    assert answers == [errno.EIO, 0] and disk.log.last_error_text == ""
    assert len(disk.segments()) == 2
    assert disk.messages(first) + disk.messages(second) == messages(1, 4)
    assert disk.close() == [0]
    assert disk_format.footer(path.read_bytes()) is None


# ---- failing ----


@pytest.mark.slow
def test_disk_full_and_room_again(disk):
    results = []
    first = disk.wrote(messages(1, 3))
    path = disk.segments()[0]
    disk.io.fault("pwrite", 2, short=100)  # one and a half records, then an error
    disk.io.fault("pwrite", 3, errno.ENOSPC)
    batches = {seq: messages(seq, 3) for seq in (4, 7, 10)}
    into = None
    for seq, batch in batches.items():
        into = disk.append(
            batch, into=into, done=lambda error, seq=seq: results.append((seq, error))
        )
    disk.io.drain_now()
    assert results == [(4, 0), (7, errno.ENOSPC), (10, errno.ENOSPC)]
    assert disk.log.last_error_text == f"write {path}: no space left on device"
    for seq in (7, 10):
        disk.probe.retract(into, len(run(batches[seq])), seq, 3)
    disk.io.drain_now()
    assert into.pieces == [(1, 64 + 3 * 64, 3 * 64, 4, 6, 3)]
    assert path.stat().st_size == 64 + 6 * 64
    for seq in (7, 10):
        into = disk.append(batches[seq], into=into)
    disk.io.drain_now()
    assert disk.log.last_error_text == ""
    assert disk.messages(into) == messages(4, 9)
    assert disk.messages(first) == messages(1, 3)
    assert [int(p.name[:20]) for p in disk.segments()] == [1, 7]
    assert disk.close() == [0]
    readable, found, damages = recovered(disk.path)
    assert readable == {seq: message(seq) for seq in range(1, 13)}
    assert not damages and not found.damages


@pytest.mark.slow
def test_a_failure_may_be_retried_at_once(disk):
    """The callback of a failed run appends it again, while later runs of its segment still fail."""
    batches = {seq: messages(seq, 2) for seq in range(1, 21, 2)}
    handles, left = {}, [7]

    def finished(seq):
        def done(error):
            if not error:
                return
            left[0] -= 1
            disk.probe.retract(handles[seq], handles[seq].bytes, seq, 2)
            disk.append(batches[seq], into=handles[seq], done=finished(seq))

        return done

    disk.io.fault("pwrite", 5, errno.ENOSPC)
    for seq, batch in batches.items():
        handles[seq] = disk.append(batch, done=finished(seq))
    disk.io.drain_now()
    assert left == [0]
    assert [one.seq for seq in batches for one in disk.messages(handles[seq])] == [*range(1, 21)]
    assert len(disk.segments()) == 2
    handles.clear()


@pytest.mark.slow
def test_a_directory_in_the_way_is_reported_as_in_go(tmp_path):
    disk = Disk(tmp_path)
    path = disk.directory / "00000000000000000001.seg"
    path.mkdir(parents=True)
    handle = disk.wrote(messages(1, 1))
    assert disk.errors == [errno.EISDIR]
    assert disk.log.last_error_text == f"open {path}: is a directory"
    disk.probe.release(handle)
    disk.io.drain_now()
    disk.stop()


@pytest.mark.slow
def test_a_data_path_that_is_gone(tmp_path):
    disk = Disk(tmp_path / "missing", make=False)
    handle = disk.wrote(messages(1, 1))
    assert disk.errors == [errno.ENOENT]
    assert disk.log.last_error_text == f"mkdir {disk.directory}: no such file or directory"
    (tmp_path / "missing").mkdir()
    disk.probe.retract(handle, handle.bytes, 1, 1)
    handle = disk.wrote(messages(1, 1))
    assert disk.errors[1:] == [0] and disk.messages(handle) == messages(1, 1)
    disk.stop()


def scenario(disk):
    """Do everything that a log can do. Return {seq: handle} for the runs that were reported as
    written."""
    good, handles = {}, {}

    def finished(batch):
        def done(error):
            if error:
                handle = handles[batch[0].seq]
                disk.probe.retract(handle, len(run(batch)), batch[0].seq, len(batch))
            else:
                good[batch[0].seq] = batch

        return done

    for seq in range(1, 31, 3):
        batch = messages(seq, 3, 40)
        handles[seq] = disk.append(batch, done=finished(batch))
        if seq % 4 == 0:
            disk.probe.sync()
        if seq % 5 == 0:
            disk.probe.write_snapshot(b"snapshot %d" % seq)
        if seq % 7 == 0:
            disk.probe.append_delta(b"delta %d" % seq)
        disk.io.drain_now()
    released = 7
    if released in good:
        del good[released]
        disk.probe.release(handles[released])
    disk.io.drain_now()
    return good, handles


def count_calls(tmp_path):
    disk = Disk(tmp_path / "count", max_bytes_per_file=700)
    kept = scenario(disk)
    disk.close()
    del kept
    return disk.io.calls_made()


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
def test_disk_full_at_every_call_in_turn(tmp_path, times):
    calls = count_calls(tmp_path)
    assert calls > 60
    for nth in range(1, calls + 1):
        path = tmp_path / str(nth)
        disk = Disk(path, max_bytes_per_file=700)
        disk.io.fault("any", nth, errno.ENOSPC, times)
        good, handles = scenario(disk)
        made = disk.io.calls_made()
        disk.io.clear_faults()
        for seq, batch in good.items():  # runs reported as written are readable
            assert disk.messages(handles[seq]) == batch, nth
        if made < nth:
            disk.io.fault("any", nth - made, errno.ENOSPC, times)
        handle = disk.wrote(messages(100, 2))
        if disk.errors[-1]:  # the fault hit this run or a pending journal
            disk.probe.retract(handle, handle.bytes, 100, 2)
            disk.io.clear_faults()
            disk.probe.write_snapshot(b"snapshot again")
            handle = disk.wrote(messages(100, 2))
        assert disk.errors[-1] == 0, nth  # and operation continues
        disk.close()
        readable, found, damages = recovered(path)
        for batch in (*good.values(), messages(100, 2)):
            for one in batch:
                assert readable[one.seq] == one, nth
        assert not damages, nth
        assert found.journal == [] or found.journal[0].startswith(b"snapshot"), nth
        handle = None
        handles.clear()
        shutil.rmtree(path)


# ---- damage during operation ----


def flip(path, offset, mask=0xFF):
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def test_a_damaged_body_costs_that_record(disk):
    handle = disk.wrote(messages(1, 5))
    flip(disk.segments()[0], 64 + 64 * 2 + 45)
    found = disk.read(handle)
    assert [one.damaged for one in found] == [False, False, True, False, False]
    assert [one.message.seq for one in found] == [1, 2, 3, 4, 5]
    assert [one.length for one in found] == [64] * 5
    assert found[2].message == Message(3, b"")
    assert disk.damages == [("00000000000000000001.seg", 64 + 128, "damaged record of 64 bytes")]


@pytest.mark.slow
def test_a_lost_length_costs_that_record_too(disk):
    handle = disk.wrote(messages(1, 5))
    flip(disk.segments()[0], 64 + 64 * 2 + 1)
    found = disk.read(handle)
    assert [(one.message.seq, one.damaged) for one in found] == [
        (1, False),
        (2, False),
        (3, True),
        (4, False),
        (5, False),
    ]
    assert disk.damages[0][1] == 64 + 128


@pytest.mark.parametrize("dense", [True, False])
def test_a_length_that_points_at_a_later_record_is_not_believed(dense):
    image = run(messages(1, 5, 8), crc=True)
    struct.pack_into("<I", image, 48, 96)  # the length of the second record
    assert len(scan_segment(bytes(64) + bytes(image))[1]) == 1
    assert sum(one[2] for one in scan_segment(bytes(64) + bytes(image))[0]) == 4
    verify_run(image, 1, 5, dense)
    assert [(one.message.seq, one.damaged) for one in walk(image)] == [
        (1, False),
        (2, True),
        (3, False),
        (4, False),
        (5, False),
    ]


def test_a_torn_away_tail_reads_as_damaged_records(disk):
    handle = disk.wrote(messages(1, 5))
    os.truncate(disk.segments()[0], 64 + 64 * 2 + 10)
    found = disk.read(handle)
    assert [(one.message.seq, one.damaged) for one in found] == [
        (1, False),
        (2, False),
        (3, True),
        (4, True),
        (5, True),
    ]
    assert [one.length for one in found] == [64, 64, 48, 48, 96]
    assert disk.damages == [
        ("00000000000000000001.seg", 64 + 128, "no good record in the last 192 bytes")
    ]


def test_survivors_are_verified_with_their_gaps(disk):
    batch = [message(seq) for seq in (3, 9, 10, 40)]
    handle = disk.wrote(batch, flags=SURVIVORS)
    assert disk.messages(handle) == batch
    flip(disk.segments()[0], 64 + 64 + 45)
    assert [(one.message.seq, one.damaged) for one in disk.read(handle)] == [
        (3, False),
        (9, True),
        (10, False),
        (40, False),
    ]


def test_an_errno_says_nothing_about_the_records(disk):
    handle = disk.wrote(messages(1, 300, 30))
    answers = []
    for error in (errno.EIO, errno.EAGAIN, errno.ETIMEDOUT, errno.ENOMEM):
        disk.io.fault("pread", 1, error)
        disk.probe.read(handle, lambda error, data: answers.append(error))
        disk.io.drain_now()
        assert answers.pop() == error
        assert disk.log.unreadable is not None and disk.log.unreadable.error == error
        assert len(disk.messages(handle)) == 300
        assert disk.log.unreadable is None
    assert disk.damages == []


@pytest.mark.parametrize("limit", [0, 7, 100, 5000])
def test_a_short_read_of_a_long_file_is_no_damage(disk, limit):
    handle = disk.wrote(messages(1, 300, 30))
    answers = []
    disk.io.fault("pread", 1, short=limit)
    disk.io.fault("pread", 2, short=0)  # reads no bytes, although the file continues
    disk.probe.read(handle, lambda error, data: answers.append(error))
    disk.io.drain_now()
    assert answers == [errno.EIO]
    disk.io.clear_faults()
    assert len(disk.messages(handle)) == 300 and disk.damages == []


def test_a_file_that_ends_early_is_damaged(disk):
    handle = disk.wrote(messages(1, 300, 30))
    path = disk.segments()[0]
    os.truncate(path, path.stat().st_size - 100)
    found = disk.read(handle)
    assert [one.damaged for one in found[:290]] == [False] * 290 and found[-1].damaged
    assert disk.damages


# -- repair --


def repairs(disk, *answers):
    """Answer the log's requests for repair one by one; return the requests."""
    asked, left = [], list(answers)

    def repairer(path, offset, length, error, answer):
        asked.append((Path(path).name, offset, length, error))
        what = left.pop(0)
        answer(what(path, offset) if callable(what) else what)

    disk.io.repairer = repairer
    return asked


def test_a_repairer_puts_damage_right(disk):
    batch = messages(1, 10, 30)
    handle = disk.wrote(batch)
    path = disk.segments()[0]
    flip(path, 200)
    size = path.stat().st_size

    def mend(name, offset):
        flip(path, 200)
        return True

    asked = repairs(disk, mend)
    assert disk.messages(handle) == batch
    assert asked == [(path.name, 64, size - 64, 0)] and disk.damages == []


def test_what_cannot_be_repaired_is_damaged(disk):
    handle = disk.wrote(messages(1, 10, 30))
    flip(disk.segments()[0], 200)
    asked = repairs(disk, True, False)  # True is wrong: the log requests the repair again
    assert sum(one.damaged for one in disk.read(handle)) == 1
    assert len(asked) == 2 and len(disk.damages) == 1


def test_what_cannot_be_repaired_now_is_read_again_later(disk):
    batch = messages(1, 10, 30)
    handle = disk.wrote(batch)
    flip(disk.segments()[0], 200)
    repairs(disk, None)
    answers = []
    disk.probe.read(handle, lambda error, data: answers.append(error))
    disk.io.drain_now()
    assert answers == [errno.EIO] and disk.damages == []
    flip(disk.segments()[0], 200)
    assert disk.messages(handle) == batch


def test_a_repairer_that_fails_leaves_nothing_behind(disk):
    handle = disk.wrote(messages(1, 10, 30))
    flip(disk.segments()[0], 200)

    def fail(*_):
        raise RuntimeError("a bug")

    disk.io.repairer = fail
    answers = []
    disk.probe.read(handle, lambda error, data: answers.append(error))
    with pytest.raises(RuntimeError, match="a bug"):
        disk.io.drain_now()
    disk.io.drain_now()
    assert answers == [0]


def test_a_repairer_is_asked_after_some_failed_reads(disk):
    batch = messages(1, 10, 30)
    handle = disk.wrote(batch)
    asked = repairs(disk, False, True)
    disk.io.fault("pread", 1, errno.EIO, times=5)
    answers = []
    for _ in range(5):
        disk.probe.read(handle, lambda error, data: answers.append(error))
        disk.io.drain_now()
    assert answers == [errno.EIO] * 4 + [0]
    assert [error for *_, error in asked] == [errno.EIO] * 2


def test_a_repair_may_take_time(disk):
    batch = messages(1, 10, 30)
    handle = disk.wrote(batch)
    flip(disk.segments()[0], 200)
    waiting = []
    disk.io.repairer = lambda *question: waiting.append(question[-1])
    got = []
    disk.probe.read(handle, lambda error, data: got.append(walk(data)))
    disk.io.drain_now()
    assert got == []
    flip(disk.segments()[0], 200)
    waiting.pop()(True)
    disk.io.drain_now()
    assert [one.message for one in got[0]] == batch


# -- damaged files --


def test_a_damaged_segment_is_kept_when_it_is_deleted(tmp_path):
    disk = Disk(tmp_path, aside=tmp_path / "damaged", max_bytes_per_file=400)
    handle = disk.wrote(messages(1, 10, 30))
    disk.wrote(messages(11, 10, 30))
    path = disk.segments()[0]
    flip(path, 200)
    content = path.read_bytes()
    disk.read(handle)
    disk.read(handle)
    disk.io.drain_now()
    assert len(disk.damages) == 1
    disk.probe.release(handle)
    disk.synced()
    assert not path.exists()
    log_id = disk.log.log_id.hex()[:8]
    disk.stop()
    (aside,) = (tmp_path / "damaged").iterdir()
    assert aside.name == f"t.{path.stem}.{log_id}.seg"
    assert aside.read_bytes()[: len(content)] == content


def test_damage_that_recovery_finds_is_kept(tmp_path):
    disk = Disk(tmp_path)
    disk.wrote(messages(1, 10, 30))
    path = disk.segments()[0]
    disk.stop()
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content[:-100])  # without a footer, the segment is scanned
    fresh = Disk(tmp_path, aside=tmp_path / "damaged")
    found = recover_log(fresh.log)
    assert found.damages
    fresh.io.drain_now()
    assert len(list((tmp_path / "damaged").iterdir())) == 1
    del found
    fresh.stop()


def test_an_end_that_was_never_written_is_not_kept(tmp_path):
    disk = Disk(tmp_path)
    disk.wrote(messages(1, 10, 30))
    path = disk.segments()[0]
    content = path.read_bytes()
    disk.stop()
    path.write_bytes(content + bytes(500))
    fresh = Disk(tmp_path, aside=tmp_path / "damaged")
    found = recover_log(fresh.log)
    assert found.damages
    fresh.io.drain_now()
    assert not (tmp_path / "damaged").exists()
    del found
    fresh.stop()


def test_a_file_that_cannot_be_set_aside_is_reported(tmp_path):
    disk = Disk(tmp_path, aside=tmp_path / "damaged")
    handle = disk.wrote(messages(1, 10, 30))
    flip(disk.segments()[0], 200)
    disk.io.fault("link", 1, errno.EPERM)
    disk.read(handle)
    disk.io.drain_now()
    assert [text for _, _, text in disk.damages][1:] == [
        f"damaged data cannot be kept in {tmp_path}/damaged: operation not permitted"
    ]
    disk.stop()


def test_a_missing_file_is_an_error(disk):
    handle = disk.wrote(messages(1, 5))
    answers = []
    fresh = Disk(disk.path)
    found = recover_log(fresh.log)
    os.unlink(disk.segments()[0])
    fresh.probe.read(recovered_runs(found)[0][6], lambda error, data: answers.append(error))
    fresh.io.drain_now()
    assert answers == [errno.ENOENT]
    assert fresh.log.read_error_text.startswith("open ")
    del found, handle
    fresh.stop()


flips = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=6)
sizes = st.lists(st.integers(1, 90), min_size=1, max_size=25)


def offsets(batch):
    return [(one.offset, one.offset + one.length) for one in walk(run(batch))]


@pytest.mark.slow
@settings(max_examples=runs(40), deadline=None)
@given(sizes=sizes, flips=flips, gaps=st.booleans())
def test_verification_loses_only_modified_records(sizes, flips, gaps):
    step = 3 if gaps else 1
    batch = [message(7 + n * step, size) for n, size in enumerate(sizes)]
    image = run(batch, crc=True)
    before = bytes(image)
    for at, mask in flips:
        image[at % len(image)] ^= mask
    touched = {
        n for n, (start, end) in enumerate(offsets(batch)) if image[start:end] != before[start:end]
    }
    verify_run(image, 7, len(batch), not gaps)
    found = walk(image)
    kept = {one.message.seq: one.message for one in found if not one.damaged}
    assert set(kept) == {one.seq for n, one in enumerate(batch) if n not in touched}
    assert all(kept[one.seq] == one for one in batch if one.seq in kept)
    seqs = [one.message.seq for one in found]
    assert seqs == sorted(set(seqs))
    if not gaps:
        assert seqs == [one.seq for one in batch]


@pytest.mark.slow
@settings(max_examples=runs(40), deadline=None)
@given(
    data=st.binary(max_size=600),
    first=st.integers(0, 2**64 - 1),
    count=st.integers(0, 2**32 - 1),
    dense=st.booleans(),
    sizes=sizes,
    at=st.integers(0, 600),
)
def test_verifying_anything_leaves_something_to_walk(data, first, count, dense, sizes, at):
    image = bytearray(data[:at] + run([message(9, s) for s in sizes], crc=True) + data[at:])
    image = image[: len(image) // 8 * 8]
    total = len(image)
    verify_run(image, first, count, dense)
    assert sum(one.length for one in walk(image)) == total == len(image)


@pytest.mark.slow
@settings(max_examples=runs(40), deadline=None)
@given(data=st.binary(max_size=400), sizes=sizes, at=st.integers(0, 2000), cut=st.integers(0, 4000))
def test_scanning_anything_finds_only_good_records(data, sizes, at, cut):
    image = bytes(64) + bytes(run([message(5 + n, s) for n, s in enumerate(sizes)], crc=True))
    image = (image[:at] + data + image[at:])[:cut]
    runs, damages = scan_segment(image)
    end = 64
    for first, last, count, _flags, offset, size in runs:
        assert offset >= end and offset + size <= len(image)
        end = offset + size
        found = walk(image[offset:end])
        assert len(found) == count
        assert (found[0].message.seq, found[-1].message.seq) == (first, last)
        for one in found:
            raw = image[offset + one.offset : offset + one.offset + one.length]
            assert struct.unpack_from("<I", raw, 4)[0] == disk_format.crc32c(raw[8:])
    assert sum(r[5] for r in runs) + sum(d[1] for d in damages) == max(0, len(image) - 64)


# ---- recovering ----


def test_nothing_there(disk):
    found = recover_log(disk.log)
    assert recovered_runs(found) == [] and found.journal == [] and found.damages == []
    assert (found.next_seq, found.max_id, found.log_id, found.clean) == (1, 0, None, True)


@pytest.mark.slow
def test_clean_exit_needs_no_scan(tmp_path):
    disk = Disk(tmp_path)
    log_id = disk.log.log_id
    kept = disk.wrote(messages(1, 1000))
    assert disk.close() == [0]
    assert segment_messages(disk.segments()[0]) == messages(1, 1000)
    disk = Disk(tmp_path)
    found = recover_log(disk.log)
    assert [one[:4] for one in recovered_runs(found)] == [(1, 1000, 1000, 0)]
    assert found.clean and found.log_id == disk.log.log_id == log_id
    assert (found.next_seq, found.max_id) == (1001, 16001)
    assert disk.io.calls_made("pread") == 2  # the header, and the last 64 kB
    assert disk.messages(recovered_runs(found)[0][6]) == messages(1, 1000)
    del kept, found
    disk.stop()


@pytest.mark.slow
def test_release_after_close_removes_nothing(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=500)
    kept = [disk.append(messages(seq, 3)) for seq in range(1, 31, 3)]
    disk.io.drain_now()
    answers = []
    disk.probe.close(answers.append)
    for handle in kept:
        disk.probe.release(handle)
    disk.io.drain_now()
    with pytest.raises(ValueError, match="closed"):
        disk.append(messages(40, 1))
    disk.stop()
    assert answers == [0]
    readable, found, _ = recovered(tmp_path)
    assert sorted(readable) == list(range(1, 31)) and found.clean


@pytest.mark.slow
def test_a_newer_format_is_refused(tmp_path):
    disk = Disk(tmp_path)
    kept = disk.wrote(messages(1, 3))
    disk.close()
    path = disk.segments()[0]
    data = bytearray(path.read_bytes())
    struct.pack_into("<II", data, 8, 2, 0)
    struct.pack_into("<I", data, 12, disk_format.crc32c(bytes(data[:64])))
    path.write_bytes(data)
    disk = Disk(tmp_path)
    with pytest.raises(
        FormatError,
        match=r"format version 2 is newer than this nsqcy supports "
        r"\(1\)",
    ):
        recover_log(disk.log)
    assert path.read_bytes() == data
    del kept
    disk.stop()


def test_a_damaged_header_or_footer_loses_nothing(tmp_path):
    disk = Disk(tmp_path)
    kept = disk.wrote(messages(1, 50))
    disk.close()
    path, size = disk.segments()[0], disk.segments()[0].stat().st_size
    flip(path, 9)
    readable, found, _ = recovered(tmp_path)
    assert len(readable) == 50 and found.damages == [(str(path), 0, "damaged segment header")]
    for at in (size - 1, size - 9, size - 13, size - 100):
        flip(path, at)
        readable, found, _ = recovered(tmp_path)
        assert len(readable) == 50 and not found.clean
        assert found.damages[-1][2] == "no good record in the last 136 bytes"
        flip(path, at)
    del kept


@pytest.mark.parametrize("call", ["open", "fstat", "pread"])
def test_recovery_ends_at_what_cannot_be_read(tmp_path, call):
    disk = Disk(tmp_path, max_bytes_per_file=200)
    kept = [disk.append(messages(seq, 1)) for seq in range(1, 10)]
    disk.probe.write_snapshot(b"state")
    disk.io.drain_now()
    disk.close()
    del kept
    files = {path: path.read_bytes() for path in disk.directory.iterdir()}
    fresh = Disk(tmp_path)
    recover_log(fresh.log)
    calls = fresh.io.calls_made(call)
    fresh.stop()
    assert calls >= len(files)
    for nth in range(1, calls + 1):
        fresh = Disk(tmp_path)
        fresh.io.fault(call, nth, errno.EIO)
        with pytest.raises(Unreadable) as raised:
            recover_log(fresh.log)
        assert raised.value.errno == errno.EIO and Path(raised.value.filename) in files
        fresh.stop()
    assert files == {path: path.read_bytes() for path in disk.directory.iterdir()}


def test_survivors_of_a_crash_are_seen_as_such(tmp_path):
    disk = Disk(tmp_path)
    disk.wrote(messages(50, 20, 8))
    copies = [message(seq, 8)._replace(copy=True) for seq in (3, 9, 20, 21, 40)]
    disk.wrote(copies, flags=SURVIVORS)
    disk.wrote(messages(41, 1, 8))
    disk.wrote(messages(70, 20, 8))
    disk.stop()
    found = recovered(tmp_path)[1]
    assert [one[:4] for one in recovered_runs(found)] == [
        (50, 69, 20, 0),
        (3, 40, 5, SURVIVORS),
        (41, 41, 1, 0),
        (70, 89, 20, 0),
    ]


def test_few_records_with_gaps_are_no_survivors(tmp_path):
    """The records are on disk because only some publishers requested durability."""
    disk = Disk(tmp_path)
    for seq in (1, 3, 9):
        disk.wrote([message(seq)])
    disk.stop()
    found = recovered(tmp_path)[1]
    assert [one[:4] for one in recovered_runs(found)] == [(seq, seq, 1, 0) for seq in (1, 3, 9)]


def test_what_was_written_again_is_right_where_it_was_written_last(tmp_path):
    disk = Disk(tmp_path)
    disk.io.fault("ftruncate", 1, errno.EIO)
    disk.wrote(messages(1, 10))
    disk.wrote(messages(21, 10))
    disk.io.fault("pwrite", 1, short=3 * 64)
    disk.io.fault("pwrite", 2, errno.ENOSPC)
    handle = disk.wrote(messages(31, 10))
    assert disk.errors == [0, 0, errno.ENOSPC]
    disk.probe.retract(handle, handle.bytes, 31, 10)
    again = messages(5, 24, 40) + messages(29, 3, 40)
    disk.wrote(again)
    disk.stop()
    readable, found, damages = recovered(tmp_path)
    old = {seq: message(seq) for seq in (1, 2, 3, 4, 32, 33)}
    assert readable == old | {each.seq: each for each in again}
    assert [one[:3] for one in recovered_runs(found)] == [(1, 4, 4), (32, 33, 2), (5, 31, 27)]
    assert not damages


def test_any_order_of_runs_is_covered_once(tmp_path):
    """Recovery reads the newest segments first, and finds each seq once, even if segments
    overlap."""
    disk = Disk(tmp_path, max_bytes_per_file=100)  # one segment per run
    for first, count in ((1, 4), (10, 10), (3, 10), (30, 5), (2, 1), (18, 14), (40, 3), (1, 1)):
        disk.wrote(messages(first, count))
    disk.stop()
    readable, found, _ = recovered(tmp_path)
    assert readable == {seq: message(seq) for seq in [*range(1, 35), 40, 41, 42]}
    assert sum(one[2] for one in recovered_runs(found)) == len(readable)


@pytest.mark.slow
def test_a_segment_with_nothing_new_goes_with_the_next_snapshot(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=700)
    kept = [disk.append(messages(1, 10)), disk.append(messages(11, 10))]
    disk.io.drain_now()
    disk.stop()
    del kept
    first = disk.segments()[0]
    shutil.copy(first, disk.directory / f"{30:020d}.seg")
    (disk.directory / f"{40:020d}.seg").write_bytes(b"")
    (disk.directory / f"{50:020d}.seg").write_bytes(b"unreadable")
    disk = Disk(tmp_path)
    found = recover_log(disk.log)
    assert len(recovered_runs(found)) == 2 and len(disk.segments()) == 5
    disk.probe.write_snapshot(b"state")
    disk.io.drain_now()
    assert [int(p.name[:20]) for p in disk.segments()] == [11, 30, 50]
    disk.wrote(messages(21, 1))
    assert int(disk.segments()[-1].name[:20]) == 51
    del found
    disk.stop()


def crashed(tmp_path):
    """Create a topic directory as a crash leaves it: closed segments, an open one, a journal."""
    disk = Disk(tmp_path, max_bytes_per_file=1500)
    rng = random.Random(4)
    kept, seq = [], 1
    for _ in range(12):
        batch = [message(seq + n, rng.randrange(1, 120)) for n in range(rng.randrange(1, 7))]
        seq += len(batch)
        kept.append(disk.append(batch))
    disk.probe.write_snapshot(b"snapshot")
    for n in range(5):
        disk.probe.append_delta(b"delta %d" % n)
    disk.io.drain_now()
    everything = [one for handle in kept for one in disk.messages(handle)]
    disk.stop()
    assert disk_format.footer(disk.segments()[0].read_bytes())
    assert disk_format.footer(disk.segments()[-1].read_bytes()) is None
    return disk.directory, everything


def places(directory):
    """Return {seq: (file name, start, end)} from the reference reader, over complete files."""
    found = {}
    for path in sorted(directory.glob("*.seg")):
        data = path.read_bytes()
        footer = disk_format.footer(data)
        end = footer.data_end if footer else len(data)
        for one in walk(data[64:end]):
            found[one.message.seq] = (path.name, 64 + one.offset, 64 + one.offset + one.length)
    return found


@pytest.mark.slow
def test_cut_anywhere(tmp_path):
    """Truncate any one file anywhere: complete records are kept, and the journal loses its tail."""
    source, everything = crashed(tmp_path / "made")
    where = places(source)
    rng = random.Random(5)
    for n in range(250):
        path = tmp_path / f"cut{n}"
        shutil.copytree(source, path / "t.topic")
        victim = rng.choice(sorted((path / "t.topic").iterdir()))
        size = rng.randrange(victim.stat().st_size + 1)
        os.truncate(victim, size)
        readable, found, damages = recovered(path)
        expected = {
            one.seq: one
            for one in everything
            if where[one.seq][0] != victim.name or where[one.seq][2] <= size
        }
        assert readable == expected, (victim.name, size)
        assert not damages
        journal = [b"snapshot"] + [b"delta %d" % k for k in range(5)]
        assert found.journal == journal[: len(found.journal)]
        assert victim.name == "journal" or found.journal == journal
        shutil.rmtree(path)


@pytest.mark.slow
def test_damage_anywhere(tmp_path):
    """Damage any bytes of any one file: only records with these bytes are lost, and each loss is
    reported."""
    source, everything = crashed(tmp_path / "made")
    where = places(source)
    rng = random.Random(6)
    for n in range(400):
        path = tmp_path / f"flip{n}"
        shutil.copytree(source, path / "t.topic")
        victim = rng.choice(sorted((path / "t.topic").iterdir()))
        size = victim.stat().st_size
        start = rng.randrange(size)
        hit = sorted({min(size - 1, start + rng.randrange(20)) for _ in range(rng.randrange(1, 5))})
        for at in hit:
            flip(victim, at, rng.randrange(1, 256))
        readable, found, damages = recovered(path)
        lost = {
            seq
            for seq, (name, a, b) in where.items()
            if name == victim.name and any(a <= at < b for at in hit)
        }
        assert readable == {one.seq: one for one in everything if one.seq not in lost}
        if lost:
            assert found.damages or damages
        if victim.name == "journal":
            assert found.damages
        shutil.rmtree(path)


@pytest.mark.slow
@settings(
    max_examples=runs(80),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(garbage=st.binary(max_size=700), tail=st.booleans(), seed=st.integers(0, 999))
def test_any_bytes_as_files(tmp_path, garbage, tail, seed):
    """Recovery neither crashes nor removes anything, for any content of the directory."""
    path = tmp_path / "fuzz"
    shutil.rmtree(path, ignore_errors=True)
    directory = path / "t.topic"
    directory.mkdir(parents=True)
    if tail:
        rng = random.Random(seed)
        garbage += struct.pack("<QQQqqQQQ", *(rng.choice((0, 1, 64, 2**40)) for _ in range(8)))
        end = struct.pack("<I", disk_format.crc32c(garbage[-64:]))
        garbage = garbage[len(garbage) % 8 :]
        garbage += struct.pack("<I", 80) + end + b"SQCYEND\0"
    files = {
        directory / f"{1:020d}.seg": garbage,
        directory / "journal": garbage,
        directory / f"{7:020d}.seg": bytes(run(messages(7, 3), crc=True)),
        directory / "notes.txt": b"mine",
    }
    for name, data in files.items():
        name.write_bytes(data)
    recovered(path)
    assert {name: name.read_bytes() for name in files} == files


@pytest.mark.slow
def test_fuzz_of_footers_with_good_checksums(tmp_path):
    """A false footer with a correct checksum never leads outside the file."""
    disk = Disk(tmp_path / "made")
    kept = [disk.append(messages(1, 5)), disk.append(messages(11, 5))]
    disk.io.drain_now()
    disk.close()
    del kept
    image = disk.segments()[0].read_bytes()
    start = disk_format.footer(image).data_end
    rng = random.Random(7)
    for n in range(400):
        data = bytearray(image)
        for _ in range(rng.randrange(1, 4)):
            at = start + rng.randrange((len(image) - 16 - start) // 4) * 4
            struct.pack_into("<I", data, at, rng.choice((0, 1, 7, 64, 2**31, 2**32 - 1, 4096)))
        struct.pack_into(
            "<I", data, len(data) - 12, disk_format.crc32c(bytes(data[start : len(data) - 16]))
        )
        path = tmp_path / f"f{n}"
        (path / "t.topic").mkdir(parents=True)
        (path / "t.topic" / disk.segments()[0].name).write_bytes(data)
        fresh = Disk(path)
        for one in recovered_runs(recover_log(fresh.log)):
            fresh.probe.read(one[6], lambda error, data: walk(data))
        fresh.io.drain_now()
        del one
        fresh.stop()
        shutil.rmtree(path)


# ---- releasing ----


def test_a_segment_goes_only_after_a_pending_journal_write(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=300)
    old = disk.append(messages(1, 3))
    kept = disk.append(messages(4, 3))
    disk.io.drain_now()
    disk.io.hold("rename")
    disk.probe.write_snapshot(b"no longer refers to 1..3")
    disk.probe.release(old)
    disk.io.wait_parked()
    disk.io.poll_now()
    assert len(disk.segments()) == 2
    disk.io.release()
    disk.io.drain_now()
    assert len(disk.segments()) == 1
    del kept
    disk.stop()


def test_a_failed_journal_write_keeps_the_segment(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=300)
    answers = []
    old = disk.append(messages(1, 3))
    kept = disk.append(messages(4, 3))
    disk.io.drain_now()
    disk.io.fault("pwrite", 1, errno.ENOSPC)
    disk.probe.write_snapshot(b"a", answers.append)
    disk.probe.release(old)
    disk.io.drain_now()
    assert answers == [errno.ENOSPC] and len(disk.segments()) == 2
    assert disk.log.last_error_text == f"write {disk.directory}/journal: no space left on device"
    assert not disk.probe.append_delta(b"nowhere to go")
    disk.probe.write_snapshot(b"b", answers.append)
    disk.io.drain_now()
    assert answers == [errno.ENOSPC, 0] and len(disk.segments()) == 1
    del kept
    disk.stop()


def test_an_open_segment_stays_until_it_rolls(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=300)
    disk.probe.release(disk.wrote(messages(1, 3)))
    disk.io.drain_now()
    assert len(disk.segments()) == 1
    kept = disk.wrote(messages(4, 3))
    assert [int(p.name[:20]) for p in disk.segments()] == [4]
    assert disk.probe.segments == [(4, 192)]
    del kept
    disk.stop()


def test_delete_removes_everything_of_ours(tmp_path):
    disk = Disk(tmp_path, max_bytes_per_file=300)
    answers = []
    kept = [disk.append(messages(seq, 3)) for seq in range(1, 31, 3)]
    disk.probe.write_snapshot(b"state")
    disk.probe.delete(answers.append)
    again = Log(disk.io, tmp_path, "t")  # reusing the name immediately, as in NSQ
    fresh = LogProbe(again).append(run(messages(1, 2)), 1, 2, 2)
    disk.io.drain_now()
    assert answers == [0]
    assert [p.name for p in disk.segments()] == ["00000000000000000001.seg"]
    assert os.listdir(disk.directory) == ["00000000000000000001.seg"]
    for handle in kept:
        disk.probe.release(handle)
    assert disk.probe.segments == []
    del again, fresh, kept
    disk.stop()


def test_delete_leaves_files_it_does_not_know(tmp_path):
    disk = Disk(tmp_path)
    handle = disk.wrote(messages(1, 1))
    (disk.directory / "mine").write_bytes(b"x")
    disk.probe.delete()
    disk.io.drain_now()
    assert os.listdir(disk.directory) == ["mine"]
    assert disk.log.last_error_text == f"remove {disk.directory}: directory not empty"
    disk.probe.release(handle)
    disk.stop()


# ---- journal file ----


def test_journal_reads_back(tmp_path):
    disk = Disk(tmp_path)
    assert not disk.probe.append_delta(b"before any snapshot")
    disk.probe.write_snapshot(b"one")
    assert disk.probe.append_delta(b"lost with the next snapshot")
    disk.probe.write_snapshot(b"two")
    assert disk.probe.append_delta(b"d1")
    assert disk.probe.append_delta(b"")
    assert disk.probe.append_delta(b"d3" * 1000)
    assert disk.log.journal_bytes == 32 + 11 + 10 + 8 + 2008
    disk.io.drain_now()
    assert os.listdir(disk.directory) == ["journal"]
    assert disk.close() == [0]
    disk = Disk(tmp_path)
    found = recover_log(disk.log)
    assert found.journal == [b"two", b"d1", b"", b"d3" * 1000] and not found.damages
    assert not disk.probe.append_delta(b"a start begins with a snapshot")
    del found
    disk.stop()


def test_a_crash_while_a_snapshot_is_written_leaves_the_old_one(tmp_path):
    disk = Disk(tmp_path)
    disk.probe.write_snapshot(b"old")
    disk.probe.append_delta(b"delta")
    disk.io.drain_now()
    for call in ("pwrite", "fsync", "rename"):
        disk.io.hold(call)
        disk.probe.write_snapshot(b"new")
        disk.io.wait_parked()
        copy = tmp_path / call
        shutil.copytree(disk.directory, copy / "t.topic")
        disk.io.fault(call, 1, errno.EIO)
        disk.io.release()
        disk.io.drain_now()
        disk.io.clear_faults()
        assert recovered(copy)[1].journal == [b"old", b"delta"]
    disk.stop()
    assert recovered(tmp_path)[1].journal in ([b"old", b"delta"], [b"new"])


@settings(max_examples=runs(40), deadline=None)
@given(st.binary(max_size=300))
def test_fuzz_of_journals(data):
    parse_journal(data)
    head = struct.pack("<8sII16s", b"SQCYJNL\0", 1, 0, b"i" * 16)
    head = head[:12] + struct.pack("<I", disk_format.crc32c(head)) + head[16:]
    entry = struct.pack("<I", 3)
    entry += struct.pack("<I", disk_format.crc32c(entry + b"abc")) + b"abc"
    entries, log_id, _ = parse_journal(head + entry + data)
    assert entries[0] == b"abc" and log_id == b"i" * 16


def test_a_newer_journal_is_refused(tmp_path):
    head = struct.pack("<8sII16s", b"SQCYJNL\0", 9, 0, b"i" * 16)
    head = head[:12] + struct.pack("<I", disk_format.crc32c(head)) + head[16:]
    with pytest.raises(FormatError, match="format version 9 is newer"):
        parse_journal(head)
