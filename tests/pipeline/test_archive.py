"""The decisions that archive makes, without Spark: startup, cleanup, and the rows of a batch."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nsqcy.errors import UsageError
from nsqcy.pipeline import archive, checkpoint, manifests, minutes, rollup, streams
from nsqcy.pipeline.__main__ import main
from nsqcy.pipeline.options import Options, parse
from nsqcy.pipeline.report import Report
from nsqcy.spark.offsets import Range
from support import spark_on_disk
from support.archive_files import (
    HOUR,
    LOG,
    OTHER,
    QUERY,
    HandmadeArchive,
    rows_by_glob,
    save,
    table,
)
from support.fake_log_nsqd import FakeTopic, LogBroker

LENIENT = "--option=failOnUnreachable=false"


def test_a_new_query_begins_behind_what_there_is(tmp_path: Path) -> None:
    state = manifests.hidden(tmp_path, "checkpoint")
    assert archive.beginning(tmp_path, state) == "earliest"
    handmade = HandmadeArchive(tmp_path)
    handmade.batch({LOG: range(1, 11), OTHER: range(1, 4)})
    handmade.batch({LOG: range(11, 21)})
    expected = f'{{"orders": {{"{LOG}": 21, "{OTHER}": 4}}}}'
    assert archive.beginning(tmp_path, state) == expected
    handmade.checkpoint({LOG: 11}, 0)  # Spark's checkpoint takes precedence
    assert archive.beginning(tmp_path, state) == "earliest"


def test_what_a_crash_has_left_is_swept(tmp_path: Path) -> None:
    handmade = HandmadeArchive(tmp_path)
    handmade.batch({LOG: range(1, 11)})
    staging = tmp_path / ".spark-staging-1234"
    (staging / "topic=orders").mkdir(parents=True)
    (staging / "topic=orders" / "part-0.parquet").write_bytes(b"torn")
    partial = manifests.manifest_path(tmp_path, "x").with_suffix(".partial")
    partial.write_text("{")
    torn = manifests.hidden(tmp_path, manifests.UNPLACED) / "1f3c9a2e-000000001"
    save(torn / "topic=orders" / HOUR / f"batch={torn.name}" / "part-0.parquet", table(LOG, [11]))
    assert set(archive.sweep(tmp_path)) == {
        ".spark-staging-1234",
        "_archive/manifests/x.partial",
        "_archive/writing/1f3c9a2e-000000001",
    }
    assert not staging.exists() and not partial.exists()
    assert archive.sweep(tmp_path) == []
    assert len(manifests.read(tmp_path).files) == 1


# --- batches ----------------------------------------------------------------------------------


class Frame:
    """Rows of a batch; `wanted` are the rows that the archive requests."""

    wanted: list[Range] | None = None


class Files(archive.Files):
    """A sink whose batches are written without Spark. The checkpoint is handmade."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.handmade = HandmadeArchive(root)
        super().__init__(root, manifests.hidden(root, "checkpoint"), "none", "")

        def only(frame: Frame, parts: list[Range]) -> Frame:
            frame.wanted = parts
            return frame

        monkeypatch.setattr(streams, "only", only)

    def batch(
        self, number: int, pos: dict[str, int], start: dict[str, int] | None = None
    ) -> list[tuple[str, int, int]]:
        """Plan and write a batch that ends at these positions; return the written ranges."""
        self.handmade.checkpoint(pos, number, committed=False, start=start)
        self.frame = Frame()
        self.ranges: list[tuple[str, int, int]] = []
        frame: Any = self.frame
        self.write(frame, QUERY, number)
        self.handmade.checkpoint(pos, number, start=start)
        return self.ranges

    def _write(self, frame: Any, name: str, folder: Path) -> int:
        planned = checkpoint.rows(self._state, int(name.split("-")[1]))
        for number, part in enumerate(frame.wanted or planned):
            self.ranges.append((part.log_id, part.start, part.end))
            path = folder / "topic=orders" / HOUR / f"batch={name}" / f"part-{number}.zstd.parquet"
            save(path, table(part.log_id, range(part.start, part.end)))
        return sum(end - start for _, start, end in self.ranges)


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    found = Files(tmp_path, monkeypatch)
    found.prepare()
    return found


def rows(root: Path) -> list[tuple[str, int]]:
    """Return the rows that any reader finds."""
    return [(log_id, seq) for log_id, seq, _ in rows_by_glob(root)]


def verified(root: Path) -> bool:
    return main(["verify", f"--root={root}"]) == 0


def test_a_batch_that_was_written_is_not_written_again(sink: Files, tmp_path: Path) -> None:
    """Spark had not recorded the batch, whose hours may have been compacted since."""
    assert sink.batch(0, {LOG: 11}, {LOG: 1}) == [(LOG, 1, 11)]
    assert sink.batch(1, {LOG: 21}) == [(LOG, 11, 21)]
    assert sink.batch(1, {LOG: 21}) == []
    assert main(["compact", f"--root={tmp_path}"]) == 0
    assert sink.batch(1, {LOG: 21}) == []
    assert rows(tmp_path) == [(LOG, seq) for seq in range(1, 21)]
    assert verified(tmp_path)


def test_a_repeated_batch_ends_before_the_rows_of_one_log(sink: Files, tmp_path: Path) -> None:
    """The batch has new rows of another log. The rows after it in the first log are not written
    again."""
    sink.batch(0, {LOG: 31}, {LOG: 1})
    assert sink.batch(0, {LOG: 21, OTHER: 8}, {LOG: 1, OTHER: 1}) == [(OTHER, 1, 8)]
    assert sink.batch(1, {LOG: 41, OTHER: 8}) == [(LOG, 31, 41)]
    assert verified(tmp_path)


@pytest.mark.parametrize("restarted", [False, True], ids=["same run", "new run"])
@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_a_number_that_comes_again_with_other_rows(
    sink: Files, tmp_path: Path, restarted: bool, compacted: bool
) -> None:
    """The checkpoint lost its last files, or was restored from a copy."""
    sink.batch(0, {LOG: 11}, {LOG: 1})
    for number, end in ((1, 21), (2, 31)):
        sink.batch(number, {LOG: end})
    if compacted:
        assert main(["compact", f"--root={tmp_path}"]) == 0
    if restarted:
        sink.prepare()
    assert sink.batch(1, {LOG: 41, OTHER: 8}, {OTHER: 1}) == [(LOG, 31, 41), (OTHER, 1, 8)]
    assert sink.batch(1, {LOG: 41, OTHER: 8}, {OTHER: 1}) == []
    assert sink.batch(2, {LOG: 45, OTHER: 9}) == [(LOG, 41, 45), (OTHER, 8, 9)]
    assert rows(tmp_path) == sorted(
        [(LOG, seq) for seq in range(1, 45)] + [(OTHER, seq) for seq in range(1, 9)]
    )
    assert verified(tmp_path)
    assert {path.stem for path in manifests.hidden(tmp_path, "manifests").iterdir()} >= {
        "1f3c9a2e-000000001-2",
        "1f3c9a2e-000000002-2",
    }


def test_rows_between_those_of_another_hour(sink: Files, tmp_path: Path) -> None:
    """A file may contain rows on both sides of another file's rows; only reading the file reveals
    them."""
    handmade = sink.handmade
    handmade.batch({LOG: [*range(1, 4), *range(7, 11)]})
    handmade.batch({LOG: range(4, 6)}, "dt=2026-01-31/hr=08")
    sink.prepare()
    assert sink.batch(0, {LOG: 13}, {LOG: 1}) == [(LOG, 6, 7), (LOG, 11, 13)]
    assert verified(tmp_path)


def test_what_is_lacking_is_not_taken_from_a_damaged_file(sink: Files, tmp_path: Path) -> None:
    (path,) = sink.handmade.batch({LOG: [1, 2, 5]})
    path.write_bytes(path.read_bytes()[:-1])
    sink.prepare()
    with pytest.raises(manifests.Damaged, match="has changed"):
        sink.batch(0, {LOG: 8}, {LOG: 1})


class Killed(BaseException):
    pass


@pytest.mark.parametrize("lost", [False, True], ids=["with its checkpoint", "without"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("where", ["describe_batch", "write", "move"])
def test_killed_anywhere(
    sink: Files,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    late: bool,
    lost: bool,
) -> None:
    """Every reader sees whole batches only, even if the batch is never repeated."""
    sink.batch(0, {LOG: 11}, {LOG: 1})
    original = getattr(manifests, where)

    def killed(*args: Any) -> Any:
        if late:
            original(*args)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(manifests, where, killed)
        with pytest.raises(Killed):
            sink.batch(1, {LOG: 21})
    assert rows(tmp_path) in [[(LOG, seq) for seq in range(1, end)] for end in (11, 21)]
    assert verified(tmp_path)
    if lost:
        shutil.rmtree(manifests.hidden(tmp_path, "checkpoint"))
        archive.sweep(tmp_path)
        found = json.loads(archive.beginning(tmp_path, manifests.hidden(tmp_path, "checkpoint")))[
            "orders"
        ][LOG]
        sink.prepare()
        sink.batch(0, {LOG: 26}, {LOG: found})
    else:
        sink.prepare()
        sink.batch(1, {LOG: 21})
        sink.batch(2, {LOG: 26})
    assert rows(tmp_path) == [(LOG, seq) for seq in range(1, 26)]
    assert verified(tmp_path)
    assert manifests.unplaced(tmp_path) == []


def test_killed_between_two_hours(
    sink: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "1f3c9a2e-000000000"
    for hour, seqs in (("07", range(1, 11)), ("08", range(11, 21))):
        folder = manifests.hidden(tmp_path, manifests.UNPLACED) / name / "topic=orders"
        path = folder / f"dt=2026-01-31/hr={hour}" / f"batch={name}" / "part-0.zstd.parquet"
        save(path, table(LOG, seqs))
    manifest = manifests.describe_batch(tmp_path, name, [Range("orders", LOG, 1, 21)])
    original = Path.rename
    moved: list[Path] = []

    def rename(self: Path, target: Path) -> Path:
        if self.name.startswith("batch="):
            if moved:
                raise Killed
            moved.append(self)
        return original(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            manifests.add(tmp_path, manifest)
    assert len(rows(tmp_path)) == 10
    assert manifests.read(tmp_path).moving == [manifest]
    assert main(["verify", f"--root={tmp_path}"]) == 0
    archive.sweep(tmp_path)
    assert rows(tmp_path) == [(LOG, seq) for seq in range(1, 21)]
    assert manifests.read(tmp_path).manifests == [manifest]
    assert verified(tmp_path)


def test_one_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with manifests.locked(tmp_path, manifests.WRITING):
        assert main(["archive", "--topic=a", f"--root={tmp_path}"]) == 1
    assert f"another job is using {tmp_path}: archive" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"), [(["--once"], True), ([], False), (["--once", LENIENT], False)]
)
def test_once_without_one_of_the_nsqds(
    words: list[str], said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other nsqds are archived, and the exit code reports that some rows may be missing."""
    broker = LogBroker()
    broker.topics["orders"] = FakeTopic(LOG, 3)
    try:
        addresses = [f"--nsqd-tcp-address={each}" for each in (broker.address, "127.0.0.1:1")]
        options = parse(
            "archive", {"archive": archive.OPTIONS}, ["--topic=orders", *addresses, *words]
        )
        with Report("archive", json_lines=True) as report:
            assert streams.absent(options, options.source(), report) is said
    finally:
        broker.close()
    told = "no answer from nsqd 127.0.0.1:1: run the job again to read its rows"
    assert (told in capsys.readouterr().out) is said


def test_schemas(tmp_path: Path) -> None:
    def decoding(**given: str) -> str:
        return archive.decoding(Options(archive.OPTIONS, given))

    path = tmp_path / "orders.ddl"
    path.write_text("a INT, b STRING;\n")
    assert decoding() == decoding(decode="variant") == ""
    assert decoding(decode="json", schema=str(path)) == "a INT, b STRING, _corrupt STRING"
    path.write_text(" ")
    for given, said in [
        ({"schema": "x"}, "require each other"),
        ({"decode": "json", "schema": "nowhere"}, "--schema: nowhere: No such file"),
        ({"decode": "json", "schema": str(path)}, "is empty"),
    ]:
        with pytest.raises(UsageError, match=said):
            decoding(**given)


@pytest.mark.parametrize("content", ["", "v1", "v1\n{}", "v1\n{}\n{"])
@pytest.mark.parametrize("name", ["offsets/1", "offsets/2", "commits/1", "metadata"])
def test_a_checkpoint_with_a_damaged_file(tmp_path: Path, name: str, content: str) -> None:
    """The job reports the file and the remedy, instead of Spark's failure."""
    handmade = HandmadeArchive(tmp_path)
    state = manifests.hidden(tmp_path, "checkpoint")
    for number in range(3):
        handmade.checkpoint({LOG: 11 + 10 * number}, number, committed=number < 2)
    (state / "metadata").write_text('{"id":"1f3c9a2e-0000-0000-0000-000000000000"}')
    streams.check(state)
    if name == "commits/1" and content.startswith("v1\n{}"):
        return  # Spark writes the same content
    (state / name).write_text(content)
    with pytest.raises(checkpoint.Unreadable) as raised:
        streams.check(state)
    assert str(raised.value).startswith(f"{state / name} ")
    assert f"; remove {state} to continue without Spark's state" in str(raised.value)


@pytest.mark.parametrize("name", ["offsets/0", "offsets/1", "commits/1", "metadata"])
def test_a_checkpoint_that_does_not_match_its_checksum(tmp_path: Path, name: str) -> None:
    """One digit has changed, so only the checksum that Hadoop keeps shows it."""
    state = manifests.hidden(tmp_path, "checkpoint")
    texts = {
        f"offsets/{number}": f'v1\n{{}}\n{{"pos": {{"orders": {{"{LOG}": 20{number}}}}}, "v": 1}}'
        for number in range(2)
    }
    texts |= {"commits/1": 'v1\n{"nextBatchWatermarkMs":0}', "metadata": '{"id": "10"}'}
    for each, text in texts.items():
        spark_on_disk.save(state / each, text)
    streams.check(state)
    (state / name).write_text(texts[name].replace("0", "2"))
    with pytest.raises(checkpoint.Unreadable) as raised:
        streams.check(state)
    assert f"{state / name} is damaged: it does not match its checksum" in str(raised.value)


@pytest.mark.parametrize("job", ["archive", "rollup"])
def test_a_job_names_the_way_out_of_a_damaged_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], job: str
) -> None:
    for module in (archive, rollup):
        monkeypatch.setattr(module, "require_spark", lambda: None)
    hidden = manifests.HIDDEN if job == "archive" else minutes.HIDDEN
    state = tmp_path / hidden / "checkpoint"
    for folder in ("offsets", "commits"):
        (state / folder).mkdir(parents=True)
        (state / folder / "0").touch()
    assert main([job, "--topic=orders", f"--root={tmp_path}"]) == 1
    told = f"{state}/offsets/0 has no offset of format nsq; remove {state} to continue"
    assert told in capsys.readouterr().err


def test_checkpoints(tmp_path: Path) -> None:
    state = manifests.hidden(tmp_path, "checkpoint")
    assert checkpoint.read(state) == checkpoint.Checkpoint(-1, -1, {})
    handmade = HandmadeArchive(tmp_path)
    handmade.checkpoint({LOG: 11}, 0)
    handmade.checkpoint({LOG: 21}, 1, committed=False)
    for name in (".1.crc", "²"):
        (state / "offsets" / name).write_bytes(b"x")
    assert checkpoint.read(state) == checkpoint.Checkpoint(1, 0, {"orders": {LOG: 11}})
    for text, said in [
        ("v1\n{}\n{}", "has no offset of format nsq"),
        ("v2\n{}\n{}", "is not an offset of a query with one source"),
        ("", "has no offset"),
        *[
            ("v1\n{}\n" + text, "has no offset of format nsq")
            for text in (
                '{"pos": 5}',
                '{"pos": {"t": 5}}',
                '{"pos": {"t": {"l": 1e999}}}',
                "[" * 100_000,
            )
        ],
    ]:
        (state / "offsets" / "0").write_text(text)
        with pytest.raises(checkpoint.Unreadable, match=said):
            checkpoint.read(state)
