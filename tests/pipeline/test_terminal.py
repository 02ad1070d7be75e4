"""Every job once on a terminal, with a progress bar and a real nsqd."""

import os
import re
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline.__main__ import JOBS, main
from support.archive_files import LOG, HandmadeArchive
from support.nsqd_process import Nsqd

pytestmark = [pytest.mark.spark, pytest.mark.ours]

ENDED = re.compile(r"\[(\w+) ended with (\d+)\]")
COUNT = 2500
STANDARD = (0, 1, 2)
SECONDS = 600


@contextmanager
def terminal(shown: bytearray) -> Iterator[None]:
    """Give this process a terminal during the block, and then append the terminal's output."""
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (25, 200))
    before = [os.dup(fd) for fd in STANDARD]

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                shown.extend(part)

    reader = threading.Thread(target=read)
    reader.start()
    for fd in STANDARD:
        os.dup2(theirs, fd)
    os.close(theirs)
    try:
        with (
            open(1, "w", closefd=False) as out,
            open(2, "w", 1, closefd=False) as err,
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            yield
    finally:
        for fd, kept in zip(STANDARD, before, strict=True):
            os.dup2(kept, fd)
        reader.join()
        for fd in (ours, *before):
            os.close(fd)


@pytest.mark.timeout(SECONDS)
def test_every_job_at_a_terminal(
    spark: Any, daemon: Nsqd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    monkeypatch.chdir(tmp_path)
    conn = daemon.connect()
    conn.mpub("orders", [b'{"number": %d}' % n for n in range(COUNT)])
    old = HandmadeArchive(tmp_path / "old")
    for rows in (range(1, 51), range(51, 101)):
        old.batch({LOG: rows}, "dt=2026-01-31/hr=07")
    tcp = f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}"
    http = f"--nsqd-http-address=127.0.0.1:{daemon.http_port}"
    source = ["--topic=orders", tcp]
    jobs = {
        "archive": ["--once", "--option=maxOffsetsPerTrigger=1000", *source],
        "verify": [],
        "compact": ["--root=old"],
        "orphans": ["--root=old"],
        "replay": ["--to=again", "--round-rows=1000", *source],
        "rollup": ["--once", "--plots=no", *source],
        "dlq": [*source],
        "stats": ["--polls=2", "--every=10ms", http],
        "doctor": ["--topic=orders", tcp],
    }
    assert jobs.keys() == set(JOBS)
    shown = bytearray()
    with terminal(shown):
        for name, words in jobs.items():
            print(f"\n[{name} ended with {main([name, *words])}]", flush=True)
    *texts, _ = ENDED.split(shown.decode().replace("\r", "\n"))
    found = dict(zip(texts[1::3], texts[::3], strict=True))
    assert texts[2::3] == ["0"] * len(jobs), found
    for name, text in found.items():
        assert "Traceback" not in text and '{"at"' not in text, text
        if name != "doctor":
            assert re.search(rf"^{name}: ", text, re.MULTILINE), text
    for name, bar in {
        "archive": "2.50k",
        "verify": "100%",
        "compact": "100%",
        "replay": "100%",
        "rollup": "2.50k",
        "stats": "nsqds 1",
    }.items():
        assert bar in found[name], found[name]
