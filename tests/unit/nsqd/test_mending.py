"""Repair of a segment from other copies: their answers, failures during the repair, and disks
that cannot be read or written."""

import errno
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsqcy.copies.fetching import Done, Fetches, Part
from nsqcy.copies.messages import Fetch, Fetched
from nsqcy.nsqd.copies import mending
from nsqcy.nsqd.copies.file_table import HEADER, FileTable
from nsqcy.nsqd.copies.mending import Findings, Mender
from nsqcy.storage.core import Log, LogProbe
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run

CLOSED = "t.topic/00000000000000000001.seg"
OPEN = "t.topic/00000000000000000061.seg"
COUNT = 60  # records in each segment
RECORD = 72  # bytes
FIRST = HEADER
MIDDLE = HEADER + COUNT // 2 * RECORD
LAST = HEADER + (COUNT - 1) * RECORD
END = HEADER + COUNT * RECORD


class Copies:
    """A copy on this disk, and the same files on other nodes, which answer when `settle` runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.io = FaultyIoThread()
        self.now = 1000.0
        self._write_log()
        self.intact = {path: (root / path).read_bytes() for path in (CLOSED, OPEN)}
        assert len(self.intact[CLOSED]) > END == len(self.intact[OPEN])
        self.table = FileTable.scan(root)
        self.nodes = {name: self._copy() for name in "ab"}
        self.answer: Callable[[str, Fetch], Fetched | None] = self.right_answer
        self.found: list[tuple[str, Findings]] = []
        self._requests: list[tuple[str, Fetch]] = []
        self.asked: list[Fetch] = []
        self._fetches = Fetches(self._send)
        self.mender = Mender(
            self.io,
            root,
            self.table,
            self._fetch,
            lambda: self.now,
            lambda *found: self.found.append(found),
        )

    def _write_log(self) -> None:
        log = Log(self.io, self.root, "t", sync_every=0, max_bytes_per_file=END)
        probe = LogProbe(log)
        for first in range(1, 2 * COUNT, 10):
            probe.append(run(messages(first, 10, RECORD - 40)), first, first + 9, 10)
            self.io.drain_now()
        probe.sync()  # the footer follows
        self.io.drain_now()

    def _copy(self) -> dict[str, bytearray]:
        return {path: bytearray(data) for path, data in self.intact.items()}

    def damage(self, path: str, *offsets: int, nodes: str = "") -> None:
        """Invert bytes here, or in the copies on these nodes."""
        copies = [self.nodes[name][path] for name in nodes] or [bytearray(self.contents(path))]
        for data, offset in itertools.product(copies, offsets):
            data[offset] ^= 0xFF
        if not nodes:
            (self.root / path).write_bytes(copies[0])

    def contents(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def differing(self, path: str) -> list[int]:
        """Return the offsets of the bytes that are not intact here."""
        pairs = zip(self.contents(path), self.intact[path], strict=True)
        return [offset for offset, (byte, intact) in enumerate(pairs) if byte != intact]

    # -- the other nodes

    def _fetch(self, part: Part, done: Done) -> None:
        self._fetches.fetch(part, self.nodes, done, self.now, has_everyone=True)

    def _send(self, node: str, request: Fetch) -> bool:
        self.asked.append(request)
        self._requests.append((node, request))
        return True

    def right_answer(self, node: str, request: Fetch) -> Fetched:
        data = self.nodes[node][request.path]
        is_same = request.identity == data[:HEADER]
        part = bytes(data[request.offset : request.offset + request.size] if is_same else b"")
        return Fetched(request.number, "" if part else "missing", part)

    def settle(self) -> None:
        """Run until nothing is in progress."""
        self.io.drain_now()
        while self._requests:
            node, request = self._requests.pop(0)
            answer = self.answer(node, request)
            if answer is None:
                self._fetches.lost(node, self.now)
            else:
                self._fetches.received(node, answer, self.now)
            self.io.drain_now()

    # -- what is tested

    def verify(self, path: str, *, only_open: bool = False) -> Findings:
        results: list[Findings] = []
        self.mender.verify(path, results.append, only_open=only_open)
        self.settle()
        (findings,) = results
        return findings

    def repair(self, offset: int = FIRST, records: int = 10, error: int = 0) -> bool | None:
        """Repair a run of records of the closed segment, as for a log."""
        answers: list[bool | None] = []
        path = str(self.root / CLOSED)
        self.mender.repair(path, offset, records * RECORD, error, answers.append)
        self.settle()
        (answer,) = answers
        return answer


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    copies = Copies(tmp_path)
    yield copies
    copies.io.clear_faults()
    copies.io.close()


def outcome(findings: Findings) -> tuple[int, int, int, bool]:
    return findings.mended > 0, findings.damaged, findings.unreadable, findings.is_final


MENDED = (True, 0, 0, True)
INTACT = (False, 0, 0, True)

# -- damage here


@pytest.mark.parametrize("path", [CLOSED, OPEN])
@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([FIRST + 50], id="a body"),
        pytest.param([FIRST], id="a length"),
        pytest.param([FIRST + 3], id="a length, much too large"),
        pytest.param([LAST + 50], id="the last record"),
        pytest.param([20], id="the header"),
        pytest.param(range(FIRST, END, 97), id="most records"),
        pytest.param(range(END), id="everything"),
    ],
)
def test_everything_is_mended(copies: Copies, path: str, offsets: list[int]) -> None:
    copies.damage(path, *offsets)
    assert outcome(copies.verify(path)) == MENDED
    assert copies.differing(path) == []
    assert outcome(copies.verify(path)) == INTACT


@pytest.mark.parametrize("at", [-1, -10, -16, -60])
def test_a_footer_is_mended(copies: Copies, at: int) -> None:
    copies.damage(CLOSED, len(copies.intact[CLOSED]) + at)
    assert outcome(copies.verify(CLOSED)) == MENDED
    assert copies.differing(CLOSED) == []


def test_only_segments_without_a_footer_are_verified_before_a_recovery(copies: Copies) -> None:
    copies.damage(CLOSED, MIDDLE + 50)
    copies.damage(OPEN, MIDDLE + 50)
    assert outcome(copies.verify(CLOSED, only_open=True)) == INTACT
    assert outcome(copies.verify(OPEN, only_open=True)) == MENDED
    assert copies.differing(OPEN) == []


# -- damage in several copies


def test_each_copy_is_damaged_in_another_place(copies: Copies) -> None:
    copies.damage(CLOSED, FIRST + 50, MIDDLE + 50, LAST + 50)
    copies.damage(CLOSED, FIRST + 5 * RECORD + 50, MIDDLE + 50, nodes="a")
    copies.damage(CLOSED, FIRST + 50, LAST + 50, nodes="b")
    assert outcome(copies.verify(CLOSED)) == MENDED
    assert copies.differing(CLOSED) == []


def test_all_copies_are_damaged_in_one_place(copies: Copies) -> None:
    """Everything around the damage is repaired."""
    copies.damage(CLOSED, FIRST + 50, MIDDLE + 50, LAST + 50)
    copies.damage(CLOSED, MIDDLE + 60, nodes="ab")
    assert outcome(copies.verify(CLOSED)) == (True, 1, 0, True)
    assert copies.differing(CLOSED) == [MIDDLE + 50]


def test_a_shorter_copy_has_only_its_part(copies: Copies) -> None:
    copies.damage(OPEN, FIRST + 50, LAST + 50)
    for data in copies.nodes.values():
        del data[OPEN][MIDDLE:]
    assert outcome(copies.verify(OPEN)) == (True, 1, 0, True)
    assert copies.differing(OPEN) == [LAST + 50]


# -- wrong answers


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[: RECORD // 2], id="short"),
        pytest.param(lambda data: bytes(len(data)), id="zeros"),
        pytest.param(lambda data: data[8:] + bytes(8), id="shifted"),
        pytest.param(lambda data: data[:50] + b"forged" + data[56:], id="forged"),
        pytest.param(lambda data: data + bytes(1 << 20), id="too long"),
    ],
)
def test_a_wrong_answer_changes_nothing(copies: Copies, wrong: Callable[[bytes], bytes]) -> None:
    def answer(node: str, request: Fetch) -> Fetched:
        right = copies.right_answer(node, request)
        return Fetched(right.number, "", wrong(right.data))

    copies.answer = answer
    copies.damage(CLOSED, FIRST + 50)
    damaged = copies.contents(CLOSED)
    assert outcome(copies.verify(CLOSED)) == (False, 1, 0, True)
    assert copies.repair() is False
    assert copies.contents(CLOSED) == damaged
    copies.answer = copies.right_answer
    assert outcome(copies.verify(CLOSED)) == MENDED


def test_the_next_node_is_queried_after_a_wrong_answer(copies: Copies) -> None:
    copies.answer = lambda node, request: (
        Fetched(request.number, "", b"x" * request.size)
        if node == "a"
        else copies.right_answer(node, request)
    )
    copies.damage(CLOSED, FIRST + 50)
    assert outcome(copies.verify(CLOSED)) == MENDED
    assert copies.differing(CLOSED) == []


# -- nodes that do not answer


def test_a_node_goes_in_the_middle(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "PIECE", 2 * RECORD)
    places = [FIRST + 50, MIDDLE + 50, LAST + 50]
    copies.damage(CLOSED, *places)
    copies.damage(CLOSED, *(place + 1 for place in places[1:]), nodes="b")

    def answer(node: str, request: Fetch) -> Fetched | None:
        is_gone = node == "a" and len(copies.asked) > 1
        return None if is_gone else copies.right_answer(node, request)

    copies.answer = answer
    assert outcome(copies.verify(CLOSED)) == (True, 2, 0, False)
    assert copies.differing(CLOSED) == places[1:]
    copies.answer = copies.right_answer
    assert outcome(copies.verify(CLOSED)) == MENDED
    assert copies.differing(CLOSED) == []


@pytest.mark.parametrize("reply", [None, "unreadable", "unknown"])
def test_a_node_without_an_answer_may_have_it(copies: Copies, reply: str | None) -> None:
    copies.answer = lambda node, request: reply and Fetched(request.number, reply)
    copies.damage(CLOSED, FIRST + 50)
    assert outcome(copies.verify(CLOSED)) == (False, 1, 0, False)
    assert copies.repair() is None
    assert copies.differing(CLOSED) == [FIRST + 50]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda copies: copies.table.deleted(CLOSED), id="deleted"),
        pytest.param(lambda copies: copies.table.truncated(CLOSED, HEADER), id="truncated"),
        pytest.param(lambda copies: copies.table.written(CLOSED, 0, bytes(HEADER)), id="replaced"),
    ],
)
@pytest.mark.parametrize("is_for_a_log", [True, False])
def test_a_file_changes_while_an_answer_is_on_its_way(
    copies: Copies, change: Callable[[Copies], None], is_for_a_log: bool
) -> None:
    copies.damage(CLOSED, FIRST + 50)
    damaged = copies.contents(CLOSED)

    def answer(node: str, request: Fetch) -> Fetched:
        change(copies)
        return copies.right_answer(node, request)

    copies.answer = answer
    if is_for_a_log:
        assert copies.repair() is None
    else:
        assert not copies.verify(CLOSED).mended
    assert copies.contents(CLOSED) == damaged


# -- disks that fail

FAILURES = [errno.EIO, errno.ETIMEDOUT, errno.ENOMEM, errno.EMFILE]


@pytest.mark.parametrize("error", FAILURES)
@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_read_error_is_no_damage(copies: Copies, call: str, error: int) -> None:
    """Any read may fail, once or always."""
    for nth in itertools.count(1):
        before = copies.io.calls_made(call)
        copies.io.fault(call, nth=nth, error=error)
        findings = copies.verify(CLOSED)
        copies.io.clear_faults()
        assert findings.damaged == 0 and copies.differing(CLOSED) == []
        if copies.io.calls_made(call) - before < nth:
            break
    copies.io.fault(call, error=error, times=1000)
    assert outcome(copies.verify(CLOSED)) == (False, 0, 1, False)
    copies.io.clear_faults()
    assert outcome(copies.verify(CLOSED)) == INTACT


def test_short_reads_are_no_damage(copies: Copies) -> None:
    copies.io.fault("pread", times=1000, short=7)
    assert copies.verify(CLOSED).damaged == 0
    copies.io.fault("pread", times=1000, short=0)
    assert outcome(copies.verify(CLOSED)) == (False, 0, 1, False)
    assert copies.differing(CLOSED) == []


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_what_cannot_be_written_stays_damaged(copies: Copies, call: str) -> None:
    copies.damage(CLOSED, MIDDLE + 50)
    copies.io.fault(call, error=errno.ENOSPC, times=1000)
    findings = copies.verify(CLOSED)
    assert (findings.damaged, findings.is_final) == (1, False)
    copies.damage(CLOSED, FIRST + 50)
    assert copies.repair() is None
    copies.io.clear_faults()
    copies.verify(CLOSED)
    assert copies.differing(CLOSED) == []


def test_a_disk_that_does_not_keep_what_is_written(copies: Copies) -> None:
    copies.damage(CLOSED, FIRST + 50)
    for attempt in range(mending.MAX_MENDS):
        assert copies.repair() is True
        copies.damage(CLOSED, FIRST + 50)
        copies.now += 1.0
        assert len(copies.found) == attempt + 1
    asked = len(copies.asked)
    assert copies.repair() is None
    assert copies.repair(MIDDLE) is True  # another part
    copies.now += mending.SAME + 1
    assert copies.repair() is True
    assert len(copies.asked) == asked + 2


# -- for logs


def test_repairs_for_logs_are_reported(copies: Copies) -> None:
    copies.damage(CLOSED, FIRST + 50)
    assert copies.repair() is True
    assert copies.differing(CLOSED) == []
    copies.damage(CLOSED, MIDDLE + 50)
    copies.damage(CLOSED, MIDDLE + 50, nodes="ab")
    assert copies.repair(MIDDLE) is False
    assert copies.repair(MIDDLE, error=errno.EIO) is None  # the data may be intact
    assert copies.found == [(CLOSED, Findings(mended=1)), (CLOSED, Findings(damaged=1))]


def test_a_file_that_is_unknown_cannot_be_repaired(copies: Copies) -> None:
    copies.table.deleted(CLOSED)
    assert copies.repair() is False
    assert copies.repair(error=errno.EIO) is None
    assert copies.asked == []


def test_a_part_fails_from_the_first_request_to_the_last(copies: Copies) -> None:
    for _ in range(4):
        copies.repair(error=errno.EIO)
        copies.now += 5.0
    copies.repair(MIDDLE, error=errno.EIO)
    assert copies.mender.failing_for() == 15.0


def test_a_part_that_can_be_read_again_does_not_fail(copies: Copies) -> None:
    """The group is not handed over because of two short failures."""
    copies.repair(error=errno.EIO)
    copies.now += mending.GAP + 1
    assert copies.mender.failing_for() == 0.0
    copies.repair(error=errno.EIO)
    assert copies.mender.failing_for() == 0.0
