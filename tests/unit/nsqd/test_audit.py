"""The results of checking a data path that is intact, unusual or newer. tests/crash covers
damage."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.copies.group import Group
from nsqcy.copies.recall import Known
from nsqcy.copies.values import known_as_json
from nsqcy.nsqd.copies.copy_files import CopyFiles, Data
from nsqcy.nsqd.data import audit_report, command
from nsqcy.nsqd.data.audit import Audit, TopicFound, both, merged, size, without
from nsqcy.storage import journal
from nsqcy.storage.core import IoThread, Log, LogProbe, recover_log
from support import disk_format
from support.worker_core import RESPONSE, SECOND, Core, mpub

SETTINGS = {
    "mem_queue_size": 0,
    "log_options": {
        "max_bytes_per_file": 1000,
        "sync_every": 2500,
        "sync_timeout": 2 * SECOND,
    },
}
MESSAGES = 100


def run(words: list[str]) -> int:
    """Return the exit status of `nsqcy data` with these arguments."""
    return int(command.data.main(words, standalone_mode=False))


def core_at(path: Path) -> Core:
    return Core(path, **SETTINGS)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Data path after a clean exit, with five finished and five requeued messages."""
    path = tmp_path / "data"
    path.mkdir()
    core = core_at(path)
    core.create("t").channel("c")
    publisher = core.client()
    for first in range(0, MESSAGES, 10):
        bodies = [b"message %d" % number for number in range(first, first + 10)]
        assert publisher.ask(mpub("t", bodies)) == (RESPONSE, b"OK")
    consumer = core.client().subscribe("t", "c", 10)
    core.settle()
    for number, each in enumerate(consumer.messages()):
        if number % 2:
            consumer.finish(each.id)
        else:
            consumer.requeue(each.id, 60_000 if number == 2 else 0)
    consumer.ready(0)
    core.settle()
    core.save()
    return path


def audit(path: Path, **options: object) -> TopicFound:
    io = IoThread(read_only=True)
    try:
        return Audit(io, str(path), "t", {}, **options).run()  # type: ignore[arg-type]
    finally:
        io.close()


def text(found: TopicFound) -> str:
    return "\n".join(audit_report.lines(found))


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("t.topic/*.seg"))


def tree(path: Path) -> dict[Path, tuple[int, bytes]]:
    files = [each for each in path.rglob("*") if each.is_file()]
    return {each: (each.stat().st_mtime_ns, each.read_bytes()) for each in files}


# ---- intact data


@pytest.mark.parametrize("quick", [False, True])
def test_a_clean_exit(saved: Path, quick: bool) -> None:
    found = audit(saved, quick=quick)
    assert found.clean and found.damages == 0 and found.start_says == []
    assert (found.records, found.next_seq) == (MESSAGES, MESSAGES + 1)
    assert len(found.segments) > 2 and all(each.footer for each in found.segments)
    assert [each.disagreements for each in found.segments] == [[]] * len(found.segments)
    (channel,) = found.channels
    assert (channel.depth, channel.deferred, channel.again) == (MESSAGES - 6, 1, 5)
    assert (channel.lost, channel.missing, channel.beyond) == (0, 0, 0)
    assert found.journal is not None and found.journal.clean
    assert "again what was finished" not in text(found)


@pytest.mark.parametrize("finished", [False, True])
def test_a_clean_exit_with_dead_letters(tmp_path: Path, finished: bool) -> None:
    """A dead letter has an attribute of its own in its run. If all dead letters are finished, nsqd
    deletes their segments at startup, which the audit itself cannot do."""
    policies = Policies(
        TopicPolicy("os"),
        channel_sections=[("source/c", {"max_attempts": 1, "dead_letter_topic": "t"})],
    )
    path = tmp_path / "data"
    path.mkdir()
    core = Core(path, policies=policies, **SETTINGS)
    examiner = core.client().subscribe("t", "examine", 10)
    consumer = core.client().subscribe("source", "c", 10)
    assert core.client().publish("source", b"fails") == (RESPONSE, b"OK")
    core.settle()
    for message in consumer.messages():
        consumer.requeue(message.id)
    core.advance(30 * SECOND)
    letters = examiner.messages()
    assert len(letters) == 1
    if finished:
        examiner.finish(letters[0].id)
    core.save()
    for _ in range(2):
        found = audit(path)
        assert found.clean and found.start_says == []
        assert [each.disagreements for each in found.segments] == [[]] * len(found.segments)
        assert [each.beyond for each in found.channels] == [0]
        core = Core(path, policies=policies, **SETTINGS)
        core.shard.load_topic(b"t", False, {})
        core.save()
    assert bool(found.segments) is not finished


def test_nothing_is_changed_whatever_a_start_would_do(saved: Path, capfd) -> None:
    (saved / "t.topic" / "journal").unlink()
    os.truncate(segments(saved)[-1], 200)
    (saved / "t.topic" / "journal.tmp").write_bytes(b"half")
    (saved / "t.topic" / "notes").write_bytes(b"mine")
    (saved / "import.tmp").mkdir()
    (saved / "memory.lost.0.1700000000").mkdir()
    (saved / "elsewhere").write_bytes(b"mine")
    before = tree(saved)
    assert run(["check", str(saved)]) == 1
    assert tree(saved) == before
    out, err = capfd.readouterr()
    assert "journal: none" in out
    assert "nsqd will deliver all messages to every channel" in out
    assert "journal.tmp: incomplete" in out
    assert "notes: not an nsqd file" in out and "elsewhere: not an nsqd file" in out
    assert "import.tmp: an incomplete import" in err
    assert "memory.lost.0.1700000000: memory of a dead worker" in err


def test_copies_are_read_too(saved: Path, capfd) -> None:
    """The messages of topics with copies are in a directory for each group."""
    group = saved / "copies" / "0" / "0f1e2d3c4b5a6978"
    group.mkdir(parents=True)
    shutil.copytree(saved / "t.topic", group / "orders.topic")
    (group / "copy.json").write_text("{}")
    before = tree(saved)
    assert run(["check", str(saved)]) == 0
    out, _ = capfd.readouterr()
    assert f"copies/0/{group.name}/orders.topic: a copy with {MESSAGES} records" in out
    assert "not an nsqd file" not in out
    assert tree(saved) == before
    damaged = sorted(group.glob("*/*.seg"))[0]
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    assert run(["check", str(saved), "--json"]) == 1
    (copy,) = json.loads(capfd.readouterr().out)["copies"]
    assert copy["path"].endswith("orders.topic") and copy["damages"] == 1


def listed_copy(data_path: Path) -> Path:
    """Move a topic to a group of copies with a list of its files; return the group's directory."""
    root = data_path / "copies" / "0" / "0f1e2d3c4b5a6978"
    group = Group(root.name, 1, "m.0", "", ("m.0", "n.0"), 2, 2, "nonce")
    io = IoThread()
    copy = CopyFiles(io, root, "boot", "os", print)
    copy.begin_filling()
    paths = []
    for file in (data_path / "t.topic").iterdir():
        paths.append(f"orders.topic/{file.name}")
        copy.write(paths[-1], 0, Data(file.read_bytes()))
    copy.fill(paths, 1)
    copy.close()
    io.close()
    shutil.rmtree(data_path / "t.topic")
    copies = data_path / "copies"
    (copies / "machine.json").write_text('{"id": "m"}')
    known = known_as_json({root.name: Known((1, 1), group)})
    (copies / "node.0.json").write_text(json.dumps({"groups": known}))
    return root


def cut(path: Path) -> None:
    os.truncate(path, 20)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("orders.topic/*.seg", Path.unlink),
        ("orders.topic/*.seg", cut),
        ("orders.topic/journal", Path.unlink),
        ("orders.topic", shutil.rmtree),
        ("files.list", Path.unlink),
        ("copy.json", Path.unlink),
        ("", shutil.rmtree),
    ],
)
def test_missing_files_of_copies_are_reported(
    saved: Path, capfd, path: str, fault: Callable[[Path], None]
) -> None:
    root = listed_copy(saved)
    assert run(["check", str(saved)]) == 0
    missing = min(root.glob(path)) if path else root
    fault(missing)
    capfd.readouterr()
    assert run(["check", str(saved)]) == 1
    err = capfd.readouterr().err
    assert str(missing) in err and "is missing" in err


def test_an_io_thread_that_only_reads(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"whole")
    io = IoThread(read_only=True)
    errors: list[int] = []
    file, fresh = io.open(tmp_path / "file"), io.open(tmp_path / "fresh", create=True)
    into = bytearray(5)
    file.read(into, 0, errors.append)
    file.write(b"torn", 0, errors.append)
    for what in ("sync", "fsync", "truncate", "unlink"):
        file.do(what, 1, errors.append)
    file.rename(tmp_path / "renamed", errors.append)
    fresh.write(b"new", 0, errors.append)
    io.on_path_now("mkdir", tmp_path / "folder", errors.append)
    io.on_path_now("unlink", tmp_path / "file", errors.append)
    io.on_path_now("rmdir", tmp_path, errors.append)
    io.drain_now()
    io.close()
    assert into == b"whole"
    assert errors[0] == 0 and all(errors[1:]) and len(errors) == 11
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"


# ---- after a kill


def test_after_a_kill(saved: Path) -> None:
    core = core_at(saved)
    core.shard.load_topic(b"t", False, {})
    core.client().ask(mpub("t", [b"more"] * 5))
    core.settle()
    shutil.copytree(saved, saved.with_name("killed"))
    core.close()
    found = audit(saved.with_name("killed"))
    assert not found.clean and found.damages == 0
    assert not found.segments[-1].footer
    assert "nsqd scans it at start" in text(found)
    assert "nsqd will redeliver messages that were finished" in text(found)


def test_a_clean_exit_after_a_kill(saved: Path) -> None:
    """The segment from before the kill has no footer, but all its records."""
    core = core_at(saved)
    core.shard.load_topic(b"t", False, {})
    core.client().ask(mpub("t", [b"more"] * 5))
    core.settle()
    killed = saved.with_name("killed")
    shutil.copytree(saved, killed)
    core.close()
    again = core_at(killed)
    again.shard.load_topic(b"t", False, {})
    again.save()
    found = audit(killed)
    assert not all(each.footer for each in found.segments)
    assert found.clean and "written by a clean exit" in text(found)
    (cut,) = (each for each in found.segments if not each.footer)
    path = killed / "t.topic" / cut.file
    path.write_bytes(path.read_bytes()[:-1])
    assert not audit(killed).clean


def test_a_journal_ahead_of_the_files(saved: Path) -> None:
    """The files are as if the journal had been copied later than the segments."""
    for each in segments(saved)[-2:]:
        each.unlink()
    found = audit(saved)
    assert not found.clean
    (channel,) = found.channels
    gone = MESSAGES + 1 - (found.segments[-1].last_seq or 0) - 1
    assert channel.lost == gone
    assert found.gaps == [(MESSAGES + 1 - gone, MESSAGES)]
    assert any("are not on disk" in line for line in found.start_says)
    assert f"not on disk: seqs {MESSAGES + 1 - gone} to {MESSAGES}" in text(found)


def test_what_nobody_needs_is_removed_unless_it_is_retained(saved: Path) -> None:
    core = core_at(saved)
    core.shard.load_topic(b"t", False, {})
    consumer = core.client().subscribe("t", "c", MESSAGES)
    core.settle()
    before = {each.name: each.read_bytes() for each in segments(saved)}
    for each in consumer.messages():
        consumer.finish(each.id)
    core.advance(10 * SECOND)
    journal_then = (saved / "t.topic" / "journal").read_bytes()
    core.save()
    (saved / "t.topic").mkdir(exist_ok=True)
    (saved / "t.topic" / "journal").write_bytes(journal_then)
    for name, content in before.items():
        (saved / "t.topic" / name).write_bytes(content)
    assert any(each.unlinked for each in audit(saved).segments)
    kept = Policies(TopicPolicy(retention_time=3600 * SECOND))
    assert not any(each.unlinked for each in audit(saved, policies=kept).segments)


# ---- inconsistencies


def rewrite_footer(path: Path, field: int, value: int) -> None:
    """Set a number in a footer, with a correct checksum."""
    content = bytearray(path.read_bytes())
    found = disk_format.footer(content)
    assert found is not None
    struct.pack_into("<Q", content, found.data_end + 8 * field, value)
    crc = disk_format.crc32c(bytes(content[found.data_end : -disk_format.TRAILER.size]))
    struct.pack_into("<I", content, len(content) - disk_format.TRAILER.size + 4, crc)
    path.write_bytes(content)


@pytest.mark.parametrize(
    "field, name",
    [(0, "records"), (1, "first_seq"), (2, "last_seq"), (3, "first_time"), (5, "max_id")],
)
def test_a_footer_that_says_something_else(saved: Path, field: int, name: str) -> None:
    rewrite_footer(segments(saved)[1], field, 4711)
    found = audit(saved)
    assert not found.clean
    (line,) = found.segments[1].disagreements
    assert line.startswith(f"{name} is 4711 in the footer")
    assert line in text(found)
    assert [each.disagreements for each in audit(saved, quick=True).segments if each] == [
        [] for _ in found.segments
    ]


def test_a_run_that_a_newer_segment_has_as_well(saved: Path) -> None:
    first = segments(saved)[0]
    seqs = [each.seq for each in disk_format.segment_messages(first)]
    io = IoThread()
    log = Log(io, str(saved), "t")
    recover_log(log)
    probe = LogProbe(log)
    again = disk_format.messages(seqs[0], len(seqs), 20)
    probe.append(disk_format.run(again), seqs[0], seqs[-1], len(seqs))
    probe.close()
    io.drain_now()
    io.close()
    found = audit(saved)
    assert found.segments[0].superseded == [(seqs[0], seqs[-1])]
    assert found.segments[0].unlinked
    assert found.records == MESSAGES
    assert "at least partly duplicated in a newer segment" in text(found)


def test_a_delta_that_is_not_understood(saved: Path) -> None:
    path = saved / "t.topic" / "journal"
    core = core_at(saved)
    log = Log(core.io, str(saved), "t")
    entries = recover_log(log).journal
    probe = LogProbe(log)
    probe.write_snapshot(entries[0])
    probe.append_delta(struct.pack("<HHHHQ", 99, 1, 0, 1, 0) + b"c")
    probe.append_delta(journal.encode_delta(journal.Delta(journal.Kind.CURSOR_MOVED, "c", 7)))
    core.io.drain_now()
    found = audit(saved)
    assert found.journal is not None
    assert (found.journal.entries, found.journal.used) == (3, 1)
    assert found.journal.bytes == path.stat().st_size
    assert "1 of 3 entries valid" in text(found)
    assert not found.clean
    core.close()


# ---- written by a newer version


@pytest.mark.parametrize("name", ["segment", "journal"])
def test_a_newer_format(saved: Path, name: str, capfd) -> None:
    path = segments(saved)[0] if name == "segment" else saved / "t.topic" / "journal"
    content = bytearray(path.read_bytes())
    header = 64 if name == "segment" else 32
    struct.pack_into("<II", content, 8, 99, 0)
    struct.pack_into("<I", content, 12, disk_format.crc32c(bytes(content[:header])))
    path.write_bytes(content)
    assert run(["check", str(saved)]) == 2
    assert "format version 99 is newer than this nsqcy supports" in capfd.readouterr().err


# ---- the command


def test_json(saved: Path, capfd) -> None:
    assert run(["check", "--json", str(saved)]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert err == ""
    assert (found["exit_code"], found["unreadable"], found["refused"]) == (0, 0, None)
    (topic,) = found["topics"]
    assert topic["topic"] == "t" and topic["records"] == MESSAGES
    assert [each["channel"] for each in topic["channels"]] == ["c"]
    content = bytearray(segments(saved)[0].read_bytes())
    content[64 + 40] ^= 1
    segments(saved)[0].write_bytes(content)
    assert run(["check", "--json", str(saved)]) == 1
    found = json.loads(capfd.readouterr().out)
    (damage,) = found["topics"][0]["segments"][0]["damages"]
    assert damage == {
        "offset": 64,
        "text": "damaged record of 56 bytes",
        "first_seq": 1,
        "last_seq": 1,
    }


def test_quick_takes_a_footer_at_its_word(saved: Path, capfd) -> None:
    content = bytearray(segments(saved)[0].read_bytes())
    content[64 + 40] ^= 1
    segments(saved)[0].write_bytes(content)
    assert run(["check", "--quick", str(saved)]) == 0
    assert run(["check", str(saved)]) == 1
    capfd.readouterr()


def test_policies_that_were_set_over_http(saved: Path, capfd) -> None:
    path = saved / "policies.json"
    path.write_text('{"version": 1, "set": {"t": {"retention_time": "1h"}}}')
    assert run(["check", str(saved)]) == 0
    path.write_text('{"version": 1, "set":')
    before = tree(saved)
    assert run(["check", str(saved)]) == 1
    assert tree(saved) == before
    path.write_text('{"version": 99, "set": {}}')
    assert run(["check", str(saved)]) == 2
    err = capfd.readouterr().err
    assert "policies.json is damaged: Expecting value" in err
    assert "policies format version 99 is newer than this nsqcy supports (1)" in err


def test_the_configuration_says_what_is_retained(saved: Path, tmp_path: Path, capfd) -> None:
    ini = tmp_path / "nsqd.ini"
    ini.write_text("[nsqd]\nretention_time = 1h\n")
    assert run(["check", "--config", str(ini), str(saved)]) == 0
    ini.write_text("[nsqd]\nnonsense = 1h\n")
    assert run(["check", "--config", str(ini), str(saved)]) == 2
    assert "nonsense" in capfd.readouterr().err


# ---- ranges of seqs


def test_ranges() -> None:
    assert merged([(5, 7), (1, 2), (3, 3), (6, 9)]) == [(1, 3), (5, 9)]
    assert without([(1, 10)], [(2, 3), (5, 5), (9, 12)]) == [(1, 1), (4, 4), (6, 8)]
    assert without([(1, 2), (5, 9)], [(0, 20)]) == []
    assert both([(1, 10), (20, 30)], [(5, 25)]) == [(5, 10), (20, 25)]
    assert size([(1, 1), (5, 9)]) == 6
