"""nsqcy/capacity/measured.py: the few figures of docs/benchmarks.json and docs/PERFORMANCE.md that
capacities are computed from, as they are packaged.

    python -m loadtest.bench.measured      writes it, as `make conf` does
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "nsqcy/capacity/measured.py"


class Row(NamedTuple):
    """A field of one row of the tables "nsqd alone" and "what a class of durability costs"."""

    scenario: str
    field: str  # of the row, or of its own figures
    unit: str
    durability: str = "memory"


# By name in the module that is written.
ROWS = {
    "PUBLISH": Row("MPUB x200, 2 conn", "daemon_us", "µs"),
    "PUBLISH_OVERFLOW": Row("MPUB x200, to disk", "daemon_us", "µs", "overflow"),
    "PUBLISH_OS": Row("MPUB x200, 2 conn, os", "daemon_us", "µs", "os"),
    "PUBLISH_FSYNC": Row("MPUB x200, 2 conn, fsync", "daemon_us", "µs", "fsync"),
    "PUBLISH_ALONE": Row("PUB, wait for OK, 50 conn, 1 worker", "daemon_us", "µs"),
    "PUBLISH_TLS": Row("MPUB x200, 1 conn, tls", "daemon_us", "µs"),
    "DELIVER": Row("SUB+FIN RDY 2500, 2 conn", "daemon_us", "µs"),
    "DELIVER_OVERFLOW": Row("SUB+FIN, from disk", "daemon_us", "µs", "overflow"),
    "DELIVER_ALONE": Row("2,000 consumers with RDY 1", "daemon_us", "µs"),
    "DELIVER_TLS": Row("SUB+FIN RDY 2500, 1 conn, tls", "daemon_us", "µs"),
    "LARGE": Row("bodies of 100 KB, in and out", "daemon_us", "µs"),
    "DEFER": Row("DPUB, 1,000,000 deferred", "daemon_us", "µs"),
    "DUE": Row("... due over 60 s", "daemon_us", "µs"),
    "SLOW": Row("latency at 1 k msg/s", "daemon_us", "µs"),
    "STEADY": Row("latency at 20 k msg/s", "daemon_us", "µs"),
    "FAST": Row("latency at 200 k msg/s", "daemon_us", "µs"),
    "WORKERS": Row("4 topics, 2 workers", "ratio", "x"),
    "PROCESSES": Row("latency at 1 k msg/s", "rss", "B"),
    "QUEUED": Row("messages queued", "bytes", "B"),
    "CONNECTION": Row("idle subscribed connections", "bytes", "B"),
    "TOPIC": Row("10,000 new topics", "bytes", "B"),
    "CHANNEL": Row("10,000 channels, 1 deferred each", "bytes", "B"),
}

# What docs/PERFORMANCE.md says of memory and disk, by a pattern with the number; and what it is.
SENTENCES = {
    "DEFERRED": (r"\*\*A deferred message\*\* has (\d+) bytes", "a deferred message"),
    "DEFERRED_JOURNAL": (r"each, and (\d+) bytes of disk", "a deferred message in the journal"),
    "IN_FLIGHT": (r"entry of a message in flight \((\d+) bytes\)", "a message in flight"),
    "TLS_CONNECTION": (r"idle connection with TLS has ([\d,]+) bytes", "an idle TLS connection"),
}

HEAD = '''"""What was measured, and capacities are computed from. Written by `make conf`, from
docs/benchmarks.json and docs/PERFORMANCE.md."""

from nsqcy.capacity.figure import Figure

'''


def text() -> str:
    """The whole module."""
    results = json.loads((ROOT / "docs/benchmarks.json").read_text())
    machine = f"{results['machine']['CPU']}, {results['machine']['cores']} cores"
    lines = [f'MACHINE = "{machine}, {results["date"]}"\n']
    lines += [_line(name, *_figure(results["nsqd"], row)) for name, row in ROWS.items()]
    page = " ".join((ROOT / "docs/PERFORMANCE.md").read_text().split())
    for name, (pattern, what) in SENTENCES.items():
        (number,) = re.findall(pattern, page)
        value = float(number.replace(",", ""))
        lines.append(_line(name, value, "B", f"{what}, PERFORMANCE.md"))
    return HEAD + "".join(lines)


def _line(name: str, value: float, unit: str, source: str) -> str:
    digits = f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
    return f'{name} = Figure({digits}, "{unit}", "{source}")\n'


def _figure(rows: list[dict[str, Any]], wanted: Row) -> tuple[float, str, str]:
    """Of several with one name the last one that has the field."""
    found = [
        {**row, **row["figures"]}
        for row in rows
        if row["scenario"] == wanted.scenario and row["durability"] == wanted.durability
    ]
    value = [row[wanted.field] for row in found if wanted.field in row][-1]
    return value, wanted.unit, wanted.scenario


if __name__ == "__main__":
    TARGET.write_text(text())
