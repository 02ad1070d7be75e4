"""Statistics of nsqds as rows in files."""

import datetime
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nsqcy.pipeline.__main__ import main
from nsqcy.pipeline.stats import Files, as_line, parsed, rows_of, whole_lines, with_checksum
from support.nsqd_process import Nsqd

# /stats of NSQ's nsqd 1.3.
GO = {
    "version": "1.3.0",
    "health": "OK",
    "topics": [
        {
            "topic_name": "orders",
            "channels": [
                {
                    "channel_name": "billing",
                    "depth": 5,
                    "backend_depth": 1,
                    "in_flight_count": 2,
                    "deferred_count": 3,
                    "message_count": 100,
                    "requeue_count": 4,
                    "timeout_count": 6,
                    "client_count": 7,
                    "clients": [],
                    "paused": True,
                    "e2e_processing_latency": {
                        "count": 10,
                        "percentiles": [
                            {"quantile": 0.99, "value": 2_500_000},
                            {"quantile": 0.5, "value": 1_000_000},
                        ],
                    },
                }
            ],
            "depth": 8,
            "backend_depth": 0,
            "message_count": 100,
            "message_bytes": 4000,
            "paused": False,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
    ],
}
AT = datetime.datetime(2026, 1, 31, 7, tzinfo=datetime.UTC)


class Pages:
    """HTTP server whose pages a test changes. `asked` contains the requested paths."""

    def __init__(self) -> None:
        self.pages: dict[str, Any] = {}
        self.asked: list[str] = []
        pages = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.asked.append(self.path)
                found = pages.pages.get(self.path.partition("?")[0])
                self.send_response(404 if found is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def pages() -> Iterator[Pages]:
    found = Pages()
    yield found
    found.close()


def test_rows() -> None:
    topic, channel = rows_of(AT, "n1:4151", GO)
    head = {"at": AT, "nsqd": "n1:4151", "version": "1.3.0", "topic": "orders"}
    assert topic == head | {
        "channel": None,
        "depth": 8,
        "backend_depth": 0,
        "messages": 100,
        "bytes": 4000,
        "in_flight": None,
        "deferred": None,
        "requeued": None,
        "timed_out": None,
        "clients": None,
        "paused": False,
        "latency_ms": {},
    }
    assert channel == head | {
        "channel": "billing",
        "depth": 5,
        "backend_depth": 1,
        "messages": 100,
        "bytes": None,
        "in_flight": 2,
        "deferred": 3,
        "requeued": 4,
        "timed_out": 6,
        "clients": 7,
        "paused": True,
        "latency_ms": {"0.99": 2.5, "0.5": 1.0},
    }
    assert list(rows_of(AT, "n1:4151", {"topics": None})) == []


def run(*words: str) -> int:
    return main(["stats", "--every=1ms", *words])


def test_parquet_and_json_say_the_same(
    pages: Pages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages.pages["/stats"] = {"status_code": 200, "data": GO}  # format of old versions
    where = f"--nsqd-http-address={pages.address}"
    assert run(where, "--polls=3", f"--root={tmp_path}/p", "--topic=orders") == 0
    done = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (done["rows"], done["polls"]) == (6, 3)
    assert pages.asked == ["/stats?format=json&include_clients=false&topic=orders"] * 3
    (path,) = Path(tmp_path, "p").rglob("*.parquet")
    rows = pq.read_table(path).to_pylist()
    assert len(rows) == 6 and dict(rows[1]["latency_ms"]) == {"0.99": 2.5, "0.5": 1.0}
    assert run(where, "--polls=2", f"--root={tmp_path}/j", "--format=json") == 0
    (path,) = Path(tmp_path, "j").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == 4
    assert {name: lines[1][name] for name in ("channel", "depth", "clients")} == {
        name: rows[1][name] for name in ("channel", "depth", "clients")
    }


def test_nsqds_of_lookupd(pages: Pages, tmp_path: Path) -> None:
    host, port = pages.address.split(":")
    node = {"broadcast_address": host, "http_port": int(port)}
    pages.pages |= {"/stats": GO, "/nodes": {"producers": [node]}}
    words = [f"--lookupd-http-address={pages.address}", "--polls=1", f"--root={tmp_path}"]
    assert run(*words) == 0
    (path,) = tmp_path.rglob("*.parquet")
    assert set(pq.read_table(path)["nsqd"].to_pylist()) == {pages.address}


def test_an_unreachable_nsqd_is_reported_once(
    pages: Pages, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--nsqd-http-address={pages.address}", "--polls=3", f"--root={tmp_path}"]
    assert run(*words) == 1
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (warning,) = [line["text"] for line in said if line["event"] == "warning"]
    assert warning == f"{pages.address} does not answer: HTTP Error 404: Not Found"
    assert not list(tmp_path.iterdir())


def test_a_file_for_so_much_time(tmp_path: Path) -> None:
    (_, row) = rows_of(AT, "n1", GO)
    with Files(tmp_path, "parquet", 60) as files:
        for seconds in (0, 59, 60, 61, 120, 17 * 3600 - 1, 17 * 3600):
            files.add([row | {"at": AT + datetime.timedelta(seconds=seconds)}])
        files.add([])
    found = sorted((str(path.relative_to(tmp_path))[:20], path) for path in tmp_path.rglob("*.p*"))
    assert [(name, pq.read_metadata(path).num_rows) for name, path in found] == [
        ("dt=2026-01-31/070000", 2),
        ("dt=2026-01-31/070100", 2),
        ("dt=2026-01-31/070200", 1),
        ("dt=2026-01-31/235959", 1),
        ("dt=2026-02-01/000000", 1),
    ]


def test_killed_before_the_end_of_a_time_span(tmp_path: Path) -> None:
    """The next run writes the rows of a killed run, but not those of an active run."""
    rows = list(rows_of(AT, "n1", GO))
    killed = Files(tmp_path, "parquet", 60)
    killed.add(rows)
    (path,) = tmp_path.iterdir()
    with Files(tmp_path, "parquet", 60):
        pass
    assert list(tmp_path.iterdir()) == [path]
    content = path.read_text()
    assert killed._open is not None
    killed._open.close()  # as the kernel does at a kill, which may leave an incomplete last line
    path.write_text(content + content[:50])
    for _ in range(2):
        with Files(tmp_path, "parquet", 60):
            pass
        (found,) = tmp_path.rglob("*.parquet")
        assert pq.read_table(found).num_rows == 2 and not path.exists()
        assert found.name == f"070000.000000-{os.getpid()}.parquet"
        path.write_text(content)  # killed after writing the file
    assert pq.ParquetFile(found).read()["depth"].to_pylist() == [8, 5]


def test_nothing_hidden_stays(tmp_path: Path) -> None:
    with Files(tmp_path, "parquet", 60) as files:
        for seconds in (0, 61):
            files.add(
                [
                    row | {"at": AT + datetime.timedelta(seconds=seconds)}
                    for row in rows_of(AT, "n1", GO)
                ]
            )
    assert [path.name for path in tmp_path.iterdir()] == ["dt=2026-01-31"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


@pytest.mark.parametrize("line", ["{}", "5", '{"at": 5}', '{"at": "2026-01-31"}', "[" * 9])
def test_other_content_in_the_place_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = tmp_path / ".open-5.jsonl"
    path.write_text(line + "\n")
    assert run("--polls=1", f"--root={tmp_path}") == 1
    assert f"{path} does not contain rows of stats; move it elsewhere" in capsys.readouterr().err
    assert path.exists()


def test_each_flipped_bit_of_the_rows_of_a_killed_run(tmp_path: Path) -> None:
    """The truncation is detected: the rows become a Parquet file, which has no manifest."""
    line = as_line(next(rows_of(AT, "n1", GO)))
    content = (with_checksum(line) * 2).encode()
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError):
            list(map(parsed, whole_lines(bytes(changed).decode())))
    for whole in (content, content + content[:50], (line * 2).encode()):
        assert list(whole_lines(whole.decode())) == [line[:-1]] * 2


@pytest.mark.ours
def test_a_real_nsqd(shared: Nsqd, topic: str, tmp_path: Path) -> None:
    shared.web.pub(topic, b"12345")
    shared.web.create(topic, "c")
    where = f"--nsqd-http-address=127.0.0.1:{shared.http_port}"
    assert run(where, "--polls=1", f"--topic={topic}", f"--root={tmp_path}") == 0
    (path,) = tmp_path.rglob("*.parquet")
    one, other = pq.read_table(path).to_pylist()
    assert (one["topic"], one["messages"], one["bytes"]) == (topic, 1, 5)
    assert (other["channel"], other["depth"], other["clients"]) == ("c", 1, 0)
