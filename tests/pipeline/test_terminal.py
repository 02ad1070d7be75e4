"""Every job once on a terminal, with a progress bar, a real nsqd and a single Spark session."""

import json
import os
import re
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from nsqcy.pipeline.__main__ import JOBS
from support.archive_files import LOG, HandmadeArchive
from support.nsqd_process import Nsqd, environment
from support.spark_requirements import QUICK_JAVA

pytestmark = [pytest.mark.spark, pytest.mark.ours]

# A process starts Spark only once, so all jobs run in this process.
PROGRAM = """
import json, sys
from nsqcy.pipeline.__main__ import main
for words in json.loads(sys.argv[1]):
    print(f"\\n[{words[0]} ended with {main(words)}]", flush=True)
"""
ENDED = re.compile(r"\[(\w+) ended with (\d+)\]")
COUNT = 2500
SECONDS = 600


def at_a_terminal(folder: Path, lines: list[list[str]]) -> dict[str, tuple[str, str]]:
    """Return each job's output and exit code. Each state of a progress bar is a separate line."""
    pytest.importorskip("tqdm", reason="tqdm is not installed")
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (25, 200))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(lines)],
        cwd=folder,
        env=environment() | {"JAVA_TOOL_OPTIONS": QUICK_JAVA, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    try:
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65536):
                shown += part
        assert process.wait(SECONDS) == 0, shown.decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    *texts, _ = ENDED.split(shown.decode().replace("\r", "\n"))
    jobs = zip(texts[::3], texts[1::3], texts[2::3], strict=True)
    return {name: (text, code) for text, name, code in jobs}


@pytest.mark.timeout(SECONDS)
def test_every_job_at_a_terminal(daemon: Nsqd, tmp_path: Path) -> None:
    conn = daemon.connect()
    conn.mpub("orders", [b'{"number": %d}' % n for n in range(COUNT)])
    old = HandmadeArchive(tmp_path / "old")
    for rows in (range(1, 51), range(51, 101)):
        old.batch({LOG: rows}, "dt=2026-01-31/hr=07")
    tcp = f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}"
    http = f"--nsqd-http-address=127.0.0.1:{daemon.http_port}"
    spark = ["--topic=orders", tcp, "--master=local[2]", "--driver-memory=1g"]
    jobs = {
        "archive": ["--once", "--option=maxOffsetsPerTrigger=1000", *spark],
        "verify": [],
        "compact": ["--root=old"],
        "orphans": ["--root=old"],
        "replay": ["--to=again", "--round-rows=1000", *spark],
        "rollup": ["--once", "--plots=no", *spark],
        "dlq": [*spark],
        "stats": ["--polls=2", "--every=10ms", http],
        "doctor": ["--topic=orders", tcp],
    }
    assert jobs.keys() == set(JOBS)
    found = at_a_terminal(tmp_path, [[name, *words] for name, words in jobs.items()])
    codes = {name: code for name, (_, code) in found.items()}
    assert codes == dict.fromkeys(jobs, "0"), found
    for name, (text, _) in found.items():
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
        assert bar in found[name][0], found[name]
