"""Describes nsqd and other brokers that keep messages in files. Measures nothing."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from loadtest.bench.markdown import table

Row = dict[str, Any]


class Section(NamedTuple):
    """The rows of a scenario: a text, and columns of figures."""

    text: str
    columns: dict[str, Callable[[Row], str]]


SECTIONS = {
    "synced": Section(
        """### Waiting for a sync

Class fsync: a publish is acknowledged once its messages would survive a power loss. nsqd and Redis
(`appendfsync always`, an append-only file that is never rewritten) sync once for all waiting
clients. NATS JetStream runs with `sync_interval: always`, beanstalkd with a binlog and `-f 0`,
RabbitMQ with a durable classic queue and persistent messages. Clients send one message, or 100 in
one write, and send the next ones once all are acknowledged. Slow brokers get fewer messages.
"nsqcy's rate" is the median of the ratios of all rounds; rates vary from round to round, because
the brokers share a disk, so this median may differ from the ratio of the two median rates.
""",
        {
            "msg/s": lambda row: f"{row['rate']:,.0f}",
            "CPU µs/msg": lambda row: f"{row['daemon_us']:.2f}",
            "nsqcy's rate, as a multiple": lambda row: f"{row['figures']['ratio']:,.2f} ×",
            "messages": lambda row: f"{row['messages']:,}",
            "rounds": lambda row: str(row["rounds"]),
        },
    ),
    "recovery": Section(
        """### Recovery after kill -9

Class os: 10,000-byte messages wait in one queue of the given size, and all processes are killed.
The time runs from the start of the server to the first delivery; the server's CPU time and memory
are measured at that moment. beanstalkd and Redis read all messages before they serve a client.
""",
        {
            "GB in files": lambda row: f"{row['figures']['files'] / 1e9:.2f}",
            "first message, s": lambda row: f"{row['figures']['first_s']:.2f}",
            "CPU, s": lambda row: f"{row['daemon_cpu_s']:.2f}",
            "RSS MB": lambda row: f"{row['rss'] / 1e6:,.0f}",
        },
    ),
    "queues": Section(
        """### Many queues

Class os. One connection creates the queues and publishes a message to each: topics of nsqd, streams
of Redis, streams of JetStream, tubes of beanstalkd, durable classic queues of RabbitMQ. Then the
server is stopped with SIGTERM and started again; the start ends with the delivery of a message.
The CPU time per queue includes its message. JetStream creates a consumer, and Redis a group, only
for that delivery.
""",
        {
            "CPU µs per queue": lambda row: f"{row['daemon_us']:,.0f}",
            "bytes per queue": lambda row: f"{row['figures']['bytes']:,.0f}",
            "stop, s": lambda row: f"{row['figures']['stop_s']:.2f}",
            "start, s": lambda row: f"{row['figures']['start_s']:.2f}",
            "CPU of the start, s": lambda row: f"{row['figures']['start_cpu_s']:.2f}",
        },
    ),
    "clients": Section(
        """### Many connections

Each connection is a consumer of one empty queue, and has requested its first message: `RDY 1` for
nsqd, a pull request for JetStream (512 of them may wait), `basic.consume` for RabbitMQ. CPU is the
CPU time for connecting.
""",
        {
            "CPU µs per connection": lambda row: f"{row['daemon_us']:,.0f}",
            "bytes per connection": lambda row: f"{row['figures']['bytes']:,.0f}",
        },
    ),
}

HEAD = """## Brokers that keep messages in files

One server of each broker runs at a time, on one disk of this machine; the comparison above is in
memory. NATS server and Redis are builds from the Python package index, because Debian's are older;
beanstalkd and RabbitMQ are Debian packages. A row without figures gives the reason.
"""


def section(rows: Sequence[Row]) -> str:
    parts = []
    for name, (text, columns) in SECTIONS.items():
        those = [row for row in rows if row["name"] == name]
        if those:
            body = [_cells(row, columns) for row in those]
            parts += [text, table(["", *columns, "version"], body)]
    return "\n".join([HEAD, *parts]) if parts else ""


def _cells(row: Row, columns: dict[str, Callable[[Row], str]]) -> list[str]:
    row = row | {"daemon_cpu_s": row["daemon_us"] * row["messages"] / 1e6}
    figures = [told(row) if row["figures"] else "" for told in columns.values()]
    return [row["scenario"], *figures, row["note"]]
