"""Jobs that end at random moments, after which Spark's checkpoint lacks its last files, has a torn
one, is an older copy, or is lost: each row is in the archive, and counted by rollup, exactly once.

Most moments run on an engine without a JVM (spark_on_disk.py). `NSQCY_MOMENTS` sets their number in
the soak tests, `NSQCY_SPARK_MOMENTS` the number with Spark, `NSQCY_MOMENTS_SEED` their seed.
"""

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline import archive, checkpoint, manifests, minutes, replay, rollup
from nsqcy.pipeline.__main__ import main
from nsqcy.spark.errors import Refused
from support import spark_sinks as sinks
from support.archive_files import rolled_up, rows_by_glob
from support.archive_process import LOCAL, at, body, publish, running
from support.fake_chunk_nsqd import ChunkBroker
from support.fake_log_nsqd import FakeTopic, LogBroker
from support.lost_checkpoints import Killed, Trap, damage, lose_files, tear
from support.nsqd_process import Nsqd
from support.spark_on_disk import Frame, Query, install
from support.spark_sources import batch, rows

pytestmark = pytest.mark.ours

FEW = 24
MOMENTS = int(os.environ.get("NSQCY_MOMENTS", "200"))
SPARK_MOMENTS = int(os.environ.get("NSQCY_SPARK_MOMENTS", "200"))
SEED = int(os.environ.get("NSQCY_MOMENTS_SEED", "1"))
EACH = 60
BATCHES = 3
KILLS = 20  # with Spark, one in 20 moments is the kill of a driver
SINKS = {"archive": archive.Files, "rollup": rollup.Counts}
JOBS = pytest.mark.parametrize("job", list(SINKS))


class Runs:
    """Runs of one job over two nsqds; the second one gets the topic later."""

    def __init__(
        self,
        job: str,
        root: Path,
        addresses: list[str],
        publishers: list[Callable[[int, int], None]],
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        root.mkdir(parents=True)
        self.job = job
        self.root = root
        self.ends: Counter[str] = Counter()
        self.published = [0 for _ in publishers]
        self.trap = Trap()
        self.words = [f"--nsqd-tcp-address={address}" for address in addresses]
        self.words += [f"--option=maxOffsetsPerTrigger={2 * EACH // BATCHES}", *LOCAL]
        self.words += ["--plots=no"] if job == "rollup" else []
        self._publishers = publishers
        self._capsys = capsys

    @property
    def state(self) -> Path:
        hidden = manifests.HIDDEN if self.job == "archive" else minutes.HIDDEN
        return self.root / hidden / "checkpoint"

    def say(self, *what: object) -> None:
        with self._capsys.disabled():
            print(*what, flush=True)

    def run(self) -> str:
        """Run the job until its trap or its end. If it refuses to run, follow the instruction in
        the error text."""
        code = main([self.job, "--once", "--topic=orders", f"--root={self.root}", *self.words])
        err = self._capsys.readouterr().err
        if self.trap.fired:
            return self.trap.fired
        if code == 0:
            return "complete"
        if "failed to connect back" in err:
            return "busy"  # Spark's workers did not start in time
        assert code == 1 and f"remove {self.state} to continue" in err, err
        shutil.rmtree(self.state)
        return "refused"

    def complete(self) -> None:
        self.trap.remove()
        while self.run() != "complete":
            pass

    def kill(self, rng: random.Random) -> str:
        root = f"--root={self.root}"
        driver = running(self.job, self.root.parent, root, "--every=50ms", *self.words)
        try:
            begun = checkpoint.last(self.state / "offsets")
            driver.until(
                lambda: checkpoint.last(self.state / "offsets") != begun or not driver.running
            )
            time.sleep(rng.uniform(0, 1.5))
        finally:
            driver.kill()
        return "killed"

    def moments(self, count: int, rng: random.Random, *, with_kills: bool = False) -> Iterator[int]:
        """End the job and damage its checkpoint; yield after each moment, and at the end."""
        copy = self.root.parent / "copy"
        for number in range(count):
            for index, send in enumerate(self._publishers):
                if not index or number > 2:
                    send(self.published[index], self.published[index] + EACH)
                    self.published[index] += EACH
            self.trap.set(rng)
            is_killed = with_kills and number % KILLS == KILLS - 1
            end = self.kill(rng) if is_killed else self.run()
            for name in manifests.unplaced(self.root):
                if not manifests.manifest_path(self.root, name).exists():
                    tear(manifests.hidden(self.root, manifests.UNPLACED) / name, rng)
            lost = damage(self.state, copy, rng)
            self.ends[end if end in ("killed", "complete", "refused", "busy") else "trapped"] += 1
            self.ends[lost] += 1
            if with_kills:
                self.say(number, end, lost)
            yield number

    def check(self, count: int, rng: random.Random, *, with_kills: bool = False) -> None:
        """Check the rows after some moments, and check that they are complete after an
        uninterrupted run."""
        look = check_archive if self.job == "archive" else check_rollup
        seen: set[Any] = set()
        for number in self.moments(count, rng, with_kills=with_kills):
            is_whole = number % 10 == 9 or number == count - 1
            if is_whole:
                self.complete()
            if is_whole or number % 4 == 1:
                seen = look(self, seen, rng, is_whole=is_whole)


def check_archive(
    runs: Runs, seen: set[tuple[str, int]], rng: random.Random, *, is_whole: bool
) -> set[tuple[str, int]]:
    """No row is duplicated, none disappears, and verify finds a problem if one is missing."""
    root = runs.root
    rows_there = [row[:2] for row in rows_by_glob(root)] if any(root.glob("topic=*")) else []
    found = set(rows_there)
    assert len(rows_there) == len(found) and seen <= found
    ends: dict[str, int] = {}
    for log_id, seq in found:
        ends[log_id] = max(seq, ends.get(log_id, 0))
    if is_whole:
        assert sorted(ends.values()) == sorted(filter(None, runs.published))
        assert manifests.unplaced(root) == []
    dense = sum(ends.values()) == len(found)
    code = main(["verify", f"--root={root}"])
    assert code == 1 or dense
    assert code == 0 or not is_whole
    if found and rng.random() < 0.2:
        path = root / rng.choice(sorted(manifests.on_disk(root)))
        away = path.with_suffix(".away")
        path.rename(away)
        assert main(["verify", f"--root={root}"]) == 1
        away.rename(path)
    return found


def check_rollup(runs: Runs, seen: set[Any], _rng: random.Random, *, is_whole: bool) -> set[Any]:
    if is_whole:
        assert rolled_up(runs.root) == sum(runs.published)
    return seen


# --- without a JVM ----------------------------------------------------------------------------


@pytest.fixture
def brokers() -> Iterator[list[LogBroker]]:
    brokers = [LogBroker(), LogBroker()]
    yield brokers
    for broker in brokers:
        broker.close()


def to_broker(broker: LogBroker, log_id: str) -> Callable[[int, int], None]:
    def send(first: int, end: int) -> None:
        broker.topics.setdefault("orders", FakeTopic(log_id)).publish(end - first)

    return send


@JOBS
@pytest.mark.parametrize(
    ("moments", "seed"),
    [(FEW, 7), pytest.param(MOMENTS, SEED, marks=[pytest.mark.soak, pytest.mark.timeout(7200)])],
)
def test_each_row_once(
    job: str,
    moments: int,
    seed: int,
    brokers: list[LogBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publishers = [to_broker(broker, log * 32) for broker, log in zip(brokers, "ab", strict=True)]
    addresses = [broker.address for broker in brokers]
    runs = Runs(job, tmp_path / "lake" / job, addresses, publishers, capsys)
    install(monkeypatch, runs.trap)
    runs.check(moments, random.Random(seed))
    assert runs.ends["trapped"] > moments // 2 and runs.ends["refused"], runs.ends
    if moments > FEW:
        runs.say(job, dict(runs.ends))


@pytest.mark.parametrize(
    ("moments", "seed"),
    [
        (FEW // 2, 7),
        pytest.param(MOMENTS, SEED, marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ],
)
def test_replay(
    moments: int,
    seed: int,
    brokers: list[LogBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each replay ends several times; its state file is restored from an older copy, or is torn."""
    rng, trap, ends = random.Random(seed), Trap(), Counter[str]()
    brokers[0].topics["orders"] = FakeTopic("a" * 32, 4 * EACH)
    target = ChunkBroker()

    def one_round(_spark: Any, options: Any, work: Any, plan: Any, part: Any) -> int:
        """Publish a part as Spark's tasks do."""
        given = replay.destination(options, work.to) | {"producerId": plan.producer(plan.done)}
        for task in range(plan.tasks):
            seqs = [n for n in range(part.start, part.end) if n // 10 % plan.tasks == task]
            sent = sinks.table({"body": [b"%d" % seq for seq in seqs]})
            trap.reached("a task")
            sinks.run(sinks.writer(given, sent), sent, task=task)
        return int(part.rows)

    publish_all = replay.publish
    monkeypatch.setattr(replay, "one_round", one_round)
    monkeypatch.setattr(replay, "publish", lambda *args: trap.call(publish_all, *args))
    monkeypatch.setattr(replay, "require_spark", lambda: None)
    monkeypatch.setattr(replay, "make_session", lambda *_: None)
    words = ["--topic=orders", f"--nsqd-tcp-address={brokers[0].address}", "--tasks=3"]
    words += [f"--to-nsqd-tcp-address={target.address}", f"--round-rows={EACH}"]
    words += ["--to-option=batchBytes=100"]
    replays = 0
    while ends.total() < moments:
        topic, replays = f"again-{replays}", replays + 1
        state, copy = tmp_path / f"{topic}.json", tmp_path / f"{topic}.copy"
        end = ""
        while end != "complete":
            trap.set(rng)
            if not copy.exists() and state.exists():
                shutil.copy(state, copy)
            code = main(["replay", f"--to={topic}", f"--state={state}", *words])
            err = capsys.readouterr().err
            end = "trapped" if trap.fired else "complete" if code == 0 else "refused"
            ends[end] += 1
            if end == "refused":
                assert f"{state} is" in err
                shutil.copy(copy, state)
            elif end == "trapped" and copy.exists():
                fate = rng.random()
                if fate < 0.3:
                    shutil.copy(copy, state)
                elif fate < 0.5:
                    content = state.read_bytes()
                    state.write_bytes(content[: int(len(content) * rng.random())])
                elif fate < 0.7:
                    shutil.copy(state, copy)
        numbers = sorted(map(int, target.bodies(topic)))
        assert numbers == list(range(1, 4 * EACH + 1))
    target.close()
    assert ends["trapped"] > moments // 4, ends
    if moments > FEW:
        with capsys.disabled():
            print("replay", replays, dict(ends), flush=True)


class Publishing:
    """Writes batches with the sink of `format("nsq")`, in two tasks."""

    def __init__(self, address: str, topic: str, state: Path, trap: Trap) -> None:
        self._options = {"topic": topic, "nsqdTcpAddresses": address, "batchBytes": "100"}
        self._options["checkpointLocation"] = f"file://{state}"
        self._trap = trap

    def begin(self, query_id: str) -> None:
        self._query_id = query_id

    def __call__(self, frame: Frame, number: int) -> None:
        bodies = [b"%s %d" % (log_id.encode(), seq) for _, log_id, seq, _ in frame.rows()]
        for task in range(2):
            self._trap.reached("a task")
            sent = sinks.table({"body": bodies[task::2]})
            made = sinks.writer(self._options, sent, stream=True)
            sinks.run(made, sent, task=task, batch=number, query=self._query_id)


@pytest.mark.parametrize("same", [True, False], ids=["same rows", "other rows"])
@pytest.mark.parametrize(
    ("moments", "seed"),
    [(FEW // 2, 7), pytest.param(MOMENTS, SEED, marks=[pytest.mark.soak])],
)
def test_sink(
    same: bool,
    moments: int,
    seed: int,
    brokers: list[LogBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A user's query publishes each row once, even if its checkpoint lacks its last files or is
    restored from a copy. If a batch is repeated with different rows, nsqd refuses the query, which
    then begins again with another topic."""
    rng, trap, target, ends = random.Random(seed), Trap(), ChunkBroker(), Counter[str]()
    given = {
        "topic": "orders",
        "nsqdTcpAddresses": ",".join(broker.address for broker in brokers),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(EACH // BATCHES),
    }
    logs = [to_broker(broker, log * 32) for broker, log in zip(brokers, "ab", strict=True)]
    each = EACH if same else EACH - 7  # a last batch that is not full is repeated with more rows

    def send() -> None:
        for log in logs:
            log(0, each)

    for _ in range(moments if same else 0):
        send()
    for number in range(moments):
        if not same:
            send()
        trap.set(rng)
        if number == moments - 1:
            trap.remove()
        topic, end = f"copies-{ends['refused']}", "complete"
        state, copy = tmp_path / topic, tmp_path / f"{topic}.copy"
        before = len(target.bodies(topic))
        try:
            sink: Any = Publishing(target.address, topic, state, trap)
            Query(given, sink, state).run(trap)
        except Killed:
            end = "trapped"
        except Refused as error:
            assert f"{state} is older than the published data" in str(error)
            assert len(target.bodies(topic)) == before
            end = "refused"
        ends[end] += 1
        assert max(Counter(target.bodies(topic)).values()) == 1
        lose_files(state, rng)
        if copy.exists() and rng.random() < 0.2:
            shutil.rmtree(state)
            shutil.copytree(copy, state)
        elif rng.random() < 0.1:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(state, copy)
    if end == "complete":
        seqs = range(1, moments * each + 1)
        wanted = {b"%s %d" % (log.encode() * 32, seq) for log in "ab" for seq in seqs}
        assert set(target.bodies(topic)) == wanted
    target.close()
    assert not ends["refused"] or not same
    assert ends["refused"] or same or moments < MOMENTS
    if moments > FEW:
        with capsys.disabled():
            print("sink", "same" if same else "other", dict(ends), flush=True)


# --- with Spark -------------------------------------------------------------------------------


@pytest.fixture
def daemons(daemon: Nsqd, tmp_path: Path) -> Iterator[list[Nsqd]]:
    path = tmp_path / "second"
    path.mkdir()
    second = Nsqd(path, workers=1, retention_time="24h", durability="os").start()
    yield [daemon, second]
    second.destroy()


def to_nsqd(daemon: Nsqd) -> Callable[[int, int], None]:
    return lambda first, end: publish(daemon, first, end)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(36_000)
@JOBS
def test_each_row_once_with_spark(
    job: str,
    daemons: list[Nsqd],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    addresses = [f"127.0.0.1:{daemon.tcp_port}" for daemon in daemons]
    publishers = [to_nsqd(daemon) for daemon in daemons]
    runs = Runs(job, tmp_path / "lake" / job, addresses, publishers, capsys)
    write = SINKS[job].write

    def trapped(sink: Any, frame: Any, query_id: str, number: int) -> None:
        runs.trap.call(write, sink, frame, query_id, number)
        runs.trap.reached("before the commit")

    monkeypatch.setattr(SINKS[job], "write", trapped)
    runs.check(SPARK_MOMENTS, random.Random(SEED), with_kills=True)
    runs.say(job, dict(runs.ends))


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(36_000)
def test_replay_with_spark(
    daemons: list[Nsqd],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A replay ends several times, and its state file may be restored from an older copy."""
    rng = random.Random(SEED)
    trap = Trap()
    one_round = replay.one_round

    def trapped(*args: Any) -> int:
        rows = trap.call(one_round, *args)
        trap.reached("before the state")
        return int(rows)

    monkeypatch.setattr(replay, "one_round", trapped)
    publish(daemons[0], 0, 4 * EACH)
    expected = Counter(body(number) for number in range(4 * EACH))
    ends: Counter[str] = Counter()
    moment = replays = 0
    while moment < SPARK_MOMENTS:
        replays += 1
        topic = f"again-{replays}"
        state, copy = tmp_path / f"{topic}.json", tmp_path / f"{topic}.copy"
        end = ""
        while end != "complete":
            trap.set(rng)
            words = [f"--to={topic}", f"--state={state}", f"--round-rows={EACH}", *at(daemons[0])]
            code = main(["replay", "--topic=orders", *LOCAL, *words])
            err = capsys.readouterr().err
            assert trap.fired or code == 0 or "failed to connect back" in err, err
            end = "trapped" if trap.fired else "complete" if code == 0 else "busy"
            ends[end] += 1
            moment += 1
            if state.exists() and copy.exists() and rng.random() < 0.4:
                shutil.copy(copy, state)
                ends["older state"] += 1
            elif state.exists() and rng.random() < 0.5:
                shutil.copy(state, copy)
            with capsys.disabled():
                print(moment, end, trap.fired, flush=True)
        source = {"topic": topic, "nsqdTcpAddresses": f"127.0.0.1:{daemons[0].tcp_port}"}
        assert Counter(row["body"] for row in rows(batch(source, "body"))) == expected
    with capsys.disabled():
        print("replay", replays, dict(ends), flush=True)
