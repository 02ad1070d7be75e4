"""Progress of a job: a bar and words on a terminal, JSON lines otherwise.

Each JSON line is one event: `{"at": ..., "job": ..., "event": ..., ...}` with the event's fields.
Any thread may report.
"""

import datetime
import json
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

from nsqcy.pipeline.checkpoint import Positions

STEP_SECONDS = 1.0


class Report:
    """Reports for one job. As a context manager, it restores the terminal."""

    def __init__(self, job: str, *, json_lines: bool) -> None:
        self.job = job
        self._json_lines = json_lines
        self._lock = threading.Lock()
        self._bar: Any = None
        self._written = 0.0

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def progress(self, **fields: Any) -> None:
        """Report progress. On a terminal, `done` and `total` move the bar; other fields are shown
        next to it."""
        if not self._json_lines:
            self._move(fields)
        elif self._is_time(fields):
            self._write("progress", fields)

    def line(self, text: str, **fields: Any) -> None:
        """Report one result; the fields contain the same data for programs."""
        if self._json_lines:
            self._write("line", {"text": text} | fields)
        else:
            self._say(text)

    def warn(self, text: str, **fields: Any) -> None:
        if self._json_lines:
            self._write("warning", {"text": text} | fields)
        else:
            self._say(f"warning: {text}", sys.stderr)

    def done(self, **fields: Any) -> None:
        """Report the end."""
        if self._json_lines:
            self._write("done", fields)
        else:
            self._say(f"{self.job}: {shown(fields) or 'done'}")

    def _is_time(self, fields: Mapping[str, Any]) -> bool:
        """Report at most once a second, but always report the last step."""
        now = time.monotonic()
        if "total" in fields and fields.get("done") != fields["total"]:
            if now - self._written < STEP_SECONDS:
                return False
            self._written = now
        return True

    def _write(self, event: str, fields: Mapping[str, Any]) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        head = {"at": now.replace("+00:00", "Z"), "job": self.job, "event": event}
        with self._lock:
            print(json.dumps(head | dict(fields), default=str), flush=True)

    def _say(self, text: str, stream: Any = None) -> None:
        with self._lock:
            # Compare with None: a bar without a total has no truth value.
            aside = nullcontext() if self._bar is None else self._bar.external_write_mode()
            with aside:
                print(text, file=stream or sys.stdout, flush=True)

    def _move(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            if self._bar is None:
                self._bar = bar(fields.get("total"))
            if self._bar is None:
                return
            rest = {name: value for name, value in fields.items() if name not in ("done", "total")}
            self._bar.total = fields.get("total", self._bar.total)
            self._bar.set_postfix_str(shown(rest), refresh=False)
            self._bar.update(fields.get("done", self._bar.n) - self._bar.n)
            self._bar.refresh()


def bar(total: int | None) -> Any:
    with suppress(ImportError):
        from tqdm import tqdm

        tqdm.monitor_interval = 0  # prevents a thread that redraws the bar
        return tqdm(total=total, unit_scale=True, dynamic_ncols=True, file=sys.stderr)
    return None


def shown(fields: Mapping[str, Any]) -> str:
    """`rows 1,000  batch 3`."""
    return "  ".join(
        f"{name.replace('_', ' ')} {value:,}" if isinstance(value, int) else f"{name} {value}"
        for name, value in fields.items()
        if not isinstance(value, dict | list)
    )


# --- metrics ---------------------------------------------------------------------------------


class Metrics:
    """Serve metrics for Prometheus, if a port is set."""

    def __init__(self, job: str, port: int) -> None:
        self._job = job
        self._last = time.time()
        self._gauges: dict[str, Any] = {}
        self.port = 0
        if port:
            self._serve(port)

    def _serve(self, port: int) -> None:
        import prometheus_client as prometheus

        registry = prometheus.CollectorRegistry()
        plain, by_log = ["job"], ["job", "topic", "log_id"]

        def gauge(name: str, meaning: str, labels: list[str]) -> Any:
            return prometheus.Gauge(f"nsqcy_pipeline_{name}", meaning, labels, registry=registry)

        self._gauges = {
            "rows": prometheus.Counter(
                "nsqcy_pipeline_rows", "rows written", plain, registry=registry
            ),
            "batches": prometheus.Counter(
                "nsqcy_pipeline_batches", "batches", plain, registry=registry
            ),
            "batch_seconds": gauge("batch_seconds", "duration of the last batch", plain),
            "lag": gauge(
                "lag_records", "records in the log after the end of the last batch", by_log
            ),
            "idle": gauge("seconds_since_batch", "time since the last batch", plain),
        }
        self._gauges["idle"].labels(self._job).set_function(lambda: time.time() - self._last)
        server, _ = prometheus.start_http_server(port, registry=registry)
        self.port = server.server_port

    def batch(self, rows: int, seconds: float, lag: Positions) -> None:
        self._last = time.time()
        if not self._gauges:
            return
        self._gauges["rows"].labels(self._job).inc(rows)
        self._gauges["batches"].labels(self._job).inc()
        self._gauges["batch_seconds"].labels(self._job).set(seconds)
        for topic, logs in lag.items():
            for log_id, records in logs.items():
                self._gauges["lag"].labels(self._job, topic, log_id).set(records)
