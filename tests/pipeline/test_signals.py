"""SIGTERM at random lines of each job that has an end: the exit status shows that the job has not
reached its end, and the next run completes the work exactly once."""

import json
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline import archive, checkpoint, compact, manifests, orphans, verify
from nsqcy.pipeline.__main__ import main
from support.archive_files import LOG, rolled_up, rows_by_glob
from support.archive_process import Driver, at, running
from support.fake_log_nsqd import FakeTopic, LogBroker
from support.lost_checkpoints import Trap
from support.nsqd_process import Nsqd
from support.spark_on_disk import install
from support.spark_sources import batch, rows

pytestmark = pytest.mark.ours

SIGNALS = 8
ROWS = 120
SIGTERMS = 4  # per program


@pytest.fixture
def broker() -> Iterator[LogBroker]:
    broker = LogBroker()
    broker.topics["orders"] = FakeTopic(LOG, ROWS)
    yield broker
    broker.close()


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Trap:
    """Interrupts a job: SIGTERM and ^C raise this."""
    trap = Trap(KeyboardInterrupt)
    install(monkeypatch, trap)
    for job in (compact, orphans, verify):
        run: Callable[..., int] = job.run
        monkeypatch.setattr(job, "run", lambda *args, run=run: trap.call(run, *args))
    return trap


@pytest.fixture
def words(broker: LogBroker) -> list[str]:
    more = ["--option=maxOffsetsPerTrigger=40"]
    return ["--once", "--topic=orders", f"--nsqd-tcp-address={broker.address}", *more]


@pytest.mark.parametrize("job", ["archive", "rollup", "compact", "orphans", "verify"])
def test_a_job_that_is_stopped(
    job: str, trap: Trap, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(job)
    sound, root = tmp_path / "sound", tmp_path / "root"
    here = f"--root={root}"
    sound.mkdir()
    if job not in ("archive", "rollup"):
        assert main(["archive", f"--root={sound}", *words]) == 0
        path = sound / min(manifests.on_disk(sound))
        if job == "orphans":
            shutil.copy(path, path.with_name("part-9.parquet"))
    line = {
        "archive": ["archive", here, *words],
        "rollup": ["rollup", here, "--plots=no", *words],
        "compact": ["compact", here, "--closed-for=0s"],
        "orphans": ["orphans", here, "--remove"],
        "verify": ["verify", here],
    }[job]
    stopped = 0
    for _ in range(SIGNALS):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sound, root)
        trap.set(rng)
        code = main(line)
        err = capsys.readouterr().err
        if trap.fired:
            stopped += 1
            told = f"nsqcy-pipeline {job}: stopped before it finished; run the command again\n"
            assert (code, err) == (1, told), trap.fired
        trap.remove()
        assert main(line) == 0
        check(root, is_rollup=job == "rollup")
    assert stopped > 1


def check(root: Path, *, is_rollup: bool) -> None:
    if is_rollup:
        assert rolled_up(root) == ROWS
    else:
        assert [seq for _, seq, _ in rows_by_glob(root)] == list(range(1, ROWS + 1))
        assert main(["verify", f"--root={root}"]) == 0
    assert not list(root.rglob("*.partial"))


# --- processes ----------------------------------------------------------------------------------

LETTERS = 400
PARTS = f"--option=maxOffsetsPerTrigger={LETTERS // 8}"
ROUNDS = ("--state=plan.json", f"--round-rows={LETTERS // 8}")
PROGRAM = str(Path(__file__).parents[1] / "support" / "spark_copy_driver.py")
# The arguments, and the exit status after SIGTERM.
RUNS = {
    "archive": (["archive", PARTS, "--once"], 1),
    "archive without an end": (["archive", PARTS, "--every=100ms"], 0),
    "rollup": (["rollup", PARTS, "--once", "--plots=no"], 1),
    "rollup without an end": (["rollup", PARTS, "--every=100ms", "--plots=no"], 0),
    "replay": (["replay", "--to=again", *ROUNDS], 1),
    "dlq": (["dlq"], 1),
    "dlq --republish": (["dlq", "--republish=again", *ROUNDS], 1),
    "sink": ([PROGRAM], -signal.SIGTERM),
}


def make_letters(daemon: Nsqd) -> None:
    """Let nsqd move messages to a dead-letter topic."""
    policy = json.dumps({"max_attempts": 1, "dead_letter_topic": "orders"}).encode()
    daemon.web.create("bills", "c")
    assert daemon.web.put("/channel/config", policy, topic="bills", channel="c").status == 200
    daemon.connect().mpub("bills", [b"%d" % number for number in range(LETTERS)])
    conn = daemon.connect().sub("bills", "c", rdy=LETTERS)
    for message in conn.messages(LETTERS):
        conn.req(message)
    daemon.web.await_counts("orders", message_count=LETTERS)


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", RUNS)
def test_a_program_that_is_stopped(
    name: str, daemon: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while Spark starts, and at random moments of its work."""
    rng = random.Random(name)
    words, status = RUNS[name]
    monkeypatch.chdir(tmp_path)
    make_letters(daemon)
    given = {"topic": "orders", "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    reading = given | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(LETTERS // 8)}

    def start() -> Driver:
        if name == "sink":
            options = (json.dumps(reading), json.dumps(given | {"topic": "again"}))
            return Driver(tmp_path, *words, "copies", *options)
        return running(words[0], tmp_path, *at(daemon), *words[1:])

    def progress() -> int:
        offsets = (checkpoint.last(path) for path in tmp_path.glob("*/*/checkpoint/offsets"))
        return max(offsets, default=daemon.web.counts("again")["message_count"])

    def bodies() -> Counter[bytes]:
        if words[0] == "archive":
            return Counter(body for _, _, body in rows_by_glob(tmp_path / "archive"))
        return Counter(row["body"] for row in rows(batch(given | {"topic": "again"}, "body")))

    codes = []
    for moment in range(SIGTERMS):
        before, driver = progress(), start()
        try:
            if moment:
                over = words == ["dlq"] or before in (7, LETTERS)
                driver.until(
                    lambda a=over, b=before, d=driver: a or progress() > b or not d.running
                )
            time.sleep(rng.uniform(0, 8 if words == ["dlq"] or not moment else 1))
            begun = time.monotonic()
            codes.append(driver.stop())
            print(name, moment, codes[-1], round(time.monotonic() - begun, 2), flush=True)
        finally:
            if driver.running:
                driver.kill()
        # A program that has not set a handler yet ends at once.
        assert codes[-1] in (status, 0, -signal.SIGTERM), driver.said()
        if codes[-1] == 1:
            assert "stopped before it finished; run the command again" in driver.said()
    assert status in codes
    if not status:  # a job without an end
        words = [*words, "--once"]
    last = start()
    assert last.wait() == 0, last.said()
    if words[0] == "rollup":
        assert rolled_up(tmp_path / "rollup") == LETTERS
    elif words != ["dlq"]:
        assert bodies() == Counter(b"%d" % number for number in range(LETTERS))
    if words[0] == "archive":
        assert main(["verify", "--root=archive"]) == 0


def test_a_checkpoint_belongs_to_one_archive(
    trap: Trap, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise, two archives would each have some of the rows."""
    state = tmp_path / "state"
    with archive.claimed(state):
        line = ["archive", *words, f"--root={tmp_path}/other", f"--checkpoint={state}"]
        assert main(line) == 1
        said = f"nsqcy-pipeline archive: another archive uses the checkpoint {state}\n"
        assert capsys.readouterr().err == said
    assert main(line) == 0


def test_a_job_without_an_end_is_stopped_as_intended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*_: Any) -> int:
        raise KeyboardInterrupt

    for job, module in (("archive", archive), ("verify", verify)):
        monkeypatch.setattr(module, "run", run)
        code = 1 if job == "verify" else 0
        assert main([job]) == code
        assert bool(capsys.readouterr().err) == bool(code)
    assert main(["archive", "--once"]) == 1
