"""Describes nsqd and other brokers with groups of messages: fair shares, order, urgent messages.
Measures nothing."""

from collections.abc import Callable, Sequence
from typing import Any

from loadtest.bench.markdown import table

Row = dict[str, Any]
Columns = dict[str, Callable[[Row], str]]

HEAD = """## Keys, beside other brokers

One broker at a time does each work, in memory. nsqd takes a message's key from a header. The
other brokers have no keys, so each of them does what its users do instead: Redis runs two Lua
scripts, which keep a list for each group and a list of the groups that wait; RabbitMQ has a
queue for each group or for every hundredth key; JetStream has a subject for each of them. Where
a broker has nothing of the kind, its row shows its usual order.
"""

_WAITS: Columns = {
    "p50, ms": lambda row: f"{row['figures']['p50_us'] / 1e3:,.1f}",
    "p99, ms": lambda row: f"{row['figures']['p99_us'] / 1e3:,.1f}",
    "consumers busy": lambda row: f"{row['figures']['busy']:.0%}",
    "CPU µs/msg": lambda row: f"{row['daemon_us']:.0f}",
}

SECTIONS: dict[str, tuple[str, Columns]] = {
    "flood": (
        """### A tenant that floods

One group has a million messages waiting (slow brokers get fewer). Ninety-nine others publish 10
messages a second each, and 62 consumers, which take one message at a time, could handle 1,240 a
second. The table shows how long the messages of the ninety-nine wait for their delivery.
""",
        _WAITS,
    ),
    "order": (
        """### Order within 10,000 keys

All messages wait, and two connections consume them, one message of a key at a time. RabbitMQ and
JetStream order a hundredth of the keys together: a queue has a single active consumer, and a
JetStream consumer waits for the acknowledgement of each message. Their messages of other keys
wait for each other.
""",
        {
            "msg/s": lambda row: f"{row['rate']:,.0f}",
            "nsqcy's rate, as a multiple": lambda row: f"{row['figures']['ratio']:,.1f} ×",
            "CPU µs/msg": lambda row: f"{row['daemon_us']:.2f}",
            "nsqcy's CPU, as a multiple": lambda row: f"{row['figures']['cpu_ratio']:.2f} ×",
            "messages": lambda row: f"{row['messages']:,}",
        },
    ),
    "urgent": (
        """### Urgent messages

Two hundred thousand messages wait, and a hundred urgent ones a second arrive. The consumers are
those of the flooded tenants. JetStream has no priorities.
""",
        _WAITS,
    ),
}


def section(rows: Sequence[Row]) -> str:
    """Return the tables of the scenario `tenants`."""
    parts = []
    for work, (text, columns) in SECTIONS.items():
        those = [row for row in rows if row["scenario"].startswith(f"{work}: ")]
        if those:
            body = [_cells(row, columns) for row in those]
            parts += [text, table(["", *columns, "version"], body)]
    return "\n".join([HEAD, *parts]) if parts else ""


def _cells(row: Row, columns: Columns) -> list[str]:
    name = row["scenario"].partition(": ")[2]
    figures = [told(row) if row["figures"] else "" for told in columns.values()]
    return [name, *figures, row["note"].partition("; ms")[0]]
